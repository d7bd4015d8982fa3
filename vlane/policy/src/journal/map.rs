//! Where journals lie, for a look at each request.

use std::ops::Range;

use super::{Journal, LogKind, Verdict};

/// Pieces that a map has at most: 24 bytes each. A journal in more pieces than that is not worth
/// it.
pub const MOST_PIECES: usize = 4096;

/// An immutable map of the volume: which bytes are a journal's. Made anew at a change; shared by
/// all callers.
///
/// Memory: 24 bytes a piece ([`MOST_PIECES`] at most), for a volume of any size. A look is a binary
/// search in a list that is nearly always shorter than ten: at most twelve steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Map {
    /// In the order of their places; none overlaps another.
    pieces: Vec<Piece>,
}

/// A piece of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of the volume.
    pub range: Range<u64>,
    /// The verdict on the bytes.
    pub verdict: Verdict,
}

impl Map {
    /// Of these journals, those first that win where two overlap: the more trusted way, then the
    /// earlier of the list.
    pub fn new(journals: &[Journal]) -> Map {
        let mut order: Vec<&Journal> = journals.iter().collect();
        order.sort_by_key(|journal| journal.way);
        let mut map = Map::default();
        for journal in order {
            let verdict = Verdict { kind: journal.kind, way: journal.way };
            for range in &journal.ranges {
                map.add(range.clone(), verdict);
            }
        }
        map
    }

    /// Adds the unknown parts of a range.
    fn add(&mut self, range: Range<u64>, verdict: Verdict) {
        let mut begin = range.start;
        let mut at = self.pieces.partition_point(|piece| piece.range.end <= begin);
        while begin < range.end && self.pieces.len() < MOST_PIECES {
            let next = self.pieces.get(at).map_or(u64::MAX, |piece| piece.range.start);
            let end = next.min(range.end);
            if begin < end {
                self.pieces.insert(at, Piece { range: begin..end, verdict });
                at += 1;
            }
            let Some(known) = self.pieces.get(at) else { break };
            begin = known.range.end;
            at += 1;
        }
    }

    /// Its pieces, in the order of their places.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// True if no range is known.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the verdict on one byte.
    pub fn at(&self, offset: u64) -> Option<Verdict> {
        self.overlapping(offset..offset.saturating_add(1)).next().map(|piece| piece.verdict)
    }

    /// The pieces of which `range` has a part, in order.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = &Piece> {
        let first = self.pieces.partition_point(|piece| piece.range.end <= range.start);
        self.pieces[first..].iter().take_while(move |piece| piece.range.start < range.end)
    }

    /// Bytes of all pieces of one kind.
    pub fn bytes(&self, kind: LogKind) -> u64 {
        let of_kind = self.pieces.iter().filter(|piece| piece.verdict.kind == kind);
        of_kind.map(|piece| piece.range.end - piece.range.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::journal::{Evidence, FileSystem};

    fn journal(way: Evidence, kind: LogKind, ranges: Vec<Range<u64>>) -> Journal {
        Journal { filesystem: FileSystem::Ext4, kind, way, ranges }
    }

    #[test]
    fn more_trusted_way_wins_overlaps() {
        let map = Map::new(&[
            journal(Evidence::Pattern, LogKind::Log, vec![0..100]),
            journal(Evidence::Layout, LogKind::Journal, vec![40..60]),
        ]);
        let ranges: Vec<_> =
            map.pieces().iter().map(|piece| (piece.range.clone(), piece.verdict.way)).collect();
        assert_eq!(
            ranges,
            [(0..40, Evidence::Pattern), (40..60, Evidence::Layout), (60..100, Evidence::Pattern)]
        );
        assert_eq!(map.bytes(LogKind::Journal), 20);
        assert_eq!(map.at(59).map(|verdict| verdict.kind), Some(LogKind::Journal));
        assert_eq!(map.at(100), None);
    }

    proptest! {
        #[test]
        fn map_gives_the_most_trusted_verdict(
            journals in prop::collection::vec((0..3u8, any::<bool>(), prop::collection::vec((0..200u64, 1..40u64), 1..5)), 0..6),
        ) {
            let journals: Vec<Journal> = journals.into_iter().map(|(way, log, ranges)| {
                let ways = [Evidence::Layout, Evidence::Content, Evidence::Pattern];
                let way = ways[usize::from(way)];
                let kind = if log { LogKind::Log } else { LogKind::Journal };
                journal(way, kind, ranges.into_iter().map(|(begin, len)| begin..begin + len).collect())
            }).collect();
            let map = Map::new(&journals);
            prop_assert!(map.pieces().is_sorted_by(|a, b| a.range.end <= b.range.start));
            let mut order: Vec<&Journal> = journals.iter().collect();
            order.sort_by_key(|journal| journal.way);
            for byte in 0..260 {
                let known = order.iter().find(|journal| journal.ranges.iter().any(|range| range.contains(&byte)));
                let known = known.map(|journal| Verdict { kind: journal.kind, way: journal.way });
                prop_assert_eq!(map.at(byte), known);
                let parts: Vec<_> = map.overlapping(byte..byte + 7).map(|piece| piece.range.clone()).collect();
                let all: Vec<_> = map.pieces().iter().map(|piece| piece.range.clone())
                    .filter(|range| range.start < byte + 7 && range.end > byte).collect();
                prop_assert_eq!(parts, all);
            }
        }
    }
}
