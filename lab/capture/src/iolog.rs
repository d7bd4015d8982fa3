//! fio's iolog: what `fio --read_iolog` replays and `fio --write_iolog` writes.
//!
//! An iolog has one list of reads, writes, syncs and trims, with times from version 3 on (in
//! microseconds). It has no lanes, no completions, no priorities and no write-zeroes. Version 2 has
//! pauses, whose unit differs between the versions of fio that read them. So none are written: such
//! a log has the order only.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};

use vlane_trace::{Header, Record, RequestKind, SECTOR};

use super::Trace;
use super::import::{record, senseless};
use vlane_testbed::{Context, ErrorKind, Fail, Result};

/// Writes a trace as an iolog on the file `file`, in the order of submission. Version 2 has no
/// times (fio 1.17 and later), version 3 has them (fio 3.31 and later). Returns how many requests
/// have no place in it.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a file name that an iolog cannot have, [`ErrorKind::Io`].
pub fn write(trace: &Trace, version: u8, file: &str, to: &mut impl Write) -> Result<u64> {
    if file.is_empty() || file.len() > 255 || file.chars().any(char::is_whitespace) {
        return ErrorKind::Invalid.fail(format!(
            "{file:?}: fio's iolog takes no file name with spaces, or of more than 255 bytes"
        ));
    }
    let (begin, span) = trace.span();
    let stamp = |ns: u64| if version < 3 { String::new() } else { format!("{} ", ns / 1000) };
    let mut left_out = 0;
    let mut body = || -> std::io::Result<()> {
        writeln!(to, "fio version {version} iolog")?;
        let at = stamp(0);
        writeln!(to, "{at}{file} add\n{at}{file} open")?;
        for place in trace.by_submission() {
            let record = &trace.requests[place].record;
            let action = match record.kind {
                RequestKind::Read if record.sectors > 0 => "read",
                RequestKind::Write if record.sectors > 0 => "write",
                RequestKind::Discard if record.sectors > 0 => "trim",
                RequestKind::Flush => "sync",
                _ => {
                    left_out += 1;
                    continue;
                }
            };
            let (at, offset) = (stamp(record.submit - begin), u128::from(record.sector) * 512);
            writeln!(to, "{at}{file} {action} {offset} {}", record.bytes())?;
        }
        writeln!(to, "{}{file} close", stamp(span))
    };
    body().context(ErrorKind::Io, || "the iolog cannot be written")?;
    Ok(left_out)
}

/// Reads an iolog of version 2 or 3, of one file: the trace has one lane, requests that take no
/// time, and no device size.
///
/// # Errors
/// [`ErrorKind::Format`] with the line that makes no sense; [`ErrorKind::Io`].
pub fn read(from: impl BufRead) -> Result<Trace> {
    let (mut records, mut files) = (Vec::new(), BTreeSet::new());
    let (mut version, mut pause) = (0, 0);
    for (number, line) in (1_u64..).zip(from.lines()) {
        let line = line.context(ErrorKind::Io, || format!("line {number} cannot be read"))?;
        if number == 1 {
            version = match line.trim() {
                "fio version 2 iolog" => 2,
                "fio version 3 iolog" => 3,
                _ => return Err(senseless(1, "not an iolog of version 2 or 3", &line)),
            };
            continue;
        }
        let request = parse(&line, version, &mut pause);
        if let Some((file, record)) = request.map_err(|why| senseless(number, why, &line))? {
            files.insert(file.to_owned());
            records.push(record);
        }
    }
    if files.len() > 1 {
        let names: Vec<_> = files.into_iter().collect();
        let context = format!("it is of several files ({}), and a volume is one", names.join(", "));
        return ErrorKind::Format.fail(context);
    }
    let name = files.pop_first().unwrap_or_default();
    Ok(Trace::from_records(Header { lanes: 1, name, ..Header::default() }, records))
}

/// A line's file and request, if it has one; `pause` is the sum of the pauses of version 2, in us.
fn parse<'a>(
    line: &'a str,
    version: u8,
    pause: &mut u64,
) -> std::result::Result<Option<(&'a str, Record)>, &'static str> {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    if words.is_empty() {
        return Ok(None);
    }
    let mut at = *pause;
    if version == 3 {
        at = words.remove(0).parse().map_err(|_| "no time at its beginning")?;
    }
    let (file, action, offset, length) = match words[..] {
        [_, "add" | "open" | "close"] => return Ok(None),
        [file, action, offset, length] => (file, action, offset.parse(), length.parse()),
        _ => return Err("neither a file's nor a request's line"),
    };
    let (Ok::<u64, _>(mut offset), Ok::<u64, _>(mut length)) = (offset, length) else {
        return Err("no offset and length");
    };
    let kind = match action {
        "read" => RequestKind::Read,
        "write" => RequestKind::Write,
        "trim" => RequestKind::Discard,
        "sync" | "datasync" => RequestKind::Flush,
        "wait" if version == 2 => {
            *pause = pause.saturating_add(offset);
            return Ok(None);
        }
        _ => return Err("an action that is not known"),
    };
    if kind == RequestKind::Flush {
        (offset, length) = (0, 0);
    }
    if offset % SECTOR != 0 || length % SECTOR != 0 {
        return Err("not in whole sectors of 512 bytes");
    }
    let sectors = u32::try_from(length / SECTOR).map_err(|_| "too long for one request")?;
    Ok(Some((file, record(kind, at.saturating_mul(1000), offset / SECTOR, sectors))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LOG: &str = "fio version 3 iolog\n22 /d add\n136 /d open\n140 /d write 4096 8192\n300 \
                       /d sync 7884800 0\n400 /d read 512 512\n500 /d trim 0 65536\n900 /d close\n";

    /// Data that an iolog can hold survive the way through a trace.
    #[test]
    fn iolog_survives_reading_and_writing() {
        let trace = read(LOG.as_bytes()).unwrap();
        assert_eq!(trace.requests.len(), 4);
        let mut out = Vec::new();
        assert_eq!(write(&trace, 3, "/d", &mut out).unwrap(), 0);
        let lines: Vec<String> =
            String::from_utf8(out).unwrap().lines().map(str::to_owned).collect();
        let wanted = [
            "0 /d write 4096 8192",
            "160 /d sync 0 0",
            "260 /d read 512 512",
            "360 /d trim 0 65536",
        ];
        assert_eq!(lines[3..7], wanted);
        let again = read((lines.join("\n") + "\n").as_bytes()).unwrap();
        let what = |t: &Trace| {
            t.requests.iter().map(|r| (r.record.kind, r.record.sector)).collect::<Vec<_>>()
        };
        assert_eq!(what(&again), what(&trace));
    }

    #[test]
    fn senseless_line_is_named() {
        for (line, says) in [
            ("1 /d fly 0 512", "not known"),
            ("x /d read 0 512", "no time"),
            ("1 /d read 0 100", "whole sectors"),
            ("1 /d read", "neither"),
        ] {
            let error =
                read(format!("fio version 3 iolog\n{line}\n").as_bytes()).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(says), "{error}");
        }
        assert!(read("fio version 1 iolog\n".as_bytes()).is_err());
        let two = "fio version 2 iolog\n/a read 0 512\n/b read 0 512\n";
        assert!(read(two.as_bytes()).unwrap_err().to_string().contains("several files"));
    }
}
