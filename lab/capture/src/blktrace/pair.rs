//! Requests out of blktrace's events: a request begins with its issue (D) and ends with its
//! completion (C).
//!
//! Sources: `include/uapi/linux/blktrace_api.h` and `kernel/trace/blktrace.c` of Linux 6.12.
//!
//! A completion names the place at which the kernel stands in the request. So a request that
//! completes in parts has several, each behind the one before. A bio that was queued (Q) may be
//! merged with others, and then one completion covers several. Both are one rule: a completion
//! ends what begins at its place, as far as it reaches.

use std::collections::{HashMap, VecDeque};

use vlane_trace::{Header, Priority, Record, RequestKind, Status};

use super::{CGROUP, COMPLETE, Event, ISSUE, QUEUE, category};
use crate::{Imported, Trace};

/// A request that the device gave back: the kernel issues it again.
const REQUEUE: u32 = 5;
/// The longest write, in bytes, that Linux makes by default (`BLK_DEF_MAX_SECTORS_CAP` of 4 MiB).
const LONG_WRITE: u32 = 4 << 20;
/// The longest write of data, in bytes, that a driver of Linux takes (SCSI: 65,535 sectors).
const LONGEST_WRITE: u32 = 32 << 20;

/// A request that is under way.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Its place among the records.
    place: usize,
    /// Bytes that are not complete.
    left: u32,
}

/// Requests by their kind and the sector at which their next completion is.
type Opens = HashMap<(RequestKind, u64), VecDeque<Open>>;

/// Events that are no request of the trace, counted for people.
#[derive(Debug, Default)]
struct Counts {
    passthrough: u64,
    requeued: u64,
    without_begin: u64,
    without_end: u64,
    zeroing: u64,
    long_writes: u64,
    long_bytes: u64,
    fua: u64,
    empty: u64,
}

impl Counts {
    fn notes(&self) -> Vec<String> {
        let bytes = self.long_bytes;
        let long = format!(
            "of more than 4 MiB ({bytes} bytes in all), perhaps write-zeroes, which blktrace does \
             not tell apart: a replay writes data"
        );
        [
            (self.passthrough, "passthrough command", "left out: it has no sector"),
            (self.requeued, "requeue", "not counted again: the request lasts from its first issue"),
            (self.without_begin, "completion", "left out: its beginning is not in the trace"),
            (
                self.without_end,
                "request",
                "without a completion in the trace: its service time is 0",
            ),
            (self.empty, "request", "left out: it has no data"),
            (
                self.zeroing,
                "write",
                "of more than 32 MiB, read as write-zeroes: no driver moves as much",
            ),
            (self.long_writes, "write", &long),
            (self.fua, "write", "with FUA, which a trace does not keep"),
        ]
        .into_iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, noun, rest)| {
            format!("{count} {noun}{} {rest}", if count == 1 { "" } else { "s" })
        })
        .collect()
    }
}

/// Makes requests of events in the order of their times.
pub(super) fn pair(events: &[Event], names: &HashMap<u32, u16>) -> Imported {
    let begins = if events.iter().any(|event| act(event) == ISSUE) { ISSUE } else { QUEUE };
    let mut pairing = Pairing {
        names,
        begins,
        records: Vec::new(),
        open: HashMap::new(),
        requeued: HashMap::new(),
        lanes: 0,
        counts: Counts::default(),
    };
    for event in events {
        pairing.take(event);
    }
    pairing.finish()
}

fn act(event: &Event) -> u32 {
    event.action & 0xffff & !CGROUP
}

fn kind(event: &Event) -> Option<RequestKind> {
    let is = |category: u32| event.action & category != 0;
    Some(match () {
        () if is(category::DISCARD) => RequestKind::Discard,
        () if event.bytes == 0 && is(category::FLUSH) => RequestKind::Flush,
        () if is(category::WRITE) && event.bytes > LONGEST_WRITE => RequestKind::WriteZeroes,
        () if is(category::WRITE) => RequestKind::Write,
        () if event.bytes > 0 => RequestKind::Read,
        () => return None,
    })
}

/// The work of [`pair`].
#[derive(Debug)]
struct Pairing<'a> {
    names: &'a HashMap<u32, u16>,
    begins: u32,
    records: Vec<Record>,
    open: Opens,
    /// Requests that wait for their second issue, by kind, sector and length.
    requeued: HashMap<(RequestKind, u64, u32), VecDeque<Open>>,
    lanes: u16,
    counts: Counts,
}

impl Pairing<'_> {
    fn take(&mut self, event: &Event) {
        let has = |category: u32| event.action & category != 0;
        let act = act(event);
        if has(category::PASSTHROUGH) {
            self.counts.passthrough += u64::from(act == self.begins);
            return;
        }
        let Some(kind) = kind(event) else { return };
        if act == self.begins {
            self.begin(event, kind);
        } else if act == REQUEUE && self.begins == ISSUE {
            self.requeue(event, kind);
        } else if act == COMPLETE {
            self.complete(event, kind);
        }
    }

    fn begin(&mut self, event: &Event, kind: RequestKind) {
        let has = |category: u32| event.action & category != 0;
        let key = (kind, event.sector, event.bytes);
        if let Some(open) = self.requeued.get_mut(&key).and_then(VecDeque::pop_front) {
            self.counts.requeued += 1;
            self.open.entry(place(kind, event.sector)).or_default().push_back(open);
            return;
        }
        if event.bytes == 0 && kind != RequestKind::Flush {
            self.counts.empty += 1;
            return;
        }
        // A queued bio may ask for a flush before its data, which has no events of its own.
        if has(category::FLUSH) && event.bytes > 0 {
            self.record(event, RequestKind::Flush);
        }
        self.counts.fua += u64::from(has(category::FUA) && kind == RequestKind::Write);
        if kind == RequestKind::WriteZeroes {
            self.counts.zeroing += 1;
        } else if kind == RequestKind::Write && event.bytes > LONG_WRITE {
            self.counts.long_writes += 1;
            self.counts.long_bytes += u64::from(event.bytes);
        }
        let open = Open { place: self.records.len(), left: event.bytes };
        self.record(event, kind);
        self.open.entry(place(kind, event.sector)).or_default().push_back(open);
    }

    fn record(&mut self, event: &Event, kind: RequestKind) {
        let cpu = u16::try_from(event.cpu).unwrap_or(0);
        let lane = self.names.get(&event.pid).copied().unwrap_or(cpu);
        self.lanes = self.lanes.max(lane.saturating_add(1));
        let (sector, bytes) =
            if kind == RequestKind::Flush { (0, 0) } else { (event.sector, event.bytes) };
        self.records.push(Record {
            kind,
            status: Status::Ok,
            lane,
            priority: Priority(0),
            submit: event.time,
            service: 0,
            sector,
            sectors: bytes / 512,
            seq: 0,
            after: 0,
            more: false,
            unmap: false,
            hash: 0,
        });
    }

    fn requeue(&mut self, event: &Event, kind: RequestKind) {
        if let Some(open) = self.oldest(kind, event.sector, event.bytes) {
            self.requeued.entry((kind, event.sector, event.bytes)).or_default().push_back(open);
        }
    }

    /// Takes out the oldest request at a place; one of the same length comes first.
    fn oldest(&mut self, kind: RequestKind, sector: u64, bytes: u32) -> Option<Open> {
        let queue = self.open.get_mut(&place(kind, sector))?;
        let index = queue.iter().position(|open| open.left == bytes).unwrap_or(0);
        let open = queue.remove(index);
        if queue.is_empty() {
            self.open.remove(&place(kind, sector));
        }
        open
    }

    fn complete(&mut self, event: &Event, kind: RequestKind) {
        let (mut sector, mut bytes) = (event.sector, event.bytes);
        let mut found = false;
        while let Some(mut open) = self.oldest(kind, sector, bytes) {
            found = true;
            let record = &mut self.records[open.place];
            record.service = event.time.saturating_sub(record.submit);
            if event.error != 0 {
                record.status = Status::IoErr;
            }
            let done = open.left.min(bytes);
            (open.left, bytes) = (open.left - done, bytes - done);
            sector = sector.saturating_add(u64::from(done / 512));
            // A failed request ends as a whole, however little of it was done.
            if open.left > 0 && event.error == 0 {
                self.open.entry(place(kind, sector)).or_default().push_back(open);
            }
            if bytes == 0 {
                break;
            }
        }
        self.counts.without_begin += u64::from(!found);
    }

    fn finish(mut self) -> Imported {
        let open = self.open.values().map(VecDeque::len).sum::<usize>();
        let requeued = self.requeued.values().map(VecDeque::len).sum::<usize>();
        self.counts.without_end = (open + requeued) as u64;
        let header = Header { lanes: self.lanes, name: "blktrace".into(), ..Header::default() };
        Imported { trace: Trace::from_records(header, self.records), notes: self.counts.notes() }
    }
}

/// The key of [`Opens`]: only its place identifies a part of a long write.
fn place(kind: RequestKind, sector: u64) -> (RequestKind, u64) {
    (if kind == RequestKind::WriteZeroes { RequestKind::Write } else { kind }, sector)
}
