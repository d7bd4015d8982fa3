//! Eventfds that another process shares: how they are recognised, and signalled without waiting.
//!
//! A write to an eventfd waits while its counter is full, unless `O_NONBLOCK` is set. A process
//! that shares the file may clear that flag, or fill the counter between a look and the write
//! (`RWF_NOWAIT` is not for writes to eventfds). The kernel's own signal never waits: it adds as
//! much to the counter as fits. An io_uring gives it with each completion to the eventfd that is
//! registered for that. The kernel registers eventfds only, so this also recognises an eventfd,
//! without /proc.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode};

/// Signals eventfds, and knows them.
pub struct Signaller {
    ring: IoUring,
}

impl std::fmt::Debug for Signaller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signaller")
    }
}

impl Signaller {
    /// A signaller; it has a descriptor of its own.
    ///
    /// # Errors
    /// When the system gives no io_uring.
    pub fn new() -> io::Result<Signaller> {
        Ok(Signaller { ring: IoUring::new(1)? })
    }

    /// Returns true if `fd` is an eventfd.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn is_eventfd(&self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        match self.ring.submitter().register_eventfd(fd.as_raw_fd()) {
            Ok(()) => self.ring.submitter().unregister_eventfd().map(|()| true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes an eventfd readable. Does not wait, for any counter and flags; a full counter stays
    /// full.
    ///
    /// # Errors
    /// When it is no eventfd, or the system has no memory for the moment.
    pub fn signal(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.submitter().register_eventfd(fd.as_raw_fd())?;
        let completed = self.complete_something();
        // In any case: the next one could not be registered.
        self.ring.submitter().unregister_eventfd()?;
        completed
    }

    fn complete_something(&mut self) -> io::Result<()> {
        let nothing = opcode::Nop::new().build();
        // SAFETY: the operation refers to no memory.
        if unsafe { self.ring.submission().push(&nothing) }.is_err() {
            // One is left from a call that was interrupted; it does as well.
            tracing::trace!("an operation waits already");
        }
        let submitted = self.ring.submit_and_wait(1);
        self.ring.completion().for_each(drop);
        submitted.map(drop)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests may")]

    use std::os::fd::{AsFd, OwnedFd};

    use super::*;

    fn eventfd(count: u64) -> OwnedFd {
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        if count > 0 {
            rustix::io::write(&fd, &count.to_ne_bytes()).unwrap();
        }
        fd
    }

    fn count(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn eventfd_is_signalled_at_any_counter() {
        let mut signaller = Signaller::new().unwrap();
        let (empty, one, full) = (eventfd(0), eventfd(1), eventfd(u64::MAX - 1));
        for _ in 0..3 {
            for fd in [&empty, &one, &full] {
                signaller.signal(fd.as_fd()).unwrap();
            }
        }
        assert_eq!((count(&empty), count(&one)), (3, 4));
        assert!(count(&full) >= u64::MAX - 1);
    }

    #[test]
    fn other_files_are_no_eventfds() {
        let mut signaller = Signaller::new().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let timer = rustix::time::timerfd_create(
            rustix::time::TimerfdClockId::Monotonic,
            rustix::time::TimerfdFlags::CLOEXEC,
        );
        let timer = timer.unwrap();
        let epoll =
            rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for _ in 0..2 {
            assert!(signaller.is_eventfd(eventfd(7).as_fd()).unwrap());
            for other in
                [reader.as_fd(), writer.as_fd(), timer.as_fd(), epoll.as_fd(), null.as_fd()]
            {
                assert!(!signaller.is_eventfd(other).unwrap(), "{other:?}");
                assert!(signaller.signal(other).is_err());
            }
        }
    }
}
