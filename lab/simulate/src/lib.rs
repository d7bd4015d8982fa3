//! vCPU schedulers on a host that is not there: discrete events, the same every time, the same
//! decisions as live.
//!
//! A [`Scenario`] names the machine and its loads, a [`Setup`] the host scheduler; [`run`] makes an
//! [`Outcome`] of them. [`vlane_policy::loan`] alone decides loans, credits and boosts. The
//! simulator models the effect of a decision: queues, turns, guests that serve events before they
//! compute, and loads that come from outside or follow served events.

#![forbid(unsafe_code)]

mod credit;
mod eevdf;
mod host;
mod outcome;
mod random;
mod scenario;
mod setup;
mod world;

pub use host::Loans;
pub use outcome::{LoadOutcome, MachineOutcome, Outcome};
pub use random::{Law, Random, Span};
pub use scenario::{Compute, EMBEDDED, Load, Machine, Scenario, Via};
pub use setup::{ABLATION, COMPARED, Credit, Ends, Host, Pool, Setup, names};
pub use vlane_error::program::{Error, ErrorKind, Result};
pub use world::{run, run_unless};
