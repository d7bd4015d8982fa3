//! The units of the loan policy, and its constants: every one of them is here.
//!
//! CPU time is counted in nanoseconds, in `i64` or `u64`, never in floating point: a simulation
//! comes to the same decisions on every machine. A *credit* is 100 us of CPU time (Xen's Credit
//! scheduler: ten credits per millisecond) and is used only where people read or write figures.

/// Nanoseconds of CPU time in one credit.
pub const CREDIT_NS: u64 = 100_000;
/// Nanoseconds in a millisecond.
pub const MS: u64 = 1_000_000;
/// Nanoseconds in a microsecond.
pub const US: u64 = 1_000;
/// Every so often credits are given out (Xen's Credit scheduler: 30 ms).
pub const PERIOD_NS: u64 = 30 * MS;
/// The weight of a virtual machine without a setting (Xen: 256).
pub const DEFAULT_WEIGHT: u32 = 256;
/// A whole, where shares are counted in parts per thousand.
pub const PERMILLE: u64 = 1000;
/// A whole, where rates are counted in parts per million of one CPU.
pub const PPM: u64 = 1_000_000;

/// `a * b / c` without overflow in between; `c` of 0 counts as 1, and a result beyond `u64` is its
/// largest value.
pub(crate) fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    let whole = u128::from(a) * u128::from(b) / u128::from(c.max(1));
    u64::try_from(whole).unwrap_or(u64::MAX)
}

/// Credits as people write them.
pub fn credits(ns: i64) -> f64 {
    ns as f64 / CREDIT_NS as f64
}

/// A rate in parts per million of a CPU as the paper's credits per millisecond (a whole CPU: 10).
pub fn credits_per_ms(ppm: u64) -> f64 {
    ppm as f64 * 10.0 / PPM as f64
}
