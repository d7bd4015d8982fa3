//! Worth of a volume's cache mode: to the writing guest, to a reading neighbour, and to the host.
//!
//! A neighbour reads its hot set at random through the host's page cache. In parallel a volume is
//! served in a cache mode (an [`Arm`]) and is written to: by the driver, which commits cyclically
//! through a journal, or by a guest with ext4 on it ([`Job`]). Both back ends share a memory
//! cgroup, so page cache of one is lost to the other. Results are judged against goals
//! (`judge.rs`). Beside them stand the effect predicted by the sizes ([`Expected`]), and the hits
//! of an LRU cache ([`plan::lru_hits`]).
//!
//! Arms are measured in turns, round by round, the first one twice (A/A). A difference must exceed
//! the first arm's difference from itself.

mod commits;
mod done;
mod guest;
pub mod job;
mod judge;
pub mod limit;
mod measure;
pub mod plan;
mod replay;
mod report;
mod volume;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use vlane_guest::Host;
use vlane_report::build::Begun;
use vlane_units::show_size;

use self::judge::CellResult;
use self::limit::{Device, DirtyLimit, MemoryLimit, Unthrottled};
use self::measure::Bed;
pub use self::plan::{Arm, Cell, Expected, Job};
pub use self::volume::SMALLEST_JOURNAL;
use self::volume::Volume;
use vlane_bench::Pin;
use vlane_client::progress::Progress;
use vlane_report::Report;
use vlane_report::judge::Arms;
use vlane_report::machine::usable_cpus;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::image::{self, Place};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::rounds::{Rounds, in_turns};

/// Of the cgroup's limit, what may be dirty on the host.
const DIRTY: u64 = 5;

/// The options.
#[derive(Debug, Clone)]
pub struct Options {
    /// vlane's own file.
    pub vlane: PathBuf,
    /// The command that makes this report again.
    pub command: String,
    /// The ways to serve the volume; the first one is what others are held against.
    pub arms: Vec<Arm>,
    /// Options of `vlane serve` that the volume has in every arm.
    pub with: Vec<String>,
    /// The writers.
    pub jobs: Vec<Job>,
    /// Memory of the back ends' cgroup in bytes; none: no limit.
    pub cache: Option<u64>,
    /// Bytes of the neighbour's hot set.
    pub hot: u64,
    /// Bytes of the journals.
    pub journals: Vec<u64>,
    /// Reads per second that the neighbour asks for; none: as many as it gets, one at a time.
    pub rates: Vec<Option<f64>>,
    /// With and without the kernel's write-back throttling.
    pub throttling: Vec<bool>,
    /// How much longer each `fdatasync` of the volume takes.
    pub delays: Vec<Duration>,
    /// As [`plan::Axes::vary_on`].
    pub vary_on: Option<u64>,
    /// How often everything is measured.
    pub rounds: usize,
    /// Time before each measurement that does not count.
    pub ramp: Duration,
    /// Time of each measurement.
    pub time: Duration,
    /// A directory on the disk to be measured; none finds one.
    pub disk_dir: Option<PathBuf>,
    /// Placement of the neighbour and the writer: with CPUs of their own, or not.
    pub pin: Pin,
}

/// Facts about the measurement's set-up.
#[derive(Debug)]
struct About {
    /// The guests, if there were any.
    guests: Option<String>,
    /// The replayed traces.
    replays: Vec<String>,
    /// True if the disk's own counter could be read.
    has_device: bool,
    /// True if neighbour and writer had CPUs of their own.
    is_apart: bool,
}

impl Options {
    fn check(&self) -> Result<()> {
        let usage = |text: String| Err(Error::new(ErrorKind::Usage, text));
        if self.arms.is_empty() || self.jobs.is_empty() || self.journals.is_empty() {
            return usage("no measurement is left: give an arm, a job and a journal".into());
        }
        for (place, arm) in self.arms.iter().enumerate() {
            if self.arms[..place].iter().any(|other| other.name == arm.name) {
                return usage(format!("`{}` is given twice", arm.name));
            }
        }
        for journal in &self.journals {
            if *journal < SMALLEST_JOURNAL || !journal.is_multiple_of(1 << 20) {
                let least = show_size(SMALLEST_JOURNAL);
                return usage(format!(
                    "a journal of {journal} bytes: whole MiB, and at least {least}"
                ));
            }
        }
        if let Some(only) = self.vary_on
            && !self.journals.contains(&only)
        {
            let text = format!("--vary-on {}: there is no journal of that size", show_size(only));
            return usage(text);
        }
        if !self.hot.is_multiple_of(1 << 20) || self.hot == 0 {
            return usage(format!("a hot set of {} bytes: whole MiB", self.hot));
        }
        Ok(())
    }
}

/// Measures, and makes a report.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Invalid`] if there is no room,
/// or no root for the limit, [`ErrorKind::Missing`] without a program that is needed,
/// [`ErrorKind::Interrupted`], and those of back ends, driver and guests. The host's settings are
/// restored, and no file or process is left behind, in any case.
pub fn run(options: &Options, host: &Host, interrupt: &Interrupt) -> Result<Report> {
    options.check()?;
    let begun = Begun::now(&options.command);
    host.program("mkfs.ext4")?;
    host.program("debugfs")?;
    let for_guests = options.jobs.iter().any(|job| job.needs_guest());
    let guests = for_guests.then(|| guest::Maker::find(host, &options.jobs)).transpose()?;
    let dir = tempfile::Builder::new().prefix("vlane-caches-").tempdir();
    let dir = dir.context(ErrorKind::Io, || "cannot make a directory for sockets")?;

    let (neighbour_cpus, writer_cpus) = sides(options.pin, &usable_cpus()?);
    // Before the images are written: that it cannot be limited is said at once.
    let limit = options.cache.map(MemoryLimit::new).transpose()?;
    let _dirty = options.cache.map(|bytes| DirtyLimit::new(bytes / DIRTY)).transpose()?;

    let volumes = options.journals.iter().map(|journal| Volume::bytes(*journal, for_guests));
    let bytes = volumes.fold(options.hot, u64::saturating_add);
    let place = Place::find(image::Medium::Disk, options.disk_dir.as_deref(), bytes, "--disk-dir")?;
    let cells = plan::cells(&plan::Axes {
        jobs: &options.jobs,
        journals: &options.journals,
        rates: &options.rates,
        throttling: &options.throttling,
        delays: &options.delays,
        vary_on: options.vary_on,
    });
    let arms = options.arms.len() + 1;
    let measurements: usize =
        cells.iter().map(|cell| if cell.job.is_some() { arms } else { 1 }).sum();
    announce(options, &cells);
    let is_replayed = |volume: &u64| {
        let is_it = |cell: &Cell| cell.job == Some(Job::MailReplay) && cell.journal == *volume;
        cells.iter().any(is_it)
    };
    let recorded = options.journals.iter().filter(|journal| is_replayed(journal)).count();
    let mut progress = Progress::new(1 + recorded + measurements * options.rounds)
        .expecting(options.ramp + options.time + Duration::from_secs(3));
    progress.step("the images are written");
    let hot = place.image(options.hot, interrupt)?;
    let mut volumes = Vec::new();
    for journal in &options.journals {
        volumes.push(Volume::new(&place, host, *journal, for_guests, interrupt)?);
    }
    let device = Device::of(hot.path());
    let mut bed = Bed {
        options,
        host,
        dir: dir.path(),
        limit: limit.as_ref(),
        hot: &hot,
        device: device.as_ref(),
        guests: guests.as_ref(),
        neighbour_cpus: &neighbour_cpus,
        writer_cpus: &writer_cpus,
        recorded: BTreeMap::new(),
        interrupt,
    };
    let mut replays = Vec::new();
    for volume in volumes.iter_mut().filter(|volume| is_replayed(&volume.journal)) {
        progress.step(format!("a guest is recorded, journal {}", show_size(volume.journal)));
        let replay = bed.record_mail(volume, &mut |doing| progress.detail(doing))?;
        replays.push(replay.about.clone());
        bed.recorded.insert(volume.journal, replay);
    }
    let mut results: Vec<_> = cells.iter().map(|cell| nothing_yet(options, *cell)).collect();
    let rounds = measure_all(&mut bed, &mut volumes, &mut results, &mut progress)?;
    progress.clear();
    let options = &Options { rounds: rounds.whole(), ..options.clone() };
    let guests = guests.map(|maker| maker.describe());
    let is_apart = !neighbour_cpus.is_empty();
    let about = About { guests, replays, has_device: device.is_some(), is_apart };
    let mut report = report::fill(options, &results, &about, &begun);
    rounds.mark(&mut report);
    Ok(report)
}

/// Every round of every cell, in turns; the whole ones are kept.
fn measure_all(
    bed: &mut Bed<'_>,
    volumes: &mut [Volume],
    results: &mut [CellResult],
    progress: &mut Progress,
) -> Result<Rounds> {
    let options = bed.options;
    let rounds = Rounds::measure(options.rounds, |round| {
        for result in results.iter_mut() {
            let cell = result.cell;
            let unthrottled = match (bed.device, cell.throttled) {
                (_, true) => None,
                (Some(device), false) => Some(Unthrottled::on(device)?),
                (None, false) => {
                    let text = "the images are on no block device, which is never throttled; \
                                leave out --throttling off";
                    return Err(Error::new(ErrorKind::Invalid, text));
                }
            };
            in_turns(&mut result.arms, round, |at, arm| {
                bed.interrupt.check()?;
                let who = if cell.job.is_some() { arm } else { "alone" };
                progress.step(format!("round {}: {}: {who}", round + 1, cell.title()));
                let volume = volumes.iter_mut().find(|volume| volume.journal == cell.journal);
                bed.measure(&cell, &options.arms[at], volume, &mut |doing| progress.detail(doing))
            })?;
            drop(unthrottled);
        }
        Ok(())
    })?;
    results.iter_mut().for_each(|result| result.arms.keep(rounds.whole()));
    Ok(rounds)
}

/// A cell before it is measured: without a job there is one arm, and no repetition.
fn nothing_yet(options: &Options, cell: Cell) -> CellResult {
    let names: Vec<String> = options.arms.iter().map(|arm| arm.name.clone()).collect();
    let mut arms = Arms::named(&names);
    if cell.job.is_none() {
        arms.0.truncate(1);
    }
    let has_goals = options.arms.iter().filter(|arm| arm.has_goals());
    CellResult {
        cell,
        expected: Expected::of(options.cache, options.hot, cell.journal),
        arms,
        with_goals: has_goals.map(|arm| arm.name.clone()).collect(),
    }
}

/// CPUs of the neighbour's side and of the writer's: half each, if there are two; empty: any.
///
/// Without that the speed of reads depends on the CPU where the kernel wakes threads up. It varies
/// by a factor of up to eight from one second to the next.
fn sides(pin: Pin, usable: &[usize]) -> (Vec<usize>, Vec<usize>) {
    match (pin, usable.len()) {
        (Pin::None, _) | (_, 0 | 1) => (Vec::new(), Vec::new()),
        (Pin::Apart, n) => (usable[..n / 2].to_vec(), usable[n / 2..].to_vec()),
    }
}

/// Says what the sizes let one expect, before anything is measured.
fn announce(options: &Options, cells: &[Cell]) {
    let mut said = Vec::new();
    for cell in cells.iter().filter(|cell| cell.job.is_some()) {
        if !said.contains(&cell.journal) {
            said.push(cell.journal);
            let expected = Expected::of(options.cache, options.hot, cell.journal).says();
            // The output may have no reader.
            let _ = writeln!(
                std::io::stderr(),
                "journal of {}: expected: {expected}",
                show_size(cell.journal)
            );
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    pub(super) fn options() -> Options {
        Options {
            vlane: "vlane".into(),
            command: "vlane-lab compare caches".into(),
            arms: vec![Arm::mode("writeback"), Arm::mode("none")],
            with: Vec::new(),
            jobs: vec![Job::Commits],
            cache: None,
            hot: 400 << 20,
            journals: vec![64 << 20],
            rates: vec![None],
            throttling: vec![true],
            delays: vec![Duration::ZERO],
            vary_on: None,
            rounds: 5,
            ramp: Duration::ZERO,
            time: Duration::from_secs(1),
            disk_dir: None,
            pin: Pin::Apart,
        }
    }

    #[test]
    fn neighbour_and_writer_get_separate_cpus() {
        assert_eq!(sides(Pin::Apart, &[0, 1]), (vec![0], vec![1]));
        assert_eq!(sides(Pin::Apart, &[2, 5, 7]), (vec![2], vec![5, 7]));
        assert_eq!(sides(Pin::Apart, &[3]), (vec![], vec![]), "there is nothing to be divided");
        assert_eq!(sides(Pin::None, &[0, 1]), (vec![], vec![]));
    }

    #[test]
    fn senseless_options_are_usage_errors() {
        type Change = fn(&mut Options);
        let changes: [(Change, &str); 6] = [
            (|o| o.arms.clear(), "no measurement is left"),
            (|o| o.arms.push(Arm::mode("none")), "given twice"),
            (|o| o.journals = vec![1 << 20], "at least 4 MiB"),
            (|o| o.journals = vec![(8 << 20) + 512], "whole MiB"),
            (|o| o.hot = 4096, "whole MiB"),
            (|o| o.vary_on = Some(8 << 20), "no journal of that size"),
        ];
        for (change, says) in changes {
            let mut wrong = options();
            change(&mut wrong);
            let error = wrong.check().unwrap_err();
            assert!(
                error.kind() == ErrorKind::Usage && error.to_string().contains(says),
                "{error}"
            );
        }
        options().check().unwrap();
    }
}
