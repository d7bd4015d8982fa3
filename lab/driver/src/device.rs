//! A block device's description of itself: feature bits and configuration space (virtio 1.2,
//! sections 5.2.3, 5.2.4, 6).

use serde::Serialize;

/// Feature bits, by number.
pub mod feature {
    /// VIRTIO_BLK_F_SIZE_MAX.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// VIRTIO_BLK_F_SEG_MAX.
    pub const SEG_MAX: u64 = 1 << 2;
    /// VIRTIO_BLK_F_RO.
    pub const RO: u64 = 1 << 5;
    /// VIRTIO_BLK_F_BLK_SIZE.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// VIRTIO_BLK_F_FLUSH.
    pub const FLUSH: u64 = 1 << 9;
    /// VIRTIO_BLK_F_TOPOLOGY.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// VIRTIO_BLK_F_CONFIG_WCE.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// VIRTIO_BLK_F_MQ.
    pub const MQ: u64 = 1 << 12;
    /// VIRTIO_BLK_F_DISCARD.
    pub const DISCARD: u64 = 1 << 13;
    /// VIRTIO_BLK_F_WRITE_ZEROES.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// VIRTIO_F_INDIRECT_DESC.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// VIRTIO_F_EVENT_IDX.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// VHOST_USER_F_PROTOCOL_FEATURES.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// VIRTIO_F_VERSION_1.
    pub const VERSION_1: u64 = 1 << 32;
    /// VIRTIO_F_RING_PACKED.
    pub const RING_PACKED: u64 = 1 << 34;
}

/// Bytes of configuration space up to and including the write-zeroes fields.
pub(crate) const CONFIG_BYTES: usize = 60;
/// Bytes up to and including `num_queues`, which every back end has.
pub(crate) const CONFIG_BYTES_SHORT: usize = 36;
/// Offset of the byte that switches the volatile write cache.
pub(crate) const WRITEBACK_AT: u32 = 32;

/// The configuration space of a block device; a field whose feature is not offered is 0 or absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BlkConfig {
    /// Size in bytes.
    pub capacity: u64,
    /// Largest segment in bytes, if the device names one.
    pub size_max: Option<u32>,
    /// Most data segments in one request, if the device names a limit.
    pub seg_max: Option<u32>,
    /// Logical block size in bytes; 512 unless the device says otherwise.
    pub blk_size: u32,
    /// True if writes are refused.
    pub read_only: bool,
    /// True if completed writes may be lost until they are flushed (at the time of asking).
    pub write_cache: bool,
    /// Queues that the device has.
    pub num_queues: u16,
    /// Largest discard in sectors; `None` if discard is not offered.
    pub max_discard_sectors: Option<u32>,
    /// Largest write-zeroes in sectors; `None` if it is not offered.
    pub max_write_zeroes_sectors: Option<u32>,
}

impl BlkConfig {
    /// Reads the configuration space under a set of feature bits; bytes that are missing at the end
    /// count as 0.
    pub(crate) fn parse(bytes: &[u8], features: u64) -> Self {
        let mut all = [0; CONFIG_BYTES];
        let n = bytes.len().min(CONFIG_BYTES);
        all[..n].copy_from_slice(&bytes[..n]);
        let u32_at =
            |at: usize| u32::from_le_bytes([all[at], all[at + 1], all[at + 2], all[at + 3]]);
        let with = |bit, value: u32| (features & bit != 0).then_some(value);
        Self {
            capacity: (u64::from(u32_at(0)) | u64::from(u32_at(4)) << 32).saturating_mul(512),
            size_max: with(feature::SIZE_MAX, u32_at(8)).filter(|max| *max > 0),
            seg_max: with(feature::SEG_MAX, u32_at(12)).filter(|max| *max > 0),
            blk_size: with(feature::BLK_SIZE, u32_at(20))
                .filter(|size| *size >= 512)
                .unwrap_or(512),
            read_only: features & feature::RO != 0,
            // 5.2.5.2: without CONFIG_WCE, FLUSH alone tells that there is a cache.
            write_cache: match features & feature::CONFIG_WCE {
                0 => features & feature::FLUSH != 0,
                _ => all[WRITEBACK_AT as usize] != 0,
            },
            num_queues: match features & feature::MQ {
                0 => 1,
                _ => u16::from_le_bytes([all[34], all[35]]).max(1),
            },
            max_discard_sectors: with(feature::DISCARD, u32_at(36)),
            max_write_zeroes_sectors: with(feature::WRITE_ZEROES, u32_at(48)),
        }
    }
}

/// The result of the negotiation with the back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Negotiated {
    /// The virtio feature bits.
    pub bits: u64,
    /// Packed rings.
    pub packed: bool,
    /// Notifications by event index.
    pub event_idx: bool,
    /// Indirect descriptors: offered, and used for every request.
    pub indirect: bool,
    /// Flush requests.
    pub flush: bool,
    /// Queues in use.
    pub queues: u16,
    /// Entries of each queue.
    pub queue_size: u16,
    /// True if completed writes may be lost until flushed, as set at the end of the negotiation.
    pub write_cache: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_read_under_its_features() {
        let mut bytes = [0; CONFIG_BYTES];
        bytes[0] = 8;
        bytes[12] = 126;
        bytes[21] = 0x10;
        bytes[32] = 1;
        bytes[34] = 4;
        let all = feature::SEG_MAX | feature::BLK_SIZE | feature::MQ | feature::CONFIG_WCE;
        let config = BlkConfig::parse(&bytes, all);
        assert_eq!((config.capacity, config.seg_max, config.blk_size), (4096, Some(126), 4096));
        assert_eq!((config.num_queues, config.write_cache, config.read_only), (4, true, false));
        let bare = BlkConfig::parse(&bytes[..CONFIG_BYTES_SHORT], 0);
        assert_eq!(
            (bare.seg_max, bare.blk_size, bare.num_queues, bare.write_cache),
            (None, 512, 1, false)
        );
    }
}
