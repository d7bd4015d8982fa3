//! File systems and containers that are not looked into, by name: for people.

use std::ops::Range;

use super::Disk;

/// A mark's place, its bytes, and its owner.
type Mark = (u64, &'static [u8], &'static str);

/// Reads for all names of a volume, of 16 bytes at most: enough for some tens of partitions.
pub(super) const READS: usize = 1024;

const KIB: u64 = 1024;

/// Those with the longest marks first. Marks of two bytes come with others.
const MARKS: &[Mark] = &[
    (64 * KIB + 64, b"_BHRfS_M", "btrfs"),
    (KIB, b"\x10\x20\xf5\xf2", "f2fs"),
    (4 * KIB - 10, b"SWAPSPACE2", "swap space"),
    (4 * KIB - 10, b"SWAP-SPACE", "swap space"),
    (16 * KIB - 10, b"SWAPSPACE2", "swap space"),
    (64 * KIB - 10, b"SWAPSPACE2", "swap space"),
    (4 * KIB - 10, b"S1SUSPEND\0", "a hibernated system, in swap space"),
    (3, b"NTFS    ", "NTFS"),
    (3, b"EXFAT   ", "exFAT"),
    (3, b"-FVE-FS-", "BitLocker"),
    (82, b"FAT32   ", "FAT32"),
    (54, b"FAT16   ", "FAT16"),
    (54, b"FAT12   ", "FAT12"),
    (32 * KIB + 1, b"CD001\x01", "ISO 9660"),
    (32 * KIB + 1, b"BEA01\x01", "UDF"),
    (0, b"\xfe\xed\xba\xbe\0\0\0\x01\0\0\0\x02", "the log of an XFS on another device"),
    (0, b"\xfe\xed\xba\xbe\0\0\0\x01\0\0\0\x01", "the log of an XFS on another device"),
    (0, b"hsqs", "squashfs"),
    (KIB, b"\xe2\xe1\xf5\xe0", "EROFS"),
    (0, b"\x45\x3d\xcd\x28", "cramfs"),
    (4 * KIB + 24, b"\xc6\x85\x73\xf6", "bcachefs or bcache"),
    (64 * KIB + 52, b"ReIsEr", "ReiserFS"),
    (64 * KIB, b"ReIsEr4", "Reiser4"),
    (32 * KIB, b"JFS1", "JFS"),
    (KIB, b"H+\0\x04", "HFS+"),
    (KIB, b"HX\0\x05", "HFS+"),
    (32, b"NXSB", "APFS"),
    (8 * KIB, b"OCFSV2", "OCFS2"),
    (64 * KIB, b"\x01\x16\x19\x70", "GFS2"),
    (128 * KIB, b"\x0c\xb1\xba\0\0\0\0\0", "ZFS"),
    (128 * KIB, b"\0\0\0\0\0\xba\xb1\x0c", "ZFS"),
    (4 * KIB, b"\xfc\x4e\x2b\xa9\x01\0\0\0", "a member of an MD RAID"),
    (0, b"\xfc\x4e\x2b\xa9\x01\0\0\0", "a member of an MD RAID"),
];

/// The name of that which has its mark in a part of the volume. `reads` are left, of [`READS`].
pub(super) fn of(
    disk: &mut dyn Disk,
    range: &Range<u64>,
    reads: &mut usize,
) -> Option<&'static str> {
    let mut is_there = |(at, bytes, _): &&Mark| {
        let Some(left) = reads.checked_sub(1) else { return false };
        *reads = left;
        let mut found = [0; 16];
        let found = &mut found[..bytes.len()];
        let start = range.start.saturating_add(*at);
        start.saturating_add(bytes.len() as u64) <= range.end
            && disk.read(start, found)
            && found == *bytes
    };
    MARKS.iter().find(|mark| is_there(mark)).map(|(.., name)| *name)
}
