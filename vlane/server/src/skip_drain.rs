//! The message `VHOST_USER_GET_VRING_BASE_SKIP_DRAIN`, which the `vhost` crate does not know: as
//! GET_VRING_BASE, but requests in flight need not be answered first.

use std::io;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvFlags, SendFlags};

const GET_VRING_BASE_SKIP_DRAIN: u32 = 45;
/// Request, flags, size of the body; the body is a queue's index and a number.
const MESSAGE: usize = 20;
const BODY: u32 = 8;
/// Flags of a header: the protocol's version, "this is a reply".
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;

/// Takes the next message off the stream if it is of this kind and has come as a whole. Returns the
/// queue's index.
pub(crate) fn take(stream: &UnixStream) -> Option<u32> {
    let mut message = [0; MESSAGE];
    let (_, seen) =
        rustix::net::recv(stream, &mut message[..], RecvFlags::PEEK | RecvFlags::DONTWAIT).ok()?;
    let word = |at: usize| message[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    let is_whole = seen == MESSAGE && word(0) == GET_VRING_BASE_SKIP_DRAIN && word(8) == BODY;
    if !is_whole || word(4) & 3 != VERSION {
        return None;
    }
    let queue = word(12);
    // The bytes seen are the bytes taken: no other thread reads from the stream meanwhile.
    rustix::net::recv(stream, &mut message[..], RecvFlags::DONTWAIT).ok()?;
    Some(queue)
}

/// Answers with the position where the queue continues.
pub(crate) fn answer(stream: &UnixStream, queue: u32, base: u32) -> io::Result<()> {
    let mut reply = [0; MESSAGE];
    let words = [GET_VRING_BASE_SKIP_DRAIN, VERSION | REPLY, BODY, queue, base];
    for (to, word) in reply.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    rustix::net::send(stream, &reply, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}
