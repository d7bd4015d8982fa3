//! Journals by layout: partition tables and superblocks.
//!
//! Known layouts are a volume without a partition table, MBR with logical partitions, GPT in
//! sectors of 512 or 4096 bytes (`table`). Known file systems are ext3 and ext4, with their journal
//! in an inode or on a device (`ext`, `mapped`). XFS is known with its log inside (`xfs`). LVM,
//! encryption, RAID and tables of other kinds are not looked into.
//!
//! All of it was written by a guest, so every part that can be checked is checked. Each checksum
//! must be right. Sizes must fit into each other: the journal into the file system, that into the
//! partition, that into the volume. Some faults mean no verdict on that file system, and never a
//! panic. They are partitions that overlap, a journal with a hole, one that lies on itself or on
//! its metadata, and two copies that contradict each other.
//!
//! Each part is read twice, and both readings must agree: a table or a superblock that the guest
//! changes meanwhile gives no verdict. Its write is the reason to read again, since the parts read
//! are [watched](JournalLayout::watched). An ext4 also writes these blocks for other reasons, every
//! few seconds when it is busy. The descriptor has the number of free blocks, and the block of the
//! journal's inode has the root directory's, too. Reading a volume with one file system again is
//! about twenty reads of at most 4 KiB, and gives an equal [`JournalLayout`].
//!
//! # Bounds
//! [`MOST_READS`] reads of [`MOST_BYTES`] bytes in all, for any content of the volume; one read at
//! a time, of 64 KiB at most, but for the entries of a GPT (512 KiB at most). At most 256
//! partitions are looked at, 128 logical ones among them. A journal has at most [`MOST_PIECES`]
//! pieces, which is all that a map takes. `watched` has no more ranges than there were reads, and
//! two for each partition.

mod checksum;
mod ext;
mod mapped;
mod names;
mod source;
mod table;
mod xfs;

use std::fmt;
use std::ops::Range;

use super::map::MOST_PIECES;
use super::{Disk, Evidence, FileSystem, Journal, LogKind};
pub use source::{MOST_BYTES, MOST_READS};
use source::{Source, field};
pub use table::Label;

/// Where a table or superblock is, or would appear, at the beginning of a volume: MBR, both places
/// of GPT's header, superblocks.
const VOLUME_HEAD: u64 = 8192;
/// The same at its end: the copy of GPT's header, in sectors of either size.
const VOLUME_TAIL: u64 = 4096;
/// Where a partition's superblock is: XFS's first, ext4's from byte 1024 on.
const HEAD: usize = 2048;

/// The findings in a volume's layout.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalLayout {
    /// The journals that it names.
    pub journals: Vec<Journal>,
    /// The blocks read to find them, or to find that there are none, and the places where a table
    /// or superblock would appear. When the guest writes over any of it, the layout is to be read
    /// again. In the order of their places; none overlaps another, nor a journal.
    pub watched: Vec<Range<u64>>,
}

/// All that was found out, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// The partition table, if there is one.
    pub label: Option<Label>,
    /// The findings in each partition; without a table, on the whole volume.
    pub places: Vec<Place>,
    /// The verdict.
    pub layout: JournalLayout,
}

/// A partition, or the whole volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its number, as Linux counts; the whole volume has none.
    pub number: Option<u32>,
    /// Where it lies, bytes.
    pub range: Range<u64>,
    /// Its content.
    pub content: Content,
}

/// The content of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A file system, or a journal's device.
    FileSystem {
        /// Its common name.
        name: &'static str,
        /// Where its journal lies, or why that is not known.
        journal: Result<Journal, Why>,
    },
    /// A known format that is not looked into.
    Other(&'static str),
    /// No known format.
    Unknown,
}

/// Why a file system's journal is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It has none.
    None,
    /// It lies on another device.
    Elsewhere,
    /// A part of its description cannot be read.
    Unreadable,
    /// To find it would take more reads than are allowed.
    TooMuch,
    /// Its metadata changed while it was read.
    Changed,
    /// Its metadata cannot be true.
    Wrong(&'static str),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::None => f.write_str("it has none"),
            Why::Elsewhere => f.write_str("it lies on another device"),
            Why::Unreadable => f.write_str("its description cannot be read"),
            Why::TooMuch => f.write_str("there is more to read than is sensible"),
            Why::Changed => f.write_str("its description changed while it was read"),
            Why::Wrong(why) => f.write_str(why),
        }
    }
}

/// Reads the layout of a volume of `size` bytes. Layouts that are not understood, or that
/// contradict themselves, give no journal.
pub fn read(disk: &mut dyn Disk, size: u64) -> JournalLayout {
    agreed(disk, size).layout
}

/// As [`read`], and returns the findings on the way. It also names file systems that are not looked
/// into, with a few more reads.
pub fn examine(disk: &mut dyn Disk, size: u64) -> Findings {
    let mut findings = agreed(disk, size);
    let mut reads = names::READS;
    for place in &mut findings.places {
        if place.content == Content::Unknown
            && let Some(name) = names::of(disk, &place.range, &mut reads)
        {
            place.content = Content::Other(name);
        }
    }
    findings
}

/// The findings that two readings agree on.
fn agreed(disk: &mut dyn Disk, size: u64) -> Findings {
    let (mut first, before) = once(disk, size);
    let (mut second, after) = once(disk, size);
    let same = first.label == second.label
        && first.places.len() == second.places.len()
        && first
            .places
            .iter()
            .zip(&second.places)
            .all(|(a, b)| (a.number, &a.range) == (b.number, &b.range));
    for (at, place) in second.places.iter_mut().enumerate() {
        let agree =
            same && first.places.get(at).is_some_and(|before| before.content == place.content);
        if let (false, Content::FileSystem { journal, .. }) = (agree, &mut place.content) {
            *journal = Err(Why::Changed);
        }
    }
    first.places.clear();
    let journals: Vec<Journal> = second.places.iter().filter_map(Place::journal).cloned().collect();
    let watched = without(merged([before, after].concat()), &journals);
    Findings { layout: JournalLayout { journals, watched }, ..second }
}

impl Place {
    fn journal(&self) -> Option<&Journal> {
        match &self.content {
            Content::FileSystem { journal: Ok(journal), .. } => Some(journal),
            _ => None,
        }
    }

    /// There is a verdict no more.
    fn refuse(&mut self, why: Why) {
        if let Content::FileSystem { journal: journal @ Ok(_), .. } = &mut self.content {
            *journal = Err(why);
        }
    }
}

/// One reading, and the ranges that it has read.
fn once(disk: &mut dyn Disk, size: u64) -> (Findings, Vec<Range<u64>>) {
    let mut source = Source::new(disk, size);
    let candidates = table::read(&mut source);
    let tables = merged(source.watched().to_vec());
    source.watch(0..VOLUME_HEAD);
    source.watch(size.saturating_sub(VOLUME_TAIL)..size);
    let mut whole =
        Place { number: None, range: 0..size, content: content(&mut source, &(0..size)) };
    let mut findings = Findings::default();
    for candidate in candidates {
        let places: Vec<Place> = candidate
            .partitions
            .iter()
            .map(|(number, range)| {
                let content = content(&mut source, range);
                Place { number: Some(*number), range: range.clone(), content }
            })
            .collect();
        let is_known = places.iter().any(|place| place.content != Content::Unknown);
        // The first candidate is the likely one; a later one has to show something for itself.
        if findings.label.is_none() || is_known {
            findings.label = Some(candidate.label);
            findings.places = places;
        }
        if is_known {
            break;
        }
    }
    refuse_overlapping(&mut findings.places);
    for place in &mut findings.places {
        if place.journal().is_some_and(|journal| overlap(&tables, &journal.ranges)) {
            place.refuse(Why::Wrong("it lies on the partition table"));
        }
    }
    // Tools that make a table need not remove the superblock of a file system that took the whole
    // disk. The one in use is unknown.
    if findings.label.is_some() && whole.journal().is_some() {
        let why =
            Why::Wrong("there is a partition table, and a file system that takes the whole disk");
        whole.refuse(why);
        findings.places.iter_mut().for_each(|place| place.refuse(why));
    }
    if findings.label.is_none() || matches!(whole.content, Content::FileSystem { .. }) {
        findings.places.insert(0, whole);
    }
    (findings, source.into_watched())
}

/// Returns the content of a part of the volume.
fn content(source: &mut Source, range: &Range<u64>) -> Content {
    source.watch(range.start..range.start.saturating_add(HEAD as u64).min(range.end));
    if range.end.saturating_sub(range.start) < HEAD as u64 {
        return Content::Unknown;
    }
    let Ok(head) = source.read(range.start, HEAD) else { return Content::Unknown };
    let (is_ext, is_xfs) = (ext::is_one(&head), xfs::is_one(&head));
    let (name, filesystem, ranges) = match (is_ext, is_xfs) {
        (true, true) => {
            let why = Why::Wrong("there are superblocks of two file systems");
            return Content::FileSystem { name: "ext4 or xfs", journal: Err(why) };
        }
        (true, false) => (ext::name(&head), FileSystem::Ext4, ext::journal(source, range, &head)),
        (false, true) => ("xfs", FileSystem::Xfs, xfs::log(source, range, &head)),
        (false, false) if head.starts_with(b"LUKS\xba\xbe") => return Content::Other("LUKS"),
        (false, false) if field(&head, 512) == *b"LABELONE" => return Content::Other("LVM"),
        (false, false) => return Content::Unknown,
    };
    let journal = ranges.and_then(|ranges| sound(ranges, range)).map(|ranges| Journal {
        filesystem,
        kind: LogKind::Journal,
        way: Evidence::Layout,
        ranges,
    });
    Content::FileSystem { name, journal }
}

/// A journal's pieces, if they lie inside their file system and do not overlap.
fn sound(ranges: Vec<Range<u64>>, place: &Range<u64>) -> Result<Vec<Range<u64>>, Why> {
    if ranges.len() > MOST_PIECES {
        return Err(Why::TooMuch);
    }
    if ranges
        .iter()
        .any(|range| range.is_empty() || range.start < place.start || range.end > place.end)
    {
        return Err(Why::Wrong("it lies outside its file system"));
    }
    let mut order: Vec<&Range<u64>> = ranges.iter().collect();
    order.sort_unstable_by_key(|range| range.start);
    match ranges.is_empty() || order.windows(2).any(|pair| pair[0].end > pair[1].start) {
        true => Err(Why::Wrong("a part of it is there twice")),
        false => Ok(ranges),
    }
}

/// Two partitions in one place: the table lies, or is not understood.
fn refuse_overlapping(places: &mut [Place]) {
    let ranges: Vec<Range<u64>> = places.iter().map(|place| place.range.clone()).collect();
    for (at, place) in places.iter_mut().enumerate() {
        let mut others = ranges.iter().enumerate().filter(|(other, _)| *other != at);
        if others.any(|(_, other)| other.start < place.range.end && place.range.start < other.end) {
            place.refuse(Why::Wrong("its partition overlaps another"));
        }
    }
}

/// The same bytes, in order, in as few ranges as possible.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// True if any of `ranges` has a part of any of `others`, which are in order and apart from each
/// other.
fn overlap(others: &[Range<u64>], ranges: &[Range<u64>]) -> bool {
    ranges.iter().any(|range| {
        let first = others.partition_point(|other| other.end <= range.start);
        others.get(first).is_some_and(|other| other.start < range.end)
    })
}

/// `ranges` without the journals' parts: a journal is written all the time, and that is no sign of
/// a move. No evidence for a verdict is in one; the places of a table that is not there may be.
fn without(ranges: Vec<Range<u64>>, journals: &[Journal]) -> Vec<Range<u64>> {
    let holes =
        merged(journals.iter().flat_map(|journal| journal.ranges.iter().cloned()).collect());
    let mut left = Vec::new();
    for range in ranges {
        let mut begin = range.start;
        let first = holes.partition_point(|hole| hole.end <= begin);
        for hole in holes[first..].iter().take_while(|hole| hole.start < range.end) {
            if begin < hole.start {
                left.push(begin..hole.start);
            }
            begin = hole.end;
        }
        if begin < range.end {
            left.push(begin..range.end);
        }
    }
    left
}
