//! How many distinct blocks were written.

use std::collections::HashMap;
use std::ops::Range;

/// Bits that a footprint has at most: 32 MiB of memory.
const MOST: u64 = 1 << 28;
/// Bits of a group: 4 KiB of memory, which is taken when the first of its blocks is written.
const GROUP: u64 = 1 << 15;

/// Which blocks of a volume were written, one bit each.
///
/// Memory: 32 MiB per TiB of which something was written in every 128 MiB, and less for the rest. A
/// volume of more than 1 TiB is counted in larger blocks, so that it is never more than 32 MiB.
#[derive(Debug, Clone)]
pub struct Footprint {
    block: u64,
    groups: HashMap<u64, Box<[u64]>>,
    blocks: u64,
}

impl Footprint {
    /// For a volume of `size` bytes.
    pub fn new(size: u64) -> Footprint {
        let mut block = 4096;
        while size.div_ceil(block) > MOST {
            block *= 2;
        }
        Footprint { block, groups: HashMap::new(), blocks: 0 }
    }

    /// Bytes of a block.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// Bytes of the blocks that were written, each counted once.
    pub fn bytes(&self) -> u64 {
        self.blocks * self.block
    }

    /// A range was written. Bytes beyond the size of the beginning are not counted once there is no
    /// memory left for them.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.start / self.block, (range.end - 1) / self.block);
        for number in first / GROUP..=last / GROUP {
            if self.groups.len() as u64 >= MOST / GROUP && !self.groups.contains_key(&number) {
                return;
            }
            let group = self.groups.entry(number).or_insert_with(|| vec![0; 512].into());
            let begin = first.max(number * GROUP) % GROUP;
            let end = last.min(number * GROUP + (GROUP - 1)) % GROUP;
            let words = (0u64..).zip(group.iter_mut()).skip_while(|(index, _)| *index < begin / 64);
            for (index, word) in words.take_while(|(index, _)| *index <= end / 64) {
                let low = begin.saturating_sub(index * 64);
                let high = (end - index * 64).min(63);
                let bits = (u64::MAX << low) & (u64::MAX >> (63 - high));
                self.blocks += u64::from((bits & !*word).count_ones());
                *word |= bits;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn footprint_memory_is_bounded() {
        assert_eq!(Footprint::new(1 << 40).block(), 4096);
        assert_eq!(Footprint::new((1 << 40) + 1).block(), 8192);
        assert_eq!(Footprint::new(1 << 50).block(), 4 << 20);
        let mut all = Footprint::new(u64::MAX);
        all.add(u64::MAX - 1..u64::MAX);
        assert_eq!(all.bytes(), all.block());
    }

    proptest! {
        #[test]
        fn each_block_is_counted_once(writes in prop::collection::vec((0..300_000u64, 1..70_000u64), 1..8)) {
            let mut footprint = Footprint::new(1 << 40);
            let mut blocks = std::collections::HashSet::new();
            for (at, len) in writes {
                let range = at * 512..(at + len) * 512;
                blocks.extend(range.start / 4096..range.end.div_ceil(4096));
                footprint.add(range);
            }
            prop_assert_eq!(footprint.bytes(), blocks.len() as u64 * 4096);
        }
    }
}
