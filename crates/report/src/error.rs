//! The crate's error: a kind to match on, a context that says what failed, on what and what to do, and the cause.

/// What went wrong, for code that wants to decide; the text for people is in [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A mistake in the command line: a file's name ends in nothing that is known.
    Usage,
    /// A file or the system refused.
    Io,
    /// A file has a format that is not understood.
    Format,
}

vlane_error::error!(ErrorKind);
