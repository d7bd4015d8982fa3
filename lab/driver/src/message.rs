//! The few vhost-user messages that are sent past the `vhost` crate's front end, on the same
//! socket, without asking for a reply.
//!
//! SET_VRING_BASE of a packed ring has 32 bits, of which the crate's call takes 16. The eventfds
//! must be the crate's own type there, which cannot be waited for with epoll without unsafe code.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// VHOST_USER_SET_VRING_BASE.
const SET_VRING_BASE: u32 = 10;
/// VHOST_USER_SET_VRING_KICK.
const SET_VRING_KICK: u32 = 12;
/// VHOST_USER_SET_VRING_CALL.
const SET_VRING_CALL: u32 = 13;
/// The header's flags: protocol version 1.
const VERSION: u32 = 1;

/// SET_VRING_BASE for a packed ring that was never used: avail and used position 0, both wrap
/// counters 1.
pub(crate) fn packed_base(stream: &UnixStream, queue: u16) -> std::io::Result<()> {
    send(stream, SET_VRING_BASE, [queue.into(), 0x8000_8000], None)
}

/// SET_VRING_KICK.
pub(crate) fn kick(stream: &UnixStream, queue: u16, fd: BorrowedFd<'_>) -> std::io::Result<()> {
    send(stream, SET_VRING_KICK, [queue.into(), 0], Some(fd))
}

/// SET_VRING_CALL.
pub(crate) fn call(stream: &UnixStream, queue: u16, fd: BorrowedFd<'_>) -> std::io::Result<()> {
    send(stream, SET_VRING_CALL, [queue.into(), 0], Some(fd))
}

/// Sends a message of 8 bytes and at most one descriptor.
fn send(
    stream: &UnixStream,
    request: u32,
    body: [u32; 2],
    fd: Option<BorrowedFd<'_>>,
) -> std::io::Result<()> {
    let mut bytes = [0; 20];
    let words = [request, VERSION, 8, body[0], body[1]];
    for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds;
    if let Some(fd) = fd {
        fds = [fd];
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
    }
    let sent = sendmsg(stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    // A stream socket takes 20 bytes as a whole unless the peer lets it fill up.
    if sent == bytes.len() { Ok(()) } else { Err(std::io::ErrorKind::WriteZero.into()) }
}
