//! The message `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`, which the `vhost` crate can receive but not
//! send. Its `Backend` also keeps the channel to itself, so the descriptor is copied out of the
//! message that brings it before the crate reads it.

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::io;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

const SET_BACKEND_REQ_FD: u32 = 21;
const CONFIG_CHANGE_MSG: u32 = 2;
const VERSION: u32 = 1;

/// Returns the descriptor that the next message carries, if that message brings the channel.
pub(crate) fn peek(stream: &UnixStream) -> Option<OwnedFd> {
    let mut header = [0u8; 4];
    let mut buffers = [IoSliceMut::new(&mut header)];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let mut none = RecvAncillaryBuffer::default();
    // Looked at in two steps, so that descriptors of other messages are not copied in vain.
    let seen = rustix::net::recvmsg(stream, &mut buffers, &mut none, flags).ok()?;
    if seen.bytes < 4 || u32::from_le_bytes(header) != SET_BACKEND_REQ_FD {
        return None;
    }
    let mut buffers = [IoSliceMut::new(&mut header)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(stream, &mut buffers, &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)
        .ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

pub(crate) fn send(channel: &OwnedFd) -> io::Result<()> {
    let mut message = [0u8; 12];
    message[0..4].copy_from_slice(&CONFIG_CHANGE_MSG.to_le_bytes());
    message[4..8].copy_from_slice(&VERSION.to_le_bytes());
    rustix::net::send(
        channel,
        &message,
        rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT,
    )?;
    Ok(())
}
