//! Report of a replay: the back end now, relative to the volume then.

use vlane_driver::replay::ReplayReport;
use vlane_error::counted;
use vlane_report::{Begun, Cell, Note, Report, Section, table};
use vlane_trace::RequestKind;

use super::Trace;
use super::analyze::build::{count, percentile_columns, percentiles, us};
use super::analyze::{name, notes};

/// The report without notes on the preparation.
pub(super) fn report(trace: &Trace, result: &ReplayReport, begun: &Begun) -> Report {
    let how = match result.speed {
        Some(speed) => format!("at {speed} times the recorded speed"),
        None => "as fast as the order allows".to_owned(),
    };
    let summary = vec![format!(
        "{} of {} replayed {how} in {:.2} s (recorded in {:.2} s): {:.0} IOPS, {:.1} MB/s.",
        result.run.ios,
        counted(result.in_trace, "request"),
        result.run.seconds,
        result.trace_seconds,
        result.run.iops,
        result.run.mb_per_second
    )];
    let mut notes = notes(trace);
    if result.run.errors.total() > 0 {
        let failed = counted(result.run.errors.total(), "request");
        notes.push(Note::warning(format!("{failed} failed.")));
    }
    if result.speed.is_some() && result.held_by_depth > 0 {
        notes.push(Note::warning(format!(
            "{} went out late because {} were out on their queue.",
            counted(result.held_by_depth, "request"),
            result.run.depth
        )));
    }
    Report {
        summary,
        notes,
        sections: vec![latencies(trace, result), course(result)],
        ..begun.report("replay", format!("Replay of a trace of {}", name(trace)), &[])
    }
}

fn latencies(trace: &Trace, result: &ReplayReport) -> Section {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let kinds: [(&[RequestKind], &str, _); 4] = [
        (&[RequestKind::Read], "read", &result.run.reads),
        (&[RequestKind::Write], "write", &result.run.writes),
        (&[RequestKind::Flush], "flush", &result.run.flushes),
        (
            &[RequestKind::Discard, RequestKind::WriteZeroes],
            "discard, write-zeroes",
            &result.discards,
        ),
    ];
    for (of, name, now) in kinds {
        let row = |when: &str| vec![Cell::from(format!("{name}, {when}"))];
        let then = trace.requests.iter().map(|r| &r.record);
        let then = then.filter(|record| of.contains(&record.kind) && !record.more);
        let then: Vec<f64> = then.map(|record| us(record.service)).collect();
        if !then.is_empty() {
            rows.push(row("recorded").into_iter().chain(percentiles(&then)).collect());
        }
        if let Some(now) = now {
            let l = &now.latency;
            let figures = [l.mean, l.p50, l.p90, l.p99, l.p99_9, l.max].map(Cell::Number);
            rows.push(row("replayed").into_iter().chain(figures).collect());
        }
    }
    let words = "Recorded: inside the back end, from the taking of a request to its answer. \
                 Replayed: as the guest's side sees it, with the ways there and back. The two do \
                 not compare exactly; replays on different back ends do.";
    let block = table("Latency by kind", &percentile_columns("", "us"), rows);
    Section::new("latency", "Latency", vec![words.to_owned()], vec![block])
}

fn course(result: &ReplayReport) -> Section {
    let late = |of: fn(&vlane_driver::Latency) -> f64| result.late.as_ref().map(of).into();
    let backend =
        |of: fn(&vlane_driver::BackendUse) -> f64| result.run.backend.as_ref().map(of).into();
    let rows: [(&str, Cell); 9] = [
        ("most requests out per queue", count(result.run.depth.into())),
        ("held back by the order of flushes and writes", count(result.held_by_order)),
        ("held back because the queue was full", count(result.held_by_depth)),
        ("late, median, us", late(|l| l.p50)),
        ("late, 99 %, us", late(|l| l.p99)),
        ("late, most, us", late(|l| l.max)),
        ("back end's CPU time per I/O, us", backend(|b| b.cpu_us_per_io)),
        ("back end's context switches per I/O", backend(|b| b.switches_per_io)),
        ("failed", count(result.run.errors.total())),
    ];
    let rows = rows.map(|(what, value)| vec![what.into(), value]).into();
    let words = "Requests go out at their recorded times, unless the order or the depth holds \
                 them back; late is how much later than that they went.";
    let block = table("The replay", " | ", rows);
    Section::new("course", "How it went", vec![words.to_owned()], vec![block])
}
