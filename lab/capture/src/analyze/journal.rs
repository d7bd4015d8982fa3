//! The journal: its part of what is written, and how each way finds it.

use std::collections::HashSet;
use std::fmt::Debug;
use std::ops::Range;

use vlane_policy::journal::{Evidence, Journal, Map};
use vlane_trace::{Record, RequestKind};

use super::super::Trace;
use super::super::detection::{Found, bytes_of, ends, evaluate, layout_of, overlap};
use super::build::{count, lines, number, share};
use vlane_report::{Block, Cell, Section, table};

/// Bytes of a block of a footprint.
const BLOCK: u64 = 4096;
/// Writes to the journal that are drawn at most.
const DRAWN: usize = 400;
/// The columns of [`score`].
pub(crate) const SCORE: &str = "way | first verdict [s] | precision [%] | recall [%] | \
                                precision after a loop [%] | recall after a loop [%]";

/// The journal's part of a trace: of bytes, of the footprint, of flushes. Also the bytes that were
/// written to it.
pub(crate) fn part(trace: &Trace, map: &Map) -> (Block, u64) {
    let (mut written, mut own, mut moved) = (0, 0, 0);
    let (mut blocks, mut ends, mut flushes) = (HashSet::new(), Vec::new(), Vec::new());
    for record in trace.requests.iter().map(|request| &request.record) {
        let range = bytes_of(record);
        match record.kind {
            RequestKind::Read | RequestKind::Write => {
                moved += record.bytes();
                blocks.extend(range.start / BLOCK..range.end.div_ceil(BLOCK));
            }
            RequestKind::Flush => flushes.push(record.submit),
            _ => {}
        }
        if record.kind == RequestKind::Write {
            let of_journal = overlap(map, &range);
            written += record.bytes();
            own += of_journal;
            ends.extend((of_journal > 0).then(|| record.completed()));
        }
    }
    let own_blocks = blocks.iter().filter(|block| map.at(**block * BLOCK).is_some()).count();
    ends.sort_unstable();
    flushes.sort_unstable();
    // Those before which the journal was written since the one before.
    let mut before: Vec<usize> =
        flushes.iter().map(|flush| ends.partition_point(|end| end <= flush)).collect();
    before.dedup();
    let own_flushes = before.iter().filter(|count| **count > 0).count();
    let row =
        |name: &str, own: u64, all: u64| vec![name.into(), count(own), count(all), share(own, all)];
    let rows = vec![
        row("bytes written", own, written),
        row("bytes read and written", own, moved),
        row("footprint, blocks", own_blocks as u64, blocks.len() as u64),
        row("flushes", own_flushes as u64, flushes.len() as u64),
    ];
    (table("The journal's part", " | journal | all | part [%]", rows), own)
}

/// The name of one of a few values.
pub(crate) fn word(value: impl Debug) -> String {
    format!("{value:?}").to_lowercase()
}

pub(super) fn section(trace: &Trace, begin: u64) -> Section {
    let layout = layout_of(trace);
    let mut found = evaluate(trace, &layout);
    // The best knowledge: the layout, or the most trusted of the ways that found one.
    let best = found.iter().find(|found| !found.journals.is_empty());
    let Some((best, journals)) = best.map(|best| (best.way, best.journals.clone())) else {
        let words = "No way found a journal: the layout names none, no chain of a journal's \
                     blocks was written, and no area was written cyclically.";
        return Section::new("journal", "The journal", vec![words.to_owned()], Vec::new());
    };
    if best != Evidence::Layout {
        found = evaluate(trace, &journals);
    }
    let mut words = vec![format!(
        "The journal as it was found by {}. A flush counts as the journal's if a write to the \
         journal was completed since the flush before. A block of the footprint has 4 KiB.",
        word(best)
    )];
    let map = Map::new(&journals);
    let mut blocks = vec![part(trace, &map).0, ranges(&found)];
    if best != Evidence::Pattern {
        blocks.push(table("How well each way finds it", SCORE, found.iter().map(score).collect()));
        words.push(
            "Precision: of the written bytes that a way took for the journal's, those that went \
             to the journal. Recall: of those that went to the journal, those that it took for \
             it. Since the first verdict of that way; and since the journal was written once from \
             end to end."
                .to_owned(),
        );
    }
    blocks.push(over_time(trace, begin, &map, &found));
    Section::new("journal", "The journal", words, blocks)
}

fn ranges(found: &[Found]) -> Block {
    let row = |journal: &Journal| {
        let Range { start, end } = ends(journal);
        let words = [word(journal.way), word(journal.filesystem), word(journal.kind)];
        let numbers = [start, end, journal.len(), journal.ranges.len() as u64];
        words.map(Cell::from).into_iter().chain(numbers.map(count)).collect()
    };
    let columns = "way | file system | what | from [B] | to [B] | length [B] | pieces";
    let rows = found.iter().flat_map(|found| &found.journals).map(row).collect();
    table("Journals found at the end", columns, rows)
}

/// How well a way finds the journal.
pub(crate) fn score(found: &Found) -> Vec<Cell> {
    let scores = [&found.since_found, &found.since_loop];
    let parts = scores.into_iter().flat_map(|score| [score.precision(), score.recall()]);
    let first = found.first.map(|ns| number(ns) / 1e9);
    let figures = std::iter::once(first).chain(parts.map(|part| part.map(|part| part * 100.0)));
    std::iter::once(word(found.way).into()).chain(figures.map(Cell::from)).collect()
}

/// The paper's Figure 3: where the journal is, where it is written, and what was found, over time.
pub(crate) fn over_time(trace: &Trace, begin: u64, map: &Map, found: &[Found]) -> Block {
    let point = |ns: u64, at: u64| (number(ns) / 1e9, number(at) / 1_048_576.0);
    let order = trace.by_submission();
    let is_own =
        |record: &&Record| record.kind == RequestKind::Write && overlap(map, &bytes_of(record)) > 0;
    let own: Vec<&Record> =
        order.iter().map(|at| &trace.requests[*at].record).filter(is_own).collect();
    let drawn = own.iter().step_by(own.len().div_ceil(DRAWN).max(1));
    let writes = drawn.map(|record| point(record.submit - begin, bytes_of(record).start));
    let mut series = vec![("written".to_owned(), writes.collect())];
    for found in found {
        let name = match found.way {
            Evidence::Layout => "true journal".to_owned(),
            way => word(way),
        };
        let known =
            found.over_time.iter().filter_map(|(time, range)| Some((*time, range.as_ref()?)));
        let first: Vec<_> = known.clone().map(|(time, range)| point(time, range.start)).collect();
        let last = known.map(|(time, range)| point(time, range.end)).collect();
        if !first.is_empty() {
            series.push((format!("{name}, first byte"), first));
            series.push((format!("{name}, last byte"), last));
        }
    }
    lines(
        "Where the journal is written, and where it was found",
        ("time", "s"),
        ("place", "MiB"),
        series,
    )
}
