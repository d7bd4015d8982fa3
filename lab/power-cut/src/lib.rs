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
mod options;
mod report;
pub mod states;
pub mod storage;

use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use vlane_guest::Host;
use vlane_report::Report;
use vlane_trace::storage::{Action, Findings, History, Purpose, Reader};

use self::file_system::Bench;
pub use self::file_system::FileSystem;
pub use self::load::Load;
use self::load::Told;
pub use self::options::{Arm, Options};
use self::states::{STRATEGIES, chooser};
use self::storage::Storage;
use vlane_testbed::{
    At, Call, Context, ErrorKind, Fail, Interrupt, Medium, Place, Result, missing, word,
};

/// Number of states whose faults are printed.
const TOLD: usize = 5;

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
    pub by: [[usize; 3]; STRATEGIES.len()],
    /// How long it took.
    pub took: Duration,
}

impl Checked {
    fn add(&mut self, strategy: usize, is_open: bool, is_unsound: bool, has_losses: bool) {
        self.open += usize::from(is_open);
        let counts = [1, usize::from(is_unsound), usize::from(has_losses)];
        let sums = [&mut self.states, &mut self.unsound, &mut self.lost];
        for ((sum, of_strategy), count) in sums.into_iter().zip(&mut self.by[strategy]).zip(counts)
        {
            *sum += count;
            *of_strategy += count;
        }
    }
}

impl Outcome {
    /// Its file system, and what wrote to it, for people.
    pub fn what(&self) -> String {
        let file_system = self.file_system.facts().name;
        match self.load {
            Load::Files => file_system.to_owned(),
            load => format!("{file_system}, {}", word(load)),
        }
    }

    /// Returns true if no fault was found, and the check has shown that it finds faults.
    pub fn is_good(&self) -> bool {
        // One way of two is enough: a journal that was written whole replays soundly, though all of
        // its flushes failed to act. Of few states none may then be unsound, while most have
        // losses. If not all states were looked at, neither is expected.
        let sees = !self.is_whole
            || self.broken.as_ref().is_none_or(|broken| broken.lost + broken.unsound > 0);
        // A guest whose journal has gone through the page cache all the same proves no direct
        // writes.
        let is_as_meant = self.direct_writes != Some(0);
        let is_sound = self.states.unsound == 0 && self.states.lost == 0;
        is_sound && self.flushes.violations.is_empty() && sees && is_as_meant
    }
}

/// Has a guest write to volumes, records that, and looks at states of each. Returns the report, and
/// the names of volumes with faults.
///
/// # Errors
/// [`ErrorKind::Missing`] if a part is not on this machine, [`ErrorKind::Interrupted`], and any
/// obstacle before the first state. After that, the states until then are kept. Faults of states
/// are no errors: [`Outcome::is_good`].
pub fn run(options: &Options, call: &Call<'_>) -> Result<(Report, Vec<String>)> {
    let host = &options.installs.host()?;
    let mut outcomes = Vec::new();
    let mut each = options.file_system.iter();
    let ended =
        each.try_for_each(|file_system| run_one(options, call, *file_system, host, &mut outcomes));
    let mut report = report::report(options, &outcomes, &call.begun);
    if let Err(error) = ended {
        if outcomes.is_empty() {
            return Err(error);
        }
        let whole = outcomes.iter().filter(|outcome| outcome.is_whole).count();
        let wanted = options.file_system.len() * options.volumes().len();
        report.mark_partial(missing("volume", whole, wanted, &error));
    }
    let name = |outcome: &Outcome| format!("{} with {}", outcome.what(), outcome.arm.name());
    let bad = outcomes.iter().filter(|outcome| !outcome.is_good()).map(name).collect();
    Ok((report, bad))
}

/// Looks at the volumes of a file system; `outcomes` has what came until an error.
fn run_one(
    options: &Options,
    call: &Call<'_>,
    file_system: FileSystem,
    host: &Host,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    let bytes = file_system.facts().size.saturating_mul(2 * options.volumes().len() as u64 + 1);
    let place = Place::find(Medium::Disk, options.disk_dir.as_deref(), bytes, "--disk-dir")?;
    let dir = tempfile::TempDir::with_prefix_in("vlane-power-cut-", place.dir());
    let dir = dir.at(place.dir(), "no directory can be made there")?;
    let in_memory = Path::new("/dev/shm");
    let bench_dir = if in_memory.is_dir() { in_memory } else { dir.path() };
    // Requirements are checked before a guest is started.
    Bench::new(host, file_system, bench_dir)?;
    let loads = options.loads();
    if loads.contains(&Load::Sqlite) {
        host.program("sqlite3")?;
    }
    let base = dir.path().join("base");
    file_system.make(host, &base)?;
    guest::record(options, call, file_system, host, dir.path())?;
    let base =
        std::fs::read(&base).context(ErrorKind::Io, || "the image from which it all began")?;

    let volume = |load: Load, arm: &Arm, outcome: &mut Option<Outcome>| -> Result<()> {
        let history = read(&guest::file(dir.path(), arm, load, "record"))?;
        let bench = &Bench::new(host, file_system, bench_dir)?;
        let told = &Told::new(&history, load);
        let looker = Looker { bench, load, told, base: &base, options, interrupt: call.interrupt };
        looker.volume(history, file_system, arm, outcome)
    };
    let arms = options.arms();
    // One load after the other, for the memory that states take.
    for load in loads {
        // Mostly they wait for tools.
        let looked: Vec<(Option<Outcome>, Result<()>)> = std::thread::scope(|scope| {
            let one = |arm| {
                let mut outcome = None;
                let ended = volume(load, arm, &mut outcome);
                (outcome, ended)
            };
            let all: Vec<_> = arms.iter().map(|arm| scope.spawn(move || one(arm))).collect();
            let all = all.into_iter().map(std::thread::ScopedJoinHandle::join);
            all.map(|one| one.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let mut ended = Ok(());
        for (outcome, looked) in looked {
            outcomes.extend(outcome);
            ended = ended.and(looked);
        }
        ended?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<History> {
    let at = || format!("{}", path.display());
    let file = std::fs::File::open(path).context(ErrorKind::Io, at)?;
    let reader = Reader::new(std::io::BufReader::with_capacity(1 << 20, file));
    let reader = reader.context(ErrorKind::Format, at)?;
    if reader.header().in_memory {
        return ErrorKind::Invalid
            .fail("the image lies in memory, which is never durable; give a directory on a disk");
    }
    History::new(reader).context(ErrorKind::Format, at)
}

/// Where the power goes: mostly around the answers of flushes and durable writes, where promises
/// begin; and anywhere. As many as give so many states, nearly all of them where something is not
/// durable: elsewhere there is one state only.
fn cuts(history: &History, states: usize, base: &[u8], chance: &mut Rng) -> Vec<usize> {
    let mut answers: Vec<usize> = history
        .requests
        .iter()
        .filter(|request| request.kind == Purpose::Flush || request.durable)
        .filter_map(|request| request.answer.map(|(at, _)| at))
        .collect();
    answers.sort_unstable();
    let mut drawn: Vec<usize> = (0..states.saturating_mul(4))
        .map(|index| {
            let anywhere = chance.usize(..history.len.max(1));
            match chance.choice(&answers) {
                // Just before it, at it, and soon after, when the guest continues because of it.
                Some(answer) if index % 4 != 3 => (answer + chance.usize(..12)).saturating_sub(3),
                _ => anywhere,
            }
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
        found.push((chance.u64(..), cut, !storage.open().is_empty()));
    }
    found.sort_unstable();
    let settled = found.iter().filter(|(.., is_open)| !is_open).take(states / 20);
    let mut cuts: Vec<usize> = settled.map(|(_, cut, _)| *cut).collect();
    let open = (states - cuts.len()).div_ceil(STRATEGIES.len());
    cuts.extend(found.iter().filter(|(.., is_open)| *is_open).take(open).map(|(_, cut, _)| *cut));
    cuts.sort_unstable();
    cuts
}

/// Tools and data for looking at states of a volume.
struct Looker<'a> {
    bench: &'a Bench,
    load: Load,
    told: &'a Told,
    /// The image from which it all began.
    base: &'a [u8],
    options: &'a Options,
    interrupt: &'a Interrupt,
}

impl Looker<'_> {
    /// Looks at the states of one volume, and, if wanted, at those without working flushes.
    fn volume(
        &self,
        history: History,
        file_system: FileSystem,
        arm: &Arm,
        found: &mut Option<Outcome>,
    ) -> Result<()> {
        let mut states = Checked::default();
        let mut looked = self.look(&history, self.options.states, &mut states);
        if looked.is_err() && states.states == 0 {
            return looked;
        }
        let flushes = history.flushes();
        let words = flushes.violations.iter().take(TOLD).map(|violation| history.tell(*violation));
        let writes = |of: fn(u8, bool) -> bool| {
            let is = |what: &Action| match what {
                Action::Write { file, durable, .. } => of(*file, *durable),
                _ => false,
            };
            history.operations.iter().filter(|operation| is(&operation.what)).count()
        };
        let outcome = found.insert(Outcome {
            file_system,
            load: self.load,
            arm: arm.clone(),
            broken_promises: words.collect(),
            writes: [writes(|_, durable| durable), writes(|_, durable| !durable)],
            // Around the page cache, on a volume that has both ways.
            direct_writes: arm.is_direct.then(|| writes(|file, _| file == 0)),
            flushes,
            steps: self.told.steps(),
            states,
            broken: None,
            is_whole: false,
        });
        if looked.is_ok() && self.options.broken_states > 0 {
            let mut broken = Checked::default();
            looked =
                self.look(&history.with_nothing_durable(), self.options.broken_states, &mut broken);
            outcome.broken = (broken.states > 0).then_some(broken);
        }
        outcome.is_whole = looked.is_ok();
        looked
    }

    /// Looks at as many states; with each cut, at one for each strategy. Those until an error
    /// count, too.
    fn look(&self, history: &History, states: usize, checked: &mut Checked) -> Result<()> {
        let Self { bench, load, told, base, options: &Options { seed, .. }, .. } = *self;
        let begin = Instant::now();
        let mut chance = Rng::with_seed(seed);
        let mut storage = Storage::new(history, base.to_vec());
        for cut in cuts(history, states, base, &mut chance) {
            storage.advance(cut);
            let is_open = !storage.open().is_empty();
            let expected = told.at(cut);
            // Where there is no choice, all of them are the same.
            let strategies = if is_open { &STRATEGIES[..] } else { &STRATEGIES[..1] };
            for (at, (strategy, name)) in strategies.iter().enumerate() {
                self.interrupt.check()?;
                let choose = chooser(*strategy, &storage, &mut chance);
                let image = bench.image();
                let written =
                    storage.state(choose, |pieces| write_image(&image, base.len(), pieces));
                written.context(ErrorKind::Io, || format!("{}", image.display()))?;
                let mut lost = Ok(Vec::new());
                let unsound = bench.check(|files| {
                    let of = |(worker, told): (&u32, &u64)| {
                        load.wrong(&files.join(format!("w{worker}")), *worker, *told)
                    };
                    lost = expected.iter().map(of).collect::<Result<Vec<_>>>();
                })?;
                let lost = lost?.concat();
                checked.add(at, is_open, unsound.is_some(), !lost.is_empty());
                checked.took = begin.elapsed();
                tracing::debug!("a state was looked at");
                if checked.told.len() < TOLD && (unsound.is_some() || !lost.is_empty()) {
                    let what: Vec<String> =
                        unsound.into_iter().chain(lost.into_iter().take(3)).collect();
                    checked.told.push(format!(
                        "power cut at entry {cut} of {}, seed {seed}, {name}: {}",
                        history.len,
                        what.join("; ")
                    ));
                }
            }
        }
        Ok(())
    }
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
