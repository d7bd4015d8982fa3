//! Helpers of a measurement on the host: a back end that is started and stopped, guests, images,
//! files for results, and an end when the user asks for one.
//!
//! The lab's experiments and the commands of `vlane` are built on it. It does not measure.

#![forbid(unsafe_code)]

pub mod fio;
pub mod guests;
pub mod image;
pub mod options;
pub mod reports;
pub mod rounds;
pub mod server;

pub use options::{Also, Call, Installs, Raiser, about, distinct, usage, word};
pub use rounds::Rounds;
pub use server::Server;
pub use vlane_client::{Interrupt, Output, control, interrupt, output, sniff};
pub use vlane_error::program as error;
pub use vlane_error::program::{Context, Error, ErrorKind, Result};
