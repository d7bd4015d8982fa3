//! Power cuts: a guest writes, and every request that reaches the storage is recorded. From the
//! record come states in which a power cut could have left the storage. In each of them the guest's
//! file system must be sound when it is mounted again, and must have all data that the guest knows
//! are durable. `docs/src/power-cut.md` says which states are possible, and why.

#![forbid(unsafe_code)]

mod content;
mod database;
mod file_system;
mod guest;
mod load;
mod mail;
mod report;
pub mod states;
pub mod storage;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vlane_guest::Host;
use vlane_trace::storage::{Action, Findings, History, Purpose, Reader};

use self::file_system::Bench;
pub use self::file_system::FileSystem;
pub use self::load::Load;
use self::load::{Judge, Told};
pub use self::report::report;
use self::states::{Chance, Strategy, chooser};
use self::storage::Storage;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
pub use vlane_testbed::guests::Machines;
use vlane_testbed::image::{Medium, Place};
use vlane_testbed::interrupt::Interrupt;

/// Number of states whose faults are printed.
const TOLD: usize = 5;

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// vlane's own file.
    pub vlane: PathBuf,
    /// A volume of the guest for each, and for each load.
    pub arms: Vec<Arm>,
    /// The guest's file systems, one after the other.
    pub file_systems: Vec<FileSystem>,
    /// The loads of its programs, each on volumes of its own.
    pub loads: Vec<Load>,
    /// Which guest; if not given, one that has the file system.
    pub machines: Option<Machines>,
    /// How many programs write to each volume at once.
    pub workers: u32,
    /// The work of each of them: steps of about four fsyncs.
    pub steps: u64,
    /// States of each volume that are looked at.
    pub states: usize,
    /// States of each volume that are looked at as if its storage ignored flushes (see
    /// [`Outcome::broken`]).
    pub broken_states: usize,
    /// Which states: the same seed draws the same ones from the same record.
    pub seed: u64,
    /// Directory for images and records: on a disk, since data in memory are never flushed.
    pub disk_dir: Option<PathBuf>,
}

impl Options {
    /// A volume for each load and each way to serve one.
    fn volumes(&self) -> impl Iterator<Item = (&Arm, Load)> {
        self.loads.iter().flat_map(|load| self.arms.iter().map(|arm| (arm, *load)))
    }
}

/// A way to serve a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm {
    /// As `--cache` of `vlane serve` has it.
    pub cache: String,
    /// `--journal direct`: the journal is read and written around the page cache.
    pub is_direct: bool,
}

impl Arm {
    /// Its name, also for files.
    pub fn name(&self) -> String {
        format!("{}{}", self.cache, if self.is_direct { "-direct" } else { "" })
    }

    /// Options for `vlane serve`.
    fn words(&self) -> Vec<&str> {
        let journal: &[&str] = if self.is_direct { &["--journal", "direct"] } else { &[] };
        ["--cache", &self.cache].into_iter().chain(journal.iter().copied()).collect()
    }
}

/// Result of one volume.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its file system.
    pub file_system: FileSystem,
    /// The load that wrote to it.
    pub load: Load,
    /// How it was served.
    pub arm: Arm,
    /// Flushes that kept or broke their promise, by the record.
    pub flushes: Findings,
    /// Promises that were not kept, in words.
    pub broken_promises: Vec<String>,
    /// Durable writes and others.
    pub writes: [usize; 2],
    /// Of all of them, those around the page cache, where only a part of the volume is written so.
    pub direct_writes: Option<usize>,
    /// The guest's steps.
    pub steps: u64,
    /// Check of its states.
    pub states: Checked,
    /// The same for storage without working flushes and durable writes, which proves that the check
    /// finds faults.
    pub broken: Option<Checked>,
    /// All states were looked at that were wanted.
    pub is_whole: bool,
}

/// Everything that came of it.
#[derive(Debug)]
pub struct Found {
    /// Of each volume, in the order in which they were looked at.
    pub outcomes: Vec<Outcome>,
    /// The missing part, in a sentence, if it broke off.
    pub partial: Option<String>,
}

/// States that were looked at.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// How many.
    pub states: usize,
    /// Those with something in them that is not durable, so that there was something to choose.
    pub open: usize,
    /// Those in which the file system is not sound.
    pub unsound: usize,
    /// Those in which something is not there, or not what it should be.
    pub lost: usize,
    /// Some of both, in words.
    pub told: Vec<String>,
    /// By strategy: states, unsound ones, those with losses.
    pub by: Vec<(Strategy, [usize; 3])>,
    /// How long it took.
    pub took: Duration,
}

impl Checked {
    fn add(&mut self, strategy: Strategy, is_open: bool, is_unsound: bool, has_losses: bool) {
        self.states += 1;
        self.open += usize::from(is_open);
        self.unsound += usize::from(is_unsound);
        self.lost += usize::from(has_losses);
        for (_, counts) in self.by.iter_mut().filter(|(known, _)| *known == strategy) {
            counts[0] += 1;
            counts[1] += usize::from(is_unsound);
            counts[2] += usize::from(has_losses);
        }
    }

    /// True if none of them has a fault.
    pub fn is_sound(&self) -> bool {
        self.unsound == 0 && self.lost == 0
    }
}

impl Outcome {
    /// Its file system, and what wrote to it, for people.
    pub fn what(&self) -> String {
        match self.load {
            Load::Files => self.file_system.name().to_owned(),
            load => format!("{}, {}", self.file_system.name(), load.name()),
        }
    }

    /// Everything is as it should be, and the check has shown that it would see it if not.
    pub fn is_good(&self) -> bool {
        // One way of two is enough: a journal that was written whole replays soundly, though all of
        // its flushes failed to act. Of few states none may then be unsound, while most have
        // losses. If not all states were looked at, neither is expected.
        let sees = !self.is_whole
            || self.broken.as_ref().is_none_or(|broken| broken.lost + broken.unsound > 0);
        // A guest whose journal has gone through the page cache all the same proves no direct
        // writes.
        let is_as_meant = self.direct_writes != Some(0);
        self.states.is_sound() && self.flushes.violations.is_empty() && sees && is_as_meant
    }
}

/// Has a guest write to volumes, records that, and looks at states of each.
///
/// # Errors
/// [`ErrorKind::Missing`] if a part is not on this machine, [`ErrorKind::Interrupted`], and any
/// obstacle before the first state. After that, the states until then are kept
/// ([`Found::partial`]). Faults of states are no errors: [`Outcome::is_good`].
pub fn run(options: &Options, host: &Host, interrupt: &Interrupt) -> Result<Found> {
    let mut outcomes = Vec::new();
    for file_system in &options.file_systems {
        if let Err(error) = run_one(options, *file_system, host, interrupt, &mut outcomes) {
            return match outcomes.is_empty() {
                true => Err(error),
                false => Ok(Found { partial: Some(missing(options, &outcomes, &error)), outcomes }),
            };
        }
    }
    Ok(Found { outcomes, partial: None })
}

/// The sentence on what is missing.
fn missing(options: &Options, outcomes: &[Outcome], error: &Error) -> String {
    let wanted = options.file_systems.len() * options.volumes().count();
    let whole = outcomes.iter().filter(|outcome| outcome.is_whole).count();
    let were = if whole == 1 { "volume was" } else { "volumes were" };
    let begun = match outcomes.len() - whole {
        0 => String::new(),
        n => format!(", {n} in part"),
    };
    format!(
        "PARTIAL: {whole} of {wanted} {were} looked at as a whole{begun}; then it broke off: \
         {error}"
    )
}

/// Looks at the volumes of a file system; `outcomes` has what came until an error.
fn run_one(
    options: &Options,
    file_system: FileSystem,
    host: &Host,
    interrupt: &Interrupt,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    let dir = {
        let bytes = file_system.size().saturating_mul(2 * options.volumes().count() as u64 + 1);
        let place = Place::find(Medium::Disk, options.disk_dir.as_deref(), bytes, "--disk-dir")?;
        tempfile::TempDir::with_prefix_in("vlane-power-cut-", place.dir())
            .context(ErrorKind::Io, || {
                format!("{}: no directory can be made there", place.dir().display())
            })?
    };
    let in_memory = Path::new("/dev/shm");
    let bench_dir = if in_memory.is_dir() { in_memory } else { dir.path() };
    // Requirements are checked before a guest is started.
    Bench::new(host, file_system, bench_dir)?;
    let judges: Result<Vec<Judge>> =
        options.loads.iter().map(|load| Judge::new(host, *load)).collect();
    let judges = judges?;
    let base = dir.path().join("base");
    file_system.make(host, &base)?;
    guest::record(options, file_system, host, interrupt, dir.path(), &base)?;
    let base =
        std::fs::read(&base).context(ErrorKind::Io, || "the image from which it all began")?;

    let volume = |judge: &Judge, arm: &Arm| -> Result<(Outcome, Result<()>)> {
        let history = read(&guest::record_of(dir.path(), arm, judge.load()))?;
        let bench = Bench::new(host, file_system, bench_dir)?;
        let told = Told::new(&history, judge.load());
        let looker = Looker { bench: &bench, judge, told: &told, base: &base, seed: options.seed };
        outcome_of(&looker, history, file_system, arm, options, interrupt)
    };
    // One load after the other, for the memory that states take.
    for judge in &judges {
        // Mostly they wait for tools.
        let of_load: Vec<Result<(Outcome, Result<()>)>> = std::thread::scope(|scope| {
            let volumes: Vec<_> =
                options.arms.iter().map(|arm| scope.spawn(|| volume(judge, arm))).collect();
            let volumes = volumes.into_iter();
            volumes
                .map(|volume| {
                    volume.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        });
        keep(of_load, outcomes)?;
    }
    Ok(())
}

/// Looks at the states of one volume, and, if wanted, at those without working flushes.
fn outcome_of(
    looker: &Looker<'_>,
    history: History,
    file_system: FileSystem,
    arm: &Arm,
    options: &Options,
    interrupt: &Interrupt,
) -> Result<(Outcome, Result<()>)> {
    let (states, mut looked) = check(looker, &history, options.states, interrupt);
    if states.states == 0
        && let Err(error) = looked
    {
        return Err(error);
    }
    let flushes = history.flushes();
    let words = flushes.violations.iter().take(TOLD).map(|violation| history.tell(*violation));
    let mut outcome = Outcome {
        file_system,
        load: looker.judge.load(),
        arm: arm.clone(),
        broken_promises: words.collect(),
        flushes,
        writes: writes(&history),
        direct_writes: arm.is_direct.then(|| direct_writes(&history)),
        steps: looker.told.steps(),
        states,
        broken: None,
        is_whole: false,
    };
    if looked.is_ok() && options.broken_states > 0 {
        let broken = history.with_nothing_durable();
        let (broken, ended) = check(looker, &broken, options.broken_states, interrupt);
        (outcome.broken, looked) = ((broken.states > 0).then_some(broken), ended);
    }
    outcome.is_whole = looked.is_ok();
    Ok((outcome, looked))
}

/// Keeps what there is of each volume; the first error.
fn keep(volumes: Vec<Result<(Outcome, Result<()>)>>, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let mut ended = Ok(());
    for volume in volumes {
        let looked = volume.and_then(|(outcome, looked)| {
            outcomes.push(outcome);
            looked
        });
        ended = ended.and(looked);
    }
    ended
}

fn read(path: &Path) -> Result<History> {
    let file =
        std::fs::File::open(path).context(ErrorKind::Io, || format!("{}", path.display()))?;
    let reader = Reader::new(std::io::BufReader::with_capacity(1 << 20, file));
    let history = reader.and_then(|reader| {
        let in_memory = reader.header().in_memory;
        History::new(reader).map(|history| (history, in_memory))
    });
    let (history, in_memory) =
        history.context(ErrorKind::Format, || format!("{}", path.display()))?;
    match in_memory {
        false => Ok(history),
        true => Err(Error::new(
            ErrorKind::Invalid,
            "the image lies in memory, which is never durable; give a directory on a disk",
        )),
    }
}

/// Durable writes and others.
fn writes(history: &History) -> [usize; 2] {
    let mut writes = [0; 2];
    for operation in &history.operations {
        if let Action::Write { durable, .. } = operation.what {
            writes[usize::from(!durable)] += 1;
        }
    }
    writes
}

/// Writes around the page cache, on a volume that has both ways.
fn direct_writes(history: &History) -> usize {
    let is_direct = |what: &Action| matches!(what, Action::Write { file: 0, .. });
    history.operations.iter().filter(|operation| is_direct(&operation.what)).count()
}

/// Where the power goes: mostly around the answers of flushes and durable writes, where promises
/// begin; and anywhere. As many as give so many states, nearly all of them where something is not
/// durable: elsewhere there is one state only.
fn cuts(history: &History, states: usize, base: &[u8], chance: &mut Chance) -> Vec<usize> {
    let mut answers: Vec<usize> = history
        .requests
        .iter()
        .filter(|request| request.kind == Purpose::Flush || request.durable)
        .filter_map(|request| request.answer.map(|(at, _)| at))
        .collect();
    answers.sort_unstable();
    let mut drawn: Vec<usize> = (0..states.saturating_mul(4))
        .map(|index| {
            let anywhere = chance.below(history.len);
            if answers.is_empty() || index % 4 == 3 {
                return anywhere;
            }
            let answer = answers[chance.below(answers.len())];
            // Just before it, at it, and soon after, when the guest continues because of it.
            (answer + chance.below(12)).saturating_sub(3)
        })
        .collect();
    drawn.sort_unstable();
    drawn.dedup();
    // In the order of time, which of them are open; then, in the order of chance, as many as are
    // needed.
    let mut storage = Storage::new(history, base.to_vec());
    let mut found: Vec<(u64, usize, bool)> = Vec::new();
    for cut in drawn {
        storage.advance(cut);
        found.push((chance.draw(), cut, !storage.open().is_empty()));
    }
    found.sort_unstable();
    let settled = found.iter().filter(|(.., is_open)| !is_open).take(states / 20);
    let mut cuts: Vec<usize> = settled.map(|(_, cut, _)| *cut).collect();
    let open = (states - cuts.len()).div_ceil(Strategy::ALL.len());
    cuts.extend(found.iter().filter(|(.., is_open)| *is_open).take(open).map(|(_, cut, _)| *cut));
    cuts.sort_unstable();
    cuts
}

/// Tools and data for looking at states of a volume.
struct Looker<'a> {
    bench: &'a Bench,
    judge: &'a Judge,
    told: &'a Told,
    /// The image from which it all began.
    base: &'a [u8],
    seed: u64,
}

/// Looks at states of a volume; those until an error count, too.
fn check(
    looker: &Looker<'_>,
    history: &History,
    states: usize,
    interrupt: &Interrupt,
) -> (Checked, Result<()>) {
    let begin = Instant::now();
    let mut checked = Checked {
        by: Strategy::ALL.map(|strategy| (strategy, [0; 3])).to_vec(),
        ..Checked::default()
    };
    let looked = look(looker, history, states, interrupt, &mut checked);
    checked.took = begin.elapsed();
    (checked, looked)
}

/// With each cut, a state for each strategy.
fn look(
    looker: &Looker<'_>,
    history: &History,
    states: usize,
    interrupt: &Interrupt,
    checked: &mut Checked,
) -> Result<()> {
    let Looker { bench, judge, told, base, seed } = *looker;
    let mut chance = Chance(seed);
    let mut storage = Storage::new(history, base.to_vec());
    for cut in cuts(history, states, base, &mut chance) {
        storage.advance(cut);
        let is_open = !storage.open().is_empty();
        let expected = told.at(cut);
        // Where there is no choice, all of them are the same.
        let strategies = if is_open { &Strategy::ALL[..] } else { &[Strategy::None] };
        for strategy in strategies {
            interrupt.check()?;
            let choose = chooser(*strategy, &storage, &mut chance);
            let image = bench.image();
            let written = storage.state(choose, |pieces| write_image(&image, base.len(), pieces));
            written.context(ErrorKind::Io, || format!("{}", image.display()))?;
            let mut lost = Ok(Vec::new());
            let unsound = bench.check(|files| lost = losses(judge, files, &expected))?;
            let lost = lost?;
            checked.add(*strategy, is_open, unsound.is_some(), !lost.is_empty());
            tracing::debug!("a state was looked at");
            if checked.told.len() < TOLD && (unsound.is_some() || !lost.is_empty()) {
                let what: Vec<String> =
                    unsound.into_iter().chain(lost.into_iter().take(3)).collect();
                checked.told.push(format!(
                    "power cut at entry {cut} of {}, seed {seed}, {}: {}",
                    history.len,
                    strategy.name(),
                    what.join("; ")
                ));
            }
        }
    }
    Ok(())
}

/// Faults of the files of all workers.
fn losses(judge: &Judge, files: &Path, expected: &BTreeMap<u32, u64>) -> Result<Vec<String>> {
    let mut losses = Vec::new();
    for (worker, told) in expected {
        losses.extend(judge.wrong(&files.join(format!("w{worker}")), *worker, *told)?);
    }
    Ok(losses)
}

fn write_image(
    path: &Path,
    len: usize,
    pieces: &mut dyn Iterator<Item = (usize, &[u8])>,
) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    // Unwritten places become holes, over any earlier content.
    let file = std::fs::File::create(path)?;
    file.set_len(len as u64)?;
    for (at, bytes) in pieces {
        file.write_all_at(bytes, at as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(broken: Checked, states: Checked) -> Outcome {
        Outcome {
            file_system: FileSystem::Ext4,
            load: Load::Mail,
            arm: Arm { cache: "pdc".into(), is_direct: true },
            flushes: Findings::default(),
            broken_promises: Vec::new(),
            writes: [0, 300],
            direct_writes: Some(80),
            steps: 20,
            states,
            broken: Some(broken),
            is_whole: true,
        }
    }

    #[test]
    fn either_control_proves_the_check() {
        for (unsound, lost, is_good) in [(0, 34, true), (11, 0, true), (7, 35, true), (0, 0, false)]
        {
            let broken = Checked { states: 42, unsound, lost, ..Checked::default() };
            assert_eq!(
                outcome(broken, Checked::default()).is_good(),
                is_good,
                "{unsound} unsound, {lost} with losses"
            );
        }
        let seen = Checked { lost: 1, ..Checked::default() };
        assert!(!outcome(seen.clone(), seen.clone()).is_good());
        // A check that was ended early need not have seen anything; losses are losses all the same.
        let early = |states| Outcome { is_whole: false, ..outcome(Checked::default(), states) };
        assert!(early(Checked::default()).is_good() && !early(seen).is_good());
    }
}
