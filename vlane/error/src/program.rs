//! The error of programs and of what measures: kinds that decide the exit status, and conversions
//! that keep an error's words.

use std::error::Error as StdError;

/// Kind of an error, for code that decides by it; the text for people is in [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A program or package is not on this machine; the context names the package.
    Missing,
    /// The request makes no sense, or cannot be done here (too little disk, too few CPUs).
    Invalid,
    /// An option says what makes no sense on any machine: a mistake in the command line. The
    /// context names the option.
    Usage,
    /// The user ended it (SIGINT, SIGTERM).
    Interrupted,
    /// A file or the system refused.
    Io,
    /// A file has a format that is not understood.
    Format,
    /// A program that was started (fio, a back end, a guest) failed, or gave an answer that cannot
    /// be parsed.
    Process,
    /// Something was not ready, or did not end, in the time it was given.
    Timeout,
}

crate::error!(ErrorKind);

impl Error {
    /// Another crate's error with this kind: its text stays the context, and the text of its causes
    /// the source.
    pub fn converted(kind: ErrorKind, error: &dyn StdError) -> Self {
        let source = error.source().map(|cause| crate::describe(cause).into());
        Self { kind, context: error.to_string(), source }
    }
}

/// Adds what was being done to an error of the system or of a library.
pub trait Context<T> {
    /// The error with a kind and a context.
    ///
    /// # Errors
    /// The same as before, with better words.
    fn context<S: Into<String>>(self, kind: ErrorKind, context: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> Context<T> for std::result::Result<T, E> {
    fn context<S: Into<String>>(self, kind: ErrorKind, context: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| Error::caused_by(kind, context(), error))
    }
}
