//! The foreground program of [`super::guests`]: reads so much at random places of a disk, one read
//! after the other, and ends.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use rustix::fs::OFlags;

use super::BLOCK;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};

/// Direct I/O wants memory at a multiple of this, at most.
const ALIGN: usize = 4096;

/// Its results.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Done {
    /// Mean time of a read, in us.
    pub mean_us: f64,
    /// The 99th percentile, in us.
    pub p99_us: f64,
}

/// Reads, with direct I/O.
///
/// # Errors
/// [`ErrorKind::Io`] if the disk cannot be read, [`ErrorKind::Invalid`] if it is too small.
pub fn run(disk: &Path, reads: u32, seed: u64) -> Result<Done> {
    let cannot = || format!("{}: cannot be read", disk.display());
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(direct).open(disk);
    let mut file = file.context(ErrorKind::Io, cannot)?;
    let blocks = file.seek(SeekFrom::End(0)).context(ErrorKind::Io, cannot)? / u64::from(BLOCK);
    if blocks == 0 {
        let text = format!("{}: smaller than {BLOCK} bytes", disk.display());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let mut memory = vec![0; BLOCK as usize + ALIGN];
    let from = memory.as_ptr().align_offset(ALIGN);
    let buffer = &mut memory[from..from + BLOCK as usize];
    let (mut state, mut times) = (seed, Vec::with_capacity(reads as usize));
    for _ in 0..reads {
        let at = next(&mut state) % blocks * u64::from(BLOCK);
        let begin = Instant::now();
        file.read_exact_at(buffer, at).context(ErrorKind::Io, cannot)?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(Done::of(&mut times))
}

impl Done {
    fn of(us: &mut [f64]) -> Self {
        us.sort_by(f64::total_cmp);
        let p99_us =
            us.get((us.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0);
        Self { mean_us: us.iter().sum::<f64>() / us.len().max(1) as f64, p99_us }
    }
}

/// A sequence of numbers that looks like chance (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn slowest_of_hundred_is_above_99th_percentile() {
        let mut times: Vec<f64> = (1..=100).map(f64::from).rev().collect();
        assert_eq!(Done::of(&mut times), Done { mean_us: 50.5, p99_us: 99.0 });
        assert_eq!(Done::of(&mut [7.0]), Done { mean_us: 7.0, p99_us: 7.0 });
    }

    #[test]
    fn small_or_missing_disk_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        assert_eq!(run(&disk, 1, 1).unwrap_err().kind(), ErrorKind::Io);
    }
}
