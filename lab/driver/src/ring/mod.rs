//! The guest's side of a virtqueue.
//!
//! The work of a guest's virtio driver, without a guest. It owns memory ([`Arena`], a sealed memfd
//! that a back end maps too), keeps a queue in it ([`Queue`], split or packed), and issues
//! requests. [`BlkQueue`] stands above and speaks virtio-blk with a fixed number of request slots,
//! whose descriptors are built once and used again.
//!
//! The module does not depend on vhost-user. Any holder of the memory's file descriptor and a
//! queue's [`Layout`] can be the device, including a thread of the same process. The rest of the
//! crate adds the connection; the property tests of the device side use it, too.
//!
//! A ring belongs to one thread ([`BlkQueue`] may go from one to another). The peer is reached only
//! through atomics in the shared memory, so a device that misbehaves yields an [`Error`], never
//! undefined behaviour.
//!
//! Source: virtio 1.2, sections 2.7 (split virtqueues), 2.8 (packed virtqueues) and 5.2 (block
//! device).

mod blk;
mod error;
mod format;
mod layout;
mod memory;
mod packed;
mod queue;
mod split;
#[cfg(test)]
mod tests;

pub use blk::{BlkOptions, BlkQueue, Completion, Request, RequestKind, STATUS_NONE};
pub use error::{Error, Violation};
pub use layout::{Format, Layout, Segment, Used};
pub use memory::{Arena, Buf};
pub use queue::Queue;

#[cfg(target_endian = "big")]
compile_error!("the driver writes little-endian rings with native stores");

/// The largest queue that the specification allows (2.7: "32768"; 2.8.10.1 the same for packed
/// queues).
pub const MAX_QUEUE_SIZE: u16 = 32768;

/// Returns true if an index that moved from `old` to `new` passed `event` (virtio 1.2, 2.7.10:
/// `vring_need_event`).
fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
