//! The control socket's client, and the manners that all commands share.
//!
//! [`control`] asks a served volume and changes its limits, [`record`] records its requests.
//! [`sniff`] recognises a file or a socket that was given by mistake, [`output`] writes results
//! without ruining a file, [`interrupt`] ends work at Ctrl-C, and [`progress`] shows how far it is.

#![forbid(unsafe_code)]

pub mod control;
pub mod interrupt;
pub mod output;
pub mod progress;
pub mod record;
pub mod sniff;

pub use interrupt::Interrupt;
pub use output::Output;
pub use progress::Progress;
pub use vlane_error::program::{Context, Error, ErrorKind, Result};
