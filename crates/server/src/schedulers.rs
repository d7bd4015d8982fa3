//! Which vCPU scheduler a volume's sessions tell.

use std::path::PathBuf;

/// Which vCPU scheduler is told of completed I/O.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Schedulers {
    /// None.
    #[default]
    None,
    /// One that listens where schedulers usually do, if there is one, now or later.
    Usual,
    /// The one at this socket.
    At(PathBuf),
}
