//! A load without a back end: as many threads as its requests in flight, each with one at a time,
//! on the image itself. A flush is the thread's own `fdatasync`. Tasks on the host do the same, and
//! so does a back end with flushes that it does not share.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use vlane_driver::ring::RequestKind;
use vlane_driver::{Buckets, Mix, Region, Requests};

use super::profile::{Load, Storage};
use super::saved::{Flushing, Run};
use vlane_testbed::{Context, Error, ErrorKind, Fail, Interrupt, Result};

/// O_DIRECT of Linux on x86 and others; what buffers for it are aligned to.
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits().cast_signed();
const ALIGNMENT: usize = 4096;
const LONGEST_US: u64 = 60_000_000;

/// Why threads cannot make a load, if they cannot.
pub(super) fn cannot(load: &Load) -> Option<&'static str> {
    match load {
        Load { storage: Storage::Null, .. } => Some("a device without a medium"),
        Load { rate: Some(_), .. } => Some("a rate"),
        Load { rw, .. } if !matches!(rw.0.mix, Mix::ReadPercent(_)) => {
            Some("discards and write-zeroes")
        }
        _ => None,
    }
}

/// Latencies of all requests of one thread, and of its flushes.
type Measured = [Histogram<u64>; 2];

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST_US, 3)
        .context(ErrorKind::Io, || "cannot make a histogram")
}

/// One measurement on an image, with O_DIRECT or not.
pub(super) fn measure(
    (image, direct): (&Path, bool),
    load: &Load,
    (time, ramp): (Duration, Duration),
    interrupt: &Interrupt,
) -> Result<Run> {
    let about = || format!("{}", image.display());
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(if direct { O_DIRECT } else { 0 });
    let file = options.open(image).context(ErrorKind::Io, about)?;
    let bytes = file.metadata().context(ErrorKind::Io, about)?.len();
    let region = Region { offset: 0, blocks: bytes / load.bs.0.max(1) };
    let threads = load.jobs.get().saturating_mul(load.depth.get());
    let workload = load.workload(time, ramp, &[]);
    let begin = Instant::now();
    let window = (begin + ramp, begin + ramp + time);
    let measured: Vec<Result<Measured>> = std::thread::scope(|scope| {
        let work = |index| {
            let requests = Requests::new(&workload, region, index, threads);
            let file = &file;
            scope.spawn(move || thread(file, load, requests, window, interrupt))
        };
        let running: Vec<_> = (0..threads).map(work).collect();
        let joined = |thread: std::thread::ScopedJoinHandle<'_, Result<Measured>>| {
            thread
                .join()
                .unwrap_or_else(|_| ErrorKind::Process.fail("a thread of the load is gone"))
        };
        running.into_iter().map(joined).collect()
    });
    interrupt.check()?;
    let mut sum = [histogram()?, histogram()?];
    for one in measured {
        let one =
            one.map_err(|error| Error::caused_by(error.kind(), about(), error.to_string()))?;
        for (sum, one) in sum.iter_mut().zip(one) {
            sum.add(one).context(ErrorKind::Process, || "histograms differ")?;
        }
    }
    Ok(figures(&sum, load.bs.0, time))
}

fn figures([all, flushes]: &Measured, block: u64, time: Duration) -> Run {
    let at = |of: &Histogram<u64>, quantile| of.value_at_quantile(quantile) as f64;
    let per_second = |count: u64| count as f64 / time.as_secs_f64();
    Run {
        iops: per_second(all.len()),
        mb_per_second: per_second((all.len() - flushes.len()) * block) / 1e6,
        mean_us: all.mean(),
        p50_us: at(all, 0.5),
        p99_us: at(all, 0.99),
        p99_9_us: at(all, 0.999),
        flushes: (!flushes.is_empty()).then(|| Flushing {
            per_second: per_second(flushes.len()),
            p50_us: at(flushes, 0.5),
            p99_us: at(flushes, 0.99),
            fdatasyncs: Some(1.0),
        }),
        latencies: Buckets::default(),
        ..Run::default()
    }
}

/// One request after the other, until the window ends.
fn thread(
    file: &File,
    load: &Load,
    mut requests: Requests,
    window: (Instant, Instant),
    interrupt: &Interrupt,
) -> Result<Measured> {
    let len = usize::try_from(load.bs.0).unwrap_or(usize::MAX);
    let mut memory = vec![0x5a_u8; len.saturating_add(ALIGNMENT)];
    let at = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let buffer = &mut memory[at..at + len];
    let [mut all, mut flushes] = [histogram()?, histogram()?];
    while !interrupt.is_raised() {
        let (kind, offset) = requests.next(0);
        let begin = Instant::now();
        if begin >= window.1 {
            break;
        }
        let done = match kind {
            RequestKind::Flush => file.sync_data(),
            RequestKind::Read => file.read_exact_at(buffer, offset),
            _ => file.write_all_at(buffer, offset),
        };
        done.context(ErrorKind::Io, || format!("{kind:?} at {offset}"))?;
        let end = Instant::now();
        if end >= window.0 && end < window.1 {
            let us = u64::try_from((end - begin).as_micros()).unwrap_or(LONGEST_US);
            all.saturating_record(us.max(1));
            if kind == RequestKind::Flush {
                flushes.saturating_record(us.max(1));
            }
        }
    }
    Ok([all, flushes])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::num::{NonZeroU16, NonZeroU32};

    use super::*;

    #[test]
    fn threads_sync_alone_and_refuse_others() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let load = Load {
            rw: crate::Pattern("randwrite".parse().unwrap()),
            jobs: NonZeroU16::new(2).unwrap(),
            depth: NonZeroU16::new(2).unwrap(),
            flush_every: NonZeroU32::new(3),
            storage: Storage::DiskCached,
            ..Load::named("n")
        };
        assert_eq!(cannot(&load), None);
        assert!(cannot(&Load::named("null")).is_some());
        let interrupt = Interrupt::listen().unwrap();
        // A busy disk syncs nothing in a short window.
        let windows = (0..9).map(|n| Duration::from_millis(50 << n));
        let runs = windows.map(|window| {
            measure((file.path(), false), &load, (window, Duration::ZERO), &interrupt).unwrap()
        });
        let (run, flushes) =
            runs.filter_map(|run| Some((run.clone(), run.flushes?))).next().unwrap();
        assert!(
            flushes.fdatasyncs == Some(1.0)
                && flushes.per_second > 0.0
                && run.iops > flushes.per_second * 2.0
        );
    }
}
