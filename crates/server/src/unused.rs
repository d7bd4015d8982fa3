//! Missing parts of a session that ran no ring.

/// Actions of a front end that ran no ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unused {
    /// It began to start the device, and gave no memory.
    NoMemory,
    /// It asked how many queues there are, and left.
    TooFewQueues,
}
