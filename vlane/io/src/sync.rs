//! Synchronisation types where this crate's threads meet. The models (checks/models) compile
//! [`crate::cross_thread`] with loom's in their place.

pub use std::os::fd::OwnedFd as Waker;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

/// Wakes the waiter of the eventfd, which does not block.
#[inline]
pub fn wake(waker: &Waker) {
    // One that is full is readable already.
    let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
}
