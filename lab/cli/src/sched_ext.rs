//! `vlane-lab prove sched-ext`: the sched_ext vehicle in a guest that has it.

use clap::Args;
use vlane_policy::loan::Policy;

use crate::output::OutputArgs;
use crate::values;

/// Parses the name of a scheduler.
fn parse_scheduler(text: &str) -> Result<String, String> {
    let policies = Policy::ALL.iter().map(|policy| policy.name());
    values::one_of(text, "scheduler", std::iter::once("eevdf").chain(policies))
}

/// Load of each measurement
#[derive(Debug, Args)]
struct LoadArgs {
    /// Duration of each measurement, in seconds
    #[arg(long = "time", alias = "seconds", value_name = "TIME", default_value = "6s", value_parser = values::seconds(0.1, 3600.0))]
    seconds: f64,
    /// Mean time between two events, in milliseconds
    #[arg(long = "every", alias = "every-ms", value_name = "TIME", default_value = "20ms", value_parser = values::time_in::<u64>("ms", 1..=60_000))]
    every_ms: u64,
    /// Longest boost, in microseconds
    ///
    /// An emulated CPU needs about ten times as long as a real one to serve an event.
    #[arg(long = "boost", alias = "boost-us", value_name = "TIME", default_value = "4ms", value_parser = values::time_in::<u64>("us", 1..=1_000_000))]
    boost_us: u64,
    /// Number of times to kill the loader
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = values::whole::<u32>(0..=100_000))]
    kills: u32,
    /// Measure again with this many threads of the ordinary class, which precede sched_ext
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::whole::<u32>(0..=10_000))]
    strangers: u32,
    /// Weights of the threads, in turns [default: all the same]
    ///
    /// The kernel's own scheduler ignores them.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::whole::<u32>(1..=65536))]
    weights: Vec<u32>,
}

/// Compare the sched_ext vehicle with the kernel's scheduler in a guest with sched_ext
///
/// Boots a guest for each round. 12 threads compute and one also gets events, on 2 CPUs, under the
/// kernel's scheduler and under the vehicle's policies, in turns. Then kills the loader repeatedly.
/// Needs qemu-system-x86_64 and a vlane built with `--features sched-ext`. Takes some minutes.
#[derive(Debug, Args)]
pub struct ProveArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Number of measurements of each scheduler
    #[arg(long = "repeat", alias = "repeats", value_name = "N", default_value_t = 3, value_parser = values::whole::<u16>(1..=100))]
    repeats: u16,
    /// Schedulers: eevdf (the kernel's own), credit, always-boost, loan, adaptive
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "eevdf,credit,always-boost,loan,adaptive",
        value_parser = parse_scheduler
    )]
    schedulers: Vec<String>,
    /// Time limit, in seconds
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = values::time_in::<u64>("s", 1..=86_400))]
    limit: u64,
    /// Download the guest's kernel into the cache directory, and install missing programs
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measure on this machine's kernel
#[derive(Debug, Args)]
pub struct MeasureArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Measurements, in this order
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    turns: Vec<String>,
    /// Threads that compute, besides the thread with events
    #[arg(long, default_value_t = 12, value_parser = values::whole::<usize>(0..=100_000))]
    hogs: usize,
    /// Load only: give threads to the scheduler, report that, and wait for a kill
    #[arg(long)]
    hold: bool,
}

#[cfg(not(feature = "sched-ext"))]
fn without() -> anyhow::Error {
    anyhow::anyhow!(
        "sched_ext: this vlane was built without it; build it with `cargo build --package vlane \
         --features sched-ext` (needs make, pkg-config, libelf-dev and zlib1g-dev)"
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
    use std::time::Duration;

    use anyhow::Context;
    use vlane_guest::{Host, Install};
    use vlane_mechanisms::sched_ext::{self, Load, Options};
    use vlane_testbed::Interrupt;

    use super::{LoadArgs, MeasureArgs, ProveArgs};
    use crate::output::command_line;

    impl LoadArgs {
        fn of(&self, turns: &[String]) -> Load {
            Load {
                turns: turns.to_vec(),
                seconds: self.seconds,
                every: Duration::from_millis(self.every_ms),
                boost: Duration::from_micros(self.boost_us),
                strangers: self.strangers,
                weights: self.weights.clone(),
                kills: self.kills,
            }
        }
    }

    /// Measures here, and prints `RESULT` lines.
    pub fn measure(args: &MeasureArgs) -> anyhow::Result<()> {
        if args.hold {
            return Ok(sched_ext::wait_for_a_kill(args.hogs)?);
        }
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        Ok(sched_ext::measure(&args.load.of(&args.turns), args.hogs, &own)?)
    }

    /// Boots the guest, and shows the report of what it did.
    pub fn prove(args: &ProveArgs) -> anyhow::Result<()> {
        args.output.check()?;
        let interrupt = Interrupt::listen()?;
        let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let options = Options {
            load: args.load.of(&args.schedulers),
            repeats: args.repeats,
            limit: Duration::from_secs(args.limit),
            program: &own,
            command: &command_line(),
        };
        args.output.show(&sched_ext::prove(&options, &host, &interrupt)?)
    }
}
