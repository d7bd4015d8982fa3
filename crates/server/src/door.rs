//! The socket at which front ends knock while another one is served, and how long one that says nothing is served.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// How long a front end that has said nothing may keep another one waiting. Front ends speak as soon as they are
/// connected.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// How often to look whether a message that has begun goes on: `poll` cannot wait for its second byte.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of a message's header.
const HEADER: usize = 12;

/// A listening socket that does not wait in `accept`.
#[derive(Debug)]
pub(crate) struct Door {
    socket: UnixListener,
    /// The one who is next, if that had to be known before its turn.
    next: Mutex<Option<UnixStream>>,
    /// Readable when somebody is next: the socket says nothing of that one any more.
    let_in: OwnedFd,
}

impl Door {
    /// # Errors
    /// When the system gives no eventfd.
    pub(crate) fn new(socket: UnixListener) -> io::Result<Door> {
        let let_in = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Door { socket, next: Mutex::default(), let_in })
    }

    /// The one who was let in before its turn, for a process that takes over.
    pub(crate) fn copy_next(&self) -> io::Result<Option<UnixStream>> {
        self.next().as_ref().map(UnixStream::try_clone).transpose()
    }

    /// Lets somebody in before its turn.
    pub(crate) fn let_in_first(&self, stream: UnixStream) {
        *self.next() = Some(stream);
        // Full means readable.
        let _ = rustix::io::write(&self.let_in, &1u64.to_ne_bytes());
    }

    /// Readable while somebody knocks whom [`Door::accept`] has not seen.
    pub(crate) fn socket(&self) -> &UnixListener {
        &self.socket
    }

    /// Whether somebody was let in before its turn.
    pub(crate) fn has_next(&self) -> bool {
        self.next().is_some()
    }

    /// Whether somebody was let in before its turn, and is still there.
    pub(crate) fn is_awaited(&self) -> bool {
        self.next().as_ref().is_some_and(|stream| !has_hung_up(stream))
    }

    /// Readable when somebody was let in before its turn since [`Door::saw`].
    pub(crate) fn let_in(&self) -> BorrowedFd<'_> {
        self.let_in.as_fd()
    }

    /// Whoever waits for [`Door::let_in`] is awake.
    pub(crate) fn saw(&self) {
        let _ = rustix::io::read(&self.let_in, &mut [0; 8]);
    }

    /// The one who is next. Does not wait.
    pub(crate) fn accept(&self) -> io::Result<UnixStream> {
        match self.next().take() {
            Some(stream) => Ok(stream),
            None => self.socket.accept().map(|(stream, _)| stream),
        }
    }

    fn next(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A front end that has said nothing yet, while others may come. Only the time during which one waits counts.
#[derive(Debug)]
pub(crate) struct Silence<'a> {
    door: &'a Door,
    /// Who waits, and since when.
    waiting: Option<(UnixStream, Instant)>,
    /// The first bytes of a message are there, and no more.
    is_stuck: bool,
}

impl<'a> Silence<'a> {
    pub(crate) fn new(door: &'a Door) -> Silence<'a> {
        // Somebody waited already while another process served.
        let waiting = door.next().take().map(|stream| (stream, Instant::now()));
        Silence { door, waiting, is_stuck: false }
    }

    /// Who waits.
    pub(crate) fn waiting(&self) -> Option<&UnixStream> {
        self.waiting.as_ref().map(|(stream, _)| stream)
    }

    /// What to wait for, besides the front end's first word: another one who comes, or leaves again.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        match &self.waiting {
            // A hang-up is told in any case.
            Some((stream, _)) => PollFd::new(stream, PollFlags::empty()),
            None => PollFd::new(&self.door.socket, PollFlags::IN),
        }
    }

    /// What the front end's own connection is to be waited for.
    pub(crate) fn wants(&self) -> PollFlags {
        if self.is_stuck { PollFlags::empty() } else { PollFlags::IN }
    }

    /// How long to wait for that at most.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let left = self.waiting.as_ref().map(|(_, since)| PATIENCE.saturating_sub(since.elapsed()));
        if self.is_stuck { Some(LOOK) } else { left }
    }

    /// Whether there is a message's header, or the end of the connection. To read a part of one could take for ever.
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

    /// Whether the patience is at its end. `came`: what [`Silence::poll_fd`] gave is ready.
    pub(crate) fn is_over(&mut self, came: bool) -> bool {
        if came {
            // Whoever waited has hung up, or nobody did yet.
            self.waiting = match self.door.accept() {
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
    /// Who waited is next.
    fn drop(&mut self) {
        match self.waiting.take() {
            Some((stream, _)) => self.door.let_in_first(stream),
            None => *self.door.next() = None,
        }
    }
}

fn has_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
