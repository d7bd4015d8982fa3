//! The crate's error: a kind to match on, a context that says what failed, on what and what to do,
//! and the cause.

/// Kind of an error, for code that decides by it; the text for people is in [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request makes no sense.
    Invalid,
    /// A file cannot be read.
    Io,
}

vlane_error::error!(ErrorKind);
