//! XFS' log.
//!
//! A log record begins with a header that has its place: the log's cycle and the block within the
//! log (`h_lsn`). The header's own address minus 512 times that block is where the log begins, and
//! it must come out the same for each record. The log is in one piece. How long it is shows where
//! the cycle goes up: the blocks that the last record of the one cycle reaches to, minus those that
//! the first record of the next comes after.
//!
//! Believed are [`ENOUGH`] records that follow each other without a gap, each at the beginning of a
//! request of its own or behind another one. A copy of an image is written in pieces of the
//! copier's size, in which records hardly ever begin at the beginning.

use std::ops::Range;

use super::{AHEAD, Content, FORGIVEN, Head, MOST_CHAINS, XFS};

/// Records that make a log.
const ENOUGH: u32 = 4;
/// Blocks of a record's header at most: one for each 32 KiB of the largest record.
const LARGEST_HEADER: u64 = 8;
/// The largest record.
const LARGEST: u64 = 256 << 10;
const BLOCK: u64 = 512;

/// A log, or a candidate.
#[derive(Debug, Default)]
pub(super) struct Xfs {
    /// Where it begins.
    start: u64,
    /// The last record: its cycle, its block, and the block behind it but for its header.
    cycle: u32,
    block: u64,
    behind: u64,
    /// Blocks of a header; 0 as long as none was followed by another record.
    header: u64,
    /// Records without a gap.
    records: u32,
    is_sure: bool,
    /// Blocks of the log, or those that are known.
    end: u64,
    is_whole: bool,
    /// Up to which block it is believed to go on.
    ahead: u64,
    /// Where the last write that was its own ended.
    at: u64,
    last: u64,
    strange: u64,
}

/// Follows a write; says whether it is a log's.
pub(super) fn follow(content: &mut Content, range: &Range<u64>, heads: &[Head]) -> bool {
    let mut is_own = false;
    for head in heads.iter().filter(|head| head.word(0) == XFS) {
        is_own |= record(content, head);
    }
    for log in &mut content.xfs {
        // A record continues in the next request, or at the beginning of the log.
        if is_own && log.last == content.clock
            || log.at == range.start
            || (log.is_sure && log.start == range.start)
        {
            (log.at, is_own) = (range.end, true);
        }
    }
    is_own
}

fn record(content: &mut Content, head: &Head) -> bool {
    let [cycle, version, len, high, low] = [1, 2, 3, 4, 5].map(|at| head.word(at));
    let (block, len) = (u64::from(low), u64::from(len));
    let start = head.offset.checked_sub(block * BLOCK);
    // A header without a record only says that there is none: the log was just mounted.
    let is_possible =
        matches!(version, 1 | 2) && cycle == high && cycle > 0 && (1..=LARGEST).contains(&len);
    let (Some(start), true) = (start, is_possible) else { return false };
    let behind = block + len.div_ceil(BLOCK);
    let clock = content.clock;
    let Some(log) = content.xfs.iter_mut().find(|log| log.start == start) else {
        let log = Xfs {
            start,
            cycle,
            block,
            behind,
            records: 1,
            end: behind,
            last: clock,
            ..Xfs::default()
        };
        begin(content, log);
        return true;
    };
    let gap = block.wrapping_sub(log.behind);
    let mut wrapped = None;
    if cycle == log.cycle && (1..=LARGEST_HEADER).contains(&gap) {
        (log.header, log.records) = (gap, log.records.saturating_add(1));
    } else if cycle == log.cycle.wrapping_add(1) && block < log.block && log.header > 0 {
        log.records = log.records.saturating_add(1);
        wrapped = (log.behind + log.header).checked_sub(block);
    } else {
        // Mounted again, or something was missed. One that is known begins again; what may become
        // one must begin anew.
        log.records = 1;
    }
    (log.cycle, log.block, log.behind, log.last) = (cycle, block, behind, clock);
    log.strange = log.strange.saturating_sub(len);
    if log.records >= ENOUGH && !log.is_sure {
        (log.is_sure, content.is_changed) = (true, true);
    }
    if let Some(blocks) =
        wrapped.filter(|blocks| blocks + LARGEST / BLOCK + LARGEST_HEADER >= log.end)
    {
        content.is_changed |= !log.is_whole || log.end != blocks;
        (log.end, log.is_whole) = (blocks, true);
    }
    // A record that goes round does not end where it would.
    if behind + log.header.max(1) > log.end && !log.is_whole {
        log.end = behind + log.header.max(1);
        if log.is_sure && log.ahead < log.end + AHEAD / BLOCK / 2 {
            (log.ahead, content.is_changed) = (log.end + AHEAD / BLOCK, true);
        }
    }
    true
}

/// A new one, in the place of the oldest candidate.
fn begin(content: &mut Content, log: Xfs) {
    let xfs = &mut content.xfs;
    if xfs.len() >= MOST_CHAINS {
        let unsure = xfs.iter().enumerate().filter(|(_, log)| !log.is_sure);
        match unsure.min_by_key(|(_, log)| log.last) {
            Some((place, _)) => drop(xfs.remove(place)),
            None => return,
        }
    }
    xfs.push(log);
}

impl Xfs {
    /// True if it is believed in.
    pub(super) fn is_sure(&self) -> bool {
        self.is_sure
    }

    fn known(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.end * BLOCK)
    }

    /// Bytes of a range that are in the known part.
    pub(super) fn overlap(&self, range: &Range<u64>) -> u64 {
        let known = self.known();
        known.end.min(range.end).saturating_sub(known.start.max(range.start))
    }

    /// Notes another writer's write to a range; returns true if it was too much.
    pub(super) fn is_written_over(&mut self, range: &Range<u64>) -> bool {
        self.strange = self.strange.saturating_add(self.overlap(range));
        self.strange > FORGIVEN.max(self.end * BLOCK / 8)
    }

    /// Returns the ranges of the verdict.
    pub(super) fn ranges(&self, size: u64) -> Vec<Range<u64>> {
        let end = if self.is_whole { self.end } else { self.end.max(self.ahead) };
        let range = self.start..self.start.saturating_add(end * BLOCK).min(size);
        if range.is_empty() { Vec::new() } else { vec![range] }
    }
}
