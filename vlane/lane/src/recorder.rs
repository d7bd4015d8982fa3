//! Recording of a lane's requests: one entry per request, into a ring in memory that another thread
//! empties.
//!
//! The lane's side, [`Recorder`], takes no lock, allocates no memory per request and never waits.
//! An entry that finds the ring full is counted, and the count takes the place of the requests as
//! soon as there is one. It reads the clock once for up to [`CLOCK_EVERY`] requests that are taken
//! together, and once for all completions that are found together. Those requests have one time of
//! submission, that of the first, and one of completion, that of the last. The dependencies of a
//! lane's requests are recorded exactly all the same, by numbers ([`vlane_trace::Record::after`]).

use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rtrb::{Consumer, Producer, RingBuffer};
use twox_hash::xxhash3_64::{DEFAULT_SECRET_LENGTH, RawHasher, SecretBuffer};
use vlane_policy::journal::Head;
use vlane_policy::journal::content::scan;
use vlane_ring::{Request, RequestKind, Slot, Status};
use vlane_trace::{BlockHead, Entry, Magic, Priority, Record};

/// Answers of one batch that are recorded together; more are recorded in parts.
const BATCH: usize = 256;
/// Requests taken together that have one time.
pub(crate) const CLOCK_EVERY: usize = 8;

/// A recording's options.
#[derive(Debug, Clone, Copy)]
pub struct RecorderConfig {
    /// The trace's time zero.
    pub origin: Instant,
    /// True if data is hashed.
    pub hashes: bool,
    /// Entries that the ring holds.
    pub entries: usize,
}

/// The lane's side of a recording. It stays with the queue when lanes come and go.
#[derive(Debug)]
pub struct Recorder {
    lane: u16,
    config: RecorderConfig,
    producer: Producer<Entry>,
    /// Entries not even recorded as lost, because the recording ended.
    untold: Arc<AtomicU64>,
    begun: Box<[Begun]>,
    /// Answered in this batch; their service time is still missing.
    batch: Vec<Record>,
    /// The present batch began then, in ns since the origin.
    now: Option<u64>,
    seq: u32,
    /// Requests that are completed, and those of them that the guest has been shown.
    completed: u32,
    shown: u32,
    lost: u64,
    /// A start that there was no place for, and what was lost after it.
    start: Option<Entry>,
    lost_after_start: u64,
}

/// The facts on a request from its beginning on.
#[derive(Debug, Clone, Copy, Default)]
struct Begun {
    submit: u64,
    hash: u64,
    seq: u32,
    after: u32,
    /// False for requests that were begun before the recorder came.
    is_recorded: bool,
}

/// The other end of the ring, for the thread that writes the trace.
#[derive(Debug)]
pub struct Recorded {
    lane: u16,
    consumer: Consumer<Entry>,
    untold: Arc<AtomicU64>,
}

/// A recorder for the lane of queue `lane`, and the other end of its ring.
pub fn recorder(lane: u16, config: RecorderConfig) -> (Recorder, Recorded) {
    let (producer, consumer) = RingBuffer::new(config.entries.max(2));
    let untold = Arc::new(AtomicU64::new(0));
    let recorder = Recorder {
        lane,
        config,
        producer,
        untold: Arc::clone(&untold),
        begun: Box::default(),
        batch: Vec::with_capacity(BATCH),
        now: None,
        seq: 0,
        completed: 0,
        shown: 0,
        lost: 0,
        start: None,
        lost_after_start: 0,
    };
    (recorder, Recorded { lane, consumer, untold })
}

impl Recorder {
    fn clock(&self) -> u64 {
        u64::try_from(self.config.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A lane of `slots` slots is recorded from now on, which has requests in flight.
    pub(crate) fn start(&mut self, slots: u16, in_flight: usize) {
        self.begun = vec![Begun::default(); slots.into()].into();
        (self.seq, self.completed, self.shown, self.now) = (0, 0, 0, None);
        let in_flight = u32::try_from(in_flight).unwrap_or(u32::MAX);
        // With an earlier count still unrecorded, all later entries are lost to the same gap.
        self.lost += std::mem::take(&mut self.lost_after_start);
        self.start = Some(Entry::Start { lane: self.lane, time: self.clock(), in_flight });
        self.catch_up();
    }

    /// The lane took a request.
    #[inline]
    pub(crate) fn taken(&mut self, slot: Slot, request: &Request) {
        let submit = match self.now {
            Some(now) => now,
            None => *self.now.insert(self.clock()),
        };
        let hash = match request.kind() {
            RequestKind::Out if self.config.hashes => hash(request),
            _ => 0,
        };
        if request.kind() == RequestKind::Out {
            self.heads(request);
        }
        if let Some(begun) = self.begun.get_mut(usize::from(slot.0)) {
            *begun = Begun { submit, hash, seq: self.seq, after: self.shown, is_recorded: true };
        }
        self.seq = self.seq.wrapping_add(1);
    }

    /// Records which blocks of a write are a journal's. Without a free place they are dropped: the
    /// write will hardly find one either, and be counted.
    #[inline]
    fn heads(&mut self, request: &Request) {
        let Some(offset) = request.sector().checked_mul(vlane_ring::SECTOR) else { return };
        let mut words = request.words();
        let head = |at| {
            let mut bytes = [0; Head::LEN];
            request.copy_from(at, &mut bytes);
            bytes
        };
        scan(offset, request.len(), |at| words.at(at), head, |head| self.head(head));
    }

    #[cold]
    fn head(&mut self, head: Head) {
        let Some((first, rest)) = head.bytes.split_first_chunk() else { return };
        if let (Some(magic), Ok(rest), true) = (Magic::of(*first), rest.try_into(), self.catch_up())
        {
            let sector = head.offset / vlane_ring::SECTOR;
            let _ = self.producer.push(Entry::Head(BlockHead {
                lane: self.lane,
                seq: self.seq,
                sector,
                magic,
                rest,
            }));
        }
    }

    /// The request that was taken last was not: it will be taken again.
    pub(crate) fn put_back(&mut self, slot: Slot) {
        if let Some(begun) = self.begun.get_mut(usize::from(slot.0))
            && std::mem::take(begun).is_recorded
        {
            self.seq = self.seq.wrapping_sub(1);
        }
    }

    /// The request was answered; called while it is still in its slot.
    #[inline]
    pub(crate) fn answered(&mut self, slot: Slot, request: &Request, status: Status) {
        let Some(begun) = self.begun.get_mut(usize::from(slot.0)) else { return };
        let begun = std::mem::take(begun);
        if !begun.is_recorded {
            return;
        }
        self.completed = self.completed.wrapping_add(1);
        let is_read = request.kind() == RequestKind::In && status == Status::Ok;
        let record = Record {
            kind: kind(request.kind()),
            status: match status {
                Status::Ok => vlane_trace::Status::Ok,
                Status::IoErr => vlane_trace::Status::IoErr,
                Status::Unsupported => vlane_trace::Status::Unsupported,
            },
            lane: self.lane,
            priority: Priority(request.priority().0),
            submit: begun.submit,
            service: 0,
            sector: request.sector(),
            sectors: 0,
            seq: begun.seq,
            after: begun.after,
            more: false,
            unmap: false,
            hash: if is_read && self.config.hashes { hash(request) } else { begun.hash },
        };
        match request.kind() {
            RequestKind::In | RequestKind::Out => {
                let sectors = u32::try_from(request.len() / vlane_ring::SECTOR).unwrap_or(u32::MAX);
                self.keep_answered(Record { sectors, ..record });
            }
            RequestKind::Discard | RequestKind::WriteZeroes => self.ranges(request, record),
            _ => self.keep_answered(Record { sector: 0, ..record }),
        }
    }

    /// One record per range.
    #[cold]
    fn ranges(&mut self, request: &Request, record: Record) {
        let ranges = request.ranges();
        if ranges.len() > BATCH {
            // The most that a request can have; together they are recorded or lost together.
            self.lose(1);
            return;
        }
        if self.batch.len() + ranges.len() > BATCH {
            self.end_batch(false);
        }
        for (index, range) in ranges.iter().enumerate() {
            let more = index + 1 < ranges.len();
            self.batch.push(Record {
                sector: range.sector,
                sectors: range.sectors,
                unmap: range.unmap,
                more,
                ..record
            });
        }
    }

    #[inline]
    fn keep_answered(&mut self, record: Record) {
        if self.batch.len() == BATCH {
            self.end_batch(false);
        }
        self.batch.push(record);
    }

    /// The guest can see all answers.
    #[inline]
    pub(crate) fn shown(&mut self) {
        self.shown = self.completed;
    }

    /// Answers since the last call are done now, and not all shown to the guest yet. `goes_on`:
    /// more requests are taken at once.
    #[inline]
    pub(crate) fn end_batch(&mut self, goes_on: bool) {
        self.now = None;
        if self.batch.is_empty() {
            return;
        }
        let now = self.clock();
        self.now = goes_on.then_some(now);
        for record in &mut self.batch {
            record.service = now.saturating_sub(record.submit);
        }
        self.push_batch();
    }

    /// Puts the batch into the ring, as one if there is room for all of it.
    #[inline]
    fn push_batch(&mut self) {
        let count = self.batch.len();
        if self.catch_up()
            && let Ok(chunk) = self.producer.write_chunk_uninit(count)
        {
            chunk.fill_from_iter(self.batch.drain(..).map(Entry::Record));
            return;
        }
        self.push_some();
    }

    /// As many as there is room for.
    #[cold]
    fn push_some(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        // The ranges of one request go together or not at all.
        for ranges in batch.chunk_by(|record, _| record.more) {
            match self.producer.write_chunk_uninit(ranges.len()) {
                Ok(chunk) if self.lost == 0 && self.start.is_none() => {
                    chunk.fill_from_iter(ranges.iter().copied().map(Entry::Record));
                }
                _ => self.lose(1),
            }
            self.catch_up();
        }
        batch.clear();
        self.batch = batch;
    }

    #[cold]
    fn lose(&mut self, count: u64) {
        match self.start {
            None => self.lost += count,
            Some(_) => self.lost_after_start += count,
        }
    }

    /// Records the count of lost entries; returns true if none is left.
    #[inline]
    fn catch_up(&mut self) -> bool {
        (self.lost == 0 && self.start.is_none()) || self.tell()
    }

    #[cold]
    fn tell(&mut self) -> bool {
        let time = self.clock();
        loop {
            let entry = match (self.lost, self.start) {
                (0, None) => return true,
                (0, Some(start)) => start,
                (count, _) => Entry::Lost { lane: self.lane, time, count },
            };
            if self.producer.push(entry).is_err() {
                return false;
            }
            if self.lost > 0 {
                self.lost = 0;
            } else {
                self.start = None;
                self.lost = std::mem::take(&mut self.lost_after_start);
            }
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end_batch(false);
        if !self.catch_up() {
            self.untold.store(self.lost + self.lost_after_start, Ordering::Release);
        }
    }
}

impl Recorded {
    /// Takes out what is there, a whole ring of it at the most; returns how many entries that were.
    pub fn drain(&mut self, mut each: impl FnMut(Entry)) -> usize {
        let Ok(chunk) = self.consumer.read_chunk(self.consumer.slots()) else { return 0 };
        let count = chunk.len();
        chunk.into_iter().for_each(&mut each);
        count
    }

    /// Returns true if the lane has let go of the recorder: after one more [`Recorded::drain`] no
    /// entry comes any more, but for [`Recorded::untold`].
    pub fn is_over(&self) -> bool {
        self.consumer.is_abandoned()
    }

    /// Requests that were lost last of all, if some were; after the end.
    pub fn untold(&self, time: u64) -> Option<Entry> {
        let count = self.untold.swap(0, Ordering::Acquire);
        (count > 0).then_some(Entry::Lost { lane: self.lane, time, count })
    }
}

fn kind(kind: RequestKind) -> vlane_trace::RequestKind {
    match kind {
        RequestKind::In => vlane_trace::RequestKind::Read,
        RequestKind::Out => vlane_trace::RequestKind::Write,
        RequestKind::Flush => vlane_trace::RequestKind::Flush,
        RequestKind::GetId => vlane_trace::RequestKind::GetId,
        RequestKind::Discard => vlane_trace::RequestKind::Discard,
        RequestKind::WriteZeroes => vlane_trace::RequestKind::WriteZeroes,
        RequestKind::Refused(_) | RequestKind::Unreachable => vlane_trace::RequestKind::Refused,
    }
}

/// Of the data as it is now. The guest may be changing it, which makes a hash of neither state and
/// has no worse effect.
#[cold]
fn hash(request: &Request) -> u64 {
    // A secret of the right length for seed 0 can always be made.
    let Ok(secret) = SecretBuffer::with_seed(0, [0; DEFAULT_SECRET_LENGTH]) else { return 0 };
    let mut hasher = RawHasher::new(secret);
    request.copy_out(|bytes| hasher.write(bytes));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn config(entries: usize) -> RecorderConfig {
        RecorderConfig { origin: Instant::now(), hashes: false, entries }
    }

    fn record(seq: u32, more: bool) -> Record {
        Record {
            kind: vlane_trace::RequestKind::Write,
            status: vlane_trace::Status::Ok,
            lane: 3,
            priority: Priority(0),
            submit: 0,
            service: 0,
            sector: 0,
            sectors: 8,
            seq,
            after: 0,
            more,
            unmap: false,
            hash: 0,
        }
    }

    fn drained(recorded: &mut Recorded) -> Vec<Entry> {
        let mut entries = Vec::new();
        recorded.drain(|entry| entries.push(entry));
        entries
    }

    /// Records and lost ones add up to all requests, and each gap is recorded at its place.
    #[test]
    fn dropped_records_are_counted_in_place() {
        let (mut recorder, mut recorded) = recorder(3, config(4));
        recorder.start(8, 2);
        for seq in 0..10 {
            recorder.keep_answered(record(seq, false));
        }
        recorder.end_batch(false);
        let first = drained(&mut recorded);
        assert!(matches!(first[0], Entry::Start { lane: 3, in_flight: 2, .. }));
        assert_eq!(first.len(), 4, "start and three records");
        recorder.keep_answered(record(10, false));
        recorder.end_batch(false);
        let second = drained(&mut recorded);
        assert!(matches!(second[0], Entry::Lost { lane: 3, count: 7, .. }), "{second:?}");
        assert!(matches!(second[1], Entry::Record(Record { seq: 10, .. })), "{second:?}");
    }

    #[test]
    fn request_of_several_ranges_drops_whole() {
        let (mut recorder, mut recorded) = recorder(3, config(4));
        recorder.start(8, 0);
        for seq in 0..2 {
            for more in [true, true, false] {
                recorder.keep_answered(record(seq, more));
            }
        }
        recorder.end_batch(false);
        assert_eq!(drained(&mut recorded).len(), 4, "start and the three ranges of the first");
        recorder.keep_answered(record(2, false));
        recorder.end_batch(false);
        let rest = drained(&mut recorded);
        assert!(matches!(rest[0], Entry::Lost { count: 1, .. }), "{rest:?}");
    }

    #[test]
    fn last_loss_is_recorded() {
        let (mut recorder, mut recorded) = recorder(3, config(2));
        recorder.start(8, 0);
        for seq in 0..5 {
            recorder.keep_answered(record(seq, false));
        }
        drop(recorder);
        assert!(recorded.is_over());
        assert_eq!(drained(&mut recorded).len(), 2);
        assert!(matches!(recorded.untold(9), Some(Entry::Lost { lane: 3, time: 9, count: 4 })));
        assert!(recorded.untold(9).is_none());
    }

    /// A lane that starts while there is no place: what was lost before and after stays apart.
    #[test]
    fn unrecorded_start_comes_between_losses() {
        let (mut recorder, mut recorded) = recorder(3, config(2));
        recorder.start(8, 0);
        for seq in 0..3 {
            recorder.keep_answered(record(seq, false));
        }
        recorder.end_batch(false);
        recorder.start(8, 0);
        recorder.keep_answered(record(0, false));
        recorder.end_batch(false);
        let mut entries = drained(&mut recorded);
        for _ in 0..3 {
            recorder.catch_up();
            entries.extend(drained(&mut recorded));
        }
        let tell = |entry: &Entry| match entry {
            Entry::Start { .. } => "start".to_owned(),
            Entry::Record(record) => format!("record {}", record.seq),
            Entry::Lost { count, .. } => format!("lost {count}"),
            Entry::Head(head) => format!("head of {}", head.seq),
            Entry::Layout(_) => "layout".to_owned(),
            Entry::End { .. } => "end".to_owned(),
        };
        let told: Vec<_> = entries.iter().map(tell).collect();
        assert_eq!(told, ["start", "record 0", "lost 2", "start", "lost 1"]);
    }
}
