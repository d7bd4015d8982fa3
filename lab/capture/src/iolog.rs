//! fio's iolog: what `fio --read_iolog` replays and `fio --write_iolog` writes.
//!
//! An iolog has one list of reads, writes, syncs and trims, with times from version 3 on (in
//! microseconds). It has no lanes, no completions, no priorities and no write-zeroes. Version 2 has
//! pauses, whose unit differs between the versions of fio that read them. So none are written: such
//! a log has the order only.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};

use vlane_trace::{Header, Priority, Record, RequestKind, Status};

use super::Trace;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};

/// Which format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Without times; fio 1.17 and later.
    Two,
    /// With times; fio 3.31 and later.
    Three,
}

/// Writes a trace as an iolog on the file `file`, in the order of submission. Returns how many
/// requests have no place in it.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a file name that an iolog cannot have, [`ErrorKind::Io`].
pub fn write(trace: &Trace, version: Version, file: &str, to: &mut impl Write) -> Result<u64> {
    if file.is_empty() || file.len() > 255 || file.chars().any(char::is_whitespace) {
        let context = format!(
            "{file:?}: fio's iolog takes no file name with spaces, or of more than 255 bytes"
        );
        return Err(Error::new(ErrorKind::Invalid, context));
    }
    let (begin, span) = trace.span();
    let stamp = |ns: u64| match version {
        Version::Two => String::new(),
        Version::Three => format!("{} ", ns / 1000),
    };
    let number = if version == Version::Two { 2 } else { 3 };
    let mut left_out = 0;
    let mut body = || -> std::io::Result<()> {
        writeln!(to, "fio version {number} iolog")?;
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
            let at = stamp(record.submit - begin);
            writeln!(
                to,
                "{at}{file} {action} {} {}",
                u128::from(record.sector) * 512,
                record.bytes()
            )?;
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
    let mut records = Vec::new();
    let mut files = BTreeSet::new();
    let (mut version, mut pause) = (0, 0_u64);
    for (number, line) in (1_u64..).zip(from.lines()) {
        let line = line.context(ErrorKind::Io, || format!("line {number} cannot be read"))?;
        let bad = |why: &str| {
            Err(Error::new(ErrorKind::Format, format!("line {number}: {why}: {line:?}")))
        };
        if number == 1 {
            version = match line.trim() {
                "fio version 2 iolog" => 2,
                "fio version 3 iolog" => 3,
                _ => return bad("not an iolog of version 2 or 3"),
            };
            continue;
        }
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let mut at = pause;
        if version == 3 {
            match words.remove(0).parse() {
                Ok(time) => at = time,
                Err(_) => return bad("no time at its beginning"),
            }
        }
        let (file, action, numbers) = match words[..] {
            [_, "add" | "open" | "close"] => continue,
            [file, action, offset, length] => {
                match (offset.parse::<u64>(), length.parse::<u64>()) {
                    (Ok(offset), Ok(length)) => (file, action, (offset, length)),
                    _ => return bad("no offset and length"),
                }
            }
            _ => return bad("neither a file's nor a request's line"),
        };
        let kind = match action {
            "read" => RequestKind::Read,
            "write" => RequestKind::Write,
            "trim" => RequestKind::Discard,
            "sync" | "datasync" => RequestKind::Flush,
            "wait" if version == 2 => {
                pause = pause.saturating_add(numbers.0);
                continue;
            }
            _ => return bad("an action that is not known"),
        };
        files.insert(file.to_owned());
        match request(kind, at, numbers) {
            Ok(record) => records.push(record),
            Err(why) => return bad(why),
        }
    }
    if files.len() > 1 {
        let names: Vec<_> = files.into_iter().collect();
        let context = format!("it is of several files ({}), and a volume is one", names.join(", "));
        return Err(Error::new(ErrorKind::Format, context));
    }
    let name = files.pop_first().unwrap_or_default();
    Ok(Trace::from_records(Header { lanes: 1, name, ..Header::default() }, records))
}

/// The record of a request at a time in us, with its offset and length, or why it has none.
fn request(
    kind: RequestKind,
    at: u64,
    numbers: (u64, u64),
) -> std::result::Result<Record, &'static str> {
    let (offset, length) = if kind == RequestKind::Flush { (0, 0) } else { numbers };
    let Ok(sectors) = u32::try_from(length / 512) else {
        return Err("too long for one request");
    };
    if offset % 512 != 0 || length % 512 != 0 {
        return Err("not in whole sectors of 512 bytes");
    }
    Ok(Record {
        kind,
        status: Status::Ok,
        lane: 0,
        priority: Priority(0),
        submit: at.saturating_mul(1000),
        service: 0,
        sector: offset / 512,
        sectors,
        seq: 0,
        after: 0,
        more: false,
        unmap: false,
        hash: 0,
    })
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
        assert_eq!(write(&trace, Version::Three, "/d", &mut out).unwrap(), 0);
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
