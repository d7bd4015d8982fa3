//! Shared by the property tests. The fuzz targets use all of it but this file.

// Every test target compiles this and uses a part of it.
#![allow(dead_code, unused_imports)]

mod guest;
pub mod model;
pub mod packed;

pub use guest::*;

use proptest::test_runner::{Config, RngSeed};

/// The same cases in every run; `PROPTEST_CASES` and `PROPTEST_RNG_SEED` ask for more and for
/// others. Under Miri, which is slower by orders of magnitude, a few.
pub fn cases(cases: u32) -> Config {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = if cfg!(miri) { (cases / 400).clamp(2, 3) } else { cases };
    }
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = RngSeed::Fixed(0x6c61_6e65);
    }
    config
}
