//! How well each way finds the journal, on a trace.

use std::ops::Range;

use vlane_policy::journal::content::Content;
use vlane_policy::journal::pattern::Pattern;
use vlane_policy::journal::{self, Evidence, FileSystem, Journal, LogKind, Map};
use vlane_trace::{RequestKind, SECTOR};

use super::Trace;

/// Places at which what was found is remembered, over the trace's time.
const MOMENTS: usize = 240;

/// Findings of one way.
#[derive(Debug)]
pub struct Found {
    /// The way.
    pub way: Evidence,
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
    /// Where those are that are called journals: a log is counted apart.
    map: Map,
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
        self.part(self.wrong)
    }

    /// The found part of the journal's bytes. None if there were none.
    pub fn recall(&self) -> Option<f64> {
        self.part(self.missed)
    }

    fn part(&self, rest: u64) -> Option<f64> {
        let all = self.right + rest;
        (all > 0).then(|| self.right as f64 / all as f64)
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

/// Bytes of a range that a map has.
pub(super) fn overlap(map: &Map, range: &Range<u64>) -> u64 {
    let parts = map.overlapping(range.clone());
    parts.map(|piece| piece.range.end.min(range.end) - piece.range.start.max(range.start)).sum()
}

/// A journal of these ranges, as the layout names it.
pub fn layout_journal(filesystem: FileSystem, ranges: Vec<Range<u64>>) -> Journal {
    Journal { filesystem, kind: LogKind::Journal, way: Evidence::Layout, ranges }
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

impl Found {
    fn new(way: Evidence, journals: Vec<Journal>) -> Self {
        let mut found = Self {
            way,
            first: None,
            since_found: Score::default(),
            since_loop: Score::default(),
            journals: Vec::new(),
            over_time: Vec::new(),
            map: Map::default(),
        };
        found.know(journals, 0);
        found
    }

    fn called_journals(&self) -> impl Iterator<Item = &Journal> {
        self.journals.iter().filter(|journal| journal.kind == LogKind::Journal)
    }

    /// These are known from now on.
    fn know(&mut self, journals: Vec<Journal>, time: u64) {
        self.journals = journals;
        self.map = Map::new(&self.called_journals().cloned().collect::<Vec<_>>());
        if !self.map.is_empty() {
            self.first.get_or_insert(time);
        }
    }

    /// The largest journal, from its first byte to its last.
    fn ends(&self) -> Option<Range<u64>> {
        self.called_journals().max_by_key(|journal| journal.len()).map(ends)
    }
}

/// A journal from its first byte to its last.
pub(crate) fn ends(journal: &Journal) -> Range<u64> {
    let (starts, ends): (Vec<u64>, Vec<u64>) =
        journal.ranges.iter().map(|range| (range.start, range.end)).unzip();
    starts.into_iter().min().unwrap_or(0)..ends.into_iter().max().unwrap_or(0)
}

/// Lets each way look at the trace, and compares it with where the journals are.
pub fn evaluate(trace: &Trace, truth: &[Journal]) -> [Found; 3] {
    let ends = trace.requests.iter().map(|r| r.record.sector + u64::from(r.record.sectors));
    let size = trace.header.sectors.max(ends.max().unwrap_or(0)).saturating_mul(SECTOR);
    let (mut content, mut pattern) = (Content::new(size), Pattern::new(size));
    let mut all = [
        Found::new(Evidence::Layout, layout_of(trace)),
        Found::new(Evidence::Content, Vec::new()),
        Found::new(Evidence::Pattern, Vec::new()),
    ];
    let ((begin, _), heads, order) = (trace.span(), trace.heads_by_write(), trace.by_submission());
    let truth = Map::new(truth);
    let of_truth = truth.bytes(LogKind::Journal);
    let mut written = 0;
    for (count, at) in order.iter().enumerate() {
        let request = &trace.requests[*at];
        let record = &request.record;
        let time = record.submit - begin;
        let range = bytes_of(record);
        match record.kind {
            RequestKind::Write => {
                let of_write = heads.get(&(record.lane, request.run, record.seq));
                let blocks: Vec<journal::Head> =
                    of_write.into_iter().flatten().map(super::Head::block).collect();
                content.write(&range, &blocks);
                pattern.write(&range);
            }
            RequestKind::Discard | RequestKind::WriteZeroes => {
                content.cleared(&range);
                pattern.cleared(&range);
            }
            RequestKind::Flush => pattern.flush(),
            _ => {}
        }
        if content.take_change() {
            all[1].know(content.journals(), time);
        }
        if pattern.take_change() {
            all[2].know(pattern.journals(), time);
        }
        let is_moment = count % (order.len() / MOMENTS).max(1) == 0;
        for found in &mut all {
            if record.kind == RequestKind::Write && found.first.is_some() {
                found.since_found.add(&range, &truth, &found.map);
            }
            if record.kind == RequestKind::Write && written >= of_truth && of_truth > 0 {
                found.since_loop.add(&range, &truth, &found.map);
            }
            if is_moment {
                found.over_time.push((time, found.ends()));
            }
        }
        if record.kind == RequestKind::Write {
            written += overlap(&truth, &range);
        }
    }
    all
}

/// Bytes that a request reads or changes.
pub(crate) fn bytes_of(record: &vlane_trace::Record) -> Range<u64> {
    let end = record.sector.saturating_add(record.sectors.into());
    record.sector.saturating_mul(SECTOR)..end.saturating_mul(SECTOR)
}

#[cfg(test)]
mod tests;
