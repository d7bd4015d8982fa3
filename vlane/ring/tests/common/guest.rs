//! A guest for the tests: memory of this process at guest physical addresses, and descriptors to
//! put into it.
//!
//! The memory is from the heap and of exact size, so that Miri and AddressSanitizer see every byte
//! that is touched beyond it.

// Every test target compiles this file and uses a part of it.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

use std::alloc::{Layout as HeapLayout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use vlane_memory::{GuestMemory, Region, RegionSpec};
use vlane_ring::{QueueConfig, RingFormat};

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// How far the front end's addresses lie from the guest's.
pub const USER: u64 = 0x5000_0000_0000;

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

/// A descriptor of either layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Desc {
    pub addr: u64,
    pub len: u32,
    pub flags: u16,
    /// Next index (split) or buffer id (packed).
    pub link: u16,
}

impl Desc {
    pub fn split(self) -> [u8; 16] {
        self.bytes(self.flags, self.link)
    }

    pub fn packed(self) -> [u8; 16] {
        self.bytes(self.link, self.flags)
    }

    fn bytes(self, low: u16, high: u16) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&low.to_le_bytes());
        bytes[14..].copy_from_slice(&high.to_le_bytes());
        bytes
    }

    pub fn from_split(bytes: &[u8]) -> Desc {
        let u16_at = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
        Desc {
            addr: u64::from_le_bytes(bytes[..8].try_into().unwrap()),
            len: u32::from_le_bytes(bytes[8..12].try_into().unwrap()),
            flags: u16_at(12),
            link: u16_at(14),
        }
    }
}

/// Bytes of a `struct virtio_blk_req` before the data.
pub fn header(kind: u32, priority: u32, sector: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..8].copy_from_slice(&priority.to_le_bytes());
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    bytes
}

struct Chunk {
    guest: u64,
    host: NonNull<u8>,
    len: usize,
}

/// Guest memory. Must outlive the queues on it.
pub struct Ram {
    chunks: Vec<Chunk>,
    pub memory: Arc<GuestMemory>,
}

impl Ram {
    /// Zeroed regions at (guest physical address, bytes).
    pub fn new(regions: &[(u64, usize)]) -> Ram {
        let chunks: Vec<Chunk> = regions
            .iter()
            .map(|&(guest, len)| {
                // SAFETY: no region of the tests is empty.
                let host = unsafe { alloc_zeroed(heap_layout(len)) };
                Chunk { guest, host: NonNull::new(host).expect("memory"), len }
            })
            .collect();
        let mut all = Vec::new();
        for chunk in &chunks {
            let size = chunk.len as u64;
            let spec = RegionSpec { guest: chunk.guest, size, user: user(chunk.guest), offset: 0 };
            // SAFETY: the allocation lives as long as `self`, which the tests keep longer than any
            // queue, and is only accessed through raw pointers.
            all.push(unsafe { Region::from_raw(spec, chunk.host) }.expect("region"));
        }
        let memory = Arc::new(GuestMemory::new(all).expect("no overlap"));
        Ram { chunks, memory }
    }

    /// Host address of a byte, if it exists.
    pub fn host(&self, guest: u64) -> Option<*mut u8> {
        let chunk =
            self.chunks.iter().find(|c| guest >= c.guest && guest - c.guest < c.len as u64)?;
        // SAFETY: inside the allocation.
        Some(unsafe { chunk.host.as_ptr().add((guest - chunk.guest) as usize) })
    }

    /// Guest physical address of a host address. Panics when it is outside of the regions.
    pub fn guest(&self, host: *const u8) -> u64 {
        let of =
            |c: &Chunk| (host.addr()).checked_sub(c.host.as_ptr().addr()).filter(|at| *at < c.len);
        let found = self.chunks.iter().find_map(|c| of(c).map(|at| c.guest + at as u64));
        found.expect("a host address outside of guest memory")
    }

    pub fn write(&self, guest: u64, bytes: &[u8]) {
        let mut rest = bytes.iter();
        for (at, len) in
            self.pieces(guest, bytes.len() as u64).expect("a test writes outside of guest memory")
        {
            let host = self.host(at).expect("a piece");
            for (i, byte) in (0..len as usize).zip(&mut rest) {
                // SAFETY: the piece is inside one allocation; shared memory is accessed volatile.
                unsafe { host.add(i).write_volatile(*byte) };
            }
        }
    }

    /// The bytes, or none if they are not all there.
    pub fn try_read(&self, guest: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        for (at, len) in self.pieces(guest, len as u64).ok()? {
            let host = self.host(at)?;
            // SAFETY: the piece is inside one allocation.
            bytes.extend((0..len as usize).map(|i| unsafe { host.add(i).read_volatile() }));
        }
        Some(bytes)
    }

    pub fn read(&self, guest: u64, len: usize) -> Vec<u8> {
        self.try_read(guest, len).expect("a test reads outside of guest memory")
    }

    pub fn read_u16(&self, guest: u64) -> u16 {
        u16::from_le_bytes(self.read(guest, 2).try_into().unwrap())
    }

    pub fn write_u16(&self, guest: u64, value: u16) {
        self.write(guest, &value.to_le_bytes());
    }

    /// Every byte of every region, in the order they were given.
    pub fn snapshot(&self) -> Vec<Vec<u8>> {
        // SAFETY: the whole allocation, without a writer meanwhile.
        let bytes =
            |c: &Chunk| unsafe { std::slice::from_raw_parts(c.host.as_ptr(), c.len) }.to_vec();
        self.chunks.iter().map(bytes).collect()
    }

    /// Splits a range at the borders of regions; an error is the first address without memory.
    pub fn pieces(&self, guest: u64, len: u64) -> Result<Vec<(u64, u64)>, u64> {
        let mut pieces = Vec::new();
        let (mut at, mut left) = (guest, len);
        while left > 0 {
            let Some(chunk) =
                self.chunks.iter().find(|c| at >= c.guest && at - c.guest < c.len as u64)
            else {
                return Err(at);
            };
            let piece = left.min(chunk.guest + chunk.len as u64 - at);
            pieces.push((at, piece));
            at += piece;
            left -= piece;
        }
        Ok(pieces)
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(chunk.host.as_ptr(), heap_layout(chunk.len)) };
        }
    }
}

fn heap_layout(len: usize) -> HeapLayout {
    HeapLayout::from_size_align(len, 4096).expect("layout")
}

/// The front end's address of a guest physical one.
pub fn user(guest: u64) -> u64 {
    guest.wrapping_add(USER) & 0xffff_ffff_ffff
}

/// A queue whose three parts lie at these guest physical addresses.
pub fn config(
    layout: RingFormat,
    size: u16,
    event_idx: bool,
    base: u32,
    parts: [u64; 3],
) -> QueueConfig {
    let [desc, driver, device] = parts.map(user);
    QueueConfig { layout, size, event_idx, desc, driver, device, base, log_addr: None }
}
