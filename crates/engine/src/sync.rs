//! Synchronisation types where this crate's threads meet. The models (crates/models) compile
//! [`crate::file::exclusion`], [`crate::file::flushes`] and [`crate::file::placements`] with loom's
//! in their place.

pub(crate) use std::os::fd::OwnedFd as Waker;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Wakes whoever waits for the eventfd, which does not block.
pub(crate) fn wake(waker: &Waker) {
    // One that is full is readable already.
    let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
}
