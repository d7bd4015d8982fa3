//! Measurements on the user's own machine.
//!
//! Every measurement ends as a [`vlane_report::Report`]: text for the terminal, JSON for programs, a page with pictures for people.

#![forbid(unsafe_code)]

pub mod bench;
pub mod caches;
pub mod compare;
pub mod express;
pub mod loans;
pub mod peers;
pub mod power_cut;
pub mod throttle;
pub mod topologies;
pub mod trace;
pub mod work;
