//! The error of this crate.

/// What went wrong, to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// io_uring cannot be used.
    NoIoUring,
    /// A limit of the process or system is too low.
    Limit,
    /// Anything else the system says.
    Io,
}

vlane_error::error!(ErrorKind);
