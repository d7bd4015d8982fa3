//! Locks that a dead process has left on an image: they end with its last request.

use std::fmt;
use std::time::Duration;

/// An image is locked, although no process that runs has it open, as far as can be seen: the
/// requests of one that was killed are still on their way to the storage, and may write. Writes
/// made now could be overwritten by an older write that lands later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// For how long it has been waited for.
    pub waited: Duration,
    /// The process, while the system cannot let go of it: its id and its name.
    pub process: Option<(u32, String)>,
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is locked, and no process that runs has it open, as far as can be seen: ")?;
        match &self.process {
            Some((pid, name)) => write!(
                f,
                "process {pid} ({}) was ended, but its last requests have not, and may still \
                 write: look at the storage, which does not answer",
                vlane_socket::printable(name)
            ),
            None => f.write_str(
                "the last requests of a process that was killed have not ended, and may still \
                 write (look at the storage, which does not answer), or another user's or \
                 container's process has it (as root: `lslocks`, `fuser -v`)",
            ),
        }
    }
}
