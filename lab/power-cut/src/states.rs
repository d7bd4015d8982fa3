//! Which of the many states after a power cut are looked at: drawn from a seed, by strategies that
//! each find another kind of mistake.

use fastrand::Rng;

use super::storage::{Sector, Storage};

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

/// All of them, each in a word or two.
pub const STRATEGIES: [(Strategy, &str); 7] = [
    (Strategy::None, "none"),
    (Strategy::All, "all"),
    (Strategy::AllButOne, "all but one"),
    (Strategy::OnlyOne, "only one"),
    (Strategy::Prefix, "prefix"),
    (Strategy::Operations, "random operations"),
    (Strategy::Sectors, "random sectors"),
];

/// Chooses the content of each open sector, by a strategy.
pub fn chooser(
    strategy: Strategy,
    storage: &Storage<'_>,
    chance: &mut Rng,
) -> impl FnMut(usize, &Sector) -> Option<usize> + use<> {
    let unsure = storage.unsure();
    let one = chance.choice(unsure).unwrap_or(0);
    let mut chance = chance.fork();
    // Decides if an operation is there: the same for all of its sectors.
    let coin = chance.u64(..);
    let mut superblock = None;
    move |number, sector| {
        let is_there = |operation: usize| match strategy {
            Strategy::None | Strategy::Sectors => false,
            Strategy::All => true,
            Strategy::AllButOne => operation != one,
            Strategy::OnlyOne => operation == one,
            Strategy::Prefix => operation < one,
            Strategy::Operations => Rng::with_seed(coin ^ operation as u64).bool(),
        };
        if strategy == Strategy::Sectors {
            let drawn = *chance.choice(sector).unwrap_or(&None);
            if number == SUPERBLOCK[0] {
                superblock = Some(drawn);
            }
            let is_second = number == SUPERBLOCK[1];
            return superblock.filter(|first| is_second && sector.contains(first)).unwrap_or(drawn);
        }
        let newest = sector.iter().rev().find(|choice| choice.is_some_and(is_there));
        // Something must be there; the oldest that may be.
        *newest.or(sector.first()).unwrap_or(&None)
    }
}
