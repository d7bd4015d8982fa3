//! The crate's error: a kind to match on, a context that says what failed, on what and what to do, and the cause.

use std::error::Error as StdError;

/// What went wrong, for code that wants to decide; the text for people is in [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// This kernel or this user cannot do it; the context says what is missing.
    Unsupported,
    /// The system refused for want of a privilege; the context names it.
    Permission,
    /// What was asked for makes no sense.
    Invalid,
    /// A process, a thread or a machine is not there, or no longer.
    Gone,
    /// A thread is scheduled in a way that is not to be touched (real-time, deadline, another scheduler's), and stays so.
    LeftAlone,
    /// A file or the system failed.
    Io,
    /// The other side of a connection said what nobody understands.
    Protocol,
}

/// An error of this crate. The text never repeats the source's text: print the whole chain to see both.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct Error {
    kind: ErrorKind,
    context: String,
    #[source]
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error without a cause of its own.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    /// An error with what caused it.
    pub fn caused_by(
        kind: ErrorKind,
        context: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, context: context.into(), source: Some(source.into()) }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}
