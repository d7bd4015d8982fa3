//! Flushes: how often, after how much, how long.

use vlane_error::counted;
use vlane_trace::{Record, RequestKind};

use super::super::Trace;
use super::build::{number, percentile_columns, percentiles, text, us};
use vlane_report::Section;
use vlane_report::build::table;

pub(super) fn section(trace: &Trace) -> Section {
    let (mut intervals, mut writes, mut kib, mut times) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut last, mut since, mut bytes, mut empty) = (None, 0_u64, 0_u64, 0_u64);
    for at in trace.by_submission() {
        let record: &Record = &trace.requests[at].record;
        match record.kind {
            RequestKind::Flush => {
                if let Some(last) = last.replace(record.submit) {
                    intervals.push(record.submit - last);
                }
                empty += u64::from(since == 0);
                writes.push(std::mem::take(&mut since));
                kib.push(std::mem::take(&mut bytes));
                times.push(record.service);
            }
            kind if kind.changes_data() && !record.more => {
                since += 1;
                bytes += record.bytes();
            }
            _ => {}
        }
    }
    if times.is_empty() {
        let words = "The trace has no flush: no write was ever asked to be durable.";
        return Section::new("flushes", "Flushes", vec![words.to_owned()], Vec::new());
    }
    let row = |name: &str, values: &mut Vec<u64>, scale: &dyn Fn(f64) -> f64| {
        let mut row = vec![text(name)];
        row.extend(percentiles(values, scale));
        row
    };
    let count = times.len();
    let plain: &dyn Fn(f64) -> f64 = &|value| value;
    let rows = vec![
        row("time since the one before, ms", &mut intervals, &|ns| ns / 1e6),
        row("writes since the one before", &mut writes, plain),
        row("data written since, KiB", &mut kib, &|bytes| bytes / 1024.0),
        row("service time, us", &mut times, &us),
    ];
    let words = format!(
        "{}, {:.1} % of them without a write since the one before. Writes after the last: {since}.",
        counted(count, "flush"),
        number(empty) * 100.0 / number(count as u64)
    );
    Section::new(
        "flushes",
        "Flushes",
        vec![words],
        vec![table("Flushes", &percentile_columns("", ""), rows)],
    )
}
