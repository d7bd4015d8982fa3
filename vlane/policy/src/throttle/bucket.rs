//! One rate: the cost of a piece, and the time when it is due.

use std::num::NonZeroU64;
use std::time::Duration;

use super::{TICKS_PER_NS, ticks};

/// Parts of a tick in which the cost of a token is kept, as a power of two.
const FRACTION: u32 = 32;
/// The most that anything costs: two years, so that sums do not overflow.
const MOST: u64 = 1 << 60;
/// The piece for takers that need less: as many tokens as come in this time. A lane that waits
/// wakes this often.
const PIECE: Duration = Duration::from_micros(500);

/// A rate and a burst. The level that it works on is stored elsewhere: see [`super::Level`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// Ticks for each token, times 2 to the [`FRACTION`].
    cost: u128,
    burst: u64,
    piece: u64,
}

/// The result of asking a level for a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The level from now on.
    pub level: u64,
    /// When the piece may be used.
    pub due: u64,
}

impl Bucket {
    /// `rate` tokens per second, and as many at once as come in `burst`.
    pub fn new(rate: NonZeroU64, burst: Duration) -> Bucket {
        let second = u128::from(TICKS_PER_NS) * 1_000_000_000;
        // Rounded up: rather less than the rate, by one part in a billion.
        let cost = (second << FRACTION).div_ceil(u128::from(rate.get()));
        let burst = ticks(burst).min(MOST);
        Bucket { cost, burst, piece: ticks(PIECE).min(burst / 4).max(1) }
    }

    /// Returns the cost of so many tokens, in ticks.
    #[inline]
    pub fn cost(&self, tokens: u64) -> u64 {
        // At most 2^34 * 2^32 for a token, of which there are less than 2^62 in anything that
        // exists.
        let parts =
            self.cost.saturating_mul(u128::from(tokens)).saturating_add((1 << FRACTION) - 1);
        u64::try_from(parts >> FRACTION).unwrap_or(MOST).min(MOST)
    }

    /// Returns the piece for takers that need less, in ticks.
    pub fn piece(&self) -> u64 {
        self.piece
    }

    /// The burst, in ticks.
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// Takes a piece that costs so much.
    #[inline]
    pub fn ask(&self, level: u64, now: u64, cost: u64) -> Asked {
        // A level that the clock has passed is a full bucket: no more than the burst is saved up.
        let from = level.max(now);
        // A request larger than the burst passes when the bucket is full.
        let credit = self.burst.saturating_sub(cost);
        Asked { level: from.saturating_add(cost), due: from.saturating_sub(credit) }
    }
}
