//! The vCPU scheduler: it boosts a vCPU whose I/O has completed, and keeps that fair by the loans of
//! [`vlane_policy::loan`].

#![deny(unsafe_code)]

mod error;
pub mod ext;
mod vehicle;

pub use error::{Error, ErrorKind, Result};
pub use vehicle::{VcpuThreads, Vehicle};
