//! Partition tables: MBR with its chain of logical partitions, and GPT.
//!
//! As Linux decides: a GPT counts if the MBR has an entry of type 0xee among any others; an MBR
//! without partitions is none.
//!
//! Unlike Linux without an option, it uses the copy of a damaged GPT at the end of the disk. Other
//! systems and the tools do the same.

use std::ops::Range;

use super::checksum::crc32;
use super::source::{Source, field, le16, le32, le64};

/// Partitions that are looked at.
const MOST: usize = 256;
/// Logical partitions.
const MOST_LOGICAL: u32 = 128;
/// Entries of a GPT, and their bytes.
const MOST_ENTRIES: u32 = 4096;
const MOST_ENTRY_BYTES: usize = 512 << 10;
/// The only sizes of a sector that disks have.
const SECTORS: [u64; 2] = [512, 4096];

/// A kind of partition table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// The old one, in sectors of so many bytes.
    Mbr(u64),
    /// The newer one, in sectors of so many bytes.
    Gpt(u64),
    /// One that is there, and damaged or contradictory: no partition of it is known.
    Damaged,
}

/// A reading of a table.
pub(super) struct Table {
    pub label: Label,
    /// The partitions that lie inside the volume.
    pub partitions: Vec<Partition>,
}

/// Its number, and where it lies.
pub(super) type Partition = (u32, Range<u64>);

/// The ways in which the volume's table can be read, the likely one first; none if there is no
/// table.
pub(super) fn read(source: &mut Source) -> Vec<Table> {
    let Ok(mbr) = source.read(0, 512) else { return Vec::new() };
    let entries: Vec<Entry> = (0..4).map(|at| Entry::of(&mbr, at)).collect();
    let is_one =
        mbr.ends_with(&[0x55, 0xaa]) && entries.iter().all(|entry| entry.status & 0x7f == 0);
    if !is_one {
        return Vec::new();
    }
    if entries.iter().any(|entry| entry.kind == 0xee) {
        let damaged = Table { label: Label::Damaged, partitions: Vec::new() };
        return vec![gpt(source).unwrap_or(damaged)];
    }
    if entries.iter().all(Entry::is_empty) {
        return Vec::new();
    }
    // An old table does not say in which sectors it counts.
    SECTORS.iter().filter_map(|sector| mbr_in(source, &entries, *sector)).collect()
}

/// An entry of an MBR.
struct Entry {
    status: u8,
    kind: u8,
    start: u32,
    sectors: u32,
}

impl Entry {
    fn of(sector: &[u8], at: usize) -> Entry {
        let entry: [u8; 16] = field(sector, 446 + 16 * at);
        Entry {
            status: entry[0],
            kind: entry[4],
            start: le32(&entry, 8),
            sectors: le32(&entry, 12),
        }
    }

    fn is_empty(&self) -> bool {
        self.kind == 0 || self.sectors == 0
    }

    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }

    /// Where it lies, counted from `base`, if that is inside `within` and not where the table
    /// itself is.
    fn range(&self, sector: u64, base: u64, within: &Range<u64>) -> Option<Range<u64>> {
        // 32 bits times 12: no overflow.
        let start = base.checked_add(u64::from(self.start) * sector)?;
        let end = start.checked_add(u64::from(self.sectors) * sector)?;
        (start > base && start >= within.start && end <= within.end).then_some(start..end)
    }
}

/// The table, its sectors having so many bytes. None if not one partition lies inside the volume.
fn mbr_in(source: &mut Source, entries: &[Entry], sector: u64) -> Option<Table> {
    let volume = 0..source.size();
    let mut partitions = Vec::new();
    let mut extended = None;
    for (number, entry) in (1..).zip(entries).filter(|(_, entry)| !entry.is_empty()) {
        let Some(range) = entry.range(sector, 0, &volume) else { continue };
        match entry.is_extended() {
            true => extended = extended.or(Some(range)),
            false => partitions.push((number, range)),
        }
    }
    let is_there = extended.is_some() || !partitions.is_empty();
    if let Some(extended) = extended {
        // A chain that is damaged anywhere gives none of its partitions: the rest of them may be
        // nonsense.
        partitions.extend(logical(source, &extended, sector).unwrap_or_default());
    }
    is_there.then_some(Table { label: Label::Mbr(sector), partitions })
}

/// The partitions inside an extended one: a chain of tables, each with one partition, counted from
/// itself, and the place of the next table, counted from the first.
fn logical(source: &mut Source, extended: &Range<u64>, sector: u64) -> Option<Vec<Partition>> {
    let mut partitions = Vec::new();
    let mut at = extended.start;
    let mut seen = Vec::new();
    for number in 5..5 + MOST_LOGICAL {
        if seen.contains(&at) {
            return None;
        }
        seen.push(at);
        let table = source.read(at, 512).ok().filter(|table| table.ends_with(&[0x55, 0xaa]))?;
        let [own, next] = [Entry::of(&table, 0), Entry::of(&table, 1)];
        if !own.is_empty() {
            partitions.push((number, own.range(sector, at, extended)?));
        }
        if next.is_empty() {
            return Some(partitions);
        }
        if !next.is_extended() {
            return None;
        }
        at = next.range(sector, extended.start, extended)?.start;
    }
    None
}

/// A GPT's header that passed the checks.
#[derive(PartialEq, Eq)]
struct Header {
    sector: u64,
    other: u64,
    usable: Range<u64>,
    disk: [u8; 16],
    entries: u64,
    count: u32,
    entry: u32,
    checksum: u32,
}

/// The GPT, if its primary or its copy is sound and they do not contradict each other.
fn gpt(source: &mut Source) -> Option<Table> {
    for sector in SECTORS {
        let Some((header, partitions)) = gpt_at(source, sector, 1) else { continue };
        // A disk that was made larger has its copy no more at its end, but where the primary says.
        let copy = gpt_at(source, sector, header.other);
        let agree = copy.is_none_or(|(copy, _)| {
            copy.disk == header.disk
                && copy.checksum == header.checksum
                && copy.usable == header.usable
        });
        return agree.then_some(Table { label: Label::Gpt(sector), partitions });
    }
    for sector in SECTORS {
        let Some(last) = (source.size() / sector).checked_sub(1) else { continue };
        if let Some((_, partitions)) = gpt_at(source, sector, last) {
            return Some(Table { label: Label::Gpt(sector), partitions });
        }
    }
    None
}

/// The header at a sector and the partitions that it names; none if any check fails.
fn gpt_at(source: &mut Source, sector: u64, at: u64) -> Option<(Header, Vec<Partition>)> {
    let header = header(source, sector, at)?;
    let length = usize::try_from(u64::from(header.count) * u64::from(header.entry)).ok()?;
    if header.count > MOST_ENTRIES || length > MOST_ENTRY_BYTES {
        return None;
    }
    let entries = source.read(header.entries.checked_mul(sector)?, length).ok()?;
    if crc32(&[&entries]) != header.checksum {
        return None;
    }
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(entries.chunks_exact(usize::try_from(header.entry).ok()?)) {
        let (first, last) = (le64(entry, 32), le64(entry, 40));
        if field(entry, 0) == [0; 16] || first > last {
            continue;
        }
        if !header.usable.contains(&first) || !header.usable.contains(&last) {
            continue;
        }
        let end = last.checked_add(1)?.checked_mul(sector)?;
        if end <= source.size() && partitions.len() < MOST {
            partitions.push((number, first * sector..end));
        }
    }
    Some((header, partitions))
}

fn header(source: &mut Source, sector: u64, at: u64) -> Option<Header> {
    let bytes = source.read(at.checked_mul(sector)?, 512).ok()?;
    if !bytes.starts_with(b"EFI PART") || le64(&bytes, 24) != at || le16(&bytes, 10) != 1 {
        return None;
    }
    // Bytes beyond the header's length in all versions so far are zeroes, and seldom present.
    let length =
        usize::try_from(le32(&bytes, 12)).ok().filter(|length| (92..=512).contains(length))?;
    let checksum = crc32(&[&bytes[..16], &[0; 4], &bytes[20..length]]);
    let entry = le32(&bytes, 84);
    let is_sound = checksum == le32(&bytes, 16) && entry >= 128 && entry.is_power_of_two();
    let header = Header {
        sector,
        other: le64(&bytes, 32),
        usable: le64(&bytes, 40)..le64(&bytes, 48).checked_add(1)?,
        disk: field(&bytes, 56),
        entries: le64(&bytes, 72),
        count: le32(&bytes, 80),
        entry,
        checksum: le32(&bytes, 88),
    };
    is_sound.then_some(header)
}
