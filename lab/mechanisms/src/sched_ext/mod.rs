//! The sched_ext vehicle, measured in a guest whose kernel has sched_ext, against that kernel's own
//! scheduler.
//!
//! [`prove`] boots the guest, which runs [`measure`] of the same program: threads that only compute
//! and one that also gets events, on two CPUs, in turns. Then it kills the loader of the scheduler
//! repeatedly.

mod report;
mod turn;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vlane_report::build::Begun;

use vlane_guest::{Accel, Boot, Disk, Host, Initramfs, Kernel, Qemu, QemuProgram};
use vlane_policy::loan::Policy;
use vlane_report::Report;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::{Interrupt, Rounds};

use self::report::Kills;
use self::turn::{Turn, hold, turn, unloaded};

/// Parameters of the turns, and their number.
#[derive(Debug, Clone)]
pub struct Load {
    /// The schedulers, each for a turn, in this order: `eevdf` (the kernel's own) or a policy's
    /// name.
    pub turns: Vec<String>,
    /// How long each takes, seconds.
    pub seconds: f64,
    /// Mean time between two events.
    pub every: Duration,
    /// The longest boost.
    pub boost: Duration,
    /// Threads of the ordinary class besides, on the same CPUs.
    pub strangers: u32,
    /// Weights of the threads, in turns; empty: all the same.
    pub weights: Vec<u32>,
    /// How often the loader is started and killed.
    pub kills: u32,
}

/// Parameters of [`prove`].
#[derive(Debug)]
pub struct Options<'a> {
    /// The load; each turn is repeated.
    pub load: Load,
    /// How often.
    pub repeats: u16,
    /// Give up after so long.
    pub limit: Duration,
    /// The program that the guest runs: vlane's own file.
    pub program: &'a Path,
    /// The command line, for the report.
    pub command: &'a str,
}

fn policy(name: &str) -> Result<Option<Policy>> {
    match name {
        "eevdf" => Ok(None),
        name => name.parse().map(Some).context(ErrorKind::Usage, || "no such scheduler"),
    }
}

fn sched(error: vlane_sched::Error) -> Error {
    Error::caused_by(ErrorKind::Process, "the scheduler", error)
}

/// Loads the vehicle, gives it `hogs` threads that compute, prints `loaded`, and runs until this
/// process is killed.
///
/// # Errors
/// The vehicle cannot be loaded, or is thrown out.
pub fn wait_for_a_kill(hogs: usize) -> Result<()> {
    hold(hogs).map_err(sched)
}

/// Measures on the kernel that this runs on, with `hogs` threads that compute besides the one with
/// events, and prints `RESULT` lines. `own` is this program's file.
///
/// # Errors
/// What the vehicle says.
pub fn measure(load: &Load, hogs: usize, own: &Path) -> Result<()> {
    for (place, name) in load.turns.iter().enumerate() {
        let shown = turn(&Turn {
            policy: policy(name)?,
            seconds: load.seconds,
            hogs,
            every_ns: nanos(load.every),
            boost_max_ns: nanos(load.boost),
            strangers: load.strangers as usize,
            weights: load.weights.clone(),
        })
        .map_err(sched)?;
        let text =
            serde_json::to_string(&shown).context(ErrorKind::Format, || "what a turn has shown")?;
        println!("RESULT turn_{place}={text}");
    }
    if load.kills > 0 { kill(own, load.kills) } else { Ok(()) }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Starts the loader and kills it, at any moment of its life.
fn kill(own: &Path, times: u32) -> Result<()> {
    let (mut while_loaded, mut slowest) = (0, Duration::ZERO);
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
            let no_output = || Error::new(ErrorKind::Process, "the loader has no output");
            let out = child.stdout.take().ok_or_else(no_output)?;
            BufReader::new(out)
                .read_line(&mut line)
                .context(ErrorKind::Process, || "the loader printed no state")?;
            if line.trim() != "loaded" {
                let _ = child.kill();
                let end = child
                    .wait()
                    .map_or_else(|error| error.to_string(), |status| status.to_string());
                let said =
                    format!("the loader said {line:?} instead of `loaded` and ended with {end}");
                return Err(Error::new(ErrorKind::Process, said));
            }
            longest = begun.elapsed();
            while_loaded += 1;
            std::thread::sleep(Duration::from_micros(random.u64(..50_000)));
        } else {
            let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX).max(1);
            std::thread::sleep(Duration::from_micros(random.u64(..micros)));
        }
        child
            .kill()
            .and_then(|()| child.wait())
            .context(ErrorKind::Process, || "the loader cannot be killed")?;
        slowest = slowest.max(unloaded(Duration::from_secs(5)).map_err(sched)?);
        if (n + 1) % 50 == 0 {
            println!("{} of {times} loaders killed", n + 1);
        }
    }
    println!("RESULT kills={times}");
    println!("RESULT kills_while_loaded={while_loaded}");
    println!("RESULT unload_ms={}", slowest.as_millis());
    std::io::stdout().flush().context(ErrorKind::Io, || "standard output")
}

/// How often a guest whose kernel crashed under emulation is started again.
const AGAIN: u32 = 5;
/// How often an interrupt is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// Components that guests are started with.
struct Bed<'a> {
    host: &'a Host,
    interrupt: &'a Interrupt,
    kernel: &'a Kernel,
    own: &'a Path,
    limit: Duration,
}

impl Bed<'_> {
    /// Runs `vlane sched-ext-job` in a guest of its own.
    fn run(
        &self,
        machine: Qemu,
        arguments: &str,
        crashes: &mut u32,
    ) -> Result<vlane_guest::Report> {
        let script = format!(
            "vlane sched-ext-job {arguments} 2>&1 || exit 1\n\
             echo RESULT state=$(cat /sys/kernel/sched_ext/state)\n"
        );
        let guest = Initramfs::new(script).program_at("vlane", self.own);
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
                self.interrupt.check()?;
            }
            let report = guest.wait()?;
            // Loading a scheduler changes the kernel's code while other CPUs run it. Where such a
            // kernel crashed, a CPU stood one byte behind the beginning of a jump that had just
            // been changed. It had met the kernel's temporary breakpoint after the kernel had made
            // sure that no CPU can. The fault is QEMU's emulation of CPUs on several threads, not
            // the kernel and not the scheduler. The report counts these crashes.
            if report.console.contains("Kernel panic")
                && report.result("state").is_err()
                && again < AGAIN
            {
                (again, *crashes) = (again + 1, *crashes + 1);
                let at =
                    report.console.lines().find(|line| line.contains("RIP:")).unwrap_or_default();
                eprintln!("the guest's kernel crashed; again ({again} of {AGAIN}): {}", at.trim());
                continue;
            }
            report.script_ok()?;
            return Ok(report);
        }
    }
}

/// Progress.
fn show(line: &str) {
    if line.contains(" loaders killed") {
        eprintln!("{}", line.trim());
    }
}

/// Boots the guest, and makes a report of what it shows.
///
/// # Errors
/// The host lacks something, or the guest fails in the first round. A later round that breaks off
/// leaves the others, in a report that is marked as partial.
pub fn prove(options: &Options<'_>, host: &Host, interrupt: &Interrupt) -> Result<Report> {
    let Options { load, repeats, .. } = options;
    let schedulers = &load.turns;
    for name in schedulers {
        policy(name)?;
    }
    let begun = Begun::now(options.command);
    let (program, kernel) = (QemuProgram::find(host)?, Kernel::with_sched_ext(host)?);
    // In turns: what changes on the host meanwhile changes for all.
    let turns = schedulers.join(",");
    let weights: Vec<String> = load.weights.iter().map(ToString::to_string).collect();
    let weights =
        if weights.is_empty() { String::new() } else { format!("--weights {}", weights.join(",")) };
    let measures = format!(
        "--turns {turns} --time {} --every {}ms --boost {}us --strangers {} --kills 0 {weights}",
        load.seconds,
        load.every.as_millis(),
        load.boost.as_micros(),
        load.strangers
    );
    let boot =
        Boot::Kernel { kernel: kernel.image.clone(), initramfs: None, append: String::new() };
    let mut machine = Qemu::new(program, Accel::Tcg, boot, Disk::at("/nowhere"));
    machine.disks.clear();
    machine.memory_mib = 1024;
    let bed = Bed { host, kernel: &kernel, own: options.program, limit: options.limit, interrupt };
    let mut crashes = 0;
    let read = |report: &vlane_guest::Report, place| {
        let text = report.result(&format!("turn_{place}"))?;
        serde_json::from_str(text)
            .context(ErrorKind::Format, || format!("what turn {place} has shown: {text}"))
    };
    // A guest for each round: every load is a chance for it to crash, and takes the other turns
    // with it.
    let (mut shown, mut last) = (Vec::new(), None);
    let rounds = Rounds::measure((*repeats).into(), |_| {
        let report = bed.run(machine.clone(), &measures, &mut crashes)?;
        let turns = (0..schedulers.len()).map(|place| read(&report, place));
        shown.extend(turns.collect::<Result<Vec<_>>>()?);
        last = Some(report);
        Ok(())
    })?;
    // Loading and unloading a scheduler changes the kernel's code.
    machine.in_turns = true;
    let mut partial = rounds.missing();
    let kills = if partial.is_some() { 0 } else { load.kills };
    let report = match (kills, last) {
        (0, Some(report)) => report,
        (kills, last) => {
            match (bed.run(machine, &format!("--kills {kills}"), &mut crashes), last) {
                (Ok(report), _) => report,
                (Err(error), Some(last)) => {
                    partial =
                        Some(format!("PARTIAL: the kills of the loader are missing: {error}"));
                    last
                }
                (Err(error), None) => return Err(error),
            }
        }
    };
    let number =
        |key: &str| report.result(key).ok().and_then(|text| text.parse().ok()).unwrap_or(0.0);
    let kills = Kills {
        all: number("kills"),
        while_loaded: number("kills_while_loaded"),
        unload_ms: number("unload_ms"),
        state: report.result("state")?.to_string(),
        crashes,
    };
    let mut report = report::report(schedulers, &shown, &kills, &kernel.version, &begun);
    partial.into_iter().for_each(|missing| report.mark_partial(missing));
    Ok(report)
}
