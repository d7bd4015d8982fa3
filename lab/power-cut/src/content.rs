//! Content that programs of more than one load write, and the expected logs and mails.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Bytes of a record of the log; none lies across a sector's end.
pub(super) const RECORD: usize = 64;

pub(super) fn record(worker: u32, step: u64) -> Vec<u8> {
    format!("VLOG {worker:02} {step:08} {}\n", ".".repeat(46)).into_bytes()
}

pub(super) fn parse_record(bytes: &[u8]) -> Option<(u32, u64)> {
    let words = std::str::from_utf8(bytes.strip_prefix(b"VLOG ")?).ok()?;
    let mut words = words.split(' ');
    let (worker, step) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (record(worker, step) == bytes).then_some((worker, step))
}

pub(super) fn text(words: &str, size: usize) -> Vec<u8> {
    words.bytes().cycle().take(size).collect()
}

fn mail(worker: u32, step: u64) -> Vec<u8> {
    let size = 1 + (step * 7919 + u64::from(worker) * 104_729) % 12_000;
    text(&format!("mail {worker:02} {step:08} "), usize::try_from(size).unwrap_or(0))
}

pub(super) fn check_log(directory: &Path, worker: u32, durable: u64, wrong: &mut Vec<String>) {
    let log = std::fs::read(directory.join("log")).unwrap_or_default();
    let mut records = log.chunks_exact(RECORD);
    for step in 1..=durable {
        if records.next() != Some(&record(worker, step)[..]) {
            return wrong.push(format!("record {step} of the log is not there"));
        }
    }
    let mut step = durable;
    for found in records {
        step += 1;
        // Its place may have been made before it was written; what else was there once must not
        // show.
        if found != record(worker, step) && found.iter().any(|byte| *byte != 0) {
            return wrong.push(format!("in place of record {step}, the log has {}", shown(found)));
        }
    }
}

/// Checks the mails in some folders: those of `wanted` are there, and each is whole.
pub(super) fn check_mails(
    folders: &[PathBuf],
    worker: u32,
    wanted: Range<u64>,
    wrong: &mut Vec<String>,
) {
    let mut found: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok());
    for entry in entries.flatten().flatten() {
        let Ok(number) = entry.file_name().to_string_lossy().parse::<u64>() else { continue };
        let content = std::fs::read(entry.path()).unwrap_or_default();
        if found.insert(number, content).is_some() {
            wrong.push(format!("mail {number} is both new and read"));
        }
    }
    let missing = wanted.filter(|number| !found.contains_key(number));
    wrong.extend(missing.map(|number| format!("mail {number} is not there")));
    // It has its place only since its content is durable.
    for (number, content) in found {
        if content != mail(worker, number) {
            wrong.push(format!("mail {number} has other content: {}", shown(&content)));
        }
    }
}

/// The beginning of some bytes, for people.
pub(super) fn shown(bytes: &[u8]) -> String {
    match bytes {
        [] => "nothing".to_owned(),
        _ if bytes.iter().all(|byte| *byte == 0) => format!("{} zeroes", bytes.len()),
        _ => {
            format!("{} bytes, \"{}\"...", bytes.len(), bytes[..bytes.len().min(24)].escape_ascii())
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn only_whole_records_count() {
        assert_eq!(parse_record(&record(2, 17)), Some((2, 17)));
        let mut torn = record(2, 17);
        torn[63] = 0;
        assert_eq!(parse_record(&torn), None);
        assert_eq!(parse_record(&[0; RECORD]), None);
    }
}
