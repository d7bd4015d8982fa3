//! Looks into an ext4 volume from the host, without mounting it: the guest's word is not enough.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result, io};
use crate::host::Host;
use crate::process::{run, run_ok};

const LIMIT: Duration = Duration::from_secs(120);

/// An error, with e2fsck's words, unless the file system on `image` is clean. Changes nothing.
pub fn check(host: &Host, image: &Path) -> Result<()> {
    let output = run(Command::new(host.program("e2fsck")?).arg("-fn").arg(image), LIMIT)?;
    if output.status.code() == Some(0) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Tool,
        format!("{}: e2fsck found errors ({}):\n{}", image.display(), output.status, output.text),
    ))
}

/// The content of the file `path` in the file system on `image`.
pub fn read_file(host: &Host, image: &Path, path: &str) -> Result<Vec<u8>> {
    let directory = tempfile::tempdir().map_err(io(|| "no temporary directory"))?;
    let out = directory.path().join("out");
    let request = format!("dump \"{path}\" \"{}\"", out.display());
    // debugfs ends with 0 whatever happens; the file is there or not.
    let said = run_ok(Command::new(host.program("debugfs")?).args(["-R", &request]).arg(image), LIMIT)?;
    std::fs::read(&out).map_err(|e| {
        Error::caused_by(
            ErrorKind::Tool,
            format!("{}: {path} cannot be read with debugfs: {}", image.display(), said.trim()),
            e,
        )
    })
}

/// Copies the directory `path` of the file system on `image` into the host's directory `into`.
pub fn copy_directory(host: &Host, image: &Path, path: &str, into: &Path) -> Result<()> {
    let request = format!("rdump \"{path}\" \"{}\"", into.display());
    let said = run_ok(Command::new(host.program("debugfs")?).args(["-R", &request]).arg(image), LIMIT)?;
    let complaint = said.lines().find(|l| l.contains("not found") || l.contains("rror"));
    match complaint {
        None => Ok(()),
        Some(line) => Err(Error::new(ErrorKind::Tool, format!("{}: {path}: {line}", image.display()))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::host::Install;

    #[test]
    fn files_are_read_from_a_clean_image_and_damage_is_seen() {
        let host = Host::new(Install::Never).unwrap();
        let Ok(mkfs) = host.program("mkfs.ext4") else {
            return vlane_testing::skip("mkfs.ext4 is not on this machine");
        };
        let dir = tempfile::tempdir().unwrap();
        let (image, tree) = (dir.path().join("image"), dir.path().join("tree"));
        std::fs::create_dir_all(tree.join("a")).unwrap();
        std::fs::write(tree.join("a/file"), "content").unwrap();
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        run_ok(Command::new(mkfs).args(["-q", "-d"]).arg(&tree).arg(&image), LIMIT).unwrap();
        check(&host, &image).unwrap();
        assert_eq!(read_file(&host, &image, "/a/file").unwrap(), b"content");
        assert!(read_file(&host, &image, "/a/none").is_err());
        let out = dir.path().join("out");
        std::fs::create_dir(&out).unwrap();
        copy_directory(&host, &image, "/a", &out).unwrap();
        assert_eq!(std::fs::read(out.join("a/file")).unwrap(), b"content");

        // Zeroes over the first inode tables and bitmaps.
        let mut bytes = std::fs::read(&image).unwrap();
        bytes[64 << 10..256 << 10].fill(0);
        std::fs::write(&image, bytes).unwrap();
        assert!(check(&host, &image).is_err());
    }
}
