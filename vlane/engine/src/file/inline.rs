//! Writes to the page cache without io_uring, where that is likely to end at once.
//!
//! File systems do buffered writes without waiting only in part (ext4 not at all), so io_uring
//! hands each one to a worker thread; the lane's own `pwritev2` costs less. That choice can be
//! wrong: the page cache is full of data that the disk has not written yet, a journal is full, the
//! file system is frozen. The thread then stands still, with all of its lanes.
//!
//! * **Where the file system can refuse to wait** (`RWF_NOWAIT`: XFS, btrfs) it is asked to. A
//!   write that it refuses leaves the thread. The first writes show whether it can; no version is
//!   asked.
//! * **Elsewhere** a write leaves the thread before it begins, while there is a reason to expect
//!   that it would wait:
//!     * One took long not long ago, in the thread of any lane or after it had left one. For twenty
//!       times as long as it took, all writes leave. So a thread waits for a twentieth of its time
//!       at most, but for the first one.
//!     * One has not ended for long: another thread stands still, or a worker does.
//!
//! A write that leaves goes to a worker of io_uring (`IOSQE_ASYNC`), and its end shows how long
//! writes take now. There it is as safe as here: the copy into a page is the kernel's in both
//! cases, and no signal stops it within a sector.
//!
//! Reads have no such way: io_uring itself answers a page-cache hit while it is submitted, a batch
//! with one system call, which costs less than a `preadv2(RWF_NOWAIT)` for each (measured:
//! docs/src/engines.md).

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use vlane_io::system::{Instant, pwritev2};

/// Bytes of the largest write that is tried; a longer copy would keep other lanes of the thread
/// waiting.
pub(super) const LARGEST: u64 = 512 << 10;

/// Nanoseconds.
type Nanos = u64;

/// A write that takes longer than this in the thread has waited.
const SLOW: Nanos = 500_000;
/// As [`SLOW`], of the time in which none of the writes that left has ended. Workers do those of a
/// file one after the other, so a single one is late without a wait for the disk. A worker also
/// waits for a CPU, of which others have some milliseconds at a time.
const SLOW_ELSEWHERE: Nanos = 8_000_000;
/// For how many times as long as a slow write took the next ones leave; and for how long at least,
/// and at most.
const SHARE: Nanos = 20;
const SHORTEST: Nanos = 50_000_000;
const LONGEST: Nanos = 10_000_000_000;
/// How often a lane looks whether another one stands still.
const LOOK: Nanos = 250_000;
/// Lanes that others look at; more share.
const GATES: usize = 64;

/// In [`Said::nowait`]: the file system can refuse to wait, or cannot. Below: so many writes were
/// refused, and none was done.
const CAN: u8 = 254;
const CANNOT: u8 = 255;
const MOST_REFUSED: u8 = 32;

/// How long a volume's writes take, as its channels know it.
#[derive(Debug)]
pub(super) struct Pace {
    epoch: Instant,
    hints: Hints,
    gates: Box<[Gate]>,
    channels: AtomicUsize,
}

/// Read for each write, and seldom written. Relaxed: hints, on which no other state depends.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Hints {
    /// Until then writes leave their threads.
    leave_until: AtomicU64,
    nowait: AtomicU8,
}

/// A channel shows here the others that a write has not ended: since when, and in the lowest bit
/// that it has left the thread. 0: there is none.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Gate(AtomicU64);

impl Pace {
    pub(super) fn new() -> Arc<Pace> {
        Arc::new(Pace {
            epoch: Instant::now(),
            hints: Hints::default(),
            gates: (0..GATES).map(|_| Gate::default()).collect(),
            channels: AtomicUsize::new(0),
        })
    }

    fn now(&self) -> Nanos {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A write took so long, and ended now.
    #[cold]
    fn took(&self, time: Nanos, now: Nanos) {
        let pause = time.saturating_mul(SHARE).clamp(SHORTEST, LONGEST);
        self.hints.leave_until.fetch_max(now + pause, Ordering::Relaxed);
    }

    /// True if a write of any lane has not ended for long.
    #[cold]
    fn is_held_up(&self, now: Nanos) -> bool {
        let count = self.channels.load(Ordering::Relaxed).min(GATES);
        self.gates[..count].iter().any(|gate| {
            let word = gate.0.load(Ordering::Relaxed);
            let longest = if word & 1 == 1 { SLOW_ELSEWHERE } else { SLOW };
            word != 0 && now.saturating_sub(word >> 1) > longest
        })
    }
}

/// The outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The page cache took so many bytes of it; after an error none.
    Took(u64),
    /// It would wait, or might: it is for a worker.
    Leaves,
}

/// A channel's writes.
#[derive(Debug)]
pub(super) struct Writes {
    pace: Arc<Pace>,
    gate: usize,
    looked: Nanos,
    /// Writes that have left and not ended, and since when none of them has.
    left: usize,
    since: Nanos,
}

impl Writes {
    pub(super) fn new(pace: &Arc<Pace>) -> Writes {
        let gate = pace.channels.fetch_add(1, Ordering::Relaxed) % GATES;
        Writes { pace: Arc::clone(pace), gate, looked: 0, left: 0, since: 0 }
    }

    /// Writes to the page cache, if that is likely to end at once.
    ///
    /// # Safety
    /// The buffers must be mapped.
    pub(super) unsafe fn attempt(
        &mut self,
        fd: RawFd,
        buffers: &[libc::iovec],
        offset: u64,
    ) -> Attempt {
        let begin = self.pace.now();
        if begin < self.pace.hints.leave_until.load(Ordering::Relaxed) {
            return Attempt::Leaves;
        }
        if begin.saturating_sub(self.looked) >= LOOK {
            self.looked = begin;
            if self.pace.is_held_up(begin) {
                self.pace.took(0, begin);
                return Attempt::Leaves;
            }
        }
        self.show(begin << 1);
        // SAFETY: as the caller promises.
        let attempt = unsafe { self.write(fd, buffers, offset) };
        self.show_left();
        let end = self.pace.now();
        if end.saturating_sub(begin) > SLOW {
            self.pace.took(end - begin, end);
        }
        attempt
    }

    /// # Safety
    /// The buffers must be mapped.
    unsafe fn write(&self, fd: RawFd, buffers: &[libc::iovec], offset: u64) -> Attempt {
        let count = i32::try_from(buffers.len().min(1024)).unwrap_or(1024);
        let Ok(offset) = i64::try_from(offset) else { return Attempt::Took(0) };
        let nowait = &self.pace.hints.nowait;
        let known = nowait.load(Ordering::Relaxed);
        let flags = if known == CANNOT { 0 } else { libc::RWF_NOWAIT };
        // SAFETY: at least `count` buffers, mapped as the caller promises.
        let n = unsafe { pwritev2(fd, buffers.as_ptr(), count, offset, flags) };
        // An error comes again through io_uring, and is dealt with there.
        let taken = |n: isize| Attempt::Took(u64::try_from(n).unwrap_or(0));
        if known == CANNOT || (known == CAN && n >= 0) {
            return taken(n);
        }
        if n >= 0 {
            nowait.store(CAN, Ordering::Relaxed);
            return taken(n);
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN) => {
                // One that refuses everything is no better than one that does not know how.
                let refused = if known + 1 < MOST_REFUSED { known + 1 } else { CANNOT };
                nowait.store(if known == CAN { CAN } else { refused }, Ordering::Relaxed);
                Attempt::Leaves
            }
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) if known != CAN => {
                nowait.store(CANNOT, Ordering::Relaxed);
                // SAFETY: as above.
                taken(unsafe { pwritev2(fd, buffers.as_ptr(), count, offset, 0) })
            }
            _ => Attempt::Took(0),
        }
    }

    /// A write leaves the thread now.
    pub(super) fn leaves(&mut self) {
        if self.left == 0 {
            self.since = self.pace.now();
        }
        self.left += 1;
        self.show_left();
    }

    /// A write that had left the thread has ended.
    pub(super) fn ended(&mut self) {
        let now = self.pace.now();
        let pause = now.saturating_sub(self.since);
        if pause > SLOW_ELSEWHERE {
            self.pace.took(pause, now);
        }
        (self.left, self.since) = (self.left.saturating_sub(1), now);
        self.show_left();
    }

    fn show_left(&self) {
        self.show(if self.left == 0 { 0 } else { self.since << 1 | 1 });
    }

    fn show(&self, word: u64) {
        self.pace.gates[self.gate].0.store(word, Ordering::Relaxed);
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        self.show(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_write_moves_all_writes_for_a_while() {
        let pace = Pace::new();
        let until = || pace.hints.leave_until.load(Ordering::Relaxed);
        for (took, pause) in
            [(0, SHORTEST), (SLOW, SHORTEST), (10_000_000, 200_000_000), (1 << 40, LONGEST)]
        {
            let now = until() + 1;
            pace.took(took, now);
            assert_eq!(until(), now + pause);
        }
        // One that ends meanwhile makes it no shorter.
        let before = until();
        pace.took(0, 1);
        assert_eq!(until(), before);
    }

    #[test]
    fn writes_ending_in_turn_are_not_slow() {
        let pace = Pace::new();
        let mut writes = Writes::new(&pace);
        let until = || pace.hints.leave_until.load(Ordering::Relaxed);
        (0..10).for_each(|_| writes.leaves());
        std::thread::sleep(std::time::Duration::from_nanos(2 * SLOW_ELSEWHERE));
        // They left long ago, and one has just ended. A slow machine gets an hour for the next
        // line.
        writes.since = pace.now() + 3_600_000_000_000;
        writes.ended();
        assert_eq!((until(), writes.left), (0, 9));
        // None has ended since they left.
        writes.since = 0;
        writes.ended();
        assert!(until() > 2 * SLOW_ELSEWHERE * SHARE);
    }

    #[test]
    fn unfinished_write_is_seen_by_others() {
        let pace = Pace::new();
        let (mut one, other) = (Writes::new(&pace), Writes::new(&pace));
        assert!(!pace.is_held_up(u64::MAX));
        other.show(1000 << 1);
        assert!(!pace.is_held_up(1000 + SLOW) && pace.is_held_up(1001 + SLOW));
        other.show_left();
        assert!(!pace.is_held_up(u64::MAX));
        // A write that left may take longer; each that ends shows progress.
        one.leaves();
        one.leaves();
        assert!(
            !pace.is_held_up(one.since + SLOW_ELSEWHERE)
                && pace.is_held_up(one.since + SLOW_ELSEWHERE + 1)
        );
        (0..2).for_each(|_| one.ended());
        assert!(!pace.is_held_up(u64::MAX));
        one.leaves();
        drop(one);
        assert!(!pace.is_held_up(u64::MAX));
    }
}
