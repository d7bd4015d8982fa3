//! The guest's journal: where it lies on the disk, found from outside the guest.
//!
//! A journaling file system writes most of its changes twice, first into its journal: a ring of
//! blocks that is written round and round and read only after a crash. In the host's page cache it
//! takes the place of pages that would have been read again. Kim and Lee ("Analysis and Improvement
//! of I/O Performance Degradation by Journaling in a Virtualized Environment", 2016) keep it out of
//! the cache. They look for the one range of the disk that is written in order and cyclically.
//!
//! Here three ways lead to a journal, in the order in which they are trusted ([`Evidence`]):
//!
//! - [`layout`]: the partition table and the file systems' own superblocks say where it is. Exact,
//!   and known before the first write.
//! - [`content`]: journal blocks begin with a magic number. Finds journals where no layout is
//!   understood (LVM, unknown tables).
//! - [`pattern`]: the paper's. All that is left when the guest encrypts. It cannot distinguish a
//!   file system's journal from another cyclic log; a log that is known to be none
//!   ([`LogKind::Log`]) gets a separate verdict.
//!
//! [`Detector`] puts them together. All offsets and lengths are bytes from the beginning of the
//! volume.

pub mod bypass;
pub mod content;
pub mod detector;
pub mod footprint;
pub mod layout;
pub mod map;
pub mod pattern;
pub mod regions;
pub mod trailing;

use std::ops::Range;

pub use bypass::Bypass;
pub use content::Head;
pub use detector::Detector;
pub use map::Map;
pub use regions::Regions;

/// How a journal was found. An earlier one is trusted more, and wins where two overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// From partition table and superblock.
    Layout,
    /// From magic numbers in written data.
    Content,
    /// From the order of the writes.
    Pattern,
}

/// The kind of a cyclic range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogKind {
    /// A file system's journal: never read but after a crash.
    Journal,
    /// Another cyclic log: a database's, or a journal that looks like one.
    Log,
}

/// The file system of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// ext3 and ext4, and other users of JBD2.
    Ext4,
    /// XFS.
    Xfs,
    /// Not known: found by its pattern.
    Unknown,
}

/// A journal that was found.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Journal {
    /// The file system that it belongs to.
    pub filesystem: FileSystem,
    /// Its kind.
    pub kind: LogKind,
    /// How it was found.
    pub way: Evidence,
    /// Where its pieces lie, in the order in which they are written: not empty, none overlaps
    /// another.
    pub ranges: Vec<Range<u64>>,
}

impl Journal {
    /// Bytes of all its pieces.
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// True if it has no pieces.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// The verdict on a place: which of [`Map`]'s pieces it lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// The kind of the piece.
    pub kind: LogKind,
    /// How that is known.
    pub way: Evidence,
}

/// The source of a layout: the volume, as a guest would read it.
pub trait Disk {
    /// Fills `buffer` from `offset` on; says whether it could. Bytes outside the volume cannot be
    /// read.
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> bool;
}

impl Disk for &[u8] {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> bool {
        let Ok(begin) = usize::try_from(offset) else { return false };
        let Some(bytes) = begin.checked_add(buffer.len()).and_then(|end| self.get(begin..end))
        else {
            return false;
        };
        buffer.copy_from_slice(bytes);
        true
    }
}
