//! Reads from and writes to the page cache without io_uring, where that is likely to end at once.
//!
//! A read that the page cache can answer costs less as a plain `preadv2(RWF_NOWAIT)` than through io_uring. A buffered
//! write costs several times less: file systems do buffered writes without waiting only in part (ext4 not at all),
//! so io_uring hands each one to a worker thread. Both can turn out wrong, and both learn from it.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Bytes of the largest request that is tried; a longer copy would keep other lanes of the thread waiting.
pub(super) const LARGEST: u64 = 512 << 10;
/// After a miss, so many reads go without an attempt; doubled with each further miss up to the second number.
const MISS_PAUSE: (u32, u32) = (4, 256);
/// A write that takes longer than this met a full page cache: the next ones go through io_uring's workers.
const SLOW_WRITE: Duration = Duration::from_micros(500);
/// For how long.
const SLOW_WRITE_PAUSE: Duration = Duration::from_millis(50);

/// Reads that are worth an attempt, by what the last ones found.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Reads to go without an attempt.
    pause: u32,
    next_pause: u32,
    /// The file system knows no RWF_NOWAIT.
    impossible: bool,
}

impl Reads {
    /// Whether to try the next read.
    #[inline]
    pub(super) fn worthwhile(&mut self) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        !self.impossible
    }

    /// Reads what the page cache has of `wanted` bytes, without waiting; says how many bytes that were.
    ///
    /// # Safety
    /// The buffers must be mapped.
    pub(super) unsafe fn attempt(
        &mut self,
        fd: RawFd,
        buffers: &[libc::iovec],
        offset: u64,
        wanted: u64,
    ) -> u64 {
        let result = call(buffers, offset, |iov, count, offset| {
            // SAFETY: `iov` are `count` buffers, mapped as the caller promises.
            unsafe { libc::preadv2(fd, iov, count, offset, libc::RWF_NOWAIT) }
        });
        if let Err(error) = &result
            && error.raw_os_error() == Some(libc::EOPNOTSUPP)
        {
            self.impossible = true;
        }
        // An error comes again through io_uring, and is dealt with there.
        let n = result.unwrap_or(0);
        self.learn(n == wanted);
        n
    }

    fn learn(&mut self, hit: bool) {
        self.next_pause = if hit { 0 } else { (self.next_pause * 2).clamp(MISS_PAUSE.0, MISS_PAUSE.1) };
        self.pause = self.next_pause;
    }
}

/// Writes that are worth an attempt, by how long the last one took.
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
        let result = call(buffers, offset, |iov, count, offset| {
            // SAFETY: `iov` are `count` buffers, mapped as the caller promises.
            unsafe { libc::pwritev(fd, iov, count, offset) }
        });
        self.learn(begin, begin.elapsed());
        // An error comes again through io_uring, and is dealt with there.
        result.unwrap_or(0)
    }

    fn learn(&mut self, begin: Instant, took: Duration) {
        self.slow_until = (took > SLOW_WRITE).then(|| begin + took + SLOW_WRITE_PAUSE);
    }
}

/// Makes a call's arguments out of a request's, and a result out of its answer.
fn call(
    buffers: &[libc::iovec],
    offset: u64,
    transfer: impl FnOnce(*const libc::iovec, i32, i64) -> isize,
) -> io::Result<u64> {
    let count = i32::try_from(buffers.len().min(1024)).unwrap_or(1024);
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    u64::try_from(transfer(buffers.as_ptr(), count, offset)).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_tried_ever_more_rarely_and_a_hit_ends_that() {
        let mut reads = Reads::default();
        let mut attempts_until = |reads: &mut Reads, hit| {
            let mut skipped = 0;
            while !reads.worthwhile() {
                skipped += 1;
            }
            reads.learn(hit);
            skipped
        };
        let skipped: Vec<u32> = (0..9).map(|_| attempts_until(&mut reads, false)).collect();
        assert_eq!(skipped, [0, 4, 8, 16, 32, 64, 128, 256, 256]);
        assert_eq!(attempts_until(&mut reads, true), 256);
        assert_eq!(attempts_until(&mut reads, true), 0);
    }

    #[test]
    fn a_slow_write_stops_the_attempts_for_a_while() {
        let mut writes = Writes::default();
        let now = Instant::now();
        writes.learn(now, SLOW_WRITE);
        assert!(writes.slow_until.is_none());
        writes.learn(now, SLOW_WRITE * 2);
        assert_eq!(writes.slow_until, Some(now + SLOW_WRITE * 2 + SLOW_WRITE_PAUSE));
    }
}
