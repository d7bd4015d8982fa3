//! How well each way finds the journal, on a trace.

pub mod prove;

use std::ops::Range;

use vlane_policy::journal::content::Content;
use vlane_policy::journal::pattern::Pattern;
use vlane_policy::journal::{self, FileSystem, Journal, Map};
use vlane_trace::{RequestKind, SECTOR};

use super::Trace;

/// Places at which what was found is remembered, over the trace's time.
const MOMENTS: usize = 240;

/// Findings of one way.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The way.
    pub way: journal::Evidence,
    /// When the first verdict came, in ns since the trace's first request.
    pub first: Option<u64>,
    /// Of the writes since then.
    pub since_found: Score,
    /// Of the writes since the journal was written once from end to end.
    pub since_loop: Score,
    /// Journals found at the end.
    pub journals: Vec<Journal>,
    /// From its first byte to its last, over time: ns, and the range. Of the largest one, where
    /// there are several.
    pub over_time: Vec<(u64, Option<Range<u64>>)>,
}

/// Bytes that were written: to the journal and found to be so, found to be so wrongly, and not
/// found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Score {
    /// The journal's, found.
    pub right: u64,
    /// Others', found.
    pub wrong: u64,
    /// The journal's, not found.
    pub missed: u64,
}

impl Score {
    /// The journal's part of the bytes found. None if no bytes were found.
    pub fn precision(&self) -> Option<f64> {
        part(self.right, self.wrong)
    }

    /// The found part of the journal's bytes. None if there were none.
    pub fn recall(&self) -> Option<f64> {
        part(self.right, self.missed)
    }

    fn add(&mut self, range: &Range<u64>, truth: &Map, found: &Map) {
        let all = overlap(found, range);
        let right = truth.overlapping(range.clone()).map(|piece| {
            overlap(found, &(piece.range.start.max(range.start)..piece.range.end.min(range.end)))
        });
        let right: u64 = right.sum();
        self.right += right;
        self.wrong += all - right;
        self.missed += overlap(truth, range) - right;
    }
}

fn part(of: u64, rest: u64) -> Option<f64> {
    (of + rest > 0).then(|| of as f64 / (of + rest) as f64)
}

/// Bytes of a range that a map has.
pub(super) fn overlap(map: &Map, range: &Range<u64>) -> u64 {
    let parts = map.overlapping(range.clone());
    parts.map(|piece| piece.range.end.min(range.end) - piece.range.start.max(range.start)).sum()
}

/// A journal of these ranges, as the layout names it.
pub fn layout_journal(filesystem: FileSystem, ranges: Vec<Range<u64>>) -> Journal {
    Journal { filesystem, kind: journal::LogKind::Journal, way: journal::Evidence::Layout, ranges }
}

/// Where the layout of a trace places journals: what it said last.
pub fn layout_of(trace: &Trace) -> Vec<Journal> {
    let mut journals: Vec<Journal> = Vec::new();
    let mut goes_on = false;
    for piece in &trace.layouts {
        if !std::mem::replace(&mut goes_on, piece.more) {
            journals.clear();
        }
        let filesystem = match piece.filesystem {
            0 => FileSystem::Ext4,
            1 => FileSystem::Xfs,
            _ => FileSystem::Unknown,
        };
        let range = piece.sector.saturating_mul(SECTOR)
            ..piece.sector.saturating_add(piece.sectors).saturating_mul(SECTOR);
        if !range.is_empty() {
            // Pieces of several journals cannot be distinguished, and need not be: all count alike.
            journals.push(layout_journal(filesystem, vec![range]));
        }
    }
    journals
}

/// One of the ways, alone.
enum Finder {
    Layout(Vec<Journal>),
    Content(Box<Content>),
    Pattern(Box<Pattern>),
}

impl Finder {
    fn way(&self) -> journal::Evidence {
        match self {
            Self::Layout(_) => journal::Evidence::Layout,
            Self::Content(_) => journal::Evidence::Content,
            Self::Pattern(_) => journal::Evidence::Pattern,
        }
    }

    fn journals(&self) -> Vec<Journal> {
        match self {
            Self::Layout(journals) => journals.clone(),
            Self::Content(content) => content.journals(),
            Self::Pattern(pattern) => pattern.journals(),
        }
    }

    /// Those that are called journals: a log is counted apart.
    fn called_journals(&self) -> Vec<Journal> {
        let mut journals = self.journals();
        journals.retain(|journal| journal.kind == journal::LogKind::Journal);
        journals
    }

    fn take_change(&mut self) -> bool {
        match self {
            Self::Layout(_) => false,
            Self::Content(content) => content.take_change(),
            Self::Pattern(pattern) => pattern.take_change(),
        }
    }
}

/// Lets each way look at the trace, and compares it with where the journals are.
pub fn evaluate(trace: &Trace, truth: &[Journal]) -> Vec<Found> {
    let last = trace
        .requests
        .iter()
        .map(|request| request.record.sector + u64::from(request.record.sectors))
        .max();
    let size = trace.header.sectors.max(last.unwrap_or(0)).saturating_mul(SECTOR);
    let finders = [
        Finder::Layout(layout_of(trace)),
        Finder::Content(Box::new(Content::new(size))),
        Finder::Pattern(Box::new(Pattern::new(size))),
    ];
    let (order, heads) = (trace.by_submission(), trace.heads_by_write());
    finders.map(|finder| one(trace, &order, &heads, &Map::new(truth), finder)).into()
}

fn one(
    trace: &Trace,
    order: &[usize],
    heads: &std::collections::HashMap<(u16, u32, u32), Vec<super::Head>>,
    truth: &Map,
    mut finder: Finder,
) -> Found {
    let (begin, _) = trace.span();
    let of_truth = truth.bytes(journal::LogKind::Journal);
    let mut map = Map::new(&finder.called_journals());
    let mut found = Found {
        way: finder.way(),
        first: (!map.is_empty()).then_some(0),
        since_found: Score::default(),
        since_loop: Score::default(),
        journals: Vec::new(),
        over_time: Vec::new(),
    };
    let (mut written, mut blocks) = (0, Vec::new());
    for (count, at) in order.iter().enumerate() {
        let request = &trace.requests[*at];
        let record = &request.record;
        let time = record.submit - begin;
        let range = record.sector * SECTOR..(record.sector + u64::from(record.sectors)) * SECTOR;
        blocks.clear();
        if record.kind == RequestKind::Write
            && let Some(of_write) = heads.get(&(record.lane, request.run, record.seq))
        {
            blocks.extend(of_write.iter().map(super::Head::block));
        }
        match (&mut finder, record.kind) {
            (Finder::Content(content), RequestKind::Write) => content.write(&range, &blocks),
            (Finder::Content(content), RequestKind::Discard | RequestKind::WriteZeroes) => {
                content.cleared(&range)
            }
            (Finder::Pattern(pattern), RequestKind::Write) => pattern.write(&range),
            (Finder::Pattern(pattern), RequestKind::Discard | RequestKind::WriteZeroes) => {
                pattern.cleared(&range)
            }
            (Finder::Pattern(pattern), RequestKind::Flush) => pattern.flush(),
            _ => {}
        }
        if finder.take_change() {
            map = Map::new(&finder.called_journals());
            if !map.is_empty() {
                found.first.get_or_insert(time);
            }
        }
        if record.kind == RequestKind::Write {
            if found.first.is_some() {
                found.since_found.add(&range, truth, &map);
            }
            if written >= of_truth && of_truth > 0 {
                found.since_loop.add(&range, truth, &map);
            }
            written += overlap(truth, &range);
        }
        if count % (order.len() / MOMENTS).max(1) == 0 {
            let largest = finder.called_journals().into_iter().max_by_key(Journal::len);
            let ends = largest.and_then(|journal| {
                let start = journal.ranges.iter().map(|range| range.start).min()?;
                Some(start..journal.ranges.iter().map(|range| range.end).max()?)
            });
            found.over_time.push((time, ends));
        }
    }
    found.journals = finder.journals();
    found
}

#[cfg(test)]
mod tests;
