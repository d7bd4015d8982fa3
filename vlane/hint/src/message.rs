//! Messages between back end and scheduler when they meet; one packet each on a `SOCK_SEQPACKET`
//! socket, all numbers little-endian:
//!
//! | offset | hello: back end to scheduler, with the board | welcome, with an eventfd | refused |
//! |---|---|---|---|
//! | 0 | `vlsh` | `vlsh` | `vlsh` |
//! | 4 | version, u16 | version, u16 | version, u16 |
//! | 6 | 1, u16 | 2, u16 | 3, u16 |
//! | 8 | pid of the machine's process, u32 | | why, UTF-8, to the end |
//! | 12 | lanes, u16 | | |
//! | 14 | bytes of the name, u16 | | |
//! | 16 | start time of the process, clock ticks, u64 | | |
//! | 24 | for each lane its vCPU, u32 | | |
//! | then | what people call the volume, UTF-8 | | |
//!
//! There are no other messages. A packet with anything missing, too much or unknown is an error,
//! and ends the connection.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::board::MAX_LANES;
use crate::error::HintError;
use crate::process::ProcessId;

const MAGIC: [u8; 4] = *b"vlsh";
const VERSION: u16 = 1;
/// Bytes of a volume's name, and of words that say why.
const MAX_TEXT: usize = 512;
const HELLO_HEAD: usize = 24;
/// Bytes of the longest message.
const MAX: usize = HELLO_HEAD + 4 * MAX_LANES as usize + MAX_TEXT;
/// Descriptors that are taken out of one message; it must have one at most, more are closed.
const MAX_FDS: usize = 4;

/// The first message of a back end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The virtual machine's process: the front end of the back end's session.
    pub process: ProcessId,
    /// For each lane, the vCPU that waits for its completions.
    pub vcpus: Vec<u32>,
    /// The volume's name.
    pub name: String,
}

/// Any message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A back end's session introduces itself; with the board.
    Hello(Hello),
    /// It may; with the eventfd to write.
    Welcome,
    /// It may not; why, in words for people.
    Refused(String),
}

impl Message {
    /// As bytes. Names and reasons that are too long are cut.
    pub fn encode(&self) -> Vec<u8> {
        let kind: u16 = match self {
            Message::Hello(_) => 1,
            Message::Welcome => 2,
            Message::Refused(_) => 3,
        };
        let mut bytes = Vec::from(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        match self {
            Message::Hello(hello) => {
                let name = cut(&hello.name).as_bytes();
                let short = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes();
                bytes.extend(hello.process.pid.to_le_bytes());
                bytes.extend(short(hello.vcpus.len()));
                bytes.extend(short(name.len()));
                bytes.extend(hello.process.start.to_le_bytes());
                bytes.extend(hello.vcpus.iter().flat_map(|vcpu| vcpu.to_le_bytes()));
                bytes.extend(name);
            }
            Message::Welcome => {}
            Message::Refused(why) => bytes.extend(cut(why).as_bytes()),
        }
        bytes
    }

    /// Out of bytes.
    ///
    /// # Errors
    /// [`HintError::Protocol`].
    pub fn decode(bytes: &[u8]) -> Result<Message, HintError> {
        let mut rest = Reader(bytes);
        if rest.take::<4>()? != MAGIC {
            return Err(HintError::Protocol("no magic"));
        }
        if u16::from_le_bytes(rest.take()?) != VERSION {
            return Err(HintError::Protocol("another version"));
        }
        let message = match u16::from_le_bytes(rest.take()?) {
            1 => {
                let pid = u32::from_le_bytes(rest.take()?);
                let lanes = u16::from_le_bytes(rest.take()?);
                let name = usize::from(u16::from_le_bytes(rest.take()?));
                let start = u64::from_le_bytes(rest.take()?);
                if lanes == 0 || lanes > MAX_LANES {
                    return Err(HintError::Protocol("a number of lanes that cannot be"));
                }
                let vcpus = (0..lanes)
                    .map(|_| rest.take().map(u32::from_le_bytes))
                    .collect::<Result<_, _>>()?;
                let name = rest.text(name)?;
                Message::Hello(Hello { process: ProcessId { pid, start }, vcpus, name })
            }
            2 => Message::Welcome,
            3 => Message::Refused(rest.text(rest.0.len())?),
            _ => return Err(HintError::Protocol("an unknown message")),
        };
        if !rest.0.is_empty() {
            return Err(HintError::Protocol("a message that is too long"));
        }
        Ok(message)
    }

    /// Sends it, with a descriptor or without, and without waiting.
    ///
    /// # Errors
    /// [`HintError::Io`]; `WouldBlock` when the other side does not read.
    pub fn send(&self, socket: impl AsFd, fd: Option<BorrowedFd<'_>>) -> Result<(), HintError> {
        let bytes = self.encode();
        let fds: Vec<_> = fd.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
        Ok(())
    }

    /// Receives one, and the descriptor that came with it; none, if there is none yet.
    ///
    /// # Errors
    /// [`HintError::Protocol`], [`HintError::HungUp`], [`HintError::Io`].
    pub fn receive(socket: impl AsFd) -> Result<Option<(Message, Option<OwnedFd>)>, HintError> {
        let mut bytes = vec![0; MAX + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received =
            match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(received) => received,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(HintError::HungUp),
                Err(errno) => return Err(errno.into()),
            };
        // Owned at once: they are closed for any fault of the message.
        let mut fds: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Err(HintError::HungUp);
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || fds.len() > 1 {
            return Err(HintError::Protocol(
                "a message that is too long, or has too many descriptors",
            ));
        }
        let message = Message::decode(&bytes[..received.bytes])?;
        let fd = fds.pop();
        match (&message, fd.is_some()) {
            (Message::Refused(_), true) => Err(HintError::Protocol("an unexpected descriptor")),
            (Message::Hello(_) | Message::Welcome, false) => {
                Err(HintError::Protocol("no descriptor"))
            }
            _ => Ok(Some((message, fd))),
        }
    }
}

fn cut(text: &str) -> &str {
    let end = (0..=MAX_TEXT.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

const TOO_SHORT: HintError = HintError::Protocol("a message that is too short");

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], HintError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(*first)
    }

    fn text(&mut self, len: usize) -> Result<String, HintError> {
        if len > MAX_TEXT {
            return Err(HintError::Protocol("a text that is too long"));
        }
        let (text, rest) = self.0.split_at_checked(len).ok_or(TOO_SHORT)?;
        self.0 = rest;
        String::from_utf8(text.to_vec())
            .map_err(|_| HintError::Protocol("a text that is not UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn hello() -> Message {
        let process = ProcessId { pid: 4711, start: 1 << 40 };
        Message::Hello(Hello { process, vcpus: vec![0, 1, 7], name: "disk ä".into() })
    }

    #[test]
    fn encoded_message_is_decoded() {
        for message in [hello(), Message::Welcome, Message::Refused("no".into())] {
            assert_eq!(Message::decode(&message.encode()).unwrap(), message);
        }
        let long = Message::Refused("ä".repeat(MAX_TEXT)).encode();
        assert!(
            matches!(Message::decode(&long).unwrap(), Message::Refused(text) if text.len() == MAX_TEXT)
        );
    }

    #[test]
    fn message_of_wrong_length_is_refused() {
        let bytes = hello().encode();
        for len in 0..bytes.len() {
            assert!(Message::decode(&bytes[..len]).is_err(), "{len}");
        }
        let mut longer = bytes.clone();
        longer.push(b'x');
        assert!(Message::decode(&longer).is_err());
        // Magic, version, kind: any other value of any of their bytes.
        for at in 0..8 {
            let mut other = bytes.clone();
            other[at] ^= 0x40;
            assert!(Message::decode(&other).is_err(), "byte {at}");
        }
        for (lanes, bad) in [(0_u16, true), (3, false), (MAX_LANES + 1, true), (u16::MAX, true)] {
            let mut other = bytes.clone();
            other[12..14].copy_from_slice(&lanes.to_le_bytes());
            assert_eq!(Message::decode(&other).is_err(), bad, "{lanes} lanes");
        }
    }

    #[test]
    fn message_needs_exactly_its_descriptor() {
        let flags = SocketFlags::CLOEXEC;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        assert!(Message::receive(&b).unwrap().is_none());
        let null = std::fs::File::open("/dev/null").unwrap();
        hello().send(&a, Some(null.as_fd())).unwrap();
        assert!(
            matches!(Message::receive(&b).unwrap(), Some((message, Some(_))) if message == hello())
        );
        hello().send(&a, None).unwrap();
        assert!(matches!(Message::receive(&b), Err(HintError::Protocol(_))));
        Message::Refused(String::new()).send(&a, Some(null.as_fd())).unwrap();
        assert!(matches!(Message::receive(&b), Err(HintError::Protocol(_))));
        rustix::net::send(&a, &vec![0; MAX + 100], SendFlags::empty()).unwrap();
        assert!(matches!(Message::receive(&b), Err(HintError::Protocol(_))));
        drop(a);
        // A process that another test is starting may hold the other end for a moment.
        let begin = std::time::Instant::now();
        while matches!(Message::receive(&b), Ok(None)) && begin.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
        assert!(matches!(Message::receive(&b), Err(HintError::HungUp)));
    }
}
