//! The way to the storage, which a thread's lanes share.
//!
//! A thread has one [`Uring`]: its wait point, and the place where operations are submitted. A
//! virtqueue is held in an [`InflightQueue`], which keeps a request's memory in place while the
//! kernel works on it. An [`Operation`] names a step towards the storage in words, without a
//! pointer or a descriptor.

mod cross_thread;
mod error;
mod inflight_queue;
mod operation;
mod piece;
mod signal;
mod sync;
#[cfg(not(vlane_simulated))]
pub mod system;
#[cfg(vlane_simulated)]
#[path = "../../../checks/dst/io/src/system.rs"]
pub mod system;
mod uring;

use std::io;

pub use cross_thread::CrossThreadQueue;
pub use error::{Error, ErrorKind};
pub use inflight_queue::{InflightQueue, select};
pub use operation::{
    Class, Completion, Decisions, Memory, Operation, OperationKind, Placement, StorageFile, ZEROES,
};
pub use piece::Piece;
pub use signal::Signaller;
pub use sync::{Waker, wake};
pub use system::Instant;
pub use uring::{Event, Finished, HAND_OVER_MARGIN, Uring, WAKE_TOKENS};
pub use vlane_ring::{Request, Slot, Status};

/// Queues for so many threads of a volume, which then can hand operations to each other
/// ([`Uring::join`]).
///
/// # Errors
/// When the system gives no eventfd.
pub fn cross_thread_queues(threads: usize) -> io::Result<Vec<CrossThreadQueue>> {
    use rustix::event::{EventfdFlags, eventfd};
    let waker = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let wakers = (0..threads).map(|_| waker()).collect::<Result<Vec<_>, _>>()?;
    Ok(cross_thread::queues(wakers, cross_thread::CELLS))
}
