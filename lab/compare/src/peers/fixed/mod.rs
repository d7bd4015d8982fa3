//! Cost of vlane and qemu-storage-daemon at the same load: CPU time, context switches and latency
//! per request at a given rate.
//!
//! The client is another program's: fio with libblkio, on a CPU of its own; or fio in a guest,
//! which has all back ends' disks at once. Back ends are measured in turns (A B, B A, ...).
//! qemu-storage-daemon runs on a file with each of its settings, and vlane is compared with the
//! better one. A difference counts only if the whole interval of the ratio says so
//! ([`vlane_report::stats`]). A rate that is not kept is reported with the achieved one, and not
//! compared.

mod guest;
mod native;
mod plan;
mod report;
mod verdict;

use serde::Serialize;
use vlane_guest::Host;

use self::guest::InGuest;
use self::plan::Client;
pub use self::plan::{Group, Row, groups, rows};
pub use self::report::{lines, markdown, report};
pub use self::verdict::{Compared, Metric, REACHED, Verdict};
use super::blkio::{BlkioClient, per_request};
use super::ground::Ground;
use super::plan::{Medium, daemons};
use super::{Measured, Options};
use vlane_client::progress::Progress;
use vlane_cost::Counted;
use vlane_testbed::Rounds;
use vlane_testbed::error::{Error, ErrorKind, Result};
use vlane_testbed::guests::{Machines, Maker};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::server::{Aio, Server};

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
    /// CPU time per request in us that is compared: the back end's; with a QEMU guest, QEMU's as
    /// well.
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
    /// Its subject.
    pub title: String,
    /// The contenders: vlane, qemu-storage-daemon, vlane with other options.
    pub contenders: Vec<String>,
    /// Every single measurement.
    pub measured: Measured<Figures>,
    /// Verdict of each vlane against [`Self::over`]; none for qemu-storage-daemon itself.
    pub verdicts: Vec<Option<Verdict>>,
    /// Place among them of qemu-storage-daemon's better setting here. Of those that reach the rate,
    /// it is the one with less CPU time per request.
    pub over: usize,
    #[serde(skip)]
    plan: Row,
}

/// Everything that came of it.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The rows.
    pub rows: Vec<RowResult>,
    /// The rows that are missing, in a sentence, if the measurement broke off.
    pub partial: Option<String>,
    /// Missing measurements or counts, with reasons.
    pub missing: Vec<String>,
    /// Kinds of the guests.
    pub guests: Vec<String>,
    /// True if a guest's CPU was emulated.
    pub emulated: bool,
    /// fio's version.
    pub fio: Option<String>,
}

/// A contender.
struct Contender {
    name: String,
    back_end: BackEnd,
}

/// The back end of the volume.
enum BackEnd {
    /// vlane, with further options.
    Vlane(Vec<String>),
    /// qemu-storage-daemon, which reaches a file by one of two ways.
    Qsd(Aio),
}

/// vlane, qemu-storage-daemon with each setting that makes a difference on the medium, and vlane
/// with other options.
fn contenders(medium: Medium, also: &[Vec<String>]) -> Vec<Contender> {
    let vlane = |name: String, words: &[String]| Contender {
        name,
        back_end: BackEnd::Vlane(words.to_vec()),
    };
    let mut all = vec![vlane("vlane".into(), &[])];
    let daemon =
        |(name, aio): (&str, Aio)| Contender { name: name.into(), back_end: BackEnd::Qsd(aio) };
    all.extend(daemons(medium).iter().copied().map(daemon));
    all.extend(also.iter().map(|words| vlane(format!("vlane {}", words.join(" ")), words)));
    all
}

impl Contender {
    fn is_daemon(&self) -> bool {
        matches!(self.back_end, BackEnd::Qsd(_))
    }

    /// Starts it on a medium.
    fn start(&self, ground: &Ground<'_>, medium: Medium, cpus: &[usize]) -> Result<Server> {
        match &self.back_end {
            BackEnd::Vlane(words) => ground.vlane(medium, cpus, words),
            BackEnd::Qsd(aio) => ground.qsd(medium, cpus, 1, *aio),
        }
    }
}

/// Which of the settings of qemu-storage-daemon (their places) is the better one at a rate.
fn better(places: &[usize], rounds: &[Vec<Figures>], rate: u32) -> usize {
    let cost = |place: &usize| {
        let cpu: Vec<f64> = rounds[*place].iter().map(|figures| figures.cpu_us).collect();
        (!verdict::is_reached(&rounds[*place], rate), vlane_report::stats::median(&cpu))
    };
    let order = |a: &(bool, f64), b: &(bool, f64)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1));
    places.iter().copied().min_by(|a, b| order(&cost(a), &cost(b))).unwrap_or_default()
}

/// Measures the rows that `options` names. `also` are further lists of options of `vlane serve`,
/// each measured besides. `done` gets each row as soon as it is there.
///
/// # Errors
/// [`ErrorKind::Usage`] and [`ErrorKind::Missing`], before the first measurement;
/// [`ErrorKind::Interrupted`]; and obstacles to a measurement. A guest that cannot be had is named
/// in the outcome, unless its rows were requested.
pub fn run(
    options: &Options,
    also: &[Vec<String>],
    interrupt: &Interrupt,
    mut done: impl FnMut(&RowResult),
) -> Result<Outcome> {
    let mut bench = Bench::new(options, also, chosen(options)?, interrupt)?;
    let mut results = Vec::new();
    let mut guest: Option<(&'static Group, InGuest<'_>)> = None;
    let mut partial = None;
    let wanted = bench.rows.clone();
    for &row in &wanted {
        // A guest lives as long as its rows.
        if guest.as_ref().is_some_and(|(group, _)| *group != row.group) {
            guest = None;
        }
        let measured = bench.in_guest(row, &mut guest);
        let measured = match measured {
            Ok((measured, missing)) => {
                partial =
                    missing.map(|missing| super::in_row(&missing, results.len(), wanted.len()));
                measured
            }
            Err(error) if results.is_empty() => return Err(error),
            Err(error) => {
                partial = Some(vlane_testbed::rounds::missing(
                    "row",
                    results.len(),
                    wanted.len(),
                    &error,
                ));
                break;
            }
        };
        let resolution = |rounds: &[Figures]| match row.group.client {
            Client::Native => FIO_STEP,
            // Its short answer is in whole us.
            Client::Guest(_) => {
                let p50: Vec<f64> = rounds.iter().map(|figures| figures.p50_us).collect();
                FIO_STEP.max(1.0 / vlane_report::stats::median(&p50).max(1.0))
            }
        };
        let contenders = contenders(row.group.medium, also);
        let daemons: Vec<usize> =
            (0..contenders.len()).filter(|place| contenders[*place].is_daemon()).collect();
        let over = better(&daemons, &measured.rounds, row.rate);
        let qsd = &measured.rounds[over];
        let judge = |(place, rounds): (usize, &Vec<Figures>)| {
            (!daemons.contains(&place))
                .then(|| verdict::judge(rounds, qsd, row.rate, resolution(rounds)))
        };
        let result = RowResult {
            row: row.id(),
            title: row.title(),
            contenders: contenders.iter().map(|contender| contender.name.clone()).collect(),
            over,
            verdicts: measured.rounds.iter().enumerate().map(judge).collect(),
            measured,
            plan: row,
        };
        bench.progress.clear();
        done(&result);
        results.push(result);
        if partial.is_some() {
            break;
        }
    }
    drop(guest);
    let fio = bench.native.as_ref().and_then(BlkioClient::version);
    let Bench { missing, guests, emulated, .. } = bench;
    Ok(Outcome { rows: results, partial, missing, guests, emulated, fio })
}

/// The rows that are wanted.
fn chosen(options: &Options) -> Result<Vec<Row>> {
    let invalid = |context: String| Err(Error::new(ErrorKind::Usage, context));
    if options.pairs == 0 {
        return invalid("--repeat 0: there must be at least one".into());
    }
    let all = rows();
    if let Some(unknown) =
        options.rows.iter().find(|name| !all.iter().any(|row| row.is_called(name)))
    {
        let context = format!(
            "--rows: `{unknown}` is not a known row or group of --fixed-load; --list names them"
        );
        return invalid(context);
    }
    let wanted =
        |row: &Row| options.rows.is_empty() || options.rows.iter().any(|name| row.is_called(name));
    Ok(all.into_iter().filter(wanted).collect())
}

/// Requirements of the measurements.
struct Bench<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    rows: Vec<Row>,
    also: &'a [Vec<String>],
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
        also: &'a [Vec<String>],
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
            match host
                .program("fio")
                .map_err(Error::from)
                .and_then(|_| Maker::find(&host, machines))
            {
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
        if let Counted::Not(reason) = vlane_cost::instructions::available() {
            missing.push(format!("instructions: {reason}"));
        }
        let media: Vec<Medium> = rows.iter().map(|row| row.group.medium).collect();
        let ground = Ground::new(options, &host, true, &media, interrupt)?;
        let measured = |row: &Row| contenders(row.group.medium, also).len();
        let steps = rows.iter().map(measured).sum::<usize>() * options.pairs as usize;
        let progress = Progress::new(steps).expecting(options.time + options.ramp + AROUND);
        Ok(Self {
            options,
            interrupt,
            rows,
            also,
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
        let maker =
            maker.ok_or_else(|| Error::new(ErrorKind::Missing, "the guest is not there"))?;
        self.progress.detail("a guest boots");
        let contenders = contenders(medium, self.also);
        let start = |contender: &Contender| contender.start(&self.ground, medium, &[]);
        let servers = contenders.iter().map(start).collect::<Result<_>>()?;
        self.guests.push(maker.describe());
        self.emulated |= maker.is_emulated();
        InGuest::boot(maker, machines, servers, self.interrupt)
    }

    /// All rounds of a row, in a guest if it is of one; the guest stays for the next row.
    fn in_guest(
        &mut self,
        row: Row,
        guest: &mut Option<(&'static Group, InGuest<'a>)>,
    ) -> Result<(Measured<Figures>, Option<String>)> {
        if let (Client::Guest(machines), None) = (row.group.client, &guest) {
            *guest = Some((row.group, self.boot(machines, row.group.medium)?));
        }
        self.row(row, guest.as_mut().map(|(_, guest)| guest))
    }

    /// All rounds of a row, forwards and backwards in turns; and the sentence on those that are
    /// missing, if it broke off. A row that cannot reach its rate has fewer, and none is missing.
    fn row(
        &mut self,
        row: Row,
        mut guest: Option<&mut InGuest<'a>>,
    ) -> Result<(Measured<Figures>, Option<String>)> {
        let contenders = contenders(row.group.medium, self.also);
        let mut all = vec![Vec::new(); contenders.len()];
        let rounds = self.options.pairs as usize;
        let mut is_hopeless = false;
        let measured = Rounds::measure(rounds, |round| {
            if is_hopeless {
                return Ok(());
            }
            let mut order: Vec<_> = (0..contenders.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for place in order {
                let contender = &contenders[place];
                let label = format!("{}: {}, {} of {rounds}", row.id(), contender.name, round + 1);
                self.progress.step(&label);
                let figures = match (&mut guest, &self.native) {
                    (Some(guest), _) => guest.measure(place, row, self.options),
                    (None, Some(client)) => native::measure(
                        client,
                        &self.ground,
                        contender,
                        row,
                        self.options,
                        self.interrupt,
                    ),
                    (None, None) => Err(Error::new(ErrorKind::Missing, "fio is not there")),
                };
                // The user's interrupt is the reason, before any other failure.
                self.interrupt.check()?;
                all[place].push(figures.map_err(|e| Error::caused_by(e.kind(), label, e))?);
            }
            let hopeless =
                |rounds: &Vec<Figures>| verdict::achieved(rounds) < HOPELESS * f64::from(row.rate);
            let side = |is_daemon: bool| {
                let of = move |(contender, _): &(&Contender, _)| contender.is_daemon() == is_daemon;
                contenders.iter().zip(&all).filter(of)
            };
            if [true, false].into_iter().any(|is| side(is).all(|(_, rounds)| hopeless(rounds))) {
                let left = (rounds - 1 - round) * contenders.len();
                self.progress.add_steps(-isize::try_from(left).unwrap_or(0));
                is_hopeless = true;
            }
            Ok(())
        })?;
        all.iter_mut().for_each(|of| of.truncate(measured.whole()));
        Ok((Measured { rounds: all }, measured.missing()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(iops: f64, cpu_us: f64) -> Vec<Figures> {
        vec![Figures { iops, cpu_us, ..Figures::default() }; 5]
    }

    #[test]
    fn vlane_meets_the_cheapest_sufficient_setting() {
        let files = contenders(Medium::Disk, &[vec!["--poll-max".into(), "0".into()]]);
        let daemons: Vec<usize> =
            (0..files.len()).filter(|place| files[*place].is_daemon()).collect();
        assert_eq!((files.len(), &daemons[..]), (4, &[1, 2][..]));
        assert_eq!(contenders(Medium::Null, &[]).iter().filter(|one| one.is_daemon()).count(), 1);
        let of = |uring: Vec<Figures>, threads: Vec<Figures>| {
            better(&daemons, &[rounds(1e3, 1.0), uring, threads, rounds(1e3, 1.0)], 1_000)
        };
        assert_eq!(of(rounds(1e3, 10.0), rounds(1e3, 9.0)), 2);
        assert_eq!(of(rounds(1e3, 9.0), rounds(1e3, 10.0)), 1);
        // Lower cost through less work is not better.
        assert_eq!(of(rounds(1e3, 10.0), rounds(5e2, 9.0)), 1);
        assert_eq!(of(rounds(5e2, 9.0), rounds(1e3, 10.0)), 2);
    }
}
