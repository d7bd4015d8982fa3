//! Images to measure on: where they can be, that there is room, and that they are there for real,
//! not as holes.
//!
//! A place is looked for (and its lack said, with what to do) before anything is measured:
//! [`Place::find`]. An [`Image`] is removed when it is dropped.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, statfs};
use tempfile::{NamedTempFile, TempPath};
use vlane_units::show_size;

use crate::{Context, Error, ErrorKind, Fail, Interrupt, Result};

/// TMPFS_MAGIC of linux/magic.h.
const TMPFS: i64 = 0x0102_1994;
/// Space to leave free on a RAM disk, and in memory, beside the image.
const RAM_SPARE: u64 = 64 << 20;
/// Space to leave free on a disk beside the image.
const DISK_SPARE: u64 = 256 << 20;

/// Kind of file system for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// A RAM disk (tmpfs).
    Ram,
    /// A disk on which direct I/O is possible.
    Disk,
}

/// A directory that has room for images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    dir: PathBuf,
    medium: Medium,
}

impl Place {
    /// A place with room for `bytes` in all: `wanted`, or else the first directory that will do.
    /// `option` names the command's option for it (`--disk-dir`), for the error's text.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no such place: the wrong kind of file system, too little
    /// room, not writable, no direct I/O.
    pub fn find(medium: Medium, wanted: Option<&Path>, bytes: u64, option: &str) -> Result<Self> {
        let temporary = std::env::temp_dir();
        let usual: [&Path; 3] = match medium {
            Medium::Ram => [Path::new("/dev/shm"), &temporary, Path::new("/run")],
            Medium::Disk => [Path::new("."), Path::new("/var/tmp"), &temporary],
        };
        let place = |dir: &Path| Self { dir: dir.to_path_buf(), medium };
        if let Some(dir) = wanted {
            let place = place(dir);
            place.check(bytes).map_err(|why| {
                let dir = dir.display();
                let text = format!("{dir}: {why}; give another directory with {option}");
                Error::new(ErrorKind::Invalid, text)
            })?;
            return Ok(place.told());
        }
        if let Some(dir) = usual.into_iter().find(|dir| place(dir).check(bytes).is_ok()) {
            return Ok(place(dir).told());
        }
        let (what, need) = match medium {
            Medium::Ram => ("RAM disk (tmpfs)", bytes.saturating_add(RAM_SPARE)),
            Medium::Disk => {
                ("directory on a disk with direct I/O", bytes.saturating_add(DISK_SPARE))
            }
        };
        let need = show_size(need);
        ErrorKind::Invalid
            .fail(format!("no {what} with {need} free that may be written; give one with {option}"))
    }

    /// Reports name what images were on.
    fn told(self) -> Self {
        vlane_report::machine::images_in(&self.dir);
        self
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Kind of its file system.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// Checks that an image of so many bytes can be here; the error is the reason if not.
    fn check(&self, bytes: u64) -> std::result::Result<(), String> {
        let fs = statfs(&self.dir).map_err(|e| std::io::Error::from(e).to_string())?;
        let tmpfs = fs.f_type == TMPFS;
        let spare = match self.medium {
            Medium::Ram if !tmpfs => return Err("not a RAM disk (tmpfs)".into()),
            Medium::Disk if tmpfs => return Err("a RAM disk, not a disk".into()),
            Medium::Ram => RAM_SPARE,
            Medium::Disk => DISK_SPARE,
        };
        let mut free = fs.f_bavail.saturating_mul(u64::try_from(fs.f_bsize).unwrap_or(0));
        if self.medium == Medium::Ram {
            // A tmpfs may be larger than the memory that is left.
            free = free.min(available_memory().unwrap_or(u64::MAX));
        }
        let need = bytes.saturating_add(spare);
        if free < need {
            return Err(format!("{} are needed, {} are free", show_size(need), show_size(free)));
        }
        let file = NamedTempFile::with_prefix_in("vlane-", &self.dir)
            .map_err(|e| format!("not writable: {e}"))?;
        if self.medium == Medium::Disk {
            open_direct(file.path()).map_err(|e| format!("no direct I/O there: {e}"))?;
        }
        Ok(())
    }

    /// Writes an image of `bytes` (whole MiB) of data that do not compress, and makes it stable on
    /// a disk.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be written, [`ErrorKind::Interrupted`] if the user does not
    /// want it any more.
    pub fn image(&self, bytes: u64, interrupt: &Interrupt) -> Result<Image> {
        let failed =
            || format!("{}: cannot write an image of {}", self.dir.display(), show_size(bytes));
        let dir = std::path::absolute(&self.dir).context(ErrorKind::Io, failed)?;
        let mut file = tempfile::Builder::new()
            .prefix("vlane-")
            .suffix(".img")
            .tempfile_in(dir)
            .context(ErrorKind::Io, failed)?;
        fill_random(&mut file, bytes, interrupt, failed)?;
        if self.medium == Medium::Disk {
            file.as_file().sync_all().context(ErrorKind::Io, failed)?;
        }
        Ok(Image { path: file.into_temp_path(), bytes: bytes >> 20 << 20 })
    }
}

/// Writes `bytes` (whole MiB) of data that do not compress, the same every time.
///
/// # Errors
/// [`ErrorKind::Io`] if they cannot be written, [`ErrorKind::Interrupted`] if the user does not
/// want it any more.
pub fn fill_random(
    file: &mut impl Write,
    bytes: u64,
    interrupt: &Interrupt,
    failed: impl Fn() -> String,
) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut chunk = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        interrupt.check()?;
        random.fill(&mut chunk);
        file.write_all(&chunk).context(ErrorKind::Io, &failed)?;
    }
    Ok(())
}

/// A file that is removed when it is dropped.
#[derive(Debug)]
pub struct Image {
    path: TempPath,
    bytes: u64,
}

impl Image {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn open_direct(path: &Path) -> std::io::Result<std::fs::File> {
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    OpenOptions::new().read(true).custom_flags(direct).open(path)
}

/// Memory that can be had without swapping, by the kernel's own estimate.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn image_is_allocated_and_removed_on_drop() {
        let Ok(place) = Place::find(Medium::Disk, None, 2 << 20, "--disk-dir") else {
            return vlane_testing::skip("no disk with direct I/O and 260 MiB free");
        };
        let interrupt = Interrupt::listen().unwrap();
        let image = place.image(2 << 20, &interrupt).unwrap();
        let meta = std::fs::metadata(image.path()).unwrap();
        assert_eq!((meta.len(), image.bytes()), (2 << 20, 2 << 20));
        assert!(meta.blocks() * 512 >= 2 << 20, "it has holes");
        let told = vlane_report::Machine::describe(&[]).storage;
        assert!(!told.is_empty(), "reports name the file system");
        let path = image.path().to_path_buf();
        drop(image);
        assert!(!path.exists());
    }

    #[test]
    fn interrupted_image_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { dir: dir.path().to_path_buf(), medium: Medium::Disk };
        let interrupt = Interrupt::listen().unwrap();
        interrupt.flag().store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(place.image(2 << 20, &interrupt).unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn unfit_place_names_helpful_option() {
        let dir = tempfile::tempdir().unwrap();
        let find =
            |medium, bytes| Place::find(medium, Some(dir.path()), bytes, "--some-dir").unwrap_err();
        let both = [find(Medium::Ram, 1 << 60), find(Medium::Disk, 1 << 60)];
        for error in both {
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(
                text.contains("--some-dir") && text.contains(dir.path().to_str().unwrap()),
                "{text}"
            );
        }
        let error = Place::find(Medium::Disk, Some(Path::new("/does/not/exist")), 1, "--some-dir")
            .unwrap_err();
        assert!(error.to_string().contains("No such file"), "{error}");
        let error = Place::find(Medium::Ram, None, u64::MAX, "--ram-dir").unwrap_err();
        assert!(error.to_string().contains("--ram-dir"), "{error}");
    }
}
