//! Planted bugs, to prove that they are found.

/// A fault to plant. All of it is in the model of the kernel, or of the front end: the code under
/// test is always as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// An operation ends, and its completion never comes.
    LostCompletion,
    /// The back end is started again with a position one request before the one that it left: that
    /// request is repeated and answered again.
    DoubledCompletion,
    /// `fdatasync` reports success without any effect.
    SwallowedSync,
    /// A completed write is repeated later, over newer data.
    StaleWrite,
    /// A write stops in the middle of a sector, and says that it went well.
    TornSector,
    /// A durable write (`RWF_DSYNC`) is not.
    ForgottenDurability,
    /// A failure to write back is never reported.
    HiddenLoss,
    /// While one operation is slow, so are all others.
    SlowForAll,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 8] = [
        Bug::LostCompletion,
        Bug::DoubledCompletion,
        Bug::SwallowedSync,
        Bug::StaleWrite,
        Bug::TornSector,
        Bug::ForgottenDurability,
        Bug::HiddenLoss,
        Bug::SlowForAll,
    ];
}
