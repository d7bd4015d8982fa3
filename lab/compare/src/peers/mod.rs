//! vlane and qemu-storage-daemon side by side.
//!
//! The same client and the same device, one after the other and in turns (A B, B A, ...), so that
//! other load of the machine hits both alike. Server and client have a CPU each, except where a row
//! is about sharing them. Comparisons are pair by pair, and [`vlane_report::stats`] decides if the
//! difference is more than noise.
//!
//! One set of rows asks for all that a back end can do. The client is vlane's own driver, or fio
//! with libblkio. Another set ([`Options::fixed_load`]) is about the cost at a given rate. The
//! client is fio with libblkio, or fio in a guest, which has all back ends' disks at once. A rate
//! that is not kept is reported with the achieved one, and not compared.

mod baseline;
mod bench;
mod guest;
mod judge;
mod plan;
mod report;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};
use vlane::values;
use vlane_cost::Used;
use vlane_report::{Arms, Report};
use vlane_testbed::{
    Also, Call, Context, Error, ErrorKind, Installs, Output, Result, Rounds, settle,
};

use self::bench::Bench;
pub use self::judge::Verdict;
pub use self::plan::{Row, rows};
use self::report::report;
pub use self::report::{lines, markdown};

/// Options of the measurement
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Measure CPU time and latency per request at given rates instead of throughput
    #[arg(long)]
    pub fixed_load: bool,
    /// With --fixed-load, also measure vlane with these options of `vlane serve`
    ///
    /// Example: "--poll-max 0". May be given several times.
    #[arg(long, value_name = "OPTIONS", requires = "fixed_load", allow_hyphen_values = true)]
    also: Vec<Also>,
    /// Measurements of each contender per row
    #[arg(long = "repeat", alias = "pairs", value_name = "N", default_value_t = 5,
        value_parser = values::whole::<usize>(1..=10_000))]
    pairs: usize,
    /// Duration of each measurement [default: 3s; with --fixed-load: 1.5s]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    time: Option<Duration>,
    /// Warm-up time of each measurement [default: 1s; with --fixed-load: 0.4s]
    #[arg(long, value_name = "TIME", value_parser = values::time_or_none)]
    ramp: Option<Duration>,
    /// Rows to measure, as --list names them [default: all]
    ///
    /// With --fixed-load, groups of rows (null, uml) can be named, too.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
    /// Directory on a RAM disk (tmpfs) [default: /dev/shm or another]
    #[arg(long, value_name = "DIR")]
    ram_dir: Option<PathBuf>,
    /// Directory on the measured disk [default: the current one or /var/tmp]
    #[arg(long, value_name = "DIR")]
    disk_dir: Option<PathBuf>,
    #[command(flatten)]
    installs: Installs,
}

/// Parses the name of a row, or of a group of rows.
fn parse_row(text: &str) -> std::result::Result<String, String> {
    let (usual, rated) = (rows(false, &[]), rows(true, &[]));
    let mut names: Vec<&str> = usual.iter().map(|row| row.id.as_str()).collect();
    names.extend(rated.chunk_by(|a, b| a.group == b.group).map(|rows| rows[0].group.0));
    names.extend(rated.iter().map(|row| row.id.as_str()).filter(|id| *id == text));
    values::one_of(text, "row", names)
}

impl Options {
    /// Durations of a measurement, and before it.
    fn times(&self) -> (Duration, Duration) {
        let (time, ramp) = if self.fixed_load { (1500, 400) } else { (3000, 1000) };
        let ms = Duration::from_millis;
        (self.time.unwrap_or(ms(time)), self.ramp.unwrap_or(ms(ramp)))
    }
}

/// One measurement of one contender; a figure that does not apply is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Requests per second.
    pub iops: f64,
    /// MB per second.
    pub mb_per_second: f64,
    /// Median latency in us.
    pub p50_us: f64,
    /// 99th percentile in us.
    pub p99_us: f64,
    /// CPU time per request in us: the back end's; with a QEMU guest, QEMU's as well.
    pub cpu_us: f64,
    /// The back end's alone.
    pub backend_cpu_us: f64,
    /// The guest's: the processes that it is; absent without one.
    pub guest_cpu_us: Option<f64>,
    /// The client's CPU time per request in us.
    pub client_cpu_us: f64,
    /// The back end's context switches per request.
    pub switches_per_io: f64,
    /// The back end's instructions per request, where they can be counted.
    pub instructions: Option<f64>,
    /// The back end's CPU time in ms, all in all.
    pub cpu_ms: f64,
    /// The back end's context switches, all in all.
    pub switches: f64,
}

/// A role's use per request, at a rate: CPU time in us, context switches.
fn per_request(used: &Used, role: usize, iops: f64) -> Result<(f64, f64)> {
    let requests = (iops * used.wall.as_secs_f64()).max(1e-9);
    let role = used.roles.get(role).filter(|role| !role.lost).ok_or_else(|| {
        Error::new(ErrorKind::Process, "a back end's or the guest's process cannot be looked at")
    })?;
    Ok((role.cpu.as_secs_f64() * 1e6 / requests, role.switches as f64 / requests))
}

/// A row's results.
#[derive(Debug, Clone)]
pub struct RowResult {
    row: Row,
    arms: Arms<Sample>,
    /// Verdicts of the row's targets.
    verdicts: Vec<Verdict>,
    /// Contenders with which the client was the limit, not the back end.
    client_limited: Vec<String>,
}

impl RowResult {
    /// Judges the measurements of a row.
    fn new(row: &Row, arms: Arms<Sample>) -> Self {
        let verdicts = row.claims.iter().map(|claim| judge::judge(row, claim, &arms)).collect();
        let limited = arms.0.iter().filter(|arm| judge::is_client_limit(row, &arm.rounds));
        let client_limited = limited.map(|arm| arm.arm.clone()).collect();
        Self { row: row.clone(), arms, verdicts, client_limited }
    }

    /// A sample's figures, by their keys.
    fn figures(&self, sample: &Sample) -> Map<String, Value> {
        let figures = self.row.figures().iter();
        figures.map(|(key, figure)| ((*key).to_owned(), (figure.of)(sample).into())).collect()
    }

    fn json(&self) -> Value {
        let rounds = |rounds: &[Sample]| rounds.iter().map(|one| self.figures(one)).collect();
        let rounds: Vec<Vec<_>> = self.arms.0.iter().map(|arm| rounds(&arm.rounds)).collect();
        json!({
            "row": self.row.id,
            "title": self.row.title,
            "contenders": self.arms.0.iter().map(|arm| &arm.arm).collect::<Vec<_>>(),
            "measured": { "rounds": rounds },
            "verdicts": self.verdicts,
            "client_limited": self.client_limited,
        })
    }
}

/// The results of all rows.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The rows.
    pub rows: Vec<RowResult>,
    /// The rows that are missing, in a sentence, if the measurement broke off.
    pub partial: Option<String>,
    /// Missing measurements or counts, with reasons.
    pub missing: Vec<String>,
    /// Programs that took part, with their versions.
    pub versions: Vec<(String, String)>,
    /// True if a guest's CPU was emulated.
    pub emulated: bool,
}

/// Measures the rows, and makes a report. `done` gets each row as soon as it is there.
///
/// # Errors
/// [`ErrorKind::Usage`] and [`ErrorKind::Missing`], before the first measurement;
/// [`ErrorKind::Interrupted`]; and obstacles to a measurement of the first row. A client that
/// cannot be had is named in the outcome, unless its rows were requested.
pub fn run(
    options: &Options,
    call: &Call<'_>,
    mut done: impl FnMut(&RowResult),
) -> Result<(Outcome, Report)> {
    let (mut bench, rows) = Bench::new(options, call)?;
    settle(options.pairs, call.interrupt)?;
    let mut results = Vec::new();
    let measured = Rounds::measure_each("row", rows.len(), |place| {
        let result = RowResult::new(&rows[place], bench.row(&rows[place])?);
        bench.progress.clear();
        done(&result);
        results.push(result);
        Ok(())
    })?;
    bench.progress.clear();
    let outcome = Outcome { rows: results, partial: measured.missing(), ..bench.outcome };
    let report = report(&outcome, options, &call.begun);
    Ok((outcome, report))
}

/// Name and version of the JSON of single measurements.
const SCHEMA: &str = "vlane-peers/1";

/// Writes every single measurement to a file, as JSON: an object with `schema` (`vlane-peers/1`)
/// and `rows`.
///
/// # Errors
/// As [`Output::write`].
pub fn write_json(output: &Output, results: &[RowResult]) -> Result<()> {
    let rows: Vec<Value> = results.iter().map(RowResult::json).collect();
    let text = serde_json::to_string_pretty(&json!({ "schema": SCHEMA, "rows": rows }))
        .context(ErrorKind::Format, || "the measurements")?;
    output.write((text + "\n").as_bytes())
}

/// A file for the measurements: it may replace one of an earlier run.
pub fn json_output(path: &Path, force: bool) -> Output {
    Output::new(path)
        .replacing(|content| vlane_report::is_json_of(content, "vlane-peers"))
        .force(force)
}

#[cfg(test)]
mod tests;
