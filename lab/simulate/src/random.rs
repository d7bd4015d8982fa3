//! Repeatable chance. Every source has a stream of its own, so a policy that serves events earlier
//! does not change the arrivals of the others.

use serde::{Deserialize, Serialize};

/// A stream of pseudo-random numbers (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom
/// number generators", 2014).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Random(u64);

impl Random {
    /// Stream `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut whole = Self(seed);
        let apart = whole.next().wrapping_add(stream.wrapping_mul(0xd134_2543_de82_ef95));
        let mut own = Self(apart);
        own.next();
        own
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Above 0, at most 1.
    pub fn unit(&mut self) -> f64 {
        let bits = ((self.next() >> 11) + 1) as f64;
        bits / (1u64 << 53) as f64
    }
}

/// How times are spread around their mean.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Law {
    /// Always the mean.
    #[default]
    Fixed,
    /// Exponentially: the times between the events of a Poisson process.
    Exponential,
    /// Evenly from zero to twice the mean.
    Uniform,
}

/// A time, or times, by their mean.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// The mean, microseconds.
    pub us: f64,
    /// The spread.
    #[serde(default)]
    pub law: Law,
}

impl Span {
    /// One of these times, nanoseconds.
    pub fn draw(self, random: &mut Random) -> u64 {
        let times = match self.law {
            Law::Fixed => 1.0,
            Law::Exponential => -random.unit().ln(),
            Law::Uniform => 2.0 * random.unit(),
        };
        nanoseconds(self.us * times)
    }
}

/// Microseconds as nanoseconds; what is below zero or no number is 0.
pub fn nanoseconds(us: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let ns = (us * 1e3).round() as u64;
    ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_have_their_mean() {
        let first = |seed, stream| Random::new(seed, stream).next();
        assert_eq!(first(1, 2), first(1, 2));
        assert!(first(1, 2) != first(1, 3) && first(1, 2) != first(2, 2));
        for law in [Law::Fixed, Law::Exponential, Law::Uniform] {
            let mut random = Random::new(7, 1);
            let span = Span { us: 50.0, law };
            let sum: u64 = (0..100_000).map(|_| span.draw(&mut random)).sum();
            assert!((sum / 100_000).abs_diff(50_000) < 1_000, "{law:?}: {}", sum / 100_000);
        }
    }
}
