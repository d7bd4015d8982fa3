//! The crate's error: a kind to match on, a context that says what failed, on what and what to do,
//! and the cause.

/// The kind of failure, for code that has to decide; the text for people is in [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// This kernel or this user cannot do it; the context says what is missing.
    Unsupported,
    /// The system refused for want of a privilege; the context names it.
    Permission,
    /// The request makes no sense.
    Invalid,
    /// A process, a thread or a machine is not there, or no longer.
    Gone,
    /// A thread is scheduled in a way that is not to be touched (real-time, deadline, another
    /// scheduler's), and stays so.
    LeftAlone,
    /// A file or the system failed.
    Io,
    /// The other side of a connection sent a message that cannot be understood.
    Protocol,
}

vlane_error::error!(ErrorKind);
