//! Virtqueues on guest memory, and the virtio-blk requests in them.
//!
//! The device's side of split and packed virtqueues (virtio 1.2, sections 2.7 and 2.8) with cached host pointers:
//! [`Queue::pop`] takes a chain out of the guest's memory, reads every descriptor once, checks it and yields a typed
//! [`Request`]; [`Queue::complete`] and [`Queue::publish`] give back a whole batch with one store. [`driver`] is the
//! other side, the guest's, for the benchmark and the tests.
//!
//! Guest memory is hostile. Nothing read from it is trusted twice, nothing in it makes this crate panic, loop or
//! touch an address outside the regions of [`GuestMemory`]; a queue that breaks the rules of the specification is
//! [`Broken`], with the reason, and its owner stops it.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod blk;
mod chain;
mod dirty;
pub mod driver;
mod error;
pub mod fault;
pub mod limits;
mod memory;
mod packed;
pub mod probes;
mod queue;
pub mod shared;
mod split;

pub use blk::{IoPriority, Kind, PriorityClass, Range, Request, SECTOR, Status, Words};
pub use chain::MAX_BUFFERS;
pub use dirty::DirtyLog;
pub use error::{Broken, Layout, QueueError};
pub use memory::{GuestMemory, MemoryError, Region, RegionSpec};
pub use queue::{MAX_QUEUE_SIZE, Queue, QueueConfig, Slot};
