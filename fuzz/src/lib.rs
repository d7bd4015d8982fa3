//! Common parts of the fuzz targets: the property tests' guest memory and models, and inputs that
//! lead somewhere.
//!
//! An input is not the bytes of a ring: of those nearly all are refused at the first descriptor. It
//! is a list of steps with addresses, lengths and flags from where the edges are.

#[path = "../../vlane/policy/tests/disks/mod.rs"]
pub mod disks;
#[path = "../../vlane/ring/tests/common/guest.rs"]
mod guest;
#[path = "../../vlane/ring/tests/common/model.rs"]
pub mod model;
#[path = "../../vlane/ring/tests/common/packed.rs"]
pub mod packed;

pub use guest::*;

use arbitrary::Arbitrary;
use vlane_ring::{Queue, Request};

/// Ring and tables; a neighbour; after a hole one of odd size; one at the end of the world.
pub const REGIONS: [(u64, usize); 4] =
    [(0x1_0000, 0x3000), (0x1_3000, 0x801), (0x2_0000, 0x1233), (u64::MAX - 0xfff, 0xfff)];
/// The ring's parts: 64 entries at most.
pub const DESC: u64 = 0x1_0000;
pub const DRIVER: u64 = 0x1_0400;
pub const DEVICE: u64 = 0x1_0600;
/// Indirect tables, one up to the end of its region.
pub const TABLES: [u64; 4] = [0x1_1000, 0x1_1800, 0x1_1c03, 0x1_2f88];
/// Headers of requests, and data.
pub const DATA: u64 = 0x1_2000;

/// An address near something.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Place {
    Data(u8),
    Table(u8),
    Ring(u16),
    /// The end of a region, give or take.
    Edge(u8, i8),
    Any(u64),
}

impl Place {
    pub fn addr(self) -> u64 {
        match self {
            Place::Data(at) => DATA + 16 * u64::from(at % 192),
            Place::Table(table) => TABLES[usize::from(table % 4)],
            Place::Ring(at) => DESC + u64::from(at % 0x1000),
            Place::Edge(region, by) => {
                let (guest, len) = REGIONS[usize::from(region % 4)];
                (guest + len as u64).wrapping_add_signed(by.into())
            }
            Place::Any(addr) => addr,
        }
    }
}

/// A length that something begins or ends at.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Length {
    Sectors(u8),
    Entries(u8),
    Short(u8),
    Any(u32),
}

impl Length {
    pub fn bytes(self) -> u32 {
        match self {
            Length::Sectors(n) => 512 * u32::from(n % 8),
            Length::Entries(n) => 16 * u32::from(n),
            Length::Short(n) => n.into(),
            Length::Any(n) => n,
        }
    }
}

#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct AnyDesc {
    place: Place,
    length: Length,
    /// Next, write, indirect.
    flags: u8,
    others: Option<u16>,
    link: u8,
}

impl AnyDesc {
    pub fn desc(self) -> Desc {
        let flags = u16::from(self.flags & 7) | self.others.unwrap_or(0);
        Desc { addr: self.place.addr(), len: self.length.bytes(), flags, link: self.link.into() }
    }
}

/// Writes what of `bytes` lies in guest memory.
pub fn write(ram: &Ram, addr: u64, bytes: &[u8]) {
    for (i, byte) in bytes.iter().enumerate() {
        if let Some(at) = addr.checked_add(i as u64).filter(|at| ram.host(*at).is_some()) {
            ram.write(at, &[*byte]);
        }
    }
}

/// Every byte that a request names is in guest memory; touches the ends of each buffer, for the
/// sanitizer to see.
pub fn check_request(ram: &Ram, queue: &Queue, request: &Request) {
    assert!(queue.in_flight() <= usize::from(queue.config().size));
    for buffer in request.buffers().iter().filter(|b| b.iov_len > 0) {
        let first = ram.guest(buffer.iov_base.cast());
        assert_eq!(ram.pieces(first, buffer.iov_len as u64).expect("memory").len(), 1);
    }
    let _ = request.fits(1 << 20);
    if request.kind() == vlane_ring::RequestKind::GetId {
        request.fill(b"a serial number of more than 20 bytes");
    }
}
