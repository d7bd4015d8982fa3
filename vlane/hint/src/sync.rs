//! Synchronisation types where lane and scheduler meet. The models (checks/models) compile both
//! ends of the board with loom's in its place.

pub(crate) use std::os::fd::OwnedFd as Waker;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{Ordering, fence};

/// Wakes the waiter of the eventfd.
pub(crate) fn wake(waker: &Waker) {
    // One that is full is readable already.
    let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
}
