//! A file's pages in the page cache.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// The same number on every architecture that Rust's Linux has.
const SYS_CACHESTAT: libc::c_long = 451;

/// Pages of a range of bytes that are in the page cache; nothing where the system does not tell (before Linux 6.5, or forbidden).
pub fn cached(file: &File, range: &Range<u64>) -> Option<u64> {
    let len = range.end.saturating_sub(range.start);
    if len == 0 {
        // Zero would mean all up to the file's end.
        return Some(0);
    }
    let asked = [range.start, len];
    // Cached, dirty, under write-back, evicted, evicted not long ago.
    let mut counts = [0_u64; 5];
    // SAFETY: the call reads two words and writes five; both arrays are that long, and live until it is over.
    let code = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), asked.as_ptr(), counts.as_mut_ptr(), 0 as libc::c_uint)
    };
    (code == 0).then_some(counts[0])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_pages_of_a_range_are_counted() {
        let mut file = tempfile::tempfile().unwrap();
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
