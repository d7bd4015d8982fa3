//! The kernel's process events (the proc connector, `CONFIG_PROC_EVENTS`): starts with the parent,
//! and changes to another program.
//!
//! The events need the machine's first namespaces, and before Linux 6.6 root (`CAP_NET_ADMIN`). A
//! change of the foreground group causes no event. But a shell makes a new job the foreground
//! before that becomes its program, and takes the terminal back after it has ended.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{NetlinkAddr, bind, recvfrom};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, netlink, send, socket_with};

/// A process, or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A process has started another one.
    Fork {
        /// The thread that already existed.
        parent: i32,
        /// The new one.
        child: i32,
    },
    /// It runs another program now.
    Exec(i32),
    /// It has a separate session now.
    Session(i32),
    /// It has ended.
    Exit(i32),
    /// The kernel has heard us; the number is an error's, or 0.
    Answer(u32),
    /// Some were lost: any process may have changed.
    Lost,
}

const FORK: u32 = 1;
const EXEC: u32 = 2;
const SID: u32 = 0x80;
const EXIT: u32 = 0x8000_0000;
/// `PROC_CN_MCAST_LISTEN` and `..._IGNORE`
const LISTEN: u32 = 1;
const IGNORE: u32 = 2;
/// `struct nlmsghdr` and `struct cn_msg`
const HEADERS: usize = 16 + 20;

/// One message of the kernel's.
fn parse(message: &[u8]) -> Option<Event> {
    let word = |at: usize| Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?));
    // cn_msg: idx and val are 1.
    if word(16)? != 1 || word(20)? != 1 {
        return None;
    }
    let data = |index: usize| word(HEADERS + 16 + 4 * index);
    let id = |index: usize| data(index).map(u32::cast_signed);
    let is_process = |pid: usize, tgid: usize| Some(id(pid)? == id(tgid)?);
    match word(HEADERS)? {
        0 => Some(Event::Answer(data(0)?)),
        FORK if is_process(2, 3)? => Some(Event::Fork { parent: id(1)?, child: id(3)? }),
        EXEC => Some(Event::Exec(id(1)?)),
        SID => Some(Event::Session(id(1)?)),
        EXIT if is_process(0, 1)? => Some(Event::Exit(id(1)?)),
        _ => None,
    }
}

/// The request to send: start events, of these kinds where the kernel can choose (6.6), else of
/// all; or stop them.
fn request(what: u32, kinds: Option<u32>) -> Vec<u8> {
    let mut message = Vec::new();
    let mut put = |word: u32| message.extend_from_slice(&word.to_ne_bytes());
    let length: u16 = if kinds.is_some() { 8 } else { 4 };
    // NLMSG_DONE is 3; the kernel takes the port from the socket.
    let total = u32::try_from(HEADERS).unwrap_or(0) + u32::from(length);
    [total, 3, 0, 0, 1, 1, 0, 0].into_iter().for_each(&mut put);
    put(u32::from_ne_bytes({
        let [low, high] = length.to_ne_bytes();
        [low, high, 0, 0]
    }));
    put(what);
    kinds.into_iter().for_each(put);
    message
}

/// A socket that receives events.
#[derive(Debug)]
pub struct Events {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Events {
    /// Listens. Says why there are none, if that is so.
    pub fn listen() -> Result<Self, String> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::CONNECTOR))
                .map_err(|error| format!("the kernel has none (CONFIG_PROC_EVENTS): {error}"))?;
        // CN_IDX_PROC, the group 1.
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 1))
            .map_err(|error| format!("CAP_NET_ADMIN is missing: {error}"))?;
        for kinds in [None, Some(FORK | EXEC | SID | EXIT)] {
            send(&socket, &request(LISTEN, kinds), SendFlags::empty())
                .map_err(|error| format!("the kernel takes no request: {error}"))?;
        }
        let mut events = Self { socket, buffer: vec![0; 8192] };
        events.wait_for_answer()?;
        Ok(events)
    }

    fn wait_for_answer(&mut self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_millis(300);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(
                    "the kernel does not answer: not in the machine's first namespaces".to_owned()
                );
            }
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            let timeout = Timespec::try_from(left).map_err(|error| error.to_string())?;
            let _ = poll(&mut fds, Some(&timeout));
            while let Some(event) = self.next() {
                match event {
                    Event::Answer(0) => return Ok(()),
                    Event::Answer(error) => {
                        let error = std::io::Error::from_raw_os_error(error.cast_signed());
                        return Err(format!("the kernel refuses: {error}"));
                    }
                    _ => {}
                }
            }
        }
    }

    /// The descriptor that becomes readable.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the next pending event.
    pub fn next(&mut self) -> Option<Event> {
        loop {
            match recvfrom::<NetlinkAddr>(self.socket.as_raw_fd(), &mut self.buffer) {
                // Only the kernel's: it is port 0.
                Ok((length, Some(from))) if from.pid() == 0 => {
                    if let Some(event) = self.buffer.get(..length).and_then(parse) {
                        return Some(event);
                    }
                }
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(nix::errno::Errno::ENOBUFS) => return Some(Event::Lost),
                Err(_) => return None,
            }
        }
    }
}

/// Kernels before 6.6 keep sending process events to all after a listener has gone without a word.
impl Drop for Events {
    fn drop(&mut self) {
        let _ = send(&self.socket, &request(IGNORE, None), SendFlags::empty());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn message(kind: u32, data: &[u32]) -> Vec<u8> {
        let mut message = vec![0; 16];
        for word in [1, 1, 0, 0, 40, kind, 0, 0, 0].iter().chain(data) {
            message.extend_from_slice(&u32::to_ne_bytes(*word));
        }
        message
    }

    #[test]
    fn messages_are_read_threads_skipped() {
        assert_eq!(
            parse(&message(FORK, &[9, 8, 20, 20])),
            Some(Event::Fork { parent: 8, child: 20 })
        );
        assert_eq!(parse(&message(FORK, &[8, 8, 21, 20])), None, "a thread");
        assert_eq!(parse(&message(EXEC, &[5, 5])), Some(Event::Exec(5)));
        assert_eq!(parse(&message(EXIT, &[6, 5, 0, 17])), None, "a thread");
        assert_eq!(parse(&message(0, &[0])), Some(Event::Answer(0)));
    }

    #[test]
    fn truncated_message_is_ignored() {
        let whole = message(FORK, &[9, 8, 20, 20]);
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), None);
        }
    }

    #[test]
    fn request_has_its_stated_length() {
        for kinds in [None, Some(FORK)] {
            let message = request(LISTEN, kinds);
            assert_eq!(message.len(), HEADERS + if kinds.is_some() { 8 } else { 4 });
            assert_eq!(
                Some(message.len()),
                usize::try_from(u32::from_ne_bytes(message[..4].try_into().unwrap())).ok()
            );
        }
    }
}
