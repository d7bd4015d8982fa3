//! The worth of each of vlane's mechanisms in real guests: lanes, cache modes with and without the
//! journal bypass, express, loans, the sched_ext vehicle, limits.
//!
//! Each module is one experiment: what is measured, how, and its report.

#![forbid(unsafe_code)]

pub mod bypass;
pub mod caches;
pub mod express;
pub mod lanes;
pub mod loans;
pub mod sched_ext;
pub mod throttle;
pub mod together;
