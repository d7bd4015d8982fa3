//! The error of this crate.

/// The kind of a failure, to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// io_uring cannot be used.
    NoIoUring,
    /// A limit of the process or system is too low.
    Limit,
    /// Any other error of the system.
    Io,
}

vlane_error::error!(ErrorKind);
