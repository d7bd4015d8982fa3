//! Bugs that are planted, so that it is known that they are found.

/// What goes wrong. All of it is in the model of the kernel, or of the front end: the code under test is always as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// An operation ends, and its completion never comes.
    LostCompletion,
    /// The back end is started again with a position one request before the one that it left: that request is done and answered again.
    DoubledCompletion,
    /// `fdatasync` says that it went well and has done nothing.
    SwallowedSync,
    /// A write that has completed is done again later, over whatever was written since.
    StaleWrite,
    /// A write stops in the middle of a sector, and says that it went well.
    TornSector,
    /// A durable write (`RWF_DSYNC`) is not.
    ForgottenDurability,
    /// A failure to write back is told to nobody.
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
