//! Which of the many states after a power cut are looked at: drawn from a seed, by strategies that
//! each find another kind of mistake.

use super::storage::{Choice, Sector, Storage};

/// The sectors of ext4's superblock, in a file system that begins with the volume. It has one
/// checksum, is written in place, and is not repaired without a user's consent. So ext4 assumes
/// that a disk writes both or neither. Disks with physical blocks of 4 KiB do.
const SUPERBLOCK: [usize; 2] = [2, 3];

/// How a state is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Only durable operations are there.
    None,
    /// All of it is, in order.
    All,
    /// All but one operation.
    AllButOne,
    /// One operation and no other.
    OnlyOne,
    /// All that began before one of them.
    Prefix,
    /// Each operation or not.
    Operations,
    /// Each sector or not, whichever operation it belongs to: torn.
    Sectors,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Strategy; 7] = [
        Strategy::None,
        Strategy::All,
        Strategy::AllButOne,
        Strategy::OnlyOne,
        Strategy::Prefix,
        Strategy::Operations,
        Strategy::Sectors,
    ];

    /// In a word or two.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::None => "none",
            Strategy::All => "all",
            Strategy::AllButOne => "all but one",
            Strategy::OnlyOne => "only one",
            Strategy::Prefix => "prefix",
            Strategy::Operations => "random operations",
            Strategy::Sectors => "random sectors",
        }
    }
}

/// Numbers from a seed: splitmix64.
#[derive(Debug, Clone)]
pub struct Chance(pub u64);

impl Chance {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.draw() % n.max(1) as u64).unwrap_or(0)
    }
}

/// Chooses the content of each open sector, by a strategy.
pub fn chooser(
    strategy: Strategy,
    storage: &Storage<'_>,
    chance: &mut Chance,
) -> impl FnMut(usize, &Sector) -> Choice + use<> {
    let unsure = storage.unsure();
    let one = if unsure.is_empty() { 0 } else { unsure[chance.below(unsure.len())] };
    let mut chance = Chance(chance.draw());
    // Decides if an operation is there: the same for all of its sectors.
    let coin = chance.draw();
    let mut superblock = None;
    move |number, sector| {
        let is_there = |operation: usize| match strategy {
            Strategy::None | Strategy::Sectors => false,
            Strategy::All => true,
            Strategy::AllButOne => operation != one,
            Strategy::OnlyOne => operation == one,
            Strategy::Prefix => operation < one,
            Strategy::Operations => Chance(coin ^ operation as u64).draw() & 1 == 0,
        };
        if strategy == Strategy::Sectors {
            let choices = sector.choices().count();
            let drawn = sector.choices().nth(chance.below(choices)).unwrap_or(Choice::Old);
            if number == SUPERBLOCK[0] {
                superblock = Some(drawn);
            }
            let whole = superblock.filter(|first| {
                number == SUPERBLOCK[1] && sector.choices().any(|possible| possible == *first)
            });
            return whole.unwrap_or(drawn);
        }
        let newest = sector.by.iter().rev().find(|operation| is_there(**operation));
        // Something must be there; the oldest that may be.
        newest.map_or_else(
            || sector.choices().next().unwrap_or(Choice::Old),
            |found| Choice::By(*found),
        )
    }
}
