//! blktrace's binary: what `blktrace` records of a block device, and `blkparse` prints.
//!
//! Written: three events for each request: queued (Q) and issued (D) at its submission, and
//! completed (C). The lane is the process, by the name `lane-N`. The CPU is always 0, since
//! blkparse wants a file for each. Read: requests as they were issued to the device (D) with their
//! completions, or as they were queued (Q) in a trace without D events. The lane is the process's
//! where it has such a name, and the CPU elsewhere. blktrace has no priorities, and a write-zeroes
//! looks like a write. All omissions and doubts are counted in [`Imported::notes`].

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};

use vlane_trace::{RequestKind, Status};

use super::Trace;
use super::import::{Imported, choose};
use vlane_testbed::sniff::{BLKTRACE, ByteOrder};
use vlane_testbed::{Context, Error, ErrorKind, Result, sniff};

mod pair;

/// Bytes of `struct blk_io_trace`.
const EVENT: usize = 48;
/// The bytes of its fields behind the magic number: number, time, sector, bytes, action, process,
/// device, CPU, error, bytes of the payload.
const FIELDS: [usize; 10] = [4, 8, 8, 4, 4, 4, 4, 4, 2, 2];
/// Categories (`enum blktrace_cat`), shifted by 16 in an action.
mod category {
    pub(super) const READ: u64 = 1 << 16;
    pub(super) const WRITE: u64 = 1 << 17;
    pub(super) const FLUSH: u64 = 1 << 18;
    pub(super) const QUEUE: u64 = 1 << 20;
    pub(super) const ISSUE: u64 = 1 << 22;
    pub(super) const COMPLETE: u64 = 1 << 23;
    pub(super) const PASSTHROUGH: u64 = 1 << 25;
    pub(super) const NOTIFY: u64 = 1 << 26;
    pub(super) const DISCARD: u64 = 1 << 29;
    pub(super) const FUA: u64 = 1 << 31;
}
/// Actions (`enum blktrace_act`).
const QUEUE: u64 = 1;
const ISSUE: u64 = 7;
const COMPLETE: u64 = 8;
/// A bit of the action for events with a cgroup.
const CGROUP: u64 = 1 << 8;
/// Device 253:0, as device-mapper's; blkparse wants one.
const DEVICE: u64 = 253 << 20;
/// The longest payload of an event that is believed.
const MAX_PAYLOAD: u64 = 1 << 15;

#[derive(Debug, Default)]
struct Event {
    time: u64,
    sector: u64,
    bytes: u64,
    action: u64,
    pid: u64,
    device: u64,
    cpu: u64,
    error: u64,
}

/// An event of a lane's process.
fn of_lane(lane: u16, action: u64) -> Event {
    Event { action, pid: u64::from(lane) + 1, device: DEVICE, ..Event::default() }
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
            RequestKind::Read => category::READ,
            RequestKind::Write => category::WRITE,
            RequestKind::Flush => category::WRITE | category::FLUSH,
            RequestKind::Discard => category::WRITE | category::DISCARD,
            RequestKind::WriteZeroes | RequestKind::GetId | RequestKind::Refused => 0,
        };
        if what == 0 || u32::try_from(record.bytes()).is_err() {
            left_out += 1;
            continue;
        }
        let error = if record.status == Status::Ok { 0 } else { 5 };
        let submit = record.submit - begin;
        for (time, action, error) in [
            (submit, QUEUE | category::QUEUE, 0),
            (submit, ISSUE | category::ISSUE, 0),
            (submit + record.service, COMPLETE | category::COMPLETE, error),
        ] {
            let (sector, bytes) = (record.sector, record.bytes());
            let event = Event { time, sector, bytes, error, ..of_lane(record.lane, action | what) };
            events.push(event);
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
            to.write_all(&encode(&of_lane(lane, category::NOTIFY), 0, 16))?;
            to.write_all(&name)?;
        }
        for (number, event) in (1..).zip(&events) {
            to.write_all(&encode(event, number, 0))?;
        }
        Ok(())
    };
    body().context(ErrorKind::Io, || "the blktrace file cannot be written")?;
    Ok(left_out)
}

fn encode(event: &Event, number: u64, payload: u64) -> Vec<u8> {
    let Event { time, sector, bytes, action, pid, device, cpu, error } = *event;
    let values = [number, time, sector, bytes, action, pid, device, cpu, error, payload];
    let mut encoded = BLKTRACE.to_le_bytes().to_vec();
    for (len, value) in FIELDS.into_iter().zip(values) {
        encoded.extend_from_slice(&value.to_le_bytes()[..len]);
    }
    encoded
}

/// Reads a file of blktrace, of one device.
///
/// A file of several devices (several files behind each other) is refused unless `device`, as
/// `8:16`, names the one to read. A file that is cut off gives what is before the cut, and
/// [`Trace::damage`].
///
/// # Errors
/// [`ErrorKind::Format`] with the place where it makes no sense, or the devices that are in it;
/// [`ErrorKind::Io`].
pub fn read(mut from: impl Read, device: Option<&str>) -> Result<Imported> {
    let mut all = Events::default();
    let mut at = 0_u64;
    let damage = loop {
        match all.next(&mut from, at) {
            Ok(0) => break None,
            Ok(bytes) => at += bytes,
            Err(error) if at > 0 && error.kind() == ErrorKind::Format => {
                break Some(error.to_string());
            }
            Err(error) => return Err(error),
        }
    };
    let chosen =
        choose(all.devices.iter().map(|(id, count)| (name(*id), *count)), device, "event")?;
    let mut events = all.events;
    if let Some(chosen) = chosen {
        events.retain(|event| name(event.device) == chosen);
    }
    // A file for each CPU: each is in order, a concatenation of several is not.
    events.sort_by_key(|event| event.time);
    let mut read = pair::pair(&events, all.lanes);
    read.trace.damage = damage;
    Ok(read)
}

/// A device's number as `lsblk` prints it.
fn name(device: u64) -> String {
    format!("{}:{}", device >> 20, device & 0xf_ffff)
}

/// Events as they are read, and the names of lanes.
#[derive(Debug, Default)]
struct Events {
    events: Vec<Event>,
    /// Process and lane.
    lanes: HashMap<u64, u16>,
    /// Device and number of events.
    devices: BTreeMap<u64, u64>,
}

impl Events {
    /// Reads the event at byte `at`, and returns its bytes; 0 at the end. The kernel writes numbers
    /// in its own order of bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] with the place and the fault; [`ErrorKind::Io`].
    fn next(&mut self, from: &mut impl Read, at: u64) -> Result<u64> {
        let damaged = |what: &str| Error::new(ErrorKind::Format, format!("byte {at}: {what}"));
        let mut fill = |len: u64| {
            let mut bytes = Vec::new();
            let read = from.by_ref().take(len).read_to_end(&mut bytes);
            read.context(ErrorKind::Io, || format!("byte {at}: cannot be read")).map(|_| bytes)
        };
        let event = fill(EVENT as u64)?;
        match event.len() {
            0 => return Ok(0),
            EVENT => {}
            _ => return Err(damaged("it ends in the middle of an event")),
        }
        let order = sniff::blktrace(&event);
        let order = order.ok_or_else(|| damaged("not an event of blktrace's version 7"))?;
        let mut rest = &event[4..];
        let field = |len| {
            let add = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
            let bytes;
            (bytes, rest) = rest.split_at(len);
            match order {
                ByteOrder::Big => bytes.iter().fold(0, add),
                ByteOrder::Little => bytes.iter().rev().fold(0, add),
            }
        };
        let [_, time, sector, bytes, action, pid, device, cpu, error, payload] = FIELDS.map(field);
        if payload > MAX_PAYLOAD {
            return Err(damaged(&format!("an event with a payload of {payload} bytes")));
        }
        let data = fill(payload)?;
        if (data.len() as u64) < payload {
            return Err(damaged("it ends in the middle of an event"));
        }
        if action == category::NOTIFY {
            let name = data.split(|byte| *byte == 0).next().unwrap_or_default();
            let name = std::str::from_utf8(name).ok();
            let lane = name.and_then(|name| name.strip_prefix("lane-")?.parse().ok());
            self.lanes.extend(lane.map(|lane| (pid, lane)));
        } else if action & category::NOTIFY == 0 {
            *self.devices.entry(device).or_default() += 1;
            self.events.push(Event { time, sector, bytes, action, pid, device, cpu, error });
        }
        Ok(EVENT as u64 + payload)
    }
}

#[cfg(test)]
mod tests;
