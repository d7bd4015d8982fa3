//! How exactly a volume's limits are kept: a client asks for all that it can get, and each second
//! is counted where the lanes count.

use std::num::NonZeroU16;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use vlane::values;
use vlane_driver::{Limit, SessionOptions, Workload};
use vlane_error::counted;
use vlane_guest::BlkioFio;
use vlane_units::show_size;

use vlane_bench::{Load, blkio};
use vlane_report::{Cell, Note, Report, Section, Spread, table, usable_cpus};
use vlane_testbed::{
    Call, Context, Control, Counters, Error, ErrorKind, Fail, Installs, Interrupt, Progress,
    Result, Rounds, Server, Storage,
};

/// The time that the back end has for its burst, which does not count.
const RAMP: Duration = Duration::from_secs(1);
/// How much longer than the seconds that count a client runs.
const SPARE: Duration = Duration::from_millis(700);

const DRIVER: &str = "vlane's driver";
const FIO: &str = "fio with libblkio";

const IOPS: &str = "--limit-iops";
const BANDWIDTH: &str = "--limit-bandwidth";

/// The options
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Duration of each row, in whole seconds
    #[arg(long = "time", alias = "seconds", value_name = "TIME", default_value = "10s",
        value_parser = values::time_in::<u32>("s", 1..=3600))]
    seconds: u32,
    #[command(flatten)]
    installs: Installs,
}

/// The client, the lanes, the option of `vlane serve` that limits, and the limit.
type Row = (&'static str, u16, &'static str, u64);

const ROWS: [Row; 11] = [
    (DRIVER, 1, IOPS, 1_000),
    (DRIVER, 1, IOPS, 30_000),
    (DRIVER, 1, IOPS, 1_000_000),
    (DRIVER, 1, BANDWIDTH, 10 << 20),
    (DRIVER, 1, BANDWIDTH, 2048 << 20),
    (DRIVER, 2, IOPS, 1_000),
    (DRIVER, 2, IOPS, 300_000),
    (DRIVER, 2, BANDWIDTH, 200 << 20),
    (FIO, 1, IOPS, 1_000),
    (FIO, 1, IOPS, 50_000),
    (FIO, 1, BANDWIDTH, 200 << 20),
];

fn name((_, _, option, limit): Row) -> String {
    if option == IOPS { format!("{limit} requests/s") } else { format!("{}/s", show_size(limit)) }
}

/// Bytes of a request.
fn block(option: &str) -> u32 {
    if option == IOPS { 4096 } else { 65536 }
}

/// Common to all rows.
struct Bed<'a> {
    vlane: &'a Path,
    time: Duration,
    fio: Option<&'a BlkioFio>,
    interrupt: &'a Interrupt,
}

impl Bed<'_> {
    /// Runs the client against the back end; requests per second by its own count.
    fn drive(&self, row: Row, server: &mut Server, cpus: Vec<usize>) -> Result<f64> {
        let (client, queues, option, _) = row;
        let (block, time) = (block(option), self.time + SPARE);
        if let (FIO, Some(fio)) = (client, self.fio) {
            let mut load = Load::named("load");
            load.depth = NonZeroU16::new(32).unwrap_or(NonZeroU16::MIN);
            load.bs.0 = block.into();
            let words = blkio::options(&load, server.socket(), time, RAMP);
            let timing = (time, RAMP);
            return Ok(blkio::measure(fio, words, timing, &cpus, &mut || (), self.interrupt)?.iops);
        }
        let session =
            SessionOptions { queues, depth: 32, data: block, ..SessionOptions::default() };
        let limit = Limit::Time(time);
        let workload = Workload { block, limit, ramp: RAMP, cpus, ..Workload::default() };
        let going_on = &mut |_| self.interrupt.going_on();
        Ok(vlane_driver::run(server.connect(&session)?, &workload, going_on)?.iops)
    }

    /// Measures a row: its cells in the table.
    fn measure(&self, row: Row) -> Result<Vec<Cell>> {
        let (client, lanes, option, limit) = row;
        let directory = tempfile::tempdir().context(ErrorKind::Io, || "no temporary directory")?;
        let path = directory.path().join("control");
        let (queues, most, at) = (lanes.to_string(), limit.to_string(), path.display().to_string());
        let words = ["--queues", &queues, "--sched=off", "--control", &at, option, &most];
        // One lane and its client have a CPU each.
        let (of_server, of_client) = match (lanes, &usable_cpus()?[..]) {
            (1, [first, second, ..]) => (vec![*first], vec![*second]),
            _ => (Vec::new(), Vec::new()),
        };
        let (dir, storage) = (directory.path(), Storage::null(1 << 30));
        let mut server = Server::vlane(self.vlane, dir, storage, &of_server, &words)?;
        let (begin, seconds) = (Instant::now() + RAMP, self.time.as_secs());
        let looking = std::thread::spawn(move || {
            let look = |second| {
                let at = begin + Duration::from_secs(second);
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                Control::new(&path).counters()
            };
            (0..=seconds).map(look).collect::<Result<Vec<_>>>()
        });
        let (counters, unit) = match option {
            IOPS => (["reads", "writes"], 1),
            _ => (["read_bytes", "written_bytes"], block(option)),
        };
        let iops = self.drive(row, &mut server, of_client)?;
        let lost = |_| Error::new(ErrorKind::Process, "the one who looks is lost");
        let looks = looking.join().map_err(lost)?;
        self.interrupt.check()?;
        let looks = looks?;
        let ns = |before: &Counters, after: &Counters| after.monotonic_ns - before.monotonic_ns;
        let sum =
            |at: &Counters| -> u64 { counters.iter().filter_map(|name| at.sum.get(*name)).sum() };
        let part = |before, after| {
            (sum(after) - sum(before)) as f64 * 1e9 / ns(before, after) as f64 / limit as f64
        };
        let each: Vec<f64> = looks.windows(2).map(|pair| part(&pair[0], &pair[1])).collect();
        let (Some(each), [first, .., last]) = (Spread::of(&each), &looks[..]) else {
            return ErrorKind::Process.fail("there is nothing to compare");
        };
        let cpu = |at: &Counters| at.process.user_ns + at.process.system_ns;
        Ok(vec![
            client.into(),
            Cell::Text(queues),
            name(row).into(),
            Cell::Figure(each),
            Cell::Number(part(first, last)),
            Cell::Number(iops * f64::from(unit) / limit as f64),
            Cell::Number((cpu(last) - cpu(first)) as f64 / ns(first, last) as f64),
        ])
    }
}

/// Measures all rows with vlane's own file.
///
/// # Errors
/// Obstacles to a measurement. Without a fio that has libblkio its rows are left out, and the
/// report says so.
pub fn run(options: &Options, call: &Call<'_>) -> Result<Report> {
    let Call { vlane, begun, interrupt } = call;
    let time = Duration::from_secs(options.seconds.into());
    let found = BlkioFio::find(&options.installs.host()?);
    let bed = Bed { vlane, time, fio: found.as_ref().ok(), interrupt };
    let rows = &ROWS[..if found.is_ok() { 11 } else { 8 }];
    let mut progress = Progress::new(rows.len()).expecting(RAMP + time);
    let mut measured = Vec::new();
    let whole = Rounds::measure_each("row", rows.len(), |number| {
        let row = rows[number];
        progress.step(format!("{} on {}", name(row), counted(row.1, "lane")));
        measured.push(bed.measure(row)?);
        Ok(())
    })?;
    progress.clear();
    let columns = "client | lanes | limit | each second [of the limit] | in all [of the limit] | \
                   by the client [of the limit] | back end [CPUs]";
    let text = "The lanes' count in each second, divided by the limit: the median of the seconds, \
                the least and the most. Then the same of the whole time, and the client's count. \
                The first second, which has the burst in it, does not count.";
    let missing = |error| Note::warning(format!("fio with libblkio was not measured: {error}"));
    let notes = found.err().map(missing).into_iter().collect();
    let blocks = vec![table("Rates", columns, measured)];
    let sections = vec![Section::new("rates", "Rates", vec![text.to_owned()], blocks)];
    let empty = begun.report("throttle", "How exactly limits are kept", &["fio"]);
    Ok(whole.marked(Report { notes, sections, ..empty }.guarded()))
}
