//! A disk from somebody else, with partition tables and file systems that may be damaged, and may
//! change while they are read: reading its layout ends after a bounded number of reads, and names
//! nothing outside the disk, nothing twice, and no journal that is watched.
//!
//! The input is a disk that is right, with damage, and with bytes of any kind at the places that
//! matter: of random bytes nearly all are refused at the first magic number. Checksums are left out
//! of half of the disks, so that there is something to find behind them.

#![no_main]

use std::ops::Range;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vlane_fuzz::disks::{Ext, Mapped, Sparse, Xfs, gpt, mbr};
use vlane_policy::journal::layout::{self, MOST_BYTES, MOST_READS};

const MIB: u64 = 1 << 20;

#[derive(Debug, Arbitrary)]
struct Input {
    table: Table,
    first: FileSystem,
    second: FileSystem,
    /// Sectors that are cut off at the end.
    short: u16,
    damage: Vec<Damage>,
    /// The damage before each read.
    later: Option<(u8, Damage)>,
}

#[derive(Debug, Arbitrary)]
enum Table {
    None,
    Mbr([(u8, u32, u32); 4]),
    /// Links of a chain of logical partitions: from where to where, in sectors of the extended one.
    Chain(Vec<(u8, [(u8, u8, u16); 2])>),
    Primary,
    Gpt {
        large: bool,
        partitions: Vec<(u16, u16)>,
    },
}

#[derive(Debug, Arbitrary)]
enum FileSystem {
    None,
    Ext {
        log: u8,
        wide: bool,
        checksums: bool,
        meta_bg: bool,
        copy: bool,
        mapped: AnyMap,
        pieces: [(u8, u8); 4],
    },
    Xfs {
        log: (u8, u16, u16),
        checksums: bool,
    },
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum AnyMap {
    Extents(u8, u8),
    Blocks,
}

#[derive(Debug, Clone, Arbitrary)]
struct Damage {
    /// Which of the sectors that are not zeroes, and the byte in it.
    sector: u16,
    byte: u16,
    bytes: AnyBytes,
}

#[derive(Debug, Clone, Arbitrary)]
enum AnyBytes {
    One(u8),
    Small(u16),
    Number(u32),
    Both(u64),
}

impl AnyBytes {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::One(value) => vec![*value],
            Self::Small(value) => value.to_le_bytes().to_vec(),
            Self::Number(value) => value.to_le_bytes().to_vec(),
            Self::Both(value) => value.to_be_bytes().to_vec(),
        }
    }
}

impl FileSystem {
    fn make(&self, disk: &mut Sparse, at: u64) {
        match self {
            FileSystem::None => {}
            FileSystem::Ext { log, wide, checksums, meta_bg, copy, mapped, pieces } => {
                let mut end = Ext::FREE;
                let pieces = pieces.map(|(gap, length)| {
                    let begin = end + u64::from(gap);
                    end = begin + 200 + u64::from(length);
                    begin..end
                });
                let ext = Ext {
                    block: 1024 << (log % 7),
                    wide: *wide,
                    checksums: *checksums,
                    meta_bg: *meta_bg,
                    mapped: match mapped {
                        AnyMap::Extents(depth, fan) => {
                            Mapped::Extents((depth % 6).into(), 2 + usize::from(fan % 4))
                        }
                        AnyMap::Blocks => Mapped::Blocks,
                    },
                    pieces: pieces.to_vec(),
                    copy: *copy,
                    blocks: 3000,
                };
                ext.make(disk, at);
            }
            FileSystem::Xfs { log, checksums } => {
                let log = (log.0.into(), log.1.into(), log.2.into());
                Xfs { groups: 2, group: 3000, log, version: 4 + u8::from(*checksums), block: 4096 }
                    .make(disk, at);
            }
        }
    }
}

fn disk(input: &Input) -> Sparse {
    let second = 200 * MIB;
    let mut disk = Sparse::new(400 * MIB - u64::from(input.short) * 512);
    let first = if matches!(input.table, Table::None) { 0 } else { MIB };
    input.first.make(&mut disk, first);
    input.second.make(&mut disk, second);
    let [begin, size] = [second, 190 * MIB].map(|bytes| u32::try_from(bytes / 512).unwrap());
    match &input.table {
        Table::None => {}
        Table::Mbr(entries) => mbr(&mut disk, 0, entries),
        Table::Primary => mbr(&mut disk, 0, &[(0x83, 2048, size), (0x83, begin, size)]),
        Table::Chain(links) => {
            mbr(&mut disk, 0, &[(0x83, 2048, size), (5, begin, size)]);
            for (at, entries) in links {
                let entries = entries.map(|(kind, start, size)| (kind, start.into(), size.into()));
                mbr(&mut disk, second + u64::from(*at) * 512, &entries);
            }
        }
        Table::Gpt { large, partitions } => {
            let sector = if *large { 4096 } else { 512 };
            let ends = |(first, last): &(u16, u16)| {
                [first, last].map(|at| u64::from(*at) * (MIB / 64) / sector)
            };
            let mut all = vec![
                (MIB / sector, second / sector - 1),
                (second / sector, disk.size / sector - 40),
            ];
            all.extend(partitions.iter().take(100).map(ends).map(|[first, last]| (first, last)));
            gpt(&mut disk, sector, &all);
        }
    }
    let used: Vec<u64> = disk.used().collect();
    let place = |damage: &Damage| match used.get(usize::from(damage.sector) % used.len().max(1)) {
        Some(sector) => sector * 512 + u64::from(damage.byte % 512),
        None => damage.byte.into(),
    };
    for damage in &input.damage {
        disk.write(place(damage), &damage.bytes.bytes());
    }
    disk.change = input
        .later
        .as_ref()
        .map(|(when, damage)| ((*when).into(), place(damage), damage.bytes.bytes()));
    disk
}

fuzz_target!(|input: Input| {
    let mut disk = disk(&input);
    let size = disk.size;
    let found = layout::examine(&mut disk, size);
    assert!(disk.reads <= MOST_READS && disk.bytes <= MOST_BYTES);
    let journals = found.layout.journals.iter().inspect(|journal| assert!(!journal.is_empty()));
    let mut ranges: Vec<&Range<u64>> = journals.flat_map(|journal| &journal.ranges).collect();
    ranges.extend(&found.layout.watched);
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.iter().all(|range| range.start < range.end && range.end <= size));
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
    assert!(found.layout.watched.is_sorted_by_key(|range| range.start));
    assert!(found.layout.watched.len() <= MOST_READS + 1024);
});
