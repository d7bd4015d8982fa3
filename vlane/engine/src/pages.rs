//! A file's pages in the page cache: how many there are, and dropping them. Both by a descriptor
//! that is open for reading.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsRawFd;

use rustix::fs::Advice;

/// The same number on every architecture that Rust's Linux has.
const SYS_CACHESTAT: libc::c_long = 451;

/// Bytes of a page.
pub(crate) fn size() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(4096)
}

/// Pages of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pages {
    /// In the page cache.
    pub cached: u64,
    /// Of those, not written back.
    pub dirty: u64,
    /// Of those, being written back.
    pub writeback: u64,
}

impl Pages {
    pub(crate) fn are_none(self) -> bool {
        self == Pages::default()
    }

    /// True if all of them could be dropped at once.
    pub(crate) fn are_clean(self) -> bool {
        self.dirty == 0 && self.writeback == 0
    }
}

/// Pages of a range that are in the page cache; none where the system does not report it (before
/// Linux 6.5, or forbidden).
pub fn cached(file: &File, range: &Range<u64>) -> Option<u64> {
    count(file, range).map(|pages| pages.cached)
}

/// The same, by kind.
pub fn count(file: &File, range: &Range<u64>) -> Option<Pages> {
    let len = range.end.saturating_sub(range.start);
    if len == 0 {
        // Zero would mean all up to the file's end.
        return Some(Pages::default());
    }
    let asked = [range.start, len];
    // Cached, dirty, under write-back, evicted, evicted not long ago.
    let mut counts = [0u64; 5];
    // SAFETY: the call reads two and writes five words; both arrays are that long.
    let code = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            asked.as_ptr(),
            counts.as_mut_ptr(),
            0 as libc::c_uint,
        )
    };
    let [cached, dirty, writeback, ..] = counts;
    (code == 0).then_some(Pages { cached, dirty, writeback })
}

/// Asks the system to drop a range's pages. It drops clean ones, of whole folios; for dirty ones it
/// begins to write them back.
pub(crate) fn drop(file: &File, range: &Range<u64>) {
    if let Some(len) = NonZeroU64::new(range.end.saturating_sub(range.start)) {
        // Advice.
        let _ = rustix::fs::fadvise(file, range.start, Some(len), Advice::DontNeed);
    }
}

/// Begins to write a range's dirty pages back.
///
/// # Errors
/// As the system says.
pub(crate) fn begin_write_back(file: &File, range: &Range<u64>) -> io::Result<()> {
    sync_range(file, range, libc::SYNC_FILE_RANGE_WRITE)
}

/// Writes a range's dirty pages back, and waits for that. Success is left for an `fdatasync` to
/// report.
///
/// # Errors
/// As the system says.
pub(crate) fn write_back(file: &File, range: &Range<u64>) -> io::Result<()> {
    let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_range(file, range, libc::SYNC_FILE_RANGE_WRITE | wait)
}

fn sync_range(file: &File, range: &Range<u64>, flags: u32) -> io::Result<()> {
    let (Ok(start), Ok(len)) =
        (i64::try_from(range.start), i64::try_from(range.end.saturating_sub(range.start)))
    else {
        return Ok(());
    };
    // No bytes would be all that follow.
    if len == 0 {
        return Ok(());
    }
    // SAFETY: an open descriptor and plain numbers.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn pages_of_a_range_are_counted() {
        // In memory: its pages are never dropped.
        let memory =
            rustix::fs::memfd_create("vlane-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(memory);
        file.write_all(&vec![1; 1 << 20]).unwrap();
        let page = u64::try_from(rustix::param::page_size()).unwrap();
        let Some(all) = cached(&file, &(0..1 << 20)) else {
            return vlane_testing::skip("no cachestat here (before Linux 6.5, or forbidden)");
        };
        assert_eq!(all, (1 << 20) / page);
        assert_eq!(cached(&file, &(0..page)), Some(1));
        assert_eq!(cached(&file, &(page..page)), Some(0));
    }
}
