//! Reading a volume within bounds, and remembering the ranges read.

use std::ops::Range;

use super::{Disk, Why};

/// Reads of [`super::examine`] at most.
pub const MOST_READS: usize = 2 * READS + super::names::READS;
/// Bytes that all reads of [`super::examine`] have together at most.
pub const MOST_BYTES: usize = 2 * BYTES + 16 * super::names::READS;

/// The same for one reading of the two.
const READS: usize = 8192;
const BYTES: usize = 64 << 20;

/// A volume that is read.
pub(super) struct Source<'a> {
    disk: &'a mut dyn Disk,
    size: u64,
    reads: usize,
    bytes: usize,
    watched: Vec<Range<u64>>,
}

impl<'a> Source<'a> {
    pub fn new(disk: &'a mut dyn Disk, size: u64) -> Self {
        Self { disk, size, reads: READS, bytes: BYTES, watched: Vec::new() }
    }

    /// Bytes of the volume.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads bytes that are watched from now on.
    pub fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, Why> {
        self.watch(offset..offset.saturating_add(length as u64));
        self.peek(offset, length)
    }

    /// Reads bytes that change all the time, or are no reason to read again.
    pub fn peek(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, Why> {
        let end = offset.checked_add(length as u64).ok_or(Why::Unreadable)?;
        if end > self.size {
            return Err(Why::Unreadable);
        }
        self.reads = self.reads.checked_sub(1).ok_or(Why::TooMuch)?;
        self.bytes = self.bytes.checked_sub(length).ok_or(Why::TooMuch)?;
        let mut buffer = vec![0; length];
        match self.disk.read(offset, &mut buffer) {
            true => Ok(buffer),
            false => Err(Why::Unreadable),
        }
    }

    /// Says that a write to this range is a reason to read again.
    pub fn watch(&mut self, range: Range<u64>) {
        let range = range.start..range.end.min(self.size);
        // Reads mostly follow the previous one, or repeat it.
        match self.watched.last_mut() {
            Some(last) if last.start <= range.start && range.start <= last.end => {
                last.end = last.end.max(range.end);
            }
            _ if range.is_empty() => {}
            _ => self.watched.push(range),
        }
    }

    /// All that was read or is to be watched, so far.
    pub fn watched(&self) -> &[Range<u64>] {
        &self.watched
    }

    pub fn into_watched(self) -> Vec<Range<u64>> {
        self.watched
    }
}

/// Some bytes of a structure; zeroes where it is too short for them.
pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

pub(super) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(field(bytes, at))
}

pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at))
}

pub(super) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}

pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(field(bytes, at))
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(field(bytes, at))
}

pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(field(bytes, at))
}
