//! Limits of the host itself: a plain loop of system calls, and fio.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use vlane_guest::Spec;
use vlane_testbed::{Context, ErrorKind, Fail, Interrupt, Result, on_cpus};

use super::Sample;
use super::plan::Load;
use crate::compare::host;

/// pread or pwrite, one after the other, at the load's addresses, on one CPU; a tenth of the time
/// is not counted.
pub(super) fn plain_loop(
    image: &Path,
    load: &Load,
    cpus: &[usize],
    time: Duration,
) -> Result<Sample> {
    let writes = load.pattern.ends_with("write");
    let file = File::options()
        .read(true)
        .write(writes)
        .open(image)
        .context(ErrorKind::Io, || "cannot open the image")?;
    let meta = file.metadata().context(ErrorKind::Io, || "cannot look at the image")?;
    let blocks = meta.len() / u64::from(load.block);
    let work = move || -> Result<Sample> {
        if !cpus.is_empty() {
            vlane_driver::pin(cpus)?;
        }
        let mut buffer = vec![0x5a; load.block as usize];
        let mut state = 1_u64;
        let mut one = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 20) % blocks * u64::from(load.block);
            match writes {
                true => file.write_all_at(&buffer, at),
                false => file.read_exact_at(&mut buffer, at),
            }
            .context(ErrorKind::Io, || "the image cannot be read or written")
        };
        let mut latency = Vec::new();
        let mut iops = 0.0;
        for time in [time / 10, time] {
            latency.clear();
            let (start, mut done) = (Instant::now(), 0_u32);
            while start.elapsed() < time {
                // The clock every 64 requests: it is not to be measured.
                let first = Instant::now();
                one()?;
                latency.push(first.elapsed().as_secs_f64() * 1e6);
                (1..64).try_for_each(|_| one())?;
                done += 64;
            }
            iops = f64::from(done) / start.elapsed().as_secs_f64();
        }
        Ok(Sample {
            iops,
            mb_per_second: iops * f64::from(load.block) / 1e6,
            p50_us: vlane_report::stats::median(&latency),
            ..Sample::default()
        })
    };
    let panicked = |_| ErrorKind::Process.fail("the loop panicked");
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(panicked)
}

/// fio on the same file: io_uring, O_DIRECT, the load's depth; for the second of two times, after
/// the first.
pub(super) fn fio(
    program: &Path,
    dir: &Path,
    image: &Path,
    load: &Load,
    cpus: &[usize],
    (ramp, time): (Duration, Duration),
    interrupt: &Interrupt,
) -> Result<Sample> {
    let words = [
        "--name=peer".to_string(),
        "--ioengine=io_uring".into(),
        "--direct=1".into(),
        "--time_based".into(),
        "--output-format=terse".into(),
        "--terse-version=3".into(),
        format!("--filename={}", image.display()),
        format!("--rw={}", load.pattern),
        format!("--bs={}", load.block),
        format!("--iodepth={}", load.depth),
        format!("--ramp_time={}ms", ramp.as_millis()),
        format!("--runtime={}ms", time.as_millis()),
    ];
    let spec = on_cpus(Spec { cwd: Some(dir.to_path_buf()), ..Spec::new(program, words) }, cpus)?;
    let told = host::fio(&spec, load.block.into(), ramp + time, interrupt)?;
    Ok(Sample {
        iops: told.iops,
        mb_per_second: told.mb_per_second,
        p50_us: told.p50_us,
        p99_us: told.p99_us,
        cpu_us: told.cpu_us,
        ..Sample::default()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::plan::rows;
    use super::*;

    #[test]
    fn plain_loop_reads_and_writes() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, &[1; 65536]).unwrap();
        for pattern in ["randread", "randwrite"] {
            let load = Load { pattern, ..rows(false, &[])[0].load };
            // A thread without a CPU does nothing; it has one in a longer time.
            let times = (0..8).map(|n| Duration::from_millis(50 << n));
            let mut all = times.map(|time| plain_loop(file.path(), &load, &[], time).unwrap());
            assert!(all.any(|one| one.iops > 1000.0 && one.p50_us > 0.0), "{pattern}");
        }
    }
}
