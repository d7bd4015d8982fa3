//! Looks into an ext4 volume from the host, without mounting it: the guest's word is not enough.

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result, io};
use crate::host::Host;
use crate::process::{run, run_ok};

const LIMIT: Duration = Duration::from_secs(120);
/// The block of file systems that are made here, in bytes.
const BLOCK: u64 = 4096;

/// Makes a file system with a journal of so many bytes (whole MiB, at least four) on `image`. None
/// of the image's blocks becomes a hole.
pub fn make(host: &Host, image: &Path, journal: u64) -> Result<()> {
    let mut command = Command::new(host.program("mkfs.ext4")?);
    command.args(["-q", "-F", "-b", "4096", "-m", "0", "-J", &format!("size={}", journal >> 20)]);
    command.args(["-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"]).arg(image);
    run_ok(&mut command, LIMIT).map(drop)
}

/// The journal's place on `image`, in bytes of the image, from debugfs. File systems must have
/// blocks of 4 KiB.
pub fn journal(host: &Host, image: &Path) -> Result<Vec<Range<u64>>> {
    let said =
        run_ok(Command::new(host.program("debugfs")?).args(["-R", "ex <8>"]).arg(image), LIMIT)?;
    let ranges = extents(&said);
    match ranges.is_empty() {
        false => Ok(ranges),
        true => {
            let text = format!("{}: debugfs reports no journal: {}", image.display(), said.trim());
            Err(Error::new(ErrorKind::Tool, text))
        }
    }
}

/// The ranges of a file's extents, in bytes, from debugfs's output. Each leaf of the tree is a line
/// like ` 1/ 1   1/  2     0 - 32767    34816 -  67583  32768`; lines with unequal levels are inner
/// nodes.
fn extents(said: &str) -> Vec<Range<u64>> {
    let numbers = |line: &str| -> Vec<u64> {
        let words = line.split(|c: char| !c.is_ascii_digit());
        words.filter_map(|word| word.parse().ok()).collect()
    };
    let leaf = |line: &str| {
        let [level, depth, _, _, _, _, first, last, length] = numbers(line)[..] else {
            return None;
        };
        let end = last.checked_add(1)?;
        let range = first.checked_mul(BLOCK)?..end.checked_mul(BLOCK)?;
        (level == depth && end.checked_sub(first)? == length).then_some(range)
    };
    said.lines().filter_map(leaf).collect()
}

/// An error, with e2fsck's words, unless the file system on `image` is clean. Never writes.
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
    // debugfs ends with 0 in every case; only the file shows its success.
    let said =
        run_ok(Command::new(host.program("debugfs")?).args(["-R", &request]).arg(image), LIMIT)?;
    std::fs::read(&out).map_err(|e| {
        Error::caused_by(
            ErrorKind::Tool,
            format!("{}: {path} cannot be read with debugfs: {}", image.display(), said.trim()),
            e,
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::host::Install;

    #[test]
    fn extents_are_debugfs_leaves() {
        let flat = "debugfs 1.47.0 (5-Feb-2023)\nLevel Entries       Logical          Physical \
                    Length Flags\n 0/ 0   1/  1     0 -  1023   1025 -  2048   1024 \n";
        assert_eq!(extents(flat), vec![1025 * BLOCK..2049 * BLOCK; 1]);
        let deep = "Level Entries       Logical              Physical Length Flags\n \
                    0/ 1   1/  1     0 - 65535  34000              65536\n \
                    1/ 1   1/  2     0 - 32767  34816 -  67583  32768 \n \
                    1/ 1   2/  2 32768 - 65535  67584 - 100351  32768 ";
        assert_eq!(extents(deep), [34816 * BLOCK..67584 * BLOCK, 67584 * BLOCK..100_352 * BLOCK]);
        assert_eq!(extents("0/ 0 1/ 1 0 - 9 18446744073709551615 - 18446744073709551615 1"), []);
        assert_eq!(extents("nothing"), []);
    }

    #[test]
    fn journal_has_requested_size() {
        let host = Host::new(Install::Never).unwrap();
        if host.program("mkfs.ext4").is_err() {
            return vlane_testing::skip("mkfs.ext4 is not on this machine");
        }
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(64 << 20).unwrap();
        make(&host, image.path(), 8 << 20).unwrap();
        let ranges = journal(&host, image.path()).unwrap();
        assert_eq!(ranges.iter().map(|range| range.end - range.start).sum::<u64>(), 8 << 20);
        // Its first block is the journal's superblock: JBD2's magic number.
        let bytes = std::fs::read(image.path()).unwrap();
        let first = usize::try_from(ranges[0].start).unwrap();
        assert_eq!(bytes[first..first + 4], [0xc0, 0x3b, 0x39, 0x98]);
    }

    #[test]
    fn damaged_image_is_detected() {
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
        // Zeroes over the first inode tables and bitmaps.
        let mut bytes = std::fs::read(&image).unwrap();
        bytes[64 << 10..256 << 10].fill(0);
        std::fs::write(&image, bytes).unwrap();
        assert!(check(&host, &image).is_err());
    }
}
