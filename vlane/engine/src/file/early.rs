//! Dirty pages are written back early while the guest has a foreground.
//!
//! A flush of the foreground's fsync writes all dirty pages of the image. Most of them may be a
//! background program's ("Split-Level I/O Scheduling", SOSP 2015). So while express requests come,
//! the volume's *early-write thread* writes back the parts that were written through the page
//! cache. One part is under way at a time. The pause after each is as long as its writing, so the
//! storage keeps half of its time. No request waits for the thread, and no page is durable by it:
//! flushes sync as before.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::journal::waker;
use crate::pages;
use crate::sync::{Waker, wake};
use crate::threads::Bounded;

/// Bytes that are written back by one call.
const PART: u64 = 1 << 20;
/// Parts that are known at once: 4 GiB. Further ones replace earlier ones, which are left to the
/// kernel.
const PARTS: usize = 4096;
/// The foreground has gone when no express request came for so long.
const PRESENCE: Duration = Duration::from_secs(1);
/// Pause of the thread while the foreground is present and no part is noted.
const PAUSE: Duration = Duration::from_millis(20);
/// The shortest and the longest pause after a part.
const PACE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(500)];

/// The channels' notes for the thread.
#[derive(Debug)]
pub(super) struct Written {
    /// By the part's number modulo their count: that number, plus one; 0: none.
    parts: Box<[AtomicU64]>,
    /// A part was noted since the thread searched them.
    is_any: AtomicBool,
    /// An express request was seen since the thread looked.
    is_foreground: AtomicBool,
    /// The thread waits for the next express request.
    is_idle: AtomicBool,
    is_ending: AtomicBool,
    waker: Arc<Waker>,
}

impl Written {
    fn new(waker: Arc<Waker>) -> Self {
        Self {
            parts: (0..PARTS).map(|_| AtomicU64::new(0)).collect(),
            is_any: AtomicBool::new(false),
            is_foreground: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            waker,
        }
    }

    /// Notes an express request. Wakes the thread if it waits for one, and never from a pause.
    #[inline]
    pub(super) fn sees_foreground(&self) {
        if !self.is_foreground.load(Ordering::Relaxed) {
            // In one order with those of `Writer::waits`: one of the two threads sees the other.
            self.is_foreground.store(true, Ordering::SeqCst);
            if self.is_idle.load(Ordering::SeqCst) {
                wake(&self.waker);
            }
        }
    }

    /// Notes a write through the page cache. A note that is lost between two threads costs only
    /// speed.
    #[inline]
    pub(super) fn note(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        for part in offset / PART..end.div_ceil(PART) {
            let place = &self.parts[index(part)];
            if place.load(Ordering::Relaxed) != part + 1 {
                place.store(part + 1, Ordering::Relaxed);
            }
        }
        if !self.is_any.load(Ordering::Relaxed) {
            self.is_any.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the next noted part, beginning with the place `hand`.
    fn next(&self, hand: &mut usize) -> Option<u64> {
        for _ in 0..PARTS {
            let place = &self.parts[*hand];
            *hand = (*hand + 1) % PARTS;
            if place.load(Ordering::Relaxed) != 0 {
                return place.swap(0, Ordering::Relaxed).checked_sub(1);
            }
        }
        None
    }
}

/// The place of a part's note.
#[expect(clippy::cast_possible_truncation, reason = "less than the number of places")]
const fn index(part: u64) -> usize {
    (part % PARTS as u64) as usize
}

/// A volume's early-write thread. It ends with this.
#[derive(Debug)]
pub(super) struct Early {
    written: Arc<Written>,
    thread: Bounded,
}

impl Early {
    /// Starts the thread; `file` is an open file of its own. No flush needs its reports of lost
    /// writes.
    ///
    /// # Errors
    /// When the system gives no thread, or no eventfd.
    pub(super) fn start(file: File) -> io::Result<Self> {
        let written = Arc::new(Written::new(waker()?));
        let mut writer = Writer { written: Arc::clone(&written), file, hand: 0, seen: None };
        let thread = Bounded::start("early-write", move || while writer.round() {})?;
        Ok(Self { written, thread })
    }

    /// For a channel.
    pub(super) fn written(&self) -> Arc<Written> {
        Arc::clone(&self.written)
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        self.written.is_ending.store(true, Ordering::Release);
        wake(&self.written.waker);
        self.thread.join_for_a_while();
    }
}

/// The thread's own state.
struct Writer {
    written: Arc<Written>,
    file: File,
    hand: usize,
    /// When the foreground was last seen; none: it has gone.
    seen: Option<Instant>,
}

impl Writer {
    /// Writes one part back, and pauses; false at the volume's end.
    fn round(&mut self) -> bool {
        if self.written.is_foreground.swap(false, Ordering::Relaxed) {
            self.seen = Some(Instant::now());
        } else if self.seen.is_some_and(|seen| seen.elapsed() > PRESENCE) {
            self.seen = None;
        }
        let pause = self.seen.map(|_| self.write_part());
        self.waits(pause);
        !self.written.is_ending.load(Ordering::Acquire)
    }

    /// Returns the pause that is due after it.
    fn write_part(&mut self) -> Duration {
        if !self.written.is_any.swap(false, Ordering::Relaxed) {
            return PAUSE;
        }
        let Some(part) = self.written.next(&mut self.hand) else { return PAUSE };
        self.written.is_any.store(true, Ordering::Relaxed);
        let begin = Instant::now();
        let offset = part.saturating_mul(PART);
        // An error is the next flush's to report: this open file has a cursor of errors of its own.
        let _ = pages::write_back(&self.file, &(offset..offset.saturating_add(PART)));
        begin.elapsed().clamp(PACE[0], PACE[1])
    }

    /// Waits so long, or without a foreground until one comes. The volume's end ends the wait.
    fn waits(&self, pause: Option<Duration>) {
        self.written.is_idle.store(pause.is_none(), Ordering::SeqCst);
        if pause.is_none() && self.written.is_foreground.load(Ordering::SeqCst) {
            return;
        }
        let limit =
            pause.map(|pause| Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) });
        let waker = &*self.written.waker;
        let woken = |limit| rustix::event::poll(&mut [PollFd::new(waker, PollFlags::IN)], limit);
        // Interrupted: one look more.
        let _ = woken(limit.as_ref());
        let _ = rustix::io::read(waker, &mut [0; 8]);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn express_requests_wake_an_idle_thread_only() {
        let written = Arc::new(Written::new(waker().unwrap()));
        let is_woken = || rustix::io::read(&*written.waker, &mut [0; 8]).is_ok();
        let mut writer = Writer {
            written: Arc::clone(&written),
            file: tempfile::tempfile().unwrap(),
            hand: 0,
            seen: None,
        };
        // Paces the parts: requests do not end the pause.
        writer.waits(Some(Duration::from_millis(1)));
        written.sees_foreground();
        assert!(!is_woken());
        // One that came before the wait is not missed.
        writer.waits(None);
        assert!(writer.round() && writer.seen.is_some());
        writer.written.is_idle.store(true, Ordering::SeqCst);
        written.sees_foreground();
        assert!(is_woken());
    }

    #[test]
    fn noted_parts_come_once_in_order() {
        let written = Written::new(waker().unwrap());
        written.note(PART / 2, 2 * PART);
        written.note(7 * PART, 1);
        written.note(u64::MAX - 1, 1);
        let mut hand = 0;
        let last = (u64::MAX - 1) / PART;
        let parts: Vec<u64> = std::iter::from_fn(|| written.next(&mut hand)).collect();
        assert_eq!(parts, [0, 1, 2, 7, last]);
        written.note(index(last) as u64 * PART, 1);
        written.note(last * PART, 1);
        assert_eq!(written.next(&mut hand), Some(last), "of two parts in one place the later");
        assert_eq!(written.next(&mut hand), None);
    }
}
