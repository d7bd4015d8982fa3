//! Missing parts of a session that ran no ring.

/// Actions of a front end that ran no ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unused {
    /// The front end began to start the device, and gave no memory.
    NoMemory,
    /// The front end asked how many queues there are, and left.
    TooFewQueues,
}
