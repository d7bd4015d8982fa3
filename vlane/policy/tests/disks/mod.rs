//! Disks that are made byte by byte: partition tables and file systems as small as they can be,
//! right in all that says where a journal lies. The fuzz target makes its disks with it, too.

#![allow(
    dead_code,
    clippy::cast_possible_truncation,
    reason = "each program uses its own part of it; all sizes are small"
)]

use std::collections::BTreeMap;
use std::ops::Range;

use vlane_policy::journal::Disk;

/// A disk of which only some sectors are not zeroes. It counts its reads, and may change while it
/// is read.
#[derive(Debug, Clone, Default)]
pub struct Sparse {
    pub size: u64,
    pub reads: usize,
    /// Bytes of all reads.
    pub bytes: usize,
    /// Data that is written before a given read.
    pub change: Option<(usize, u64, Vec<u8>)>,
    sectors: BTreeMap<u64, [u8; 512]>,
}

impl Disk for Sparse {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> bool {
        if let Some((_, at, bytes)) = self.change.take_if(|(when, ..)| *when == self.reads) {
            self.write(at, &bytes);
        }
        self.reads += 1;
        self.bytes += buffer.len();
        let is_inside = offset.checked_add(buffer.len() as u64).is_some_and(|end| end <= self.size);
        assert!(is_inside, "read outside the volume");
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let begin = (at % 512) as usize;
            let (now, later) = rest.split_at_mut(rest.len().min(512 - begin));
            match self.sectors.get(&(at / 512)) {
                Some(sector) => now.copy_from_slice(&sector[begin..begin + now.len()]),
                None => now.fill(0),
            }
            (at, rest) = (at + now.len() as u64, later);
        }
        true
    }
}

impl Sparse {
    pub fn new(size: u64) -> Self {
        Self { size, ..Self::default() }
    }

    /// Writes the part of `bytes` that lies on the disk.
    pub fn write(&mut self, mut at: u64, bytes: &[u8]) {
        let inside = self.size.saturating_sub(at).min(bytes.len() as u64);
        let mut rest = &bytes[..inside as usize];
        while !rest.is_empty() {
            let begin = (at % 512) as usize;
            let (now, later) = rest.split_at(rest.len().min(512 - begin));
            // Zeroes that are there already are left out: what is used is what says something.
            if self.sectors.contains_key(&(at / 512)) || now.iter().any(|byte| *byte != 0) {
                let sector = self.sectors.entry(at / 512).or_insert([0; 512]);
                sector[begin..begin + now.len()].copy_from_slice(now);
            }
            (at, rest) = (at + now.len() as u64, later);
        }
    }

    pub fn byte(&self, at: u64) -> u8 {
        self.sectors.get(&(at / 512)).map_or(0, |sector| sector[(at % 512) as usize])
    }

    /// The sectors that are not zeroes.
    pub fn used(&self) -> impl Iterator<Item = u64> {
        self.sectors.keys().copied()
    }
}

/// A reflected CRC in the simplest way, not inverted.
pub fn crc(polynomial: u32, seed: u32, bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ (polynomial & (crc & 1).wrapping_neg());
    bytes.iter().fold(seed, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    crc(0x82f6_3b78, seed, bytes)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn put32(bytes: &mut [u8], at: usize, value: u64) {
    put(bytes, at, &(value as u32).to_le_bytes());
}

fn put16(bytes: &mut [u8], at: usize, value: u64) {
    put(bytes, at, &(value as u16).to_le_bytes());
}

/// An entry of an MBR: kind, first sector, sectors.
pub type Entry = (u8, u32, u32);

/// A boot sector at `at`.
pub fn mbr(disk: &mut Sparse, at: u64, entries: &[Entry]) {
    let mut sector = [0; 512];
    for (n, (kind, start, sectors)) in entries.iter().enumerate() {
        let entry = 446 + 16 * n;
        sector[entry + 4] = *kind;
        put32(&mut sector, entry + 8, (*start).into());
        put32(&mut sector, entry + 12, (*sectors).into());
    }
    put(&mut sector, 510, &[0x55, 0xaa]);
    disk.write(at, &sector);
}

/// A GPT with its copy; partitions are sectors, the last of them included.
pub fn gpt(disk: &mut Sparse, sector: u64, partitions: &[(u64, u64)]) {
    mbr(disk, 0, &[(0xee, 1, u32::MAX)]);
    // As many entries as are needed, in the room of as many as all tools make.
    let mut entries = vec![0; 128 * partitions.len().max(4)];
    for (entry, (first, last)) in entries.chunks_exact_mut(128).zip(partitions) {
        entry[..32].fill(0x77);
        put(entry, 32, &first.to_le_bytes());
        put(entry, 40, &last.to_le_bytes());
    }
    let array_checksum = !crc(0xedb8_8320, !0, &entries);
    let (blocks, last) = ((128 * 128_u64).div_ceil(sector), disk.size / sector - 1);
    for (own, other, array) in [(1, last, 2), (last, 1, last - blocks)] {
        let mut header = [0; 92];
        put(&mut header, 0, b"EFI PART\0\0\x01\0");
        put32(&mut header, 12, 92);
        for (at, value) in
            [(24, own), (32, other), (40, 2 + blocks), (48, last - blocks - 1), (72, array)]
        {
            put(&mut header, at, &value.to_le_bytes());
        }
        put32(&mut header, 80, entries.len() as u64 / 128);
        put32(&mut header, 84, 128);
        put32(&mut header, 88, array_checksum.into());
        let checksum = !crc(0xedb8_8320, !0, &header);
        put32(&mut header, 16, checksum.into());
        disk.write(own * sector, &header);
        disk.write(array * sector, &entries);
    }
}

/// An XFS at `at`, with its log in a group.
#[derive(Debug, Clone, Copy)]
pub struct Xfs {
    pub block: u64,
    pub groups: u64,
    pub group: u64,
    /// The log's group, its first block there, and its blocks.
    pub log: (u64, u64, u64),
    pub version: u8,
}

impl Xfs {
    pub const SMALL: Xfs =
        Xfs { block: 4096, groups: 4, group: 5000, log: (2, 6, 1000), version: 5 };

    pub fn make(&self, disk: &mut Sparse, at: u64) -> Range<u64> {
        let Xfs { block, groups, group, log: (of, first, length), version } = *self;
        let group_log = group.next_power_of_two().ilog2();
        let mut sector = [0; 512];
        put(&mut sector, 0, b"XFSB");
        put(&mut sector, 4, &(block as u32).to_be_bytes());
        put(&mut sector, 8, &(groups * group - 3).to_be_bytes());
        put(&mut sector, 48, &(of << group_log | first).to_be_bytes());
        for (at, value) in [(84, group), (88, groups), (96, length)] {
            put(&mut sector, at, &(value as u32).to_be_bytes());
        }
        put(&mut sector, 100, &[0xb4, 0xa0 | version, 2, 0]);
        put(&mut sector, 120, &[block.ilog2() as u8, 9, 8, 4, group_log as u8]);
        let checksum = !crc32c(!0, &sector);
        put32(&mut sector, 224, checksum.into());
        disk.write(at, &sector);
        let begin = at + (of * group + first) * block;
        begin..begin + length * block
    }

    /// Bytes that it takes.
    pub fn size(&self) -> u64 {
        self.groups * self.group * self.block
    }
}

/// How an ext4 names its journal's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapped {
    /// A tree of extents so deep, with so many entries in a node.
    Extents(u16, usize),
    /// Pointers to single blocks.
    Blocks,
}

/// An ext3 or ext4 with a journal in inode 8.
#[derive(Debug, Clone)]
pub struct Ext {
    pub block: u64,
    pub wide: bool,
    pub checksums: bool,
    pub meta_bg: bool,
    pub mapped: Mapped,
    /// The journal's pieces: blocks of the file system. Its metadata needs the first [`Ext::FREE`]
    /// blocks.
    pub pieces: Vec<Range<u64>>,
    /// The superblock has a copy of the inode.
    pub copy: bool,
    pub blocks: u64,
}

/// Where its parts are, bytes of the disk.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    pub superblock: u64,
    pub descriptor: u64,
    pub inode: u64,
    /// Blocks of the map.
    pub maps: Vec<u64>,
    pub journal: Vec<Range<u64>>,
}

const UUID: [u8; 16] = *b"a file system 16";

impl Ext {
    /// The first blocks that are not needed to describe a journal.
    pub const FREE: u64 = 512;

    /// One of 64 MiB or so with a journal of 1536 blocks in three pieces, the second of which lies
    /// before the first.
    pub fn small() -> Ext {
        let from = Self::FREE;
        Ext {
            block: 4096,
            wide: true,
            checksums: true,
            meta_bg: false,
            mapped: Mapped::Extents(0, 4),
            pieces: vec![from + 1000..from + 1700, from..from + 800, from + 2000..from + 2036],
            copy: true,
            blocks: 16000,
        }
    }

    pub fn size(&self) -> u64 {
        self.blocks * self.block
    }

    fn first(&self) -> u64 {
        u64::from(self.block == 1024)
    }

    fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.end - piece.start).sum()
    }

    pub fn make(&self, disk: &mut Sparse, at: u64) -> Parts {
        let place = |block: u64| at + block * self.block;
        let seed = crc32c(!0, &UUID);
        let table = self.first() + 4;
        let mut parts = Parts {
            superblock: at + 1024,
            descriptor: place(self.first() + 1),
            inode: place(table) + 7 * 256,
            maps: Vec::new(),
            journal: self.pieces.iter().map(|piece| place(piece.start)..place(piece.end)).collect(),
        };
        let inode_seed = crc32c(crc32c(seed, &8_u32.to_le_bytes()), &[0; 4]);
        let root = match self.mapped {
            Mapped::Extents(depth, fan) => {
                self.tree(disk, at, depth, fan, inode_seed, &mut parts.maps)
            }
            Mapped::Blocks => self.block_map(disk, at, &mut parts.maps),
        };
        let size = self.length() * self.block;

        let mut inode = [0; 256];
        put16(&mut inode, 0, 0x8180);
        put32(&mut inode, 4, size);
        put32(&mut inode, 0x6c, size >> 32);
        put16(&mut inode, 0x1a, 1);
        put32(&mut inode, 0x20, if self.mapped == Mapped::Blocks { 0 } else { 0x8_0000 });
        put(&mut inode, 0x28, &root);
        put16(&mut inode, 0x80, 32);
        if self.checksums {
            let checksum = u64::from(crc32c(inode_seed, &inode));
            put16(&mut inode, 0x7c, checksum);
            put16(&mut inode, 0x82, checksum >> 16);
        }
        disk.write(parts.inode, &inode);

        let mut descriptor = vec![0; if self.wide { 64 } else { 32 }];
        put32(&mut descriptor, 8, table);
        if self.checksums {
            let checksum = crc32c(crc32c(seed, &[0; 4]), &descriptor);
            put16(&mut descriptor, 0x1e, (checksum & 0xffff).into());
        }
        disk.write(parts.descriptor, &descriptor);
        disk.write(parts.superblock, &self.superblock(&root, size));

        let mut head = Vec::new();
        for word in [0xc03b_3998, 4, 0, self.block as u32, self.length() as u32, 1] {
            head.extend(u32::to_be_bytes(word));
        }
        disk.write(parts.journal[0].start, &head);
        parts
    }

    fn superblock(&self, root: &[u8; 60], size: u64) -> [u8; 1024] {
        let group = 8 * self.block;
        let groups = (self.blocks - self.first()).div_ceil(group);
        let mut bytes = [0; 1024];
        for (at, value) in [
            (0, groups * 128),
            (4, self.blocks),
            (0x14, self.first()),
            (0x18, (self.block / 1024).ilog2().into()),
            (0x20, group),
            (0x24, group),
            (0x28, 128),
            (0x4c, 1),
            (0x5c, 0x4),
            (
                0x60,
                0x2 | u64::from(self.mapped != Mapped::Blocks) << 6
                    | u64::from(self.wide) << 7
                    | u64::from(self.meta_bg) << 4,
            ),
            (0x64, 0x1 | u64::from(self.checksums) << 10),
            (0xe0, 8),
            (0x150, self.blocks >> 32),
        ] {
            put32(&mut bytes, at, value);
        }
        put16(&mut bytes, 0x38, 0xef53);
        put16(&mut bytes, 0x58, 256);
        put16(&mut bytes, 0xfe, 64 * u64::from(self.wide));
        put(&mut bytes, 0x68, &UUID);
        bytes[0x175] = 1;
        if self.copy {
            bytes[0xfd] = 1;
            put(&mut bytes, 0x10c, root);
            put32(&mut bytes, 0x10c + 60, size >> 32);
            put32(&mut bytes, 0x10c + 64, size);
        }
        if self.checksums {
            let checksum = crc32c(!0, &bytes[..0x3fc]);
            put32(&mut bytes, 0x3fc, checksum.into());
        }
        bytes
    }

    /// A tree of extents from its leaves upwards; gives its root.
    fn tree(
        &self,
        disk: &mut Sparse,
        at: u64,
        depth: u16,
        fan: usize,
        seed: u32,
        maps: &mut Vec<u64>,
    ) -> [u8; 60] {
        let node = |entries: &[[u8; 12]], most: usize, level: u16| {
            let mut bytes = vec![0; 12];
            for (at, value) in
                [(0, 0xf30a), (2, entries.len() as u64), (4, most as u64), (6, level.into())]
            {
                put16(&mut bytes, at, value);
            }
            bytes.extend(entries.iter().flatten());
            bytes.resize(12 + 12 * most, 0);
            bytes
        };
        let mut logical = 0;
        let mut entries: Vec<[u8; 12]> = Vec::new();
        for piece in &self.pieces {
            let mut entry = [0; 12];
            put32(&mut entry, 0, logical);
            put16(&mut entry, 4, piece.end - piece.start);
            put16(&mut entry, 6, piece.start >> 32);
            put32(&mut entry, 8, piece.start);
            logical += piece.end - piece.start;
            entries.push(entry);
        }
        for level in 0..depth {
            let mut above = Vec::new();
            for children in entries.chunks(fan.max(2)) {
                let block = self.first() + 20 + maps.len() as u64;
                let most = (self.block as usize - 12) / 12;
                let mut bytes = node(children, most, level);
                let checksum = crc32c(seed, &bytes);
                bytes.extend(checksum.to_le_bytes());
                disk.write(at + block * self.block, &bytes);
                maps.push(at + block * self.block);
                let mut entry = [0; 12];
                put(&mut entry, 0, &children[0][..4]);
                put32(&mut entry, 4, block);
                above.push(entry);
            }
            entries = above;
        }
        assert!(entries.len() <= 4, "too many pieces for a tree of this depth");
        node(&entries, 4, depth).try_into().expect("a root's length")
    }

    /// The older map, as deep as it must be; gives its root.
    fn block_map(&self, disk: &mut Sparse, at: u64, maps: &mut Vec<u64>) -> [u8; 60] {
        let mut blocks = self.pieces.iter().cloned().flatten().peekable();
        let mut root = [0; 60];
        for n in 0..12 {
            put32(&mut root, 4 * n, blocks.next().unwrap_or(0));
        }
        for level in 1..=3 {
            if blocks.peek().is_some() {
                let block = self.map_block(disk, at, level, &mut blocks, maps);
                put32(&mut root, 4 * (11 + level), block);
            }
        }
        root
    }

    fn map_block(
        &self,
        disk: &mut Sparse,
        at: u64,
        level: usize,
        blocks: &mut std::iter::Peekable<impl Iterator<Item = u64>>,
        maps: &mut Vec<u64>,
    ) -> u64 {
        let block = self.first() + 20 + maps.len() as u64;
        maps.push(at + block * self.block);
        let mut bytes = vec![0; self.block as usize];
        for pointer in bytes.chunks_exact_mut(4) {
            if blocks.peek().is_none() {
                break;
            }
            let next = match level {
                1 => blocks.next().unwrap_or(0),
                _ => self.map_block(disk, at, level - 1, blocks, maps),
            };
            put32(pointer, 0, next);
        }
        disk.write(at + block * self.block, &bytes);
        block
    }
}
