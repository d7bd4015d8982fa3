//! blktrace's binary: what `blktrace` records of a block device, and `blkparse` prints.
//!
//! Written: three events for each request: queued (Q) and issued (D) at its submission, and completed (C). The lane is the process, by the name
//! `lane-N`; the CPU is always 0, since blkparse wants a file for each. Read: requests as they were issued to the device (D) with their
//! completions, or as they were queued (Q) in a trace without D events; the lane is the process's where it has such a name, and the
//! CPU elsewhere. blktrace has no priorities and no write-zeroes.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};

use vlane_trace::{Header, Kind, Priority, Record, Status};

use super::Trace;
use vlane_host::error::{Context, Error, ErrorKind, Result};
use vlane_host::sniff::BLKTRACE;

/// Bytes of `struct blk_io_trace`.
const EVENT: usize = 48;
/// Categories (`enum blktrace_cat`), shifted by 16 in an action.
mod category {
    pub(super) const READ: u32 = 1 << 16;
    pub(super) const WRITE: u32 = 1 << 17;
    pub(super) const FLUSH: u32 = 1 << 18;
    pub(super) const QUEUE: u32 = 1 << 20;
    pub(super) const ISSUE: u32 = 1 << 22;
    pub(super) const COMPLETE: u32 = 1 << 23;
    pub(super) const NOTIFY: u32 = 1 << 26;
    pub(super) const DISCARD: u32 = 1 << 29;
}
/// Actions (`enum blktrace_act`).
const QUEUE: u32 = 1;
const ISSUE: u32 = 7;
const COMPLETE: u32 = 8;
/// A bit of the action for events with a cgroup.
const CGROUP: u32 = 1 << 8;
/// Device 253:0, as device-mapper's; blkparse wants one.
const DEVICE: u32 = 253 << 20;
/// The longest payload of an event that is believed.
const MAX_PAYLOAD: usize = 1 << 15;

struct Event {
    time: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    pid: u32,
    cpu: u32,
    error: u16,
}

/// Writes a trace in blktrace's format. Returns how many requests have no place in it.
///
/// # Errors
/// [`ErrorKind::Io`].
pub fn write(trace: &Trace, to: &mut impl Write) -> Result<u64> {
    let (begin, _) = trace.span();
    let mut left_out = 0;
    let mut events = Vec::with_capacity(3 * trace.requests.len());
    for place in trace.by_submission() {
        let record = &trace.requests[place].record;
        let what = match record.kind {
            Kind::Read => category::READ,
            Kind::Write => category::WRITE,
            Kind::Flush => category::WRITE | category::FLUSH,
            Kind::Discard => category::WRITE | category::DISCARD,
            Kind::WriteZeroes | Kind::GetId | Kind::Refused => 0,
        };
        let (Ok(bytes), 1..) = (u32::try_from(record.bytes()), what) else {
            left_out += 1;
            continue;
        };
        let error = if record.status == Status::Ok { 0 } else { 5 };
        let submit = record.submit - begin;
        for (time, action, error) in [
            (submit, QUEUE | category::QUEUE, 0),
            (submit, ISSUE | category::ISSUE, 0),
            (submit + record.service, COMPLETE | category::COMPLETE, error),
        ] {
            let lane = u32::from(record.lane);
            let sector = record.sector;
            events.push(Event { time, sector, bytes, action: action | what, pid: lane + 1, cpu: 0, error });
        }
    }
    // Completions take their places; those of one moment stay behind their submissions.
    events.sort_by_key(|event| event.time);
    let mut body = || -> std::io::Result<()> {
        let mut lanes: Vec<u16> = trace.requests.iter().map(|r| r.record.lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        for lane in lanes {
            // BLK_TN_PROCESS: the name of a process, 16 bytes.
            let mut name = [0_u8; 16];
            let text = format!("lane-{lane}");
            name[..text.len()].copy_from_slice(text.as_bytes());
            let (pid, cpu) = (u32::from(lane) + 1, 0);
            let event = Event { time: 0, sector: 0, bytes: 0, action: category::NOTIFY, pid, cpu, error: 0 };
            to.write_all(&encode(&event, 0, 16))?;
            to.write_all(&name)?;
        }
        for (number, event) in (1_u32..).zip(&events) {
            to.write_all(&encode(event, number, 0))?;
        }
        Ok(())
    };
    body().context(ErrorKind::Io, || "the blktrace file cannot be written")?;
    Ok(left_out)
}

fn encode(event: &Event, number: u32, payload: u16) -> [u8; EVENT] {
    let mut bytes = [0; EVENT];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &BLKTRACE.to_le_bytes());
    put(4, &number.to_le_bytes());
    put(8, &event.time.to_le_bytes());
    put(16, &event.sector.to_le_bytes());
    put(24, &event.bytes.to_le_bytes());
    put(28, &event.action.to_le_bytes());
    put(32, &event.pid.to_le_bytes());
    put(36, &DEVICE.to_le_bytes());
    put(40, &event.cpu.to_le_bytes());
    put(44, &event.error.to_le_bytes());
    put(46, &payload.to_le_bytes());
    bytes
}

/// Reads a file of blktrace.
///
/// # Errors
/// [`ErrorKind::Format`] with the place where it makes no sense; [`ErrorKind::Io`].
pub fn read(mut from: impl Read) -> Result<Trace> {
    let mut events = Vec::new();
    let mut lanes = HashMap::new();
    let mut at = 0_u64;
    loop {
        let mut bytes = [0; EVENT];
        if !fill(&mut from, &mut bytes, at)? {
            break;
        }
        let int = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| u64::from(int(at)) | u64::from(int(at + 4)) << 32;
        let payload = usize::from(short(46));
        if int(0) != BLKTRACE || payload > MAX_PAYLOAD {
            let context = format!("byte {at}: not an event of blktrace (version 7, little-endian)");
            return Err(Error::new(ErrorKind::Format, context));
        }
        at += EVENT as u64;
        let mut data = vec![0; payload];
        if payload > 0 && !fill(&mut from, &mut data, at)? {
            break;
        }
        at += payload as u64;
        let action = int(28);
        if action == category::NOTIFY {
            let name: Vec<u8> = data.into_iter().take_while(|byte| *byte != 0).collect();
            let lane =
                std::str::from_utf8(&name).ok().and_then(|name| name.strip_prefix("lane-")?.parse().ok());
            if let Some(lane) = lane {
                lanes.insert(int(32), lane);
            }
        } else if action & category::NOTIFY == 0 {
            events.push(Event {
                time: long(8),
                sector: long(16),
                bytes: int(24),
                action,
                pid: int(32),
                cpu: int(40),
                error: short(44),
            });
        }
    }
    // A file for each CPU: each is in order, a concatenation of several is not.
    events.sort_by_key(|event| event.time);
    Ok(pair(&events, &lanes))
}

/// Fills `bytes`; false at the end.
fn fill(from: &mut impl Read, bytes: &mut [u8], at: u64) -> Result<bool> {
    let mut got = 0;
    while got < bytes.len() {
        match from.read(&mut bytes[got..]).context(ErrorKind::Io, || format!("byte {at}: cannot be read"))? {
            0 if got == 0 => return Ok(false),
            0 => {
                let context = format!("byte {at}: it ends in the middle of an event");
                return Err(Error::new(ErrorKind::Format, context));
            }
            n => got += n,
        }
    }
    Ok(true)
}

/// Makes requests of events: each beginning with the first completion of the same place and length after it.
fn pair(events: &[Event], names: &HashMap<u32, u16>) -> Trace {
    let act = |event: &Event| event.action & 0xffff & !CGROUP;
    let begins = if events.iter().any(|event| act(event) == ISSUE) { ISSUE } else { QUEUE };
    let mut records: Vec<Record> = Vec::new();
    let mut open: HashMap<(Kind, u64, u32), VecDeque<usize>> = HashMap::new();
    let mut lanes = 0;
    for event in events {
        let is = |category: u32| event.action & category != 0;
        let kind = match () {
            () if is(category::DISCARD) => Kind::Discard,
            () if event.bytes == 0 && is(category::FLUSH) => Kind::Flush,
            () if is(category::WRITE) => Kind::Write,
            () if event.bytes > 0 => Kind::Read,
            () => continue,
        };
        let key = (kind, event.sector, event.bytes);
        if act(event) == begins {
            let cpu = u16::try_from(event.cpu).unwrap_or(0);
            let lane = names.get(&event.pid).copied().unwrap_or(cpu);
            lanes = lanes.max(lane.saturating_add(1));
            open.entry(key).or_default().push_back(records.len());
            records.push(Record {
                kind,
                status: Status::Ok,
                lane,
                priority: Priority(0),
                submit: event.time,
                service: 0,
                sector: if kind == Kind::Flush { 0 } else { event.sector },
                sectors: event.bytes / 512,
                seq: 0,
                after: 0,
                more: false,
                unmap: false,
                hash: 0,
            });
        } else if act(event) == COMPLETE
            && let Some(place) = open.get_mut(&key).and_then(VecDeque::pop_front)
        {
            records[place].service = event.time.saturating_sub(records[place].submit);
            if event.error != 0 {
                records[place].status = Status::IoErr;
            }
        }
    }
    Trace::from_records(Header { lanes, name: "blktrace".into(), ..Header::default() }, records)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
    use super::*;

    fn record(kind: Kind, lane: u16, submit: u64, sector: u64) -> Record {
        let sectors = if kind == Kind::Flush { 0 } else { 8 };
        let (status, priority) = (Status::Ok, Priority(0));
        let (seq, after, more, unmap, hash) = (0, 0, false, false, 0);
        Record {
            kind,
            status,
            lane,
            priority,
            submit,
            service: 700,
            sector,
            sectors,
            seq,
            after,
            more,
            unmap,
            hash,
        }
    }

    #[test]
    fn what_blktrace_can_say_survives_the_way_through_its_format() {
        let kinds = [Kind::Write, Kind::Read, Kind::Flush, Kind::Discard, Kind::Read];
        let records: Vec<_> = (0_u64..)
            .zip(kinds)
            .map(|(i, kind)| {
                record(kind, (i % 2) as u16, i * 300, if kind == Kind::Flush { 0 } else { 64 * i })
            })
            .collect();
        let trace =
            Trace::from_records(Header { lanes: 2, name: "blktrace".into(), ..Header::default() }, records);
        let mut bytes = Vec::new();
        assert_eq!(write(&trace, &mut bytes).unwrap(), 0);
        assert!(vlane_host::sniff::is_blktrace(&bytes));
        assert_eq!(read(&bytes[..]).unwrap().requests, trace.requests);
        assert!(read(&bytes[..bytes.len() - 1]).unwrap_err().to_string().contains("middle of an event"));
    }
}
