//! vlane and qemu-storage-daemon side by side.
//!
//! The same driver and the same device, one after the other and in turns (A B, B A, ...), so that
//! other load of the machine hits both alike. Server and driver have a CPU each, except where a row
//! is about sharing them. Comparisons are pair by pair, and [`vlane_report::stats`] decides if the
//! difference is more than noise. The project's own targets are beside that ([`targets`]).

mod baseline;
mod blkio;
pub mod fixed;
mod ground;
mod judge;
mod limit;
mod plan;
mod report;

use std::num::NonZeroU16;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use vlane_driver::{Limit, Pattern, SessionOptions, Workload};
use vlane_error::counted;
use vlane_guest::{Host, Install};

use self::blkio::BlkioClient;
use self::ground::Ground;
pub use self::judge::{Verdict, lines, markdown, targets};
use self::plan::{Client, Contender, Load, Medium};
pub use self::plan::{Row, rows};
pub use self::report::report;
use vlane_client::progress::Progress;
use vlane_report::figure;
use vlane_testbed::Rounds;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::output::Output;
use vlane_testbed::server::{Server, Storage};

/// Quiet before an idle session is watched, and the time that it is.
const IDLE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// Starting a back end, connecting, draining: what a measurement takes beyond its own time, about.
const AROUND: Duration = Duration::from_millis(400);

/// Options of the measurement.
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
    /// Permission to install missing programs.
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
pub struct Measured<F = Figures> {
    /// Measurements of each contender in each round.
    pub rounds: Vec<Vec<F>>,
}

/// A row's results.
#[derive(Debug, Clone, Serialize)]
pub struct RowResult {
    /// The row's name.
    pub row: &'static str,
    /// Its subject.
    pub title: &'static str,
    /// The contenders.
    pub contenders: Vec<&'static str>,
    /// Every single measurement.
    pub measured: Measured,
    /// Verdicts of the row's targets.
    pub verdicts: Vec<Verdict>,
    /// Contenders with which the client was the limit, not the back end.
    pub client_limited: Vec<&'static str>,
}

/// Everything that came of it.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The rows.
    pub rows: Vec<RowResult>,
    /// The rows that are missing, in a sentence, if the measurement broke off.
    pub partial: Option<String>,
    /// Missing measurements, with reasons.
    pub missing: Vec<String>,
    /// The version of the fio that is the second client.
    pub fio: Option<String>,
}

/// Measures the rows; `done` gets each as soon as it is there.
///
/// # Errors
/// [`ErrorKind::Usage`] and [`ErrorKind::Missing`], before the first measurement;
/// [`ErrorKind::Interrupted`]; and obstacles to a measurement. A second client that cannot be had
/// is named in the outcome, unless its rows were requested.
pub fn run(
    options: &Options,
    interrupt: &Interrupt,
    mut done: impl FnMut(&RowResult),
) -> Result<Outcome> {
    let mut rows = chosen(options)?;
    let mut missing = Vec::new();
    let host = Host::new(options.install)?;
    let blkio = second_client(options, &host, &mut rows, &mut missing)?;
    let mut bench = Bench::new(options, &host, blkio, &rows, interrupt)?;
    let mut results = Vec::new();
    let mut partial = None;
    for row in &rows {
        let measured = match bench.row(row) {
            Ok((measured, missing)) => {
                partial = missing.map(|missing| in_row(&missing, results.len(), rows.len()));
                measured
            }
            Err(error) if results.is_empty() => return Err(error),
            Err(error) => {
                partial =
                    Some(vlane_testbed::rounds::missing("row", results.len(), rows.len(), &error));
                break;
            }
        };
        let verdicts: Vec<_> =
            row.claims.iter().map(|claim| judge::judge(row, claim, &measured)).collect();
        let contenders = row.contenders.iter().map(|(name, _)| *name).collect();
        let named = row.contenders.iter().zip(&measured.rounds);
        let client_limited =
            named.filter(|(_, rounds)| limit::is_client(row, rounds)).map(|((name, _), _)| *name);
        let client_limited = client_limited.collect();
        let result = RowResult {
            row: row.id,
            title: row.title,
            contenders,
            measured,
            verdicts,
            client_limited,
        };
        bench.progress.clear();
        done(&result);
        results.push(result);
        if partial.is_some() {
            break;
        }
    }
    Ok(Outcome {
        rows: results,
        partial,
        missing,
        fio: bench.blkio.as_ref().and_then(BlkioClient::version),
    })
}

/// The sentence on the rounds that a row lacks, which is the one after `whole` others.
fn in_row(missing: &str, whole: usize, wanted: usize) -> String {
    format!("{missing} (row {} of {wanted})", whole + 1)
}

/// The second client, if some rows need it; without it they are left out, unless they were named.
fn second_client(
    options: &Options,
    host: &Host,
    rows: &mut Vec<Row>,
    missing: &mut Vec<String>,
) -> Result<Option<BlkioClient>> {
    if rows.iter().all(|row| row.client != Client::Blkio) {
        return Ok(None);
    }
    match BlkioClient::find(host) {
        Ok(client) => Ok(Some(client)),
        Err(error) if options.rows.is_empty() => {
            missing.push(format!("fio with libblkio as a second client: {error}"));
            rows.retain(|row| row.client != Client::Blkio);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Name and version of the JSON of single measurements.
const SCHEMA: &str = "vlane-peers/1";

/// Writes every single measurement to a file, as JSON: an object with `schema` (`vlane-peers/1`)
/// and `rows`.
///
/// # Errors
/// As [`Output::write`].
pub fn write_json(output: &Output, results: &[impl Serialize]) -> Result<()> {
    let all = serde_json::json!({ "schema": SCHEMA, "rows": results });
    let text =
        serde_json::to_string_pretty(&all).context(ErrorKind::Format, || "the measurements")?;
    output.write((text + "\n").as_bytes())
}

/// A file for the measurements: it may replace one of an earlier run.
pub fn json_output(path: &Path, force: bool) -> Output {
    Output::new(path)
        .replacing(|content| vlane_report::is_json_of(content, "vlane-peers"))
        .force(force)
}

/// The rows that are wanted.
fn chosen(options: &Options) -> Result<Vec<Row>> {
    let invalid = |context: String| Err(Error::new(ErrorKind::Usage, context));
    if options.pairs == 0 {
        return invalid("--repeat 0: there must be at least one".into());
    }
    let all = rows();
    if let Some(unknown) = options.rows.iter().find(|id| all.iter().all(|row| row.id != **id)) {
        return invalid(format!("--rows: there is no row `{unknown}`; --list names them"));
    }
    let wanted = |row: &Row| options.rows.is_empty() || options.rows.iter().any(|id| id == row.id);
    Ok(all.into_iter().filter(wanted).collect())
}

/// Requirements of the measurements.
struct Bench<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    ground: Ground<'a>,
    fio: Option<PathBuf>,
    blkio: Option<BlkioClient>,
    progress: Progress,
}

impl<'a> Bench<'a> {
    /// Makes ready what the rows need; everything that can be missing is looked for before the
    /// images are written.
    fn new(
        options: &'a Options,
        host: &Host,
        blkio: Option<BlkioClient>,
        rows: &[Row],
        interrupt: &'a Interrupt,
    ) -> Result<Self> {
        let needs = |wanted: fn(&Contender) -> bool| {
            rows.iter().any(|row| row.contenders.iter().any(|(_, c)| wanted(c)))
        };
        let fio =
            needs(|c| matches!(c, Contender::Fio)).then(|| host.program("fio")).transpose()?;
        let media: Vec<_> = rows.iter().map(|row| row.medium).collect();
        let qsd = needs(|c| matches!(c, Contender::Qsd(_)));
        let ground = Ground::new(options, host, qsd, &media, interrupt)?;
        let rounds = |row: &Row| if row.load.is_none() { 1 } else { options.pairs as usize };
        let steps = rows.iter().map(|row| row.contenders.len() * rounds(row)).sum();
        let progress = Progress::new(steps).expecting(options.time + options.ramp + AROUND);
        Ok(Self { options, interrupt, ground, fio, blkio, progress })
    }

    /// All rounds of a row, forwards and backwards in turns; and the sentence on those that are
    /// missing, if it broke off.
    fn row(&mut self, row: &Row) -> Result<(Measured, Option<String>)> {
        let rounds = if row.load.is_none() { 1 } else { self.options.pairs as usize };
        let mut all = vec![Vec::new(); row.contenders.len()];
        let measured = Rounds::measure(rounds, |round| {
            let mut order: Vec<_> = (0..row.contenders.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let (name, contender) = row.contenders[index];
                let label = format!("{}: {name}, {} of {rounds}", row.id, round + 1);
                self.progress.step(&label);
                let figures = self.measure(row, contender);
                // The user's interrupt is the reason, before any other failure.
                self.interrupt.check()?;
                all[index].push(figures.map_err(|e| Error::caused_by(e.kind(), label, e))?);
            }
            Ok(())
        })?;
        all.iter_mut().for_each(|of| of.truncate(measured.whole()));
        Ok((Measured { rounds: all }, measured.missing()))
    }

    /// An idle session.
    fn idle(&self, session: vlane_driver::Session) -> Result<Figures> {
        let look = &mut |_: vlane_driver::Progress| match self.interrupt.is_raised() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let (used, _) = vlane_driver::idle(session, IDLE.0, IDLE.1, look)?;
        let switches = used.switches as f64;
        Ok(Figures { cpu_ms: used.cpu_seconds * 1e3, switches, ..Figures::default() })
    }

    /// One measurement.
    fn measure(&mut self, row: &Row, contender: Contender) -> Result<Figures> {
        let load = row.load.as_ref();
        let cpus: Vec<usize> = load
            .is_none_or(|load| load.pinned)
            .then_some(self.ground.server_cpu)
            .into_iter()
            .collect();
        let server = match contender {
            Contender::Vlane(arguments) => self.ground.vlane(row.medium, &cpus, arguments)?,
            Contender::Qsd(aio) => {
                self.ground.qsd(row.medium, &cpus, load.map_or(1, |load| load.jobs), aio)?
            }
            Contender::Loop | Contender::Fio => return self.on_host(row, contender, &cpus),
        };
        match (row.client, load) {
            (Client::Blkio, Some(load)) => self.by_fio(&server, load),
            _ => self.drive(server, row),
        }
    }

    /// Figures of the host itself.
    fn on_host(&self, row: &Row, contender: Contender, cpus: &[usize]) -> Result<Figures> {
        let (Some(load), Storage::File { path, .. }) =
            (&row.load, self.ground.storage(row.medium)?)
        else {
            return Err(Error::new(
                ErrorKind::Invalid,
                "only a back end can be idle, or have no medium",
            ));
        };
        if contender == Contender::Loop {
            return baseline::plain_loop(path, load, cpus, self.options.time);
        }
        let missing = || Error::new(ErrorKind::Missing, "fio is not there");
        let program = self.fio.as_deref().ok_or_else(missing)?;
        let times = (self.options.ramp, self.options.time);
        baseline::fio(program, self.ground.dir.path(), path, load, cpus, times, self.interrupt)
    }

    /// A back end driven by fio with libblkio: random reads of 4K, made visible one by one.
    fn by_fio(&self, server: &Server, load: &Load) -> Result<Figures> {
        let missing = || Error::new(ErrorKind::Missing, "fio with libblkio is not there");
        let client = self.blkio.as_ref().ok_or_else(missing)?;
        let depth = NonZeroU16::new(load.depth).unwrap_or(NonZeroU16::MIN);
        let asked = vlane_bench::Load { depth, batch: 1, ..vlane_bench::Load::named("load") };
        let cpu = self.ground.driver_cpu;
        let seen = client.measure(server, &asked, &[], self.options, cpu, self.interrupt)?;
        Ok(Figures {
            iops: seen.run.iops,
            mb_per_second: seen.run.mb_per_second,
            p50_us: seen.run.p50_us,
            p99_us: seen.run.p99_us,
            cpu_us_per_io: seen.cpu_us,
            switches_per_io: seen.switches,
            driver_cpu_us_per_io: seen.run.client_cpu_us_per_io,
            ..Figures::default()
        })
    }

    /// A back end driven by our own driver.
    fn drive(&mut self, mut server: Server, row: &Row) -> Result<Figures> {
        let load = row.load.as_ref();
        let (jobs, depth) = load.map_or((1, 32), |load| (load.jobs, load.depth));
        let session_options = SessionOptions {
            queues: jobs,
            depth,
            data: load.map_or(4096, |load| load.block),
            // As a guest that mounts the device would have it: both flush on request.
            write_cache: (row.medium != Medium::Null).then_some(true),
            ..SessionOptions::default()
        };
        let session = server.connect(&session_options)?;
        let Some(load) = load else { return self.idle(session) };
        let pattern =
            load.pattern.parse::<Pattern>().map_err(|e| Error::new(ErrorKind::Invalid, e))?;
        let workload = Workload {
            pattern,
            block: load.block,
            limit: Limit::Time(self.options.time),
            ramp: self.options.ramp,
            wait: load.wait,
            cpus: if load.pinned { vec![self.ground.driver_cpu] } else { Vec::new() },
            ..Workload::default()
        };
        let (progress, interrupt) = (&mut self.progress, self.interrupt);
        let report = vlane_driver::run(session, &workload, &mut |p| {
            progress.detail(&figure::with_unit(p.iops, "IOPS"));
            if interrupt.is_raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if report.errors.total() > 0 {
            let context =
                format!("{} of {} failed", report.errors.total(), counted(report.ios, "request"));
            return Err(Error::new(ErrorKind::Process, context));
        }
        let unseen =
            || Error::new(ErrorKind::Process, "the back end's process cannot be looked at");
        let used = report.backend.ok_or_else(unseen)?;
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn only_earlier_measurements_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers.json");
        let measured = Measured { rounds: Vec::new() };
        let (contenders, verdicts) = (Vec::new(), Vec::new());
        let client_limited = Vec::new();
        let row = RowResult {
            row: "null-poll",
            title: "",
            contenders,
            measured,
            verdicts,
            client_limited,
        };
        for _ in 0..2 {
            write_json(&json_output(&path, false), std::slice::from_ref(&row)).unwrap();
        }
        let written: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(
            (&written["schema"], &written["rows"][0]["row"]),
            (&SCHEMA.into(), &"null-poll".into())
        );
        std::fs::write(&path, "[1, 2]").unwrap();
        assert!(write_json(&json_output(&path, false), std::slice::from_ref(&row)).is_err());
    }
}
