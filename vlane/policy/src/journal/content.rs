//! Journals by content: magic numbers in written blocks.
//!
//! The volume's writer reports each write to [`Content`]. It also reports the blocks that begin
//! with the magic number of JBD2 (ext3, ext4) or of an XFS log record ([`scan`] finds them). A
//! magic number alone is no proof: a guest may write any block, and a copy of a disk's image has
//! real ones in it. The proof is a *chain* of them that a running journal leaves and hardly any
//! other writer does; `content/jbd2.rs` and `content/xfs.rs` say which.
//!
//! Memory: [`MOST_CHAINS`] chains of `pieces.rs` pieces at most (24 KiB), for a volume of any size.
//! Time: a write without a head is compared with the end of each chain and with its pieces; a head
//! costs a few dozen comparisons more. No chain, no cost but one comparison.

mod jbd2;
pub(super) mod pieces;
mod runs;
mod xfs;

use std::ops::Range;

use super::{Evidence, FileSystem, Journal, LogKind};
use jbd2::Jbd2;
use pieces::Pieces;
use runs::Runs;
use xfs::Xfs;

/// Chains that are followed at the same time, of each kind.
pub const MOST_CHAINS: usize = 4;
/// How far ahead of the seen part a chain is believed to continue: a burst of requests fits.
const AHEAD: u64 = 4 << 20;
/// Foreign bytes in a journal that are forgiven at least.
const FORGIVEN: u64 = 4 << 20;
/// Heads of one write that are looked at.
pub const MOST_HEADS: usize = 64;

const JBD2: u32 = 0xc03b_3998;
const XFS: u32 = 0xfeed_babe;

/// The beginning of a block that was written and begins with a journal's magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Head {
    /// Where the block lies, bytes from the beginning of the volume.
    pub offset: u64,
    /// Its first bytes.
    pub bytes: [u8; Head::LEN],
}

impl Head {
    /// Bytes of a head.
    pub const LEN: usize = 32;

    /// True if a block that begins with these bytes is worth a head.
    #[inline]
    pub fn is_magic(first: [u8; 4]) -> bool {
        // JBD2's and XFS's log record's, both big-endian.
        matches!(u32::from_be_bytes(first), JBD2 | XFS)
    }

    /// The `at`th 32-bit word, as both file systems store it.
    fn word(&self, at: usize) -> u32 {
        let bytes = self.bytes.get(at * 4..at * 4 + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_be_bytes)
    }
}

/// Finds the heads in the data of a write of `len` bytes at `offset` of the volume. `word` gives
/// the four bytes from a place of the data on, and is asked for rising places; `head` gives as many
/// as a head has. Each head found goes to `each`, at most [`MOST_HEADS`] of them.
///
/// Looked at is each 1 KiB from the beginning of the write on: JBD2's blocks have 1 KiB or more,
/// and a file system writes whole blocks, so this is right wherever its partition begins. XFS'
/// records have any number of sectors: the first is looked for at the beginning, the next behind
/// each one.
#[inline]
pub fn scan(
    offset: u64,
    len: u64,
    mut word: impl FnMut(u64) -> [u8; 4],
    mut head: impl FnMut(u64) -> [u8; Head::LEN],
    mut each: impl FnMut(Head),
) {
    let Some(last) = len.checked_sub(Head::LEN as u64) else { return };
    let (mut at, mut left) = (0, MOST_HEADS);
    while at <= last && left > 0 {
        let mut step = 1024;
        if Head::is_magic(word(at)) {
            let found = Head { offset: offset.saturating_add(at), bytes: head(at) };
            if found.word(0) == XFS {
                step = 512 + u64::from(found.word(3)).next_multiple_of(512);
            }
            left -= 1;
            each(found);
        }
        at = at.saturating_add(step);
    }
}

/// Finds journals by the written data. See the module.
#[derive(Debug, Default)]
pub struct Content {
    size: u64,
    /// Writes so far.
    clock: u64,
    runs: Runs,
    jbd2: Vec<Jbd2>,
    /// The superblocks that were seen last, of journals that are otherwise unknown.
    superblocks: Vec<jbd2::Named>,
    xfs: Vec<Xfs>,
    is_changed: bool,
}

impl Content {
    /// For a volume of `size` bytes.
    pub fn new(size: u64) -> Content {
        Content { size, ..Content::default() }
    }

    /// The volume has another size.
    pub fn resized(&mut self, size: u64) {
        self.size = size;
    }

    /// The guest writes to a range; `heads` are those blocks of it that begin with a magic number,
    /// in order.
    #[inline]
    pub fn write(&mut self, range: &Range<u64>, heads: &[Head]) {
        if heads.is_empty() && self.jbd2.is_empty() && self.xfs.is_empty() {
            return;
        }
        self.follow(range, heads);
    }

    fn follow(&mut self, range: &Range<u64>, heads: &[Head]) {
        if range.start >= range.end {
            return;
        }
        self.clock += 1;
        self.runs.add(range, self.clock);
        let is_of_jbd2 = jbd2::follow(self, range, heads);
        let is_of_xfs = xfs::follow(self, range, heads);
        // Another writer into a journal means that it is none, or none any more.
        let changed = &mut self.is_changed;
        if !is_of_jbd2 {
            self.jbd2.retain_mut(|chain| {
                !chain.is_written_over(range) || !std::mem::replace(changed, true)
            });
        }
        if !is_of_xfs {
            self.xfs.retain_mut(|chain| {
                !chain.is_written_over(range) || !std::mem::replace(changed, true)
            });
        }
    }

    /// The guest discards a range, or has it zeroed: no file system does so with its journal while
    /// it is one.
    pub fn cleared(&mut self, range: &Range<u64>) {
        let before = self.jbd2.len() + self.xfs.len();
        self.jbd2.retain(|chain| chain.pieces.overlap(range) == 0);
        self.xfs.retain(|chain| chain.overlap(range) == 0);
        self.is_changed |= before != self.jbd2.len() + self.xfs.len();
    }

    /// True if [`Content::journals`] has changed since the last call.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// The journals that are believed in now.
    pub fn journals(&self) -> Vec<Journal> {
        let journal = |filesystem, ranges| Journal {
            filesystem,
            kind: LogKind::Journal,
            way: Evidence::Content,
            ranges,
        };
        let ext4 =
            self.jbd2.iter().filter(|chain| chain.is_sure()).map(|chain| chain.ranges(self.size));
        let xfs =
            self.xfs.iter().filter(|chain| chain.is_sure()).map(|chain| chain.ranges(self.size));
        let ext4 = ext4.map(|ranges| journal(FileSystem::Ext4, ranges));
        let all = ext4.chain(xfs.map(|ranges| journal(FileSystem::Xfs, ranges)));
        all.filter(|journal| !journal.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests;
