//! A small set of ranges.

use std::ops::Range;

/// Ranges that a set has at most; one that would be one too many is left out.
pub const MOST: usize = 256;

/// Ranges in the order of their places; none touches another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pieces(Vec<Range<u64>>);

impl Pieces {
    /// Adds a range; says whether the set has more than before.
    pub fn add(&mut self, range: Range<u64>) -> bool {
        if range.start >= range.end {
            return false;
        }
        let first = self.0.partition_point(|piece| piece.end < range.start);
        let last = self.0.partition_point(|piece| piece.start <= range.end);
        match self.0.get(first..last) {
            Some([piece]) if piece.start <= range.start && range.end <= piece.end => false,
            Some([begin, .., end]) => {
                let all = begin.start.min(range.start)..end.end.max(range.end);
                self.0.splice(first..last, [all]);
                true
            }
            Some([piece]) => {
                let all = piece.start.min(range.start)..piece.end.max(range.end);
                self.0[first] = all;
                true
            }
            _ if self.0.len() < MOST => {
                self.0.insert(first, range);
                true
            }
            _ => false,
        }
    }

    /// Adds all of another set.
    pub fn add_all(&mut self, other: &Pieces) {
        for piece in &other.0 {
            self.add(piece.clone());
        }
    }

    /// Bytes of a range that are in the set.
    pub fn overlap(&self, range: &Range<u64>) -> u64 {
        let first = self.0.partition_point(|piece| piece.end <= range.start);
        let parts = self.0[first..].iter().take_while(|piece| piece.start < range.end);
        parts.map(|piece| piece.end.min(range.end) - piece.start.max(range.start)).sum()
    }

    /// True if a byte is in the set.
    pub fn has(&self, at: u64) -> bool {
        self.around(at).is_some()
    }

    /// The range that a byte is in.
    pub fn around(&self, at: u64) -> Option<&Range<u64>> {
        let place = self.0.partition_point(|piece| piece.end <= at);
        self.0.get(place).filter(|piece| piece.start <= at)
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|piece| piece.end - piece.start).sum()
    }

    /// The ranges.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn set_has_exactly_the_added_bytes(ranges in prop::collection::vec((0..200_u64, 0..30_u64), 0..20)) {
            let mut pieces = Pieces::default();
            let mut plain = [false; 256];
            for (begin, len) in ranges {
                let range = begin..begin + len;
                let is_more = plain[begin as usize..(begin + len) as usize].iter().any(|has| !has);
                prop_assert_eq!(pieces.add(range.clone()), is_more);
                plain[begin as usize..(begin + len) as usize].fill(true);
            }
            prop_assert!(pieces.ranges().is_sorted_by(|a, b| a.end < b.start));
            for (at, has) in plain.iter().enumerate() {
                prop_assert_eq!(pieces.has(at as u64), *has);
            }
            let count = plain[20..100].iter().filter(|has| **has).count() as u64;
            prop_assert_eq!(pieces.overlap(&(20..100)), count);
        }
    }
}
