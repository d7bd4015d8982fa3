//! The vCPU scheduler: it boosts a vCPU whose I/O has completed, and keeps that fair by the loans
//! of [`vlane_policy::loan`].

#![deny(unsafe_code)]

mod adopt;
#[cfg(feature = "bpf")]
pub mod bpf;
pub mod discover;
mod error;
pub mod ext;
pub mod hold;
pub mod host;
pub mod link;
pub mod live;
pub mod realtime;
#[allow(unsafe_code, reason = "two system calls without a safe wrapper")]
pub mod sys;
pub mod thread;
mod vehicle;

pub use error::{Error, ErrorKind, Result};
pub use vehicle::{Counter, VcpuThreads, Vehicle};
pub use vlane_hint::{Classes, Mark, ProcessId, now};
