//! The guest's journal stays out of the page cache (`--cache pdc`).
//!
//! All writes of a volume's channels go through the page cache, as with `--cache writeback`. Each
//! channel reports it to the volume's *journal thread* (`sense.rs`): a few words for each write, in
//! a ring without waiting. The thread (`thread.rs`) finds out where journals are
//! ([`vlane_policy::journal`]), and after a flush it has the system drop their pages. Only clean
//! pages are ever dropped, so a wrong verdict costs only speed; and the lanes never wait for the
//! thread, so only the cache depends on it.
//!
//! With *direct regions* (`direct.rs`) the journals are read and written around the page cache,
//! where they fill whole folios. Then a lane holds requests while the map of the regions changes,
//! which the thread does.

mod direct;
mod sense;
mod thread;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rtrb::{Consumer, RingBuffer};
use vlane_error::locked;
use vlane_policy::journal::Map;
use vlane_policy::journal::bypass::{ByWay, Traffic};
use vlane_policy::journal::layout::JournalLayout;

use crate::pages;
use crate::sync::{Waker, wake};
use crate::threads::Bounded;
pub use direct::DirectReport;
pub(super) use direct::Means;
pub(super) use sense::Sense;
use sense::{ENTRIES, Entry};

/// Bytes of the journal that come together before they are dropped.
const DROP: u64 = 1 << 20;
/// Rings of new channels that do not wait for another wake-up of the thread.
const MANY_RINGS: usize = 16;
/// How long a caller waits for the thread.
const ANSWER: Duration = Duration::from_secs(1);

/// A report of a volume's journals.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JournalReport {
    /// Where they lie, and how that was found.
    pub journals: Vec<vlane_policy::journal::Journal>,
    /// The written bytes, since the volume was opened.
    pub traffic: Traffic,
    /// Bytes of journals that were dropped from the page cache, each time that they were.
    pub dropped: ByWay,
    /// Bytes of them that are in the page cache now; none where the system does not report it
    /// (before Linux 6.5).
    pub cached: Option<u64>,
    /// The parts of them that are read and written around the page cache.
    pub direct: DirectReport,
    /// Writes, flushes and other events that the detector missed, because it was behind.
    pub lost: u64,
    /// All that was written before the question is counted; otherwise the thread hangs, or is
    /// behind.
    pub is_current: bool,
}

/// State that the thread, the channels and callers of reports share.
#[derive(Debug)]
struct Desk {
    /// The image through the page cache, as an open file of the thread's own: it holds no lock of
    /// the volume's.
    file: File,
    name: String,
    waker: Arc<Waker>,
    /// Why no journal is read and written around the page cache, if none is.
    refusal: Option<String>,
    /// Bytes that were written before a flush since the thread was woken.
    bytes: AtomicU64,
    /// Entries that found no room.
    lost: AtomicU64,
    size: AtomicU64,
    is_ending: AtomicBool,
    /// The rings of channels that are new.
    new: Mutex<Vec<Consumer<Entry>>>,
    answers: Mutex<Answers>,
    answered: Condvar,
    /// Where journals lie, as the thread knows it. Never locked for long.
    map: Mutex<Arc<Map>>,
    /// Counts its changes. A channel looks at that before it takes the lock.
    map_changes: AtomicU64,
}

/// Questions, and the thread's last answers.
#[derive(Debug, Default)]
struct Answers {
    asked: u64,
    answered: u64,
    /// All data written so far is durable.
    is_synced: bool,
    /// For tests: the layout to use.
    layout: Option<JournalLayout>,
    report: JournalReport,
}

/// Makes the waker of a journal thread.
pub(super) fn waker() -> io::Result<Arc<Waker>> {
    use rustix::event::EventfdFlags;
    Ok(Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
}

/// A volume's journal thread. It ends with this.
#[derive(Debug)]
pub(super) struct Journal {
    desk: Arc<Desk>,
    thread: Bounded,
}

impl Desk {
    fn wake(&self) {
        wake(&self.waker);
    }

    /// Wakes the thread, and waits until it has seen all that was done before; not for ever.
    fn ask(&self, what: impl FnOnce(&mut Answers)) -> JournalReport {
        let mut answers = locked(&self.answers);
        answers.asked += 1;
        let asked = answers.asked;
        what(&mut answers);
        self.wake();
        let waited =
            self.answered.wait_timeout_while(answers, ANSWER, |answers| answers.answered < asked);
        let (answers, _) = waited.unwrap_or_else(PoisonError::into_inner);
        JournalReport { is_current: answers.answered >= asked, ..answers.report.clone() }
    }
}

impl Journal {
    /// Starts the thread of an image of `size` bytes; `file` is an open file of its own. `waker`
    /// wakes it. With `direct`, or the reason why not, journals are read and written around the
    /// page cache.
    pub(super) fn start(
        path: &Path,
        file: File,
        size: u64,
        waker: Arc<Waker>,
        direct: Result<Means, String>,
    ) -> io::Result<Journal> {
        // Nor is anything read ahead.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        let desk = Arc::new(Desk {
            file,
            name: path.display().to_string(),
            waker,
            refusal: direct.as_ref().err().cloned(),
            bytes: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            size: AtomicU64::new(size),
            is_ending: AtomicBool::new(false),
            new: Mutex::default(),
            answers: Mutex::default(),
            answered: Condvar::new(),
            map: Mutex::default(),
            map_changes: AtomicU64::new(0),
        });
        let own = Arc::clone(&desk);
        let thread = Bounded::start("journal", move || thread::run(&own, direct.ok()))?;
        Ok(Journal { desk, thread })
    }

    /// For a new channel.
    pub(super) fn sense(&self) -> Sense {
        let (producer, consumer) = RingBuffer::new(ENTRIES);
        let mut new = locked(&self.desk.new);
        new.push(consumer);
        // A guest may start and stop its queues for ever: the thread frees abandoned rings.
        if new.len() >= MANY_RINGS {
            self.desk.wake();
        }
        drop(new);
        Sense::new(Arc::clone(&self.desk), producer)
    }

    pub(super) fn resized(&self, size: u64) {
        self.desk.size.store(size, Ordering::Relaxed);
        self.desk.wake();
    }

    /// Where journals lie, as far as the thread knows. For callers that wait for the device anyway.
    pub(super) fn map(&self) -> Arc<Map> {
        Arc::clone(&locked(&self.desk.map))
    }

    /// All written data is durable: the journal's part of it is dropped, before this returns.
    pub(super) fn synced(&self) {
        self.desk.ask(|answers| answers.is_synced = true);
    }

    /// Returns the present knowledge as a report.
    pub(super) fn report(&self) -> JournalReport {
        let mut report = self.desk.ask(|_| {});
        let ranges = report.journals.iter().flat_map(|journal| &journal.ranges);
        let pages: Option<u64> = ranges.map(|range| pages::cached(&self.desk.file, range)).sum();
        report.cached = pages.map(|pages| pages.saturating_mul(pages::size()));
        report.lost = self.desk.lost.load(Ordering::Relaxed);
        report.direct.refusal = self.desk.refusal.clone();
        report
    }

    /// From now on this is the layout.
    pub(super) fn set_layout(&self, layout: JournalLayout) {
        self.desk.ask(|answers| answers.layout = Some(layout));
    }

    /// The thread begins its next round after this.
    pub(super) fn without_thread(&self, what: impl FnOnce()) {
        let answers = locked(&self.desk.answers);
        what();
        drop(answers);
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.desk.is_ending.store(true, Ordering::Release);
        self.desk.wake();
        self.thread.join_for_a_while();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn dead_queues_are_freed_without_writes() {
        let file = tempfile::tempfile().unwrap();
        let path = Path::new("test");
        let journal = Journal::start(path, file, 0, waker().unwrap(), Err(String::new())).unwrap();
        let new = || journal.desk.new.lock().unwrap().len();
        // It has begun, and sleeps.
        journal.report();
        std::thread::sleep(Duration::from_millis(20));
        for _ in 0..200 {
            drop(journal.sense());
        }
        for _ in 0..1000 {
            if new() < MANY_RINGS {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{} rings", new());
    }
}
