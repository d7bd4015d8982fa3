//! Messages of a front end that began to talk to another process.
//!
//! The `vhost` crate keeps what was negotiated to itself: which messages are allowed, and which are
//! answered, depends on it. There is no way to tell it. So its handler gets the same messages as
//! from a front end before the first one of the true front end. But it reads from one stream only,
//! which it owns. That stream is therefore one end of a pair. The negotiation goes in at the other
//! end first. Each message of the front end follows, as it is, one at a time; the answer goes the
//! other way.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use vhost::vhost_user::{BackendReqHandler, Error, Result};

use super::State;
use crate::handover::Talked;

const HEADER: usize = 12;
/// The longest body of a message.
const BODY: usize = 0x1000;
/// Descriptors that come with a message at most.
const DESCRIPTORS: usize = 32;
const VERSION: u32 = 1;

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_PROTOCOL_FEATURES: u32 = 16;

/// Handles a front end's messages.
pub(super) struct Messages {
    handler: BackendReqHandler<Mutex<State>>,
    /// The other end of the handler's stream, if that is not the front end's.
    relay: Option<UnixStream>,
}

impl Messages {
    /// The messages of a front end that has just connected.
    pub(super) fn new(stream: UnixStream, state: &Arc<Mutex<State>>) -> Messages {
        let handler = BackendReqHandler::from_stream(stream, Arc::clone(state));
        Messages { handler, relay: None }
    }

    /// The messages of a front end that has sent `talked` to another process. `state` is as if this
    /// process had received them.
    pub(super) fn continued(talked: Talked, state: &Arc<Mutex<State>>) -> io::Result<Messages> {
        let (mut ours, theirs) = UnixStream::pair()?;
        let mut handler = BackendReqHandler::from_stream(theirs, Arc::clone(state));
        let said = [
            talked.asked_features.then_some((GET_FEATURES, None)),
            talked.features.map(|features| (SET_FEATURES, Some(features))),
            talked.protocol.map(|features| (SET_PROTOCOL_FEATURES, Some(features))),
        ];
        for (code, value) in said.into_iter().flatten() {
            let value = value.map(u64::to_le_bytes);
            let body = value.as_ref().map_or(&[][..], |value| &value[..]);
            let len = if body.is_empty() { 0u32 } else { 8 };
            let mut message: Vec<u8> =
                [code, VERSION, len].iter().flat_map(|word| word.to_le_bytes()).collect();
            message.extend(body);
            ours.write_all(&message)?;
            // A message refused then is refused again.
            let _ = handler.handle_request();
        }
        // Answers without a reader.
        ours.set_nonblocking(true)?;
        while matches!(ours.read(&mut [0; 256]), Ok(len) if len > 0) {}
        ours.set_nonblocking(false)?;
        Ok(Messages { handler, relay: Some(ours) })
    }

    /// Returns true if the front end has talked to another process before.
    pub(super) fn is_continued(&self) -> bool {
        self.relay.is_some()
    }

    /// Handles the next message of the front end, which is at the other end of `watched`.
    pub(super) fn handle(&mut self, watched: &UnixStream) -> Result<()> {
        let Messages { handler, relay } = self;
        let Some(relay) = relay else { return handler.handle_request() };
        bring(watched, relay)?;
        let handled = handler.handle_request();
        answer(relay, watched)?;
        handled
    }
}

/// Brings one message from the front end, with its descriptors.
fn bring(from: &UnixStream, to: &UnixStream) -> Result<()> {
    let mut message = vec![0; HEADER];
    let (len, descriptors) =
        receive(from, &mut message, RecvFlags::CMSG_CLOEXEC).map_err(Error::SocketBroken)?;
    if len == 0 {
        return Err(Error::Disconnected);
    }
    let mut from = from;
    let read = |from: &mut &UnixStream, bytes: &mut [u8]| match from.read_exact(bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Error::PartialMessage),
        other => other.map_err(Error::SocketBroken),
    };
    read(&mut from, &mut message[len..])?;
    let size = message[8..].first_chunk().map_or(0, |size| u32::from_le_bytes(*size));
    // A longer one is no message: the handler sees it from the header, and the session ends.
    if let Some(size) = usize::try_from(size).ok().filter(|size| *size <= BODY) {
        message.resize(HEADER + size, 0);
        read(&mut from, &mut message[HEADER..])?;
    }
    send(to, &message, &descriptors).map_err(Error::SocketBroken)
}

/// Brings what the handler answered, if it did, to the front end.
fn answer(from: &UnixStream, to: &UnixStream) -> Result<()> {
    let mut message = vec![0; HEADER + BODY];
    match receive(from, &mut message, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT) {
        Ok((len, descriptors)) => {
            send(to, &message[..len], &descriptors).map_err(Error::SocketBroken)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(Error::SocketBroken(error)),
    }
}

fn receive(
    from: &UnixStream,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(from, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)
    })?;
    let mut descriptors = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = part {
            descriptors.extend(some);
        }
    }
    Ok((received.bytes, descriptors))
}

fn send(to: &UnixStream, message: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    if !borrowed.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(to, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    // The descriptors are with the first byte.
    let mut to = to;
    to.write_all(&message[sent..])
}
