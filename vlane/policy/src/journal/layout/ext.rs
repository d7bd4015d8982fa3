//! ext3 and ext4: where their journal lies. All numbers on the disk are little-endian, but for the
//! journal's own; names are those of `struct ext4_super_block`.
//!
//! The superblock names the journal's inode, and has a copy of that inode's map (`s_jnl_blocks`):
//! where the inode cannot be read, or is damaged, the copy stands in for it; where both can be read
//! and differ, there is no verdict. Copies of the superblock itself are not read: the kernel may
//! change the first of them without the others.

use std::iter::once;
use std::ops::Range;

use super::checksum::{crc16, crc32c};
use super::mapped::{self, Map, Places};
use super::source::{Source, be32, field, le16, le32};
use super::{Why, merged, overlap};

/// Where the superblock begins, and its length.
const SUPERBLOCK: usize = 1024;
/// The journal's superblock as far as it matters.
const JOURNAL_SUPERBLOCK: usize = 1024;
/// The least blocks of a journal that JBD2 accepts.
const LEAST_BLOCKS: u64 = 1024;

const COMPAT_HAS_JOURNAL: u32 = 0x4;
const COMPAT_SPARSE_SUPER2: u32 = 0x200;
const INCOMPAT_JOURNAL_DEV: u32 = 0x8;
const INCOMPAT_META_BG: u32 = 0x10;
const INCOMPAT_EXTENTS: u32 = 0x40;
const INCOMPAT_64BIT: u32 = 0x80;
const INCOMPAT_CSUM_SEED: u32 = 0x2000;
/// All features that do not change the fields read here. With an unknown one, no journal is found.
const INCOMPAT_KNOWN: u32 = 0x3f7de;
const RO_COMPAT_SPARSE_SUPER: u32 = 0x1;
const RO_COMPAT_GDT_CSUM: u32 = 0x10;
const RO_COMPAT_BIGALLOC: u32 = 0x200;
const RO_COMPAT_METADATA_CSUM: u32 = 0x400;

const MODE_KIND: u16 = 0xf000;
const MODE_REGULAR: u16 = 0x8000;
const FLAG_EXTENTS: u32 = 0x8_0000;
const FLAG_INLINE_DATA: u32 = 0x1000_0000;

const NOT_THERE: Why = Why::Wrong("its first block is no journal's superblock");
const ODD_SIZES: Why = Why::Wrong("the superblock has impossible sizes");

fn superblock(head: &[u8]) -> &[u8] {
    head.get(SUPERBLOCK..).unwrap_or_default()
}

pub(super) fn is_one(head: &[u8]) -> bool {
    // Copies in later groups say so: this place is no file system's beginning then.
    le16(superblock(head), 0x38) == 0xef53 && le16(superblock(head), 0x5a) == 0
}

/// Returns its common name.
pub(super) fn name(head: &[u8]) -> &'static str {
    let superblock = superblock(head);
    let (compat, incompat, ro_compat) =
        (le32(superblock, 0x5c), le32(superblock, 0x60), le32(superblock, 0x64));
    // The features of ext3: recovery, file types, META_BG; sparse superblocks, large files, indexed
    // directories' none.
    match () {
        () if incompat & INCOMPAT_JOURNAL_DEV != 0 => "ext4 journal",
        () if incompat & !0x16 != 0 || ro_compat & !0x7 != 0 => "ext4",
        () if compat & COMPAT_HAS_JOURNAL != 0 => "ext3",
        () => "ext2",
    }
}

/// Where its journal lies, in the volume, in the order of its blocks.
pub(super) fn journal(
    source: &mut Source,
    place: &Range<u64>,
    head: &[u8],
) -> Result<Vec<Range<u64>>, Why> {
    let fs = Ext::new(place, superblock(head))?;
    let compat = le32(&fs.superblock, 0x5c);
    let (inode, device) = (le32(&fs.superblock, 0xe0), le32(&fs.superblock, 0xe4));
    if fs.incompat & INCOMPAT_JOURNAL_DEV != 0 {
        return fs.whole_device(source);
    }
    fs.check_groups()?;
    match (compat & COMPAT_HAS_JOURNAL != 0, inode, device) {
        (false, ..) => Err(Why::None),
        (true, 0, 0) => {
            Err(Why::Wrong("the superblock says that there is a journal, and not where"))
        }
        (true, 0, _) => Err(Why::Elsewhere),
        (true, inode, 0) => fs.inside(source, inode),
        (true, ..) => Err(Why::Wrong("the superblock names two journals")),
    }
}

/// A file system.
pub(super) struct Ext {
    superblock: Vec<u8>,
    /// Where it begins in the volume, bytes.
    start: u64,
    pub block: u64,
    /// How many there are, and the first of them that groups are counted from.
    pub blocks: u64,
    pub first: u64,
    incompat: u32,
    ro_compat: u32,
    /// The seed of metadata checksums, if there are any.
    seed: Option<u32>,
}

/// A journal's inode, or the copy of its map.
struct Inode {
    map: [u8; mapped::ROOT],
    size: u64,
    is_extents: bool,
    /// The seed of its extent blocks' checksums.
    seed: Option<u32>,
}

impl Places for Ext {
    fn place(&self, blocks: &Range<u64>) -> Result<Range<u64>, Why> {
        match blocks.start > self.first && blocks.start < blocks.end && blocks.end <= self.blocks {
            true => {
                Ok(self.start + blocks.start * self.block..self.start + blocks.end * self.block)
            }
            false => Err(Why::Wrong("it lies outside its file system")),
        }
    }
}

impl Ext {
    fn new(place: &Range<u64>, superblock: &[u8]) -> Result<Ext, Why> {
        let (incompat, ro_compat) = (le32(superblock, 0x60), le32(superblock, 0x64));
        let has_checksums = ro_compat & RO_COMPAT_METADATA_CSUM != 0;
        if has_checksums && crc32c(!0, &superblock[..0x3fc]) != le32(superblock, 0x3fc) {
            return Err(Why::Wrong("the superblock's checksum is wrong"));
        }
        if has_checksums && superblock[0x175] != 1 {
            return Err(Why::Wrong("its checksums are of an unknown kind"));
        }
        if incompat & !INCOMPAT_KNOWN != 0 {
            return Err(Why::Wrong("it has features that are not known"));
        }
        let log = le32(superblock, 0x18);
        if log > 6 {
            return Err(ODD_SIZES);
        }
        let block = 1024 << log;
        let high = if incompat & INCOMPAT_64BIT != 0 { le32(superblock, 0x150) } else { 0 };
        let blocks = u64::from(high) << 32 | u64::from(le32(superblock, 0x4));
        if blocks.checked_mul(block).is_none_or(|bytes| bytes > place.end - place.start) {
            return Err(Why::Wrong("the file system is larger than its place"));
        }
        let first = u64::from(le32(superblock, 0x14));
        if first > u64::from(log == 0) || first >= blocks {
            return Err(ODD_SIZES);
        }
        let seed = match incompat & INCOMPAT_CSUM_SEED != 0 {
            true => le32(superblock, 0x270),
            false => crc32c(!0, &superblock[0x68..0x78]),
        };
        let seed = has_checksums.then_some(seed);
        let superblock = superblock.to_vec();
        Ok(Ext { superblock, start: place.start, block, blocks, first, incompat, ro_compat, seed })
    }

    fn field(&self, at: usize) -> u32 {
        le32(&self.superblock, at)
    }

    /// Blocks and inodes of a group.
    fn group(&self) -> (u64, u64) {
        (self.field(0x20).into(), self.field(0x28).into())
    }

    fn inode_size(&self) -> u64 {
        if self.field(0x4c) == 0 { 128 } else { le16(&self.superblock, 0x58).into() }
    }

    fn descriptor_size(&self) -> u64 {
        if self.incompat & INCOMPAT_64BIT == 0 { 32 } else { le16(&self.superblock, 0xfe).into() }
    }

    /// Makes the kernel's checks before a mount.
    fn check_groups(&self) -> Result<(), Why> {
        let (blocks, inodes) = self.group();
        // With bigalloc a bit of the bitmap stands for more than a block.
        let ratio = match self.ro_compat & RO_COMPAT_BIGALLOC {
            0 => 1,
            _ => {
                let difference = self.field(0x1c).checked_sub(self.field(0x18)).ok_or(ODD_SIZES)?;
                1_u64.checked_shl(difference).filter(|ratio| *ratio <= 1 << 20).ok_or(ODD_SIZES)?
            }
        };
        let (inode, descriptor) = (self.inode_size(), self.descriptor_size());
        let is_inode = inode.is_power_of_two() && (128..=self.block).contains(&inode);
        let is_descriptor = descriptor.is_power_of_two() && (32..=1024).contains(&descriptor);
        let wide = self.incompat & INCOMPAT_64BIT == 0 || descriptor >= 64;
        if !is_inode || !is_descriptor || !wide {
            return Err(ODD_SIZES);
        }
        let bits = 8 * self.block;
        let in_bitmap = (1..=bits * ratio).contains(&blocks) && (1..=bits).contains(&inodes);
        let groups = || (self.blocks - self.first).div_ceil(blocks);
        match in_bitmap.then(groups).and_then(|groups| groups.checked_mul(inodes))
            == Some(self.field(0).into())
        {
            true => Ok(()),
            false => Err(Why::Wrong("the superblock's block groups do not add up")),
        }
    }

    /// A journal's device: all of it after the superblock.
    fn whole_device(&self, source: &mut Source) -> Result<Vec<Range<u64>>, Why> {
        let first = if self.block == 1024 { 2 } else { 1 };
        let range = self.start + first * self.block..self.start + self.blocks * self.block;
        if range.is_empty() {
            return Err(ODD_SIZES);
        }
        self.check_journal(source, &range, self.blocks)?;
        Ok(once(range).collect())
    }

    /// Checks that a journal of `blocks` blocks begins there.
    fn check_journal(
        &self,
        source: &mut Source,
        range: &Range<u64>,
        blocks: u64,
    ) -> Result<(), Why> {
        // It is written all the time: once it is there, that is no reason to read again.
        let head = source.peek(range.start, JOURNAL_SUPERBLOCK)?;
        let is_one = be32(&head, 0) == 0xc03b_3998 && (3..=4).contains(&be32(&head, 4));
        let length = u64::from(be32(&head, 16));
        if is_one
            && u64::from(be32(&head, 12)) == self.block
            && (LEAST_BLOCKS..=blocks).contains(&length)
        {
            return Ok(());
        }
        source.watch(range.start..range.start + JOURNAL_SUPERBLOCK as u64);
        Err(NOT_THERE)
    }

    /// A journal in an inode.
    fn inside(&self, source: &mut Source, number: u32) -> Result<Vec<Range<u64>>, Why> {
        let mut own: Vec<Range<u64>> =
            once(self.start..self.start + 2 * SUPERBLOCK as u64).collect();
        let inode = match (self.inode(source, number, &mut own), self.copy()) {
            (Ok(inode), Some(copy)) if inode.map != copy.map || inode.size != copy.size => {
                return Err(Why::Wrong(
                    "its inode and the copy of that in the superblock contradict each other",
                ));
            }
            (Ok(inode), _) => inode,
            (Err(Why::TooMuch), _) => return Err(Why::TooMuch),
            (Err(_), Some(copy)) => copy,
            (Err(why), None) => return Err(why),
        };
        let blocks = inode.size / self.block;
        if inode.size % self.block != 0 || !(LEAST_BLOCKS..=self.blocks).contains(&blocks) {
            return Err(Why::Wrong("its inode has an impossible size"));
        }
        let mut map = Map::new(self, source, inode.seed, blocks, &mut own);
        match inode.is_extents {
            true => map.extents(&inode.map)?,
            false => map.blocks(&inode.map)?,
        }
        let ranges = map.into_ranges()?;
        // The metadata that describes it must lie outside.
        if overlap(&merged(own), &ranges) {
            return Err(Why::Wrong("it overlaps its own description"));
        }
        self.check_journal(source, &ranges[0], blocks)?;
        Ok(ranges)
    }

    /// The copy of the journal's inode in the superblock.
    fn copy(&self) -> Option<Inode> {
        let map: [u8; mapped::ROOT] = field(&self.superblock, 0x10c);
        let size = u64::from(self.field(0x10c + 60)) << 32 | u64::from(self.field(0x10c + 64));
        let is_extents = self.incompat & INCOMPAT_EXTENTS != 0 && mapped::is_tree(&map);
        // Without the inode's generation its checksums cannot be checked.
        let inode = Inode { map, size, is_extents, seed: None };
        (self.superblock[0xfd] == 1 && size > 0).then_some(inode)
    }

    /// The inode of a number; where it was found is added to `own`.
    fn inode(
        &self,
        source: &mut Source,
        number: u32,
        own: &mut Vec<Range<u64>>,
    ) -> Result<Inode, Why> {
        let at = u64::from(number - 1);
        let (_, inodes) = self.group();
        if at >= self.field(0).into() {
            return Err(Why::Wrong("the superblock names an inode that is not there"));
        }
        let table = self.inode_table(source, at / inodes, own)?;
        let size = self.inode_size();
        let offset = (at % inodes) * size;
        // Of the block; inodes do not cross any.
        let block = table.checked_add(offset / self.block).ok_or(ODD_SIZES)?;
        let place = self.place_of(block)?.start + offset % self.block;
        own.push(place..place + size);
        let bytes = source.read(place, usize::try_from(size).map_err(|_| ODD_SIZES)?)?;
        let seed =
            self.seed.map(|seed| crc32c(crc32c(seed, &number.to_le_bytes()), &bytes[0x64..0x68]));
        if seed.is_some_and(|seed| !inode_is_sound(&bytes, seed)) {
            return Err(Why::Wrong("the checksum of its inode is wrong"));
        }
        let (mode, links, flags) = (le16(&bytes, 0), le16(&bytes, 0x1a), le32(&bytes, 0x20));
        if mode & MODE_KIND != MODE_REGULAR || links == 0 || flags & FLAG_INLINE_DATA != 0 {
            return Err(Why::Wrong("its inode is no file's"));
        }
        let size = u64::from(le32(&bytes, 0x6c)) << 32 | u64::from(le32(&bytes, 4));
        Ok(Inode { map: field(&bytes, 0x28), size, is_extents: flags & FLAG_EXTENTS != 0, seed })
    }

    /// The block where a group's inodes begin.
    fn inode_table(
        &self,
        source: &mut Source,
        group: u64,
        own: &mut Vec<Range<u64>>,
    ) -> Result<u64, Why> {
        let size = self.descriptor_size();
        let in_block = self.block / size;
        let block = self.descriptor_block(group / in_block, in_block);
        let place = self.place_of(block)?.start + group % in_block * size;
        own.push(place..place + size);
        let bytes = source.read(place, usize::try_from(size).map_err(|_| ODD_SIZES)?)?;
        let group = u32::try_from(group).map_err(|_| ODD_SIZES)?.to_le_bytes();
        let found = le16(&bytes, 0x1e);
        let is_sound = match self.seed {
            Some(seed) => {
                let crc = crc32c(crc32c(seed, &group), &bytes[..0x1e]);
                (crc32c(crc32c(crc, &[0; 2]), &bytes[0x20..]) & 0xffff) as u16 == found
            }
            None if self.ro_compat & RO_COMPAT_GDT_CSUM != 0 => {
                let crc = crc16(crc16(!0, &self.superblock[0x68..0x78]), &group);
                crc16(crc16(crc, &bytes[..0x1e]), &bytes[0x20..]) == found
            }
            None => true,
        };
        if !is_sound {
            return Err(Why::Wrong("the checksum of its group's descriptor is wrong"));
        }
        let high = if size >= 64 { le32(&bytes, 0x28) } else { 0 };
        Ok(u64::from(high) << 32 | u64::from(le32(&bytes, 8)))
    }

    /// Where the `number`th block of descriptors is: behind the superblock, or with META_BG in the
    /// first group that it describes.
    fn descriptor_block(&self, number: u64, in_block: u64) -> u64 {
        let superblock = if self.block == 1024 { 1 } else { 0 };
        if self.incompat & INCOMPAT_META_BG == 0 || number < u64::from(self.field(0x104)) {
            return superblock + number + 1;
        }
        let group = number * in_block;
        let (blocks, _) = self.group();
        let behind = u64::from(self.has_superblock(group));
        let shifted = u64::from(self.block == 1024 && number == 0 && self.first == 0);
        (self.first + behind + shifted).saturating_add(group.saturating_mul(blocks))
    }

    fn has_superblock(&self, group: u64) -> bool {
        let is_power = |of: u64| {
            let mut power = of;
            while power < group {
                power *= of;
            }
            power == group
        };
        if group == 0 {
            return true;
        }
        if self.field(0x5c) & COMPAT_SPARSE_SUPER2 != 0 {
            return [0x24c, 0x250].iter().any(|at| u64::from(self.field(*at)) == group);
        }
        let sparse = self.ro_compat & RO_COMPAT_SPARSE_SUPER != 0;
        !sparse || group == 1 || [3, 5, 7].into_iter().any(is_power)
    }
}

/// True if an inode's checksum is right: it has two halves, the upper one where there is room for
/// it.
fn inode_is_sound(inode: &[u8], seed: u32) -> bool {
    let extra = if inode.len() > 128 { le16(inode, 0x80) } else { 0 };
    let has_high = extra >= 4;
    let mut bytes = inode.to_vec();
    bytes[0x7c..0x7e].fill(0);
    let mut found = u32::from(le16(inode, 0x7c));
    if has_high {
        bytes[0x82..0x84].fill(0);
        found |= u32::from(le16(inode, 0x82)) << 16;
    }
    let crc = crc32c(seed, &bytes);
    found == if has_high { crc } else { crc & 0xffff }
}
