//! Reports failed requests of the storage without work on the data path: a flag, and an eventfd for
//! the sleeping watcher.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::EventfdFlags;

/// Wakes the watcher of a volume. Lanes raise it when they have published counters that show
/// failures. It is written to once until the watcher lowers it, however many requests fail
/// meanwhile.
#[derive(Debug)]
pub struct Alarm {
    raised: AtomicBool,
    wake: OwnedFd,
}

impl Alarm {
    /// An alarm that is not raised.
    ///
    /// # Errors
    /// An error if the system gives no eventfd.
    pub fn new() -> io::Result<Alarm> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Alarm { raised: AtomicBool::new(false), wake })
    }

    /// Requests failed.
    pub fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Wakes the watcher, raised or not.
    pub fn wake(&self) {
        // Full means readable.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The watcher is going to look at the counters: from now on a failure raises it again.
    pub fn lower(&self) {
        self.raised.store(false, Ordering::Release);
    }

    /// The watcher is awake.
    pub fn woken(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }

    /// Readable when the watcher is wanted.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
