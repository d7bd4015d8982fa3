//! Limits of a request: one place for the configuration space's values and for the checks.
//!
//! | | announced | checked |
//! |---|---|---|
//! | [`MAX_RANGES`], [`MAX_RANGE_SECTORS`] | yes | yes, as QEMU does: a driver must not exceed them, a device need not believe that |
//! | [`SIZE_MAX`], [`SEG_MAX`] | yes, for drivers that want to be told what is good for them | no: UEFI's driver puts up to 1 GiB into one descriptor |
//! | [`MAX_REQUEST`], [`MAX_BUFFERS`](crate::MAX_BUFFERS) | no field for them | yes |

/// Ranges of one DISCARD or WRITE_ZEROES (`max_discard_seg`, `max_write_zeroes_seg`).
pub const MAX_RANGES: u32 = 32;
/// Sectors of one range (`max_discard_sectors`, `max_write_zeroes_sectors`): 2 GiB.
pub const MAX_RANGE_SECTORS: u32 = 4 << 20;
/// Largest buffer of a request, bytes (`size_max`): larger than any that Linux makes, so that it
/// never splits one.
pub const SIZE_MAX: u32 = 4 << 20;
/// Data buffers of a request (`seg_max`). With the header and the status it fills the smallest ring
/// in common use (128).
pub const SEG_MAX: u32 = 126;
/// Bytes of data of one request. Less is worked on in parts; more is refused.
pub const MAX_REQUEST: u64 = 1 << 30;
/// The largest legal queue, entries (virtio 1.2, 2.7 and 2.8.10.1).
pub const MAX_QUEUE_SIZE: u16 = 32768;
