//! The crate's one error: a kind to match on, the action and its object, and the cause.

use std::path::Path;

/// The kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No back end can be reached at the socket.
    Connect,
    /// The back end answered against the vhost-user protocol, or refused a message.
    Protocol,
    /// The back end does not offer what was demanded.
    Unsupported,
    /// Options that do not fit each other or the device.
    Invalid,
    /// The back end hung up or died during the run.
    Gone,
    /// The back end did not answer in time: messages, or requests that never came back.
    Timeout,
    /// The back end broke a virtqueue.
    Queue,
    /// The operating system refused a call.
    System,
    /// A verification state file cannot be read, written or does not belong to the device.
    State,
}

vlane_error::error!(ErrorKind);

impl ErrorKind {
    /// Makes a failed result of this kind.
    pub(crate) fn fail<T>(self, context: impl Into<String>) -> Result<T> {
        Err(Error::new(self, context))
    }
}

impl Error {
    /// A failed step of the protocol on `socket`.
    pub(crate) fn protocol(socket: &Path, step: &str, source: vhost::Error) -> Self {
        use vhost::vhost_user::Error as E;
        let kind = match &source {
            vhost::Error::VhostUserProtocol(
                E::Disconnected | E::SocketBroken(_) | E::PartialMessage,
            ) => ErrorKind::Gone,
            _ => ErrorKind::Protocol,
        };
        let what = match kind {
            ErrorKind::Gone => "the back end hung up",
            _ => "the back end failed",
        };
        Self::caused_by(kind, format!("{}: {what} at {step}", socket.display()), source)
    }

    /// Returns true if the back end is gone: a run under which it was killed ends so.
    pub fn is_gone(&self) -> bool {
        self.kind == ErrorKind::Gone
    }
}

impl From<crate::ring::Error> for Error {
    fn from(source: crate::ring::Error) -> Self {
        use crate::ring::Error as E;
        match source {
            E::Device(_) => Self::caused_by(ErrorKind::Queue, "a virtqueue failed", source),
            E::Memory { .. } | E::Exhausted { .. } => {
                Self::caused_by(ErrorKind::System, "no guest memory", source)
            }
            _ => Self::caused_by(ErrorKind::Invalid, "the virtqueue refuses the request", source),
        }
    }
}

impl From<Error> for vlane_error::program::Error {
    fn from(error: Error) -> Self {
        use vlane_error::program::ErrorKind as Program;
        let kind = match error.kind() {
            ErrorKind::Invalid => Program::Invalid,
            ErrorKind::Timeout => Program::Timeout,
            _ => Program::Process,
        };
        Self::converted(kind, &error)
    }
}
