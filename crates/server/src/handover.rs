//! What one process hands to the next, so that nobody at the socket notices.
//!
//! It is plain data, to be written down in whatever way, and descriptors, which the data names by their places in a list. Its form has a number,
//! [`FORMAT`]: only a process that knows the same one can take over. **Whoever changes a struct here, or what a field means, or offers a feature no
//! more, changes the number.**

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use serde::{Deserialize, Serialize};
use vlane_socket::SocketFile;

use crate::door::Door;
use crate::session::HandedSession;
use crate::volume::Volume;

/// The form of what is handed over.
pub const FORMAT: u32 = 1;

/// Why a process cannot take over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// The process before and this one do not understand each other.
    #[error("what the process before handed over is not what was expected: {0}")]
    Nonsense(&'static str),
    /// The system refused something.
    #[error("cannot take over {what}")]
    System {
        /// What for.
        what: &'static str,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// The present session cannot go on.
    #[error("the session cannot go on here: {0}")]
    Session(String),
}

impl HandoverError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> HandoverError {
        move |source| HandoverError::System { what, source }
    }
}

/// Descriptors that go along.
#[derive(Debug, Default)]
pub struct Descriptors(Vec<OwnedFd>);

impl Descriptors {
    /// Adds a copy of one; its place.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub fn put(&mut self, descriptor: impl AsFd) -> io::Result<usize> {
        self.0.push(descriptor.as_fd().try_clone_to_owned()?);
        Ok(self.0.len() - 1)
    }

    /// As [`Descriptors::put`], of one that may be missing.
    pub(crate) fn put_some(&mut self, descriptor: Option<&impl AsFd>) -> io::Result<Option<usize>> {
        descriptor.map(|descriptor| self.put(descriptor)).transpose()
    }

    /// All of them, by their places.
    pub fn into_inner(self) -> Vec<OwnedFd> {
        self.0
    }
}

/// Descriptors that have come along.
#[derive(Debug)]
pub struct Arrived(Vec<Option<OwnedFd>>);

impl Arrived {
    /// In the order in which they were put.
    pub fn new(descriptors: Vec<OwnedFd>) -> Arrived {
        Arrived(descriptors.into_iter().map(Some).collect())
    }

    /// The one at a place; each can be taken once.
    ///
    /// # Errors
    /// [`HandoverError::Nonsense`].
    pub fn take(&mut self, place: usize) -> Result<OwnedFd, HandoverError> {
        let taken = self.0.get_mut(place).and_then(Option::take);
        taken.ok_or(HandoverError::Nonsense("a descriptor is missing"))
    }

    pub(crate) fn take_some(&mut self, place: Option<usize>) -> Result<Option<OwnedFd>, HandoverError> {
        place.map(|place| self.take(place)).transpose()
    }
}

/// A listening socket and its file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandedSocket {
    descriptor: usize,
    /// Device and inode.
    file: Option<(u64, u64)>,
}

impl HandedSocket {
    pub(crate) fn give(
        to: &mut Descriptors,
        socket: &impl AsFd,
        file: &SocketFile,
    ) -> io::Result<HandedSocket> {
        Ok(HandedSocket { descriptor: to.put(socket)?, file: file.identity() })
    }

    pub(crate) fn take(
        &self,
        from: &mut Arrived,
        path: &Path,
    ) -> Result<(UnixListener, SocketFile), HandoverError> {
        Ok((from.take(self.descriptor)?.into(), SocketFile::adopt(path, self.file)))
    }
}

/// What those who serve at a socket hand over.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandedServer {
    pub(crate) socket: HandedSocket,
    /// A front end that was let in before its turn.
    pub(crate) next: Option<usize>,
    pub(crate) sessions: u64,
    pub(crate) session: Option<HandedSession>,
    pub(crate) control: Option<HandedSocket>,
    /// Queues that are offered.
    pub(crate) queues: u16,
}

impl HandedServer {
    /// Queues that the volume must offer.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// The control socket, if there was one.
    pub fn take_control(&mut self) -> Option<HandedSocket> {
        self.control.take()
    }

    /// Whether a front end is connected.
    pub fn has_session(&self) -> bool {
        self.session.is_some()
    }
}

/// Takes over from this process.
pub trait Successor: Send + Sync + std::fmt::Debug {
    /// Readable when that is wanted.
    fn wanted(&self) -> BorrowedFd<'_>;

    /// Takes over what `give` gives, with its descriptors: asked by the thread that serves, between two messages. From when `give` is called nothing of the
    /// guest's requests is under way; or it says why that cannot be had. Does not come back; if it does, everything goes on.
    fn take_over(&self, give: &mut dyn FnMut(&mut Descriptors) -> Result<HandedServer, String>);
}

/// What a session needs to have somebody take over.
pub(crate) struct Relief<'a> {
    pub(crate) successor: &'a dyn Successor,
    pub(crate) file: &'a SocketFile,
    pub(crate) door: &'a Door,
    pub(crate) volume: &'a Volume,
}

impl Relief<'_> {
    pub(crate) fn wanted(&self) -> BorrowedFd<'_> {
        self.successor.wanted()
    }

    /// Has the successor take over, with what `session` gives of the present session; `waiting` is a front end that the session knows to wait.
    pub(crate) fn hand_over(
        &self,
        waiting: Option<&UnixStream>,
        session: &mut dyn FnMut(&mut Descriptors) -> Result<Option<HandedSession>, String>,
    ) {
        self.successor.take_over(&mut |descriptors| {
            if self.volume.recording.is_running() {
                return Err("a trace is being recorded, and would be cut off; end that first".to_owned());
            }
            let session = session(descriptors)?;
            self.give(waiting, session, descriptors)
                .map_err(|error| format!("the socket's descriptors cannot be copied: {error}"))
        });
    }

    fn give(
        &self,
        waiting: Option<&UnixStream>,
        session: Option<HandedSession>,
        to: &mut Descriptors,
    ) -> io::Result<HandedServer> {
        let next = self.door.copy_next()?;
        Ok(HandedServer {
            socket: HandedSocket::give(to, self.door.socket(), self.file)?,
            next: to.put_some(next.as_ref().or(waiting))?,
            sessions: self.volume.sessions(),
            session,
            control: None,
            queues: self.volume.queues(),
        })
    }
}

impl std::fmt::Debug for Relief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relief").field("file", &self.file).finish_non_exhaustive()
    }
}
