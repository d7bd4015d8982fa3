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

use super::{Imported, Trace, choose};
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::sniff::{self, BLKTRACE, ByteOrder};

mod pair;

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
    pub(super) const PASSTHROUGH: u32 = 1 << 25;
    pub(super) const NOTIFY: u32 = 1 << 26;
    pub(super) const DISCARD: u32 = 1 << 29;
    pub(super) const FUA: u32 = 1 << 31;
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

#[derive(Debug)]
struct Event {
    time: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    pid: u32,
    device: u32,
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
            RequestKind::Read => category::READ,
            RequestKind::Write => category::WRITE,
            RequestKind::Flush => category::WRITE | category::FLUSH,
            RequestKind::Discard => category::WRITE | category::DISCARD,
            RequestKind::WriteZeroes | RequestKind::GetId | RequestKind::Refused => 0,
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
            let (pid, device, cpu) = (lane + 1, DEVICE, 0);
            events.push(Event {
                time,
                sector,
                bytes,
                action: action | what,
                pid,
                device,
                cpu,
                error,
            });
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
            let (action, device) = (category::NOTIFY, DEVICE);
            let event = Event { time: 0, sector: 0, bytes: 0, action, pid, device, cpu, error: 0 };
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
    put(36, &event.device.to_le_bytes());
    put(40, &event.cpu.to_le_bytes());
    put(44, &event.error.to_le_bytes());
    put(46, &payload.to_le_bytes());
    bytes
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
        match all.next(&mut from, at)? {
            Next::Event(bytes) => at += bytes,
            Next::End => break None,
            Next::Damage(damage) if at == 0 => return Err(Error::new(ErrorKind::Format, damage)),
            Next::Damage(damage) => break Some(damage),
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
    let mut read = pair::pair(&events, &all.lanes);
    read.trace.damage = damage;
    Ok(read)
}

/// A device's number as `lsblk` prints it.
fn name(device: u32) -> String {
    format!("{}:{}", device >> 20, device & 0xf_ffff)
}

/// Events as they are read, and the names of lanes.
#[derive(Debug, Default)]
struct Events {
    events: Vec<Event>,
    /// Process and lane.
    lanes: HashMap<u32, u16>,
    /// Device and number of events.
    devices: BTreeMap<u32, u64>,
}

/// The outcome of reading one event.
enum Next {
    /// Its bytes.
    Event(u64),
    End,
    /// The place and the fault.
    Damage(String),
}

impl Events {
    /// Reads the event at byte `at`. The kernel writes numbers in its own order of bytes.
    fn next(&mut self, from: &mut impl Read, at: u64) -> Result<Next> {
        let cut = || Ok(Next::Damage(format!("byte {at}: it ends in the middle of an event")));
        let mut bytes = [0; EVENT];
        match fill(from, &mut bytes, at)? {
            0 => return Ok(Next::End),
            EVENT => {}
            _ => return cut(),
        }
        let is_big = match sniff::blktrace(&bytes) {
            Some(order) => order == ByteOrder::Big,
            None => {
                let damage = format!("byte {at}: not an event of blktrace's version 7");
                return Ok(Next::Damage(damage));
            }
        };
        let int = |at: usize| {
            let four = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            if is_big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
        };
        let short = |at: usize| {
            let two = [bytes[at], bytes[at + 1]];
            if is_big { u16::from_be_bytes(two) } else { u16::from_le_bytes(two) }
        };
        let long = |at: usize| {
            let (first, second) = (u64::from(int(at)), u64::from(int(at + 4)));
            if is_big { first << 32 | second } else { second << 32 | first }
        };
        let payload = usize::from(short(46));
        if payload > MAX_PAYLOAD {
            return Ok(Next::Damage(format!(
                "byte {at}: an event with a payload of {payload} bytes"
            )));
        }
        let mut data = vec![0; payload];
        if fill(from, &mut data, at)? < payload {
            return cut();
        }
        let (action, pid) = (int(28), int(32));
        if action == category::NOTIFY {
            let name: Vec<u8> = data.into_iter().take_while(|byte| *byte != 0).collect();
            let lane = std::str::from_utf8(&name)
                .ok()
                .and_then(|name| name.strip_prefix("lane-")?.parse().ok());
            if let Some(lane) = lane {
                self.lanes.insert(pid, lane);
            }
        } else if action & category::NOTIFY == 0 {
            let (time, sector, bytes) = (long(8), long(16), int(24));
            let (device, cpu, error) = (int(36), int(40), short(44));
            *self.devices.entry(device).or_default() += 1;
            self.events.push(Event { time, sector, bytes, action, pid, device, cpu, error });
        }
        Ok(Next::Event((EVENT + payload) as u64))
    }
}

/// Fills `bytes` as far as the file goes; how many it has.
fn fill(from: &mut impl Read, bytes: &mut [u8], at: u64) -> Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match from
            .read(&mut bytes[got..])
            .context(ErrorKind::Io, || format!("byte {at}: cannot be read"))?
        {
            0 => break,
            n => got += n,
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests;
