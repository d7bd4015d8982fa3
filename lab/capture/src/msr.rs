//! The traces of MSR Cambridge (SNIA IOTTA, trace set 388): lines of seven fields, without a
//! header.
//!
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`: the timestamp is Windows' file
//! time of the issue (units of 100 ns since 1601). Offset and size are bytes, and the response time
//! is in units of 100 ns. The type is `Read` or `Write`: there are no flushes.

use std::collections::BTreeMap;
use std::io::BufRead;

use vlane_trace::{Header, Priority, Record, RequestKind, Status};

use super::{Imported, Trace, choose};
use vlane_testbed::error::{Context, Error, ErrorKind, Result};

/// Units of 100 ns between 1601 and 1970.
const EPOCH: u64 = 116_444_736_000_000_000;
/// Nanoseconds of a unit of time.
const UNIT: u64 = 100;
const SECTOR: u64 = 512;

/// A line's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line<'a> {
    time: u64,
    host: &'a str,
    disk: &'a str,
    kind: RequestKind,
    offset: u64,
    size: u64,
    response: u64,
}

/// True for a line of these traces.
pub fn is_line(line: &str) -> bool {
    parse(line).is_ok()
}

fn parse(line: &str) -> std::result::Result<Line<'_>, &'static str> {
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
    if size > u64::from(u32::MAX) || offset.checked_add(size).is_none() {
        return Err("too long for one request");
    }
    Ok(Line { time, host, disk, kind, offset, size, response })
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
    let mut records = Vec::new();
    let (mut widened, mut empty, mut damage) = (0_u64, 0_u64, None);
    let mut text = String::new();
    for number in 1_u64.. {
        text.clear();
        let got = from
            .read_line(&mut text)
            .context(ErrorKind::Io, || format!("line {number} cannot be read"))?;
        if got == 0 {
            break;
        }
        if text.trim().is_empty() {
            continue;
        }
        let line = match parse(&text) {
            Ok(line) => line,
            Err(why) if !text.ends_with('\n') && number > 1 => {
                damage = Some(format!("line {number} is cut off: {why}"));
                break;
            }
            Err(why) => {
                let context = format!("line {number}: {why}: {:?}", text.trim_end());
                return Err(Error::new(ErrorKind::Format, context));
            }
        };
        let disk = format!("{}.{}", line.host, line.disk);
        let is_wanted = device.is_none_or(|wanted| wanted == disk);
        *disks.entry(disk).or_default() += 1;
        if !is_wanted {
            continue;
        }
        if line.size == 0 {
            empty += 1;
            continue;
        }
        let record = record(&line);
        widened += u64::from(u64::from(record.sectors) * SECTOR != line.size);
        records.push(record);
    }
    let name = choose(disks.into_iter(), device, "request")?.unwrap_or_default();
    let begin = records.iter().map(|record| record.submit).min().unwrap_or(0);
    for record in &mut records {
        record.submit = (record.submit - begin).saturating_mul(UNIT);
    }
    let started = (begin.max(EPOCH) - EPOCH).saturating_mul(UNIT);
    let mut trace =
        Trace::from_records(Header { started, lanes: 1, name, ..Header::default() }, records);
    trace.damage = damage;
    let notes =
        [(widened, "widened to whole sectors of 512 bytes"), (empty, "left out: without data")];
    let note = |(count, rest): (u64, &str)| {
        (count > 0).then(|| format!("{count} request{} {rest}", if count == 1 { "" } else { "s" }))
    };
    Ok(Imported { trace, notes: notes.into_iter().filter_map(note).collect() })
}

/// A request, with the line's time as its submission.
fn record(line: &Line<'_>) -> Record {
    let first = line.offset / SECTOR;
    let end = (line.offset + line.size).div_ceil(SECTOR);
    Record {
        kind: line.kind,
        status: Status::Ok,
        lane: 0,
        priority: Priority(0),
        submit: line.time,
        service: line.response.saturating_mul(UNIT),
        sector: first,
        // At most 2^32 bytes.
        sectors: u32::try_from(end - first).unwrap_or(u32::MAX),
        seq: 0,
        after: 0,
        more: false,
        unmap: false,
        hash: 0,
    }
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
