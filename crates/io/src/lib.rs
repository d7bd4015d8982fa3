//! The way to the storage, which a thread's lanes share.
//!
//! A thread has one [`Uring`]: its wait point, and the place where operations are submitted. A virtqueue is held in
//! an [`IoQueue`], which keeps a request's memory in place while the kernel works on it. An [`Operation`] names a step
//! towards the storage in words, without a pointer or a descriptor.

mod error;
mod io_queue;
mod operation;
mod piece;
mod seats;
mod signal;
mod sync;
#[cfg(not(vlane_simulated))]
pub mod system;
#[cfg(vlane_simulated)]
#[path = "simulated.rs"]
pub mod system;
mod uring;

use std::io;

pub use error::{Error, ErrorKind};
pub use io_queue::{IoQueue, select};
pub use operation::{Class, Completion, Decisions, Memory, Operation, Placement, StorageFile, What, ZEROES};
pub use piece::Piece;
pub use seats::Seat;
pub use signal::Signaller;
pub use sync::{Waker, wake};
pub use system::Instant;
pub use uring::{Event, Finished, HAND_OVER_MARGIN, Uring, WAKE_TOKENS};
pub use vlane_ring::{Request, Slot, Status};

/// Seats for so many threads of a volume, which then can hand operations to each other ([`Uring::sit`]).
///
/// # Errors
/// When the system gives no eventfd.
pub fn seats(threads: usize) -> io::Result<Vec<Seat>> {
    use rustix::event::{EventfdFlags, eventfd};
    let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let bells = (0..threads).map(|_| bell()).collect::<Result<Vec<_>, _>>()?;
    Ok(seats::seats(bells, seats::CELLS))
}
