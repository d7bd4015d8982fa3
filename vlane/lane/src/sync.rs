//! The synchronization that this crate's threads use. The models (checks/models) compile
//! [`crate::mail`] with loom's in their place.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::EventfdFlags;

/// Wakes a thread that waits for descriptors: an eventfd.
#[derive(Debug)]
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> io::Result<Wake> {
        Ok(Wake(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn raise(&self) {
        // Full (EAGAIN) means that it is readable: awake it will be.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
