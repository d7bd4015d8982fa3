//! Which blocks a file of ext3 or ext4 has: a tree of extents, or the older map of single blocks.
//!
//! A journal has all of its blocks, in order: the next logical block is always known, and any other
//! content of an extent or a map is an error. So no tree can lead in a circle, and the work is
//! bounded by the journal's length and by [`Source`].

use std::ops::Range;

use super::Why;
use super::checksum::crc32c;
use super::source::{Source, le16, le32};
use crate::journal::map::MOST_PIECES;

/// Bytes of a map's root, in the inode.
pub(super) const ROOT: usize = 60;
/// Pointers of the old map to blocks of data; then one each to maps of depth 1, 2 and 3.
const DIRECT: usize = 12;
/// The deepest tree that the kernel makes.
const DEEPEST: u16 = 5;
/// Lengths above it are those of extents that were never written.
const LONGEST: u16 = 32768;

const DAMAGED: Why = Why::Wrong("the map of its blocks is damaged");
const HOLE: Why = Why::Wrong("the map of its blocks has a hole");

/// True if a tree of extents begins there.
pub(super) fn is_tree(root: &[u8]) -> bool {
    le16(root, 0) == 0xf30a
}

/// Where a file system's blocks are.
pub(super) trait Places {
    /// The bytes of some blocks in the volume, if they are the file system's and not its first.
    fn place(&self, blocks: &Range<u64>) -> Result<Range<u64>, Why>;

    /// The same of one block.
    fn place_of(&self, block: u64) -> Result<Range<u64>, Why> {
        // The last number of all gives an empty range, which is refused.
        self.place(&(block..block.saturating_add(1)))
    }
}

/// A map that is being read.
pub(super) struct Map<'a, 'd> {
    fs: &'a dyn Places,
    source: &'a mut Source<'d>,
    seed: Option<u32>,
    /// The logical block that comes next, and the one behind the last.
    next: u64,
    end: u64,
    /// The found pieces, in blocks of the file system.
    pieces: Vec<Range<u64>>,
    /// Where the map itself lies, in the volume.
    own: &'a mut Vec<Range<u64>>,
}

impl<'a, 'd> Map<'a, 'd> {
    pub fn new(
        fs: &'a dyn Places,
        source: &'a mut Source<'d>,
        seed: Option<u32>,
        blocks: u64,
        own: &'a mut Vec<Range<u64>>,
    ) -> Self {
        Map { fs, source, seed, next: 0, end: blocks, pieces: Vec::new(), own }
    }

    /// The pieces, as bytes of the volume, if they are all.
    pub fn into_ranges(self) -> Result<Vec<Range<u64>>, Why> {
        match self.next == self.end && !self.pieces.is_empty() {
            true => self.pieces.iter().map(|piece| self.fs.place(piece)).collect(),
            false => Err(HOLE),
        }
    }

    /// A tree of extents.
    pub fn extents(&mut self, root: &[u8; ROOT]) -> Result<(), Why> {
        let depth = le16(root, 6);
        match depth <= DEEPEST {
            true => self.node(root, depth),
            false => Err(DAMAGED),
        }
    }

    /// A node of it, which has to have this depth.
    fn node(&mut self, node: &[u8], depth: u16) -> Result<(), Why> {
        let (entries, most) = (le16(node, 2), le16(node, 4));
        let room = node.len() / 12 - 1;
        if !is_tree(node) || entries > most || usize::from(most) > room || le16(node, 6) != depth {
            return Err(DAMAGED);
        }
        for entry in node.chunks_exact(12).skip(1).take(entries.into()) {
            // Blocks allocated beyond its size are not a part of it.
            if self.next >= self.end {
                return Ok(());
            }
            if u64::from(le32(entry, 0)) != self.next {
                return Err(if u64::from(le32(entry, 0)) > self.next { HOLE } else { DAMAGED });
            }
            match depth {
                0 => {
                    let (length, high) = (le16(entry, 4), le16(entry, 6));
                    if length == 0 || length > LONGEST {
                        return Err(DAMAGED);
                    }
                    self.push(u64::from(high) << 32 | u64::from(le32(entry, 8)), length.into())?;
                }
                _ => {
                    let before = self.next;
                    let child =
                        self.block(u64::from(le16(entry, 8)) << 32 | u64::from(le32(entry, 4)))?;
                    self.check(&child)?;
                    self.node(&child, depth - 1)?;
                    if self.next == before {
                        return Err(DAMAGED);
                    }
                }
            }
        }
        Ok(())
    }

    /// The checksum behind a node's entries.
    fn check(&self, node: &[u8]) -> Result<(), Why> {
        let Some(seed) = self.seed else { return Ok(()) };
        let at = 12 + 12 * usize::from(le16(node, 4));
        match node.get(..at) {
            Some(bytes) if at + 4 <= node.len() && crc32c(seed, bytes) == le32(node, at) => Ok(()),
            _ => Err(Why::Wrong("the checksum of the map of its blocks is wrong")),
        }
    }

    /// The older map.
    pub fn blocks(&mut self, root: &[u8; ROOT]) -> Result<(), Why> {
        let (direct, indirect) = root.split_at(4 * DIRECT);
        self.pointers(direct, 0)?;
        for (pointer, depth) in indirect.chunks_exact(4).zip(1..) {
            self.pointers(pointer, depth)?;
        }
        Ok(())
    }

    /// Pointers to blocks of data, or to maps of so many levels.
    fn pointers(&mut self, pointers: &[u8], depth: u8) -> Result<(), Why> {
        for pointer in pointers.chunks_exact(4) {
            if self.next >= self.end {
                return Ok(());
            }
            match (u64::from(le32(pointer, 0)), depth) {
                (0, _) => return Err(HOLE),
                (block, 0) => self.push(block, 1)?,
                (block, _) => {
                    let map = self.block(block)?;
                    self.pointers(&map, depth - 1)?;
                }
            }
        }
        Ok(())
    }

    /// The next blocks of the file.
    fn push(&mut self, start: u64, length: u64) -> Result<(), Why> {
        let length = length.min(self.end - self.next);
        let end = start.checked_add(length).ok_or(DAMAGED)?;
        // Not only at the end: a map of nonsense is not followed any further.
        self.fs.place(&(start..end))?;
        self.next += length;
        match self.pieces.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => self.pieces.push(start..end),
        }
        if self.pieces.len() > MOST_PIECES { Err(Why::TooMuch) } else { Ok(()) }
    }

    /// A block of the map.
    fn block(&mut self, block: u64) -> Result<Vec<u8>, Why> {
        let place = self.fs.place_of(block)?;
        self.own.push(place.clone());
        self.source
            .read(place.start, usize::try_from(place.end - place.start).map_err(|_| DAMAGED)?)
    }
}
