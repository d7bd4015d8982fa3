//! The sched_ext vehicle, measured in a guest whose kernel has sched_ext, against that kernel's own
//! scheduler.
//!
//! [`prove`] boots the guest, which runs [`measure`] of the same program: threads that only compute
//! and one that also gets events ([`crate::loans::live`]), on two CPUs, in turns. Then it kills the
//! loader of the scheduler repeatedly.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use vlane::values;
use vlane_guest::{
    Accel, Boot, Disk, Host, Initramfs, Kernel, Qemu, QemuProgram, Report as Console,
};
use vlane_policy::loan::units::DEFAULT_WEIGHT;
use vlane_policy::loan::{Params, Policy};
use vlane_sched::Vehicle;
use vlane_sched::ext::{self, Presence};

use crate::loans::figures::SCHED_EXT;
use crate::loans::study::Study;
use crate::loans::{live, sched};
use vlane_report::{Cell, Report, Section, table};
use vlane_testbed::{Call, Context, ErrorKind, Fail, Installs, Interrupt, Progress, Result};

/// Time before each measurement: accounts begin empty.
const RAMP: Duration = Duration::from_secs(2);
/// How long a scheduler may take until it is unloaded.
const UNLOAD: Duration = Duration::from_secs(5);
/// Longer than a loader lives that is to be killed.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// How often a guest whose kernel crashed under emulation is started again.
const AGAIN: u32 = 5;
/// How often an interrupt is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// Load of each measurement
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Duration of each measurement, in seconds
    #[arg(long = "time", alias = "seconds", value_name = "TIME", default_value = "6s", value_parser = values::seconds(0.1, 3600.0))]
    pub seconds: f64,
    /// Mean time between two events, in milliseconds
    #[arg(long = "every", alias = "every-ms", value_name = "TIME", default_value = "20ms", value_parser = values::time_in::<u64>("ms", 1..=60_000))]
    pub every_ms: u64,
    /// Longest boost, in microseconds
    ///
    /// An emulated CPU needs about ten times as long as a real one to serve an event.
    #[arg(long = "boost", alias = "boost-us", value_name = "TIME", default_value = "4ms", value_parser = values::time_in::<u64>("us", 1..=1_000_000))]
    pub boost_us: u64,
    /// Number of times to kill the loader
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = values::whole::<u32>(0..=100_000))]
    pub kills: u32,
    /// Measure again with this many threads of the ordinary class, which precede sched_ext
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::whole::<u32>(0..=10_000))]
    pub strangers: u32,
    /// Weights of the threads, in turns [default: all the same]
    ///
    /// The kernel's own scheduler ignores them.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::whole::<u32>(1..=65536))]
    pub weights: Vec<u32>,
}

/// Options of `vlane-lab prove sched-ext`
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The load
    #[command(flatten)]
    pub load: LoadArgs,
    /// Number of measurements of each scheduler
    #[arg(long = "repeat", alias = "repeats", value_name = "N", default_value_t = 3, value_parser = values::whole::<u16>(1..=100))]
    pub repeats: u16,
    /// Schedulers: eevdf (the kernel's own), credit, always-boost, loan, adaptive
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_scheduler)]
    #[arg(default_value = "eevdf,credit,always-boost,loan,adaptive")]
    pub schedulers: Vec<String>,
    /// Time limit, in seconds
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = values::time_in::<u64>("s", 1..=86_400))]
    pub limit: u64,
    /// Permission to install missing programs
    #[command(flatten)]
    pub installs: Installs,
}

/// Measure on this machine's kernel
#[derive(Debug, Clone, Args)]
pub struct Job {
    /// The load
    #[command(flatten)]
    pub load: LoadArgs,
    /// Measurements, in this order
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub turns: Vec<String>,
    /// Threads that compute, besides the thread with events
    #[arg(long, default_value_t = 12, value_parser = values::whole::<usize>(0..=100_000))]
    pub hogs: usize,
    /// Load only: give threads to the scheduler, report that, and wait for a kill
    #[arg(long)]
    pub hold: bool,
}

/// Parses the name of a scheduler.
fn parse_scheduler(text: &str) -> std::result::Result<String, String> {
    let policies = Policy::ALL.iter().map(|policy| policy.name());
    values::one_of(text, "scheduler", std::iter::once("eevdf").chain(policies))
}

/// The vehicle with a policy of this name; none for `eevdf`, the kernel's own scheduler.
fn vehicle(name: &str, boost_us: u64) -> Result<Option<Box<dyn Vehicle>>> {
    if name == "eevdf" {
        return Ok(None);
    }
    let policy: Policy = name.parse().context(ErrorKind::Usage, || "no such scheduler")?;
    let params = Params { boost_max_ns: boost_us * 1000, ..Params::sound(policy) };
    ext::open(ext::Options { params, ..ext::Options::default() }).map(Some).map_err(sched)
}

/// Measures on the kernel that this runs on, and prints `RESULT` lines. `own` is this program's
/// file.
///
/// # Errors
/// Those of the vehicle.
pub fn measure(job: &Job, own: &Path, interrupt: &Interrupt) -> Result<()> {
    let LoadArgs { seconds, every_ms, boost_us, kills, strangers, weights } = &job.load;
    let weights = if weights.is_empty() { &vec![DEFAULT_WEIGHT] } else { weights };
    let load = live::Load {
        weights: weights.iter().copied().cycle().take(job.hogs + 1).collect(),
        strangers: *strangers as usize,
        gap: Duration::from_millis(*every_ms),
        work: Duration::ZERO,
        ramp: RAMP,
        time: Duration::from_secs_f64(*seconds),
        seed: 1,
        is_told: job.hold,
    };
    if job.hold {
        let load = live::Load { time: FOREVER, ..load };
        return live::measure(&load, vehicle("loan", *boost_us)?, interrupt).map(drop);
    }
    for (place, name) in job.turns.iter().enumerate() {
        let seen = live::measure(&load, vehicle(name, *boost_us)?, interrupt)?;
        unloaded()?;
        let text =
            serde_json::to_string(&seen).context(ErrorKind::Format, || "the results of a turn")?;
        println!("RESULT turn_{place}={text}");
    }
    if *kills > 0 { kill(own, *kills) } else { Ok(()) }
}

/// Waits until no scheduler is loaded.
fn unloaded() -> Result<Duration> {
    let begun = Instant::now();
    loop {
        match ext::state() {
            Presence::Disabled | Presence::Missing => return Ok(begun.elapsed()),
            Presence::Busy { state, ops } if begun.elapsed() > UNLOAD => {
                let limit = UNLOAD.as_millis();
                return ErrorKind::Process.fail(format!(
                    "sched_ext: {ops:?} is still loaded ({state}) {limit} ms after its end"
                ));
            }
            Presence::Busy { .. } => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Starts the loader and kills it, at any moment of its life.
fn kill(own: &Path, times: u32) -> Result<()> {
    let mut slowest = Duration::ZERO;
    let mut random = fastrand::Rng::with_seed(1);
    let mut longest = Duration::from_millis(500);
    for n in 0..times {
        let begun = Instant::now();
        let mut child = Command::new(own)
            .args(["sched-ext-job", "--hold", "--hogs", "4"])
            .stdout(Stdio::piped())
            .spawn()
            .context(ErrorKind::Process, || "the loader cannot be started")?;
        // Half of them when it is loaded and schedules, half of them at any time before.
        if n % 2 == 0 {
            let mut line = String::new();
            let out = child.stdout.take().map(BufReader::new);
            let read = out.map(|mut out| out.read_line(&mut line)).transpose();
            if read.is_err() || line.trim() != "loaded" {
                let _ = child.kill();
                let end = child.wait();
                let said =
                    format!("the loader said {line:?} instead of `loaded` and ended with {end:?}");
                return ErrorKind::Process.fail(said);
            }
            longest = begun.elapsed();
            std::thread::sleep(Duration::from_micros(random.u64(..50_000)));
        } else {
            std::thread::sleep(longest.mul_f64(random.f64()));
        }
        child
            .kill()
            .and_then(|()| child.wait())
            .context(ErrorKind::Process, || "the loader cannot be killed")?;
        slowest = slowest.max(unloaded()?);
        if (n + 1) % 50 == 0 {
            println!("{} of {times} loaders killed", n + 1);
        }
    }
    println!("RESULT kills={times}");
    println!("RESULT kills_while_loaded={}", times.div_ceil(2));
    println!("RESULT unload_ms={}", slowest.as_millis());
    Ok(())
}

/// Components that guests are started with.
struct Bed<'a> {
    host: &'a Host,
    kernel: &'a Kernel,
    call: &'a Call<'a>,
    limit: Duration,
    /// Guests whose kernel crashed under emulation.
    crashes: u32,
}

impl Bed<'_> {
    /// Runs `vlane sched-ext-job` in a guest of its own.
    fn run(&mut self, machine: &Qemu, arguments: &str) -> Result<Console> {
        let script = format!(
            "mkdir -p /run /tmp\nvlane sched-ext-job {arguments} 2>&1 || exit 1\n\
             echo RESULT state=$(cat /sys/kernel/sched_ext/state)\n"
        );
        let guest = Initramfs::new(script).program_at("vlane", self.call.vlane);
        let mut again = 0;
        loop {
            let mut guest = machine.clone().start_with(
                self.host,
                self.kernel,
                &guest,
                self.limit,
                Some(show),
            )?;
            while guest.poll(LOOK)?.is_none() && !guest.is_overdue() {
                self.call.interrupt.check()?;
            }
            let report = guest.wait()?;
            // Loading a scheduler changes the kernel's code while other CPUs run it. Where such a
            // kernel crashed, a CPU stood one byte behind the beginning of a jump that had just
            // been changed. It had met the kernel's temporary breakpoint after the kernel had made
            // sure that no CPU can. The fault is QEMU's emulation of CPUs on several threads, not
            // the kernel and not the scheduler. The report counts these crashes.
            let has_crashed =
                report.console.contains("Kernel panic") && report.result("state").is_err();
            if !has_crashed || again == AGAIN {
                report.script_ok()?;
                return Ok(report);
            }
            (again, self.crashes) = (again + 1, self.crashes + 1);
            let at = report.console.lines().find(|line| line.contains("RIP:")).unwrap_or_default();
            eprintln!("the guest's kernel crashed; again ({again} of {AGAIN}): {}", at.trim());
        }
    }
}

/// Progress.
fn show(line: &str) {
    if line.contains(" loaders killed") {
        eprintln!("{}", line.trim());
    }
}

/// The guest's job, as its command line has it.
fn job(options: &Options) -> String {
    let LoadArgs { seconds, every_ms, boost_us, strangers, weights, .. } = &options.load;
    let turns = options.schedulers.join(",");
    let weights: Vec<String> = weights.iter().map(ToString::to_string).collect();
    let mut job = format!(
        "--turns {turns} --time {seconds} --every {every_ms}ms --boost {boost_us}us --strangers \
         {strangers} --kills 0"
    );
    if !weights.is_empty() {
        job += &format!(" --weights {}", weights.join(","));
    }
    job
}

/// Boots the guest, and makes a report of its results. The guest runs vlane's own file.
///
/// # Errors
/// The host lacks a program, or the guest fails in the first round. A later round that breaks off
/// leaves the others, in a report that is marked as partial.
pub fn prove(options: &Options, call: &Call<'_>) -> Result<Report> {
    let host = &options.installs.host()?;
    let (qemu, kernel) = (QemuProgram::find(host)?, &Kernel::with_sched_ext(host)?);
    let version = format!("QEMU {}.{}, Linux {}", qemu.version.0, qemu.version.1, kernel.version);
    let boot =
        Boot::Kernel { kernel: kernel.image.clone(), initramfs: None, append: String::new() };
    let mut machine = Qemu::new(qemu, Accel::Tcg, boot, Disk::at("/nowhere"));
    machine.disks.clear();
    machine.memory_mib = 1024;
    let limit = Duration::from_secs(options.limit);
    let mut bed = Bed { host, kernel, call, limit, crashes: 0 };
    let every = Duration::from_millis(options.load.every_ms);
    let mut study = Study {
        begun: call.begun.clone(),
        titles: ["sched-ext", "vCPUs in a sched_ext scheduler"],
        guests: Some(version),
        figures: SCHED_EXT,
        at_most: Some(0.2),
        loads: vec![("responses".into(), format!("an event every {every:?}"))],
        arms: options.schedulers.clone(),
        rounds: options.repeats.into(),
        time: Duration::from_secs_f64(options.load.seconds),
        about: "Threads compute all the time, in a guest; guest 1 is the thread that also gets \
                events. A response lasts from the event until the thread has seen it."
            .into(),
        warnings: Vec::new(),
        sections: Vec::new(),
    };
    let mut progress = Progress::new(study.rounds + 1);
    // A guest for each round: every load is a chance for it to crash, and takes the other turns
    // with it. In turns: a change on the host concerns all.
    let (loads, rounds) = study.measure(|round, loads| {
        progress.step(format!("round {}", round + 1));
        let report = bed.run(&machine, &job(options))?;
        for (place, arm) in loads[0].0.iter_mut().enumerate() {
            let text = report.result(&format!("turn_{place}"))?;
            arm.rounds.push(serde_json::from_str(text).context(ErrorKind::Format, || {
                format!("the results of turn {place} are not understood: {text}")
            })?);
        }
        Ok(())
    })?;
    let mut partial = None;
    if rounds.missing().is_none() && options.load.kills > 0 {
        progress.step("kills of the loader");
        // Loading and unloading a scheduler changes the kernel's code.
        machine.in_turns = true;
        match bed.run(&machine, &format!("--kills {}", options.load.kills)) {
            Ok(report) => study.sections.push(killed(&report)?),
            Err(error) => {
                partial = Some(format!("PARTIAL: the kills of the loader are missing: {error}"));
            }
        }
    }
    drop(progress);
    study.warnings.push(format!(
        "Measured in a guest with Linux {} on 2 emulated CPUs: times are some ten times those of a \
         real CPU. Compare schedulers, not with other machines. Guests that crashed under \
         emulation and were started again: {}.",
        kernel.version, bed.crashes
    ));
    let mut report = study.report(loads, &rounds);
    partial.into_iter().for_each(|missing| report.mark_partial(missing));
    Ok(report)
}

/// Results of killing the loader.
fn killed(report: &Console) -> Result<Section> {
    let number = |key: &str| -> Result<Cell> { Ok(report.result(key)?.parse::<f64>().ok().into()) };
    let row = vec![
        "kill -9".into(),
        number("kills")?,
        number("kills_while_loaded")?,
        number("unload_ms")?,
        report.result("state")?.into(),
    ];
    let block = table(
        "The loader was killed with SIGKILL, while its scheduler ran or at any time before",
        "outcome | killed | while loaded | slowest unloading [ms] | state at the end",
        vec![row],
    );
    Ok(Section::new("kills", "Killing the loader", Vec::new(), vec![block]))
}
