//! `vlane sched prove-sched-ext`: the sched_ext vehicle in a guest that has it.

use clap::Args;
use vlane_policy::loan::Policy;

use crate::output::OutputArgs;
use crate::values;

/// Parses the name of a scheduler.
fn parse_scheduler(text: &str) -> Result<String, String> {
    let policies = Policy::ALL.iter().map(|policy| policy.name());
    values::one_of(text, "scheduler", std::iter::once("eevdf").chain(policies))
}

/// Boot a guest whose kernel has sched_ext, and measures there: 12 threads that only compute and one that also gets events, on 2
/// CPUs, under the kernel's own scheduler and under the vehicle's policies, in turns. Decides every step of the BPF program again
/// with the policy's code. Then kills the loader again and again.
///
/// Needs qemu-system-x86_64 and a vlane that was built with `--features sched-ext`. Takes some minutes.
#[derive(Debug, Args)]
pub struct ProveArgs {
    /// How often everything is measured
    #[arg(long = "repeat", alias = "repeats", value_name = "N", default_value_t = 3, value_parser = values::whole::<u16>(1..=100))]
    repeats: u16,
    /// How long each measurement takes
    #[arg(long = "time", alias = "seconds", value_name = "TIME", default_value = "6s", value_parser = values::seconds(0.1, 3600.0))]
    seconds: f64,
    /// The schedulers: eevdf (the kernel's own), credit, always-boost, loan, adaptive
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "eevdf,credit,always-boost,loan,adaptive",
        value_parser = parse_scheduler
    )]
    schedulers: Vec<String>,
    /// Mean time between two events
    #[arg(long = "every", alias = "every-ms", value_name = "TIME", default_value = "20ms", value_parser = values::time_in::<u64>("ms", 1..=60_000))]
    every_ms: u64,
    /// The longest boost: an emulated CPU needs about ten times as long as a real one to serve an event
    #[arg(long = "boost", alias = "boost-us", value_name = "TIME", default_value = "4ms", value_parser = values::time_in::<u64>("us", 1..=1_000_000))]
    boost_us: u64,
    /// How often the loader is killed
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = values::whole::<u32>(0..=100_000))]
    kills: u32,
    /// Also as many threads of the ordinary class on the same CPUs, which come before sched_ext
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::whole::<u32>(0..=10_000))]
    strangers: u32,
    /// Weights of the threads, in turns [default: all the same]; the kernel's own scheduler knows none of them
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::whole::<u32>(1..=65536))]
    weights: Vec<u32>,
    /// Give up after so long
    #[arg(long, value_name = "SECONDS", default_value_t = 900, value_parser = values::time_in::<u64>("s", 1..=86_400))]
    limit: u64,
    /// Download the guest's kernel into the cache directory, and install what else is missing
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measures on the kernel that this runs on.
#[derive(Debug, Args)]
pub struct MeasureArgs {
    /// What is measured, in this order
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    turns: Vec<String>,
    /// How long each takes
    #[arg(long = "time", default_value = "6s", value_parser = values::seconds(0.1, 3600.0))]
    seconds: f64,
    /// Mean time between two events
    #[arg(long = "every", default_value = "20ms", value_parser = values::time_in::<u64>("ms", 1..=60_000))]
    every_ms: u64,
    /// Threads that compute, besides the one with events
    #[arg(long, default_value_t = 12, value_parser = values::whole::<usize>(0..=100_000))]
    hogs: usize,
    /// Threads of the ordinary class, besides
    #[arg(long, default_value_t = 0, value_parser = values::whole::<usize>(0..=10_000))]
    strangers: usize,
    /// Weights of the threads, in turns
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::whole::<u32>(1..=65536))]
    weights: Vec<u32>,
    /// The longest boost
    #[arg(long = "boost", default_value = "500us", value_parser = values::time_in::<u64>("us", 1..=1_000_000))]
    boost_us: u64,
    /// How often the loader is started and killed
    #[arg(long, default_value_t = 0, value_parser = values::whole::<u32>(0..=100_000))]
    kills: u32,
    /// Only loads, gives threads to the scheduler, says so, and waits to be killed
    #[arg(long)]
    hold: bool,
}

#[cfg(not(feature = "sched-ext"))]
fn without() -> anyhow::Error {
    anyhow::anyhow!(
        "sched_ext: this vlane was built without it; build it with `cargo build --package vlane --features sched-ext` (needs make, \
         pkg-config, libelf-dev and zlib1g-dev)"
    )
}

#[cfg(not(feature = "sched-ext"))]
pub fn measure(_: &MeasureArgs) -> anyhow::Result<()> {
    Err(without())
}

#[cfg(not(feature = "sched-ext"))]
pub fn prove(_: &ProveArgs) -> anyhow::Result<()> {
    Err(without())
}

#[cfg(feature = "sched-ext")]
pub use with::{measure, prove};

#[cfg(feature = "sched-ext")]
mod with {
    use std::io::{BufRead, BufReader, Write};
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use anyhow::{Context, bail};
    use vlane_boot::{Accel, Boot, Disk, Host, Initramfs, Install, Kernel, Qemu, QemuProgram};

    use vlane_sched::ext::measure::{Turn, hold, turn, unloaded};

    use super::super::sched_ext_report::Kills;
    use super::{MeasureArgs, ProveArgs};

    fn policy(name: &str) -> anyhow::Result<Option<vlane_policy::loan::Policy>> {
        if name == "eevdf" { Ok(None) } else { Ok(Some(name.parse()?)) }
    }

    /// Measures here, and prints `RESULT` lines.
    pub fn measure(args: &MeasureArgs) -> anyhow::Result<()> {
        if args.hold {
            return Ok(hold(args.hogs)?);
        }
        for (place, name) in args.turns.iter().enumerate() {
            let shown = turn(&Turn {
                policy: policy(name)?,
                seconds: args.seconds,
                hogs: args.hogs,
                every_ns: args.every_ms * 1_000_000,
                boost_max_ns: args.boost_us * 1000,
                strangers: args.strangers,
                weights: args.weights.clone(),
            })?;
            println!("RESULT turn_{place}={}", serde_json::to_string(&shown)?);
        }
        if args.kills > 0 {
            kill(args.kills)?;
        }
        Ok(())
    }

    /// Starts the loader and kills it, at any moment of its life.
    fn kill(times: u32) -> anyhow::Result<()> {
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let (mut while_loaded, mut slowest) = (0, Duration::ZERO);
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut longest = Duration::from_millis(500);
        for n in 0..times {
            let begun = Instant::now();
            let mut child = Command::new(&own)
                .args(["sched", "measure-sched-ext", "--hold", "--hogs", "4"])
                .stdout(Stdio::piped())
                .spawn()
                .context("the loader cannot be started")?;
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Half of them when it is loaded and schedules, half of them at any time before.
            if n % 2 == 0 {
                let mut line = String::new();
                let out = child.stdout.take().context("the loader has no output")?;
                BufReader::new(out).read_line(&mut line)?;
                if line.trim() != "loaded" {
                    let _ = child.kill();
                    bail!("the loader said {line:?} instead of `loaded` and ended with {}", child.wait()?);
                }
                longest = begun.elapsed();
                while_loaded += 1;
                std::thread::sleep(Duration::from_micros(random % 50_000));
            } else {
                let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX).max(1);
                std::thread::sleep(Duration::from_micros(random % micros));
            }
            child.kill().context("the loader cannot be killed")?;
            child.wait()?;
            slowest = slowest.max(unloaded(Duration::from_secs(5))?);
            if (n + 1) % 50 == 0 {
                println!("{} of {times} loaders killed", n + 1);
            }
        }
        println!("RESULT kills={times}");
        println!("RESULT kills_while_loaded={while_loaded}");
        println!("RESULT unload_ms={}", slowest.as_millis());
        std::io::stdout().flush()?;
        Ok(())
    }

    /// What guests are started with.
    struct Bed<'a> {
        host: &'a Host,
        kernel: &'a Kernel,
        own: &'a Path,
        limit: Duration,
    }

    impl Bed<'_> {
        /// Runs `vlane sched measure-sched-ext` in a guest of its own.
        fn run(
            &self,
            machine: Qemu,
            arguments: &str,
            crashes: &mut u32,
        ) -> anyhow::Result<vlane_boot::Report> {
            let script = format!(
                "vlane sched measure-sched-ext {arguments} 2>&1 || exit 1\n\
                 echo RESULT state=$(cat /sys/kernel/sched_ext/state)\n"
            );
            let guest = Initramfs::new(script).program_at("vlane", self.own);
            loop {
                let guest =
                    machine.clone().start_with(self.host, self.kernel, &guest, self.limit, Some(show))?;
                let report = guest.wait()?;
                // Loading a scheduler changes the kernel's code while other CPUs run it. Where such a kernel crashed, a CPU stood one
                // byte behind the beginning of a jump that had just been changed: it had met the breakpoint that the kernel puts there
                // meanwhile after the kernel had seen to it that nobody can. That is QEMU's emulation of CPUs on several threads, not
                // the kernel and not the scheduler. The report counts these crashes.
                if report.console.contains("Kernel panic") && report.result("state").is_err() && *crashes < 3
                {
                    *crashes += 1;
                    let at = report.console.lines().find(|line| line.contains("RIP:")).unwrap_or_default();
                    eprintln!("the guest's kernel crashed; again ({crashes} of 3): {}", at.trim());
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
    pub fn prove(args: &ProveArgs) -> anyhow::Result<()> {
        for name in &args.schedulers {
            policy(name)?;
        }
        args.output.check()?;
        let (begun, created) = (Instant::now(), vlane_report::date::now());
        let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
        let (program, kernel) = (QemuProgram::find(&host)?, Kernel::with_sched_ext(&host)?);
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        // In turns: what changes on the host meanwhile changes for all.
        let turns = vec![args.schedulers.join(","); usize::from(args.repeats)].join(",");
        let weights: Vec<String> = args.weights.iter().map(ToString::to_string).collect();
        let weights =
            if weights.is_empty() { String::new() } else { format!("--weights {}", weights.join(",")) };
        let measures = format!(
            "--turns {turns} --time {} --every {}ms --boost {}us --strangers {} {weights}",
            args.seconds, args.every_ms, args.boost_us, args.strangers
        );
        let boot = Boot::Kernel { kernel: kernel.image.clone(), initramfs: None, append: String::new() };
        let mut machine = Qemu::new(program, Accel::Tcg, boot, Disk::at("/nowhere"));
        machine.disks.clear();
        machine.memory_mib = 1024;
        let bed = Bed { host: &host, kernel: &kernel, own: &own, limit: Duration::from_secs(args.limit) };
        let mut crashes = 0;
        let report = bed.run(machine.clone(), &measures, &mut crashes)?;
        let count = args.schedulers.len() * usize::from(args.repeats);
        let mut shown = Vec::with_capacity(count);
        for place in 0..count {
            shown.push(serde_json::from_str(report.result(&format!("turn_{place}"))?)?);
        }
        // Loading and unloading a scheduler changes the kernel's code.
        machine.in_turns = true;
        let report = match args.kills {
            0 => report,
            kills => bed.run(machine, &format!("--kills {kills}"), &mut crashes)?,
        };
        let number = |key: &str| report.result(key).ok().and_then(|text| text.parse().ok()).unwrap_or(0.0);
        let kills = Kills {
            all: number("kills"),
            while_loaded: number("kills_while_loaded"),
            unload_ms: number("unload_ms"),
            state: report.result("state")?.to_string(),
            crashes,
        };
        let report = super::super::sched_ext_report::report(
            args.schedulers.as_slice(),
            &shown,
            &kills,
            &kernel.version,
            created,
            begun.elapsed(),
        );
        args.output.show(&report)
    }
}
