//! XFS: where its log lies. All numbers on the disk are big-endian; names are those of
//! `struct xfs_dsb`.

use std::iter::once;
use std::ops::Range;

use super::Why;
use super::checksum::crc32c;
use super::source::{Source, be16, be32, be64, le32};

const MAGIC: &[u8] = b"XFSB";

pub(super) fn is_one(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// Where its log lies, in the volume.
pub(super) fn log(
    source: &mut Source,
    place: &Range<u64>,
    head: &[u8],
) -> Result<Vec<Range<u64>>, Why> {
    let version = be16(head, 100) & 0xf;
    let sector = usize::from(be16(head, 102));
    if !(4..=5).contains(&version) || !sector.is_power_of_two() || !(512..=32768).contains(&sector)
    {
        return Err(Why::Wrong(
            "the superblock has an unknown version or an impossible sector size",
        ));
    }
    if version == 5 {
        check(&source.read(place.start, sector)?)?;
    }
    let wrong = |holds: bool, why| if holds { Err(Why::Wrong(why)) } else { Ok(()) };
    wrong(head[126] != 0, "the file system is being made")?;
    let (block, block_log) = (u64::from(be32(head, 4)), u32::from(head[120]));
    let (group, group_log) = (u64::from(be32(head, 84)), u32::from(head[124]));
    let (blocks, groups) = (be64(head, 8), u64::from(be32(head, 88)));
    let (start, length) = (be64(head, 48), u64::from(be32(head, 96)));
    let is_block =
        block.is_power_of_two() && (512..=65536).contains(&block) && block.ilog2() == block_log;
    wrong(!is_block || (sector as u64) > block, "the superblock has an impossible block size")?;
    // 32 bits times 32: no overflow.
    let fits = group > 0 && groups > 0 && blocks > group * (groups - 1) && blocks <= group * groups;
    let rounds_up = group.checked_next_power_of_two().map(u64::ilog2) == Some(group_log);
    wrong(!fits || !rounds_up, "the superblock's allocation groups do not add up")?;
    let bytes = blocks.checked_mul(block).filter(|bytes| *bytes <= place.end - place.start);
    wrong(bytes.is_none(), "the file system is larger than its place")?;
    if start == 0 {
        return Err(Why::Elsewhere);
    }
    // The upper bits of a block's number are its group's.
    let (of_group, in_group) = (start >> group_log, start & ((1 << group_log) - 1));
    wrong(of_group >= groups, "its log lies outside the file system")?;
    let first = of_group * group;
    let end = in_group + length;
    // A group begins with four sectors that are not free for anything.
    let begins = in_group * block >= 4 * sector as u64;
    let inside = length > 0 && end <= group && first + end <= blocks;
    wrong(!begins || !inside, "its log lies outside its allocation group")?;
    let begin = place.start + (first + in_group) * block;
    Ok(once(begin..begin + length * block).collect())
}

/// The superblock's checksum, over its sector: that has it little-endian, and inverted.
fn check(sector: &[u8]) -> Result<(), Why> {
    let crc = crc32c(crc32c(crc32c(!0, &sector[..224]), &[0; 4]), &sector[228..]);
    match !crc == le32(sector, 224) {
        true => Ok(()),
        false => Err(Why::Wrong("the superblock's checksum is wrong")),
    }
}
