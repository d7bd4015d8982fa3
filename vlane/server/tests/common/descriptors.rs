//! The descriptors of this process, which its tests share.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::LIMIT;

/// Descriptors that this process has open.
pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns true if this process has fewer, once other tests have closed theirs.
pub fn has_few_descriptors(limit: usize) -> bool {
    let begin = Instant::now();
    while open_descriptors() >= limit {
        if begin.elapsed() > LIMIT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The raw number, for messages that name it.
pub fn number(fd: &impl AsRawFd) -> i32 {
    fd.as_raw_fd()
}
