//! Report of a replay: the back end now, relative to the volume then.

use std::collections::BTreeMap;
use vlane_driver::Wait;
use vlane_driver::replay::Timing;
use vlane_error::counted;

use vlane_driver::replay::ReplayReport;
use vlane_trace::RequestKind;

use super::Trace;
use super::analyze::build::{number, percentile_columns, percentiles, text, us};
use super::analyze::{name, notes};
use vlane_report::build::{Begun, table};
use vlane_report::{Cell, Note, Report, Section, Severity};

/// How a trace is replayed.
#[derive(Debug, Clone)]
pub struct Settings {
    /// When requests go out.
    pub timing: Timing,
    /// How completions are waited for.
    pub wait: Wait,
    /// Most requests out at once, per queue; none: as many as there were in the trace.
    pub depth: Option<u16>,
    /// Source of the written data.
    pub seed: u64,
    /// The command that makes the report again.
    pub command: String,
}

/// The report's facts about the preparation.
pub(super) struct Facts {
    pub(super) left_out: BTreeMap<&'static str, u64>,
    pub(super) split: u64,
}

pub(super) fn report(trace: &Trace, result: &ReplayReport, facts: &Facts, begun: &Begun) -> Report {
    let how = match result.speed {
        Some(speed) => format!("at {speed} times the recorded speed"),
        None => "as fast as the order allows".to_owned(),
    };
    let summary = vec![format!(
        "{} of {} replayed {how} in {:.2} s (recorded in {:.2} s): {:.0} IOPS, {:.1} MB/s.",
        result.ios,
        counted(result.in_trace, "request"),
        result.seconds,
        result.trace_seconds,
        result.iops,
        result.mb_per_second
    )];
    let mut all_notes = notes(trace);
    let mut note = |severity, text: String| all_notes.push(Note { severity, text });
    for (what, n) in &facts.left_out {
        note(Severity::Info, format!("Left out: {n} {what}."));
    }
    if facts.split > 0 {
        let n = facts.split;
        note(
            Severity::Info,
            format!(
                "Requests of several ranges are one request per range here: {n} more than recorded."
            ),
        );
    }
    if result.errors.total() > 0 {
        note(Severity::Warning, format!("{} failed.", counted(result.errors.total(), "request")));
    }
    if result.speed.is_some() && result.held_by_depth > 0 {
        let n = result.held_by_depth;
        note(
            Severity::Warning,
            format!(
                "{} went out late because {} were out on their queue.",
                counted(n, "request"),
                result.depth
            ),
        );
    }
    let sections = vec![latencies(trace, result), course(result)];
    Report {
        summary,
        notes: all_notes,
        sections,
        ..begun.report("replay", format!("Replay of a trace of {}", name(trace)), &[])
    }
}

fn section(id: &str, title: &str, words: &str, block: vlane_report::Block) -> Section {
    Section::new(id.to_owned(), title.to_owned(), vec![words.to_owned()], vec![block])
}

fn latencies(trace: &Trace, result: &ReplayReport) -> Section {
    let mut rows = Vec::new();
    let kinds: [(&[RequestKind], &str, _); 4] = [
        (&[RequestKind::Read], "read", &result.reads),
        (&[RequestKind::Write], "write", &result.writes),
        (&[RequestKind::Flush], "flush", &result.flushes),
        (
            &[RequestKind::Discard, RequestKind::WriteZeroes],
            "discard, write-zeroes",
            &result.discards,
        ),
    ];
    for (of, name, now) in kinds {
        let then =
            trace.requests.iter().map(|r| &r.record).filter(|r| of.contains(&r.kind) && !r.more);
        let mut then: Vec<u64> = then.map(|record| record.service).collect();
        if !then.is_empty() {
            let mut row = vec![text(format!("{name}, recorded"))];
            row.extend(percentiles(&mut then, us));
            rows.push(row);
        }
        if let Some(now) = now {
            let l = &now.latency;
            let figures = [l.mean, l.p50, l.p90, l.p99, l.p99_9, l.max].map(Cell::Number);
            rows.push(std::iter::once(text(format!("{name}, replayed"))).chain(figures).collect());
        }
    }
    let words = "Recorded: inside the back end, from the taking of a request to its answer. \
                 Replayed: as the guest's side sees it, with the ways there and back. The two do \
                 not compare exactly; replays on different back ends do.";
    section(
        "latency",
        "Latency",
        words,
        table("Latency by kind", &percentile_columns("", "us"), rows),
    )
}

fn course(result: &ReplayReport) -> Section {
    let late = |of: fn(&vlane_driver::Latency) -> f64| {
        result.late.as_ref().map_or(Cell::Empty, |l| Cell::Number(of(l)))
    };
    let backend = |of: fn(&vlane_driver::BackendUse) -> f64| {
        result.backend.as_ref().map_or(Cell::Empty, |backend| Cell::Number(of(backend)))
    };
    let rows = vec![
        vec![text("most requests out per queue"), Cell::Number(result.depth.into())],
        vec![
            text("held back by the order of flushes and writes"),
            Cell::Number(number(result.held_by_order)),
        ],
        vec![
            text("held back because the queue was full"),
            Cell::Number(number(result.held_by_depth)),
        ],
        vec![text("late, median, us"), late(|l| l.p50)],
        vec![text("late, 99 %, us"), late(|l| l.p99)],
        vec![text("late, most, us"), late(|l| l.max)],
        vec![text("back end's CPU time per I/O, us"), backend(|b| b.cpu_us_per_io)],
        vec![text("back end's context switches per I/O"), backend(|b| b.switches_per_io)],
        vec![text("failed"), Cell::Number(number(result.errors.total()))],
    ];
    let words = "Requests go out at their recorded times, unless the order or the depth holds \
                 them back; late is how much later than that they went.";
    section("course", "How it went", words, table("The replay", " | ", rows))
}
