//! A unix socket and its file: made where nobody else needs it, removed by nobody but us.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

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
    #[error("{}: another server is listening there; stop it, or choose another path with {option}", path.display())]
    InUse {
        /// As given.
        path: PathBuf,
        /// The option that gave it.
        option: &'static str,
    },
    /// Something that is no socket is there.
    #[error("{}: exists and is not a socket; choose another path with {option}", path.display())]
    NotASocket {
        /// As given.
        path: PathBuf,
        /// The option that gave it.
        option: &'static str,
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

/// The file of a socket that is listened on. Removed when this is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Only our own is removed at the end.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    /// Makes the socket; one that a dead server left behind is replaced. `option` is where the path came from, for messages. With
    /// `mode`, others may connect as it says; without, as the umask says.
    ///
    /// # Errors
    /// [`ListenError`].
    pub(crate) fn listen(
        path: &Path,
        option: &'static str,
        mode: Option<Mode>,
    ) -> Result<(UnixListener, SocketFile), ListenError> {
        let len = path.as_os_str().len();
        if len > MAX_PATH {
            return Err(ListenError::TooLong { path: path.to_owned(), len });
        }
        clear_path(path, option)?;
        let socket = bind(path, mode).map_err(|error| bind_error(path, option, error.into()))?;
        let file = SocketFile { path: path.to_owned(), identity: identity(path) };
        Ok((socket, file))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, if it is still the one that was made here.
    pub(crate) fn remove(&self) {
        let now = identity(&self.path);
        if now.is_some() && now == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Binds and listens, without waiting in `accept`. The file has its mode from its first moment: Linux takes it from the socket's own.
fn bind(path: &Path, mode: Option<Mode>) -> rustix::io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    if let Some(mode) = mode {
        rustix::fs::fchmod(&socket, mode)?;
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(UnixListener::from(socket))
}

/// Device and inode of a socket file. Nobody else can get that number as long as the socket is open.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Removes what a dead server left; refuses what somebody else needs.
fn clear_path(path: &Path, option: &'static str) -> Result<(), ListenError> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned(), option });
    }
    match probe(path) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::ACCESS | Errno::PERM) => return Err(ListenError::Permission { path: path.to_owned() }),
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
            return Err(ListenError::Io { path: path.to_owned(), source: error.into() });
        }
        // Connected, or its queue is full: somebody is there.
        _ => return Err(ListenError::InUse { path: path.to_owned(), option }),
    }
    std::fs::remove_file(path).map_err(|error| bind_error(path, option, error))
}

/// Whether somebody listens there. Does not wait for one who is too busy to answer.
fn probe(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

fn bind_error(path: &Path, option: &'static str, source: io::Error) -> ListenError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => ListenError::NoDirectory { path },
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ListenError::Permission { path }
        }
        io::ErrorKind::AddrInUse => ListenError::InUse { path, option },
        _ => ListenError::Io { path, source },
    }
}
