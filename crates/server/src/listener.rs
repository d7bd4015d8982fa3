//! The unix socket that front ends connect to.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::session::{Handle, Session};
use crate::volume::Volume;

/// Bytes that a unix socket's path can have (`sockaddr_un`, without the final zero).
const MAX_PATH: usize = 107;

/// Why a socket cannot be listened on. Says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Longer than the system allows.
    #[error(
        "{}: the path has {len} bytes, and a unix socket's may have {MAX_PATH}; choose a shorter one, for example \
         in /run or /tmp", path.display()
    )]
    TooLong {
        /// As given.
        path: PathBuf,
        /// Bytes.
        len: usize,
    },
    /// Another server answers on it.
    #[error("{}: another server is listening there; stop it, or choose another path with --socket", path.display())]
    InUse {
        /// As given.
        path: PathBuf,
    },
    /// Something that is no socket is there.
    #[error("{}: exists and is not a socket; choose another path with --socket", path.display())]
    NotASocket {
        /// As given.
        path: PathBuf,
    },
    /// The directory is not there.
    #[error("{}: its directory does not exist; make it first", path.display())]
    NoDirectory {
        /// As given.
        path: PathBuf,
    },
    /// No permission.
    #[error("{}: no permission to make a socket there; choose a directory that you may write to", path.display())]
    Permission {
        /// As given.
        path: PathBuf,
    },
    /// Anything else.
    #[error("{}: cannot listen there", path.display())]
    Io {
        /// As given.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Serves a volume on a socket, to one front end after another.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    socket: UnixListener,
    /// Of the socket file: only our own is removed at the end.
    identity: Option<(u64, u64)>,
    stopper: Stopper,
    current: Mutex<Option<Handle>>,
}

/// Ends a [`Listener`] from another thread.
#[derive(Debug, Clone)]
pub struct Stopper {
    stop: Arc<OwnedFd>,
    connection: Arc<Mutex<Option<UnixStream>>>,
}

impl Stopper {
    /// Ends the present session, drained, and then the listener.
    pub fn stop(&self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        // A session may be in the middle of a message that never comes to its end, or of an answer that nobody reads.
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = &*connection {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Listener {
    /// Makes the socket; one that a dead server left behind is replaced.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(path: &Path) -> Result<Listener, ListenError> {
        let len = path.as_os_str().len();
        if len > MAX_PATH {
            return Err(ListenError::TooLong { path: path.to_owned(), len });
        }
        clear_path(path)?;
        let socket = UnixListener::bind(path).map_err(|error| bind_error(path, error))?;
        let io_error = |source| ListenError::Io { path: path.to_owned(), source };
        socket.set_nonblocking(true).map_err(io_error)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = rustix::event::eventfd(0, flags).map_err(|e| io_error(e.into()))?;
        let stopper = Stopper { stop: Arc::new(stop), connection: Arc::default() };
        let identity = identity(path);
        Ok(Listener { path: path.to_owned(), socket, identity, stopper, current: Mutex::default() })
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves one front end after another until it is stopped.
    ///
    /// # Errors
    /// What the system says when connections cannot be accepted any more.
    pub fn serve(&self, volume: &Arc<Volume>) -> io::Result<()> {
        loop {
            let mut fds =
                [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&*self.stopper.stop, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if !fds[1].revents().is_empty() {
                return Ok(());
            }
            let stream = match self.socket.accept() {
                Ok((stream, _)) => stream,
                // The one who knocked is gone again, or descriptors are short for the moment.
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        tracing::warn!("{}: cannot accept a connection: {error}", self.path.display());
                        std::thread::sleep(std::time::Duration::from_millis(50));
                    }
                    continue;
                }
            };
            // What fails for one front end, for want of descriptors for example, may go well for the next.
            if let Err(error) = self.run_session(volume, stream) {
                tracing::warn!("{}: cannot begin a session: {error}", self.path.display());
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        }
    }

    fn run_session(&self, volume: &Arc<Volume>, stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let session = Session::new(Arc::clone(volume))?;
        let set = |stream: Option<UnixStream>, session: Option<Handle>| {
            *self.stopper.connection.lock().unwrap_or_else(PoisonError::into_inner) = stream;
            *self.current.lock().unwrap_or_else(PoisonError::into_inner) = session;
        };
        set(Some(stream.try_clone()?), Some(session.handle()));
        session.run(stream, &self.stopper.stop);
        set(None, None);
        Ok(())
    }

    /// Removes the socket, if it is still the one that was made here.
    pub fn close(&self) {
        let now = identity(&self.path);
        if now.is_some() && now == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// The volume's size changed: tells the present session's front end.
    pub fn size_changed(&self) {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(session) = current {
            session.size_changed();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

/// Device and inode of a socket file. Nobody else can get that number as long as the socket is open.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Removes what a dead server left; refuses what somebody else needs.
fn clear_path(path: &Path) -> Result<(), ListenError> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    match probe(path) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::ACCESS | Errno::PERM) => return Err(ListenError::Permission { path: path.to_owned() }),
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
            return Err(ListenError::Io { path: path.to_owned(), source: error.into() });
        }
        // Connected, or its queue is full: somebody is there.
        _ => return Err(ListenError::InUse { path: path.to_owned() }),
    }
    std::fs::remove_file(path).map_err(|error| bind_error(path, error))
}

/// Whether somebody listens there. Does not wait for one who is too busy to answer.
fn probe(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

fn bind_error(path: &Path, source: io::Error) -> ListenError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => ListenError::NoDirectory { path },
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ListenError::Permission { path }
        }
        io::ErrorKind::AddrInUse => ListenError::InUse { path },
        _ => ListenError::Io { path, source },
    }
}
