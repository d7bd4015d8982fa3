//! Errors on the guest's side.

use std::io;

/// The reason why a driver-side operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused the memory.
    #[error("cannot {what} of {size} bytes of guest memory")]
    Memory {
        /// The operation, as a verb ("allocate the file", "map the file").
        what: &'static str,
        /// Bytes asked for.
        size: usize,
        /// The system's answer.
        source: io::Error,
    },
    /// The arena has no room left for a buffer.
    #[error("guest memory is full: {wanted} bytes wanted, {left} left")]
    Exhausted {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes not yet handed out.
        left: usize,
    },
    /// An access reaches beyond its buffer.
    #[error("access to bytes {at}..{at}+{len} of a buffer of {size} bytes")]
    Bounds {
        /// First byte, counted from the buffer's start.
        at: usize,
        /// Bytes accessed.
        len: usize,
        /// The buffer's length in bytes.
        size: usize,
    },
    /// A queue size that the specification does not allow.
    #[error("queue size {size}: {why}")]
    QueueSize {
        /// The size asked for, in entries.
        size: u32,
        /// The fault.
        why: &'static str,
    },
    /// A chain without a descriptor, or one too long for the queue.
    #[error("a chain of {0} descriptors does not fit the queue")]
    ChainLength(usize),
    /// Every descriptor (or buffer id) is in use: reap first.
    #[error("the queue is full")]
    Full,
    /// The named chain may not be submitted now.
    #[error("chain {0} is unknown or already with the device")]
    NotIdle(u16),
    /// A request that the slot cannot carry.
    #[error("request of {len} bytes in a slot of {capacity} bytes")]
    RequestSize {
        /// Bytes of data asked for.
        len: u32,
        /// The slot's data bytes.
        capacity: u32,
    },
    /// The device broke the queue's rules.
    #[error("the device broke the virtqueue: {0}")]
    Device(#[from] Violation),
}

/// A device's violation of a virtqueue's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The device returned a chain that it did not hold.
    #[error("it returned chain {id}, which it was not given")]
    UnknownChain {
        /// The id in the used entry.
        id: u32,
    },
    /// The device returned more chains than it held.
    #[error("it returned {returned} chains and held {held}")]
    TooMany {
        /// Distance that the used index moved.
        returned: u16,
        /// Chains that were with the device.
        held: u16,
    },
}
