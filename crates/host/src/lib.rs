//! Helpers of a measurement on the host: a back end that is started and stopped, guests, images,
//! files for results, and an end when the user asks for one.
//!
//! The lab's experiments and the commands of `vlane` are built on it. It does not measure.

#![forbid(unsafe_code)]

pub mod control;
pub mod error;
pub mod fio;
pub mod guests;
pub mod image;
pub mod interrupt;
pub mod output;
pub mod rounds;
pub mod server;
pub mod sniff;

pub use error::{Context, Error, ErrorKind, Result};
pub use interrupt::Interrupt;
pub use output::Output;
pub use rounds::Rounds;
pub use server::Server;
