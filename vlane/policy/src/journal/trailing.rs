//! The trailing drop: which journal bytes may go from the page cache, and which ranges are given to
//! the system to have them go.
//!
//! A journal's writes go through the page cache as all others do. Once a flush has made them
//! durable, the system is asked to drop their pages (`posix_fadvise(DONTNEED)`). It drops clean
//! pages only, and no part of a large folio that the range covers in part. So ranges are widened to
//! the borders of the largest possible folio, but never beyond the journal.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Evidence, LogKind, Map};

/// Folios that are remembered at most; further ones stay in the cache until they are written again.
/// With folios of 2 MiB that is a journal of 128 GiB.
const MOST: usize = 1 << 16;

/// Bytes that may be written while a drop is under way, from where the last write ended.
const AHEAD: u64 = 2 << 20;

/// Which journal bytes were written, and not dropped.
#[derive(Debug, Clone, Default)]
pub struct Trailing {
    page: u64,
    folio: u64,
    /// Numbers of the folios with bytes that no flush has made durable since they were written.
    fresh: BTreeSet<u64>,
    fresh_bytes: u64,
    /// The same of those that one has.
    due: BTreeSet<u64>,
    due_bytes: u64,
    /// Where the last write ended.
    tail: Option<u64>,
}

/// A range to be dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drop {
    /// Bytes of the volume, all of them one journal's.
    pub range: Range<u64>,
    /// How the journal was found.
    pub way: Evidence,
}

impl Trailing {
    /// For a system with pages of `page` bytes: a power of two.
    pub fn new(page: u64) -> Trailing {
        let page = page.clamp(512, 1 << 20).next_power_of_two();
        Trailing { page, folio: largest_folio(page), ..Trailing::default() }
    }

    /// Bytes of the largest folio that there can be. Ranges are widened to its borders.
    pub fn folio(&self) -> u64 {
        self.folio
    }

    /// The journal's bytes of a write. `is_durable`: it is when it is answered, without a flush.
    pub fn wrote(&mut self, range: Range<u64>, is_durable: bool) {
        if range.is_empty() {
            return;
        }
        let (set, bytes) = match is_durable {
            true => (&mut self.due, &mut self.due_bytes),
            false => (&mut self.fresh, &mut self.fresh_bytes),
        };
        *bytes = bytes.saturating_add(range.end - range.start);
        remember(set, &range, self.folio);
        self.tail = Some(range.end);
    }

    /// A range may have been written to, at an unknown time.
    pub fn may_have_written(&mut self, range: &Range<u64>) {
        if !range.is_empty() {
            self.fresh_bytes = self.fresh_bytes.saturating_add(range.end - range.start);
            remember(&mut self.fresh, range, self.folio);
        }
    }

    /// Writes have paused: the next drop may go up to where the last write ended, and beyond.
    pub fn rests(&mut self) {
        self.tail = None;
    }

    /// A flush has succeeded: all earlier writes are durable.
    pub fn flushed(&mut self) {
        self.due.append(&mut self.fresh);
        self.due_bytes = self.due_bytes.saturating_add(std::mem::take(&mut self.fresh_bytes));
    }

    /// Bytes that were written and are durable, since the last drop.
    pub fn due(&self) -> u64 {
        self.due_bytes
    }

    /// Returns the ranges to drop now: all that is durable. In order, none overlaps another.
    ///
    /// From the page in which the last write ended, 2 MiB are left out, and come next time. The
    /// next write begins there. It would have to read the page. Once it has made one dirty, the
    /// system writes that back before it drops the others, which can wait for seconds for other
    /// writers.
    pub fn take(&mut self, map: &Map) -> Vec<Drop> {
        self.due_bytes = 0;
        let mut drops = Vec::new();
        let mut run: Option<Range<u64>> = None;
        let due = std::mem::take(&mut self.due);
        for number in &due {
            let begin = number.saturating_mul(self.folio);
            let end = begin.saturating_add(self.folio);
            match &mut run {
                Some(run) if run.end == begin => run.end = end,
                _ => {
                    drops_of(run.replace(begin..end), map, &mut drops);
                }
            }
        }
        drops_of(run, map, &mut drops);
        if let Some(tail) = self.tail {
            let begin = tail - tail % self.page;
            self.leave_out(&(begin..begin.saturating_add(AHEAD)), &mut drops);
        }
        drops
    }

    /// Takes a part out of the present drops.
    fn leave_out(&mut self, left: &Range<u64>, drops: &mut Vec<Drop>) {
        let is_apart = |drop: &Drop| drop.range.end <= left.start || left.end <= drop.range.start;
        for Drop { range, way } in drops.extract_if(.., |drop| !is_apart(drop)).collect::<Vec<_>>()
        {
            let both = range.start.max(left.start)..range.end.min(left.end);
            remember(&mut self.due, &both, self.folio);
            let parts = [range.start..both.start, both.end..range.end];
            drops.extend(
                parts.into_iter().filter(|part| !part.is_empty()).map(|range| Drop { range, way }),
            );
        }
        drops.sort_by_key(|drop| drop.range.start);
    }

    /// A part of this range is in the cache after all: it is returned again.
    pub fn keep(&mut self, range: &Range<u64>) {
        if !range.is_empty() {
            self.due_bytes = self.due_bytes.saturating_add(range.end - range.start);
            remember(&mut self.due, range, self.folio);
        }
    }
}

/// Adds the folios of a range that is not empty.
fn remember(folios: &mut BTreeSet<u64>, range: &Range<u64>, folio: u64) {
    for number in range.start / folio..=(range.end - 1) / folio {
        if folios.len() >= MOST {
            break;
        }
        folios.insert(number);
    }
}

/// Adds the parts of a run of folios that are a journal's.
fn drops_of(run: Option<Range<u64>>, map: &Map, drops: &mut Vec<Drop>) {
    let Some(run) = run else { return };
    for piece in map.overlapping(run.clone()) {
        if piece.verdict.kind == LogKind::Journal {
            let range = piece.range.start.max(run.start)..piece.range.end.min(run.end);
            drops.push(Drop { range, way: piece.verdict.way });
        }
    }
}

/// Linux maps the page cache's largest folios with one entry of the page table's second level, but
/// has none of more than 2048 pages.
pub(super) fn largest_folio(page: u64) -> u64 {
    page * (page / 8).clamp(1, 2048)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::journal::{FileSystem, Journal};

    const PAGE: u64 = 4096;
    const FOLIO: u64 = 2 << 20;

    fn map(ranges: Vec<Range<u64>>) -> Map {
        let way = Evidence::Layout;
        Map::new(&[Journal { filesystem: FileSystem::Ext4, kind: LogKind::Journal, way, ranges }])
    }

    fn ranges(trailing: &mut Trailing, map: &Map) -> Vec<Range<u64>> {
        trailing.take(map).into_iter().map(|drop| drop.range).collect()
    }

    #[test]
    fn largest_folio_follows_from_the_page() {
        assert_eq!(Trailing::new(4096).folio(), 2 << 20);
        assert_eq!(Trailing::new(16 << 10).folio(), 32 << 20);
        assert_eq!(Trailing::new(64 << 10).folio(), 128 << 20);
    }

    #[test]
    fn durable_pages_are_dropped_once() {
        let map = map(vec![0..8 * FOLIO]);
        let mut trailing = Trailing::new(PAGE);
        trailing.wrote(0..PAGE, false);
        assert_eq!((trailing.due(), ranges(&mut trailing, &map)), (0, vec![]));
        trailing.flushed();
        trailing.wrote(3 * FOLIO..3 * FOLIO + PAGE, false);
        trailing.wrote(5 * FOLIO..5 * FOLIO + PAGE, true);
        assert_eq!(trailing.due(), 2 * PAGE);
        trailing.rests();
        assert_eq!(ranges(&mut trailing, &map), [0..FOLIO, 5 * FOLIO..6 * FOLIO]);
        assert_eq!((trailing.due(), ranges(&mut trailing, &map)), (0, vec![]));
        trailing.keep(&(5 * FOLIO..6 * FOLIO));
        trailing.flushed();
        assert_eq!(ranges(&mut trailing, &map), [3 * FOLIO..4 * FOLIO, 5 * FOLIO..6 * FOLIO]);
    }

    /// It is dropped when the next write is elsewhere.
    #[test]
    fn folio_of_next_write_stays_cached() {
        let map = map(vec![0..4 * FOLIO]);
        let mut trailing = Trailing::new(PAGE);
        trailing.wrote(0..3 * PAGE + 512, true);
        // Not the page that has room.
        assert_eq!(ranges(&mut trailing, &map), [0..3 * PAGE]);
        trailing.wrote(3 * PAGE + 512..4 * PAGE, true);
        assert_eq!(ranges(&mut trailing, &map), [0..4 * PAGE]);
        trailing.wrote(4 * PAGE..3 * FOLIO, true);
        assert_eq!(ranges(&mut trailing, &map), [0..3 * FOLIO]);
        // Round, while all of it is due.
        trailing.wrote(3 * FOLIO..4 * FOLIO, true);
        trailing.wrote(0..FOLIO, true);
        trailing.may_have_written(&(0..4 * FOLIO));
        trailing.flushed();
        assert_eq!(ranges(&mut trailing, &map), [0..FOLIO, 2 * FOLIO..4 * FOLIO]);
        trailing.wrote(FOLIO..2 * FOLIO, true);
        assert_eq!(ranges(&mut trailing, &map), [FOLIO..2 * FOLIO]);
        // All of it, once writes have paused.
        trailing.wrote(2 * FOLIO..2 * FOLIO + 512, true);
        trailing.rests();
        assert_eq!(ranges(&mut trailing, &map), [2 * FOLIO..3 * FOLIO]);
        assert_eq!(ranges(&mut trailing, &map), []);
    }

    #[test]
    fn other_log_stays_cached() {
        let ranges = vec![Range { start: 0, end: FOLIO }];
        let filesystem = FileSystem::Unknown;
        let log = Journal { filesystem, kind: LogKind::Log, way: Evidence::Pattern, ranges };
        let mut trailing = Trailing::new(PAGE);
        trailing.wrote(0..PAGE, true);
        assert_eq!(trailing.take(&Map::new(&[log])), []);
    }

    #[test]
    fn remembered_ranges_are_bounded() {
        let mut trailing = Trailing::new(PAGE);
        trailing.wrote(0..u64::MAX, false);
        trailing.wrote(u64::MAX - 1..u64::MAX, true);
        trailing.keep(&(0..1));
        assert_eq!(trailing.fresh.len(), MOST);
        trailing.flushed();
        // The arithmetic saturates: no range is beyond the end of the numbers.
        assert!(
            ranges(&mut trailing, &map(vec![0..u64::MAX])).is_sorted_by(|a, b| a.end <= b.start)
        );
    }

    proptest! {
        /// Each drop lies in the journal, and ends at a folio or at its border.
        #[test]
        fn drops_cover_pending_journal_bytes_exactly(
            pieces in prop::collection::vec((1..2000u64, 1..3000u64), 1..6),
            writes in prop::collection::vec((0..20_000u64, 1..64u64), 1..20),
        ) {
            // In blocks of 1 KiB: borders of the journal lie anywhere, also within a page.
            let (mut at, mut journal) = (0, Vec::new());
            for (gap, len) in pieces {
                journal.push((at + gap) * 1024..(at + gap + len) * 1024);
                at += gap + len;
            }
            let map = map(journal.clone());
            let mut trailing = Trailing::new(PAGE);
            let mut pending = Vec::new();
            for (at, len) in writes {
                let write = at * 1024..(at + len) * 1024;
                for piece in map.overlapping(write.clone()) {
                    let part = piece.range.start.max(write.start)..piece.range.end.min(write.end);
                    trailing.wrote(part.clone(), false);
                    pending.push(part);
                }
            }
            trailing.flushed();
            // The last write's page is another test's.
            trailing.tail = None;
            let drops = ranges(&mut trailing, &map);
            prop_assert!(drops.is_sorted_by(|a, b| a.end <= b.start), "{:?}", drops);
            for part in &pending {
                let mut begin = part.start;
                for drop in &drops {
                    if drop.contains(&begin) {
                        begin = drop.end;
                    }
                }
                prop_assert!(begin >= part.end, "{:?} is not in {:?}", part, drops);
            }
            for drop in &drops {
                let home = journal.iter().find(|range| range.start <= drop.start && drop.end <= range.end);
                let home = home.cloned();
                prop_assert!(home.is_some(), "{:?} is not in {:?}", drop, journal);
                let home = home.unwrap_or_default();
                prop_assert!(drop.start.is_multiple_of(FOLIO) || drop.start == home.start);
                prop_assert!(drop.end.is_multiple_of(FOLIO) || drop.end == home.end);
                // For something that is pending, within a folio of it.
                let is_near = |part: &Range<u64>| part.start < drop.end + FOLIO && part.end + FOLIO > drop.start;
                prop_assert!(pending.iter().any(is_near));
            }
        }
    }
}
