//! fio with its libblkio engine as the client, driven like our own driver as far as it can be.
//!
//! A load's settings become fio's options of the same meaning; a setting without one is refused
//! before the measurement. fio chooses random addresses with repetition (`norandommap`), as the
//! driver does.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use vlane_cost::Snapshot;
use vlane_driver::{BackendUse, Buckets, Mix, Wait};
use vlane_guest::BlkioFio;

use super::profile::Load;
use super::saved::Run;
use vlane_testbed::{Context, Error, ErrorKind, Fail, Interrupt, Result, on_cpus};

/// How much longer than its time a fio may take before it is given up.
const SPARE: Duration = Duration::from_secs(30);
/// When the back end is looked at: shares of the measured time.
pub const WITHIN: [f64; 2] = [0.35, 0.85];

/// Why fio cannot make a load, if it cannot.
pub(super) fn cannot(load: &Load) -> Option<&'static str> {
    match load {
        Load { rate: Some(_), .. } => Some("a rate"),
        Load { packed: true, .. } => Some("packed rings"),
        Load { segments, .. } if segments.get() > 1 => Some("segments"),
        Load { write_cache: Some(_), .. } => Some("a switched write cache"),
        Load { ioprio, .. } if ioprio.0 != 0 => Some("priorities"),
        Load { jobs, .. } if jobs.get() > 1 => Some("more than one job"),
        Load { idle: 1.., .. } => Some("idle queues"),
        Load { rw, .. } if !matches!(rw.0.mix, Mix::ReadPercent(_)) => {
            Some("discards and write-zeroes")
        }
        _ => None,
    }
}

/// fio's options for a load.
pub fn options(load: &Load, socket: &Path, time: Duration, ramp: Duration) -> Vec<String> {
    let (rw, percent) = match load.rw.0.mix {
        Mix::ReadPercent(100) => ("read", None),
        Mix::ReadPercent(0) => ("write", None),
        Mix::ReadPercent(percent) => ("rw", Some(percent)),
        Mix::Discard | Mix::WriteZeroes => ("trim", None),
    };
    let random = if load.rw.0.random { "rand" } else { "" };
    let wait = match load.wait {
        Wait::Interrupt => "eventfd",
        Wait::Poll => "loop",
    };
    // The driver's batch of 0 is everything that came back together.
    let batch = if load.batch == 0 { load.depth.get() } else { load.batch };
    let mut words = vec![
        "--name=load".into(),
        "--ioengine=libblkio".into(),
        "--libblkio_driver=virtio-blk-vhost-user".into(),
        format!("--libblkio_path={}", socket.display()),
        format!("--libblkio_wait_mode={wait}"),
        "--thread".into(),
        format!("--rw={random}{rw}"),
        format!("--bs={}", load.bs.0),
        format!("--iodepth={}", load.depth),
        format!("--iodepth_batch_submit={batch}"),
        "--iodepth_batch_complete_min=1".into(),
        format!("--iodepth_batch_complete_max={}", load.depth),
        format!("--offset={}", load.offset.0),
        format!("--randseed={}", load.seed),
        "--norandommap".into(),
        "--time_based".into(),
        format!("--runtime={}ms", time.as_millis()),
        format!("--ramp_time={}ms", ramp.as_millis()),
        "--output-format=json".into(),
    ];
    words.extend(percent.map(|percent| format!("--rwmixread={percent}")));
    words.extend(load.size.map(|size| format!("--size={}", size.0)));
    words.extend(load.flush_every.map(|n| format!("--fsync={n}")));
    words
}

/// A child that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// One measurement. `look` is called twice, well within the measured time: fio needs some tenths of
/// a second to begin.
pub fn measure(
    fio: &BlkioFio,
    words: Vec<String>,
    (time, ramp): (Duration, Duration),
    cpus: &[usize],
    look: &mut dyn FnMut(),
    interrupt: &Interrupt,
) -> Result<Run> {
    let output = tempfile::NamedTempFile::new()
        .context(ErrorKind::Io, || "no temporary file for fio's results")?;
    let mut spec = fio.spec(words);
    spec.args.push(format!("--output={}", output.path().display()).into());
    let mut child = Killed(on_cpus(spec, cpus)?.spawn_apart("KILL")?);
    let start = Instant::now();
    let mut looks = WITHIN.map(|part| ramp + time.mul_f64(part)).into_iter().peekable();
    let status = loop {
        interrupt.check()?;
        if let Some(status) = child.0.try_wait().context(ErrorKind::Process, || "fio was lost")? {
            break status;
        }
        let elapsed = start.elapsed();
        if looks.next_if(|at| elapsed >= *at).is_some() {
            look();
        }
        if elapsed > ramp + time + SPARE {
            return ErrorKind::Timeout.fail("fio does not end; does the back end answer it?");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = std::fs::read_to_string(output.path())
        .context(ErrorKind::Io, || "fio's results cannot be read")?;
    if !status.success() {
        let mut said = String::new();
        if let Some(mut stderr) = child.0.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut stderr, &mut said);
        }
        let context =
            format!("fio failed ({status}): {}", [said.trim(), text.trim()].join(" ").trim());
        return ErrorKind::Process.fail(context);
    }
    parse(&text)
}

/// Adds what the back end's process `pid` used between two looks.
pub(super) fn observed(run: &mut Run, pid: i32, looks: &[Snapshot]) {
    let [before, after] = looks else { return };
    let used = BackendUse::of(pid, &after.since(before), 0);
    run.server_cpu_us_per_io = Some(used.cpus * 1e6 / run.iops);
    let wall = used.cpu_seconds / used.cpus.max(1e-9);
    let switches = used.switches as f64;
    run.server_switches_per_io = Some(switches / wall.max(1e-9) / run.iops);
}

/// fio's JSON result of its job. (Notes may stand before it.)
fn parse(text: &str) -> Result<Run> {
    let bad = |what: &str| Error::new(ErrorKind::Process, format!("fio printed {what}"));
    let start = text.find('{').ok_or_else(|| bad("no results"))?;
    let all: serde_json::Value = serde_json::from_str(&text[start..])
        .context(ErrorKind::Process, || "fio printed no JSON")?;
    let job = &all["jobs"][0];
    if job["error"].as_i64().unwrap_or(0) != 0 {
        return Err(bad(&format!("an error: {}", job["error"])));
    }
    let rate = |side: &str| job[side]["iops"].as_f64().unwrap_or(0.0);
    let iops = rate("read") + rate("write");
    if iops <= 0.0 {
        return Err(bad("results without requests"));
    }
    // Of a mix, the latencies of what there is more of.
    let main = &job[if rate("read") >= rate("write") { "read" } else { "write" }]["clat_ns"];
    let us = |value: &serde_json::Value| value.as_f64().map(|ns| ns / 1000.0);
    let percentile =
        |name: &str| us(&main["percentile"][name]).ok_or_else(|| bad("no percentiles"));
    let bytes = |side: &str| job[side]["bw_bytes"].as_f64().unwrap_or(0.0);
    // Percent of one CPU.
    let busy = job["usr_cpu"].as_f64().unwrap_or(0.0) + job["sys_cpu"].as_f64().unwrap_or(0.0);
    Ok(Run {
        iops,
        mb_per_second: (bytes("read") + bytes("write")) / 1e6,
        mean_us: us(&main["mean"]).unwrap_or(0.0),
        p50_us: percentile("50.000000")?,
        p99_us: percentile("99.000000")?,
        p99_9_us: percentile("99.900000")?,
        client_cpu_us_per_io: busy / 100.0 * 1e6 / iops,
        latencies: Buckets::default(),
        ..Run::default()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn loads_become_fio_options_or_errors() {
        let load = Load { batch: 1, ..Load::named("n") };
        let words =
            options(&load, Path::new("/run/s"), Duration::from_secs(2), Duration::from_millis(500));
        for word in [
            "--rw=randread",
            "--bs=4096",
            "--iodepth=32",
            "--iodepth_batch_submit=1",
            "--libblkio_path=/run/s",
            "--libblkio_wait_mode=eventfd",
            "--runtime=2000ms",
            "--ramp_time=500ms",
        ] {
            assert!(words.iter().any(|w| w == word), "{word}: {words:?}");
        }
        assert_eq!(cannot(&load), None);
        assert_eq!(cannot(&Load { rate: Some(5.0), ..load.clone() }), Some("a rate"));
        assert_eq!(cannot(&Load { packed: true, ..load }), Some("packed rings"));
    }

    #[test]
    fn fio_output_is_parsed() {
        let text = r#"fio: a note
            {"jobs": [{"error": 0, "read": {"iops": 50000.0, "bw_bytes": 204800000, "clat_ns": {"mean": 60000,
            "percentile": {"50.000000": 61000, "99.000000": 90000, "99.900000": 99000}}},
            "write": {"iops": 0.0}, "usr_cpu": 10.0, "sys_cpu": 40.0}]}"#;
        let run = parse(text).unwrap();
        assert!((run.client_cpu_us_per_io - 10.0).abs() < 1e-9 && (run.p50_us - 61.0).abs() < 1e-9);
        assert!((run.client_cpus() - 0.5).abs() < 1e-9);
        for text in ["nothing", "{}", r#"{"jobs": [{"error": 5}]}"#] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
