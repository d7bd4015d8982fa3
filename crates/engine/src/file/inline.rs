//! Writes to the page cache without io_uring, where that is likely to end at once.
//!
//! File systems do buffered writes without waiting only in part (ext4 not at all), so io_uring hands each one to a
//! worker thread; the lane's own `pwritev` costs less. It can turn out wrong, when the page cache is full of what the
//! disk has not written yet, and learns from it.
//!
//! Reads have no such way: io_uring itself answers a page-cache hit while it is submitted, a batch with one system
//! call, which costs less than a `preadv2(RWF_NOWAIT)` for each (measured: docs/src/engines.md).

use std::os::fd::RawFd;
use std::time::Duration;

use crate::system::{Instant, pwritev};

/// Bytes of the largest write that is tried; a longer copy would keep other lanes of the thread waiting.
pub(super) const LARGEST: u64 = 512 << 10;
/// A write that takes longer than this met a full page cache: the next ones go through io_uring's workers.
const SLOW: Duration = Duration::from_micros(500);
/// For how long.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether writes are worth an attempt, by how long the last one took.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// None until then.
    slow_until: Option<Instant>,
}

impl Writes {
    /// Writes to the page cache; says how many bytes it took.
    ///
    /// # Safety
    /// The buffers must be mapped.
    pub(super) unsafe fn attempt(&mut self, fd: RawFd, buffers: &[libc::iovec], offset: u64) -> u64 {
        let begin = Instant::now();
        if self.slow_until.is_some_and(|until| begin < until) {
            return 0;
        }
        let count = i32::try_from(buffers.len().min(1024)).unwrap_or(1024);
        let Ok(offset) = i64::try_from(offset) else { return 0 };
        // SAFETY: at least `count` buffers, mapped as the caller promises.
        let n = unsafe { pwritev(fd, buffers.as_ptr(), count, offset) };
        self.learn(begin, begin.elapsed());
        // An error comes again through io_uring, and is dealt with there.
        u64::try_from(n).unwrap_or(0)
    }

    fn learn(&mut self, begin: Instant, took: Duration) {
        self.slow_until = (took > SLOW).then(|| begin + took + PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_write_stops_the_attempts_for_a_while() {
        let mut writes = Writes::default();
        let now = Instant::now();
        writes.learn(now, SLOW);
        assert!(writes.slow_until.is_none());
        writes.learn(now, SLOW * 2);
        assert_eq!(writes.slow_until, Some(now + SLOW * 2 + PAUSE));
    }
}
