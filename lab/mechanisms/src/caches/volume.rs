//! A volume whose ext4 has a journal of a given size, and what the host's page cache has of a file.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::path::Path;

use rustix::fs::{Advice, fadvise};
use vlane_guest::{Host, ext4};

use vlane_testbed::{At, ErrorKind, Fail, Image, Interrupt, Place, Result};

/// Least size of a guest's volume beside its journal.
const FILES: u64 = 256 << 20;
/// Size of an unmounted volume beside its journal.
const BESIDE: u64 = 16 << 20;
/// The smallest journal that ext4 has: 1024 blocks of 4 KiB.
pub const SMALLEST_JOURNAL: u64 = 4 << 20;

/// A volume with a journal.
#[derive(Debug)]
pub struct Volume {
    /// Its blocks.
    pub image: Image,
    /// Bytes of the journal.
    pub journal: u64,
    /// Where it lies, in bytes of the volume.
    pub ranges: Vec<Range<u64>>,
}

impl Volume {
    /// Bytes of the image of a volume with a journal of so many.
    pub fn bytes(journal: u64, for_guests: bool) -> u64 {
        // mkfs makes a journal of at most half the file system.
        let files = if for_guests { FILES.max(journal / 4) } else { BESIDE };
        journal.saturating_mul(2).saturating_add(files).div_ceil(1 << 20).saturating_mul(1 << 20)
    }

    /// Writes the whole image of so many bytes, so that none of its blocks is a hole, and makes a
    /// file system.
    ///
    /// # Errors
    /// Those of [`Place::image`]; [`ErrorKind::Missing`] without e2fsprogs, [`ErrorKind::Process`]
    /// if its programs fail.
    pub fn new(
        place: &Place,
        host: &Host,
        bytes: u64,
        journal: u64,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let image = place.image(bytes, interrupt)?;
        let mut volume = Self { image, journal, ranges: Vec::new() };
        volume.make_file_system(host)?;
        Ok(volume)
    }

    /// A fresh file system on the same blocks.
    ///
    /// # Errors
    /// As [`Volume::new`].
    pub fn make_file_system(&mut self, host: &Host) -> Result<()> {
        ext4::make(host, self.image.path(), self.journal)?;
        self.ranges = ext4::journal(host, self.image.path())?;
        let found: u64 = self.ranges.iter().map(|range| range.end - range.start).sum();
        if found != self.journal {
            let text =
                format!("mkfs.ext4 made a journal of {found} bytes, not of {}", self.journal);
            return ErrorKind::Process.fail(text);
        }
        Ok(())
    }

    /// Pages of the journal that are in the host's page cache; none where the kernel cannot say.
    pub fn cached_pages(&self) -> Option<u64> {
        cached_pages(self.image.path(), &self.ranges)
    }
}

/// Pages of some ranges of a file that are in the page cache; none where the kernel cannot say.
pub(crate) fn cached_pages(path: &Path, ranges: &[Range<u64>]) -> Option<u64> {
    let file = File::open(path).ok()?;
    ranges.iter().map(|range| vlane_engine::pages::cached(&file, range)).sum()
}

/// Writes back what of a file is dirty, and drops it from the page cache.
///
/// # Errors
/// [`ErrorKind::Io`].
pub fn forget(path: &Path) -> Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .at(path, "cannot be dropped from the page cache")?;
    file.sync_data().at(path, "cannot be dropped from the page cache")?;
    fadvise(&file, 0, None, Advice::DontNeed)
        .map_err(std::io::Error::from)
        .at(path, "cannot be dropped from the page cache")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use vlane_guest::Install;

    #[test]
    fn journal_stays_cached_until_forgotten() {
        let host = Host::new(Install::Never).unwrap();
        if host.program("mkfs.ext4").is_err() {
            return vlane_testing::skip("mkfs.ext4 is not on this machine");
        }
        let bytes = Volume::bytes(SMALLEST_JOURNAL, false);
        let Ok(place) = Place::find(vlane_testbed::image::Medium::Disk, None, bytes, "--disk-dir")
        else {
            return vlane_testing::skip("no disk with direct I/O and 300 MiB free");
        };
        let interrupt = Interrupt::listen().unwrap();
        let volume = Volume::new(&place, &host, bytes, SMALLEST_JOURNAL, &interrupt).unwrap();
        // Other processes that drop caches on this machine may come between.
        let read_and_count = || {
            std::fs::read(volume.image.path()).unwrap();
            volume.cached_pages()
        };
        let counts = std::iter::repeat_with(read_and_count).take(100);
        let Some(before) = counts.map_while(|count| count).find(|count| *count > 0) else {
            return vlane_testing::skip("no cachestat here (before Linux 6.5, or forbidden)");
        };
        forget(volume.image.path()).unwrap();
        let after = volume.cached_pages().unwrap();
        assert!(after < before, "{after} of {before} pages are left");
    }
}
