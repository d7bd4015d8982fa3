//! Composition of a trace, as a report.

pub(super) mod build;
mod flushes;
pub(super) mod journal;
mod locality;
mod time;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use vlane_error::counted;
use vlane_trace::{PriorityClass, Record, RequestKind, Status};

use super::{Request, Trace};
use build::{bars, cdf, number, percentiles, share, text, us};
use vlane_report::build::{Begun, table};
use vlane_report::date;
use vlane_report::{Cell, Note, Report, Section, Severity};

/// Analyzes a trace; `command` makes the report again.
pub fn analyze(trace: &Trace, command: &str) -> Report {
    let begun = Begun::now(command);
    let (first, span) = trace.span();
    let records: Vec<&Record> = trace.requests.iter().map(|request| &request.record).collect();
    let started = SystemTime::UNIX_EPOCH + Duration::from_nanos(trace.header.started);
    let mut summary = vec![headline(trace, span)];
    let mut sections = vec![overview(trace, span, &date::rfc3339(started))];
    if !records.is_empty() {
        let (locality, words) = locality::section(trace, first, span);
        summary.push(words);
        sections.extend([kinds(&records), sizes(&records), locality]);
        sections.extend([
            time::queue_depth(trace, first, span),
            time::arrivals(trace),
            latency(&records),
        ]);
        sections.extend([
            priorities(&records),
            flushes::section(trace),
            journal::section(trace, first),
        ]);
        sections.push(lanes(trace, span));
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
    let mut warn = |text: String| notes.push(Note { severity: Severity::Warning, text });
    if let Some(damage) = &trace.damage {
        warn(format!("The trace is damaged, only the part before the damage is used: {damage}."));
    } else if !trace.is_complete {
        warn("The trace has no end: it was cut off, or the recording broke off.".to_owned());
    }
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

/// Requests, of which those with several ranges have a record for each.
fn count(records: &[&Record]) -> u64 {
    records.iter().filter(|record| !record.more).count() as u64
}

fn headline(trace: &Trace, span: u64) -> String {
    let all: u64 = RequestKind::ALL.iter().map(|kind| trace.count(*kind)).sum();
    let part = |kind| match all {
        0 => 0.0,
        all => number(trace.count(kind)) * 100.0 / number(all),
    };
    format!(
        "{all} requests in {:.1} s: {:.1} % reads, {:.1} % writes, {:.2} % flushes.",
        number(span) / 1e9,
        part(RequestKind::Read),
        part(RequestKind::Write),
        part(RequestKind::Flush)
    )
}

fn overview(trace: &Trace, span: u64, started: &str) -> Section {
    let header = &trace.header;
    let known = |value: u64, unit: &str| match value {
        0 => text("not known"),
        value => text(format!("{value} {unit}")),
    };
    let rows = vec![
        vec![text("volume"), text(name(trace))],
        vec![text("size"), known(header.sectors * 512, "bytes")],
        vec![text("logical block"), known(header.block_size.into(), "bytes")],
        vec![text("lanes"), known(header.lanes.into(), "")],
        vec![text("recorded from"), text(started)],
        vec![text("length"), text(format!("{:.3} s", number(span) / 1e9))],
        vec![text("missing requests"), text(trace.lost().to_string())],
        vec![text("data hashes"), text(if header.hashes { "yes" } else { "no" })],
    ];
    Section::new("overview", "The trace", Vec::new(), vec![table("Header", " | ", rows)])
}

fn kinds(records: &[&Record]) -> Section {
    let all = count(records);
    let all_bytes: u64 = records.iter().map(|record| record.bytes()).sum();
    let mut rows = Vec::new();
    for kind in RequestKind::ALL {
        let of: Vec<_> = records.iter().copied().filter(|record| record.kind == kind).collect();
        if of.is_empty() {
            continue;
        }
        let bytes: u64 = of.iter().map(|record| record.bytes()).sum();
        let n = count(&of);
        let failed = of.iter().filter(|r| r.status != Status::Ok && !r.more).count() as u64;
        rows.push(vec![
            text(kind.name()),
            Cell::Number(number(n)),
            share(n, all),
            Cell::Number(number(bytes) / 1e6),
            share(bytes, all_bytes),
            Cell::Number(number(bytes) / number(n) / 1024.0),
            Cell::Number(number(failed)),
        ]);
    }
    let columns = [
        ("kind", ""),
        ("requests", ""),
        ("of all", "%"),
        ("data", "MB"),
        ("of all", "%"),
        ("mean size", "KiB"),
        ("failed", ""),
    ];
    Section::new("kinds", "Requests", Vec::new(), vec![table("Requests by kind", &columns, rows)])
}

fn sizes(records: &[&Record]) -> Section {
    // By power of two, in sectors; 513 sectors are among those up to 1024.
    let class = |record: &Record| u64::from(record.sectors).next_power_of_two().ilog2();
    let kinds =
        [RequestKind::Read, RequestKind::Write, RequestKind::Discard, RequestKind::WriteZeroes];
    let mut counts: BTreeMap<u32, [u64; 4]> = BTreeMap::new();
    for record in records.iter().filter(|record| record.sectors > 0) {
        if let Some(place) = kinds.iter().position(|kind| *kind == record.kind) {
            counts.entry(class(record)).or_default()[place] += 1;
        }
    }
    let label = |class: u32| vlane_units::show_size(512_u64 << class);
    let (low, high) =
        (counts.keys().min().copied().unwrap_or(0), counts.keys().max().copied().unwrap_or(0));
    let classes: Vec<u32> = (low..=high).collect();
    let of = |class: &u32, place: usize| counts.get(class).map_or(0, |counts| counts[place]);
    let series: Vec<(&str, Vec<f64>)> = kinds
        .iter()
        .enumerate()
        .filter(|(place, _)| classes.iter().any(|class| of(class, *place) > 0))
        .map(|(place, kind)| {
            (kind.name(), classes.iter().map(|class| number(of(class, place))).collect())
        })
        .collect();
    let mut rows = Vec::new();
    for kind in kinds {
        let mut bytes: Vec<u64> =
            records.iter().filter(|r| r.kind == kind).map(|r| r.bytes()).collect();
        if !bytes.is_empty() {
            let mut row = vec![text(kind.name())];
            row.extend(percentiles(&mut bytes, |bytes| bytes / 1024.0));
            rows.push(row);
        }
    }
    let categories = classes.iter().map(|class| label(*class)).collect();
    Section::new(
        "sizes",
        "Sizes",
        Vec::new(),
        vec![
            bars("Requests by size (up to)", categories, ("requests", ""), series),
            table("Size of a request", &build::percentile_columns("kind", "KiB"), rows),
        ],
    )
}

fn latency(records: &[&Record]) -> Section {
    let mut rows = Vec::new();
    let mut series = Vec::new();
    for kind in RequestKind::ALL {
        let of = records.iter().filter(|r| r.kind == kind && !r.more);
        let mut times: Vec<u64> = of.map(|record| record.service).collect();
        if times.is_empty() {
            continue;
        }
        let mut row = vec![text(kind.name())];
        row.extend(percentiles(&mut times, us));
        rows.push(row);
        series.push((kind.name().to_owned(), times));
    }
    let text = vec![
        "From the moment the lane took a request until it had the answer. Requests that are taken \
         or answered together share one reading of the clock, up to eight of them; the time that \
         a request waits in the guest's ring before the lane looks is not in it."
            .to_owned(),
    ];
    Section::new(
        "latency",
        "Service time",
        text,
        vec![
            table("Service time by kind", &build::percentile_columns("kind", "us"), rows),
            cdf("Service time", ("service time", "us"), series, us),
        ],
    )
}

fn priorities(records: &[&Record]) -> Section {
    let mut classes: BTreeMap<(PriorityClass, u32), (u64, u64, Vec<u64>)> = BTreeMap::new();
    for record in records.iter().filter(|record| !record.more) {
        let entry = classes.entry((record.priority.class(), record.priority.level())).or_default();
        entry.0 += 1;
        entry.1 += record.bytes();
        entry.2.push(record.service);
    }
    let all = count(records);
    let rows = classes.into_iter().map(|((class, level), (n, bytes, mut times))| {
        let class = match class {
            PriorityClass::None => "none",
            PriorityClass::RealTime => "real time",
            PriorityClass::BestEffort => "best effort",
            PriorityClass::Idle => "idle",
        };
        let mut row =
            vec![text(class), Cell::Number(level.into()), Cell::Number(number(n)), share(n, all)];
        row.push(Cell::Number(number(bytes) / 1e6));
        row.extend(percentiles(&mut times, us));
        row
    });
    let mut columns =
        vec![("class", ""), ("level", ""), ("requests", ""), ("of all", "%"), ("data", "MB")];
    columns.extend(build::percentile_columns("", "us").into_iter().skip(1));
    let words = "The I/O priority that the guest gave (Linux: from ioprio_set, or from the nice \
                 value), 0 the highest level.";
    let rows = rows.collect();
    Section::new(
        "priorities",
        "Priorities",
        vec![words.to_owned()],
        vec![table("Requests and service time by priority", &columns, rows)],
    )
}

fn lanes(trace: &Trace, span: u64) -> Section {
    let mut lanes: BTreeMap<u16, Vec<&Request>> = BTreeMap::new();
    for request in &trace.requests {
        lanes.entry(request.record.lane).or_default().push(request);
    }
    let rows = lanes.into_iter().map(|(lane, requests)| {
        let records: Vec<&Record> = requests.iter().map(|request| &request.record).collect();
        let n = count(&records);
        let of = |kind| records.iter().filter(|r| r.kind == kind && !r.more).count() as u64;
        let bytes: u64 = records.iter().map(|record| record.bytes()).sum();
        let deep = requests
            .iter()
            .map(|r| r.record.seq.wrapping_sub(r.record.after).wrapping_add(1))
            .max();
        let lost: u64 = trace.gaps.iter().filter(|gap| gap.lane == lane).map(|gap| gap.count).sum();
        let runs = requests.iter().map(|request| request.run).max().unwrap_or(0) + 1;
        let figures = [
            number(n),
            number(n) / (number(span) / 1e9).max(1e-9),
            number(of(RequestKind::Read)),
            number(of(RequestKind::Write)),
            number(of(RequestKind::Flush)),
            number(bytes) / 1e6,
            deep.unwrap_or(0).into(),
            runs.into(),
            number(lost),
        ];
        std::iter::once(text(lane.to_string()))
            .chain(figures.into_iter().map(Cell::Number))
            .collect()
    });
    let columns = [
        ("lane", ""),
        ("requests", ""),
        ("rate", "1/s"),
        ("reads", ""),
        ("writes", ""),
        ("flushes", ""),
        ("data", "MB"),
        ("deepest", ""),
        ("starts", ""),
        ("missing", ""),
    ];
    let rows = rows.collect();
    Section::new("lanes", "Lanes", Vec::new(), vec![table("Lanes", &columns, rows)])
}

#[cfg(test)]
mod tests;
