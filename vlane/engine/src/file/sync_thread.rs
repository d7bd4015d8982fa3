//! The thread that does the `fdatasync`s of a volume ([`super::flushes`]).
//!
//! It lives from the first channel to the last one, and sleeps while no flush waits. For
//! experiments, its `fdatasync`s differ:
//!
//! * their success is reported late ([`FileOptions::flush_delay`]);
//! * of the page cache only the guest's journal is written to the device
//!   ([`FileOptions::danger_flush_journal_only`]): **other data that was flushed can be lost**.
//!
//! Flushes that come meanwhile wait for the next one, as they would on a device that is that slow.
//!
//! [`FileOptions::flush_delay`]: super::FileOptions::flush_delay
//! [`FileOptions::danger_flush_journal_only`]: super::FileOptions::danger_flush_journal_only

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use vlane_policy::journal::{LogKind, Map};
use vlane_trace::storage::Action;

use super::flushes::{End, Flushes, Syncer};
use super::{Shared, transfer};
use crate::recorder::RecordedCall;
use crate::{EngineError, ErrorKind, Writeback, pages, threads};

/// Pieces of a journal that are written one beside the other; of one that has more, the whole file
/// is.
const MOST_PIECES: usize = 64;

/// The thread, once there is a channel. Dropped, it waits for the thread.
#[derive(Debug)]
pub(super) struct SyncThread {
    flushes: Arc<Flushes>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SyncThread {
    pub(super) fn new(flushes: &Arc<Flushes>) -> Arc<SyncThread> {
        Arc::new(SyncThread { flushes: Arc::clone(flushes), thread: Mutex::default() })
    }

    /// Begins, unless it has begun, or the volume refuses writes.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(&self, shared: &Arc<Shared>) -> Result<(), EngineError> {
        let mut thread = vlane_error::locked(&self.thread);
        if shared.read_only || shared.map.is_some() || thread.is_some() || cfg!(vlane_simulated) {
            return Ok(());
        }
        let of = Arc::clone(shared);
        let builder = thread::Builder::new().name("flush".to_owned());
        let started = threads::start(builder, move || run(&of));
        let refused = |error: io::Error| {
            let text = "no thread for the flushes; raise the limit of threads (ulimit -u, or \
                        pids.max of the cgroup)";
            EngineError::caused_at(&shared.path, ErrorKind::Limit, text, error)
        };
        *thread = Some(started.map_err(refused)?);
        Ok(())
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.flushes.end();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // From a delay.
            thread.thread().unpark();
            // It has the image open.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    let mut syncer = Syncer::new(&shared.flushes);
    while let Some(asks) = syncer.next() {
        shared.kernel_lock.begin();
        let errno = sync(shared);
        shared.kernel_lock.end();
        let end = settle(shared, asks, errno);
        if end == End::Well {
            rest(&syncer, shared.flush_delay);
        }
        syncer.ended(end);
    }
}

/// Waits that long, or until the thread is no longer needed.
fn rest(syncer: &Syncer, delay: Duration) {
    let begin = Instant::now();
    while let Some(left) = delay.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        if syncer.is_over() {
            return;
        }
        thread::park_timeout(left);
    }
}

/// Makes answered writes durable; 0, or an error number.
fn sync(shared: &Shared) -> i32 {
    let journal = shared.journal.as_ref().filter(|_| shared.danger_flush_journal_only);
    if let Some(pieces) = journal.and_then(|journal| pieces(&journal.map())) {
        return errno(&write_back(shared, &pieces));
    }
    let told = RecordedCall::new(shared.recorder.as_ref(), || Action::Sync);
    let mut synced = shared.file().sync_data();
    for _ in 0..transfer::MAX_RETRIES {
        if !transfer::is_momentary(errno(&synced)) {
            break;
        }
        synced = shared.file().sync_data();
    }
    told.end_with(&synced);
    errno(&synced)
}

fn errno(result: &io::Result<()>) -> i32 {
    result.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO))
}

/// Writes parts of the page cache to the device, one beside the other.
fn write_back(shared: &Shared, pieces: &[Range<u64>]) -> io::Result<()> {
    let file = shared.file();
    pieces.iter().try_for_each(|piece| pages::begin_write_back(file, piece))?;
    pieces.iter().try_for_each(|piece| pages::write_back(file, piece))
}

/// Notes a loss, before any request is answered.
pub(super) fn settle(shared: &Shared, asks: Writeback, errno: i32) -> End {
    if errno != 0 {
        shared.durability.fail(errno, asks);
        return End::Failed(errno);
    }
    // The system reports success to one of two that run together, even if pages of both are lost.
    if shared.durability.ask(asks) { End::Lost } else { End::Well }
}

/// The places of the journals; none if no journal is known, or there are too many.
fn pieces(map: &Map) -> Option<Vec<Range<u64>>> {
    let pieces = map.pieces().iter().filter(|piece| piece.verdict.kind == LogKind::Journal);
    let pieces: Vec<_> = pieces.map(|piece| piece.range.clone()).take(MOST_PIECES + 1).collect();
    (1..=MOST_PIECES).contains(&pieces.len()).then_some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vlane_policy::journal::{Evidence, FileSystem, Journal};

    #[test]
    fn journal_of_few_pieces_is_written_alone() {
        let journal = |kind, ranges| Journal {
            filesystem: FileSystem::Ext4,
            kind,
            way: Evidence::Layout,
            ranges,
        };
        let of = |kind, ranges| pieces(&Map::new(&[journal(kind, ranges)]));
        let two = vec![4096..8192, 16384..20480];
        assert_eq!(of(LogKind::Journal, two.clone()), Some(two));
        assert_eq!(of(LogKind::Log, vec![Range { start: 4096, end: 8192 }]), None, "no journal");
        assert_eq!(pieces(&Map::default()), None);
        let many = |count: u64| (0..count).map(|at| at * 8192..at * 8192 + 4096).collect();
        assert!(of(LogKind::Journal, many(64)).is_some());
        assert_eq!(of(LogKind::Journal, many(65)), None);
    }
}
