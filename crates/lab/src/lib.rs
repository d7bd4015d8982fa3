//! Measurements on the user's own machine.
//!
//! Every measurement ends as a [`report::Report`]: text for the terminal, JSON for programs, a page with pictures for people.

#![forbid(unsafe_code)]

pub mod bench;
pub mod caches;
pub mod compare;
pub mod control;
pub mod date;
pub mod error;
pub mod express;
mod guests;
pub mod image;
pub mod interrupt;
pub mod loans;
pub mod machine;
pub mod output;
pub mod peers;
pub mod power_cut;
pub mod progress;
pub mod report;
pub mod server;
pub mod sniff;
pub mod stats;
pub mod throttle;
pub mod topologies;
pub mod trace;
pub mod work;

pub use error::{Context, Error, ErrorKind, Result};
pub use interrupt::Interrupt;
pub use machine::Machine;
pub use output::Output;
pub use progress::Progress;
pub use server::Server;
