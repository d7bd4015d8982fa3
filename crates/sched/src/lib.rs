//! The vCPU scheduler: it boosts a vCPU whose I/O has completed, and keeps that fair by the loans of
//! [`vlane_policy::loan`].

pub mod discover;
mod error;
pub mod link;
mod vehicle;

pub use error::{Error, ErrorKind, Result};
pub use vehicle::{VcpuThreads, Vehicle};
pub use vlane_hint::{Classes, Mark, ProcessId, now};
