//! The crate's error: a kind to match on, a context that says what failed, on what and what to do,
//! and the cause.

/// Kind of an error, for code that decides by it; the text for people is in [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A mistake in the command line: a file's name has an unknown ending.
    Usage,
    /// A file or the system refused.
    Io,
    /// A file has a format that is not understood.
    Format,
}

vlane_error::error!(ErrorKind);

impl From<Error> for vlane_error::program::Error {
    fn from(error: Error) -> Self {
        use vlane_error::program::ErrorKind as Program;
        let kind = match error.kind() {
            ErrorKind::Usage => Program::Usage,
            ErrorKind::Io => Program::Io,
            _ => Program::Format,
        };
        Self::converted(kind, &error)
    }
}
