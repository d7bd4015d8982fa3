//! Storage of the measurements: an image for each guest disk, and a file for the host. All are on
//! one file system, and are removed afterwards.
//!
//! Every image has the same content: an ext4 file system with the file [`OLD`], made once and
//! copied, so that no guest has to make it. The images are written whole: a hole, or an unwritten
//! block, would be another measurement. No existing file is opened for writing.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use vlane_guest::{Host, Spec};

use super::jobs::{CacheState, OLD, Sizes};
use vlane_testbed::{At, Context, ErrorKind, Fail, Interrupt, Medium, Place, Result, fill_random};

/// Longest that making the file system may take.
const MKFS: Duration = Duration::from_secs(300);

/// The directory that a path names: its own, or that of an image, which itself stays as it is.
/// Block devices are refused: a comparison writes, and there is no place for a scratch file on a
/// bare device.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a device, [`ErrorKind::Io`] if the path does not exist.
pub fn directory(path: &Path) -> Result<PathBuf> {
    let meta = std::fs::metadata(path).at(path, "cannot be looked at")?;
    if meta.is_dir() {
        return Ok(path.to_path_buf());
    }
    if !meta.is_file() {
        return ErrorKind::Invalid.fail(format!(
            "{}: not a file; a comparison writes, so it uses scratch images only: name a \
                 directory on the storage to be measured",
            path.display()
        ));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok(parent.unwrap_or(Path::new(".")).to_path_buf())
}

/// Where scratch files will be. Finding it checks the room, the rights and, for direct
/// measurements, that direct I/O works.
///
/// # Errors
/// [`ErrorKind::Invalid`] with what to do.
pub fn find_place(wanted: Option<&Path>, sizes: &Sizes, images: usize) -> Result<PathBuf> {
    let place = Place::find(Medium::Disk, wanted, sizes.needed(images), "--dir")?;
    std::path::absolute(place.dir()).context(ErrorKind::Io, || "the current directory is gone")
}

/// The files. Dropping it removes them.
#[derive(Debug)]
pub struct Scratch {
    dir: TempDir,
}

impl Scratch {
    /// Makes a directory for them in `place`, and writes the host's file and the images of `ids`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], [`ErrorKind::Process`] if there is no making a file system,
    /// [`ErrorKind::Interrupted`].
    pub fn write(
        place: &Path,
        sizes: Sizes,
        host: &Host,
        ids: &[String],
        cache: CacheState,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let failed = || format!("{}: cannot be written", place.display());
        let dir =
            TempDir::with_prefix_in("vlane-compare-", place).context(ErrorKind::Io, failed)?;
        let scratch = Self { dir };
        let (files, template) = (scratch.files(), scratch.image("template"));
        std::fs::create_dir(&files).context(ErrorKind::Io, failed)?;
        let old = files.join(OLD);
        // Data that do not compress.
        let mut file = File::create_new(&old).context(ErrorKind::Io, failed)?;
        fill_random(&mut file, sizes.old, interrupt, failed)?;
        file.sync_all().context(ErrorKind::Io, failed)?;
        // A lazy initialisation would write during measurements; and discards would make holes.
        let features = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let words = ["-q", "-F", "-b", "4096", "-m", "0", "-E", features, "-d"];
        let mut command: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
        command.extend([files.into_os_string(), template.clone().into_os_string()]);
        command.push(format!("{}k", sizes.image >> 10).into());
        run(&Spec::new(host.program("mkfs.ext4")?, command), MKFS, interrupt)?;
        for id in ids {
            copy_whole(&template, &scratch.image(id), interrupt)?;
        }
        std::fs::remove_file(&template).context(ErrorKind::Io, failed)?;
        if cache != CacheState::Warm {
            let images = ids.iter().map(|id| scratch.image(id));
            images.chain([old]).for_each(|file| forget_pages(&file));
        }
        Ok(scratch)
    }

    /// The directory of all files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The directory of the host's own files.
    pub fn files(&self) -> PathBuf {
        self.dir.path().join("files")
    }

    /// The image of a disk.
    pub fn image(&self, id: &str) -> PathBuf {
        self.dir.path().join(format!("{id}.img"))
    }
}

/// Runs a program to its end; its standard output. An interrupt kills it.
///
/// # Errors
/// [`ErrorKind::Process`] with what it said, [`ErrorKind::Timeout`], [`ErrorKind::Interrupted`].
pub(crate) fn run(spec: &Spec, limit: Duration, interrupt: &Interrupt) -> Result<String> {
    let failed = || spec.shell_line();
    let mut child = spec.spawn_apart("KILL")?;
    let start = std::time::Instant::now();
    // A pipe holds all that such a program prints.
    let end = loop {
        if child.try_wait().context(ErrorKind::Process, failed)?.is_some() {
            break Ok(());
        }
        if let Err(interrupted) = interrupt.check() {
            break Err(interrupted);
        }
        if start.elapsed() > limit {
            let late = format!("{} was killed after {} s", failed(), limit.as_secs());
            break ErrorKind::Timeout.fail(late);
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    if end.is_err() {
        // It has a process group of its own, and may have started others.
        let group = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let output = child.wait_with_output().context(ErrorKind::Process, failed)?;
    end?;
    let [out, err] =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    if !output.status.success() {
        let said = format!("{} failed ({}): {}{}", failed(), output.status, out.trim(), err.trim());
        return ErrorKind::Process.fail(said);
    }
    Ok(out)
}

/// Copies a file by writing every byte of it: a clone or a hole would first be written during a
/// measurement.
fn copy_whole(from: &Path, to: &Path, interrupt: &Interrupt) -> Result<()> {
    let mut source = File::open(from).at(from, "cannot be read")?;
    let mut target = File::create_new(to).at(to, "cannot be written")?;
    let mut chunk = vec![0; 1 << 20];
    loop {
        interrupt.check()?;
        let length = source.read(&mut chunk).at(to, "cannot be written")?;
        if length == 0 {
            break;
        }
        target.write_all(&chunk[..length]).at(to, "cannot be written")?;
    }
    target.sync_all().at(to, "cannot be written")
}

/// Drops a file's pages from the page cache: direct I/O to a file that is cached has to look after
/// the cached pages too.
pub(super) fn forget_pages(path: &Path) {
    if let Ok(file) = OpenOptions::new().read(true).open(path) {
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

/// Reads a file whole, so that it is in the page cache.
pub(super) fn warm_pages(path: &Path) -> Result<()> {
    let mut file = File::open(path).at(path, "cannot be read")?;
    std::io::copy(&mut file, &mut std::io::sink()).map(drop).at(path, "cannot be read")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::jobs::LEAST;
    use super::*;

    #[test]
    fn image_gives_place_and_device_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("disk.raw");
        std::fs::write(&image, "precious").unwrap();
        assert_eq!(directory(&image).unwrap(), dir.path());
        assert_eq!(directory(dir.path()).unwrap(), dir.path());
        assert_eq!(directory(Path::new("Cargo.toml")).unwrap(), Path::new("."));
        let error = directory(Path::new("/dev/null")).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains("directory"),
            "{error}"
        );
        assert_eq!(directory(Path::new("/nowhere/x")).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(std::fs::read(&image).unwrap(), b"precious");
    }

    #[test]
    fn too_little_room_names_the_need() {
        let dir = tempfile::tempdir().unwrap();
        let sizes = Sizes::of(1 << 50).unwrap();
        let text = find_place(Some(dir.path()), &sizes, 6).unwrap_err().to_string();
        assert!(text.contains("are needed") && text.contains("--dir"), "{text}");
    }

    #[test]
    fn images_are_equal_and_removed_on_drop() {
        let host = Host::new(vlane_guest::Install::Never).unwrap();
        if host.program("mkfs.ext4").is_err() {
            return vlane_testing::skip("no mkfs.ext4");
        }
        let place = tempfile::tempdir().unwrap();
        let (sizes, ids) = (Sizes::of(LEAST).unwrap(), ["one".into(), "two".into()]);
        let interrupt = Interrupt::listen().unwrap();
        let cache = CacheState::Direct;
        let scratch = Scratch::write(place.path(), sizes, &host, &ids, cache, &interrupt).unwrap();
        let (one, two) = (scratch.image("one"), scratch.image("two"));
        for image in [&one, &two] {
            let meta = std::fs::metadata(image).unwrap();
            assert!(
                meta.len() == LEAST && meta.blocks() * 512 >= LEAST,
                "{}: it has holes",
                image.display()
            );
        }
        assert!(std::fs::read(&one).unwrap() == std::fs::read(&two).unwrap());
        assert!(!scratch.dir().join("template.img").exists());
        vlane_guest::ext4::check(&host, &one).unwrap();
        let inside = vlane_guest::ext4::read_file(&host, &one, "/old").unwrap();
        assert!(inside == std::fs::read(scratch.files().join(OLD)).unwrap());
        drop(scratch);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn interrupted_program_ends_with_children() {
        let interrupt = Interrupt::listen().unwrap();
        interrupt.flag().store(true, std::sync::atomic::Ordering::Relaxed);
        let spec = Spec::new("/bin/sh", ["-c", "sleep 77.125 & wait"]);
        let error = run(&spec, Duration::from_secs(60), &interrupt).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        interrupt.flag().store(false, std::sync::atomic::Ordering::Relaxed);
        let out =
            run(&Spec::new("/bin/sh", ["-c", "echo fine"]), Duration::from_secs(60), &interrupt);
        assert_eq!(out.unwrap(), "fine\n");
        let bad = run(
            &Spec::new("/bin/sh", ["-c", "echo why >&2; exit 3"]),
            Duration::from_secs(60),
            &interrupt,
        );
        assert!(bad.unwrap_err().to_string().contains("why"));
    }
}
