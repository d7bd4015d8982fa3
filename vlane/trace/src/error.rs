//! Why a trace cannot be read or written.

use std::io;

/// The kind of a failure, to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file or the stream failed.
    Io,
    /// It is no trace.
    NotATrace,
    /// A trace, of a version that this program does not know.
    Version,
    /// It ends in the middle of the header or of an entry.
    Truncated,
    /// A value in it is impossible.
    Corrupt,
    /// A value to write does not fit into the format.
    Unfit,
}

/// An error of this crate. The text names the fault, and its place in the trace.
#[derive(Debug, thiserror::Error)]
#[error("{context} (at byte {offset} of the trace)")]
pub struct Error {
    kind: ErrorKind,
    offset: u64,
    context: String,
    #[source]
    source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, offset: u64, context: impl Into<String>) -> Error {
        Error { kind, offset, context: context.into(), source: None }
    }

    pub(crate) fn io(offset: u64, context: &str, source: io::Error) -> Error {
        Error { kind: ErrorKind::Io, offset, context: context.to_owned(), source: Some(source) }
    }

    /// To match on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Bytes from the trace's beginning to where it is broken; everything before is good.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}
