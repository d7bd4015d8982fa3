//! `compare host`: the cost of virtualisation here, its causes, and the gain by lanes.
//!
//! The same loads ([`loads`]) run on the host directly and in one guest that has a disk of every
//! kind ([`columns`]). The disks are vlane's, QEMU's own virtio-blk, qemu-storage-daemon's, and
//! emulated ones, each on an image of its own with equal content ([`scratch`]). Measurements of one
//! load follow each other in alternating order ([`plan`]), so that every figure is close in time to
//! the figures that it is compared with. [`guest`] leads the guest, [`host`] runs fio on the host,
//! [`native`] drives the back ends without a guest; [`report`] presents the results.
//!
//! All requirements are checked before anything starts ([`Found::look`]).

pub mod columns;
pub mod guest;
pub mod host;
pub mod jobs;
pub mod loads;
pub mod native;
mod parts;
pub mod plan;
pub mod report;
pub mod results;
mod samples;
pub mod scratch;
mod summary;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use vlane_error::counted;
use vlane_guest::{Accel, Choice, Host, Kernel, QemuProgram};
use vlane_report::build::Begun;
use vlane_units::show_size;

use self::columns::{ALL, Column, Missing};
use self::guest::{Machine, Parts, VCPUS};
use self::host::HostFio;
use self::jobs::{CacheState, Settings};
use self::loads::{Load, Suite};
use self::native::Native;
use self::parts::Pids;
use self::plan::{Costs, Often, Round};
use self::results::{Measurement, Results, Work};
use self::scratch::{Scratch, Sizes, Target};
use vlane_client::progress::Progress;
use vlane_cost::kvm::KvmStats;
use vlane_cost::{Counted, calls};
use vlane_report::Report;
use vlane_testbed::control::Control;
use vlane_testbed::error::{Error, ErrorKind, Result};
use vlane_testbed::fio;
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::server::{Server, Storage};

/// Options of the comparison.
#[derive(Debug, Clone)]
pub struct Options {
    /// vlane's own program: it serves the guest's disk.
    pub vlane: PathBuf,
    /// The command that makes this report again.
    pub command: String,
    /// Where the images are to be.
    pub target: Target,
    /// Bytes of each image.
    pub image_bytes: u64,
    /// The columns; [`Column::Host`] is always measured.
    pub columns: Vec<Column>,
    /// The loads.
    pub loads: Vec<Load>,
    /// The time of one measurement.
    pub runtime: Duration,
    /// How often.
    pub often: Often,
    /// True if sentences are concluded from it.
    pub concludes: bool,
    /// The whole shall not take longer: fewer passes, then shorter measurements. `None` takes what
    /// it takes.
    pub limit: Option<Duration>,
    /// The page caches.
    pub cache: CacheState,
    /// Another QEMU than the one that is installed.
    pub qemu: Option<PathBuf>,
    /// How the guest's instructions are executed; `None` tries KVM.
    pub accel: Option<Accel>,
    /// Also drive the back ends without a guest.
    pub native: bool,
    /// Also count system calls.
    pub count: bool,
}

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
    pub columns: Vec<Column>,
    /// Columns that cannot be.
    pub missing: Vec<Missing>,
}

impl Found {
    /// Looks for everything that a comparison needs.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] with the package to install; [`ErrorKind::Invalid`] if there is no
    /// room, or what was asked for needs root.
    pub fn look(options: &Options, host: &Host) -> Result<Self> {
        if options.loads.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "no load is left to be measured"));
        }
        if options.cache == CacheState::Cold && !host::can_drop_caches() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a cold page cache needs root: it empties the caches of the whole host; measure \
                 direct or warm, or run it as root",
            ));
        }
        let sizes = Sizes::of(options.image_bytes)?;
        let fio = host.program("fio")?;
        host.program("mkfs.ext4")?;
        host.program("busybox")?;
        let program = match &options.qemu {
            Some(path) => QemuProgram::at(path)?,
            None => QemuProgram::find(host)?,
        };
        let kernel = Kernel::find(host)?;
        let mut columns = vec![Column::Host];
        let mut missing = Vec::new();
        let mut storage_daemon = None;
        for column in ALL.into_iter().filter(|c| *c != Column::Host && options.columns.contains(c))
        {
            let mut why = column.missing(VCPUS, &program, &kernel.modules);
            if column == Column::StorageDaemon {
                match host.program("qemu-storage-daemon") {
                    Ok(path) => storage_daemon = Some(path),
                    Err(error) => why = Some(error.to_string()),
                }
            }
            match why {
                None => columns.push(column),
                Some(why) => missing.push(Missing { column, why }),
            }
        }
        if columns.len() == 1 {
            let why = missing
                .iter()
                .map(|m| format!("{}: {}", m.column.name(), m.why))
                .collect::<Vec<_>>();
            let why = if why.is_empty() { "name at least one".into() } else { why.join("; ") };
            return Err(Error::new(
                ErrorKind::Missing,
                format!("no column is left to compare with the host; {why}"),
            ));
        }
        let place = scratch::find_place(&options.target, &sizes, columns.len() - 1)?;
        let accel = match options.accel {
            Some(accel) => Choice { accel, why: "as asked for".into() },
            None => Choice::probe(host, &program, &kernel)?,
        };
        Ok(Self { fio, program, kernel, accel, storage_daemon, place, sizes, columns, missing })
    }

    /// True if the guest's CPU is emulated.
    pub fn emulated(&self) -> bool {
        self.accel.accel == Accel::Tcg
    }

    /// The planned measurements, for people, before the begin.
    pub fn about(&self) -> String {
        let images = self.columns.len() - 1;
        let mut text = format!(
            "QEMU {}.{}, by {}; Linux {}\n{} of {} in {}, removed afterwards ({} needed)\n",
            self.program.version.0,
            self.program.version.1,
            self.accel,
            self.kernel.version,
            counted(images, "image"),
            show_size(self.sizes.image),
            self.place.display(),
            show_size(self.sizes.needed(images)),
        );
        for missing in &self.missing {
            text += &format!("not measured: {}: {}\n", missing.column.name(), missing.why);
        }
        text
    }
}

/// Everything that came of a comparison; [`report::fill`] makes a report of it.
#[derive(Debug)]
pub struct Outcome {
    /// Guest and host.
    pub results: Results,
    /// The counted pass: where requests go, system calls among it.
    pub counted: Results,
    /// The measurements that are missing, in a sentence, if it broke off.
    pub partial: Option<String>,
    /// Why system calls were not counted.
    pub uncounted: Option<String>,
    /// The back ends alone.
    pub native: Vec<native::NativeMeasurement>,
    /// The columns, the host first.
    pub columns: Vec<Column>,
    /// Missing measurements.
    pub missing: Vec<Missing>,
    /// The loads that conclusions are about.
    pub deciding: Vec<Load>,
    /// True if conclusions were wanted at all.
    pub concludes: bool,
    /// How jobs were run.
    pub settings: Settings,
    /// Bytes of each image.
    pub image_bytes: u64,
    /// How the guest's instructions were executed.
    pub accel: Choice,
    /// The guest's kernel.
    pub kernel: String,
    /// Command lines by column, and QEMU's.
    pub commands: Vec<(String, String)>,
    /// The disks as the guest saw them.
    pub disks: Vec<(Column, guest::SeenDisk)>,
}

/// Compares.
///
/// # Errors
/// Obstacles to the comparison; [`ErrorKind::Interrupted`]. No file or process is left behind in
/// any case.
pub fn run(options: &Options, host: &Host, found: &Found, interrupt: &Interrupt) -> Result<Report> {
    let begun = Begun::now(&options.command);
    let outcome = measure(options, host, found, interrupt)?;
    let mut programs = vec!["fio".to_string()];
    programs.push(found.program.path.display().to_string());
    if outcome.columns.contains(&Column::StorageDaemon) {
        programs.push("qemu-storage-daemon".into());
    }
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    let mut report = report::fill(&outcome, &begun, &programs);
    for (name, _) in &mut report.machine.versions {
        // A program that was given by its path is still QEMU.
        *name = name.rsplit('/').next().unwrap_or_default().to_string();
    }
    report.machine.versions.push(("Linux (guest)".into(), outcome.kernel.clone()));
    outcome.partial.iter().for_each(|missing| report.mark_partial(missing.clone()));
    Ok(report)
}

/// Everything from the images to the last figure.
fn measure(
    options: &Options,
    host: &Host,
    found: &Found,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let begin = Instant::now();
    let mut preparing = Progress::new(2);
    let scratch = write_images(options, host, found, interrupt, &mut preparing)?;

    preparing.step("booting the guest");
    let servers = serve(options, found, &scratch)?;
    let named = |(column, server): &(Column, Server)| {
        (column.name().to_string(), server.command().to_string())
    };
    let mut commands: Vec<(String, String)> = servers.iter().map(named).collect();
    let neutral = |line: &str| neutral(line, options, &scratch, host);
    let mut planned = Planned::guess(options, found);
    let mut machine = boot(host, found, &scratch, &servers, &planned, interrupt)?;
    commands.push(("QEMU".into(), machine.command.clone()));
    let disks = machine.disks.iter().map(|(column, disk)| (*column, disk.clone())).collect();
    planned.correct(machine.time_start()?);
    drop(preparing);

    let fio = HostFio {
        program: found.fio.clone(),
        files: scratch.files(),
        scratch: scratch.dir().to_path_buf(),
        settings: planned.settings,
        interrupt,
    };
    let native =
        options.native.then(|| native_part(options, found, &scratch, fio.clone(), planned.runtime));
    let mut progress = planned.progress(native.as_ref());

    let pids = processes(machine.pid(), &servers);
    let control = Control::new(scratch.dir().join("control.sock"));
    let kvm = !found.emulated();
    let mut bench = Bench {
        machine,
        fio: &fio,
        pids,
        control,
        kvm,
        runtime: planned.runtime,
        interrupt,
        count: false,
    };
    let (results, broken) =
        bench.parts(&planned, options.limit, begin, native.as_ref(), &mut progress)?;
    let around = (bench, servers);
    let rest = Rest::after(broken, around, &planned, native.as_ref(), options.often, &mut progress);
    drop(progress);
    let Rest { counted, uncounted, native, partial } = rest;
    Ok(Outcome {
        results,
        partial,
        counted,
        uncounted,
        native,
        columns: found.columns.clone(),
        missing: found.missing.clone(),
        deciding: planned.deciding,
        concludes: options.concludes,
        settings: planned.settings,
        image_bytes: found.sizes.image,
        accel: found.accel.clone(),
        kernel: found.kernel.version.clone(),
        commands: commands.into_iter().map(|(name, line)| (name, neutral(&line))).collect(),
        disks,
    })
}

/// Makes the scratch directory with an image for each column of the guest.
fn write_images(
    options: &Options,
    host: &Host,
    found: &Found,
    interrupt: &Interrupt,
    preparing: &mut Progress,
) -> Result<Scratch> {
    let guests: Vec<&str> =
        found.columns.iter().filter(|c| **c != Column::Host).map(|c| c.id()).collect();
    preparing.step(format!(
        "writing {} of {}",
        counted(guests.len(), "image"),
        show_size(found.sizes.image)
    ));
    let scratch = Scratch::new(&found.place, found.sizes)?;
    scratch.fill(host, &guests, options.cache, interrupt)?;
    Ok(scratch)
}

/// Boots the guest with the disks of all columns, and with the jobs of all rounds of the plan.
fn boot<'a>(
    host: &Host,
    found: &Found,
    scratch: &Scratch,
    servers: &[(Column, Server)],
    planned: &Planned,
    interrupt: &'a Interrupt,
) -> Result<Machine<'a>> {
    let own = found.columns.iter().filter(|c| c.controller(VCPUS).is_some());
    let all: Vec<Round> = planned.parts.iter().flatten().chain(&planned.counted).cloned().collect();
    let parts = Parts {
        host,
        program: &found.program,
        kernel: &found.kernel,
        accel: &found.accel,
        sockets: servers
            .iter()
            .map(|(column, server)| (*column, server.socket().to_path_buf()))
            .collect(),
        images: own.map(|column| (*column, scratch.image(column.id()))).collect(),
        rounds: &all,
        settings: planned.settings,
        limit: planned.costs.total(&all, planned.runtime) * 4 + Duration::from_secs(600),
    };
    parts.boot(interrupt)
}

/// The processes that work for the guest: QEMU, and the servers of its disks.
fn processes(qemu: u32, servers: &[(Column, Server)]) -> Pids {
    let pid = |wanted: Column| {
        servers.iter().find(|(column, _)| *column == wanted).map(|(_, server)| server.pid())
    };
    Pids { qemu, vlane: pid(Column::Vlane), storage_daemon: pid(Column::StorageDaemon) }
}

/// The measurements without a guest.
fn native_part<'a>(
    options: &'a Options,
    found: &Found,
    scratch: &'a Scratch,
    fio: HostFio<'a>,
    runtime: Duration,
) -> Native<'a> {
    let storage_daemon = found.storage_daemon.clone();
    let interrupt = fio.interrupt;
    Native {
        vlane: &options.vlane,
        storage_daemon,
        scratch,
        fio,
        runtime,
        cache: options.cache,
        interrupt,
    }
}

/// The back ends that the columns need.
fn serve(options: &Options, found: &Found, scratch: &Scratch) -> Result<Vec<(Column, Server)>> {
    let wanted =
        [Column::Vlane, Column::StorageDaemon].into_iter().filter(|c| found.columns.contains(c));
    let start = |column: Column| {
        let image = scratch.image(column.id());
        let storage = Storage::File { path: &image, direct: options.cache == CacheState::Direct };
        let server = match (column, &found.storage_daemon) {
            (Column::StorageDaemon, Some(program)) => {
                Server::qemu_storage_daemon(program, scratch.dir(), storage, &[], VCPUS)?
            }
            _ => {
                let queues = VCPUS.to_string();
                let socket = scratch.dir().join("control.sock").display().to_string();
                let words = ["--queues", queues.as_str(), "--control", socket.as_str()];
                Server::vlane(&options.vlane, scratch.dir(), storage, &[], &words)?
            }
        };
        Ok((column, server))
    };
    wanted.map(start).collect()
}

/// Measurements of some rounds.
fn steps(rounds: &[Round]) -> usize {
    rounds.iter().map(|round| round.order.len()).sum()
}

/// The plan. Number and length of the measurements are known when the guest has shown fio's
/// start-up time, but the jobs must be in the guest before. So the plan is made on a guess, which
/// is corrected by leaving parts out.
struct Planned {
    costs: Costs,
    /// Time for the guest.
    share: Option<Duration>,
    often: Often,
    runtime: Duration,
    settings: Settings,
    deciding: Vec<Load>,
    /// The most important parts first.
    parts: Vec<Vec<Round>>,
    /// In which calls are counted.
    counted: Vec<Round>,
}

impl Planned {
    fn guess(options: &Options, found: &Found) -> Self {
        let costs = Costs::guess(found.emulated());
        let limit = options.limit.map(|limit| limit.saturating_sub(Duration::from_secs(45)));
        let share = limit.map(|limit| if options.native { limit.mul_f64(0.85) } else { limit });
        let deciding = summary::deciding(&options.loads);
        let mut parts = plan::parts(&options.loads, &found.columns, &deciding, options.often);
        let (fits, runtime) = costs.fit(&parts, options.often.turns, options.runtime, share);
        parts.truncate(fits);
        let settings = Settings {
            runtime_ms: millis(runtime),
            old_bytes: found.sizes.old,
            new_bytes: found.sizes.new,
            cache: options.cache,
        };
        let counted =
            if options.count { counted_rounds(options, &found.columns) } else { Vec::new() };
        Self { costs, share, often: options.often, runtime, settings, deciding, parts, counted }
    }

    fn correct(&mut self, guest_start: Duration) {
        self.costs.guest_start = guest_start;
        let (fits, _) = self.costs.fit(&self.parts, self.often.turns, self.runtime, self.share);
        self.parts.truncate(fits);
    }

    fn progress(&self, native: Option<&Native<'_>>) -> Progress {
        let mut total =
            self.parts.iter().map(|part| steps(part)).sum::<usize>() + steps(&self.counted);
        let all = self.parts.iter().chain([&self.counted]);
        let mut expected = all.map(|part| self.costs.total(part, self.runtime)).sum::<Duration>();
        if let Some(native) = native {
            total += native.steps(self.often);
            expected += native.estimate(self.often);
        }
        Progress::new(total).expecting(expected / u32::try_from(total.max(1)).unwrap_or(1))
    }
}

impl Bench<'_> {
    /// The parts of the plan, as many of them as there is time for since `begin`. A part that
    /// breaks off after a whole one leaves the others, and its error.
    fn parts(
        &mut self,
        planned: &Planned,
        limit: Option<Duration>,
        begin: Instant,
        native: Option<&Native<'_>>,
        progress: &mut Progress,
    ) -> Result<(Results, Option<Error>)> {
        let cost = |part: &[Round]| planned.costs.total(part, planned.runtime);
        let after = cost(&planned.counted)
            + native.map_or(Duration::ZERO, |native| native.estimate(planned.often));
        let (first, mut made, mut results) = (Instant::now(), Duration::ZERO, Results::default());
        for part in &planned.parts {
            // Other work on the machine makes everything take longer than planned. The finished
            // parts show by how much.
            if let (Some(limit), false) = (limit, made.is_zero()) {
                let slower = (first.elapsed().as_secs_f64() / made.as_secs_f64()).max(1.0);
                if begin.elapsed() + (cost(part) + after).mul_f64(slower) > limit {
                    progress.add_steps(-isize::try_from(steps(part)).unwrap_or(0));
                    continue;
                }
            }
            let whole = results.all.len();
            for round in part {
                match self.round(round, &mut results, progress) {
                    Ok(()) => {}
                    Err(error) if whole == 0 => return Err(error),
                    Err(error) => {
                        results.all.truncate(whole);
                        return Ok((results, Some(error)));
                    }
                }
            }
            made += cost(part);
        }
        Ok((results, None))
    }

    /// The rounds in which calls are counted, and why they are not.
    fn count_calls(
        &mut self,
        rounds: &[Round],
        progress: &mut Progress,
    ) -> Result<(Results, Option<String>)> {
        let mut counted = Results::default();
        if rounds.is_empty() {
            return Ok((counted, None));
        }
        if let Counted::Not(why) = calls::available() {
            progress.add_steps(-isize::try_from(steps(rounds)).unwrap_or(0));
            return Ok((counted, Some(why)));
        }
        self.count = true;
        for round in rounds {
            self.round(round, &mut counted, progress)?;
        }
        Ok((counted, None))
    }
}

/// The measurements behind the rounds of the plan.
#[derive(Debug, Default)]
struct Rest {
    counted: Results,
    uncounted: Option<String>,
    native: Vec<native::NativeMeasurement>,
    /// The sentence on all that is missing, if something broke off.
    partial: Option<String>,
}

impl Rest {
    /// Measured, unless the rounds of the plan broke off.
    fn after(
        mut broken: Option<Error>,
        around: (Bench<'_>, Vec<(Column, Server)>),
        planned: &Planned,
        native: Option<&Native<'_>>,
        often: plan::Often,
        progress: &mut Progress,
    ) -> Self {
        let mut rest = Self::default();
        if broken.is_none() {
            broken = rest.measure(around, planned, native, often, progress).err();
        }
        rest.partial = broken
            .map(|error| format!("PARTIAL: it failed, and has the results before that: {error}"));
        rest
    }

    /// The first error; everything that was measured before it is there.
    fn measure(
        &mut self,
        (mut bench, servers): (Bench<'_>, Vec<(Column, Server)>),
        planned: &Planned,
        native: Option<&Native<'_>>,
        often: plan::Often,
        progress: &mut Progress,
    ) -> Result<()> {
        (self.counted, self.uncounted) = bench.count_calls(&planned.counted, progress)?;
        bench.machine.quit()?;
        // The back ends that come now lock the same images.
        drop(servers);
        self.native = native.map_or(Ok(Vec::new()), |native| native.run(often, progress))?;
        Ok(())
    }
}

/// A command without the paths that only this run had, or that name a user.
fn neutral(command: &str, options: &Options, scratch: &Scratch, host: &Host) -> String {
    let places = [
        (scratch.dir().display().to_string(), "SCRATCH"),
        (host.cache().path("").display().to_string().trim_end_matches('/').to_string(), "CACHE"),
        (options.vlane.display().to_string(), "vlane"),
    ];
    places
        .iter()
        .fold(command.to_string(), |text, (place, word)| text.replace(place.as_str(), word))
}

/// The rounds in which system calls are counted: random ones, 4K against 512K. They slow what they
/// count a little, so their times are not used.
fn counted_rounds(options: &Options, columns: &[Column]) -> Vec<Round> {
    let random = |load: &Load| {
        load.suite == Suite::Fio
            && matches!(load.pattern, loads::Pattern::RandomRead | loads::Pattern::RandomWrite)
    };
    let guests: Vec<Column> = columns.iter().copied().filter(|c| *c != Column::Host).collect();
    // A pass that no other rounds have.
    plan::pass(&options.loads, &guests, options.often.turns.max(options.often.passes), random)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The name of a measurement.
fn label(round: &Round, column: Column) -> String {
    format!("{}, {}", round.load.name(), column.name())
}

/// The result of a column, from the lines of the guest's fio.
fn reported(lines: &[String], round: &Round, column: Column) -> Result<fio::Outcome> {
    let mut outcome = None;
    for line in lines {
        let (name, parsed) = fio::parse(line, round.load.record())?;
        if name == column.id() {
            outcome = Some(parsed);
        }
    }
    outcome.ok_or_else(|| {
        let context = format!("fio in the guest did not report {}", label(round, column));
        Error::new(ErrorKind::Format, context)
    })
}

/// Measures rounds.
struct Bench<'a> {
    machine: Machine<'a>,
    fio: &'a HostFio<'a>,
    pids: Pids,
    control: Control,
    kvm: bool,
    runtime: Duration,
    interrupt: &'a Interrupt,
    count: bool,
}

/// Counters of others: vlane's lanes, KVM.
#[derive(Debug, Default)]
struct Told {
    kicks: Option<u64>,
    signals: Option<u64>,
    exits: BTreeMap<String, u64>,
}

impl Told {
    fn since(&self, before: &Self) -> Self {
        let count = |now: Option<u64>, old: Option<u64>| Some(now?.saturating_sub(old?));
        let old = |name: &String| before.exits.get(name).copied().unwrap_or(0);
        let exits =
            self.exits.iter().map(|(name, now)| (name.clone(), now.saturating_sub(old(name))));
        Self {
            kicks: count(self.kicks, before.kicks),
            signals: count(self.signals, before.signals),
            exits: exits.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

impl Bench<'_> {
    /// The present counters, without unavailable ones (KVM's figures are for root).
    fn look(&self, column: Column) -> Told {
        let mut told = Told::default();
        if column == Column::Vlane
            && let Ok(counters) = self.control.counters()
        {
            told.kicks = counters.sum.get("kicks").copied();
            told.signals = counters.sum.get("signals").copied();
        }
        if self.kvm
            && let Counted::Is(stats) = KvmStats::take(i32::try_from(self.pids.qemu).unwrap_or(-1))
        {
            told.exits.insert("exits".into(), stats.exits());
            told.exits
                .extend(stats.reasons().into_iter().map(|(name, count)| (name.to_string(), count)));
        }
        told
    }

    /// One load on every column, in the round's order: the host's fio has its turn while the
    /// guest's waits at a gate.
    fn round(
        &mut self,
        round: &Round,
        results: &mut Results,
        progress: &mut Progress,
    ) -> Result<()> {
        // The host is first or last of a round; the guest's fio is loaded between measurements.
        let mut works = Vec::new();
        let (mut begun, mut lines) = (false, None);
        for column in &round.order {
            self.interrupt.check()?;
            progress.step(label(round, *column));
            if *column == Column::Host {
                if begun {
                    lines = Some(self.machine.finish(round)?);
                }
                let outcome = self.fio.run(&round.load, 1)?;
                let (pass, load) = (round.pass, round.load);
                results.all.push(Measurement { pass, load, column: *column, outcome, work: None });
                continue;
            }
            if !begun {
                self.machine.start(round)?;
                begun = true;
            }
            if self.fio.settings.cache == CacheState::Cold {
                host::drop_caches()?;
            }
            let before = self.machine.at_gate(round, *column)?;
            let mut sampler = parts::sampler(self.pids);
            if self.count {
                sampler = sampler.count_calls();
            }
            let counted = self.look(*column);
            let from = sampler.take();
            let after = self.machine.measure(round, *column, self.runtime)?;
            let used = sampler.take().since(&from);
            works.push((*column, used, after.since(&before), self.look(*column).since(&counted)));
        }
        if !begun {
            return Ok(());
        }
        let lines = match lines {
            Some(lines) => lines,
            None => self.machine.finish(round)?,
        };
        for (column, used, disk, told) in works {
            let outcome = reported(&lines, round, column)?;
            let per_io = |count: u64| count as f64 / outcome.ios;
            let work = Work {
                requests: per_io(disk.requests()),
                interrupts: per_io(disk.interrupts),
                kicks: told.kicks.map(per_io),
                signals: told.signals.map(per_io),
                exits: told
                    .exits
                    .iter()
                    .map(|(name, count)| (name.clone(), per_io(*count)))
                    .collect(),
                parts: parts::share(&used, self.pids, column, outcome.ios),
            };
            let (pass, load) = (round.pass, round.load);
            results.all.push(Measurement { pass, load, column, outcome, work: Some(work) });
        }
        Ok(())
    }
}
