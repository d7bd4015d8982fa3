//! vlane and qemu-storage-daemon side by side.
//!
//! The same driver, the same device, one after the other and in turns (A B, B A, ...), so that what else the machine does hits both alike.
//! Server and driver have a CPU each, except where a row is about sharing them. Compared is pair by pair, and [`crate::stats`] says
//! whether the difference is more than noise. The project's own targets are beside that ([`targets`]).

mod baseline;
mod judge;
mod plan;
mod report;

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::Serialize;
use vlane_boot::{Host, Install};
use vlane_driver::{Limit, Pattern, SessionOptions, Workload};

pub use self::judge::{Verdict, lines, markdown, targets};
use self::plan::{Contender, Medium};
pub use self::plan::{Row, rows};
pub use self::report::report;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::image::{self, Image, Place};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress::Progress;
use crate::report::figure;
use crate::server::{Server, Storage};

/// Size of the image on the RAM disk.
const RAM_BYTES: u64 = 1 << 30;
/// Size of the image on the disk.
const DISK_BYTES: u64 = 2 << 30;
/// Capacity of the null devices.
const NULL_BYTES: u64 = 16 << 30;
/// Quiet before an idle session is watched, and the time that it is.
const IDLE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// Starting a back end, connecting, draining: what a measurement takes beyond its own time, about.
const AROUND: Duration = Duration::from_millis(400);

/// What to measure, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// vlane's own file.
    pub vlane: PathBuf,
    /// Rows by their names; empty for all.
    pub rows: Vec<String>,
    /// Measurements of each contender per row.
    pub pairs: u32,
    /// Time of each measurement.
    pub time: Duration,
    /// Time before each measurement that does not count.
    pub ramp: Duration,
    /// Whether what is missing may be installed.
    pub install: Install,
    /// The CPU for the back ends; the first usable one if not given.
    pub server_cpu: Option<usize>,
    /// The CPU for the driver; the second usable one if not given.
    pub driver_cpu: Option<usize>,
    /// A directory on a RAM disk.
    pub ram_dir: Option<PathBuf>,
    /// A directory on the disk to be measured.
    pub disk_dir: Option<PathBuf>,
}

/// One measurement of one contender; what does not apply is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Requests per second.
    pub iops: f64,
    /// MB per second.
    pub mb_per_second: f64,
    /// Median latency in us.
    pub p50_us: f64,
    /// 99th percentile in us.
    pub p99_us: f64,
    /// The back end's CPU time per request in us.
    pub cpu_us_per_io: f64,
    /// The back end's context switches per request.
    pub switches_per_io: f64,
    /// The driver's CPU time per request in us.
    pub driver_cpu_us_per_io: f64,
    /// The back end's CPU time in ms, all in all.
    pub cpu_ms: f64,
    /// The back end's context switches, all in all.
    pub switches: f64,
}

/// All measurements of a row: by contender, then by round.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// What was measured of each contender in each round.
    pub rounds: Vec<Vec<Figures>>,
}

/// A row's results.
#[derive(Debug, Clone, Serialize)]
pub struct RowResult {
    /// The row's name.
    pub row: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// Who took part.
    pub contenders: Vec<&'static str>,
    /// Every single measurement.
    pub measured: Measured,
    /// What became of the row's targets.
    pub verdicts: Vec<Verdict>,
}

/// Measures the rows; `done` is told of each as soon as it is there.
///
/// # Errors
/// [`ErrorKind::Usage`] and [`ErrorKind::Missing`] before anything is measured if it cannot be; [`ErrorKind::Interrupted`]; and whatever
/// keeps a measurement from being made.
pub fn run(
    options: &Options,
    interrupt: &Interrupt,
    mut done: impl FnMut(&RowResult) -> Result<()>,
) -> Result<Vec<RowResult>> {
    let rows = chosen(options)?;
    let mut bench = Bench::new(options, &rows, interrupt)?;
    let mut results = Vec::new();
    for row in &rows {
        let measured = bench.row(row)?;
        let verdicts: Vec<_> = row.claims.iter().map(|claim| judge::judge(row, claim, &measured)).collect();
        let contenders = row.contenders.iter().map(|(name, _)| *name).collect();
        let result = RowResult { row: row.id, title: row.title, contenders, measured, verdicts };
        bench.progress.clear();
        done(&result)?;
        results.push(result);
    }
    Ok(results)
}

/// Writes every single measurement to a file, as JSON.
///
/// # Errors
/// As [`Output::write`].
pub fn write_json(output: &Output, results: &[RowResult]) -> Result<()> {
    let text = serde_json::to_string_pretty(results).context(ErrorKind::Format, || "the measurements")?;
    output.write((text + "\n").as_bytes())
}

/// A file for the measurements: it may replace one of an earlier run.
pub fn json_output(path: &Path, force: bool) -> Output {
    #[derive(serde::Deserialize)]
    #[expect(dead_code, reason = "only whether they are there counts")]
    struct Row {
        row: String,
        title: String,
        contenders: Vec<String>,
        measured: serde_json::Value,
    }
    let rows =
        |content: &[u8]| serde_json::from_slice::<Vec<Row>>(content).is_ok_and(|rows| !rows.is_empty());
    Output::new(path).replacing(rows).force(force)
}

/// The rows that are wanted.
fn chosen(options: &Options) -> Result<Vec<Row>> {
    let invalid = |context: String| Err(Error::new(ErrorKind::Usage, context));
    if options.pairs == 0 {
        return invalid("--pairs 0: there must be at least one".into());
    }
    let all = rows();
    if let Some(unknown) = options.rows.iter().find(|id| all.iter().all(|row| row.id != **id)) {
        return invalid(format!("--rows: there is no row `{unknown}`; --list names them"));
    }
    let wanted = |row: &Row| options.rows.is_empty() || options.rows.iter().any(|id| id == row.id);
    Ok(all.into_iter().filter(wanted).collect())
}

/// What the measurements need.
struct Bench<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    /// For sockets and fio's results.
    dir: tempfile::TempDir,
    qsd: Option<PathBuf>,
    fio: Option<PathBuf>,
    server_cpu: usize,
    driver_cpu: usize,
    ram: Option<Image>,
    disk: Option<Image>,
    progress: Progress,
}

impl<'a> Bench<'a> {
    /// Makes ready what the rows need; everything that can be missing is looked for before the images are written.
    fn new(options: &'a Options, rows: &[Row], interrupt: &'a Interrupt) -> Result<Self> {
        let needs = |contender| rows.iter().any(|row| row.contenders.iter().any(|(_, c)| *c == contender));
        let on = |medium| rows.iter().any(|row| row.medium == medium);
        let (server_cpu, driver_cpu) = cpus(options)?;
        let host = Host::new(options.install)?;
        host.program("taskset")?;
        let qsd = needs(Contender::Qsd).then(|| host.program("qemu-storage-daemon")).transpose()?;
        let fio = needs(Contender::Fio).then(|| host.program("fio")).transpose()?;
        let place = |medium, wanted: &Option<PathBuf>, bytes, option| {
            Place::find(medium, wanted.as_deref(), bytes, option)
        };
        let ram = on(Medium::Ram)
            .then(|| place(image::Medium::Ram, &options.ram_dir, RAM_BYTES, "--ram-dir"))
            .transpose()?;
        let disk = on(Medium::Disk)
            .then(|| place(image::Medium::Disk, &options.disk_dir, DISK_BYTES, "--disk-dir"))
            .transpose()?;
        if ram.is_some() || disk.is_some() {
            // Nobody may be there to read it.
            let _ = writeln!(std::io::stderr(), "writing the images");
        }
        let rounds = |row: &Row| if row.load.is_none() { 1 } else { options.pairs as usize };
        let steps = rows.iter().map(|row| row.contenders.len() * rounds(row)).sum();
        Ok(Self {
            options,
            interrupt,
            dir: tempfile::Builder::new()
                .prefix("vlane-peers-")
                .tempdir()
                .context(ErrorKind::Io, || "cannot make a directory for temporary files")?,
            qsd,
            fio,
            server_cpu,
            driver_cpu,
            ram: ram.map(|place| place.image(RAM_BYTES, interrupt)).transpose()?,
            disk: disk.map(|place| place.image(DISK_BYTES, interrupt)).transpose()?,
            progress: Progress::new(steps).expecting(options.time + options.ramp + AROUND),
        })
    }

    /// All rounds of a row, forwards and backwards in turns.
    fn row(&mut self, row: &Row) -> Result<Measured> {
        let rounds = if row.load.is_none() { 1 } else { self.options.pairs };
        let mut all = vec![Vec::new(); row.contenders.len()];
        for round in 0..rounds {
            let mut order: Vec<_> = (0..row.contenders.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let (name, contender) = row.contenders[index];
                let label = format!("{}: {name}, {} of {rounds}", row.id, round + 1);
                self.progress.step(&label);
                let figures = self.measure(row, contender);
                // Whatever else failed: if the user ended it, that is why.
                self.interrupt.check()?;
                all[index].push(figures.map_err(|e| Error::caused_by(e.kind(), label, e))?);
            }
        }
        Ok(Measured { rounds: all })
    }

    fn storage(&self, medium: Medium) -> Result<Storage<'_>> {
        let (image, direct) = match medium {
            Medium::Null => return Ok(Storage::Null { bytes: NULL_BYTES }),
            Medium::Ram => (&self.ram, false),
            Medium::Disk => (&self.disk, true),
        };
        let image = image.as_ref().ok_or_else(|| Error::new(ErrorKind::Invalid, "the image is not there"))?;
        Ok(Storage::File { path: image.path(), direct })
    }

    /// One measurement.
    fn measure(&mut self, row: &Row, contender: Contender) -> Result<Figures> {
        let storage = self.storage(row.medium)?;
        let load = row.load.as_ref();
        let cpus: Vec<usize> =
            load.is_none_or(|load| load.pinned).then_some(self.server_cpu).into_iter().collect();
        let (jobs, depth) = load.map_or((1, 32), |load| (load.jobs, load.depth));
        let missing = |what: &str| Error::new(ErrorKind::Missing, format!("{what} is not there"));
        let dir = self.dir.path();
        let mut server = match contender {
            Contender::Vlane(arguments) => {
                Server::vlane(&self.options.vlane, dir, storage, &cpus, arguments)?
            }
            Contender::Qsd => {
                let program = self.qsd.as_deref().ok_or_else(|| missing("qemu-storage-daemon"))?;
                Server::qemu_storage_daemon(program, dir, storage, &cpus, jobs)?
            }
            Contender::Loop | Contender::Fio => {
                let (Some(load), Storage::File { path, .. }) = (load, storage) else {
                    return Err(Error::new(
                        ErrorKind::Invalid,
                        "only a back end can be idle, or have no medium",
                    ));
                };
                return match contender {
                    Contender::Loop => baseline::plain_loop(path, load, &cpus, self.options.time),
                    _ => {
                        let program = self.fio.as_deref().ok_or_else(|| missing("fio"))?;
                        let times = (self.options.ramp, self.options.time);
                        baseline::fio(program, dir, path, load, &cpus, times, self.interrupt)
                    }
                };
            }
        };
        let session_options = SessionOptions {
            queues: jobs,
            depth,
            data: load.map_or(4096, |load| load.block),
            // As a guest that mounts the device would have it: both flush when told to.
            write_cache: (row.medium != Medium::Null).then_some(true),
            ..SessionOptions::default()
        };
        let session = server.connect(&session_options)?;
        let Some(load) = load else {
            let interrupt = self.interrupt;
            let (used, _) =
                vlane_driver::idle(session, IDLE.0, IDLE.1, &mut |_| match interrupt.is_raised() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                })?;
            #[expect(clippy::cast_precision_loss, reason = "figures for people")]
            let switches = used.switches as f64;
            return Ok(Figures { cpu_ms: used.cpu_seconds * 1e3, switches, ..Figures::default() });
        };
        let pattern = load.pattern.parse::<Pattern>().map_err(|e| Error::new(ErrorKind::Invalid, e))?;
        let workload = Workload {
            pattern,
            block: load.block,
            limit: Limit::Time(self.options.time),
            ramp: self.options.ramp,
            wait: load.wait,
            cpus: if load.pinned { vec![self.driver_cpu] } else { Vec::new() },
            ..Workload::default()
        };
        let (progress, interrupt) = (&mut self.progress, self.interrupt);
        let report = vlane_driver::run(session, &workload, &mut |p| {
            progress.detail(&figure::with_unit(p.iops, "IOPS"));
            if interrupt.is_raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if report.errors.total() > 0 {
            let context = format!("{} of {} requests failed", report.errors.total(), report.ios);
            return Err(Error::new(ErrorKind::Process, context));
        }
        let unseen = || Error::new(ErrorKind::Process, "the back end's process cannot be looked at");
        let used = report.backend.ok_or_else(unseen)?;
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let switches = used.switches as f64;
        Ok(Figures {
            iops: report.iops,
            mb_per_second: report.mb_per_second,
            p50_us: report.latency.p50,
            p99_us: report.latency.p99,
            cpu_us_per_io: used.cpu_us_per_io,
            switches_per_io: used.switches_per_io,
            driver_cpu_us_per_io: report.driver_cpu_us_per_io,
            cpu_ms: used.cpu_seconds * 1e3,
            switches,
        })
    }
}

/// The CPUs of server and driver.
fn cpus(options: &Options) -> Result<(usize, usize)> {
    let set = sched_getaffinity(None).context(ErrorKind::Io, || "cannot ask for the usable CPUs")?;
    let usable: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    let server = options.server_cpu.or_else(|| usable.first().copied()).unwrap_or(0);
    let other = || usable.iter().copied().find(|cpu| *cpu != server);
    let driver = options.driver_cpu.or_else(other).unwrap_or(server);
    let invalid = |context: String| Err(Error::new(ErrorKind::Usage, context));
    for cpu in [server, driver] {
        if !usable.contains(&cpu) {
            return invalid(format!("CPU {cpu} cannot be used by this process; it has {usable:?}"));
        }
    }
    if server == driver {
        return invalid(format!("back end and driver need a CPU each; this process has only CPU {server}"));
    }
    Ok((server, driver))
}
