//! The guest's side of a vhost-user-blk device: a front end that drives any back end, measures it,
//! and checks what it stored.
//!
//! - [`Session`]: connection, negotiation, memory and queues ([`ring`] has the rings).
//! - [`run`]: a [`Workload`] on every queue of a session, with latencies, and what the back end's
//!   process used meanwhile ([`vlane_cost`]).
//! - [`run_crowd`]: one foreground reader in parallel with many others, with I/O priorities.
//! - [`replay::replay`]: a recorded sequence of requests, with its timing or as fast as possible,
//!   in an order that keeps its flushes' meaning.
//! - [`verify_load`], [`verify_check`]: data that prove themselves, across the death of the back
//!   end.
//! - [`Report`]: the results, serializable.
//!
//! The crate does not depend on vlane's own back end: qemu-storage-daemon, SPDK, crosvm's device or
//! any other will do.

#![deny(unsafe_code)]

mod crowd;
pub mod device;
mod error;
mod job;
mod lanes;
mod message;
mod random;
mod rate;
pub mod replay;
mod report;
#[allow(unsafe_code, reason = "the rings lie in memory that is shared with the device")]
pub mod ring;
mod run;
mod session;
mod verify;
mod watchdog;
mod window;
mod workload;

pub use crowd::{Crowd, CrowdReport, Had, run_crowd};
pub use device::{BlkConfig, Negotiated};
pub use error::{Error, ErrorKind};
pub use rate::{Arrivals, Rate};
pub use report::{BackendUse, Buckets, ByKind, Latency, OpenReport, Report};
pub use run::{OnProgress, Progress, idle, pin, run};
pub use session::{GuestQueue, Session, SessionOptions, Waker, Want};
pub use verify::{Mismatch, VerifyReport, VerifyState, verify_check, verify_load};
pub use window::Errors;
pub use workload::{Limit, Mix, Pattern, Region, Requests, Wait, Workload};
