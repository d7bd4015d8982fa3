//! Signals to a guest.

use std::os::fd::OwnedFd;

use rustix::fs::FileType;
use rustix::net::SendFlags;

/// A call descriptor. Nearly always an eventfd; User-Mode Linux gives one end of a pair of sockets.
#[derive(Debug)]
pub(crate) enum Call {
    Event(OwnedFd),
    Socket(OwnedFd),
}

impl Call {
    pub(crate) fn new(fd: OwnedFd) -> Call {
        let is_socket = rustix::fs::fstat(&fd)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
        if is_socket { Call::Socket(fd) } else { Call::Event(fd) }
    }

    /// Signals the guest. A full descriptor is readable already: the guest is going to look.
    #[inline]
    pub(crate) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        let _ = match self {
            Call::Event(fd) => rustix::io::write(fd, &one),
            // A guest that does not read must not make the lane wait, or raise SIGPIPE.
            Call::Socket(fd) => {
                rustix::net::send(fd, &one, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
        };
    }
}
