//! The crate's error: a kind to match on, a context that says what failed, on what and what to do, and the cause.

use std::error::Error as StdError;

/// What went wrong, for code that wants to decide; the text for people is in [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// What was asked for makes no sense.
    Invalid,
    /// A file cannot be read.
    Io,
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
    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    pub(crate) fn caused_by(
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
