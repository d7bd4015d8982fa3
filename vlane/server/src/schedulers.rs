//! Selects the vCPU scheduler that a volume's sessions report to.

use std::path::PathBuf;

/// The vCPU scheduler that gets completed I/O reported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Schedulers {
    /// None.
    #[default]
    None,
    /// A scheduler at the usual place, if there is one, now or later.
    Usual,
    /// The scheduler at this socket.
    At(PathBuf),
}
