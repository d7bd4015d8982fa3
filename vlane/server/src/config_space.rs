//! The device's configuration space, `struct virtio_blk_config` (virtio 1.2, section 5.2.4).

use vlane_engine::Geometry;
use vlane_ring::limits::{MAX_RANGE_SECTORS, MAX_RANGES, SEG_MAX, SIZE_MAX};

/// Sectors of one range of a write-zeroes, as advertised to drivers: 128 MiB. More is taken, up to
/// [`MAX_RANGE_SECTORS`]. The end of a queue may have to wait for all of one, and the storage may
/// have to write it.
const ZEROES_SECTORS: u32 = 256 << 10;

/// Bytes that can be read: what the protocol carries. Beyond the structure it reads as zeroes.
const SIZE: usize = 256;

const WRITEBACK: usize = 32;

/// The configuration space of one session.
#[derive(Debug, Clone)]
pub struct ConfigSpace {
    bytes: [u8; SIZE],
}

impl ConfigSpace {
    pub(crate) fn new(geometry: &Geometry, queues: u16) -> ConfigSpace {
        //= virtio 5.2.5.2
        //# The device MUST initialize padding bytes unused0 and unused1 to 0.
        let mut space = ConfigSpace { bytes: [0; SIZE] };
        let align = (geometry.block_size >> 9) << geometry.physical_exponent;
        space.put(0, &geometry.sectors.to_le_bytes());
        space.put(8, &SIZE_MAX.to_le_bytes());
        space.put(12, &SEG_MAX.to_le_bytes());
        space.put(20, &geometry.block_size.to_le_bytes());
        // Topology: physical block exponent, alignment offset, minimum and optimal I/O size in
        // blocks.
        space.put(24, &[geometry.physical_exponent, 0]);
        space.put(26, &1u16.to_le_bytes());
        space.put(28, &geometry.optimal_blocks.to_le_bytes());
        space.put(WRITEBACK, &[u8::from(geometry.write_cache)]);
        space.put(34, &queues.to_le_bytes());
        space.put(36, &MAX_RANGE_SECTORS.to_le_bytes());
        space.put(40, &MAX_RANGES.to_le_bytes());
        space.put(44, &align.to_le_bytes());
        space.put(48, &ZEROES_SECTORS.to_le_bytes());
        space.put(52, &MAX_RANGES.to_le_bytes());
        space.put(56, &[1]);
        space
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// `size` bytes at `offset`, if there are that many.
    pub fn read(&self, offset: u32, size: u32) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        //= vhost-user Front-end message types
        //# vhost-user back-end's payload size MUST match the front-end's request
        self.bytes.get(start..end)
    }

    /// The driver writes; only the write cache's switch can be changed. Returns false for any other
    /// field.
    pub fn write(&mut self, offset: u32, bytes: &[u8]) -> bool {
        if offset as usize != WRITEBACK || bytes.len() != 1 || bytes[0] > 1 {
            return false;
        }
        self.bytes[WRITEBACK] = bytes[0];
        true
    }

    /// Returns true if the write cache is on.
    pub fn write_back(&self) -> bool {
        self.bytes[WRITEBACK] == 1
    }

    /// A driver with other features begins: its cache is on or off.
    pub(crate) fn set_write_back(&mut self, on: bool) {
        self.bytes[WRITEBACK] = u8::from(on);
    }

    /// The size that the driver sees, in sectors.
    pub(crate) fn sectors(&self) -> u64 {
        self.bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// All of it, for a process that takes over.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads the bytes of [`ConfigSpace::bytes`]; `None` if the length differs.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<ConfigSpace> {
        bytes.try_into().ok().map(|bytes| ConfigSpace { bytes })
    }

    /// The volume has another size.
    pub(crate) fn set_sectors(&mut self, sectors: u64) {
        self.put(0, &sectors.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads stay inside the configuration space.
    #[test]
    fn only_the_cache_switch_is_writable() {
        let geometry = Geometry {
            sectors: 0x0102_0304,
            block_size: 512,
            physical_exponent: 3,
            optimal_blocks: 0,
            read_only: false,
            discard: true,
            write_zeroes: true,
            write_cache: true,
        };
        let mut space = ConfigSpace::new(&geometry, 7);
        assert_eq!(space.read(0, 8), Some(&0x0102_0304u64.to_le_bytes()[..]));
        assert_eq!(space.read(34, 2), Some(&[7, 0][..]));
        assert_eq!(space.read(0, 256).map(<[u8]>::len), Some(256));
        for (offset, size) in [(0, 257), (256, 1), (u32::MAX, 1), (1, u32::MAX)] {
            assert_eq!(space.read(offset, size), None);
        }
        // The announced limits are at most those that requests are checked against.
        let u32_at = |at| {
            space
                .read(at, 4)
                .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        assert_eq!([36, 48].map(u32_at), [Some(MAX_RANGE_SECTORS), Some(ZEROES_SECTORS)]);
        const { assert!(ZEROES_SECTORS <= MAX_RANGE_SECTORS) };
        assert_eq!([40, 52].map(u32_at), [Some(MAX_RANGES); 2]);
        assert!(space.write_back());
        assert!(space.write(32, &[0]) && !space.write_back());
        for (offset, bytes) in [(0, &[1u8][..]), (32, &[2]), (32, &[0, 0]), (u32::MAX, &[0])] {
            assert!(!space.write(offset, bytes));
        }
    }
}
