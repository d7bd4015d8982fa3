//! The crate's error: a kind to match on, a context that says what failed, on what and what to do,
//! and the cause.

/// Kind of an error, for code that decides by it; the text for people is in [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A program, kernel or package is not on this machine, and installing was not allowed or is
    /// not possible.
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

vlane_error::error!(ErrorKind);

/// `.map_err(io(|| ...))` for the many places where a file operation of the host can fail.
pub(crate) fn io<S: Into<String>>(
    context: impl FnOnce() -> S,
) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::caused_by(ErrorKind::Io, context(), source)
}

impl From<Error> for vlane_error::program::Error {
    fn from(error: Error) -> Self {
        use vlane_error::program::ErrorKind as Program;
        let kind = match error.kind() {
            ErrorKind::Missing | ErrorKind::Install => Program::Missing,
            ErrorKind::Io => Program::Io,
            ErrorKind::Format => Program::Format,
            ErrorKind::Timeout => Program::Timeout,
            _ => Program::Process,
        };
        Self::converted(kind, &error)
    }
}
