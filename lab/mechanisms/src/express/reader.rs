//! The foreground program of [`super::guests`]: reads so much at random places of a disk, one read
//! after the other, and ends.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use rustix::fs::OFlags;
use vlane::values;
use vlane_report::stats::nearest_rank;

use super::BLOCK;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};

/// Direct I/O wants memory at a multiple of this, at most.
const ALIGN: usize = 4096;

/// Run the foreground program of `express guests` inside the guest
#[derive(Debug, Args)]
pub struct Options {
    /// Disk
    disk: PathBuf,
    /// Number of reads
    #[arg(long, value_name = "N", value_parser = values::whole::<u32>(1..))]
    reads: u32,
    /// Seed for the places
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u64>(0..))]
    seed: u64,
    /// Number after each result's name
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u64>(0..))]
    mark: u64,
}

/// Reads, with direct I/O, and tells of it.
///
/// # Errors
/// [`ErrorKind::Io`] if the disk cannot be read, [`ErrorKind::Invalid`] if it is too small.
pub fn run(options: &Options) -> Result<()> {
    let cannot = || format!("{}: cannot be read", options.disk.display());
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(direct).open(&options.disk);
    let mut file = file.context(ErrorKind::Io, cannot)?;
    let blocks = file.seek(SeekFrom::End(0)).context(ErrorKind::Io, cannot)? / u64::from(BLOCK);
    if blocks == 0 {
        let text = format!("{}: smaller than {BLOCK} bytes", options.disk.display());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let mut memory = vec![0; BLOCK as usize + ALIGN];
    let from = memory.as_ptr().align_offset(ALIGN);
    let buffer = &mut memory[from..from + BLOCK as usize];
    let (mut random, mut times) = (fastrand::Rng::with_seed(options.seed), Vec::new());
    for _ in 0..options.reads {
        let at = random.u64(..blocks) * u64::from(BLOCK);
        let begin = Instant::now();
        file.read_exact_at(buffer, at).context(ErrorKind::Io, cannot)?;
        times.push(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    let (mean, p99) = mean_and_p99(&mut times);
    println!("RESULT mean_us.{}={mean}", options.mark);
    println!("RESULT p99_us.{}={p99}", options.mark);
    Ok(())
}

/// The mean time and the 99th percentile, in us, of times in ns.
fn mean_and_p99(ns: &mut [u64]) -> (f64, f64) {
    ns.sort_unstable();
    let sum: f64 = ns.iter().map(|ns| *ns as f64 / 1e3).sum();
    (sum / ns.len().max(1) as f64, nearest_rank(ns, 990).unwrap_or(0) as f64 / 1e3)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn slowest_of_hundred_is_above_99th_percentile() {
        let mut times: Vec<u64> = (1..=100).map(|us| us * 1000).rev().collect();
        assert_eq!(mean_and_p99(&mut times), (50.5, 99.0));
        assert_eq!(mean_and_p99(&mut [7000]), (7.0, 7.0));
    }

    #[test]
    fn small_or_missing_disk_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        assert_eq!(
            run(&Options { disk, reads: 1, seed: 1, mark: 1 }).unwrap_err().kind(),
            ErrorKind::Io
        );
    }
}
