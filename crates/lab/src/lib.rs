//! Measurements on the user's own machine.
//!
//! Every measurement ends as a [`vlane_report::Report`]: text for the terminal, JSON for programs, a page with pictures for people.

#![forbid(unsafe_code)]

pub mod bench;
pub mod caches;
pub mod compare;
pub mod control;
pub mod error;
pub mod express;
mod guests;
pub mod image;
pub mod interrupt;
pub mod loans;
pub mod output;
pub mod peers;
pub mod power_cut;
pub mod server;
pub mod sniff;
pub mod throttle;
pub mod topologies;
pub mod trace;
pub mod work;

pub use error::{Context, Error, ErrorKind, Result};
pub use interrupt::Interrupt;
pub use output::Output;
pub use server::Server;
