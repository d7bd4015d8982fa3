//! The driver commits one transaction after the other, cyclically through a journal's blocks.
//!
//! A commit is a write of 16K, and a flush. The next one begins when the flush is answered, as in a
//! file system whose users wait for fsync. The journal's first block, its superblock, stays as it
//! is.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vlane_driver::ring::{Completion, Request, RequestKind};
use vlane_driver::{GuestQueue, Session, SessionOptions};
use vlane_testbed::{Error, ErrorKind, Fail, Result};

use super::job::{Done, ns_between};

/// Bytes of a commit.
const COMMIT: u32 = 16 << 10;
/// Bytes of a journal's superblock.
const BLOCK: u64 = 4096;
/// While the journal is written for the first time, a flush after so many commits is enough.
const FIRST_ROUND_FLUSH: usize = 64;
/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A journal that is written.
#[derive(Debug)]
pub struct Writer {
    session: Session,
    queue: GuestQueue,
    /// Where commits go.
    places: Vec<u64>,
    next: usize,
    done: Vec<Completion>,
}

/// The places for commits in some ranges, without the first block.
fn places(ranges: &[Range<u64>]) -> Vec<u64> {
    let size = u64::from(COMMIT);
    let skipped = std::iter::once(BLOCK).chain(std::iter::repeat(0));
    let of_range = |(range, skipped): (&Range<u64>, u64)| {
        let begin = range.start + skipped;
        (0..range.end.saturating_sub(begin) / size).map(move |number| begin + number * size)
    };
    ranges.iter().zip(skipped).flat_map(of_range).collect()
}

impl Writer {
    /// On a volume with a journal in these ranges, served at `socket`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no place for a commit, or the volume takes no flush;
    /// those of the driver.
    pub fn new(socket: &Path, ranges: &[Range<u64>]) -> Result<Self> {
        let options = SessionOptions { data: COMMIT, ..SessionOptions::default() };
        let (mut session, places) = (Session::connect(socket, &options)?, places(ranges));
        if places.is_empty() || !session.negotiated().flush {
            let text = "the volume has no journal to write to, or takes no flush";
            return ErrorKind::Invalid.fail(text);
        }
        let missing = || Error::new(ErrorKind::Process, "the session has no queue");
        let mut queue = session.start()?.0.pop().ok_or_else(missing)?;
        queue.blk.disable_interrupts();
        if let Some(data) = queue.blk.data_mut(0) {
            data.fill_pattern(1);
        }
        Ok(Self { session, queue, places, next: 0, done: Vec::new() })
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
    pub fn run(mut self, from: Instant, until: Instant, stop: &AtomicBool) -> Result<Done> {
        let (mut ns, mut begin) = (Vec::new(), Instant::now());
        while begin < until && !stop.load(Ordering::Relaxed) {
            self.write()?;
            self.request(RequestKind::Flush, 0, 0)?;
            let end = Instant::now();
            if end >= from && end < until {
                ns.push(ns_between(begin, end));
            }
            begin = end;
        }
        self.session.stop()?;
        Ok(Done::of(ns.len() as u64, ns, until - from))
    }

    fn write(&mut self) -> Result<()> {
        let place = self.places[self.next];
        self.next = (self.next + 1) % self.places.len();
        self.request(RequestKind::Write, place / 512, COMMIT)
    }

    fn request(&mut self, kind: RequestKind, sector: u64, len: u32) -> Result<()> {
        let (queue, begin) = (&mut self.queue, Instant::now());
        let request = Request { kind, sector, len, ioprio: 0 };
        queue.blk.submit(0, request).map_err(vlane_driver::Error::from)?;
        if queue.blk.publish() {
            queue.kick()?;
        }
        self.done.clear();
        loop {
            queue.blk.reap(&mut self.done).map_err(vlane_driver::Error::from)?;
            let waited = begin.elapsed();
            let (error, text) = match self.done.first() {
                Some(done) if done.status == 0 => return Ok(()),
                Some(done) => (ErrorKind::Process, format!("has status {}", done.status)),
                None if waited > PATIENCE => (ErrorKind::Timeout, "is not answered".into()),
                None => {
                    if !queue.blk.enable_interrupts() {
                        queue.wait_for(PATIENCE)?;
                    }
                    queue.blk.disable_interrupts();
                    continue;
                }
            };
            return error.fail(format!("a {kind:?} at sector {sector} {text}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_stay_within_journal_without_superblock() {
        let range = |first: u64, blocks: u64| first * BLOCK..(first + blocks) * BLOCK;
        let places = places(&[range(100, 10), range(200, 3), range(300, 8)]);
        let blocks: Vec<u64> = places.iter().map(|place| place / BLOCK).collect();
        assert_eq!(blocks, [101, 105, 300, 304]);
        assert!(super::places(&[range(100, 4)]).is_empty() && super::places(&[]).is_empty());
    }
}
