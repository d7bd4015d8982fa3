//! Composition of a trace, as a report.

pub(super) mod build;
mod flushes;
pub(super) mod journal;
mod locality;
mod time;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use vlane_error::counted;
use vlane_trace::{Header, PriorityClass, Record, RequestKind, SECTOR, Status};

use super::{Request, Trace};
use build::{cdf, count, number, percentile_columns, percentile_table, percentiles, share, us};
use vlane_report::{Begun, Cell, Note, Report, Section, date, table};

/// Analyzes a trace; `command` makes the report again.
pub fn analyze(trace: &Trace, command: &str) -> Report {
    let begun = Begun::now(command);
    let (first, span) = trace.span();
    let records: Vec<&Record> = trace.requests.iter().map(|request| &request.record).collect();
    let summary = vec![headline(trace, span), origin(trace)];
    let mut sections = Vec::new();
    if !records.is_empty() {
        sections.extend([
            kinds(&records),
            sizes(&records),
            locality::section(trace),
            time::queue_depth(trace, first, span),
            time::arrivals(trace),
            latency(&records),
            priorities(&records),
            flushes::section(trace),
            journal::section(trace, first),
            lanes(trace, span),
        ]);
    }
    Report {
        summary,
        notes: notes(trace),
        sections,
        ..begun.report("analyze", format!("Trace of {}", name(trace)), &[])
    }
}

/// Facts about a trace that a reader must know before believing figures made from it.
pub(super) fn notes(trace: &Trace) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut warn = |text: String| notes.push(Note::warning(text));
    trace.what_is_missing().into_iter().for_each(&mut warn);
    let lost = trace.lost();
    if lost > 0 {
        warn(format!(
            "missing: {} ({}); the recorder could not keep up.",
            counted(lost, "request"),
            counted(trace.gaps.len(), "gap")
        ));
    }
    notes
}

pub(super) fn name(trace: &Trace) -> &str {
    if trace.header.name.is_empty() { "a volume" } else { &trace.header.name }
}

/// Values of the records of each kind, in the order of the kinds.
fn by_kind<'a>(
    records: impl IntoIterator<Item = &'a &'a Record> + Clone,
    value: fn(&Record) -> f64,
) -> Vec<(String, Vec<f64>)> {
    let of = |kind: RequestKind| {
        let of_kind = records.clone().into_iter().filter(|record| record.kind == kind);
        (kind.name().to_owned(), of_kind.map(|record| value(record)).collect())
    };
    RequestKind::ALL.into_iter().map(of).collect()
}

fn headline(trace: &Trace, span: u64) -> String {
    let all: u64 = RequestKind::ALL.iter().map(|kind| trace.count(*kind)).sum();
    let part = |kind| number(trace.count(kind)) * 100.0 / number(all.max(1));
    format!(
        "{all} requests in {:.1} s: {:.1} % reads, {:.1} % writes, {:.2} % flushes.",
        number(span) / 1e9,
        part(RequestKind::Read),
        part(RequestKind::Write),
        part(RequestKind::Flush)
    )
}

/// The volume and the recording.
fn origin(trace: &Trace) -> String {
    let Header { sectors, block_size, lanes, hashes, started, .. } = trace.header;
    let known = |value: u64| if value == 0 { "unknown".to_owned() } else { value.to_string() };
    format!(
        "Bytes of the volume: {}, of a logical block: {}. Lanes: {}. Recorded from {}, {} hashes.",
        known(sectors * SECTOR),
        known(block_size.into()),
        known(lanes.into()),
        date::rfc3339(SystemTime::UNIX_EPOCH + Duration::from_nanos(started)),
        if hashes { "with" } else { "without" }
    )
}

fn kinds(records: &[&Record]) -> Section {
    let whole = |records: &[&Record]| records.iter().filter(|record| !record.more).count() as u64;
    let moved = |records: &[&Record]| records.iter().map(|record| record.bytes()).sum::<u64>();
    let of = |kind| {
        let of: Vec<&Record> = records.iter().copied().filter(|r| r.kind == kind).collect();
        let (n, bytes) = (whole(&of), moved(&of));
        let failed = of.iter().filter(|r| r.status != Status::Ok && !r.more).count() as u64;
        let row = vec![
            kind.name().into(),
            count(n),
            share(n, whole(records)),
            Cell::Number(number(bytes) / 1e6),
            share(bytes, moved(records)),
            Cell::from(number(bytes) / number(n) / 1024.0),
            count(failed),
        ];
        (!of.is_empty()).then_some(row)
    };
    let rows = RequestKind::ALL.into_iter().filter_map(of).collect();
    let columns =
        "kind | requests | of all [%] | data [MB] | of all [%] | mean size [KiB] | failed";
    Section::new("kinds", "Requests", Vec::new(), vec![table("Requests by kind", columns, rows)])
}

fn sizes(records: &[&Record]) -> Section {
    let kinds =
        [RequestKind::Read, RequestKind::Write, RequestKind::Discard, RequestKind::WriteZeroes];
    let sized = records.iter().filter(|record| kinds.contains(&record.kind));
    let of = by_kind(sized, |record| number(record.bytes()) / 1024.0);
    let caption = "Size of a request";
    let blocks =
        vec![percentile_table(caption, "kind", "KiB", &of), cdf(caption, ("size", "KiB"), &of)];
    Section::new("sizes", "Sizes", Vec::new(), blocks)
}

fn latency(records: &[&Record]) -> Section {
    let of = by_kind(records.iter().filter(|record| !record.more), |record| us(record.service));
    let text = "From the moment the lane took a request until it had the answer. Requests that are \
                taken or answered together share one reading of the clock, up to eight of them; \
                the time that a request waits in the guest's ring before the lane looks is not in \
                it.";
    let blocks = vec![
        percentile_table("Service time by kind", "kind", "us", &of),
        cdf("Service time", ("service time", "us"), &of),
    ];
    Section::new("latency", "Service time", vec![text.to_owned()], blocks)
}

/// The name of a class of I/O priorities.
pub fn class_name(class: PriorityClass) -> &'static str {
    match class {
        PriorityClass::None => "none",
        PriorityClass::RealTime => "real time",
        PriorityClass::BestEffort => "best effort",
        PriorityClass::Idle => "idle",
    }
}

fn priorities(records: &[&Record]) -> Section {
    let mut classes: BTreeMap<(PriorityClass, u32), Vec<&Record>> = BTreeMap::new();
    for record in records.iter().filter(|record| !record.more) {
        let class = (record.priority.class(), record.priority.level());
        classes.entry(class).or_default().push(record);
    }
    let all: usize = classes.values().map(Vec::len).sum();
    let rows = classes.into_iter().map(|((class, level), of)| {
        let class = class_name(class);
        let n = of.len() as u64;
        let bytes: u64 = of.iter().map(|record| record.bytes()).sum();
        let mut row = vec![class.into(), count(level.into()), count(n), share(n, all as u64)];
        row.push(Cell::Number(number(bytes) / 1e6));
        row.extend(percentiles(&of.iter().map(|r| us(r.service)).collect::<Vec<_>>()));
        row
    });
    let columns = percentile_columns("class | level | requests | of all [%] | data [MB]", "us");
    let words = "The I/O priority that the guest gave (Linux: from ioprio_set, or from the nice \
                 value), 0 the highest level.";
    let block = table("Requests and service time by priority", &columns, rows.collect());
    Section::new("priorities", "Priorities", vec![words.to_owned()], vec![block])
}

fn lanes(trace: &Trace, span: u64) -> Section {
    let mut lanes: BTreeMap<u16, Vec<&Request>> = BTreeMap::new();
    for request in &trace.requests {
        lanes.entry(request.record.lane).or_default().push(request);
    }
    let rows = lanes.into_iter().map(|(lane, requests)| {
        let whole = requests.iter().filter(|request| !request.record.more);
        let of = |kind| number(whole.clone().filter(|r| r.record.kind == kind).count() as u64);
        let n = number(whole.clone().count() as u64);
        let bytes: u64 = requests.iter().map(|request| request.record.bytes()).sum();
        let runs = requests.iter().map(|request| request.run).max().unwrap_or(0) + 1;
        let lost: u64 = trace.gaps.iter().filter(|gap| gap.lane == lane).map(|gap| gap.count).sum();
        let figures = [
            n,
            n / (number(span) / 1e9).max(1e-9),
            of(RequestKind::Read),
            of(RequestKind::Write),
            of(RequestKind::Flush),
            number(bytes) / 1e6,
            requests.iter().map(|request| request.in_flight()).max().unwrap_or(0).into(),
            runs.into(),
            number(lost),
        ];
        std::iter::once(lane.to_string().into()).chain(figures.map(Cell::Number)).collect()
    });
    let columns = "lane | requests | rate [1/s] | reads | writes | flushes | data [MB] | deepest | \
                   starts | missing";
    let block = table("Lanes", columns, rows.collect());
    Section::new("lanes", "Lanes", Vec::new(), vec![block])
}

#[cfg(test)]
mod tests;
