//! State that one process hands to the next, so that no client of the socket notices.
//!
//! The state is plain data, to be written down in any format, and descriptors, which the data names
//! by their places in a list. The data's form has a number, [`FORMAT`]: only a process that knows
//! the same one can take over. **Change the number together with a struct here, the meaning of a
//! field, or a feature that is offered no more.**

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use serde::{Deserialize, Serialize};
use vlane_socket::SocketFile;

use crate::acceptor::Acceptor;
use crate::rights::Rights;
use crate::volume::Volume;

/// The form of what is handed over.
pub const FORMAT: u32 = 1;

/// The reason why a process cannot take over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// The process before and this one have different formats.
    #[error("the previous process handed over unexpected data: {0}")]
    Nonsense(&'static str),
    /// The system refused a call.
    #[error("cannot take over {what}")]
    System {
        /// The purpose.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The present session cannot continue.
    #[error("the session cannot continue here: {0}")]
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
    /// An error if the system gives no descriptor.
    pub fn put(&mut self, descriptor: impl AsFd) -> io::Result<usize> {
        self.0.push(descriptor.as_fd().try_clone_to_owned()?);
        Ok(self.0.len() - 1)
    }

    /// As [`Descriptors::put`], of a descriptor that may be missing.
    pub(crate) fn put_some(&mut self, descriptor: Option<&impl AsFd>) -> io::Result<Option<usize>> {
        descriptor.map(|descriptor| self.put(descriptor)).transpose()
    }

    /// The number of descriptors.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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

    /// Takes the descriptor at a place; each can be taken once.
    ///
    /// # Errors
    /// [`HandoverError::Nonsense`].
    pub fn take(&mut self, place: usize) -> Result<OwnedFd, HandoverError> {
        let taken = self.0.get_mut(place).and_then(Option::take);
        taken.ok_or(HandoverError::Nonsense("a descriptor is missing"))
    }

    pub(crate) fn take_some(
        &mut self,
        place: Option<usize>,
    ) -> Result<Option<OwnedFd>, HandoverError> {
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

/// The parts of a front end's messages that decide how later ones are answered, even if they were
/// refused.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Talked {
    /// GET_FEATURES came.
    pub(crate) asked_features: bool,
    /// The last SET_FEATURES.
    pub(crate) features: Option<u64>,
    /// The last SET_PROTOCOL_FEATURES.
    pub(crate) protocol: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandedRegion {
    pub(crate) file: usize,
    pub(crate) guest: u64,
    pub(crate) size: u64,
    pub(crate) user: u64,
    pub(crate) offset: u64,
}

/// A part of a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandedPart {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandedTracking {
    pub(crate) part: HandedPart,
    pub(crate) queues: u16,
    pub(crate) queue_size: u16,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandedVring {
    pub(crate) size: u16,
    /// Descriptors, driver's and device's part.
    pub(crate) addresses: Option<(u64, u64, u64)>,
    pub(crate) log_addr: Option<u64>,
    pub(crate) base: u32,
    pub(crate) started: bool,
    pub(crate) enabled: bool,
    pub(crate) kick: Option<usize>,
    pub(crate) call: Option<usize>,
    pub(crate) err: Option<usize>,
}

/// A session as the next process gets it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandedSession {
    pub(crate) number: u64,
    pub(crate) stream: usize,
    pub(crate) has_spoken: bool,
    pub(crate) refused: u32,
    pub(crate) talked: Talked,
    pub(crate) features: u64,
    /// Protocol features.
    pub(crate) protocol: u64,
    pub(crate) is_negotiated: bool,
    pub(crate) was_asked_for_queues: bool,
    pub(crate) config: Vec<u8>,
    pub(crate) memory: Vec<HandedRegion>,
    pub(crate) log: Option<HandedPart>,
    pub(crate) tracking: Option<HandedTracking>,
    pub(crate) backend_channel: Option<usize>,
    pub(crate) vrings: Vec<HandedVring>,
}

/// The state that the server of a socket hands over.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandedServer {
    pub(crate) socket: HandedSocket,
    /// A front end that was let in before its turn.
    pub(crate) next: Option<usize>,
    pub(crate) sessions: u64,
    pub(crate) session: Option<HandedSession>,
    pub(crate) control: Option<HandedSocket>,
    /// Without one it is as in programs that know none: this needs no other format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) control_read_only: Option<HandedSocket>,
    /// Queues that are offered.
    pub(crate) queues: u16,
}

impl HandedServer {
    /// Queues that the volume must offer.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// The control socket with these rights, if there was one.
    pub fn take_control(&mut self, rights: Rights) -> Option<HandedSocket> {
        match rights {
            Rights::All => self.control.take(),
            Rights::Questions => self.control_read_only.take(),
        }
    }

    /// Returns true if a front end is connected.
    pub fn has_session(&self) -> bool {
        self.session.is_some()
    }
}

/// Takes over from this process.
pub trait Successor: Send + Sync + std::fmt::Debug {
    /// Readable when that is wanted.
    fn wanted(&self) -> BorrowedFd<'_>;

    /// Takes over the result of `give`, with its descriptors: asked by the thread that serves,
    /// between two messages. From the call of `give` on, no guest request is in progress; otherwise
    /// `give` returns the reason. Does not return on success; if it returns, the server continues.
    fn take_over(&self, give: &mut dyn FnMut(&mut Descriptors) -> Result<HandedServer, String>);
}

/// The means by which a session is taken over.
pub(crate) struct Relief<'a> {
    pub(crate) successor: &'a dyn Successor,
    pub(crate) file: &'a SocketFile,
    pub(crate) acceptor: &'a Acceptor,
    pub(crate) volume: &'a Volume,
}

impl Relief<'_> {
    pub(crate) fn wanted(&self) -> BorrowedFd<'_> {
        self.successor.wanted()
    }

    /// Has the successor take over, with what `session` gives of the present session; `waiting` is
    /// a front end that the session knows to wait.
    pub(crate) fn hand_over(
        &self,
        waiting: Option<&UnixStream>,
        session: &mut dyn FnMut(&mut Descriptors) -> Result<Option<HandedSession>, String>,
    ) {
        self.successor.take_over(&mut |descriptors| {
            if self.volume.recording.is_running() {
                return Err(
                    "a trace is being recorded, and would be cut off; end that first".to_owned()
                );
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
        let next = self.acceptor.copy_next()?;
        Ok(HandedServer {
            socket: HandedSocket::give(to, self.acceptor.socket(), self.file)?,
            next: to.put_some(next.as_ref().or(waiting))?,
            sessions: self.volume.sessions(),
            session,
            control: None,
            control_read_only: None,
            queues: self.volume.queues(),
        })
    }
}

impl std::fmt::Debug for Relief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relief").field("file", &self.file).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use vlane_engine::Geometry;

    use super::*;
    use crate::features;

    /// A session continues with the features that were agreed on. A program with the same format
    /// must offer them all; so this changes together with the format, unless a feature comes in
    /// addition.
    #[test]
    fn format_number_covers_offered_features() {
        let geometry = |read_only: bool| Geometry {
            sectors: 1,
            block_size: 512,
            physical_exponent: 0,
            optimal_blocks: 0,
            read_only,
            discard: !read_only,
            write_zeroes: !read_only,
            write_cache: true,
        };
        assert_eq!(FORMAT, 1);
        let must = [(false, 0x5_7400_7e46), (true, 0x5_7400_1666)];
        for (read_only, features) in must {
            let offered = features::offered(&geometry(read_only));
            assert_eq!(offered & features, features, "{offered:#x}");
        }
        let protocol = features::protocol().bits();
        assert_eq!(protocol & 0xb22b, 0xb22b, "{protocol:#x}");
    }

    #[test]
    fn descriptor_is_taken_once_from_its_place() {
        let mut put = Descriptors::default();
        let place = put.put(std::io::stderr()).unwrap();
        let mut arrived = Arrived::new(put.into_inner());
        assert!(arrived.take(place + 1).is_err());
        assert!(arrived.take(place).is_ok());
        assert!(arrived.take(place).is_err());
    }
}
