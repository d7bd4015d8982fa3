//! The contents of a verified sector, 512 bytes, all little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic |
//! | 8..16 | xxh3 of bytes 16..512 |
//! | 16..24 | the run |
//! | 24..32 | the sector's own number |
//! | 32..36 | generation |
//! | 36..512 | noise that run, sector and generation determine |

use crate::random::Rng;

const MAGIC: u64 = u64::from_le_bytes(*b"vlanever");

/// The contents found in a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// An intact sector of this run that belongs here.
    Generation(u32),
    /// Data that are not of this run.
    Foreign,
    /// A sector of this run, but another one.
    Misplaced { sector: u64, generation: u32 },
    /// A sector of this run that is damaged.
    Damaged,
}

/// Fills a sector.
pub(super) fn write(to: &mut [u8; 512], run: u64, sector: u64, generation: u32) {
    to[..8].copy_from_slice(&MAGIC.to_le_bytes());
    to[16..24].copy_from_slice(&run.to_le_bytes());
    to[24..32].copy_from_slice(&sector.to_le_bytes());
    to[32..36].copy_from_slice(&generation.to_le_bytes());
    to[36..40].fill(0);
    let mut noise = Rng::new(run ^ sector.rotate_left(32) ^ u64::from(generation));
    for word in to[40..].as_chunks_mut::<8>().0 {
        *word = noise.next().to_le_bytes();
    }
    let sum = twox_hash::XxHash3_64::oneshot(&to[16..]);
    to[8..16].copy_from_slice(&sum.to_le_bytes());
}

/// Looks at a sector.
pub(super) fn read(from: &[u8; 512], run: u64, sector: u64) -> Found {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&from[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let sound = word(8) == twox_hash::XxHash3_64::oneshot(&from[16..]);
    let ours = word(0) == MAGIC && word(16) == run;
    #[expect(clippy::cast_possible_truncation, reason = "the low half is the generation")]
    let generation = word(32) as u32;
    match (ours, sound) {
        // A sector with a damaged header cannot be distinguished from a foreign one; where one of
        // ours must be, either is a mismatch.
        (false, _) => Found::Foreign,
        (true, false) => Found::Damaged,
        (true, true) if word(24) == sector => Found::Generation(generation),
        (true, true) => Found::Misplaced { sector: word(24), generation },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sector_identifies_itself() {
        let mut sector = [0; 512];
        assert_eq!(read(&sector, 7, 3), Found::Foreign);
        write(&mut sector, 7, 3, 9);
        assert_eq!(read(&sector, 7, 3), Found::Generation(9));
        assert_eq!(read(&sector, 8, 3), Found::Foreign);
        assert_eq!(read(&sector, 7, 4), Found::Misplaced { sector: 3, generation: 9 });
        for at in [20, 33, 40, 511] {
            let mut damaged = sector;
            damaged[at] ^= 1;
            assert!(matches!(read(&damaged, 7, 3), Found::Damaged | Found::Foreign), "{at}");
        }
        let mut torn = sector;
        let mut next = [0; 512];
        write(&mut next, 7, 3, 10);
        torn[256..].copy_from_slice(&next[256..]);
        assert_eq!(read(&torn, 7, 3), Found::Damaged);
    }
}
