//! Random numbers that are the same for the same seed.

/// A small fast generator (xoroshiro128+ would do as well): wyrand. Not for secrets.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Self(seed ^ 0x5851_f42d_4c95_7f2d);
        rng.next();
        rng
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let wide = u128::from(self.0) * u128::from(self.0 ^ 0xe703_7ed1_a0b4_28db);
        #[expect(clippy::cast_possible_truncation, reason = "the halves are folded")]
        let folded = (wide >> 64) as u64 ^ wide as u64;
        folded
    }

    /// Uniform below `n`.
    #[inline]
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}
