//! Faults of a virtqueue: in its set-up, and in its driver's entries.

/// How a virtqueue lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingFormat {
    /// Descriptor table, available ring, used ring (2.7). The size is a power of two.
    Split,
    /// One ring of descriptors and two event structures (2.8). Any size.
    Packed,
}

/// Why a virtqueue cannot be set up.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueError {
    /// Zero, beyond 32768, or not a power of two in a split ring.
    #[error("{size} is not a legal size of a {layout:?} virtqueue")]
    Size {
        /// The size given.
        size: u16,
        /// The layout it was given for.
        layout: RingFormat,
    },
    /// A part of the ring is not in guest memory.
    #[error("the {part} at front end address {addr:#x} ({len:#x} bytes) is not in guest memory")]
    NotMapped {
        /// Which part.
        part: &'static str,
        /// Front end address.
        addr: u64,
        /// Bytes it needs.
        len: u64,
    },
    /// A part of the ring is not aligned.
    #[error("the {part} at front end address {addr:#x} is not aligned to {align} bytes")]
    Misaligned {
        /// Which part.
        part: &'static str,
        /// Front end address.
        addr: u64,
        /// Bytes.
        align: u64,
    },
}

/// The driver broke the rules of the virtqueue; it must be stopped. Says which rule.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Broken {
    /// More chains than entries.
    #[error(
        "the available index jumped from {next} to {index}, further than the queue size {size}"
    )]
    AvailIndex {
        /// The index that the ring gave.
        index: u16,
        /// The index that was expected next.
        next: u16,
        /// Entries.
        size: u16,
    },
    /// A descriptor index beyond the table.
    #[error("descriptor index {index} is outside its table of {size}")]
    DescriptorIndex {
        /// The index.
        index: u16,
        /// Entries of the table.
        size: u16,
    },
    /// A chain that never ends.
    #[error("a descriptor chain loops")]
    Loop,
    /// The front end does not know how far the last back end came, and the ring does not show it.
    #[error(
        "the front end gives {index} (wrap counter {}) as this packed ring's position, which is wrong: the last back end was killed with unknown requests in flight; reset the guest. Split rings (packed=off in QEMU) continue",
        u8::from(*wrap)
    )]
    PlaceLost {
        /// Of the next used descriptor, as the front end gave it.
        index: u16,
        /// With it.
        wrap: bool,
    },
    /// The back end before this one left marks of requests in flight, and they cannot be read.
    #[error(
        "the requests in flight when the last back end ended are unknown: {0}; they are not \
         repeated, and the guest waits for them; reset the guest"
    )]
    InflightLost(Lost),
    /// More buffers than any request needs.
    #[error("a descriptor chain has more than {limit} buffers")]
    ChainTooLong {
        /// Buffers.
        limit: usize,
    },
    /// An indirect table inside an indirect table.
    #[error("an indirect table contains an indirect descriptor")]
    NestedIndirect,
    /// A descriptor that is indirect and has a next one.
    #[error("a descriptor is both indirect and chained")]
    IndirectWithNext,
    /// An indirect table of no legal size or alignment.
    #[error("the indirect table at {addr:#x} has the illegal size {len} or alignment")]
    BadIndirectTable {
        /// Guest physical address.
        addr: u64,
        /// Bytes.
        len: u32,
    },
    /// A buffer outside guest memory.
    #[error("the buffer at {addr:#x} ({len} bytes) is not in guest memory at {hole:#x}")]
    BadAddress {
        /// Guest physical address.
        addr: u64,
        /// Bytes.
        len: u32,
        /// First address that no region holds.
        hole: u64,
    },
    /// The order of the specification (2.7.4.2) turned round.
    #[error("a device-readable buffer follows a device-writable one")]
    ReadableAfterWritable,
    /// No device-writable byte: the request cannot even be refused.
    #[error("a request has no device-writable byte for its status")]
    NoStatus,
    /// Fewer than 16 device-readable bytes.
    #[error("a request has a header of {len} bytes instead of 16")]
    ShortHeader {
        /// Bytes found.
        len: usize,
    },
    /// Chains were made available again before they were used.
    #[error("more than {size} descriptors are in flight in a queue of that size")]
    TooManyInFlight {
        /// Entries.
        size: u16,
    },
    /// Guest memory was changed so that the ring is no longer in it.
    #[error("the ring is no longer in guest memory")]
    RingUnmapped,
    /// A file behind guest memory was truncated.
    #[error("the file behind guest memory was truncated")]
    MemoryLost,
}

/// The reason why the requests in flight are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// The memory is too small for a queue of this size and layout.
    #[error("the memory for it is too small for this queue")]
    Room,
    /// It was written by a back end that is newer.
    #[error("it was written in a version of the layout that is not known")]
    Version,
    /// It was written for a queue of another size.
    #[error("it was written for a queue of another size")]
    Size,
    /// The ring and the marks do not belong together.
    #[error("the ring is not the one that it was written for")]
    OtherRing,
    /// Marks that no back end writes.
    #[error("it is damaged")]
    Damaged,
}
