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
use vlane_units::show_size;

use super::jobs::{CacheState, OLD};
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::image::fill_random;
use vlane_testbed::image::{Medium, Place};
use vlane_testbed::interrupt::Interrupt;

/// The smallest image: its file system must hold both files, and each of them several of the
/// largest records.
pub const LEAST: u64 = 128 << 20;
/// Longest that making the file system may take.
const MKFS: Duration = Duration::from_secs(300);

/// Where images are to be, as the user said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Unspecified.
    Anywhere,
    /// In this directory.
    Directory(PathBuf),
    /// Beside this image, which itself stays as it is.
    Beside(PathBuf),
}

impl Target {
    /// Meaning of a path: a directory, or a file whose directory has room. Block devices are
    /// refused: a comparison writes, and there is no place for a scratch file on a bare device.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a device, [`ErrorKind::Io`] if the path does not exist.
    pub fn of(path: &Path) -> Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        let meta = std::fs::metadata(path)
            .context(ErrorKind::Io, || format!("{}: cannot be looked at", path.display()))?;
        if meta.is_dir() {
            return Ok(Self::Directory(path.to_path_buf()));
        }
        if meta.file_type().is_block_device() || !meta.is_file() {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{}: not a file; a comparison writes, so it uses scratch images only: name a \
                     directory on the storage to be measured",
                    path.display()
                ),
            ));
        }
        Ok(Self::Beside(path.to_path_buf()))
    }

    /// The directory that was asked for.
    fn directory(&self) -> Option<PathBuf> {
        match self {
            Self::Anywhere => None,
            Self::Directory(dir) => Some(dir.clone()),
            Self::Beside(image) => {
                let parent = image.parent().filter(|p| !p.as_os_str().is_empty());
                Some(parent.map_or_else(|| PathBuf::from("."), Path::to_path_buf))
            }
        }
    }
}

/// Sizes of the files of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Of an image, in bytes.
    pub image: u64,
    /// Of the file in it that reads and rewrites go to.
    pub old: u64,
    /// The most of the file that "write" makes.
    pub new: u64,
}

impl Sizes {
    /// The files that an image of so many bytes has room for: half of it, and a quarter.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] below [`LEAST`].
    pub fn of(image: u64) -> Result<Self> {
        if image < LEAST {
            let context = format!(
                "images of {} are too small; {} are the least",
                show_size(image),
                show_size(LEAST)
            );
            return Err(Error::new(ErrorKind::Invalid, context));
        }
        // Whole largest records.
        let whole = |bytes: u64| bytes >> 24 << 24;
        Ok(Self { image: image >> 20 << 20, old: whole(image / 2), new: whole(image / 4) })
    }

    /// Room that `images` images, what they are made from, and the host's files need.
    pub fn needed(&self, images: usize) -> u64 {
        let images = u64::try_from(images).unwrap_or(u64::MAX).saturating_add(1);
        self.image.saturating_mul(images).saturating_add(self.old).saturating_add(self.new)
    }
}

/// Where scratch files will be. Finding it checks the room, the rights and, for direct
/// measurements, that direct I/O works.
///
/// # Errors
/// [`ErrorKind::Invalid`] with what to do.
pub fn find_place(target: &Target, sizes: &Sizes, images: usize) -> Result<PathBuf> {
    let wanted = target.directory();
    let place = Place::find(Medium::Disk, wanted.as_deref(), sizes.needed(images), "--dir")?;
    std::path::absolute(place.dir()).context(ErrorKind::Io, || "the current directory is gone")
}

/// The files. Dropping it removes them.
#[derive(Debug)]
pub struct Scratch {
    dir: TempDir,
    sizes: Sizes,
}

impl Scratch {
    /// Makes a directory for them in `place`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn new(place: &Path, sizes: Sizes) -> Result<Self> {
        let dir = TempDir::with_prefix_in("vlane-compare-", place)
            .context(ErrorKind::Io, || {
                format!("{}: no directory can be made there", place.display())
            })?;
        let scratch = Self { dir, sizes };
        std::fs::create_dir(scratch.files())
            .context(ErrorKind::Io, || format!("{}: cannot be made", scratch.files().display()))?;
        Ok(scratch)
    }

    /// The directory of everything.
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

    /// Writes the host's file, and the images of `ids`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], [`ErrorKind::Process`] if there is no making a file system,
    /// [`ErrorKind::Interrupted`].
    pub fn fill(
        &self,
        host: &Host,
        ids: &[&str],
        cache: CacheState,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let old = self.files().join(OLD);
        random_file(&old, self.sizes.old, interrupt)?;
        if !ids.is_empty() {
            let template = self.dir.path().join("template.img");
            self.make_file_system(host, &template, interrupt)?;
            for id in ids {
                copy_whole(&template, &self.image(id), interrupt)?;
            }
            std::fs::remove_file(&template)
                .context(ErrorKind::Io, || format!("{}: cannot be removed", template.display()))?;
        }
        if cache != CacheState::Warm {
            let files = ids.iter().map(|id| self.image(id)).chain([old]);
            files.for_each(|file| forget_pages(&file));
        }
        Ok(())
    }

    /// ext4 with the host's file in it.
    fn make_file_system(&self, host: &Host, image: &Path, interrupt: &Interrupt) -> Result<()> {
        let blocks = format!("{}k", self.sizes.image >> 10);
        let files = self.files();
        let words = [
            "-q",
            "-F",
            // A lazy initialisation would write during measurements; and discards would make holes.
            "-E",
            "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
            "-b",
            "4096",
            "-m",
            "0",
            "-d",
        ];
        let mut command: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
        command.extend([files.into_os_string(), image.as_os_str().to_owned(), blocks.into()]);
        run(&Spec::new(host.program("mkfs.ext4")?, command), MKFS, interrupt).map(drop)
    }
}

/// Runs a program to its end; its standard output. An interrupt kills it.
///
/// # Errors
/// [`ErrorKind::Process`] with what it said, [`ErrorKind::Timeout`], [`ErrorKind::Interrupted`].
pub(crate) fn run(spec: &Spec, limit: Duration, interrupt: &Interrupt) -> Result<String> {
    let failed = || spec.shell_line();
    let mut child = spec.spawn_apart("KILL")?;
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                // Output before an error is kept.
                let _ = pipe.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    drop(child.stdin.take());
    let out = read(child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let err = read(child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let start = std::time::Instant::now();
    let end = loop {
        if let Some(status) = child.try_wait().context(ErrorKind::Process, failed)? {
            break Ok(status);
        }
        if interrupt.is_raised() {
            break Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        if start.elapsed() > limit {
            break Err(Error::new(
                ErrorKind::Timeout,
                format!("{} was killed after {} s", failed(), limit.as_secs()),
            ));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    if end.is_err() {
        // It has a process group of its own, and may have started others.
        let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = child.wait();
    }
    let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    match end? {
        status if status.success() => Ok(out),
        status => {
            let said = format!("{} failed ({status}): {}{}", failed(), out.trim(), err.trim());
            Err(Error::new(ErrorKind::Process, said))
        }
    }
}

/// Writes a file of data that do not compress, and makes it stable.
fn random_file(path: &Path, bytes: u64, interrupt: &Interrupt) -> Result<()> {
    let failed = || format!("{}: cannot write {}", path.display(), show_size(bytes));
    let mut file = File::create_new(path).context(ErrorKind::Io, failed)?;
    fill_random(&mut file, bytes, interrupt, failed)?;
    file.sync_all().context(ErrorKind::Io, failed)
}

/// Copies a file by writing every byte of it: a clone or a hole would first be written during a
/// measurement.
fn copy_whole(from: &Path, to: &Path, interrupt: &Interrupt) -> Result<()> {
    let failed = || format!("{}: cannot be written", to.display());
    let mut source = File::open(from)
        .context(ErrorKind::Io, || format!("{}: cannot be read", from.display()))?;
    let mut target = File::create_new(to).context(ErrorKind::Io, failed)?;
    let mut chunk = vec![0; 1 << 20];
    loop {
        interrupt.check()?;
        let length = source.read(&mut chunk).context(ErrorKind::Io, failed)?;
        if length == 0 {
            break;
        }
        target.write_all(&chunk[..length]).context(ErrorKind::Io, failed)?;
    }
    target.sync_all().context(ErrorKind::Io, failed)
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
    let failed = || format!("{}: cannot be read", path.display());
    let mut file = File::open(path).context(ErrorKind::Io, failed)?;
    std::io::copy(&mut file, &mut std::io::sink()).map(drop).context(ErrorKind::Io, failed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn image_fits_both_files_in_records() {
        for image in [LEAST, 200 << 20, 512 << 20, 1 << 40] {
            let sizes = Sizes::of(image).unwrap();
            assert!(sizes.old >= 64 << 20 && sizes.new >= 32 << 20);
            assert!(sizes.old.is_multiple_of(16 << 20) && sizes.new.is_multiple_of(16 << 20));
            // A tenth and more for the file system itself.
            assert!(sizes.old + sizes.new <= image * 9 / 10);
            assert!(sizes.needed(6) >= 7 * sizes.image + sizes.old + sizes.new);
        }
        assert_eq!(Sizes::of(LEAST - 1).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn image_gives_place_and_device_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("disk.raw");
        std::fs::write(&image, "precious").unwrap();
        let target = Target::of(&image).unwrap();
        assert_eq!(target.directory().unwrap(), dir.path());
        assert_eq!(Target::of(dir.path()).unwrap(), Target::Directory(dir.path().to_path_buf()));
        let error = Target::of(Path::new("/dev/null")).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains("directory"),
            "{error}"
        );
        assert_eq!(Target::of(Path::new("/nowhere/x")).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(std::fs::read(&image).unwrap(), b"precious");
    }

    #[test]
    fn too_little_room_names_the_need() {
        let dir = tempfile::tempdir().unwrap();
        let sizes = Sizes::of(1 << 50).unwrap();
        let target = Target::Directory(dir.path().to_path_buf());
        let text = find_place(&target, &sizes, 6).unwrap_err().to_string();
        assert!(text.contains("are needed") && text.contains("--dir"), "{text}");
    }

    #[test]
    fn images_are_equal_and_removed_on_drop() {
        let host = Host::new(vlane_guest::Install::Never).unwrap();
        if host.program("mkfs.ext4").is_err() {
            return vlane_testing::skip("no mkfs.ext4");
        }
        let place = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(place.path(), Sizes::of(LEAST).unwrap()).unwrap();
        let interrupt = Interrupt::listen().unwrap();
        scratch.fill(&host, &["one", "two"], CacheState::Direct, &interrupt).unwrap();
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
