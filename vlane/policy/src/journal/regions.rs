//! Direct regions: those parts of the journals that are read and written around the page cache.
//!
//! A page that is written both ways loses data, and the system's pages are part of larger folios.
//! So a region is whole folios, of the largest possible size: a part of a journal that shares a
//! folio with other data is in none. A folio is aligned to its own size, so none reaches over a
//! region's border.

use std::ops::Range;

use super::trailing::largest_folio;
use super::{Evidence, LogKind, Map};

/// An immutable set of regions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Regions {
    /// In the order of their places; none overlaps or touches another.
    ranges: Vec<Range<u64>>,
}

impl Regions {
    /// Of the journals that do not move, which are those of the layout. For a volume of `size`
    /// bytes, on a system with pages of `page` bytes, on storage that does direct I/O in blocks of
    /// `block` bytes.
    pub fn new(map: &Map, size: u64, page: u64, block: u64) -> Regions {
        let page = page.clamp(512, 1 << 20).next_power_of_two();
        let unit = largest_folio(page).max(block.checked_next_power_of_two().unwrap_or(u64::MAX));
        let mut regions = Regions::default();
        let mut run = 0..0;
        let is_still = |way, kind| way == Evidence::Layout && kind == LogKind::Journal;
        for piece in
            map.pieces().iter().filter(|piece| is_still(piece.verdict.way, piece.verdict.kind))
        {
            if piece.range.start != run.end {
                regions.push_whole(&run, unit);
                run.start = piece.range.start;
            }
            run.end = piece.range.end.min(size);
        }
        regions.push_whole(&run, unit);
        regions
    }

    /// One range, of whole units.
    pub fn of(range: Range<u64>) -> Regions {
        Regions { ranges: if range.is_empty() { Vec::new() } else { vec![range] } }
    }

    /// Adds the whole units of a range; it lies behind all others.
    fn push_whole(&mut self, range: &Range<u64>, unit: u64) {
        let Some(start) = range.start.checked_next_multiple_of(unit) else { return };
        let end = range.end - range.end % unit;
        if start < end {
            self.push(start..end);
        }
    }

    fn push(&mut self, range: Range<u64>) {
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }

    /// In the order of their places; none overlaps or touches another.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// True if there are no regions.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns true if a byte lies in a region, and the place of the next border behind it: the
    /// largest number, if there is none.
    pub fn at(&self, offset: u64) -> (bool, u64) {
        let next = self.ranges.partition_point(|range| range.end <= offset);
        match self.ranges.get(next) {
            Some(range) if range.start <= offset => (true, range.end),
            Some(range) => (false, range.start),
            None => (false, u64::MAX),
        }
    }

    /// True if a byte of a range lies in a region.
    pub fn touches(&self, range: &Range<u64>) -> bool {
        let next = self.ranges.partition_point(|region| region.end <= range.start);
        !range.is_empty() && self.ranges.get(next).is_some_and(|region| region.start < range.end)
    }

    /// Bytes of a range that lie in regions.
    pub fn bytes_of(&self, range: &Range<u64>) -> u64 {
        let first = self.ranges.partition_point(|region| region.end <= range.start);
        let touched = self.ranges[first..].iter().take_while(|region| region.start < range.end);
        touched
            .map(|region| region.end.min(range.end).saturating_sub(region.start.max(range.start)))
            .sum()
    }

    /// Returns the ranges in exactly one of the two: a change from one to the other changes them.
    pub fn difference(&self, other: &Regions) -> Regions {
        self.combine(other, |own, others| own != others)
    }

    /// Returns the ranges in this and not in the other one.
    pub fn without(&self, other: &Regions) -> Regions {
        self.combine(other, |own, others| own && !others)
    }

    /// Returns the ranges in either of the two.
    pub fn with(&self, other: &Regions) -> Regions {
        self.combine(other, |own, others| own || others)
    }

    fn combine(&self, other: &Regions, is_in: impl Fn(bool, bool) -> bool) -> Regions {
        let mut borders: Vec<u64> = self
            .ranges
            .iter()
            .chain(&other.ranges)
            .flat_map(|range| [range.start, range.end])
            .collect();
        borders.sort_unstable();
        borders.dedup();
        let mut regions = Regions::default();
        for pair in borders.windows(2) {
            if is_in(self.at(pair[0]).0, other.at(pair[0]).0) {
                regions.push(pair[0]..pair[1]);
            }
        }
        regions
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::journal::{FileSystem, Journal};

    const FOLIO: u64 = 2 << 20;
    const SIZE: u64 = 1 << 40;

    fn journal(way: Evidence, kind: LogKind, ranges: Vec<Range<u64>>) -> Journal {
        Journal { filesystem: FileSystem::Ext4, kind, way, ranges }
    }

    fn regions(journals: &[Journal], size: u64) -> Vec<Range<u64>> {
        Regions::new(&Map::new(journals), size, 4096, 512).ranges().to_vec()
    }

    fn layout(ranges: Vec<Range<u64>>) -> [Journal; 1] {
        [journal(Evidence::Layout, LogKind::Journal, ranges)]
    }

    #[test]
    fn only_layout_journals_become_regions() {
        let ranges = || vec![Range { start: 0, end: 4 * FOLIO }];
        let of = |way, kind| regions(&[journal(way, kind, ranges())], SIZE);
        assert_eq!(of(Evidence::Layout, LogKind::Journal), ranges());
        for way in [Evidence::Content, Evidence::Pattern] {
            assert_eq!(of(way, LogKind::Journal), []);
        }
        assert_eq!(of(Evidence::Layout, LogKind::Log), []);
    }

    #[test]
    fn region_is_whole_folios_within_the_volume() {
        assert_eq!(regions(&layout(vec![1..4 * FOLIO - 1]), SIZE), [FOLIO..3 * FOLIO]);
        assert_eq!(regions(&layout(vec![1..2 * FOLIO - 1]), SIZE), []);
        assert_eq!(regions(&layout(vec![0..8 * FOLIO]), 3 * FOLIO - 512), [0..2 * FOLIO]);
        assert_eq!(regions(&layout(vec![8 * FOLIO..9 * FOLIO]), 3 * FOLIO), []);
        assert_eq!(regions(&layout(vec![u64::MAX - 7..u64::MAX]), u64::MAX), []);
        // Two pieces that touch within a folio.
        assert_eq!(
            regions(&layout(vec![0..FOLIO + 5, FOLIO + 5..3 * FOLIO]), SIZE),
            [0..3 * FOLIO]
        );
        assert_eq!(
            regions(&layout(vec![0..FOLIO + 5, FOLIO + 6..3 * FOLIO]), SIZE),
            [0..FOLIO, 2 * FOLIO..3 * FOLIO]
        );
    }

    #[test]
    fn larger_pages_and_blocks_make_larger_units() {
        let map = Map::new(&layout(vec![1..SIZE]));
        let first = |page, block| {
            Regions::new(&map, SIZE, page, block).ranges().first().map(|range| range.start)
        };
        assert_eq!(first(4096, 4096), Some(2 << 20));
        assert_eq!(first(16 << 10, 512), Some(32 << 20));
        assert_eq!(first(4096, 8 << 20), Some(8 << 20));
        assert_eq!(first(4096, u64::MAX), None);
    }

    fn set(numbers: &[bool]) -> Regions {
        let mut regions = Regions::default();
        let ones = (0u64..).zip(numbers).filter(|(_, one)| **one);
        ones.for_each(|(at, _)| regions.push(at * FOLIO..(at + 1) * FOLIO));
        regions
    }

    proptest! {
        #[test]
        fn regions_are_exactly_the_all_journal_folios(
            pieces in prop::collection::vec((0..6u64, 1..40u64), 1..8),
            size in 1..400u64,
        ) {
            // In eighths of a folio.
            const UNIT: u64 = FOLIO / 8;
            let (mut at, mut ranges) = (0, Vec::new());
            for (gap, len) in pieces {
                ranges.push((at + gap) * UNIT..(at + gap + len) * UNIT);
                at += gap + len;
            }
            let size = size * UNIT;
            let regions = Regions::new(&Map::new(&layout(ranges.clone())), size, 4096, 4096);
            let is_journal = |unit: u64| {
                let byte = unit * UNIT;
                byte < size && ranges.iter().any(|range| range.contains(&byte))
            };
            for folio in 0..60 {
                let is_whole = (folio * 8..folio * 8 + 8).all(is_journal);
                for unit in folio * 8..folio * 8 + 8 {
                    prop_assert_eq!(regions.at(unit * UNIT).0, is_whole);
                }
            }
            prop_assert!(regions.ranges().windows(2).all(|pair| pair[0].end < pair[1].start));
        }

        #[test]
        fn region_sets_match_folio_sets(
            own in prop::collection::vec(any::<bool>(), 12),
            others in prop::collection::vec(any::<bool>(), 12),
            begin in 0..13 * FOLIO,
            len in 0..4 * FOLIO,
        ) {
            let (a, b) = (set(&own), set(&others));
            let of = |f: fn(bool, bool) -> bool| {
                let all: Vec<bool> = own.iter().zip(&others).map(|(own, other)| f(*own, *other)).collect();
                set(&all)
            };
            prop_assert_eq!(a.difference(&b), of(|own, other| own != other));
            prop_assert_eq!(a.without(&b), of(|own, other| own && !other));
            prop_assert_eq!(a.with(&b), of(|own, other| own || other));
            let range = begin..begin + len;
            let has = |byte: u64| own.get(usize::try_from(byte / FOLIO).unwrap_or(usize::MAX)).copied().unwrap_or(false);
            // Cut at each border: what a request's parts are.
            let (mut at, mut inside) = (range.start, 0);
            while at < range.end {
                let (is_in, border) = a.at(at);
                prop_assert_eq!(is_in, has(at));
                prop_assert!(border > at);
                let end = border.min(range.end);
                prop_assert_eq!(has(end - 1), is_in);
                inside += if is_in { end - at } else { 0 };
                at = end;
            }
            prop_assert_eq!(a.bytes_of(&range), inside);
            prop_assert_eq!(a.touches(&range), inside > 0);
        }
    }
}
