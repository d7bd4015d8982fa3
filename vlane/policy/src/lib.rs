//! The decisions of vlane, pure: no I/O, no clock, no thread, no `unsafe`. Time and events are
//! arguments, so the same code decides in a simulator, in a live scheduler and in a test.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::single_range_in_vec_init,
        clippy::cast_possible_truncation,
        clippy::unwrap_used,
        reason = "tests may"
    )
)]

pub mod cache_budget;
pub mod express;
pub mod journal;
pub mod loan;
pub mod throttle;
