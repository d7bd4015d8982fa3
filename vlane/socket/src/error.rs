//! Why a socket cannot be listened on.

use std::io;
use std::path::PathBuf;

/// Bytes that a unix socket's path can have (`sockaddr_un`, without the final zero).
pub(crate) const MAX_PATH: usize = 107;

/// Why a socket cannot be listened on. The text names the action to take.
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
    /// A server answers on it.
    #[error("{}: another {what} is listening there; stop it, or choose another path with {option}", path.display())]
    InUse {
        /// As given.
        path: PathBuf,
        /// The option that gave it.
        option: &'static str,
        /// The kind of server at such sockets.
        what: &'static str,
    },
    /// A file that is no socket is there.
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
    /// The group that is to use it cannot be given the file.
    #[error("{}: cannot be given to group {group}; run as root, or as a member of that group", path.display())]
    Group {
        /// As given.
        path: PathBuf,
        /// Its number.
        group: u32,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Any other error.
    #[error("{}: cannot listen there", path.display())]
    Io {
        /// As given.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}
