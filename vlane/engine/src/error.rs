//! The error of this crate.

use std::fmt::Display;
use std::io;
use std::path::Path;

/// The kind of a failure, to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such file.
    NotFound,
    /// The system does not let us.
    Permission,
    /// A directory, a socket, ...
    NotAFileOrDevice,
    /// The image has no data.
    Empty,
    /// The size is not a multiple of the sector size.
    OddSize,
    /// It looks like an image of another format than raw.
    Format,
    /// Another process uses the image.
    Locked,
    /// It cannot be written to.
    ReadOnly,
    /// Direct I/O is not possible there.
    NoDirectIo,
    /// A limit of the process or system is too low.
    Limit,
    /// Any other error of the system.
    Io,
}

vlane_error::error!(ErrorKind);

impl Error {
    /// A refusal of the file at `path`.
    pub(crate) fn at(path: &Path, kind: ErrorKind, text: impl Display) -> Self {
        Self::new(kind, format!("{}: {text}", path.display()))
    }

    /// A refusal of the file at `path`, by the system.
    pub(crate) fn caused_at(
        path: &Path,
        kind: ErrorKind,
        text: impl Display,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::caused_by(kind, format!("{}: {text}", path.display()), source.into())
    }
}
