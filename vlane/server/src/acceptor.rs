//! The socket at which front ends connect while another one is served, and the limit for a served
//! front end that sends no message.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use vlane_error::locked;

/// The time that a silent front end may keep another one waiting. Front ends speak as soon as they
/// are connected.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The interval at which a begun message is looked at again: `poll` cannot wait for its second
/// byte.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of a message's header.
const HEADER: usize = 12;

/// A listening socket that does not wait in `accept`.
#[derive(Debug)]
pub(crate) struct Acceptor {
    socket: UnixListener,
    /// The next front end, if it had to be known before its turn.
    next: Mutex<Option<UnixStream>>,
    /// Readable when a front end was admitted early: the socket does not show that one any more.
    admitted: OwnedFd,
}

impl Acceptor {
    /// # Errors
    /// An error if the system gives no eventfd.
    pub(crate) fn new(socket: UnixListener) -> io::Result<Acceptor> {
        let admitted = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Acceptor { socket, next: Mutex::default(), admitted })
    }

    /// Copies the front end that was admitted before its turn, for a process that takes over.
    pub(crate) fn copy_next(&self) -> io::Result<Option<UnixStream>> {
        locked(&self.next).as_ref().map(UnixStream::try_clone).transpose()
    }

    /// Admits a front end before its turn.
    pub(crate) fn admit_first(&self, stream: UnixStream) {
        *locked(&self.next) = Some(stream);
        // Full means readable.
        let _ = rustix::io::write(&self.admitted, &1u64.to_ne_bytes());
    }

    /// Readable while a front end waits that [`Acceptor::accept`] has not seen.
    pub(crate) fn socket(&self) -> &UnixListener {
        &self.socket
    }

    /// Returns true if a front end was admitted before its turn.
    pub(crate) fn has_next(&self) -> bool {
        locked(&self.next).is_some()
    }

    /// Returns true if a front end was admitted before its turn, and is still there.
    pub(crate) fn is_awaited(&self) -> bool {
        locked(&self.next).as_ref().is_some_and(|stream| !has_hung_up(stream))
    }

    /// Readable when a front end was admitted before its turn since [`Acceptor::saw`].
    pub(crate) fn admitted(&self) -> BorrowedFd<'_> {
        self.admitted.as_fd()
    }

    /// Notes that the thread waiting for [`Acceptor::admitted`] is awake.
    pub(crate) fn saw(&self) {
        let _ = rustix::io::read(&self.admitted, &mut [0; 8]);
    }

    /// Accepts the next front end. Does not wait.
    pub(crate) fn accept(&self) -> io::Result<UnixStream> {
        match locked(&self.next).take() {
            Some(stream) => Ok(stream),
            None => self.socket.accept().map(|(stream, _)| stream),
        }
    }
}

/// A front end that has sent no message yet, while others may come. Only the time during which one
/// waits counts.
#[derive(Debug)]
pub(crate) struct Silence<'a> {
    acceptor: &'a Acceptor,
    /// The waiting front end, and the start of its wait.
    waiting: Option<(UnixStream, Instant)>,
    /// The first bytes of a message are there, and no more.
    is_stuck: bool,
}

impl<'a> Silence<'a> {
    pub(crate) fn new(acceptor: &'a Acceptor) -> Silence<'a> {
        // A front end waited already while another process served.
        let waiting = locked(&acceptor.next).take().map(|stream| (stream, Instant::now()));
        Silence { acceptor, waiting, is_stuck: false }
    }

    /// The waiting front end.
    pub(crate) fn waiting(&self) -> Option<&UnixStream> {
        self.waiting.as_ref().map(|(stream, _)| stream)
    }

    /// The event to wait for besides the front end's first message: another front end comes, or
    /// leaves again.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        match &self.waiting {
            // A hang-up is reported in any case.
            Some((stream, _)) => PollFd::new(stream, PollFlags::empty()),
            None => PollFd::new(&self.acceptor.socket, PollFlags::IN),
        }
    }

    /// The events to wait for on the front end's own connection.
    pub(crate) fn wants(&self) -> PollFlags {
        if self.is_stuck { PollFlags::empty() } else { PollFlags::IN }
    }

    /// The longest time to wait for that.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let left = self.waiting.as_ref().map(|(_, since)| PATIENCE.saturating_sub(since.elapsed()));
        if self.is_stuck { Some(LOOK) } else { left }
    }

    /// Returns true if there is a message's header, or the end of the connection. To read a part of
    /// one could take for ever.
    pub(crate) fn has_spoken(&mut self, stream: &UnixStream) -> bool {
        let mut header = [0; HEADER];
        let seen = rustix::net::recv(stream, &mut header, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        self.is_stuck = matches!(seen, Ok((_, 1..HEADER)));
        match seen {
            Ok(_) if self.is_stuck => has_hung_up(stream),
            Ok(_) => true,
            Err(error) => error != Errno::AGAIN,
        }
    }

    /// Returns true if the patience is at its end. `came`: the descriptor of [`Silence::poll_fd`]
    /// is ready.
    pub(crate) fn is_over(&mut self, came: bool) -> bool {
        if came {
            // The waiting front end has hung up, or none waited yet.
            self.waiting = match self.acceptor.accept() {
                Ok(stream) => Some((stream, Instant::now())),
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        // Short of descriptors, for the moment: the socket stays readable.
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    None
                }
            };
        }
        self.waiting
            .as_ref()
            .is_some_and(|(stream, since)| since.elapsed() >= PATIENCE && !has_hung_up(stream))
    }
}

impl Drop for Silence<'_> {
    /// The waiting front end is next.
    fn drop(&mut self) {
        match self.waiting.take() {
            Some((stream, _)) => self.acceptor.admit_first(stream),
            None => *locked(&self.acceptor.next) = None,
        }
    }
}

fn has_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
        .is_ok_and(|ready| ready > 0)
}
