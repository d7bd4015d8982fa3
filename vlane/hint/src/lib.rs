//! Hints from lanes to the vCPU scheduler about completed I/O.
//!
//! The scheduler is another process, and more privileged than the back end. They meet at a unix
//! socket ([`Client`] is the back end's end, the scheduler's is in `vlane-sched`) and exchange two
//! descriptors ([`message`]): the back end sends a [`Board`], memory with a slot for each lane; the
//! scheduler sends an eventfd. From then on there are no messages: a lane marks its slot and writes
//! the eventfd if the scheduler wants to be woken ([`LaneHint`]); the scheduler looks at the slots
//! ([`BoardReader`]). The connection stays open only so that each sees the other die.

#![forbid(unsafe_code)]

mod appear;
mod board;
mod client;
mod error;
mod lane;
pub mod message;
mod process;
mod reader;
mod sync;
#[cfg(test)]
mod tests;

pub use board::{Board, Classes, MAX_LANES};
pub use client::{Change, Client, Guest, default_sockets};
pub use error::HintError;
pub use lane::LaneHint;
pub use process::ProcessId;
pub use reader::{BoardReader, Mark};

/// `CLOCK_MONOTONIC`, ns.
// off the data path: only lanes with a scheduler need the time.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither is ever negative.
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}
