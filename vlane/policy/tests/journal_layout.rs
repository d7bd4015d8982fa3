//! Journals by layout, on disks that are made byte by byte: a right layout is found, and every
//! wrong one gives no verdict.

#![allow(
    clippy::unwrap_used,
    clippy::single_range_in_vec_init,
    reason = "tests may; a journal may be one range"
)]

mod disks;

use std::ops::Range;

use disks::{Entry, Ext, Mapped, Parts, Sparse, Xfs, crc32c, gpt, mbr};
use proptest::prelude::*;
use vlane_policy::journal::layout::{
    self, Content, Findings, JournalLayout, Label, MOST_BYTES, MOST_READS, Place, Why,
};
use vlane_policy::journal::{Detector, FileSystem, Journal};

const MIB: u64 = 1 << 20;

/// Looks at a disk, and checks the properties of every answer.
fn examine(disk: &mut Sparse) -> Findings {
    (disk.reads, disk.bytes) = (0, 0);
    let size = disk.size;
    let findings = layout::examine(disk, size);
    assert!(disk.reads <= MOST_READS && disk.bytes <= MOST_BYTES, "{} reads", disk.reads);
    let JournalLayout { journals, watched } = &findings.layout;
    let mut ranges: Vec<&Range<u64>> =
        journals.iter().flat_map(|journal| &journal.ranges).collect();
    ranges.extend(watched);
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.iter().all(|range| range.start < range.end && range.end <= size), "{ranges:?}");
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "they overlap: {ranges:?}");
    assert!(journals.iter().all(|journal| !journal.is_empty()));
    findings
}

/// The only place, and why there is no journal in it.
fn why(findings: &Findings) -> Why {
    assert_eq!(findings.layout.journals, []);
    match &findings.places[..] {
        [Place { content: Content::FileSystem { journal: Err(why), .. }, .. }] => *why,
        places => panic!("{places:?}"),
    }
}

fn ranges(findings: &Findings) -> Vec<Vec<Range<u64>>> {
    findings.layout.journals.iter().map(|journal| journal.ranges.clone()).collect()
}

/// A disk with one file system from byte 0 on.
fn with(ext: &Ext) -> (Sparse, Parts) {
    let mut disk = Sparse::new(ext.size());
    let parts = ext.make(&mut disk, 0);
    (disk, parts)
}

#[test]
fn every_block_mapping_of_journals_is_followed() {
    let many: Vec<_> = (0..150).map(|n| 600 + 20 * n..610 + 20 * n).collect();
    let cases = [
        Ext::small(),
        Ext { wide: false, checksums: false, ..Ext::small() },
        Ext { wide: false, ..Ext::small() },
        Ext { meta_bg: true, ..Ext::small() },
        Ext { block: 1024, meta_bg: true, ..Ext::small() },
        Ext { block: 65536, ..Ext::small() },
        Ext { mapped: Mapped::Extents(1, 2), ..Ext::small() },
        Ext { mapped: Mapped::Extents(5, 2), ..Ext::small() },
        Ext { mapped: Mapped::Extents(4, 4), pieces: many.clone(), ..Ext::small() },
        Ext { mapped: Mapped::Extents(2, 60), block: 1024, pieces: many.clone(), ..Ext::small() },
        Ext { mapped: Mapped::Blocks, checksums: false, ..Ext::small() },
        Ext { mapped: Mapped::Blocks, block: 1024, pieces: many, ..Ext::small() },
        // Deep enough for the third level of maps.
        Ext {
            mapped: Mapped::Blocks,
            block: 1024,
            pieces: vec![1000..70_000],
            blocks: 80_000,
            ..Ext::small()
        },
    ];
    for ext in cases {
        let (mut disk, parts) = with(&ext);
        let found = examine(&mut disk);
        assert_eq!(ranges(&found), [parts.journal], "{ext:?}: {:?}", found.places);
        assert!(disk.reads <= 20 + 2 * parts.maps.len(), "{} reads", disk.reads);
    }
    for xfs in [
        Xfs::SMALL,
        Xfs { version: 4, ..Xfs::SMALL },
        Xfs { log: (3, 5000 - 3 - 1000, 1000), ..Xfs::SMALL },
        Xfs { block: 512, groups: 1, log: (0, 4, 900), ..Xfs::SMALL },
    ] {
        let mut disk = Sparse::new(xfs.size());
        let log = xfs.make(&mut disk, 0);
        let found = examine(&mut disk);
        assert_eq!(ranges(&found), [[log]], "{xfs:?}: {:?}", found.places);
        assert_eq!(found.layout.journals[0].filesystem, FileSystem::Xfs);
    }
}

/// A small change of an ext4, its name, and a part of the reason that it gives.
type Lie = (&'static str, fn(&mut Sparse, &Parts), &'static str);

fn set16(disk: &mut Sparse, at: u64, value: u16) {
    disk.write(at, &value.to_le_bytes());
}

fn set32(disk: &mut Sparse, at: u64, value: u32) {
    disk.write(at, &value.to_le_bytes());
}

#[test]
fn lying_ext4_gives_a_reason_without_verdict() {
    // The root of the map is in the inode from byte 0x28 on; extents begin 12 bytes behind it.
    let lies: [Lie; 32] = [
        (
            "an unknown feature",
            |disk, parts| set32(disk, parts.superblock + 0x60, 0x4000_00c2),
            "not known",
        ),
        ("no journal", |disk, parts| set32(disk, parts.superblock + 0x5c, 0), "none"),
        ("no inode", |disk, parts| set32(disk, parts.superblock + 0xe0, 0), "not where"),
        ("two journals", |disk, parts| set32(disk, parts.superblock + 0xe4, 7), "two journals"),
        (
            "an inode behind the last",
            |disk, parts| set32(disk, parts.superblock + 0xe0, 9999),
            "not there",
        ),
        ("another inode", |disk, parts| set32(disk, parts.superblock + 0xe0, 9), "no file"),
        (
            "blocks of 64 TiB",
            |disk, parts| set32(disk, parts.superblock + 0x18, 36),
            "impossible sizes",
        ),
        (
            "more blocks than the disk",
            |disk, parts| set32(disk, parts.superblock + 4, 16001),
            "larger",
        ),
        ("2^63 blocks", |disk, parts| set32(disk, parts.superblock + 0x150, 1 << 31), "larger"),
        ("no blocks", |disk, parts| set32(disk, parts.superblock + 4, 0), "impossible sizes"),
        (
            "a first block",
            |disk, parts| set32(disk, parts.superblock + 0x14, 1),
            "impossible sizes",
        ),
        ("empty groups", |disk, parts| set32(disk, parts.superblock + 0x20, 0), "do not add up"),
        (
            "huge groups",
            |disk, parts| set32(disk, parts.superblock + 0x20, u32::MAX),
            "do not add up",
        ),
        (
            "groups without inodes",
            |disk, parts| set32(disk, parts.superblock + 0x28, 0),
            "do not add up",
        ),
        (
            "another number of inodes",
            |disk, parts| set32(disk, parts.superblock, 129),
            "do not add up",
        ),
        (
            "inodes of 3 bytes",
            |disk, parts| set16(disk, parts.superblock + 0x58, 3),
            "impossible sizes",
        ),
        (
            "inodes of 32K",
            |disk, parts| set16(disk, parts.superblock + 0x58, 32768),
            "impossible sizes",
        ),
        (
            "no descriptors",
            |disk, parts| set16(disk, parts.superblock + 0xfe, 0),
            "impossible sizes",
        ),
        ("inodes outside", |disk, parts| set32(disk, parts.descriptor + 8, 16000), "outside"),
        (
            "inodes far outside",
            |disk, parts| disk.write(parts.descriptor + 0x28, &[0xff; 4]),
            "outside",
        ),
        (
            "inodes in the last block of all",
            |disk, parts| {
                disk.write(parts.descriptor + 8, &[0xff; 4]);
                disk.write(parts.descriptor + 0x28, &[0xff; 4]);
            },
            "outside",
        ),
        ("a directory", |disk, parts| set16(disk, parts.inode, 0x4180), "no file"),
        (
            "an odd size",
            |disk, parts| set32(disk, parts.inode + 4, 1536 * 4096 + 1),
            "impossible size",
        ),
        (
            "a small size",
            |disk, parts| set32(disk, parts.inode + 4, 1023 * 4096),
            "impossible size",
        ),
        ("a huge size", |disk, parts| set32(disk, parts.inode + 0x6c, 1 << 31), "impossible size"),
        ("more than its extents", |disk, parts| set32(disk, parts.inode + 4, 1537 * 4096), "hole"),
        ("a tree of depth 6", |disk, parts| set16(disk, parts.inode + 0x28 + 6, 6), "damaged"),
        ("a hole", |disk, parts| set32(disk, parts.inode + 0x28 + 24, 701), "hole"),
        (
            "a part not written",
            |disk, parts| set16(disk, parts.inode + 0x28 + 16, 0x8000 + 700),
            "damaged",
        ),
        (
            "an extent outside",
            |disk, parts| set32(disk, parts.inode + 0x28 + 20, 15_999),
            "outside",
        ),
        ("a part twice", |disk, parts| set32(disk, parts.inode + 0x28 + 32, 1400), "twice"),
        (
            "the inode's own block",
            |disk, parts| set32(disk, parts.inode + 0x28 + 32, 3),
            "its own description",
        ),
    ];
    for (name, lie, says) in lies {
        let (mut disk, parts) = with(&Ext { checksums: false, copy: false, ..Ext::small() });
        assert_eq!(examine(&mut disk).layout.journals.len(), 1);
        lie(&mut disk, &parts);
        let found = examine(&mut disk);
        assert!(found.layout.journals.is_empty(), "{name}: it is believed");
        let why = why(&found).to_string();
        assert!(why.contains(says), "{name}: {why}");
        // With checksums, none of it is even looked at.
        let (mut disk, parts) = with(&Ext { copy: false, ..Ext::small() });
        lie(&mut disk, &parts);
        let found = examine(&mut disk);
        assert!(found.layout.journals.is_empty(), "{name}: it is believed, whatever its checksum");
        let why = self::why(&found).to_string();
        assert!(why.contains("checksum"), "{name}: {why}");
    }
}

#[test]
fn circular_trees_and_maps_end() {
    let ext = Ext { checksums: false, copy: false, mapped: Mapped::Extents(2, 2), ..Ext::small() };
    let (mut disk, parts) = with(&ext);
    // The last node is below the root: its child is itself, then the root's own block.
    let above = *parts.maps.last().unwrap();
    for block in [above / 4096, parts.inode / 4096] {
        disk.write(above + 12 + 4, &u32::try_from(block).unwrap().to_le_bytes());
        let why = why(&examine(&mut disk)).to_string();
        assert!(why.contains("damaged"), "{why}");
    }
    let ext =
        Ext { checksums: false, copy: false, mapped: Mapped::Blocks, block: 1024, ..Ext::small() };
    let (mut disk, parts) = with(&ext);
    let double = parts.maps[1];
    for pointer in 0..256 {
        set32(&mut disk, double + 4 * pointer, u32::try_from(double / 1024).unwrap());
    }
    let why = why(&examine(&mut disk)).to_string();
    assert!(why.contains("twice") || why.contains("its own description"), "{why}");
}

#[test]
fn absurd_journals_are_given_up_early() {
    // All of the disk as single blocks in turn: as many pieces as blocks.
    let pieces: Vec<_> = (0..9000).map(|n| 1000 + 2 * n..1001 + 2 * n).collect();
    let ext = Ext {
        mapped: Mapped::Blocks,
        block: 1024,
        checksums: false,
        pieces,
        blocks: 30_000,
        ..Ext::small()
    };
    let (mut disk, _) = with(&ext);
    assert_eq!(why(&examine(&mut disk)), Why::TooMuch);
    // More blocks of the map than are read: a map of depth 3 that names one map of data again and
    // again, in 10 TiB.
    let ext = Ext {
        mapped: Mapped::Blocks,
        block: 1024,
        checksums: false,
        copy: false,
        blocks: 1 << 32,
        pieces: vec![1000..70_000],
        ..Ext::small()
    };
    let (mut disk, parts) = with(&ext);
    let number = |at: u64| u32::try_from(at / 1024).unwrap();
    let [third, second] = [parts.maps.len() - 5, parts.maps.len() - 4].map(|n| parts.maps[n]);
    for pointer in 0..256 {
        set32(&mut disk, third + 4 * pointer, number(second));
        set32(&mut disk, second + 4 * pointer, number(parts.maps[0]));
    }
    set32(&mut disk, parts.inode + 4, u32::MAX << 10);
    set32(&mut disk, parts.inode + 0x6c, 1);
    let found = why(&examine(&mut disk));
    assert!(matches!(found, Why::TooMuch | Why::Wrong(_)), "{found:?}");
}

/// A copy that differs from an intact one contradicts it.
#[test]
fn inode_copy_replaces_a_damaged_inode() {
    for mapped in [Mapped::Extents(0, 4), Mapped::Extents(1, 2), Mapped::Blocks] {
        for checksums in [false, true] {
            let ext = Ext { mapped, checksums, ..Ext::small() };
            let (mut disk, parts) = with(&ext);
            for at in [parts.inode, parts.descriptor] {
                let mut damaged = disk.clone();
                damaged.write(at, &[0xff; 32]);
                assert_eq!(
                    ranges(&examine(&mut damaged)),
                    std::slice::from_ref(&parts.journal),
                    "{ext:?}"
                );
            }
            // The superblock's own copy is another one.
            set32(&mut disk, parts.superblock + 0x10c + 20, 9);
            let mut bytes = [0; 1020];
            let all: Vec<u8> = (0..1020).map(|at| disk.byte(parts.superblock + at)).collect();
            bytes.copy_from_slice(&all);
            set32(&mut disk, parts.superblock + 1020, crc32c(!0, &bytes));
            let why = why(&examine(&mut disk)).to_string();
            assert!(why.contains("contradict"), "{why}");
        }
    }
}

#[test]
fn journal_needs_a_written_superblock() {
    let (mut disk, parts) = with(&Ext::small());
    let first = parts.journal[0].start;
    let length: Vec<u8> = (0..4).map(|at| disk.byte(first + 16 + at)).collect();
    disk.write(first + 16, &[0xff; 4]);
    let found = examine(&mut disk);
    assert!(why(&found).to_string().contains("no journal's superblock"));
    let mut detector = Detector::new(disk.size);
    detector.set_layout(found.layout);
    detector.write(first..first + 4096, &[]);
    assert!(detector.needs_layout(), "what is missing is not watched");
    disk.write(first + 16, &length);
    assert_eq!(ranges(&examine(&mut disk)), [parts.journal]);
}

#[test]
fn lying_xfs_gives_no_verdict() {
    let small = Xfs { version: 4, ..Xfs::SMALL };
    let lies: [(Xfs, &str); 8] = [
        (Xfs { log: (4, 6, 1000), ..small }, "outside"),
        (Xfs { log: (2, 4001, 1000), ..small }, "outside"),
        (Xfs { log: (3, 3998, 1000), ..small }, "outside"),
        (Xfs { log: (2, 0, 1000), ..small }, "outside"),
        (Xfs { log: (2, 6, 0), ..small }, "outside"),
        (Xfs { version: 6, ..small }, "unknown version"),
        (Xfs { block: 256, ..small }, "block size"),
        (Xfs { log: (0, 0, 1000), ..small }, "another device"),
    ];
    for (xfs, says) in lies {
        let mut disk = Sparse::new(small.size());
        xfs.make(&mut disk, 0);
        let why = why(&examine(&mut disk)).to_string();
        assert!(why.contains(says), "{xfs:?}: {why}");
    }
    for (at, bytes, says) in [
        (8, [0xff; 8], "add up"),
        (84, [0; 8], "add up"),
        (88, [0xff; 8], "add up"),
        (124, [40; 8], "being made"),
        (102, [0; 8], "sector size"),
        (48, [0xff; 8], "outside"),
    ] {
        let mut disk = Sparse::new(small.size());
        small.make(&mut disk, 0);
        disk.write(at, &bytes);
        let why = why(&examine(&mut disk)).to_string();
        assert!(why.contains(says), "{at}: {why}");
    }
    // Larger than its disk; and with a checksum, any change.
    let mut disk = Sparse::new(small.size() - 4 * 4096);
    small.make(&mut disk, 0);
    assert!(why(&examine(&mut disk)).to_string().contains("larger"));
    let mut disk = Sparse::new(small.size());
    Xfs::SMALL.make(&mut disk, 0);
    disk.write(300, b"x");
    assert!(why(&examine(&mut disk)).to_string().contains("checksum"));
}

/// Two file systems of 64 MiB, made where the partitions are to be.
fn two(disk: &mut Sparse, places: [u64; 2]) -> Vec<Vec<Range<u64>>> {
    let ext = Ext::small().make(disk, places[0]).journal;
    let log = Xfs { groups: 3, ..Xfs::SMALL }.make(disk, places[1]);
    vec![ext, vec![log]]
}

/// Sectors of a partition for either.
const SECTORS: u32 = 63 * 2048;

#[test]
fn each_kind_of_table_gives_partitions() {
    let (begins, size) = ([MIB, 80 * MIB], 160 * MIB);
    let sectors = begins.map(|at| u32::try_from(at / 512).unwrap());
    let entry = |n: usize| -> Entry { (0x83, sectors[n], SECTORS) };

    let mut disk = Sparse::new(size);
    let journals = two(&mut disk, begins);
    mbr(&mut disk, 0, &[(0, 0, 0), entry(0), (0x83, 1 << 31, 5), entry(1)]);
    let found = examine(&mut disk);
    assert_eq!((ranges(&found), found.label), (journals.clone(), Some(Label::Mbr(512))));
    assert_eq!(
        found.places.iter().map(|place| place.number).collect::<Vec<_>>(),
        [Some(2), Some(4)]
    );

    // One primary, the other logical behind an empty link.
    mbr(&mut disk, 0, &[entry(0), (0x0f, sectors[1] - 1000, SECTORS + 1000)]);
    let chain = begins[1] - 1000 * 512;
    mbr(&mut disk, chain, &[(0, 0, 0), (5, 400, 2000)]);
    mbr(&mut disk, chain + 400 * 512, &[(0x83, 600, SECTORS)]);
    let found = examine(&mut disk);
    assert_eq!(ranges(&found), journals, "{found:?}");

    // GPT counts before what else its MBR says; in sectors of either size.
    for sector in [512, 4096] {
        let mut disk = Sparse::new(size);
        let journals = two(&mut disk, begins);
        let partitions =
            begins.map(|at| (at / sector, (at + u64::from(SECTORS) * 512) / sector - 1));
        gpt(&mut disk, sector, &partitions);
        mbr(&mut disk, 0, &[(0x83, 40_000, 2000), (0xee, 1, 40_000)]);
        let found = examine(&mut disk);
        assert_eq!((ranges(&found), found.label), (journals.clone(), Some(Label::Gpt(sector))));
        // The copy, when the primary is damaged: its header, or its entries.
        for at in [sector + 60, 2 * sector + 130] {
            let mut damaged = disk.clone();
            damaged.write(at, b"x");
            assert_eq!(ranges(&examine(&mut damaged)), journals);
        }
        // A disk that was made larger has the copy where its end was.
        disk.size += 3 * MIB;
        assert_eq!(ranges(&examine(&mut disk)), journals);
        // Without the entry in its MBR, Linux does not look at it.
        mbr(&mut disk, 0, &[(0x83, 40_000, 2000)]);
        assert_eq!(ranges(&examine(&mut disk)), [[]; 0]);
    }

    // An old table that counts in larger sectors.
    let mut disk = Sparse::new(size);
    let journals = two(&mut disk, begins);
    mbr(&mut disk, 0, &[(0x83, sectors[0] / 8, SECTORS / 8), (0x83, sectors[1] / 8, SECTORS / 8)]);
    let found = examine(&mut disk);
    assert_eq!((ranges(&found), found.label), (journals, Some(Label::Mbr(4096))));
}

#[test]
fn lying_tables_give_no_verdict() {
    let (begins, size) = ([MIB, 80 * MIB], 160 * MIB);
    let sectors = begins.map(|at| u32::try_from(at / 512).unwrap());
    let none: [[Range<u64>; 0]; 0] = [];
    let mut disk = Sparse::new(size);
    let journals = two(&mut disk, begins);

    // A chain that comes back to its beginning, and one that leaves its partition: its partitions
    // are not believed, the others are.
    let extended = sectors[1] - 2000;
    let chain = u64::from(extended) * 512;
    mbr(&mut disk, 0, &[(0x83, sectors[0], SECTORS), (5, extended, SECTORS + 2000)]);
    for links in [
        [(0x83, 2000, SECTORS), (5, 0, 100)],
        [(0x83, 2000, SECTORS), (5, 1000, 100)],
        [(0x83, 2000, SECTORS), (5, u32::MAX, 100)],
        [(0x83, 2000, u32::MAX), (0, 0, 0)],
        [(0x83, 2000, SECTORS), (0x83, 1000, 100)],
    ] {
        mbr(&mut disk, chain, &links);
        mbr(&mut disk, chain + 1000 * 512, &[(0, 0, 0), (5, 1000, 100)]);
        // That entry 0 of a link is empty is no error, nor that it has no next one.
        assert_eq!(ranges(&examine(&mut disk)), journals[..1], "{links:?}");
    }

    // Partitions over each other.
    mbr(
        &mut disk,
        0,
        &[(0x83, sectors[0], SECTORS), (0x83, sectors[1], SECTORS), (0x83, sectors[1] + 9, 5)],
    );
    assert_eq!(ranges(&examine(&mut disk)), journals[..1]);
    // Too small for their file systems, or beyond the disk.
    mbr(&mut disk, 0, &[(0x83, sectors[0], 1000), (0x83, sectors[1], SECTORS * 4)]);
    assert_eq!(ranges(&examine(&mut disk)), none);
    // No table: something else has the same last two bytes.
    mbr(&mut disk, 0, &[(0x83, sectors[0], SECTORS)]);
    disk.write(446 + 16, &[0x31]);
    assert_eq!(examine(&mut disk).label, None);

    // Two GPTs that are sound and differ.
    let mut disk = Sparse::new(size);
    two(&mut disk, begins);
    gpt(&mut disk, 512, &[(90_000, 100_000)]);
    let mut other = Sparse::new(size);
    gpt(&mut other, 512, &begins.map(|at| (at / 512, at / 512 + u64::from(SECTORS) - 1)));
    for at in (0..2 * 512).chain(1024..1024 + 128 * 128) {
        disk.write(at, &[other.byte(at)]);
    }
    let found = examine(&mut disk);
    assert_eq!((ranges(&found), found.label), (vec![], Some(Label::Damaged)));

    // A file system over the whole disk, and a table.
    let mut disk = Sparse::new(size);
    Ext { blocks: size / 4096, ..Ext::small() }.make(&mut disk, 0);
    assert_eq!(examine(&mut disk).layout.journals.len(), 1);
    mbr(&mut disk, 0, &[(0x83, sectors[1], SECTORS)]);
    assert_eq!(ranges(&examine(&mut disk)), none);
    two(&mut disk, begins);
    mbr(&mut disk, 0, &[(0x83, sectors[0], SECTORS), (0x83, sectors[1], SECTORS)]);
    assert_eq!(ranges(&examine(&mut disk)), none);
}

#[test]
fn layout_changing_during_read_gives_no_verdict() {
    let ext = Ext { checksums: false, copy: false, mapped: Mapped::Extents(1, 2), ..Ext::small() };
    let (disk, parts) = with(&ext);
    let reads = {
        let mut disk = disk.clone();
        examine(&mut disk);
        disk.reads
    };
    let moved = Ext {
        pieces: ext.pieces.iter().map(|piece| piece.start + 5..piece.end + 5).collect(),
        ..ext
    };
    let mut after = Sparse::new(disk.size);
    moved.make(&mut after, 0);
    let leaf = parts.maps[0];
    let bytes: Vec<u8> = (leaf..leaf + 4096).map(|at| after.byte(at)).collect();
    let mut none = 0;
    for when in 0..reads {
        let mut disk = disk.clone();
        // The journal's superblock is at both places.
        disk.write(
            parts.journal[0].start + 5 * 4096,
            &(0..64).map(|at| disk.byte(parts.journal[0].start + at)).collect::<Vec<_>>(),
        );
        disk.change = Some((when, leaf, bytes.clone()));
        let found = examine(&mut disk);
        let begin = found.layout.journals.first().map(|journal| journal.ranges[0].start);
        none += usize::from(begin.is_none());
        // Never a mixture of both.
        let (old, new) = (parts.journal[0].start, parts.journal[0].start + 5 * 4096);
        assert!(begin.is_none_or(|begin| begin == old || begin == new), "{when}: {begin:?}");
        if begin.is_none() {
            assert_eq!(why(&found), Why::Changed);
        }
        let watches = |at: u64| found.layout.watched.iter().any(|range| range.contains(&at));
        assert!(watches(leaf) && watches(parts.inode) && watches(parts.superblock));
    }
    assert!(none > 0, "no change was noticed");
}

#[test]
fn evidence_is_watched_and_journal_is_not() {
    let needs = |layout: &JournalLayout, at: u64| {
        let mut detector = Detector::new(u64::MAX);
        detector.set_layout(layout.clone());
        detector.write(at..at + 512, &[]);
        detector.needs_layout()
    };
    let mut disk = Sparse::new(160 * MIB);
    let parts = Ext { mapped: Mapped::Extents(2, 2), ..Ext::small() }.make(&mut disk, MIB);
    let log = Xfs { groups: 3, ..Xfs::SMALL }.make(&mut disk, 80 * MIB);
    gpt(&mut disk, 512, &[(2048, 2048 + 63 * 2048), (160 * 1024, 160 * 1024 + 63 * 2048)]);
    let layout = examine(&mut disk).layout;
    assert_eq!(layout.journals.len(), 2);
    let own =
        [0, 512, 1024, 160 * MIB - 512, parts.superblock, parts.descriptor, parts.inode, 80 * MIB];
    for at in own.into_iter().chain(parts.maps) {
        assert!(needs(&layout, at), "{at}");
    }
    for at in parts.journal.iter().chain([&log]).flat_map(|range| [range.start, range.end - 512]) {
        assert!(!needs(&layout, at), "{at}");
    }
    // Empty places: there a table or superblock would appear.
    let layout = examine(&mut Sparse::new(160 * MIB)).layout;
    assert_eq!(layout.journals, []);
    for (at, is_watched) in [
        (0, true),
        (512, true),
        (1024, true),
        (4096, true),
        (160 * MIB - 512, true),
        (160 * MIB - 4096, true),
        (MIB, false),
    ] {
        assert_eq!(needs(&layout, at), is_watched, "{at}");
    }
    // A device that is one journal to its end is written without a reading for each write.
    let mut disk = Sparse::new(64 * MIB);
    let (mut superblock, mut head) = ([0; 1024], Vec::new());
    for (at, value) in [(4, 16384), (0x18, 2), (0x38, 0xef53), (0x60, 8), (0x4c, 1_u32)] {
        superblock[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    [0xc03b_3998_u32, 4, 0, 4096, 16384, 2].iter().for_each(|word| head.extend(word.to_be_bytes()));
    disk.write(1024, &superblock);
    disk.write(4096, &head);
    let layout = examine(&mut disk).layout;
    assert_eq!(layout.journals[0].ranges, [4096..64 * MIB]);
    assert_eq!(layout.watched, [0..4096]);
}

#[test]
fn smallest_disks_have_no_journal() {
    for size in [0, 1, 511, 512, 513, 1024, 2047, 2048, 4096, 8192] {
        let mut disk = Sparse::new(size);
        disk.write(0, &[0xff; 8192]);
        mbr(&mut disk, 0, &[(0xee, 1, 1), (0x83, 1, 1), (5, 1, 3)]);
        assert_eq!(examine(&mut disk).layout.journals, [], "{size}");
    }
    // Nor on one that cannot be read.
    struct Broken;
    impl vlane_policy::journal::Disk for Broken {
        fn read(&mut self, _: u64, _: &mut [u8]) -> bool {
            false
        }
    }
    assert_eq!(layout::read(&mut Broken, MIB).journals, []);
}

prop_compose! {
    fn any_ext()(
        log in 0..=6_u32,
        flags in prop::collection::vec(any::<bool>(), 4),
        map in prop_oneof![(0..=3_u16, 2..5_usize).prop_map(|(depth, fan)| Mapped::Extents(depth, fan)), Just(Mapped::Blocks)],
        lengths in prop::collection::vec((1..400_u64, 1..50_u64), 4),
    ) -> Ext {
        let mut at = Ext::FREE;
        let mut pieces: Vec<Range<u64>> = lengths.into_iter().map(|(length, gap)| {
            let begin = at + gap;
            at = begin + 300 + length;
            begin..at
        }).collect();
        pieces.rotate_left(1);
        Ext {
            block: 1024 << log,
            wide: flags[0],
            checksums: flags[1],
            meta_bg: flags[2],
            copy: flags[3],
            mapped: map,
            pieces,
            blocks: 4000,
        }
    }
}

proptest! {
    #[test]
    fn damaged_layout_never_leaves_the_volume(
        ext in any_ext(),
        table in 0..4_u8,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u16>(), any::<u8>()), 0..12),
        change in prop::option::of((0..40_usize, any::<prop::sample::Index>())),
    ) {
        let at = if table == 0 { 0 } else { MIB };
        let size = (at + ext.size()).next_multiple_of(MIB) + MIB;
        let mut disk = Sparse::new(size);
        let parts = ext.make(&mut disk, at);
        let sectors = u32::try_from((size - 2 * MIB) / 512).unwrap();
        match table {
            0 => {}
            1 => mbr(&mut disk, 0, &[(0x83, 2048, sectors)]),
            n => {
                let sector = if n == 2 { 512 } else { 4096 };
                gpt(&mut disk, sector, &[(MIB / sector, (size - MIB) / sector - 1)]);
            }
        }
        // As it is, it is found.
        prop_assert_eq!(ranges(&examine(&mut disk)), [parts.journal]);
        let used: Vec<u64> = disk.used().collect();
        for (sector, byte, value) in damage {
            disk.write(sector.get(&used) * 512 + u64::from(byte % 512), &[value]);
        }
        disk.change = change.as_ref().map(|(when, at)| (*when, at.get(&used) * 512, vec![0xff; 512]));
        let found = examine(&mut disk);
        // The next reading, without further changes, has the same findings.
        let again = examine(&mut disk);
        if disk.change.is_none() && change.is_none() {
            prop_assert_eq!(&found, &again);
        }
        let known: Vec<Journal> = found.layout.journals;
        prop_assert!(known.iter().all(|journal| journal.len() <= size));
    }
}
