//! The generations that a block may hold, and the reasons: pure bookkeeping.

use serde::{Deserialize, Serialize};

use super::sector::Found;

/// The known state of one block. Generation 0 is the contents before the first write.
///
/// At most one request is out per block, so generations are issued one after the other, and
/// `durable <= floor <= ceiling <= issued`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Block {
    /// The oldest generation that may be found after a crash: it was flushed.
    pub(super) durable: u32,
    /// The oldest generation that may be found now.
    pub(super) floor: u32,
    /// The newest generation that may be found now.
    pub(super) ceiling: u32,
    /// The newest generation that was ever issued; never used again.
    pub(super) issued: u32,
    /// The newest generation that was acknowledged, for the count of unflushed losses.
    pub(super) acked: u32,
}

impl Block {
    /// A write goes out; returns its generation.
    pub(super) fn issue(&mut self) -> u32 {
        self.issued += 1;
        self.ceiling = self.issued;
        self.issued
    }

    /// The last write was acknowledged. (A failed one leaves both old and new possible.)
    pub(super) fn acknowledge(&mut self, durable: bool) {
        self.floor = self.issued;
        self.acked = self.issued;
        if durable {
            self.durable = self.issued;
        }
    }

    /// A flush that was issued when `generation` had been acknowledged is done.
    pub(super) fn flushed(&mut self, generation: u32) {
        self.durable = self.durable.max(generation);
    }

    /// The back end has died.
    pub(super) fn crash(&mut self) {
        self.floor = self.durable;
    }

    /// A read, with no write out on the block, found every sector within bounds, from `low` to
    /// `high`: these are the present contents. Returns true if an acknowledged write turns out to
    /// be lost.
    pub(super) fn observe(&mut self, low: u32, high: u32) -> bool {
        let lost = low < self.acked;
        (self.floor, self.ceiling, self.acked) = (low, high, low);
        lost
    }

    /// The generation of a sector if the block may hold it.
    pub(super) fn accept(&self, found: Found) -> Option<u32> {
        match found {
            Found::Generation(g) => (self.floor..=self.ceiling).contains(&g).then_some(g),
            Found::Foreign => (self.floor == 0).then_some(0),
            Found::Misplaced { .. } | Found::Damaged => None,
        }
    }
}

/// A sector that held what it must not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Byte offset of the sector in the device.
    pub offset: u64,
    /// The oldest generation that it may hold (0: what was there before the first write).
    pub oldest: u32,
    /// The newest generation that it may hold.
    pub newest: u32,
    /// Its contents, in words.
    pub found: String,
}

impl Mismatch {
    pub(super) fn new(sector: u64, block: &Block, found: Found) -> Self {
        let found = match found {
            Found::Generation(g) if g < block.floor => {
                format!("generation {g}: older, a write was lost")
            }
            Found::Generation(g) => format!("generation {g}: newer than any that may be there"),
            Found::Foreign => {
                "data never written here: writes were lost, or another program wrote".into()
            }
            Found::Misplaced { sector, generation } => {
                format!("the data of offset {}, generation {generation}", sector * 512)
            }
            Found::Damaged => "damaged contents: the checksum does not match".into(),
        };
        Self { offset: sector * 512, oldest: block.floor, newest: block.ceiling, found }
    }
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { offset, oldest, newest, found } = self;
        write!(f, "offset {offset}: must be generation {oldest} to {newest}, is {found}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unflushed data may be there.
    #[test]
    fn only_flushed_data_must_be_there() {
        let mut block = Block::default();
        assert_eq!(block.accept(Found::Foreign), Some(0));
        assert_eq!(block.issue(), 1);
        block.acknowledge(false);
        assert_eq!(
            (block.accept(Found::Foreign), block.accept(Found::Generation(1))),
            (None, Some(1))
        );
        block.flushed(1);
        assert_eq!(block.issue(), 2);
        block.acknowledge(false);
        assert_eq!(block.issue(), 3);
        // Generation 3 is out, 2 acknowledged, 1 flushed.
        block.crash();
        for (g, may) in [(0, false), (1, true), (2, true), (3, true), (4, false)] {
            assert_eq!(block.accept(Found::Generation(g)).is_some(), may, "{g}");
        }
        assert!(block.accept(Found::Damaged).is_none() && block.accept(Found::Foreign).is_none());
        assert!(block.observe(1, 1), "2 was acknowledged and is lost");
        assert_eq!(block.accept(Found::Generation(2)), None, "it was 1 a moment ago");
        assert_eq!(block.issue(), 4);
    }

    #[test]
    fn flush_covers_earlier_acknowledged_writes() {
        let mut block = Block::default();
        block.issue();
        block.acknowledge(false);
        let generation = block.acked;
        block.issue();
        block.acknowledge(false);
        block.flushed(generation);
        block.crash();
        assert_eq!((block.floor, block.ceiling), (1, 2));
    }

    #[test]
    fn acknowledged_data_lasts_without_cache() {
        let mut block = Block::default();
        block.issue();
        block.acknowledge(true);
        block.crash();
        assert_eq!(
            (block.accept(Found::Foreign), block.accept(Found::Generation(1))),
            (None, Some(1))
        );
    }
}
