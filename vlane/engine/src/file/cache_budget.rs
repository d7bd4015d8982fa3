//! The volume's share of the page cache is bounded (`--cache-budget`).
//!
//! Each channel marks the chunks that it reads and writes, in shared words and without waiting. The
//! volume's *cache budget thread* counts the image's pages once a second, and after large flushes.
//! Above the budget it drops clean pages of chunks that were written and not read since
//! ([`vlane_policy::cache_budget`]). The budget is soft: dirty pages count and stay, and so do
//! pages that the guest reads.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use vlane_policy::cache_budget::{CHUNK, Guard, Seen};

use super::durability::Durability;
use super::journal::waker;
use crate::sync::{Waker, wake};
use crate::threads::Bounded;
use crate::{Writeback, pages};

/// The longest time between two looks at the page cache.
const INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Of the budget: a channel that has written so much asks for a look after its flush.
const PART: u64 = 8;
/// Bytes of the image whose pages are counted at once, so that no call takes long.
const PIECE: u64 = 128 << 20;
/// Chunks whose words are made together: 64 GiB of the image, 64 KiB of memory.
const REGION: usize = 32768;
/// Regions of a volume. An image beyond 64 TiB has no budget there.
const REGIONS: usize = 1024;

/// A report of a volume's cache budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheReport {
    /// Bytes that the volume may have in the page cache.
    pub budget: u64,
    /// Bytes that it had at the last look.
    pub cached: u64,
    /// Bytes of them that were not on the storage.
    pub dirty: u64,
    /// Bytes that were dropped from the page cache, since the volume was opened.
    pub dropped: u64,
    /// Dropped chunks that the guest read afterwards.
    pub read_again: u64,
    /// Dropping pauses, because the guest read too many dropped chunks.
    pub is_paused: bool,
    /// The system does not report the page cache's content (before Linux 6.5). `cached` is the
    /// number of bytes that were written, and neither read nor dropped.
    pub is_estimate: bool,
}

type Region = Box<[AtomicU16]>;

/// The channels' marks of the chunks.
#[derive(Debug)]
pub(super) struct Marks {
    regions: Box<[OnceLock<Region>]>,
    /// Chunks that were read after they were dropped.
    read_again: AtomicU64,
    /// A channel marked a chunk since the last look.
    is_active: AtomicBool,
    /// Bytes of a channel that are worth a look.
    worth: u64,
    waker: Arc<Waker>,
    is_ending: AtomicBool,
}

/// A channel's side.
#[derive(Debug)]
pub(super) struct Marker {
    marks: Arc<Marks>,
    /// Bytes written since it asked for a look.
    bytes: u64,
}

impl Marker {
    /// The channel begins a read or a write inside the image.
    pub(super) fn mark(&mut self, is_write: bool, offset: u64, len: u64) {
        self.marks.mark(is_write, offset, len);
        if is_write {
            self.bytes = self.bytes.saturating_add(len);
        }
    }

    /// A flush is going to be answered with success: pages are clean.
    pub(super) fn flushed(&mut self) {
        if self.bytes >= self.marks.worth {
            self.bytes = 0;
            wake(&self.marks.waker);
        }
    }
}

impl Marks {
    fn new(size: u64, budget: u64, waker: Arc<Waker>) -> Self {
        let marks = Self {
            worth: budget / PART,
            waker,
            is_ending: AtomicBool::new(false),
            regions: (0..REGIONS).map(|_| OnceLock::new()).collect(),
            read_again: AtomicU64::new(0),
            is_active: AtomicBool::new(false),
        };
        marks.reach(size);
        marks
    }

    /// Makes the words of an image of so many bytes. Never by a channel.
    fn reach(&self, size: u64) {
        let regions = chunks(size).div_ceil(REGION).min(REGIONS);
        for region in &self.regions[..regions] {
            region.get_or_init(|| (0..REGION).map(|_| AtomicU16::new(0)).collect());
        }
    }

    #[inline]
    fn word(&self, chunk: usize) -> Option<&AtomicU16> {
        self.regions.get(chunk / REGION)?.get()?.get(chunk % REGION)
    }

    fn seen(&self, chunk: usize) -> Seen {
        self.word(chunk).map_or(Seen::default(), |word| Seen::of_bits(word.load(Ordering::Relaxed)))
    }

    fn set(&self, chunk: usize, seen: Seen) {
        if let Some(word) = self.word(chunk) {
            word.store(seen.bits(), Ordering::Relaxed);
        }
    }

    /// Of marks that two channels make at the same moment one may be lost, which costs only speed.
    #[inline]
    fn mark(&self, is_write: bool, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let next = (at - at % CHUNK).saturating_add(CHUNK).min(end);
            let Some(word) = usize::try_from(at / CHUNK).ok().and_then(|chunk| self.word(chunk))
            else {
                return;
            };
            let seen = Seen::of_bits(word.load(Ordering::Relaxed));
            let now = if is_write { seen.wrote(next - at) } else { seen.read() };
            if now != seen {
                word.store(now.bits(), Ordering::Relaxed);
                if !is_write && seen.has_left() {
                    self.read_again.fetch_add(1, Ordering::Relaxed);
                }
            }
            at = next;
        }
        if !self.is_active.load(Ordering::Relaxed) {
            self.is_active.store(true, Ordering::Relaxed);
        }
    }
}

/// Number of chunks of so many bytes.
fn chunks(bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(CHUNK)).unwrap_or(usize::MAX)
}

/// State that the thread and callers share.
#[derive(Debug)]
struct Desk {
    marks: Arc<Marks>,
    size: AtomicU64,
    report: Mutex<CacheReport>,
}

impl Desk {
    fn report(&self) -> CacheReport {
        *vlane_error::locked(&self.report)
    }
}

/// A volume's cache budget thread. It ends with this.
#[derive(Debug)]
pub(super) struct CacheBudget {
    desk: Arc<Desk>,
    thread: Bounded,
}

impl CacheBudget {
    /// Starts the thread of an image of `size` bytes; `file` is an open file of its own.
    ///
    /// # Errors
    /// When the system gives no thread, or no eventfd.
    pub(super) fn start(
        path: &Path,
        file: File,
        size: u64,
        budget: u64,
        durability: &Arc<Durability>,
    ) -> io::Result<Self> {
        let report = CacheReport { budget, ..CacheReport::default() };
        let marks = Arc::new(Marks::new(size, budget, waker()?));
        let (size, report) = (AtomicU64::new(size), Mutex::new(report));
        let desk = Arc::new(Desk { marks, size, report });
        let mut keeper = Keeper {
            desk: Arc::clone(&desk),
            file,
            name: path.display().to_string(),
            durability: Arc::clone(durability),
            guard: Guard::default(),
            hand: 0,
            begin: Instant::now(),
            is_over: false,
            was_paused: false,
        };
        let thread = Bounded::start("cache-budget", move || {
            while keeper.waits() {
                keeper.round();
            }
        })?;
        Ok(Self { desk, thread })
    }

    /// For a new channel.
    pub(super) fn marker(&self) -> Marker {
        Marker { marks: Arc::clone(&self.desk.marks), bytes: 0 }
    }

    pub(super) fn resized(&self, size: u64) {
        self.desk.marks.reach(size);
        self.desk.size.store(size, Ordering::Relaxed);
    }

    pub(super) fn report(&self) -> CacheReport {
        self.desk.report()
    }
}

impl Drop for CacheBudget {
    fn drop(&mut self) {
        self.desk.marks.is_ending.store(true, Ordering::Release);
        wake(&self.desk.marks.waker);
        self.thread.join_for_a_while();
    }
}

/// The thread's own state.
struct Keeper {
    desk: Arc<Desk>,
    file: File,
    name: String,
    durability: Arc<Durability>,
    guard: Guard,
    /// The chunk that the next search begins with: the one after the last that left.
    hand: usize,
    begin: Instant,
    /// The last look found more than the budget, of which pages may leave soon.
    is_over: bool,
    was_paused: bool,
}

impl Keeper {
    /// Waits until a look is due; false at the volume's end.
    fn waits(&self) -> bool {
        let marks = &self.desk.marks;
        // Interrupted: one look more.
        let _ =
            rustix::event::poll(&mut [PollFd::new(&*marks.waker, PollFlags::IN)], Some(&INTERVAL));
        let _ = rustix::io::read(&*marks.waker, &mut [0; 8]);
        !marks.is_ending.load(Ordering::Acquire)
    }

    /// Counts the image's pages, and drops those above the budget.
    fn round(&mut self) {
        let marks = Arc::clone(&self.desk.marks);
        if !marks.is_active.swap(false, Ordering::Relaxed) && !self.is_over {
            return;
        }
        let (size, now) = (self.desk.size.load(Ordering::Relaxed), self.begin.elapsed());
        let mut report = self.desk.report();
        let pieces = self.count(size);
        report.is_estimate = pieces.is_none();
        (report.cached, report.dirty) = match &pieces {
            Some(pieces) => {
                let all = |of: fn(&pages::Pages) -> u64| pieces.iter().map(of).sum::<u64>();
                let dirty = all(|pages| pages.dirty + pages.writeback);
                (all(|pages| pages.cached) * pages::size(), dirty * pages::size())
            }
            None => ((0..chunks(size)).map(|chunk| marks.seen(chunk).written()).sum(), 0),
        };
        let excess = report.cached.saturating_sub(report.budget);
        let mut left = (0, 0);
        // Lost pages count as clean, and are in the cache only.
        if excess > 0 && self.guard.allows(now) && !self.durability.ask(Writeback::Sync) {
            left = self.drop_pages(size, excess, pieces.as_deref());
        }
        let read_again = marks.read_again.swap(0, Ordering::Relaxed);
        self.guard.count(now, left.1, read_again);
        report.cached = report.cached.saturating_sub(left.0);
        report.dropped += left.0;
        report.read_again += read_again;
        report.is_paused = !self.guard.allows(now);
        // Pages that the guest reads stay above the budget, also without another look.
        self.is_over = excess > 0 && (left.1 > 0 || report.dirty > 0 || report.is_paused);
        self.tell(report);
        *vlane_error::locked(&self.desk.report) = report;
    }

    /// Logs the beginning and the end of a pause.
    fn tell(&mut self, report: CacheReport) {
        if report.is_paused != self.was_paused {
            let what = match report.is_paused {
                true => "pauses: the guest reads what was dropped",
                false => "continues",
            };
            tracing::info!("{}: dropping pages above the cache budget {what}", self.name);
            self.was_paused = report.is_paused;
        }
    }

    /// The pages of each piece of the image; none where the system does not report them.
    fn count(&self, size: u64) -> Option<Vec<pages::Pages>> {
        let piece =
            |begin: u64| pages::count(&self.file, &(begin..begin.saturating_add(PIECE).min(size)));
        (0..size).step_by(usize::try_from(PIECE).unwrap_or(usize::MAX)).map(piece).collect()
    }

    /// Drops chunks until so many bytes are gone, or none is left that may go. Returns the numbers
    /// of bytes and of chunks.
    fn drop_pages(
        &mut self,
        size: u64,
        excess: u64,
        pieces: Option<&[pages::Pages]>,
    ) -> (u64, u64) {
        let marks = Arc::clone(&self.desk.marks);
        let (all, first) = (chunks(size), self.hand);
        let (mut bytes, mut left) = (0, 0);
        for chunk in (0..all).map(|place| (first + place) % all) {
            if bytes >= excess {
                break;
            }
            let begin = chunk as u64 * CHUNK;
            let is_empty = |pieces: &[pages::Pages]| {
                let piece = usize::try_from(begin / PIECE).ok().and_then(|at| pieces.get(at));
                piece.is_none_or(|pages| pages.cached == 0)
            };
            let seen = marks.seen(chunk);
            if !seen.is_once_written() || pieces.is_some_and(is_empty) {
                continue;
            }
            let range = begin..begin.saturating_add(CHUNK).min(size);
            match self.drop_chunk(&range, seen, pieces.is_some()) {
                None => {}
                // Another program dropped it, or uses it.
                Some(0) => marks.set(chunk, Seen::default()),
                Some(dropped) => {
                    marks.set(chunk, seen.left());
                    self.hand = chunk + 1;
                    bytes += dropped;
                    left += 1;
                }
            }
        }
        (bytes, left)
    }

    /// Drops a chunk's pages and returns the bytes; none if some are dirty.
    fn drop_chunk(&self, range: &Range<u64>, seen: Seen, is_counted: bool) -> Option<u64> {
        if !is_counted {
            pages::drop(&self.file, range);
            return Some(seen.written());
        }
        let before = pages::count(&self.file, range).filter(|pages| pages.are_clean())?;
        pages::drop(&self.file, range);
        let after = pages::cached(&self.file, range).unwrap_or(0);
        Some(before.cached.saturating_sub(after) * pages::size())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn marks_follow_reads_and_writes() {
        let marks = Marks::new(10 * CHUNK, CHUNK, waker().unwrap());
        marks.mark(true, CHUNK / 2, 2 * CHUNK);
        let is_once_written = |chunk| marks.seen(chunk).is_once_written();
        assert_eq!([0, 1, 2, 3].map(is_once_written), [true, true, true, false]);
        marks.mark(false, 2 * CHUNK - 1, 2);
        assert_eq!([0, 1, 2].map(is_once_written), [true, false, false]);
        marks.set(5, Seen::default().left());
        marks.mark(false, 5 * CHUNK, 4096);
        marks.mark(false, 5 * CHUNK, 4096);
        assert_eq!(marks.read_again.load(Ordering::Relaxed), 1, "once for each drop");
    }

    #[test]
    fn marks_beyond_the_image_are_ignored() {
        let marks = Marks::new(CHUNK, CHUNK, waker().unwrap());
        for offset in [REGION as u64 * CHUNK, u64::MAX - 4096, u64::MAX] {
            marks.mark(true, offset, u64::MAX);
            marks.mark(false, offset, 4096);
        }
        marks.reach(u64::MAX);
        assert!(marks.word(REGION * REGIONS - 1).is_some());
        assert!(marks.word(REGION * REGIONS).is_none());
    }
}
