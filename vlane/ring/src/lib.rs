//! Virtqueues on guest memory, and the virtio-blk requests in them.
//!
//! The device's side of split and packed virtqueues (virtio 1.2, sections 2.7 and 2.8) with cached
//! host pointers: [`Queue::take`] takes a chain out of the guest's memory, reads every descriptor
//! once, checks it and yields a typed [`Request`]; [`Queue::answer`] and [`Queue::show`] give back
//! a whole batch with one store. The other side, the guest's, is in `vlane-driver`.
//!
//! Guest memory is hostile. No value from it is trusted twice, and no content makes this crate
//! panic, loop or touch an address outside the regions of
//! [`GuestMemory`](vlane_memory::GuestMemory). A queue that breaks the rules of the specification
//! is [`Broken`], with the reason, and its owner stops it.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod blk;
mod chain;
mod error;
mod inflight;
#[cfg(feature = "kill-points")]
pub mod kill;
pub mod limits;
mod packed;
pub mod probes;
mod queue;
mod split;

pub use blk::{IoPriority, PriorityClass, Range, Request, RequestKind, SECTOR, Status, Words};
pub use chain::MAX_BUFFERS;
pub use error::{Broken, Lost, QueueError, RingFormat};
pub use inflight::{InflightError, InflightPart, InflightRegion, NotedImage, Notes};
pub use limits::MAX_QUEUE_SIZE;
pub use queue::{Queue, QueueConfig, Slot};

/// Between two stores that another process can see: here a device may be killed, in tests.
#[inline(always)]
fn kill_point() {
    #[cfg(feature = "kill-points")]
    kill::point();
}
