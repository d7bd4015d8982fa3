//! What vlane and qemu-storage-daemon cost at the same load: CPU time, context switches and latency per request at a given rate.
//!
//! The client is another program's: fio with libblkio, on a CPU of its own; or fio in a guest, whose disks are all back ends at once. Back ends are
//! measured in turns (A B, B A, ...), and a difference counts only if the whole interval of the ratio says so ([`vlane_report::stats`]). A rate that is
//! not kept is told with what was achieved, and nothing is compared.

mod guest;
mod native;
mod plan;
mod report;
mod verdict;

use serde::Serialize;
use vlane_boot::Host;

use self::guest::InGuest;
use self::plan::Client;
pub use self::plan::{Group, Row, groups, rows};
pub use self::report::{lines, markdown, report};
pub use self::verdict::{Compared, Held, Metric, REACHED, Verdict};
use super::blkio::{BlkioClient, per_request};
use super::ground::Ground;
use super::plan::Medium;
use super::{Measured, Options};
use vlane_host::error::{Error, ErrorKind, Result};
use vlane_host::guests::{Machines, Maker};
use vlane_host::interrupt::Interrupt;
use vlane_host::server::Aio;
use vlane_report::progress::Progress;
use vlane_work::Counted;

/// A rate of which less than this is achieved in the first round is not tried again.
const HOPELESS: f64 = 0.9;
/// How exactly fio tells latencies: 64 steps between powers of two.
const FIO_STEP: f64 = 1.0 / 64.0;
/// Starting and ending back end and fio, beside the time of a measurement.
const AROUND: std::time::Duration = std::time::Duration::from_millis(600);

/// One measurement of one back end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Requests per second, as the client counts them.
    pub iops: f64,
    /// Median latency in us, as the client sees it.
    pub p50_us: f64,
    /// 99th percentile in us.
    pub p99_us: f64,
    /// CPU time per request in us that is compared: the back end's; with a QEMU guest, QEMU's as well.
    pub cpu_us: f64,
    /// The back end's alone.
    pub backend_cpu_us: f64,
    /// The guest's: the processes that it is; absent without one.
    pub guest_cpu_us: Option<f64>,
    /// The back end's context switches per request.
    pub switches: f64,
    /// The back end's instructions per request, where they can be counted.
    pub instructions: Option<f64>,
}

/// A row's results.
#[derive(Debug, Clone, Serialize)]
pub struct RowResult {
    /// The row's name.
    pub row: String,
    /// What it is about.
    pub title: String,
    /// Who took part: vlane, qemu-storage-daemon, vlane with other options.
    pub contenders: Vec<String>,
    /// Every single measurement.
    pub measured: Measured<Figures>,
    /// What became of each contender against qemu-storage-daemon; none for itself.
    pub verdicts: Vec<Option<Verdict>>,
    #[serde(skip)]
    plan: Row,
}

/// Everything that came of it.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The rows.
    pub rows: Vec<RowResult>,
    /// What could not be measured or counted, and why.
    pub missing: Vec<String>,
    /// What the guests were.
    pub guests: Vec<String>,
    /// Whether a guest's CPU was emulated.
    pub emulated: bool,
    /// fio's version.
    pub fio: Option<String>,
}

/// The place of qemu-storage-daemon among the contenders.
const QSD: usize = 1;

/// Who takes part.
struct Contender {
    name: String,
    /// vlane's further options; none: qemu-storage-daemon.
    vlane: Option<Vec<String>>,
}

fn contenders(also: &[Vec<String>]) -> Vec<Contender> {
    let vlane = |name: String, words: &[String]| Contender { name, vlane: Some(words.to_vec()) };
    let mut all = vec![vlane("vlane".into(), &[])];
    all.push(Contender { name: "qemu-storage-daemon".into(), vlane: None });
    all.extend(also.iter().map(|words| vlane(format!("vlane {}", words.join(" ")), words)));
    all
}

/// Measures the rows that `options` names; `also` are further options of `vlane serve`, each list of which is measured besides. `done` is
/// told of each row as soon as it is there.
///
/// # Errors
/// [`ErrorKind::Usage`] and [`ErrorKind::Missing`] before anything is measured if it cannot be; [`ErrorKind::Interrupted`]; and whatever
/// keeps a measurement from being made. A guest that cannot be had is told in the outcome, unless its rows were named.
pub fn run(
    options: &Options,
    also: &[Vec<String>],
    interrupt: &Interrupt,
    mut done: impl FnMut(&RowResult) -> Result<()>,
) -> Result<Outcome> {
    let mut bench = Bench::new(options, also, chosen(options)?, interrupt)?;
    let mut results = Vec::new();
    let mut guest: Option<(&'static Group, InGuest<'_>)> = None;
    for row in bench.rows.clone() {
        // A guest lives as long as its rows.
        if guest.as_ref().is_some_and(|(group, _)| *group != row.group) {
            guest = None;
        }
        if let (Client::Guest(machines), None) = (row.group.client, &guest) {
            guest = Some((row.group, bench.boot(machines, row.group.medium)?));
        }
        let measured = bench.row(row, guest.as_mut().map(|(_, guest)| guest))?;
        let resolution = |rounds: &[Figures]| match row.group.client {
            Client::Native => FIO_STEP,
            // Its short answer is in whole us.
            Client::Guest(_) => {
                let p50: Vec<f64> = rounds.iter().map(|figures| figures.p50_us).collect();
                FIO_STEP.max(1.0 / vlane_report::stats::median(&p50).max(1.0))
            }
        };
        let qsd = &measured.rounds[QSD];
        let judge = |(place, rounds): (usize, &Vec<Figures>)| {
            (place != QSD).then(|| verdict::judge(rounds, qsd, row.rate, resolution(rounds)))
        };
        let result = RowResult {
            row: row.id(),
            title: row.title(),
            contenders: bench.contenders.iter().map(|contender| contender.name.clone()).collect(),
            verdicts: measured.rounds.iter().enumerate().map(judge).collect(),
            measured,
            plan: row,
        };
        bench.progress.clear();
        done(&result)?;
        results.push(result);
    }
    drop(guest);
    let fio = bench.native.as_ref().and_then(BlkioClient::version);
    let Bench { missing, guests, emulated, .. } = bench;
    Ok(Outcome { rows: results, missing, guests, emulated, fio })
}

/// The rows that are wanted.
fn chosen(options: &Options) -> Result<Vec<Row>> {
    let invalid = |context: String| Err(Error::new(ErrorKind::Usage, context));
    if options.pairs == 0 {
        return invalid("--repeat 0: there must be at least one".into());
    }
    let all = rows();
    if let Some(unknown) = options.rows.iter().find(|name| !all.iter().any(|row| row.is_called(name))) {
        let context = format!("--rows: `{unknown}` is no row or group of --fixed-load; --list names them");
        return invalid(context);
    }
    let wanted = |row: &Row| options.rows.is_empty() || options.rows.iter().any(|name| row.is_called(name));
    Ok(all.into_iter().filter(wanted).collect())
}

/// What the measurements need.
struct Bench<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    rows: Vec<Row>,
    contenders: Vec<Contender>,
    ground: Ground<'a>,
    native: Option<BlkioClient>,
    makers: Vec<(Machines, Maker)>,
    missing: Vec<String>,
    guests: Vec<String>,
    emulated: bool,
    progress: Progress,
}

impl<'a> Bench<'a> {
    /// Looks for everything that can be missing, then makes the images.
    fn new(
        options: &'a Options,
        also: &[Vec<String>],
        mut rows: Vec<Row>,
        interrupt: &'a Interrupt,
    ) -> Result<Self> {
        let host = Host::new(options.install)?;
        let mut missing = Vec::new();
        let mut makers = Vec::new();
        for (machines, name) in [(Machines::Uml, "User-Mode Linux"), (Machines::Qemu, "QEMU")] {
            let client = Client::Guest(machines);
            if rows.iter().all(|row| row.group.client != client) {
                continue;
            }
            match host.program("fio").map_err(Error::from).and_then(|_| Maker::find(&host, machines)) {
                Ok(maker) => makers.push((machines, maker)),
                Err(error) if options.rows.is_empty() => {
                    missing.push(format!("no guest of {name}: {error}"));
                    rows.retain(|row| row.group.client != client);
                }
                Err(error) => return Err(error),
            }
        }
        let is_native = rows.iter().any(|row| row.group.client == Client::Native);
        let native = is_native.then(|| BlkioClient::find(&host)).transpose()?;
        if let Counted::Not(reason) = vlane_work::instructions::available() {
            missing.push(format!("instructions: {reason}"));
        }
        let media: Vec<Medium> = rows.iter().map(|row| row.group.medium).collect();
        let ground = Ground::new(options, &host, true, &media, interrupt)?;
        let contenders = contenders(also);
        let steps = rows.len() * contenders.len() * options.pairs as usize;
        let progress = Progress::new(steps).expecting(options.time + options.ramp + AROUND);
        Ok(Self {
            options,
            interrupt,
            rows,
            contenders,
            ground,
            native,
            makers,
            missing,
            guests: Vec::new(),
            emulated: false,
            progress,
        })
    }

    /// A guest with a disk for each contender.
    fn boot(&mut self, machines: Machines, medium: Medium) -> Result<InGuest<'a>> {
        let maker = self.makers.iter().find(|(of, _)| *of == machines).map(|(_, maker)| maker);
        let maker = maker.ok_or_else(|| Error::new(ErrorKind::Missing, "the guest is not there"))?;
        self.progress.detail("a guest boots");
        let start = |contender: &Contender| match &contender.vlane {
            Some(words) => self.ground.vlane(medium, &[], words),
            None => self.ground.qsd(medium, &[], 1, Aio::IoUring),
        };
        let servers = self.contenders.iter().map(start).collect::<Result<_>>()?;
        self.guests.push(maker.describe());
        self.emulated |= maker.is_emulated();
        InGuest::boot(maker, machines, servers, self.interrupt)
    }

    /// All rounds of a row, forwards and backwards in turns.
    fn row(&mut self, row: Row, mut guest: Option<&mut InGuest<'a>>) -> Result<Measured<Figures>> {
        let mut all = vec![Vec::new(); self.contenders.len()];
        let rounds = self.options.pairs;
        for round in 0..rounds {
            let mut order: Vec<_> = (0..self.contenders.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for place in order {
                let contender = &self.contenders[place];
                let label = format!("{}: {}, {} of {rounds}", row.id(), contender.name, round + 1);
                self.progress.step(&label);
                let figures = match (&mut guest, &self.native) {
                    (Some(guest), _) => guest.measure(place, row, self.options),
                    (None, Some(client)) => {
                        native::measure(client, &self.ground, contender, row, self.options, self.interrupt)
                    }
                    (None, None) => Err(Error::new(ErrorKind::Missing, "fio is not there")),
                };
                // Whatever else failed: if the user ended it, that is why.
                self.interrupt.check()?;
                all[place].push(figures.map_err(|e| Error::caused_by(e.kind(), label, e))?);
            }
            let hopeless = |rounds: &Vec<Figures>| verdict::achieved(rounds) < HOPELESS * f64::from(row.rate);
            let vlanes = all.iter().enumerate().filter(|(place, _)| *place != QSD);
            if hopeless(&all[QSD]) || vlanes.map(|(_, rounds)| rounds).all(hopeless) {
                let left = (rounds - 1 - round) as usize * self.contenders.len();
                self.progress.add_steps(-isize::try_from(left).unwrap_or(0));
                break;
            }
        }
        Ok(Measured { rounds: all })
    }
}
