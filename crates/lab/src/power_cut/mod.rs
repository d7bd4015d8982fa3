//! Power cuts: a guest writes, everything that reaches the storage is recorded, and from the record come states in which a power cut could
//! have left it. In each of them the guest's file system must be sound when it is mounted again, and what the guest was told is durable must
//! be there. `docs/src/power-cut.md` says which states are possible, and why.

mod file_system;
mod guest;
mod load;
mod report;
pub mod states;
pub mod storage;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vlane_boot::Host;
use vlane_trace::storage::{Findings, History, Reader, RequestKind};

use self::file_system::Bench;
pub use self::file_system::FileSystem;
use self::load::Told;
pub use self::report::report;
use self::states::{Chance, Strategy, chooser};
use self::storage::Storage;
use crate::error::{Context, ErrorKind, Result};
pub use crate::guests::Machines;
use crate::image::{Medium, Place};
use crate::interrupt::Interrupt;

/// What is wrong is told of so many states.
const TOLD: usize = 5;

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Options {
    /// vlane's own file.
    pub vlane: PathBuf,
    /// Cache modes, as `--cache` of `vlane serve` names them: a volume of the guest for each.
    pub modes: Vec<String>,
    /// The guest's file system.
    pub file_system: FileSystem,
    /// Which guest.
    pub machines: Machines,
    /// How many programs write to each volume at once.
    pub workers: u32,
    /// What each of them does: steps of four fsyncs.
    pub steps: u64,
    /// States of each volume that are looked at.
    pub states: usize,
    /// States of each volume that are looked at as if its storage did not do what it was told (see [`Outcome::broken`]).
    pub broken_states: usize,
    /// Which states: the same seed draws the same ones from the same record.
    pub seed: u64,
    /// Where images and records go: on a disk, since in memory nothing is ever flushed.
    pub disk_dir: Option<PathBuf>,
}

/// What came of one volume.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its cache mode.
    pub mode: String,
    /// Whether each flush kept its promise, by the record.
    pub flushes: Findings,
    /// Promises that were not kept, in words.
    pub broken_promises: Vec<String>,
    /// Durable writes and others.
    pub writes: [usize; 2],
    /// The guest's steps.
    pub steps: u64,
    /// What its states are like.
    pub states: Checked,
    /// What they would be like if no flush did anything, but said that it did: it must be seen that the check sees it. A volume whose guest does
    /// not flush (`writethrough`) has no such states.
    pub broken: Option<Checked>,
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
    /// Nothing is wrong with any of them.
    pub fn is_sound(&self) -> bool {
        self.unsound == 0 && self.lost == 0
    }
}

impl Outcome {
    /// Everything is as it should be, and the check has shown that it would see it if not.
    pub fn is_good(&self) -> bool {
        let sees = self.broken.as_ref().is_none_or(|broken| broken.unsound > 0 && broken.lost > 0);
        self.states.is_sound() && self.flushes.violations.is_empty() && sees
    }
}

/// Has a guest write to volumes, records that, and looks at states of each.
///
/// # Errors
/// [`ErrorKind::Missing`] if something is not on this machine, [`ErrorKind::Interrupted`], and whatever keeps it from being done. What is wrong with
/// states is no error: [`Outcome::is_good`].
pub fn run(options: &Options, host: &Host, interrupt: &Interrupt) -> Result<Vec<Outcome>> {
    let dir = {
        let bytes = options.file_system.size().saturating_mul(2 * options.modes.len() as u64 + 1);
        let place = Place::find(Medium::Disk, options.disk_dir.as_deref(), bytes, "--disk-dir")?;
        tempfile::TempDir::with_prefix_in("vlane-power-cut-", place.dir())
            .context(ErrorKind::Io, || format!("{}: no directory can be made there", place.dir().display()))?
    };
    let bench_dir = Path::new("/dev/shm");
    let bench_dir = if bench_dir.is_dir() { bench_dir } else { dir.path() };
    // Whether it can be done at all, before a guest is started.
    Bench::new(host, options.file_system, bench_dir)?;
    let base = dir.path().join("base");
    options.file_system.make(host, &base)?;
    guest::record(options, host, interrupt, dir.path(), &base)?;
    let base = std::fs::read(&base).context(ErrorKind::Io, || "the image from which it all began")?;

    let volume = |mode: &String| -> Result<Outcome> {
        let history = read(&guest::record_of(dir.path(), mode))?;
        let bench = Bench::new(host, options.file_system, bench_dir)?;
        let look = |history: &History, states, seed| check(&bench, history, &base, states, seed, interrupt);
        let flushes = history.flushes();
        let words = flushes.violations.iter().take(TOLD).map(|violation| history.tell(*violation));
        let states = look(&history, options.states, options.seed)?;
        let flushes_at_all = history.requests.iter().any(|request| request.kind == RequestKind::Flush);
        let broken_promises = words.collect();
        let (writes, steps) = (writes(&history), Told::new(&history).steps());
        let broken = match options.broken_states {
            states if states > 0 && flushes_at_all => {
                Some(look(&history.with_broken_syncs(|_| true), states, options.seed)?)
            }
            _ => None,
        };
        Ok(Outcome { mode: mode.clone(), flushes, broken_promises, writes, steps, states, broken })
    };
    // One at a time on each CPU would be best; there are as many as modes.
    std::thread::scope(|scope| {
        let volumes: Vec<_> = options.modes.iter().map(|mode| scope.spawn(|| volume(mode))).collect();
        volumes
            .into_iter()
            .map(|volume| volume.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn read(path: &Path) -> Result<History> {
    let file = std::fs::File::open(path).context(ErrorKind::Io, || format!("{}", path.display()))?;
    let reader = Reader::new(std::io::BufReader::with_capacity(1 << 20, file));
    let history = reader.and_then(|reader| {
        let in_memory = reader.header().in_memory;
        History::new(reader).map(|history| (history, in_memory))
    });
    let (history, in_memory) = history.context(ErrorKind::Format, || format!("{}", path.display()))?;
    match in_memory {
        false => Ok(history),
        true => Err(crate::Error::new(
            ErrorKind::Invalid,
            "the image lies in memory, where nothing is ever durable; give a directory on a disk",
        )),
    }
}

/// Durable writes and others.
fn writes(history: &History) -> [usize; 2] {
    let mut writes = [0; 2];
    for operation in &history.operations {
        if let vlane_trace::storage::What::Write { durable, .. } = operation.what {
            writes[usize::from(!durable)] += 1;
        }
    }
    writes
}

/// Where the power goes: mostly around the answers of flushes and durable writes, where promises begin; and anywhere.
fn cuts(history: &History, count: usize, chance: &mut Chance) -> Vec<usize> {
    let mut answers: Vec<usize> = history
        .requests
        .iter()
        .filter(|request| request.kind == RequestKind::Flush || request.durable)
        .filter_map(|request| request.answer.map(|(at, _)| at))
        .collect();
    answers.sort_unstable();
    let mut cuts: Vec<usize> = (0..count)
        .map(|index| {
            let anywhere = chance.below(history.len);
            if answers.is_empty() || index % 4 == 3 {
                return anywhere;
            }
            let answer = answers[chance.below(answers.len())];
            // Just before it, at it, and soon after, when the guest goes on because of it.
            (answer + chance.below(12)).saturating_sub(3)
        })
        .collect();
    cuts.sort_unstable();
    cuts
}

/// Looks at states of a volume. Each cut has all strategies in turn, as far as that gives so many states.
fn check(
    bench: &Bench,
    history: &History,
    base: &[u8],
    states: usize,
    seed: u64,
    interrupt: &Interrupt,
) -> Result<Checked> {
    let begin = Instant::now();
    let mut chance = Chance(seed);
    let told = Told::new(history);
    let mut checked =
        Checked { by: Strategy::ALL.map(|strategy| (strategy, [0; 3])).to_vec(), ..Checked::default() };
    let mut storage = Storage::new(history, base.to_vec());
    for cut in cuts(history, states.div_ceil(Strategy::ALL.len()), &mut chance) {
        storage.advance(cut);
        let is_open = !storage.open().is_empty();
        let expected = told.at(cut);
        for index in 0..Strategy::ALL.len() {
            interrupt.check()?;
            // Where there is nothing to choose, all of them are the same.
            if checked.states == states || (!is_open && index > 0) {
                break;
            }
            let strategy = checked.by[index].0;
            let choose = chooser(strategy, &storage, &mut chance);
            let image = bench.image();
            let written = storage.state(choose, |pieces| write_image(&image, base.len(), pieces));
            written.context(ErrorKind::Io, || format!("{}", image.display()))?;
            let mut lost = Vec::new();
            let unsound = bench.check(|files| lost = losses(files, &expected))?;
            checked.states += 1;
            checked.open += usize::from(is_open);
            checked.unsound += usize::from(unsound.is_some());
            checked.lost += usize::from(!lost.is_empty());
            let by = &mut checked.by[index].1;
            by[0] += 1;
            by[1] += usize::from(unsound.is_some());
            by[2] += usize::from(!lost.is_empty());
            if checked.told.len() < TOLD && (unsound.is_some() || !lost.is_empty()) {
                let what: Vec<String> = unsound.into_iter().chain(lost.into_iter().take(3)).collect();
                let strategy = strategy.name();
                checked.told.push(format!(
                    "power cut at entry {cut} of {}, seed {seed}, {strategy}: {}",
                    history.len,
                    what.join("; ")
                ));
            }
        }
    }
    checked.took = begin.elapsed();
    Ok(checked)
}

/// What is wrong with the files of all workers.
fn losses(files: &Path, expected: &BTreeMap<u32, u64>) -> Vec<String> {
    expected
        .iter()
        .flat_map(|(worker, told)| load::wrong(&files.join(format!("w{worker}")), *worker, *told))
        .collect()
}

fn write_image(
    path: &Path,
    len: usize,
    pieces: &mut dyn Iterator<Item = (usize, &[u8])>,
) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    // Holes for what is not written, whatever was there before.
    let file = std::fs::File::create(path)?;
    file.set_len(len as u64)?;
    for (at, bytes) in pieces {
        file.write_all_at(bytes, at as u64)?;
    }
    Ok(())
}
