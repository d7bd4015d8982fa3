//! `vlane peers`: vlane and qemu-storage-daemon side by side.
//!
//! The same driver, the same device, one after the other and in turns (A B, B A, ...), so that what else the machine does hits both alike.
//! Server and driver have a CPU each, except where a row is about sharing them. Compared is pair by pair; the median
//! decides, the extremes are shown.

mod baseline;
mod files;
mod plan;
mod server;
mod table;

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use vlane_driver::units::parse_duration;
use vlane_driver::{Limit, Pattern, Progress, SessionOptions, Workload};

use self::files::Image;
use self::plan::{Contender, Medium, Row};
use self::server::Server;
use self::table::Verdict;

/// Measures vlane and qemu-storage-daemon side by side, on this machine.
///
/// Needs two CPUs, qemu-storage-daemon, and fio for the row about the disk. Images of 1 GiB on a RAM disk and 2 GiB on a disk are written
/// for it and removed afterwards.
#[derive(Debug, Args)]
pub struct PeersArgs {
    /// Measurements of each contender per row
    #[arg(long, value_name = "N", default_value_t = 5)]
    pairs: u32,
    /// Time of each measurement
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    time: Duration,
    /// Time before each measurement that does not count
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    ramp: Duration,
    /// Rows to measure, as --list names them [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    rows: Vec<String>,
    /// Name the rows and end
    #[arg(long)]
    list: bool,
    /// Install what is missing through apt-get (as root)
    #[arg(long)]
    install: bool,
    /// Print a Markdown table at the end
    #[arg(long)]
    markdown: bool,
    /// Write every single measurement to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The CPU for the back ends [default: the first this process may use]
    #[arg(long, value_name = "CPU")]
    server_cpu: Option<usize>,
    /// The CPU for the driver [default: the second]
    #[arg(long, value_name = "CPU")]
    driver_cpu: Option<usize>,
    /// A directory on a RAM disk (tmpfs) [default: /dev/shm or another]
    #[arg(long, value_name = "DIR")]
    ram_dir: Option<PathBuf>,
    /// A directory on the disk to be measured [default: the current one or /var/tmp]
    #[arg(long, value_name = "DIR")]
    disk_dir: Option<PathBuf>,
}

/// One measurement of one contender; what does not apply is 0.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Figures {
    /// Requests per second.
    iops: f64,
    /// MB per second.
    mb_per_second: f64,
    /// Median latency in us.
    p50_us: f64,
    /// 99th percentile in us.
    p99_us: f64,
    /// The back end's CPU time per request in us.
    cpu_us_per_io: f64,
    /// The back end's context switches per request.
    switches_per_io: f64,
    /// The driver's CPU time per request in us.
    driver_cpu_us_per_io: f64,
    /// The back end's CPU time in ms, all in all.
    cpu_ms: f64,
    /// The back end's context switches, all in all.
    switches: f64,
}

/// All measurements of a row: by contender, then by round.
#[derive(Debug, Clone, Serialize)]
struct Measured {
    rounds: Vec<Vec<Figures>>,
}

/// A row's results, for the JSON file.
#[derive(Debug, Serialize)]
struct RowResult {
    row: &'static str,
    title: &'static str,
    contenders: Vec<&'static str>,
    measured: Measured,
    verdicts: Vec<Verdict>,
}

/// What the measurements need.
struct Bench<'a> {
    args: &'a PeersArgs,
    dir: &'a Path,
    qsd: Option<PathBuf>,
    fio: Option<PathBuf>,
    server_cpu: usize,
    driver_cpu: usize,
    ram: Option<Image>,
    disk: Option<Image>,
    interrupted: Arc<AtomicBool>,
}

/// Runs the command.
///
/// # Errors
/// Whatever keeps the measurements from being made. A target that is not met is no error.
pub fn run(args: &PeersArgs) -> anyhow::Result<()> {
    let all = plan::rows();
    if args.list {
        for row in &all {
            println!("{:<16} {}", row.id, row.title);
        }
        return Ok(());
    }
    if args.pairs == 0 {
        bail!("--pairs 0: there must be at least one");
    }
    if let Some(unknown) = args.rows.iter().find(|id| all.iter().all(|row| row.id != **id)) {
        bail!("--rows: there is no row `{unknown}`; --list names them");
    }
    let rows: Vec<Row> = all
        .into_iter()
        .filter(|row| args.rows.is_empty() || args.rows.iter().any(|id| id == row.id))
        .collect();
    let dir = tempfile::Builder::new().prefix("vlane-peers-").tempdir().context("cannot make a directory")?;
    let mut bench = Bench::new(args, dir.path(), &rows)?;

    let mut results = Vec::new();
    for row in &rows {
        let measured = bench.row(row)?;
        let verdicts: Vec<_> = row.claims.iter().map(|claim| table::judge(row, claim, &measured)).collect();
        println!("{}", row.title);
        print!("{}", table::lines(row, &verdicts));
        let contenders = row.contenders.iter().map(|(name, _)| *name).collect();
        results.push(RowResult { row: row.id, title: row.title, contenders, measured, verdicts });
        if let Some(path) = &args.json {
            // After every row: an interrupted run keeps what it has.
            let text = serde_json::to_string_pretty(&results)? + "\n";
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    let verdicts = || results.iter().flat_map(|result| &result.verdicts);
    println!("\n{} of {} targets met", verdicts().filter(|v| v.met).count(), verdicts().count());
    if args.markdown {
        let table: Vec<_> = rows.into_iter().zip(results.into_iter().map(|r| r.verdicts)).collect();
        println!("\n{}", table::markdown(&table));
    }
    Ok(())
}

/// A program in PATH.
fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// A program, installed if it is missing and may be.
fn require(program: &str, packages: &[&str], install: bool) -> anyhow::Result<PathBuf> {
    if let Some(path) = find(program) {
        return Ok(path);
    }
    if !install {
        bail!(
            "{program} is not installed; as root, --install gets it (Debian: apt-get install {})",
            packages.join(" or ")
        );
    }
    if !rustix::process::geteuid().is_root() {
        bail!("{program} is not installed, and --install needs root");
    }
    let apt = |arguments: &[&str]| {
        let status = Command::new("apt-get")
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(std::process::Stdio::null())
            .status();
        status.context("cannot start apt-get").map(|status| status.success())
    };
    eprintln!("installing {program}");
    apt(&["update", "-q"])?;
    for package in packages {
        apt(&["install", "-y", "-q", "--no-install-recommends", package])?;
        if let Some(path) = find(program) {
            return Ok(path);
        }
    }
    bail!("apt-get did not install {program} (tried {})", packages.join(", "))
}

impl<'a> Bench<'a> {
    /// Makes ready what the rows need.
    fn new(args: &'a PeersArgs, dir: &'a Path, rows: &[Row]) -> anyhow::Result<Self> {
        let needs = |contender| rows.iter().any(|row| row.contenders.iter().any(|(_, c)| *c == contender));
        let on = |medium| rows.iter().any(|row| row.medium == medium);
        let set = rustix::thread::sched_getaffinity(None).context("cannot ask for the usable CPUs")?;
        let usable: Vec<_> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
        let server_cpu = args.server_cpu.unwrap_or(usable[0]);
        let driver_cpu = args
            .driver_cpu
            .or_else(|| usable.iter().copied().find(|cpu| *cpu != server_cpu))
            .unwrap_or(server_cpu);
        for cpu in [server_cpu, driver_cpu] {
            if !usable.contains(&cpu) {
                bail!("CPU {cpu} cannot be used by this process; it has {usable:?}");
            }
        }
        if server_cpu == driver_cpu {
            bail!("back end and driver need a CPU each; this process has only CPU {server_cpu}");
        }
        if find("taskset").is_none() {
            bail!("taskset is not installed (Debian: util-linux)");
        }
        let qsd = match needs(Contender::Qsd) {
            true => {
                Some(require("qemu-storage-daemon", &["qemu-system-common", "qemu-utils"], args.install)?)
            }
            false => None,
        };
        let fio = if needs(Contender::Fio) { Some(require("fio", &["fio"], args.install)?) } else { None };
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("cannot handle signals")?;
        }
        if on(Medium::Ram) || on(Medium::Disk) {
            eprintln!("writing the images");
        }
        Ok(Self {
            args,
            dir,
            qsd,
            fio,
            server_cpu,
            driver_cpu,
            ram: on(Medium::Ram).then(|| files::on_ram(args.ram_dir.as_deref())).transpose()?,
            disk: on(Medium::Disk).then(|| files::on_disk(args.disk_dir.as_deref())).transpose()?,
            interrupted,
        })
    }

    /// All rounds of a row, forwards and backwards in turns.
    fn row(&mut self, row: &Row) -> anyhow::Result<Measured> {
        let rounds = if row.load.is_none() { 1 } else { self.args.pairs };
        let mut all = vec![Vec::new(); row.contenders.len()];
        for round in 0..rounds {
            let mut order: Vec<_> = (0..row.contenders.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let (name, contender) = row.contenders[index];
                let label = format!("{}: {name}, {} of {rounds}", row.id, round + 1);
                let figures = self.measure(row, contender, &label);
                if self.interrupted.load(Ordering::Relaxed) {
                    clear_line();
                    // The back end was told as well (Ctrl-C goes to all), so a failure says nothing.
                    bail!("interrupted");
                }
                all[index].push(figures.context(label)?);
            }
        }
        clear_line();
        Ok(Measured { rounds: all })
    }

    fn image(&self, medium: Medium) -> &Path {
        let image = match medium {
            Medium::Null => None,
            Medium::Ram => self.ram.as_ref(),
            Medium::Disk => self.disk.as_ref(),
        };
        image.map_or(Path::new(""), Image::path)
    }

    /// One measurement.
    fn measure(&self, row: &Row, contender: Contender, label: &str) -> anyhow::Result<Figures> {
        let image = self.image(row.medium);
        let load = row.load.as_ref();
        let server_cpu = load.is_none_or(|load| load.pinned).then_some(self.server_cpu);
        let (jobs, depth) = load.map_or((1, 32), |load| (load.jobs, load.depth));
        show(label, None);
        let mut server = match (contender, load) {
            (Contender::Vlane(arguments), _) => {
                Server::vlane(self.dir, row.medium, image, server_cpu, arguments)?
            }
            (Contender::Qsd, _) => {
                let program = self.qsd.as_deref().context("qemu-storage-daemon is not there")?;
                Server::qsd(program, self.dir, row.medium, image, server_cpu, jobs)?
            }
            (Contender::Loop, Some(load)) => {
                return baseline::plain_loop(image, load, server_cpu, self.args.time);
            }
            (Contender::Fio, Some(load)) => {
                let program = self.fio.as_deref().context("fio is not there")?;
                return baseline::fio(program, image, load, server_cpu, self.args.ramp, self.args.time);
            }
            (Contender::Loop | Contender::Fio, None) => bail!("only a back end can be idle"),
        };
        let options = SessionOptions {
            queues: jobs,
            depth,
            data: load.map_or(4096, |load| load.block),
            // As a guest that mounts the device would have it: both flush when told to.
            write_cache: (row.medium != Medium::Null).then_some(true),
            ..SessionOptions::default()
        };
        let session = server.connect(&options)?;
        let Some(load) = load else {
            let used = vlane_driver::idle(session, Duration::from_secs(2), Duration::from_secs(10))?;
            #[expect(clippy::cast_precision_loss, reason = "figures for people")]
            let switches = used.switches as f64;
            return Ok(Figures { cpu_ms: used.cpu_seconds * 1e3, switches, ..Figures::default() });
        };
        let workload = Workload {
            pattern: load.pattern.parse::<Pattern>().map_err(anyhow::Error::msg)?,
            block: load.block,
            limit: Limit::Time(self.args.time),
            ramp: self.args.ramp,
            wait: load.wait,
            cpus: if load.pinned { vec![self.driver_cpu] } else { Vec::new() },
            ..Workload::default()
        };
        let report = vlane_driver::run(session, &workload, &mut |progress| {
            show(label, Some(progress));
            match self.interrupted.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        if report.errors.total() > 0 {
            bail!("{} of {} requests failed", report.errors.total(), report.ios);
        }
        let used = report.backend.context("the back end's process cannot be looked at")?;
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

/// Says on a terminal what is being measured.
fn show(label: &str, progress: Option<Progress>) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let rate = progress.map_or(String::new(), |p| format!("  {:.0} IOPS", p.iops));
        // Progress that cannot be shown is no reason to stop.
        let _ = write!(stderr, "\r\x1b[K{label}{rate}");
    }
}

fn clear_line() {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K");
    }
}
