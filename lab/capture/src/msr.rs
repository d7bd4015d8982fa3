//! The traces of MSR Cambridge (SNIA IOTTA, trace set 388): lines of seven fields, without a
//! header.
//!
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`: the timestamp is Windows' file
//! time of the issue (units of 100 ns since 1601). Offset and size are bytes, and the response time
//! is in units of 100 ns. The type is `Read` or `Write`: there are no flushes.

use std::collections::BTreeMap;
use std::io::BufRead;

use vlane_trace::{Header, Record, RequestKind, SECTOR};

use super::Trace;
use super::import::{Imported, Notes, choose, record, senseless};
use vlane_testbed::{Context, ErrorKind, Result};

/// Units of 100 ns between 1601 and 1970.
const EPOCH: u64 = 116_444_736_000_000_000;
/// Nanoseconds of a unit of time.
const UNIT: u64 = 100;

/// True for a line of these traces.
pub fn is_line(line: &str) -> bool {
    parse(line).is_ok()
}

/// A line's disk, its bytes, and its request with the line's time as its submission.
fn parse(line: &str) -> std::result::Result<(String, u64, Record), &'static str> {
    let fields: Vec<&str> = line.trim_end().split(',').collect();
    let [time, host, disk, kind, offset, size, response] = fields[..] else {
        return Err("not seven fields");
    };
    let number = |text: &str| text.parse::<u64>();
    let (Ok(time), Ok(offset), Ok(size), Ok(response)) =
        (number(time), number(offset), number(size), number(response))
    else {
        return Err("time, offset, size or response time is no number");
    };
    let kind = match kind {
        "Read" => RequestKind::Read,
        "Write" => RequestKind::Write,
        _ => return Err("neither Read nor Write"),
    };
    if time < EPOCH {
        return Err("a time before 1970");
    }
    if host.is_empty() || disk.parse::<u32>().is_err() {
        return Err("no host and disk number");
    }
    let end = offset.checked_add(size).filter(|_| size <= u64::from(u32::MAX));
    let end = end.ok_or("too long for one request")?.div_ceil(SECTOR);
    let first = offset / SECTOR;
    // At most 2^32 bytes.
    let sectors = u32::try_from(end - first).unwrap_or(u32::MAX);
    let service = response.saturating_mul(UNIT);
    let record = Record { service, ..record(kind, time, first, sectors) };
    Ok((format!("{host}.{disk}"), size, record))
}

/// Reads a trace of one disk, as one lane. A file of several disks is refused unless `device`, as
/// `hm.0` (host and disk number), names the one to read.
///
/// Requests that do not begin and end with a sector of 512 bytes are widened, and counted.
/// A last line that was cut off gives what is before it, and [`Trace::damage`].
///
/// # Errors
/// [`ErrorKind::Format`] with the line that makes no sense; [`ErrorKind::Invalid`] with the disks
/// that are in it; [`ErrorKind::Io`].
pub fn read(mut from: impl BufRead, device: Option<&str>) -> Result<Imported> {
    let mut disks: BTreeMap<String, u64> = BTreeMap::new();
    let (mut records, mut notes, mut damage) = (Vec::new(), Notes::default(), None);
    let mut text = String::new();
    for number in 1_u64.. {
        text.clear();
        let got = from.read_line(&mut text);
        if got.context(ErrorKind::Io, || format!("line {number} cannot be read"))? == 0 {
            break;
        }
        if text.trim().is_empty() {
            continue;
        }
        let (disk, size, record) = match parse(&text) {
            Ok(line) => line,
            Err(why) if !text.ends_with('\n') && number > 1 => {
                damage = Some(format!("line {number} is cut off: {why}"));
                break;
            }
            Err(why) => return Err(senseless(number, why, &text)),
        };
        let is_wanted = device.is_none_or(|wanted| wanted == disk);
        *disks.entry(disk).or_default() += 1;
        if is_wanted && size == 0 {
            notes.add(1, "request", "left out: without data");
        } else if is_wanted {
            let widened = u64::from(record.bytes() != size);
            notes.add(widened, "request", "widened to whole sectors of 512 bytes");
            records.push(record);
        }
    }
    let name = choose(disks.into_iter(), device, "request")?.unwrap_or_default();
    let begin = records.iter().map(|record| record.submit).min().unwrap_or(EPOCH);
    for record in &mut records {
        record.submit = (record.submit - begin).saturating_mul(UNIT);
    }
    let started = (begin - EPOCH).saturating_mul(UNIT);
    let header = Header { started, lanes: 1, name, ..Header::default() };
    let trace = Trace { damage, ..Trace::from_records(header, records) };
    Ok(Imported { trace, notes: notes.told() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const TRACE: &str = "128166372003061629,hm,0,Read,383496192,32768,15132\n\
                         128166372016382155,hm,0,Write,2822144,4096,1249\n\
                         128166372026382245,hm,1,Read,383496192,32768,5613\n";

    #[test]
    fn one_disk_is_read_with_its_times() {
        let read = read(TRACE.as_bytes(), Some("hm.0")).unwrap();
        let [first, second] = &read.trace.requests[..] else { panic!("{:?}", read.trace.requests) };
        let of = |r: &crate::Request| {
            (r.record.kind, r.record.submit, r.record.service, r.record.sector, r.record.sectors)
        };
        assert_eq!(of(first), (RequestKind::Read, 0, 1_513_200, 749_016, 64));
        assert_eq!(of(second), (RequestKind::Write, 1_332_052_600, 124_900, 5512, 8));
        // 22 February 2007, as the publication says.
        assert_eq!(read.trace.header.started / 1_000_000_000 / 86_400, 13_566);
        assert!(read.notes.is_empty(), "{:?}", read.notes);
    }

    #[test]
    fn several_disks_are_refused_by_name() {
        let error = read(TRACE.as_bytes(), None).unwrap_err().to_string();
        assert!(error.contains("hm.0 (2 requests), hm.1 (1 request)"), "{error}");
        let error = read(TRACE.as_bytes(), Some("hm.7")).unwrap_err().to_string();
        assert!(error.contains("hm.7 is not in it"), "{error}");
    }

    #[test]
    fn odd_offsets_are_widened_and_counted() {
        let line = "128166372003061629,hm,0,Write,1000,100,5\n";
        let read = read(line.as_bytes(), None).unwrap();
        assert_eq!(
            (read.trace.requests[0].record.sector, read.trace.requests[0].record.sectors),
            (1, 2)
        );
        assert!(read.notes[0].contains("1 request widened"), "{:?}", read.notes);
    }

    #[test]
    fn cut_last_line_keeps_the_others() {
        let line = "128166372003061629,hm,0,Write,1024,512,5\n";
        let read = read(format!("{line}12816637200").as_bytes(), None).unwrap();
        assert_eq!(read.trace.requests.len(), 1);
        assert!(read.trace.damage.unwrap().contains("line 2 is cut off"));
    }

    #[test]
    fn senseless_line_is_named() {
        let good = "128166372003061629,hm,0,Write,1024,512,5\n";
        for bad in ["1,2,3\n", "1,hm,0,Write,0,512,5\n", "128166372003061629,hm,0,Fly,0,512,5\n"] {
            let error =
                read(format!("{good}{bad}{good}").as_bytes(), None).unwrap_err().to_string();
            assert!(error.starts_with("line 2: "), "{error}");
        }
    }
}
