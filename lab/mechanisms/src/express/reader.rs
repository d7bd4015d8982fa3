//! The foreground program of [`super::guests`], [`super::fsync`] and [`crate::loans`]. It reads so
//! much at random places of a disk, or fsyncs a file so often, and ends.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::fs::OFlags;
use vlane::values;
use vlane_report::nearest_rank;

use super::BLOCK;
use vlane_testbed::{At, ErrorKind, Fail, Result};

/// Direct I/O wants memory at a multiple of this, at most.
const ALIGN: usize = 4096;

/// Run the foreground program of `express guests` or `express fsync` inside the guest
#[derive(Debug, Args)]
pub struct Options {
    /// Disk, or with --sync a disk or a new file
    disk: PathBuf,
    /// Write blocks one after the other, each with an fsync, instead of reading
    #[arg(long)]
    sync: bool,
    /// Time from the begin of a read or write to that of the next one, unless it takes longer
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::time_or_none)]
    every: Duration,
    /// Number of reads or writes
    #[arg(long, value_name = "N", value_parser = values::whole::<u32>(1..))]
    reads: u32,
    /// Seed for the places
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u64>(0..))]
    seed: u64,
    /// Number after each result's name
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u64>(0..))]
    mark: u64,
}

/// Reads, with direct I/O, or writes, and reports the times.
///
/// # Errors
/// [`ErrorKind::Io`] if the disk cannot be read or the file not written, [`ErrorKind::Invalid`] if
/// the disk is too small.
pub fn run(options: &Options) -> Result<()> {
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    let mut how = OpenOptions::new();
    match options.sync {
        true => how.write(true).create(true).truncate(true),
        false => how.read(true).custom_flags(direct),
    };
    let mut file = how.open(&options.disk).at(&options.disk, "cannot be read or written")?;
    let blocks = file.seek(SeekFrom::End(0)).at(&options.disk, "cannot be read or written")?
        / u64::from(BLOCK);
    if blocks == 0 && !options.sync {
        let text = format!("{}: smaller than {BLOCK} bytes", options.disk.display());
        return ErrorKind::Invalid.fail(text);
    }
    file.rewind().at(&options.disk, "cannot be read or written")?;
    let mut memory = vec![0; BLOCK as usize + ALIGN];
    let from = memory.as_ptr().align_offset(ALIGN);
    let buffer = &mut memory[from..from + BLOCK as usize];
    let (mut random, mut times) = (fastrand::Rng::with_seed(options.seed), Vec::new());
    let mut due = Instant::now();
    for _ in 0..options.reads {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let begin = Instant::now();
        due = begin + options.every;
        let done = match options.sync {
            true => file.write_all(buffer).and_then(|()| file.sync_all()),
            false => file.read_exact_at(buffer, random.u64(..blocks) * u64::from(BLOCK)),
        };
        done.at(&options.disk, "cannot be read or written")?;
        times.push(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    for (name, us) in ["mean_us", "p50_us", "p99_us"].iter().zip(mean_and_percentiles(&mut times)) {
        println!("RESULT {name}.{}={us}", options.mark);
    }
    Ok(())
}

/// The mean time, the median and the 99th percentile, in us, of times in ns.
pub(super) fn mean_and_percentiles(ns: &mut [u64]) -> [f64; 3] {
    ns.sort_unstable();
    let sum: f64 = ns.iter().map(|ns| *ns as f64 / 1e3).sum();
    let percentile = |permille| nearest_rank(ns, permille).unwrap_or(0) as f64 / 1e3;
    [sum / ns.len().max(1) as f64, percentile(500), percentile(990)]
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn slowest_of_hundred_is_above_99th_percentile() {
        let mut times: Vec<u64> = (1..=100).map(|us| us * 1000).rev().collect();
        assert_eq!(mean_and_percentiles(&mut times), [50.5, 50.0, 99.0]);
        assert_eq!(mean_and_percentiles(&mut [7000]), [7.0; 3]);
    }

    fn options(disk: PathBuf, sync: bool) -> Options {
        Options { disk, sync, every: Duration::ZERO, reads: 3, seed: 1, mark: 1 }
    }

    #[test]
    fn small_or_missing_disk_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = run(&options(dir.path().join("disk"), false)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
    }

    #[test]
    fn each_fsync_appends_one_block() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        for _ in 0..2 {
            run(&options(path.to_path_buf(), true)).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * u64::from(BLOCK));
        }
    }
}
