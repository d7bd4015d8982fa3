//! The crate's error: a kind to match on, a context that says what failed, on what and what to do, and the cause.

use std::error::Error as StdError;

/// Kind of an error, for code that decides by it; the text for people is in [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A program or package is not on this machine; the context names the package.
    Missing,
    /// The request makes no sense, or cannot be done here (too little disk, too few CPUs).
    Invalid,
    /// An option says what makes no sense on any machine: a mistake in the command line. The context names the option.
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

vlane_error::error!(ErrorKind);

impl From<vlane_boot::Error> for Error {
    fn from(error: vlane_boot::Error) -> Self {
        use vlane_boot::ErrorKind as Boot;
        let kind = match error.kind() {
            Boot::Missing | Boot::Install => ErrorKind::Missing,
            Boot::Io => ErrorKind::Io,
            Boot::Format => ErrorKind::Format,
            Boot::Timeout => ErrorKind::Timeout,
            _ => ErrorKind::Process,
        };
        let context = error.to_string();
        // Its text is ours; what lies below it stays the source.
        Self { kind, context, source: next_source(error) }
    }
}

impl From<vlane_driver::Error> for Error {
    fn from(error: vlane_driver::Error) -> Self {
        let kind = match error.kind() {
            vlane_driver::ErrorKind::Invalid => ErrorKind::Invalid,
            vlane_driver::ErrorKind::Timeout => ErrorKind::Timeout,
            _ => ErrorKind::Process,
        };
        let context = error.to_string();
        Self { kind, context, source: next_source(error) }
    }
}

impl From<vlane_report::Error> for Error {
    fn from(error: vlane_report::Error) -> Self {
        let kind = match error.kind() {
            vlane_report::ErrorKind::Usage => ErrorKind::Usage,
            vlane_report::ErrorKind::Io => ErrorKind::Io,
            _ => ErrorKind::Format,
        };
        let context = error.to_string();
        Self { kind, context, source: next_source(error) }
    }
}

/// The text of what caused an error, as an error.
fn next_source(error: impl StdError) -> Option<Box<dyn StdError + Send + Sync>> {
    let mut texts = Vec::new();
    let mut source = error.source();
    while let Some(cause) = source {
        texts.push(cause.to_string());
        source = cause.source();
    }
    (!texts.is_empty()).then(|| texts.join(": ").into())
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
