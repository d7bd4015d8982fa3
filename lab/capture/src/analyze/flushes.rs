//! Flushes: how often, after how much, how long.

use vlane_error::counted;
use vlane_trace::RequestKind;

use super::super::Trace;
use super::build::{number, percentile_table, us};
use vlane_report::Section;

pub(super) fn section(trace: &Trace) -> Section {
    let [mut intervals, mut writes, mut kib, mut times] = [const { Vec::new() }; 4];
    let (mut last, mut since, mut bytes) = (None, 0.0, 0);
    for at in trace.by_submission() {
        let record = &trace.requests[at].record;
        if record.kind == RequestKind::Flush {
            let before = last.replace(record.submit);
            intervals.extend(before.map(|before| us(record.submit - before) / 1000.0));
            writes.push(std::mem::take(&mut since));
            kib.push(number(std::mem::take(&mut bytes)) / 1024.0);
            times.push(us(record.service));
        } else if record.kind.changes_data() && !record.more {
            since += 1.0;
            bytes += record.bytes();
        }
    }
    if times.is_empty() {
        let words = "The trace has no flush: no write was ever asked to be durable.";
        return Section::new("flushes", "Flushes", vec![words.to_owned()], Vec::new());
    }
    let empty = writes.iter().filter(|writes| **writes == 0.0).count();
    let words = format!(
        "{}, {:.1} % of them without a write since the one before. Writes after the last: {since}.",
        counted(times.len(), "flush"),
        empty as f64 * 100.0 / times.len() as f64
    );
    let rows = [
        ("time since the one before, ms", intervals),
        ("writes since the one before", writes),
        ("data written since, KiB", kib),
        ("service time, us", times),
    ]
    .map(|(name, values)| (name.to_owned(), values));
    let block = percentile_table("Flushes", "", "", &rows);
    Section::new("flushes", "Flushes", vec![words], vec![block])
}
