//! Limits of the host itself: a plain loop of system calls, and fio.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use vlane_guest::Spec;

use super::Figures;
use super::plan::Load;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::server::on_cpus;

/// pread or pwrite, one after the other, at the load's addresses, on one CPU; a tenth of the time
/// is not counted.
pub(super) fn plain_loop(
    image: &Path,
    load: &Load,
    cpus: &[usize],
    time: Duration,
) -> Result<Figures> {
    let writes = load.pattern.ends_with("write");
    let file = File::options()
        .read(true)
        .write(writes)
        .open(image)
        .context(ErrorKind::Io, || "cannot open the image")?;
    let meta = file.metadata().context(ErrorKind::Io, || "cannot look at the image")?;
    let blocks = meta.len() / u64::from(load.block);
    let work = move || -> Result<Figures> {
        if !cpus.is_empty() {
            vlane_driver::pin(cpus)?;
        }
        let mut buffer = vec![0x5a; load.block as usize];
        let mut latency = Vec::with_capacity(1 << 16);
        let mut state = 1_u64;
        // When the measurement began, and the requests made until then.
        let mut began = None;
        let (start, mut done) = (Instant::now(), 0_u64);
        loop {
            // The clock every 64 requests: it is not to be measured.
            let now = Instant::now();
            match began {
                None if now - start >= time / 10 => began = Some((now, done)),
                Some((from, before)) if now - from >= time => {
                    let iops = (done - before) as f64 / (now - from).as_secs_f64();
                    return Ok(Figures {
                        iops,
                        mb_per_second: iops * f64::from(load.block) / 1e6,
                        p50_us: vlane_report::stats::median(&latency),
                        ..Figures::default()
                    });
                }
                _ => {}
            }
            for i in 0..64 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 20) % blocks * u64::from(load.block);
                let one = (i == 0 && latency.len() < latency.capacity()).then(Instant::now);
                if writes {
                    file.write_all_at(&buffer, at)
                        .context(ErrorKind::Io, || "cannot write the image")?;
                } else {
                    file.read_exact_at(&mut buffer, at)
                        .context(ErrorKind::Io, || "cannot read the image")?;
                }
                if let Some(one) = one {
                    latency.push(one.elapsed().as_secs_f64() * 1e6);
                }
            }
            done += 64;
        }
    };
    let panicked = |_| Err(Error::new(ErrorKind::Process, "the loop panicked"));
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
) -> Result<Figures> {
    let results = dir.join("fio.json");
    let words = [
        "--name=peer".to_string(),
        "--ioengine=io_uring".into(),
        "--direct=1".into(),
        "--time_based".into(),
        "--output-format=json".into(),
        format!("--output={}", results.display()),
        format!("--filename={}", image.display()),
        format!("--rw={}", load.pattern),
        format!("--bs={}", load.block),
        format!("--iodepth={}", load.depth),
        format!("--ramp_time={}ms", ramp.as_millis()),
        format!("--runtime={}ms", time.as_millis()),
    ];
    let spec = on_cpus(Spec { cwd: Some(dir.to_path_buf()), ..Spec::new(program, words) }, cpus)?;
    let mut running = Running(spec.spawn_apart("KILL")?);
    loop {
        interrupt.check()?;
        match running.0.try_wait().context(ErrorKind::Process, || "fio was lost")? {
            Some(status) if status.success() => break,
            Some(status) => {
                let mut said = String::new();
                if let Some(pipe) = &mut running.0.stderr {
                    let _ = pipe.read_to_string(&mut said);
                }
                let context = format!("fio failed ({status}): {}", said.trim());
                return Err(Error::new(ErrorKind::Process, context));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    let text = std::fs::read(&results).context(ErrorKind::Io, || results.display().to_string())?;
    parse_fio(&text)
}

/// A program that is killed with its children when its owner no longer waits for it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // After it was reaped its number may have been reused.
        if let (Ok(None), Some(group)) =
            (self.0.try_wait(), i32::try_from(self.0.id()).ok().and_then(Pid::from_raw))
        {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

/// fio's JSON result of its first job. (Notes may stand before it.)
fn parse_fio(output: &[u8]) -> Result<Figures> {
    let none = |what: &str| Error::new(ErrorKind::Process, what);
    let start = output
        .iter()
        .position(|byte| *byte == b'{')
        .ok_or_else(|| none("fio printed no results"))?;
    let all: serde_json::Value = serde_json::from_slice(&output[start..])
        .context(ErrorKind::Process, || "fio printed no JSON")?;
    let job = &all["jobs"][0];
    let side = if job["read"]["iops"].as_f64().unwrap_or(0.0) > 0.0 {
        &job["read"]
    } else {
        &job["write"]
    };
    let iops = side["iops"]
        .as_f64()
        .filter(|iops| *iops > 0.0)
        .ok_or_else(|| none("fio's results name no IOPS"))?;
    let busy = job["usr_cpu"].as_f64().unwrap_or(0.0) + job["sys_cpu"].as_f64().unwrap_or(0.0);
    Ok(Figures {
        iops,
        mb_per_second: side["bw_bytes"].as_f64().unwrap_or(0.0) / 1e6,
        p50_us: side["clat_ns"]["percentile"]["50.000000"].as_f64().unwrap_or(f64::NAN) / 1e3,
        cpu_us_per_io: busy / 100.0 * 1e6 / iops,
        ..Figures::default()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn fio_is_understood() {
        let text = br#"fio: a note
            {"jobs": [{"read": {"iops": 50000.0, "bw_bytes": 204800000, "clat_ns": {"percentile": {"50.000000": 61000}}},
            "write": {"iops": 0.0}, "usr_cpu": 10.0, "sys_cpu": 40.0}]}"#;
        let figures = parse_fio(text).unwrap();
        assert!(
            (figures.cpu_us_per_io - 10.0).abs() < 1e-9 && (figures.p50_us - 61.0).abs() < 1e-9
        );
        assert!(parse_fio(b"nothing").is_err() && parse_fio(b"{}").is_err());
    }

    #[test]
    fn plain_loop_reads_and_writes() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, &[1; 65536]).unwrap();
        for pattern in ["randread", "randwrite"] {
            let load = Load {
                pattern,
                block: 4096,
                depth: 1,
                jobs: 1,
                wait: vlane_driver::Wait::Interrupt,
                pinned: false,
            };
            // A thread without a CPU does nothing; it has one in a longer time.
            let times = (0..8).map(|n| Duration::from_millis(50 << n));
            let mut all = times.map(|time| plain_loop(file.path(), &load, &[], time).unwrap());
            assert!(all.any(|one| one.iops > 1000.0 && one.p50_us > 0.0), "{pattern}");
        }
    }
}
