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

use vlane_trace::{Header, Record, RequestKind, Status};

use super::{CGROUP, COMPLETE, Event, ISSUE, QUEUE, category};
use crate::Trace;
use crate::import::{Imported, Notes, record};

/// A request that the device gave back: the kernel issues it again.
const REQUEUE: u64 = 5;
/// The longest write, in bytes, that Linux makes by default (`BLK_DEF_MAX_SECTORS_CAP` of 4 MiB).
const LONG_WRITE: u64 = 4 << 20;
/// The longest write of data, in bytes, that a driver of Linux takes (SCSI: 65,535 sectors).
const LONGEST_WRITE: u64 = 32 << 20;

/// A request that is under way.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Its place among the records.
    place: usize,
    /// Bytes that are not complete.
    left: u64,
}

/// Requests by their kind and the sector at which their next completion is.
type Opens = HashMap<(RequestKind, u64), VecDeque<Open>>;

/// Makes requests of events in the order of their times.
pub(super) fn pair(events: &[Event], lanes_of: HashMap<u64, u16>) -> Imported {
    let begins = if events.iter().any(|event| act(event) == ISSUE) { ISSUE } else { QUEUE };
    let mut pairing = Pairing { lanes_of, begins, ..Pairing::default() };
    for event in events {
        pairing.take(event);
    }
    pairing.finish()
}

fn act(event: &Event) -> u64 {
    event.action & 0xffff & !CGROUP
}

fn kind(event: &Event) -> Option<RequestKind> {
    let is = |category: u64| event.action & category != 0;
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
#[derive(Debug, Default)]
struct Pairing {
    lanes_of: HashMap<u64, u16>,
    begins: u64,
    records: Vec<Record>,
    open: Opens,
    /// Requests that wait for their second issue, by kind, sector and length.
    requeued: HashMap<(RequestKind, u64, u64), VecDeque<Open>>,
    lanes: u16,
    notes: Notes,
    /// Writes that are long, and their bytes.
    long: (u64, u64),
}

impl Pairing {
    fn take(&mut self, event: &Event) {
        let act = act(event);
        if event.action & category::PASSTHROUGH != 0 {
            let count = u64::from(act == self.begins);
            return self.notes.add(count, "passthrough command", "left out: it has no sector");
        }
        let Some(kind) = kind(event) else { return };
        if act == self.begins {
            self.begin(event, kind);
        } else if act == REQUEUE && self.begins == ISSUE {
            if let Some(open) = self.oldest(kind, event.sector, event.bytes) {
                let key = (kind, event.sector, event.bytes);
                self.requeued.entry(key).or_default().push_back(open);
            }
        } else if act == COMPLETE {
            self.complete(event, kind);
        }
    }

    fn begin(&mut self, event: &Event, kind: RequestKind) {
        let has = |category: u64| event.action & category != 0;
        let key = (kind, event.sector, event.bytes);
        if let Some(open) = self.requeued.get_mut(&key).and_then(VecDeque::pop_front) {
            let rest = "not counted again: the request lasts from its first issue";
            self.notes.add(1, "requeue", rest);
            self.open.entry(place(kind, event.sector)).or_default().push_back(open);
            return;
        }
        if event.bytes == 0 && kind != RequestKind::Flush {
            return self.notes.add(1, "request", "left out: it has no data");
        }
        // A queued bio may ask for a flush before its data, which has no events of its own.
        if has(category::FLUSH) && event.bytes > 0 {
            self.record(event, RequestKind::Flush);
        }
        if has(category::FUA) && kind == RequestKind::Write {
            self.notes.add(1, "write", "with FUA, which a trace does not keep");
        }
        if kind == RequestKind::WriteZeroes {
            let rest = "of more than 32 MiB, read as write-zeroes: no driver moves as much";
            self.notes.add(1, "write", rest);
        } else if kind == RequestKind::Write && event.bytes > LONG_WRITE {
            self.long = (self.long.0 + 1, self.long.1 + event.bytes);
        }
        let open = Open { place: self.records.len(), left: event.bytes };
        self.record(event, kind);
        self.open.entry(place(kind, event.sector)).or_default().push_back(open);
    }

    fn record(&mut self, event: &Event, kind: RequestKind) {
        let cpu = u16::try_from(event.cpu).unwrap_or(0);
        let lane = self.lanes_of.get(&event.pid).copied().unwrap_or(cpu);
        self.lanes = self.lanes.max(lane.saturating_add(1));
        let (sector, bytes) =
            if kind == RequestKind::Flush { (0, 0) } else { (event.sector, event.bytes) };
        let sectors = u32::try_from(bytes / 512).unwrap_or(u32::MAX);
        self.records.push(Record { lane, ..record(kind, event.time, sector, sectors) });
    }

    /// Takes out the oldest request at a place; one of the same length comes first.
    fn oldest(&mut self, kind: RequestKind, sector: u64, bytes: u64) -> Option<Open> {
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
            sector = sector.saturating_add(done / 512);
            // A failed request ends as a whole, however little of it was done.
            if open.left > 0 && event.error == 0 {
                self.open.entry(place(kind, sector)).or_default().push_back(open);
            }
            if bytes == 0 {
                break;
            }
        }
        if !found {
            let rest = "left out: its beginning is not in the trace";
            self.notes.add(1, "completion", rest);
        }
    }

    fn finish(mut self) -> Imported {
        let left =
            self.open.values().chain(self.requeued.values()).map(VecDeque::len).sum::<usize>();
        let rest = "without a completion in the trace: its service time is 0";
        self.notes.add(left as u64, "request", rest);
        let (count, bytes) = self.long;
        let rest = format!(
            "of more than 4 MiB ({bytes} bytes in all), perhaps write-zeroes, which blktrace does \
             not tell apart: a replay writes data"
        );
        self.notes.add(count, "write", rest);
        let header = Header { lanes: self.lanes, name: "blktrace".into(), ..Header::default() };
        Imported { trace: Trace::from_records(header, self.records), notes: self.notes.told() }
    }
}

/// The key of [`Opens`]: only its place identifies a part of a long write.
fn place(kind: RequestKind, sector: u64) -> (RequestKind, u64) {
    (if kind == RequestKind::WriteZeroes { RequestKind::Write } else { kind }, sector)
}
