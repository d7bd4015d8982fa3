//! The layout of a virtqueue in memory, and the parts of its chains.

/// VIRTQ_DESC_F_NEXT: the chain continues.
pub(super) const F_NEXT: u16 = 1;
/// VIRTQ_DESC_F_WRITE: the device writes.
pub(super) const F_WRITE: u16 = 2;
/// VIRTQ_DESC_F_INDIRECT: the buffer is a table of descriptors.
pub(super) const F_INDIRECT: u16 = 4;

/// A buffer of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
}

impl Segment {
    /// `len` bytes at guest physical address `addr` that the device reads.
    pub fn readable(addr: u64, len: u32) -> Self {
        Self { addr, len, flags: 0 }
    }

    /// `len` bytes at guest physical address `addr` that the device writes.
    pub fn writable(addr: u64, len: u32) -> Self {
        Self { addr, len, flags: F_WRITE }
    }

    /// A table of `entries` descriptors at guest physical address `addr` (see
    /// [`super::Queue::write_table`]).
    ///
    /// Legal as the only segment of a chain; the tests of a device use it otherwise too.
    pub fn indirect(addr: u64, entries: u16) -> Self {
        Self { addr, len: u32::from(entries) * 16, flags: F_INDIRECT }
    }
}

/// A chain that the device gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// The chain, as [`super::Queue::add`] or [`super::Queue::bind`] named it.
    pub id: u16,
    /// Bytes that the device says it wrote.
    pub len: u32,
}

/// The format of a virtqueue in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Descriptor table, avail ring, used ring (virtio 1.2, 2.7).
    Split,
    /// A single ring of descriptors (virtio 1.2, 2.8; feature VIRTIO_F_RING_PACKED).
    Packed,
}

/// The queue's addresses for a device: guest physical addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Split or packed.
    pub format: Format,
    /// Entries.
    pub size: u16,
    /// Descriptor table, or the packed descriptor ring.
    pub desc: u64,
    /// Avail ring, or the packed driver event suppression structure.
    pub driver: u64,
    /// Used ring, or the packed device event suppression structure.
    pub device: u64,
}
