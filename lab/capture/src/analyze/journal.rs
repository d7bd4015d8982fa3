//! The journal: its part of what is written, and how each way finds it.

use std::collections::HashSet;
use std::ops::Range;

use vlane_policy::journal::{Evidence, Journal, Map};
use vlane_trace::{RequestKind, SECTOR};

use super::super::Trace;
use super::super::detection::{Found, Score, evaluate, layout_of, overlap};
use super::build::{lines, number, share, text};
use vlane_report::build::table;
use vlane_report::{Block, Cell, Section};

/// Bytes of a block of a footprint.
const BLOCK: u64 = 4096;
/// Writes to the journal that are drawn at most.
const DRAWN: usize = 400;

/// The journal's part of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Part {
    /// Bytes written, and the journal's.
    pub(crate) written: (u64, u64),
    /// Bytes read and written.
    pub(crate) moved: u64,
    /// Different blocks that were read or written, and the journal's.
    pub(crate) footprint: (u64, u64),
    /// Flushes, and those before which the journal was written since the one before.
    pub(crate) flushes: (u64, u64),
}

fn range(record: &vlane_trace::Record) -> Range<u64> {
    let end = record.sector.saturating_add(record.sectors.into());
    record.sector.saturating_mul(SECTOR)..end.saturating_mul(SECTOR)
}

/// Counts what is the journal's.
pub(crate) fn part(trace: &Trace, journals: &[Journal]) -> Part {
    let map = Map::new(journals);
    let mut part = Part::default();
    let mut blocks = HashSet::new();
    let (mut ends, mut flushes) = (Vec::new(), Vec::new());
    for request in &trace.requests {
        let record = &request.record;
        match record.kind {
            RequestKind::Read | RequestKind::Write => {
                let range = range(record);
                part.moved += record.bytes();
                blocks.extend(range.start / BLOCK..range.end.div_ceil(BLOCK));
                if record.kind == RequestKind::Write {
                    let own = overlap(&map, &range);
                    part.written.0 += record.bytes();
                    part.written.1 += own;
                    if own > 0 {
                        ends.push(record.completed());
                    }
                }
            }
            RequestKind::Flush => flushes.push(record.submit),
            _ => {}
        }
    }
    part.footprint.0 = blocks.len() as u64;
    part.footprint.1 =
        blocks.iter().filter(|block| map.at(**block * BLOCK).is_some()).count() as u64;
    ends.sort_unstable();
    flushes.sort_unstable();
    let mut before = 0;
    part.flushes.0 = flushes.len() as u64;
    for flush in flushes {
        let now = ends.partition_point(|end| *end <= flush);
        part.flushes.1 += u64::from(now > before);
        before = now;
    }
    part
}

pub(super) fn way(way: Evidence) -> &'static str {
    match way {
        Evidence::Layout => "layout",
        Evidence::Content => "content",
        Evidence::Pattern => "pattern",
    }
}

pub(super) fn section(trace: &Trace, begin: u64) -> Section {
    let layout = layout_of(trace);
    let mut found = evaluate(trace, &layout);
    // The best knowledge: the layout, or the most trusted of the ways that found one.
    let best = found.iter().find(|found| !found.journals.is_empty());
    let Some(best) = best.map(|best| (best.way, best.journals.clone())) else {
        let words = "No way found a journal: the layout names none, no chain of a journal's \
                     blocks was written, and no area was written cyclically.";
        return Section::new("journal", "The journal", vec![words.to_owned()], Vec::new());
    };
    let (best, journals) = best;
    if best != Evidence::Layout {
        found = evaluate(trace, &journals);
    }
    let part = part(trace, &journals);
    let mut words = vec![format!(
        "The journal as it was found by {}. A flush counts as the journal's if a write to the \
         journal was completed since the flush before. A block of the footprint has 4 KiB.",
        way(best)
    )];
    let mut blocks = vec![shares(&part), ranges(&found)];
    if best != Evidence::Pattern {
        blocks.push(scores(&found));
        words.push(
            "Precision: of the written bytes that a way took for the journal's, those that went \
             to the journal. Recall: of those that went to the journal, those that it took for \
             it. Since the first verdict of that way; and since the journal was written once from \
             end to end."
                .to_owned(),
        );
    }
    blocks.push(over_time(trace, begin, &journals, &found));
    Section::new("journal", "The journal", words, blocks)
}

pub(crate) fn shares(part: &Part) -> Block {
    let row = |name: &str, (all, own): (u64, u64)| {
        vec![text(name), Cell::Number(number(own)), Cell::Number(number(all)), share(own, all)]
    };
    let rows = vec![
        row("bytes written", part.written),
        row("bytes read and written", (part.moved, part.written.1)),
        row("footprint, blocks", part.footprint),
        row("flushes", part.flushes),
    ];
    table("The journal's part", " | journal | all | part [%]", rows)
}

fn ranges(found: &[Found]) -> Block {
    let mut rows = Vec::new();
    for journal in found.iter().flat_map(|found| &found.journals) {
        let start = journal.ranges.iter().map(|range| range.start).min().unwrap_or(0);
        let end = journal.ranges.iter().map(|range| range.end).max().unwrap_or(0);
        rows.push(vec![
            text(way(journal.way)),
            text(format!("{:?}", journal.filesystem).to_lowercase()),
            text(format!("{:?}", journal.kind).to_lowercase()),
            Cell::Number(number(start)),
            Cell::Number(number(end)),
            Cell::Number(number(journal.len())),
            Cell::Number(number(journal.ranges.len() as u64)),
        ]);
    }
    let columns = [
        ("way", ""),
        ("file system", ""),
        ("what", ""),
        ("from", "B"),
        ("to", "B"),
        ("length", "B"),
        ("pieces", ""),
    ];
    table("Journals found at the end", &columns, rows)
}

pub(crate) fn score_cells(score: &Score) -> [Cell; 2] {
    [score.precision(), score.recall()]
        .map(|value| value.map_or(Cell::Empty, |value| Cell::Number(value * 100.0)))
}

fn scores(found: &[Found]) -> Block {
    let row = |found: &Found| {
        let first = found.first.map_or(Cell::Empty, |ns| Cell::Number(number(ns) / 1e9));
        let mut row = vec![text(way(found.way)), first];
        row.extend(score_cells(&found.since_found));
        row.extend(score_cells(&found.since_loop));
        row
    };
    let columns = [
        ("way", ""),
        ("first verdict", "s"),
        ("precision", "%"),
        ("recall", "%"),
        ("precision after a loop", "%"),
        ("recall after a loop", "%"),
    ];
    table("How well each way finds it", &columns, found.iter().map(row).collect())
}

/// The paper's Figure 3: where the journal is, where it is written, and what was found, over time.
pub(crate) fn over_time(trace: &Trace, begin: u64, journals: &[Journal], found: &[Found]) -> Block {
    let map = Map::new(journals);
    let mib = |at: u64| number(at) / 1_048_576.0;
    let seconds = |ns: u64| number(ns) / 1e9;
    let order = trace.by_submission();
    let own = order.iter().map(|at| &trace.requests[*at].record);
    let own =
        own.filter(|record| record.kind == RequestKind::Write && overlap(&map, &range(record)) > 0);
    let writes: Vec<(f64, f64)> =
        own.map(|record| (seconds(record.submit - begin), mib(record.sector * SECTOR))).collect();
    let writes: Vec<_> =
        writes.iter().step_by(writes.len().div_ceil(DRAWN).max(1)).copied().collect();
    let mut series = vec![("written".to_owned(), writes)];
    for found in found {
        let name = if found.way == Evidence::Layout { "true journal" } else { way(found.way) };
        let line = |end: &dyn Fn(&Range<u64>) -> u64| -> Vec<(f64, f64)> {
            let known =
                found.over_time.iter().filter_map(|(time, range)| Some((*time, range.as_ref()?)));
            known.map(|(time, range)| (seconds(time), mib(end(range)))).collect()
        };
        for (word, points) in
            [("first", line(&|range| range.start)), ("last", line(&|range| range.end))]
        {
            if !points.is_empty() {
                series.push((format!("{name}, {word} byte"), points));
            }
        }
    }
    lines(
        "Where the journal is written, and where it was found",
        ("time", "s"),
        ("place", "MiB"),
        series,
    )
}
