//! Journals by layout, against the tools that made the file systems: e2fsprogs, xfsprogs, sfdisk.

#![allow(
    clippy::unwrap_used,
    clippy::single_range_in_vec_init,
    reason = "tests may; a journal may be one range"
)]

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use vlane_policy::journal::layout::{self, Content, Findings, Label, MOST_READS, Why};
use vlane_policy::journal::{Disk, Evidence, FileSystem, Journal, LogKind};
use vlane_testing::skip;

const MIB: u64 = 1 << 20;

/// A sparse file that counts how often it is read.
struct Image {
    file: File,
    reads: usize,
}

impl Disk for Image {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> bool {
        self.reads += 1;
        self.file.read_exact_at(buffer, offset).is_ok()
    }
}

fn examine(path: &Path) -> Findings {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut image = Image { file, reads: 0 };
    let findings = layout::examine(&mut image, size);
    assert!(image.reads <= MOST_READS);
    for range in findings.layout.journals.iter().flat_map(|journal| &journal.ranges) {
        assert!(range.start < range.end && range.end <= size, "{range:?}");
    }
    findings
}

/// Returns true if the programs are there; reports one that is not.
fn has(programs: &[&str]) -> bool {
    let paths = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let is_there = |name: &str| std::env::split_paths(&paths).any(|dir| dir.join(name).exists());
    let missing: Vec<_> = programs.iter().filter(|name| !is_there(name)).collect();
    if !missing.is_empty() {
        skip(format!("{missing:?} of e2fsprogs, xfsprogs or fdisk is missing"));
    }
    missing.is_empty()
}

/// Runs a program with words separated by blanks, and returns its output. A `+` inside a word is a
/// blank.
fn run(program: &str, words: &str, path: &Path, input: &str) -> String {
    let mut command = Command::new(program);
    command
        .env("PATH", std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin")
        .env("LC_ALL", "C");
    command.args(words.split_whitespace().map(|word| word.replace('+', " "))).arg(path);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    // A program without a question may end without reading the answers.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn sparse(dir: &TempDir, name: &str, size: u64) -> PathBuf {
    let path = dir.path().join(name);
    File::create(&path).unwrap().set_len(size).unwrap();
    path
}

fn mkfs_ext(path: &Path, options: &str) {
    // Without writing the journal: that is what takes time.
    run("mkfs.ext4", &format!("-q -F -E lazy_journal_init=1,nodiscard {options}"), path, "");
}

fn value_of(text: &str, name: &str) -> u64 {
    let line = text
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_else(|| panic!("{name}: {text}"));
    let digits = line[name.len()..].trim_start_matches([' ', ':', '=']);
    digits.split_whitespace().next().unwrap().parse().unwrap()
}

/// Where debugfs says that the journal's inode has its blocks, in bytes from `at` on.
fn by_debugfs(path: &Path, at: u64) -> Vec<Range<u64>> {
    let head = run("dumpe2fs", "-h", path, "");
    let (block, inode) = (value_of(&head, "Block size"), value_of(&head, "Journal inode"));
    let stat = run("debugfs", &format!("-R stat+<{inode}>"), path, "");
    let pieces = stat
        .lines()
        .skip_while(|line| !line.starts_with("BLOCKS:") && !line.starts_with("EXTENTS:"));
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut next = 0;
    for piece in
        pieces.skip(1).flat_map(|line| line.split(", ")).filter(|piece| piece.starts_with('('))
    {
        let (logical, physical) = piece[1..].split_once("):").unwrap();
        // Blocks of the map itself have letters.
        if !logical.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let first: u64 = logical.split('-').next().unwrap().parse().unwrap();
        let ends: Vec<u64> = physical.split('-').map(|end| end.parse().unwrap()).collect();
        let blocks = ends[0]..ends[ends.len() - 1] + 1;
        assert_eq!(first, next, "not in order");
        next += blocks.end - blocks.start;
        let range = at + blocks.start * block..at + blocks.end * block;
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    ranges
}

fn by_xfs_db(path: &Path, at: u64) -> Range<u64> {
    let text = run("xfs_db", "-r -c sb+0 -c p+logstart+logblocks+blocksize", path, "");
    let start = value_of(&text, "logstart");
    let bytes = run("xfs_db", &format!("-r -c convert+fsblock+{start}+byte"), path, "");
    // 0x10008000 (268468224)
    let begin: u64 = bytes.split(['(', ')']).nth(1).unwrap().parse().unwrap();
    at + begin..at + begin + value_of(&text, "logblocks") * value_of(&text, "blocksize")
}

fn journal(filesystem: FileSystem, ranges: Vec<Range<u64>>) -> Journal {
    Journal { filesystem, kind: LogKind::Journal, way: Evidence::Layout, ranges }
}

/// Options of mkfs.ext4 and the size of the image in MiB.
const EXT: [(&str, u64); 24] = [
    ("-J size=64", 1024),
    ("-b 1024", 64),
    ("-b 2048 -I 128", 128),
    ("-b 4096 -J size=64", 512),
    ("-b 8192", 256),
    ("-b 65536", 1024),
    ("-O ^64bit", 256),
    ("-O ^64bit,^metadata_csum,uninit_bg", 256),
    ("-O ^metadata_csum,uninit_bg", 256),
    ("-O ^metadata_csum,^uninit_bg", 256),
    ("-O fast_commit -J size=64", 512),
    ("-O metadata_csum_seed,bigalloc -C 65536", 512),
    ("-O bigalloc -b 1024 -C 16384", 512),
    ("-O meta_bg,^resize_inode", 512),
    ("-O meta_bg,^resize_inode,^64bit -b 1024", 512),
    ("-O meta_bg,^resize_inode,sparse_super2 -b 1024", 512),
    ("-O inline_data,encrypt,casefold,verity,orphan_file,ea_inode,large_dir,mmp", 256),
    ("-O ^flex_bg -J size=1024", 4096),
    // An extent tree of depth 2.
    ("-O ^flex_bg,^resize_inode -b 1024 -g 256 -J size=120", 512),
    // Block maps: with single, double and triple indirect blocks.
    ("-t ext3 -b 4096 -J size=4", 64),
    ("-t ext3 -b 4096 -J size=64", 512),
    ("-t ext3 -b 1024 -J size=100", 512),
    ("-O ^extents,metadata_csum,^64bit", 256),
    ("-O ^sparse_super,^resize_inode,^flex_bg -I 1024 -N 200000", 256),
];

#[test]
fn ext_journals_match_debugfs() {
    if !has(&["mkfs.ext4", "debugfs", "dumpe2fs"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    for (options, size) in EXT {
        let path = sparse(&dir, "disk", size * MIB);
        mkfs_ext(&path, options);
        let ranges = by_debugfs(&path, 0);
        assert!(!ranges.is_empty(), "{options}: debugfs was not understood");
        let found = examine(&path);
        assert_eq!(
            found.layout.journals,
            [journal(FileSystem::Ext4, ranges)],
            "{options}: {:?}",
            found.places
        );
        assert_eq!((found.label, found.places.len()), (None, 1), "{options}");
    }
}

#[test]
fn superblock_copy_replaces_damaged_journal_inode() {
    if !has(&["mkfs.ext4", "debugfs", "dumpe2fs"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    // Without checksums, with them, and a map of blocks.
    for options in ["-O ^metadata_csum", "-J size=64 -O ^flex_bg", "-t ext3 -b 1024"] {
        let path = sparse(&dir, "disk", 512 * MIB);
        mkfs_ext(&path, options);
        let ranges = by_debugfs(&path, 0);
        let place = run("debugfs", "-R imap+<8>", &path, "");
        let (number, offset) =
            place.trim().rsplit_once("at block ").unwrap().1.split_once(", offset 0x").unwrap();
        let block = value_of(&run("dumpe2fs", "-h", &path, ""), "Block size");
        let at = number.parse::<u64>().unwrap() * block + u64::from_str_radix(offset, 16).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut inode = [0; 128];
        file.read_exact_at(&mut inode, at).unwrap();
        file.write_all_at(&[0; 128], at).unwrap();
        let found = examine(&path);
        assert_eq!(
            found.layout.journals,
            [journal(FileSystem::Ext4, ranges)],
            "{options}: {:?}",
            found.places
        );
        // One that can be read and says something else contradicts it.
        inode[0x28 + 8] ^= 1;
        file.write_all_at(&inode, at).unwrap();
        let found = examine(&path);
        let checksums = !options.contains("^metadata_csum") && !options.contains("ext3");
        assert_eq!(found.layout.journals.is_empty(), !checksums, "{options}: {:?}", found.places);
    }
}

#[test]
fn moved_journal_is_found() {
    if !has(&["mkfs.ext4", "debugfs", "dumpe2fs", "tune2fs", "resize2fs", "e2fsck"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    for options in ["", "-O ^metadata_csum,^64bit -b 1024", "-t ext3"] {
        let path = sparse(&dir, "disk", 128 * MIB);
        mkfs_ext(&path, options);
        let grow = || File::options().write(true).open(&path).unwrap().set_len(200 * MIB).unwrap();
        let found_after = |what: &str| {
            let found = examine(&path);
            let expected = journal(FileSystem::Ext4, by_debugfs(&path, 0));
            assert_eq!(found.layout.journals, [expected], "{options}, {what}: {:?}", found.places);
        };
        grow();
        run("resize2fs", "-f", &path, "");
        found_after("made larger");
        run("resize2fs", "-f -M", &path, "");
        found_after("made as small as possible");
        // That has made the image itself smaller, too.
        grow();
        run("resize2fs", "-f", &path, "");
        run("tune2fs", "-f -O ^has_journal", &path, "");
        assert_eq!(examine(&path).layout.journals, [], "{options}");
        run("tune2fs", "-f -J size=8", &path, "");
        found_after("with another journal");
        run("e2fsck", "-f -y", &path, "");
        run("tune2fs", "-f -U random", &path, "");
        found_after("with another name");
    }
}

/// A volume whose journal is elsewhere, or without one, has none.
#[test]
fn external_journal_is_found_on_its_device() {
    if !has(&["mkfs.ext4", "mke2fs", "dumpe2fs"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    for (options, block) in
        [("-b 1024", 1024), ("-b 4096", 4096), ("-b 4096 -O metadata_csum", 4096)]
    {
        let path = sparse(&dir, "journal", 64 * MIB);
        run("mke2fs", &format!("-q -F -O journal_dev {options}"), &path, "");
        let range = if block == 1024 { 2048..64 * MIB } else { 4096..64 * MIB };
        let ranges = vec![range];
        assert_eq!(
            examine(&path).layout.journals,
            [journal(FileSystem::Ext4, ranges)],
            "{options}"
        );
    }
    let path = sparse(&dir, "disk", 64 * MIB);
    for (options, name) in [("-O ^has_journal", "ext4"), ("-t ext2", "ext2")] {
        mkfs_ext(&path, options);
        let content = Content::FileSystem { name, journal: Err(Why::None) };
        assert_eq!(examine(&path).places[0].content, content);
    }
    // One whose journal has a device of its own: as that would leave it.
    mkfs_ext(&path, "-O ^metadata_csum");
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0, 0, 0, 0, 0x10, 0x08, 0, 0], 1024 + 0xe0).unwrap();
    let content = Content::FileSystem { name: "ext4", journal: Err(Why::Elsewhere) };
    assert_eq!(examine(&path).places[0].content, content);
}

#[test]
fn xfs_logs_match_xfs_db() {
    if !has(&["mkfs.xfs", "xfs_db"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    for (options, size) in [
        ("", 400),
        ("-m crc=0", 400),
        ("-b size=1024", 400),
        ("-b size=65536 -m crc=1", 2048),
        ("-s size=4096 -d agcount=7", 900),
        ("-l size=256m,agnum=2 -d agcount=5", 4096),
        ("-d agsize=400003b -l agnum=1", 4096),
    ] {
        let path = sparse(&dir, "disk", size * MIB);
        run("mkfs.xfs", &format!("-q -f -K {options}"), &path, "");
        let ranges = vec![by_xfs_db(&path, 0)];
        let found = examine(&path);
        assert_eq!(
            found.layout.journals,
            [journal(FileSystem::Xfs, ranges)],
            "{options}: {:?}",
            found.places
        );
    }
    let (path, log) = (sparse(&dir, "disk", 400 * MIB), sparse(&dir, "log", 80 * MIB));
    run("mkfs.xfs", &format!("-q -f -K -l logdev={},size=64m", log.display()), &path, "");
    let content = Content::FileSystem { name: "xfs", journal: Err(Why::Elsewhere) };
    assert_eq!(examine(&path).places[0].content, content);
}

/// Writes the file systems of three images into the partitions of a fourth, and returns the
/// expected journals.
fn fill(disk: &Path, dir: &TempDir, partitions: [u64; 3]) -> Vec<Journal> {
    let (big, small) = (sparse(dir, "big", 128 * MIB), sparse(dir, "small", 32 * MIB));
    mkfs_ext(&big, "-b 4096");
    mkfs_ext(&small, "-t ext3 -b 1024");
    let xfs = sparse(dir, "xfs", 300 * MIB);
    run("mkfs.xfs", "-q -f -K", &xfs, "");
    for (image, at) in [&big, &small, &xfs].into_iter().zip(partitions) {
        let words = format!("if={} of={} seek={at}", image.display(), disk.display());
        let mut dd = Command::new("dd");
        dd.args(["bs=64k", "conv=notrunc,sparse", "oflag=seek_bytes", "status=none"])
            .args(words.split(' '));
        let status = dd.status().unwrap();
        assert!(status.success());
    }
    Vec::from([
        journal(FileSystem::Ext4, by_debugfs(&big, partitions[0])),
        journal(FileSystem::Ext4, by_debugfs(&small, partitions[1])),
        journal(FileSystem::Xfs, vec![by_xfs_db(&xfs, partitions[2])]),
    ])
}

#[test]
fn journals_are_found_in_every_partition_kind() {
    if !has(&["mkfs.ext4", "debugfs", "dumpe2fs", "mkfs.xfs", "xfs_db", "sfdisk", "fdisk", "dd"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let disk = sparse(&dir, "disk", 1024 * MIB);

    // MBR: a primary partition, and two logical ones, with a third between that is another
    // system's.
    let logical = "5: size=40MiB, type=83\n6: size=10MiB, type=7\n7: size=310MiB, type=83\n";
    let script = format!("label: dos\n1: size=130MiB, type=83\n2: size=800MiB, type=5\n{logical}");
    run("sfdisk", "-q", &disk, &script);
    let starts = starts(&disk);
    assert_eq!(starts.len(), 5, "{starts:?}");
    let expected = fill(&disk, &dir, [starts[0], starts[2], starts[4]]);
    let found = examine(&disk);
    assert_eq!(found.layout.journals, expected, "{:?}", found.places);
    assert_eq!(found.label, Some(Label::Mbr(512)));
    let numbers: Vec<_> = found.places.iter().map(|place| place.number).collect();
    assert_eq!(numbers, [Some(1), Some(5), Some(6), Some(7)]);

    // GPT; then without its primary, then with neither.
    let disk = sparse(&dir, "disk", 1024 * MIB);
    run("sfdisk", "-q", &disk, "label: gpt\nsize=130MiB\nsize=40MiB\nsize=310MiB\n");
    let starts = self::starts(&disk);
    let expected = fill(&disk, &dir, [starts[0], starts[1], starts[2]]);
    let found = examine(&disk);
    assert_eq!(found.layout.journals, expected, "{:?}", found.places);
    assert_eq!(found.label, Some(Label::Gpt(512)));
    let file = File::options().write(true).open(&disk).unwrap();
    file.write_all_at(b"x", 512 + 60).unwrap();
    assert_eq!(examine(&disk).layout.journals, expected);
    file.write_all_at(b"x", 1024 * MIB - 512 + 60).unwrap();
    let found = examine(&disk);
    assert_eq!((found.label, found.layout.journals.len()), (Some(Label::Damaged), 0));

    // Sectors of 4096 bytes.
    for (label, what) in [("g", Label::Gpt(4096)), ("o", Label::Mbr(4096))] {
        let disk = sparse(&dir, "disk", 1024 * MIB);
        let primary = if label == "o" { "p\n" } else { "" };
        let new = |number, size| format!("n\n{primary}{number}\n\n+{size}M\n");
        let input = format!("{label}\n{}{}{}w\n", new(1, 130), new(2, 40), new(3, 310));
        run("fdisk", "-b 4096", &disk, &input);
        let listed = run("fdisk", "-b 4096 -l -o Start", &disk, "");
        let starts: Vec<u64> = listed.lines().filter_map(|line| line.trim().parse().ok()).collect();
        assert_eq!(starts.len(), 3, "{listed}");
        let expected = fill(&disk, &dir, [starts[0] * 4096, starts[1] * 4096, starts[2] * 4096]);
        let found = examine(&disk);
        assert_eq!(found.layout.journals, expected, "{:?}", found.places);
        assert_eq!(found.label, Some(what));
    }
}

/// Where the partitions begin, in their order.
fn starts(disk: &Path) -> Vec<u64> {
    let dump = run("sfdisk", "-d", disk, "");
    let starts = dump.split("start=").skip(1).map(|rest| rest.split(',').next().unwrap().trim());
    starts.map(|start| start.parse::<u64>().unwrap() * 512).collect()
}
