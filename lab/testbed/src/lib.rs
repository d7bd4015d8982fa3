//! Helpers of a measurement on the host: a back end that is started and stopped, guests, images,
//! files for results, and an end when the user asks for one.
//!
//! The lab's experiments and the commands of `vlane` are built on it. It does not measure.

#![forbid(unsafe_code)]

mod fail;
pub mod fio;
pub mod guests;
pub mod image;
pub mod options;
pub mod reports;
pub mod rounds;
pub mod server;

pub use fail::{At, Fail};
pub use guests::{Machines, Maker, pause, trouble, wait};
pub use image::{Image, Medium, Place, fill_random};
pub use options::{Also, Call, Installs, Raiser, about, distinct, usage, word};
pub use reports::{check_report, write_report};
pub use rounds::{Rounds, in_turns, missing, settle};
pub use server::{AT_ONCE, Aio, Server, Storage, on_cpus};
pub use vlane_client::control::{Classes, Control, Counters};
pub use vlane_client::record::{RecordOptions, Recording, record};
pub use vlane_client::sniff::{SAVED, Wanted, mistaken};
pub use vlane_client::{Interrupt, Output, Progress, control, interrupt, output, sniff};
pub use vlane_error::program as error;
pub use vlane_error::program::{Context, Error, ErrorKind, Result};
