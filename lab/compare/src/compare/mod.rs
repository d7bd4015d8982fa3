//! `compare host`: the cost of virtualisation here, its causes, and the gain by lanes.
//!
//! The same loads ([`loads`]) run on the host directly and in one guest that has a disk of every
//! kind ([`columns`]). The disks are vlane's, QEMU's own virtio-blk, qemu-storage-daemon's, and
//! emulated ones, each on an image of its own with equal content (`scratch.rs`). Measurements of
//! one load follow each other in alternating order (`plan.rs`), so that every figure is close in
//! time to the figures that it is compared with. `guest` leads the guest, `host` runs fio on the
//! host, `native` drives the back ends without a guest; [`report`] presents the results.
//!
//! All requirements are checked before anything starts ([`Found::look`]).

pub mod columns;
mod guest;
pub(crate) mod host;
mod jobs;
pub mod loads;
mod native;
mod options;
mod plan;
pub mod report;
mod results;
mod scratch;
mod summary;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use vlane::boot::AccelArg;
use vlane_cost::{Counted, Tally, Used, calls, kvm};
use vlane_error::counted;
use vlane_guest::{Accel, Choice, Host, Kernel, QemuProgram};
use vlane_report::Report;
use vlane_testbed::{
    Aio, Call, Control, Counters, ErrorKind, Fail, Progress, Result, Rounds, Server, Storage,
};
use vlane_units::show_size;

use self::columns::Column;
use self::guest::Machine;
use self::jobs::{CacheState, Settings, Sizes};
use self::loads::Load;
pub use self::options::Options;
use self::plan::Round;
use self::results::{LoadResult, Sample, Work};
use self::scratch::Scratch;

/// Programs and places, all found before anything is started.
#[derive(Debug)]
pub struct Found {
    fio: PathBuf,
    program: QemuProgram,
    kernel: Kernel,
    accel: Choice,
    storage_daemon: Option<PathBuf>,
    place: PathBuf,
    sizes: Sizes,
    /// Columns that will be measured, the host first.
    columns: Vec<Column>,
    /// Columns that cannot be, and why.
    missing: Vec<(Column, String)>,
}

impl Found {
    /// Looks for the programs and places that a comparison needs.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] with the package to install; [`ErrorKind::Invalid`] if there is no
    /// room, or what was asked for needs root.
    pub fn look(options: &Options, host: &Host) -> Result<Self> {
        let (dir, bytes) = options.target()?;
        if options.cache == CacheState::Cold && !host::can_drop_caches() {
            return ErrorKind::Invalid.fail(
                "a cold page cache needs root: it empties the caches of the whole host; measure \
                 direct or warm, or run it as root",
            );
        }
        let sizes = Sizes::of(bytes.unwrap_or(options.extent().3))?;
        let fio = host.program("fio")?;
        host.program("mkfs.ext4")?;
        host.program("busybox")?;
        let program = match &options.qemu {
            Some(path) => QemuProgram::at(path)?,
            None => QemuProgram::find(host)?,
        };
        let kernel = Kernel::find(host)?;
        let (mut columns, mut missing) = (Vec::new(), Vec::new());
        let daemon =
            options.has(Column::StorageDaemon).then(|| host.program("qemu-storage-daemon"));
        for column in Column::value_variants().iter().copied().filter(|one| options.has(*one)) {
            let why = match &daemon {
                Some(Err(error)) if column == Column::StorageDaemon => Some(error.to_string()),
                _ => column.missing(&program, &kernel.modules),
            };
            match why {
                None => columns.push(column),
                Some(why) => missing.push((column, why)),
            }
        }
        if columns.len() == 1 {
            let why = missing.iter().map(|(column, why)| format!("{}: {why}", column.name()));
            let why = why.collect::<Vec<_>>().join("; ");
            let why = if why.is_empty() { "name at least one" } else { &why };
            return ErrorKind::Missing
                .fail(format!("no column is left to compare with the host; {why}"));
        }
        let place = scratch::find_place(dir.as_deref(), &sizes, columns.len() - 1)?;
        let accel = choose_accel(options.accel, host, &program, &kernel)?;
        let storage_daemon = daemon.and_then(std::result::Result::ok);
        Ok(Self { fio, program, kernel, accel, storage_daemon, place, sizes, columns, missing })
    }

    /// The columns in the guest.
    fn guests(&self) -> impl Iterator<Item = Column> {
        self.columns.iter().copied().filter(|column| *column != Column::Host)
    }

    /// The planned measurements, for people, before the begin.
    pub fn about(&self) -> String {
        let (images, (major, minor)) = (self.columns.len() - 1, self.program.version);
        let mut text = format!(
            "QEMU {major}.{minor}, by {}; Linux {}\n{} of {} in {}, removed afterwards ({} \
             needed)\n",
            self.accel,
            self.kernel.version,
            counted(images, "image"),
            show_size(self.sizes.image),
            self.place.display(),
            show_size(self.sizes.needed(images)),
        );
        for (column, why) in &self.missing {
            text += &format!("not measured: {}: {why}\n", column.name());
        }
        text
    }
}

/// Programs, places and settings of a comparison.
#[derive(Debug, Clone, Copy)]
struct Setup<'a> {
    host: &'a Host,
    found: &'a Found,
    scratch: &'a Scratch,
    settings: Settings,
    call: &'a Call<'a>,
}

impl Setup<'_> {
    /// Starts the back end of a column, on its image; none for a column that has none.
    fn server(&self, column: Column, queues: u16, is_controlled: bool) -> Result<Option<Server>> {
        let (dir, image) = (self.scratch.dir(), self.scratch.image(&column.id()));
        let direct = self.settings.cache == CacheState::Direct;
        let storage = Storage::File { path: &image, direct };
        let server = match (column, &self.found.storage_daemon) {
            (Column::Vlane, _) => {
                let control = self.control().display().to_string();
                let mut words = vec!["--queues".to_owned(), queues.to_string()];
                if is_controlled {
                    words.extend(["--control".to_owned(), control]);
                }
                Server::vlane(self.call.vlane, dir, storage, &[], &words)?
            }
            (Column::StorageDaemon, Some(program)) => {
                Server::qemu_storage_daemon(Aio::IoUring, program, dir, storage, &[], queues)?
            }
            _ => return Ok(None),
        };
        Ok(Some(server))
    }

    /// vlane's control socket.
    fn control(&self) -> PathBuf {
        self.scratch.dir().join("control.sock")
    }

    /// Removes the paths from a command that only this run had, or that name a user.
    fn neutral(&self, command: &str) -> String {
        let cache = self.host.cache().path("").display().to_string();
        let places = [
            (self.scratch.dir().display().to_string(), "SCRATCH"),
            (cache.trim_end_matches('/').to_owned(), "CACHE"),
            (self.call.vlane.display().to_string(), "vlane"),
        ];
        places.iter().fold(command.to_owned(), |text, (place, word)| text.replace(place, word))
    }
}

/// The results of a comparison; [`report::fill`] makes a report of it.
#[derive(Debug)]
struct Outcome {
    /// Guest and host.
    results: Vec<LoadResult>,
    /// The counted pass: where requests go, system calls among it.
    counted: Vec<LoadResult>,
    /// The back ends alone.
    native: Vec<LoadResult>,
    /// Why system calls were not counted.
    uncounted: Option<String>,
    /// The columns, the host first.
    columns: Vec<Column>,
    /// Columns that were not measured, and why.
    missing: Vec<(Column, String)>,
    /// True if conclusions were wanted at all.
    concludes: bool,
    /// How jobs were run.
    settings: Settings,
    /// How the guest's instructions were executed.
    accel: Choice,
    /// Command lines by column, and QEMU's.
    commands: Vec<(String, String)>,
    /// The disks as the guest described them.
    disks: Vec<(Column, String)>,
}

/// The accelerator that was asked for, or the one that a trial chooses.
pub(crate) fn choose_accel(
    wanted: AccelArg,
    host: &Host,
    program: &QemuProgram,
    kernel: &Kernel,
) -> Result<Choice> {
    Ok(match wanted.forced() {
        Some(accel) => Choice { accel, why: "as asked for".into() },
        None => Choice::probe(host, program, kernel)?,
    })
}

/// Compares.
///
/// # Errors
/// Obstacles to the comparison; [`ErrorKind::Interrupted`]. No file or process is left behind in
/// any case.
pub fn run(options: &Options, host: &Host, found: &Found, call: &Call<'_>) -> Result<Report> {
    let begin = Instant::now();
    let plan = Plan::new(options, found);
    let settings = Settings { runtime: plan.runtime, sizes: found.sizes, cache: options.cache };
    let mut preparing = Progress::new(2);
    let guests: Vec<String> = found.guests().map(Column::id).collect();
    let images = counted(guests.len(), "image");
    preparing.step(format!("writing {images} of {}", show_size(found.sizes.image)));
    let (place, sizes) = (&found.place, found.sizes);
    let scratch = Scratch::write(place, sizes, host, &guests, options.cache, call.interrupt)?;
    preparing.step("booting the guest");
    let setup = Setup { host, found, scratch: &scratch, settings, call };
    let in_guest = &plan.rounds[..plan.in_guest];
    let limit = plan.step * plan::steps(in_guest) * 4 + Duration::from_secs(600);
    let machine = Machine::boot(&setup, in_guest, limit)?;
    drop(preparing);
    let mut outcome = Outcome {
        results: Vec::new(),
        counted: Vec::new(),
        native: Vec::new(),
        uncounted: plan.uncounted.clone(),
        columns: found.columns.clone(),
        missing: found.missing.clone(),
        concludes: !options.quick,
        settings,
        accel: found.accel.clone(),
        commands: machine.commands.clone(),
        disks: machine.disks.clone(),
    };
    let steps = usize::try_from(plan::steps(&plan.rounds)).unwrap_or(usize::MAX);
    let progress = Progress::new(steps).expecting(plan.step);
    let rounds = Bench { setup, progress }.rounds(&plan, begin, machine, &mut outcome)?;

    let qemu = found.program.path.display().to_string();
    let mut programs = vec!["fio", &qemu];
    programs.extend(found.storage_daemon.as_ref().map(|_| "qemu-storage-daemon"));
    let mut report = report::fill(&outcome, &call.begun, &programs);
    for (name, _) in &mut report.machine.versions {
        // A program that was given by its path is still QEMU.
        *name = name.rsplit('/').next().unwrap_or_default().to_owned();
    }
    report.machine.versions.push(("Linux (guest)".into(), found.kernel.version.clone()));
    Ok(rounds.marked(report))
}

/// The plan. It must be known before the guest boots, which gets the jobs of all rounds. So it is
/// made on a guess, which is corrected by leaving rounds out ([`Bench::rounds`]).
struct Plan {
    /// Those of the guest, the most important ones first; those in which calls are counted; those
    /// without a guest.
    rounds: Vec<Round>,
    /// Rounds that can be left out; the counted rounds follow.
    spare: Range<usize>,
    /// Number of the rounds with a guest.
    in_guest: usize,
    uncounted: Option<String>,
    /// The time of a measurement, alone and with what it takes beside that, about.
    runtime: Duration,
    step: Duration,
    /// Upper bound for the whole run.
    limit: Option<Duration>,
}

impl Plan {
    fn new(options: &Options, found: &Found) -> Self {
        let (mut runtime, often, limit, _) = options.extent();
        let (loads, columns) = (&options.loads(), &found.columns);
        let deciding = summary::deciding(loads);
        let mut rounds = plan::rounds(loads, columns, &deciding, often);
        let (mut counted, mut uncounted, mut native) = (Vec::new(), None, Vec::new());
        if !options.no_count {
            // Counting slows down what is counted, so the times are not used. These are rounds of
            // a pass that no others have.
            let pass = often.turns.max(often.passes);
            counted = plan::pass(loads, &columns[1..], pass, Load::is_random_fio);
        }
        if !counted.is_empty()
            && let Err(why) = calls::available()
        {
            (counted, uncounted) = (Vec::new(), Some(why));
        }
        let alone = columns.iter().copied().filter(|column| column.controller().is_none());
        let alone: Vec<Column> = alone.collect();
        if !options.no_native && alone.len() > 1 {
            native = plan::rounds(&native::loads(), &alone, &native::deciding(), often);
        }
        // An emulated CPU needs more than a second to load fio's libraries for a round.
        let is_emulated = found.accel.accel == Accel::Tcg;
        let around = Duration::from_millis(if is_emulated { 600 } else { 200 });
        if let Some(limit) = limit {
            let needed = loads.len() + deciding.len() * (often.turns - 1);
            let more = plan::steps(&counted) + plan::steps(&native);
            // The images are written, and the guest boots.
            let limit = limit.saturating_sub(Duration::from_secs(45));
            runtime = plan::fit(&mut rounds, needed, more, (runtime, around), limit);
        }
        let (spare, in_guest) = (loads.len()..rounds.len(), rounds.len() + counted.len());
        let rounds = [rounds, counted, native].concat();
        Self { rounds, spare, in_guest, uncounted, runtime, step: runtime + around, limit }
    }
}

/// Measures rounds.
struct Bench<'a> {
    setup: Setup<'a>,
    progress: Progress,
}

impl Bench<'_> {
    /// Measures the rounds of the plan. Those that are not needed are left out when the time since
    /// `begin` is over.
    fn rounds(
        &mut self,
        plan: &Plan,
        begin: Instant,
        machine: Machine<'_>,
        outcome: &mut Outcome,
    ) -> Result<Rounds> {
        let after = plan::steps(&plan.rounds[plan.spare.end..]);
        let (first, mut made, mut machine) = (Instant::now(), 0, Some(machine));
        Rounds::measure(plan.rounds.len(), |index| {
            let round = &plan.rounds[index];
            let steps = plan::steps(std::slice::from_ref(round));
            // Other work on the machine makes measurements take longer than planned. The finished
            // measurements show by how much.
            if let Some(limit) = plan.limit
                && plan.spare.contains(&index)
                && begin.elapsed() + first.elapsed() / made * (steps + after) > limit
            {
                self.progress.add_steps(-isize::try_from(steps).unwrap_or(0));
                return Ok(());
            }
            let (is_counted, is_native) = (index >= plan.spare.end, index >= plan.in_guest);
            let into = match (is_counted, is_native) {
                (_, true) => &mut outcome.native,
                (true, _) => &mut outcome.counted,
                _ => &mut outcome.results,
            };
            // The back ends without a guest lock the same images.
            machine = machine.take().filter(|_| !is_native);
            let samples = match &mut machine {
                Some(machine) => self.in_guest(round, machine, is_counted)?,
                None => {
                    let alone = |column: &Column| self.alone(round, *column);
                    round.order.iter().map(alone).collect::<Result<_>>()?
                }
            };
            LoadResult::add(into, round.load, samples);
            made += steps;
            Ok(())
        })
    }

    fn step(&mut self, round: &Round, column: Column) -> Result<()> {
        self.setup.call.interrupt.check()?;
        self.progress.step(format!("{}, {}", round.load.long_name(), column.name()));
        Ok(())
    }

    /// A load on the host, or on a back end without a guest.
    fn alone(&mut self, round: &Round, column: Column) -> Result<(Column, Sample)> {
        self.step(round, column)?;
        let outcome = native::measure(&self.setup, &round.load, column)?;
        Ok((column, Sample { outcome, work: None }))
    }

    /// One load on every column, in the round's order. The host is the first or the last one: its
    /// fio has its turn while the guest's does not run.
    fn in_guest(
        &mut self,
        round: &Round,
        machine: &mut Machine<'_>,
        is_counting: bool,
    ) -> Result<Vec<(Column, Sample)>> {
        let setup = self.setup;
        let (mut samples, mut works) = (Vec::new(), Vec::new());
        if round.order.first() == Some(&Column::Host) {
            samples.push(self.alone(round, Column::Host)?);
        }
        machine.guest.send(&format!("run {}\n", round.id()))?;
        for column in round.in_guest() {
            self.step(round, column)?;
            if setup.settings.cache == CacheState::Cold {
                host::drop_caches()?;
            }
            let before = machine.counters("begin", round, column, Duration::ZERO)?;
            let mut sampler = results::sampler(machine.guest.id(), machine.server(column));
            if is_counting {
                sampler = sampler.count_calls();
            }
            let (told, from) = (Told::look(&setup, machine.guest.id(), column), sampler.take());
            machine.guest.send("go\n")?;
            let after = machine.counters("end", round, column, setup.settings.runtime)?;
            let used = sampler.take().since(&from);
            let told = [told, Told::look(&setup, machine.guest.id(), column)];
            let disk = [0, 1].map(|at| after[at].saturating_sub(before[at]));
            works.push((column, used, disk, told));
        }
        for (column, used, disk, told) in works {
            let outcome = machine.outcome(round, column)?;
            let work = Some(work(outcome.ios, &used, disk, told));
            samples.push((column, Sample { outcome, work }));
        }
        if round.order.last() == Some(&Column::Host) {
            samples.push(self.alone(round, Column::Host)?);
        }
        Ok(samples)
    }
}

/// Counters of others, where they are available: vlane's lanes, and KVM (its figures need root).
#[derive(Debug)]
struct Told {
    lanes: Option<Counters>,
    exits: Counted<Tally>,
}

impl Told {
    fn look(setup: &Setup<'_>, qemu: u32, column: Column) -> Self {
        let counters = || Control::new(setup.control()).counters().ok();
        let lanes = (column == Column::Vlane).then(counters).flatten();
        Self { lanes, exits: kvm::take(i32::try_from(qemu).unwrap_or(-1)) }
    }
}

/// Work for each of `ios` requests, by the counters before and after.
fn work(ios: f64, used: &Used, disk: [u64; 2], [before, after]: [Told; 2]) -> Work {
    let per_io = |count: u64| count as f64 / ios;
    let lanes = |name: &str| {
        let of = |told: &Told| told.lanes.as_ref()?.sum.get(name).copied();
        Some(per_io(of(&after)?.saturating_sub(of(&before)?)))
    };
    let (kicks, signals) = (lanes("kicks"), lanes("signals"));
    let exits = after.exits.and_then(|after| Ok(after.since(&before.exits?)));
    let exits = exits.as_ref().map_or_else(
        |_| BTreeMap::new(),
        |stats| {
            let all = std::iter::once(("exits", stats.of("exits"))).chain(kvm::reasons(stats));
            all.map(|(name, count)| (name.to_owned(), per_io(count))).collect()
        },
    );
    let [interrupts, requests] = disk.map(per_io);
    Work { requests, interrupts, kicks, signals, exits, parts: results::parts(used, ios) }
}
