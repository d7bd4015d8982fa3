//! The crate's error: a kind to match on, a context that says what failed, on what and what to do, and the cause.

/// What went wrong, for code that wants to decide; the text for people is in [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// What was asked for makes no sense.
    Invalid,
    /// A file cannot be read.
    Io,
}

vlane_error::error!(ErrorKind);
