//! The crate's error: a kind to match on, a context that says what failed, on what and what to do, and the cause.

use std::error::Error as StdError;

/// What went wrong, for code that wants to decide; the text for people is in [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A program, kernel or package is not on this machine, and installing was not allowed or is not possible.
    Missing,
    /// Installing or downloading was tried and failed.
    Install,
    /// A file of the host could not be read or written.
    Io,
    /// A file has a format that this crate does not understand.
    Format,
    /// A helper program of the host (e2fsck, debugfs, ldd, ...) failed.
    Tool,
    /// A guest or a back end did not start, ended early, or ended with an error.
    Process,
    /// A guest or a back end did not get there in the time it was given.
    Timeout,
}

/// An error of this crate.
///
/// The text never repeats the source's text: print the whole chain (`{:#}` with anyhow) to see both.
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

/// `.map_err(io(|| ...))` for the many places where a file operation of the host can fail.
pub(crate) fn io<S: Into<String>>(context: impl FnOnce() -> S) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::caused_by(ErrorKind::Io, context(), source)
}
