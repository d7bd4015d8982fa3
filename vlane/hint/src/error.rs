//! The crate's error.

use std::io;

use vlane_memory::shared::SharedError;

/// Why a back end and a scheduler do not come together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HintError {
    /// The board cannot be made or mapped.
    #[error("the board")]
    Memory(#[from] SharedError),
    /// The board's header says something else than the message that came with it, or is of another
    /// version.
    #[error("the board is not one: {0}")]
    Board(&'static str),
    /// The other side said something that is not in the protocol.
    #[error("the other side does not speak this version of the protocol: {0}")]
    Protocol(&'static str),
    /// The connection broke.
    #[error("the connection")]
    Io(#[from] io::Error),
    /// The other side closed the connection.
    #[error("the other side hung up")]
    HungUp,
    /// A process is not there, or no longer: the pid is unused, or another process's.
    #[error("process {pid} is gone")]
    Gone {
        /// Its pid.
        pid: u32,
    },
}

impl From<rustix::io::Errno> for HintError {
    fn from(errno: rustix::io::Errno) -> HintError {
        HintError::Io(errno.into())
    }
}
