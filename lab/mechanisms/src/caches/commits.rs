//! The driver commits one transaction after the other, cyclically through a journal's blocks.
//!
//! A commit is a write of 16K in the form of a JBD2 transaction (a descriptor, two blocks, a commit
//! block), and a flush. The next one begins when the flush is answered, as in a file system whose
//! users wait for fsync. The journal's first block, its superblock, stays as it is.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vlane_driver::ring::{Completion, Request, RequestKind};
use vlane_driver::{GuestQueue, Session, SessionOptions};

use vlane_testbed::error::{Error, ErrorKind, Result};

/// Bytes of a commit.
pub const COMMIT: u32 = 16 << 10;
/// Blocks of the journal's own.
const BLOCK: u64 = 4096;
/// While the journal is written for the first time, a flush after so many commits is enough.
const FIRST_ROUND_FLUSH: usize = 64;
/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A journal's places, each for one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    offsets: Vec<u64>,
}

impl Places {
    /// Those in some ranges, without the first block.
    pub fn of(ranges: &[Range<u64>]) -> Self {
        let mut offsets = Vec::new();
        for (number, range) in ranges.iter().enumerate() {
            let mut at = if number == 0 { range.start.saturating_add(BLOCK) } else { range.start };
            while at.saturating_add(COMMIT.into()) <= range.end {
                offsets.push(at);
                at += u64::from(COMMIT);
            }
        }
        Self { offsets }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }
}

/// The commits within a window.
#[derive(Debug, Clone, Default)]
pub struct Committed {
    /// How long each commit took, from the write's submission to the flush's answer, in ns.
    pub ns: Vec<u64>,
}

/// A journal that is written.
#[derive(Debug)]
pub struct Writer {
    session: Session,
    queue: GuestQueue,
    places: Places,
    next: usize,
    sequence: u32,
    done: Vec<Completion>,
}

impl Writer {
    /// Options of a session for it.
    pub fn session() -> SessionOptions {
        SessionOptions { data: COMMIT, ..SessionOptions::default() }
    }

    /// On a session that has not been started.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no place for a commit, or the volume takes no flush;
    /// those of the driver.
    pub fn new(mut session: Session, places: Places) -> Result<Self> {
        if places.is_empty() || !session.negotiated().flush {
            let text = "the volume has no journal to write to, or takes no flush";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let (mut queues, _waker) = session.start()?;
        let missing = || Error::new(ErrorKind::Process, "the session has no queue");
        let queue = queues.pop().ok_or_else(missing)?;
        let mut new = Self { session, queue, places, next: 0, sequence: 1, done: Vec::new() };
        new.queue.blk.disable_interrupts();
        if let Some(data) = new.queue.blk.data_mut(0) {
            data.fill_pattern(1);
        }
        Ok(new)
    }

    /// Writes the whole journal once.
    ///
    /// # Errors
    /// As [`Writer::run`].
    pub fn go_round(&mut self, stop: &AtomicBool) -> Result<()> {
        for number in 1..=self.places.len() {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.write()?;
            if number.is_multiple_of(FIRST_ROUND_FLUSH) || number == self.places.len() {
                self.request(RequestKind::Flush, 0, 0)?;
            }
        }
        Ok(())
    }

    /// Commits until `until`, or until it is to stop; what ends from `from` on counts.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] if a request fails, [`ErrorKind::Timeout`] if it is not answered;
    /// those of the driver.
    pub fn run(&mut self, from: Instant, until: Instant, stop: &AtomicBool) -> Result<Committed> {
        let mut committed = Committed::default();
        let mut begin = Instant::now();
        while begin < until && !stop.load(Ordering::Relaxed) {
            self.write()?;
            self.request(RequestKind::Flush, 0, 0)?;
            let end = Instant::now();
            if end >= from && end < until {
                committed.ns.push(u64::try_from((end - begin).as_nanos()).unwrap_or(u64::MAX));
            }
            begin = end;
        }
        Ok(committed)
    }

    /// Ends the session.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn end(mut self) -> Result<()> {
        Ok(self.session.stop()?)
    }

    fn write(&mut self) -> Result<()> {
        let offset = self.places.offsets[self.next];
        self.next = (self.next + 1) % self.places.len();
        if let Some(data) = self.queue.blk.data_mut(0) {
            // A descriptor, two blocks of data, the commit block.
            for (block, kind) in [(0, 1_u32), (3, 2)] {
                let mut head = [0; 12];
                for (place, word) in [0xc03b_3998, kind, self.sequence].into_iter().enumerate() {
                    head[place * 4..place * 4 + 4].copy_from_slice(&word.to_be_bytes());
                }
                data.copy_in(block * 4096, &head).map_err(vlane_driver::Error::from)?;
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.request(RequestKind::Write, offset / 512, COMMIT)
    }

    fn request(&mut self, kind: RequestKind, sector: u64, len: u32) -> Result<()> {
        let blk = &mut self.queue.blk;
        blk.submit(0, Request { kind, sector, len, ioprio: 0 })
            .map_err(vlane_driver::Error::from)?;
        if blk.publish() {
            self.queue.kick()?;
        }
        let begin = Instant::now();
        self.done.clear();
        loop {
            self.queue.blk.reap(&mut self.done).map_err(vlane_driver::Error::from)?;
            match self.done.first() {
                Some(done) if done.status == 0 => return Ok(()),
                Some(done) => {
                    let text = format!(
                        "the volume answers a {kind:?} at sector {sector} with status {}",
                        done.status
                    );
                    return Err(Error::new(ErrorKind::Process, text));
                }
                None if begin.elapsed() > PATIENCE => {
                    let text =
                        format!("a {kind:?} is not answered within {} s", PATIENCE.as_secs());
                    return Err(Error::new(ErrorKind::Timeout, text));
                }
                None => {}
            }
            if !self.queue.blk.enable_interrupts() {
                self.queue.wait_for(PATIENCE)?;
            }
            self.queue.blk.disable_interrupts();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_stay_within_journal_without_superblock() {
        let range = |first: u64, blocks: u64| first * BLOCK..(first + blocks) * BLOCK;
        let places = Places::of(&[range(100, 10), range(200, 3), range(300, 8)]);
        let blocks: Vec<u64> = places.offsets.iter().map(|offset| offset / BLOCK).collect();
        assert_eq!(blocks, [101, 105, 300, 304]);
        assert!(Places::of(&[range(100, 4)]).is_empty());
        assert!(Places::of(&[]).is_empty());
    }
}
