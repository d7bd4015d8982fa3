//! Worth of a volume's cache mode: to the writing guest, to a reading neighbour, and to the host.
//!
//! A neighbour reads its hot set at random through the host's page cache. In parallel a volume is
//! served in a cache mode (an [`Arm`]) and is written to: by the driver, which commits cyclically
//! through a journal, or by a guest with ext4 on it ([`Job`]). Both back ends share a memory
//! cgroup, so page cache of one is lost to the other. Results are judged against goals
//! (`judge.rs`). Beside them stands the effect predicted by the sizes ([`Expected`]).
//!
//! Arms are measured in turns, round by round, the first one twice (A/A). A difference must exceed
//! the first arm's difference from itself.

mod bed;
mod commits;
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
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use vlane::serve::CacheArg;
use vlane::values;
use vlane_guest::{Host, UmlProgram};
use vlane_units::show_size;

use self::bed::Bed;
pub(crate) use self::bed::{bind, joined};
pub(crate) use self::guest::TOUCH_MEMORY;
use self::judge::CellResult;
use self::limit::{DirtyLimit, MemoryLimit};
pub(crate) use self::measure::{
    SETTLED, STOP, is_steady, share, transferred, until_steady, written_to_disk,
};
pub use self::plan::{Arm, Cell, Expected, Job};
pub(crate) use self::report::moving;
use self::volume::SMALLEST_JOURNAL;
pub(crate) use self::volume::{Volume, cached_pages, forget};
use crate::express::distinct;
use vlane_report::{Arms, Report, usable_cpus};
use vlane_testbed::{
    Also, Call, Context, Error, ErrorKind, Installs, Place, Progress, Result, Rounds, image,
    in_turns, settle, usage, word,
};

/// Of the cgroup's limit, what may be dirty on the host.
pub(crate) const DIRTY: u64 = 5;

/// The options.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Cache modes, as in `vlane serve --cache`; the first is the baseline
    ///
    /// [default: writeback, none, and the modes that keep the guest's journal out of the cache]
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "writeback,none,pdc",
        hide_default_value = true, value_parser = parse_mode)]
    modes: Vec<Arm>,
    /// Also compare a volume with these options of `vlane serve`
    ///
    /// Example: "--cache writeback --poll-max 0". May be given several times.
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    also: Vec<Also>,
    /// Writers of the journal
    ///
    /// commits and mail-replay run in this program. mail, oltp-rollback, oltp-wal, graph, mobile,
    /// fill, backup, kv-compact and plain run in a guest.
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    #[arg(default_value = "commits", value_enum)]
    jobs: Vec<Job>,
    /// Memory that the back ends share, page cache included
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_cache)]
    cache: u64,
    /// Do not limit memory: needs no root, and shows no evictions
    #[arg(long, conflicts_with = "cache")]
    no_limit: bool,
    /// Size of the neighbour's hot set
    #[arg(long, value_name = "SIZE", default_value = "400M", value_parser = parse_mib)]
    hot: u64,
    /// Sizes of the journal
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64M,256M,1G")]
    #[arg(value_parser = parse_journal)]
    journals: Vec<u64>,
    /// Reads per second of the neighbour, or unbounded for one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "unbounded,10000")]
    #[arg(value_parser = parse_rate)]
    rates: Vec<ReadRate>,
    /// Extra times for each fdatasync of the volume, to simulate slower devices
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0")]
    #[arg(value_parser = parse_delay)]
    delays: Vec<Duration>,
    /// Vary one list at a time, on the journal of this size
    ///
    /// Without this, all combinations are measured. With it, the first of --jobs, --rates and
    /// --delays runs on every journal. Each other value runs on this journal alone, with the first
    /// values of the other lists.
    #[arg(long, value_name = "SIZE", value_parser = parse_journal)]
    vary_on: Option<u64>,
    /// Number of measurements of each combination
    #[arg(long = "repeat", alias = "rounds", value_name = "N", default_value_t = 5,
        value_parser = values::whole::<usize>(1..=1000))]
    rounds: usize,
    /// Warm-up time before each measurement
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = values::time_or_none)]
    ramp: Duration,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::time)]
    time: Duration,
    /// Directory on the measured disk [default: the current one or /var/tmp]
    #[arg(long, value_name = "DIR")]
    disk_dir: Option<PathBuf>,
    #[command(flatten)]
    installs: Installs,
}

/// Reads per second of the neighbour; none: one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadRate(Option<f64>);

type Parsed<T> = std::result::Result<T, String>;

/// The names of modes that `vlane serve` knows.
fn modes() -> impl Iterator<Item = String> {
    CacheArg::value_variants().iter().copied().map(word)
}

pub(crate) fn parse_mode(text: &str) -> Parsed<Arm> {
    values::one_of(text, "cache mode", modes()).map(|mode| Arm::mode(&mode))
}

pub(crate) fn parse_mib(text: &str) -> Parsed<u64> {
    match values::size(text)? {
        bytes if bytes.is_multiple_of(1 << 20) => Ok(bytes),
        bytes => Err(format!("{bytes} bytes are not a multiple of 1M")),
    }
}

pub(crate) fn parse_journal(text: &str) -> Parsed<u64> {
    match parse_mib(text)? {
        bytes @ SMALLEST_JOURNAL..=0x4_0000_0000 => Ok(bytes),
        _ => Err(format!("`{text}`: a journal has from 4M to 16G")),
    }
}

pub(crate) fn parse_cache(text: &str) -> Parsed<u64> {
    match parse_mib(text)? {
        bytes @ 0x200_0000.. => Ok(bytes),
        _ => Err(format!(
            "`{text}` is too small: the back ends themselves need some of it; at least 32M"
        )),
    }
}

fn parse_delay(text: &str) -> Parsed<Duration> {
    values::time_in::<u64>("us", 0..=60_000_000)(text).map(Duration::from_micros)
}

fn parse_rate(text: &str) -> Parsed<ReadRate> {
    match text {
        "unbounded" => Ok(ReadRate(None)),
        number => values::whole::<u32>(1..=10_000_000)(number)
            .map(|rate| ReadRate(Some(rate.into())))
            .map_err(|why| format!("{why}; `unbounded` is possible, too")),
    }
}

impl Options {
    /// Without repeated values.
    fn checked(&self) -> Result<Self> {
        if let Some(only) = self.vary_on.filter(|only| !self.journals.contains(only)) {
            return usage(format!(
                "--vary-on {}: there is no journal of that size",
                show_size(only)
            ));
        }
        let (jobs, journals) = (distinct(self.jobs.clone()), distinct(self.journals.clone()));
        let (rates, delays) = (distinct(self.rates.clone()), distinct(self.delays.clone()));
        Ok(Self { jobs, journals, rates, delays, ..self.clone() })
    }

    /// Memory of the back ends' cgroup in bytes; none: no limit.
    fn limit(&self) -> Option<u64> {
        (!self.no_limit).then_some(self.cache)
    }
}

/// Measures, and makes a report.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Invalid`] if there is no room,
/// or no root for the limit, [`ErrorKind::Missing`] without a program that is needed,
/// [`ErrorKind::Interrupted`], and those of back ends, driver and guests. The host's settings are
/// restored, and no file or process is left behind, in any case.
pub fn run(options: &Options, call: &Call<'_>) -> Result<Report> {
    let options = &options.checked()?;
    let Call { vlane, begun, interrupt } = call;
    let arms = Arm::all(&options.modes, &options.also)?;
    let host = &options.installs.host()?;
    host.program("mkfs.ext4")?;
    host.program("debugfs")?;
    let for_guests = options.jobs.iter().any(|job| job.needs_guest());
    let guests = for_guests.then(|| find_guests(host, &options.jobs)).transpose()?;
    let dir = tempfile::Builder::new().prefix("vlane-caches-").tempdir();
    let dir = dir.context(ErrorKind::Io, || "cannot make a directory for sockets")?;
    let (neighbour_cpus, writer_cpus) = sides(&usable_cpus()?);
    // Before the images are written: that it cannot be limited is said at once.
    let limited = |bytes| {
        MemoryLimit::new(bytes).map_err(|error| {
            let text = "the page cache cannot be limited; --no-limit measures without a limit";
            Error::caused_by(error.kind(), text, error)
        })
    };
    let limit = options.limit().map(limited).transpose()?;
    let dirty = |bytes| DirtyLimit::new(Path::new("/proc/sys/vm"), bytes / DIRTY);
    let _dirty = options.limit().map(dirty).transpose().context(ErrorKind::Invalid, || {
        "vm.dirty_bytes cannot be set; run it as root, or with --no-limit to measure without a \
         limit"
    })?;
    let volumes = options.journals.iter().map(|journal| Volume::bytes(*journal, for_guests));
    let bytes = volumes.fold(options.hot, u64::saturating_add);
    let place = Place::find(image::Medium::Disk, options.disk_dir.as_deref(), bytes, "--disk-dir")?;
    let mut results = nothing_yet(options, &arms);
    let measurements: usize = results.iter().map(|result| result.arms.0.len()).sum();
    let mut progress = Progress::new(1 + measurements * options.rounds)
        .expecting(options.ramp + options.time + Duration::from_secs(3));
    progress.step("the images are written");
    let hot = place.image(options.hot, interrupt)?;
    let volume = |journal: &u64| {
        let bytes = Volume::bytes(*journal, for_guests);
        Volume::new(&place, host, bytes, *journal, interrupt)
    };
    let mut volumes = options.journals.iter().map(volume).collect::<Result<Vec<_>>>()?;
    let mut bed = Bed {
        options,
        vlane,
        arms,
        host,
        dir: dir.path(),
        limit: limit.as_ref(),
        hot: &hot,
        guests: guests.as_ref(),
        neighbour_cpus: &neighbour_cpus,
        writer_cpus: &writer_cpus,
        recorded: BTreeMap::new(),
        interrupt,
    };
    for volume in &mut volumes {
        let mut cells = results.iter().map(|result| (result.cell.job, result.cell.journal));
        if cells.any(|cell| cell == (Job::MailReplay, volume.journal)) {
            progress.add_steps(1);
            progress.step(format!("a guest is recorded, journal {}", show_size(volume.journal)));
            let replay = bed.record_mail(volume, &mut |doing| progress.detail(doing))?;
            bed.recorded.insert(volume.journal, replay);
        }
    }
    let rounds = measure_all(&bed, &mut volumes, &mut results, &mut progress)?;
    progress.clear();
    let shown = report::Shown {
        options: options.clone(),
        results: &results,
        guests: guests.as_ref().map(|program| program.version.to_string()),
        replays: bed.recorded.values().map(|replay| replay.about.clone()).collect(),
        is_apart: !neighbour_cpus.is_empty(),
    };
    Ok(rounds.marked(shown.report(begun)))
}

/// Looks for what guests need for some jobs.
fn find_guests(host: &Host, jobs: &[Job]) -> Result<UmlProgram> {
    host.program("busybox")?;
    if jobs.iter().any(|job| job::needs_sqlite(*job)) {
        host.program("sqlite3")?;
    }
    Ok(UmlProgram::find(host)?)
}

/// Every round of every cell, in turns; the whole ones are kept.
fn measure_all(
    bed: &Bed<'_>,
    volumes: &mut [Volume],
    results: &mut [CellResult],
    progress: &mut Progress,
) -> Result<Rounds> {
    settle(bed.options.rounds, bed.interrupt)?;
    let rounds = Rounds::measure(bed.options.rounds, |round| {
        results.iter_mut().try_for_each(|CellResult { cell, arms, .. }| {
            in_turns(arms, round, |at, arm| {
                bed.interrupt.check()?;
                progress.step(format!("round {}: {}: {arm}", round + 1, cell.id()));
                let volume = volumes.iter_mut().find(|volume| volume.journal == cell.journal);
                let missing = || Error::new(ErrorKind::Missing, "there is no such journal");
                let (volume, arm) = (volume.ok_or_else(missing)?, &bed.arms[at]);
                bed.measure(cell, arm, volume, &mut |doing| progress.detail(doing))
            })
        })
    })?;
    results.iter_mut().for_each(|result| result.arms.keep(rounds.whole()));
    Ok(rounds)
}

/// The cells before they are measured: without a job there is one arm, and no repetition.
fn nothing_yet(options: &Options, arms: &[Arm]) -> Vec<CellResult> {
    let names: Vec<String> = arms.iter().map(|arm| arm.name.clone()).collect();
    let empty = |cell: Cell| CellResult {
        cell,
        expected: Expected::of(options.limit(), options.hot, cell.journal),
        arms: Arms::named(&names),
    };
    plan::cells(options).into_iter().map(empty).collect()
}

/// CPUs of the neighbour's side and of the writer's: half each, if there are two; empty: any.
///
/// Without that the speed of reads depends on the CPU where the kernel wakes threads up. It varies
/// by a factor of up to eight from one second to the next.
pub(crate) fn sides(usable: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let (left, right) = usable.split_at(usable.len() / 2);
    if left.is_empty() { (Vec::new(), Vec::new()) } else { (left.to_vec(), right.to_vec()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    pub(super) fn options(words: &[&str]) -> Options {
        crate::tests::options(words)
    }

    #[test]
    fn compared_modes_match_serve() {
        // The mode auto depends on the disk, and writethrough makes every write durable.
        let usual = options(&[]).modes.into_iter().map(|arm| arm.name);
        let (mut usual, mut known) = (usual.collect::<Vec<_>>(), Vec::from_iter(modes()));
        assert_eq!(usual.first().map(String::as_str), Some("writeback"));
        known.retain(|mode| mode != "auto" && mode != "writethrough");
        usual.sort();
        known.sort();
        assert_eq!(usual, known);
        assert!(parse_mode("no such mode").is_err());
    }

    #[test]
    fn neighbour_and_writer_get_separate_cpus() {
        assert_eq!(sides(&[0, 1]), (vec![0], vec![1]));
        assert_eq!(sides(&[2, 5, 7]), (vec![2], vec![5, 7]));
        assert_eq!(sides(&[3]), (vec![], vec![]), "there is nothing to be divided");
    }

    #[test]
    fn senseless_options_are_usage_errors() {
        let error = options(&["--journals=4M", "--vary-on=8M"]).checked().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("no journal of that size"), "{error}");
        let jobs = options(&["--jobs=mail,commits,mail"]).checked().unwrap().jobs;
        assert_eq!(jobs, [Job::Mail, Job::Commits]);
        for (text, says) in [("1M", "from 4M"), ("8389120", "not a multiple of 1M")] {
            assert!(parse_journal(text).unwrap_err().contains(says));
        }
    }
}
