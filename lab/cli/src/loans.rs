//! `vlane-lab prove loans`: measures responses and shares under the live scheduler.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use vlane_guest::Install;
use vlane_mechanisms::loans::live::{self, Arm, Options};
use vlane_mechanisms::loans::{express, guests};
use vlane_report::Report;
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};
use vlane_policy::loan::Policy;
use vlane_sched::realtime::guard::GuardCommand;

use crate::values;

use vlane::sched::settings::{Config, HoldBackArg, runtime_dir};

/// Measure the live scheduler's effect on responses and shares
///
/// One guest does I/O, and others compute. The command measures the guest's response and all shares
/// of the CPUs under EEVDF, credit, always-boost, loan and adaptive, in turns. Threads of this
/// program simulate guests; --real runs real guests. Needs CAP_SYS_NICE, an otherwise idle machine,
/// and some minutes.
#[derive(Debug, Args)]
pub struct ProveArgs {
    /// Run real guests and `vlane serve`: User-Mode Linux, or QEMU
    #[arg(long, value_enum)]
    real: Option<Real>,
    /// Measure express requests and loans in real guests: neither, each, and both
    ///
    /// Measures a foreground program in a guest with background readers.
    #[arg(long, requires = "real", conflicts_with_all = ["only", "gaps"])]
    express: bool,
    /// Background readers with --express
    #[arg(long, value_name = "N", requires = "express", default_value_t = 16, value_parser = values::whole::<usize>(1..=200))]
    readers: usize,
    /// Service time of the device with --express; it serves four requests in parallel
    #[arg(long, value_name = "TIME", requires = "express", value_parser = values::time, default_value = "1ms")]
    latency: Duration,
    /// Install or download missing parts of real guests
    #[arg(long, requires = "real")]
    install: bool,
    /// Number of guests, including the guest with I/O [default: 6 per CPU]
    #[arg(long, value_name = "N", value_parser = values::whole::<usize>(2..=1000))]
    guests: Option<usize>,
    /// Weights of the guests; the last one counts for the rest
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "256", value_parser = values::whole::<u32>(1..=65536))]
    weights: Vec<u32>,
    /// Intervals between I/Os [default: 20ms,5ms,2ms; real guests: 20ms,5ms]
    ///
    /// For real guests, this is the device's service time.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::time)]
    gaps: Vec<Duration>,
    /// CPU time of the guest for each I/O
    #[arg(long, value_name = "TIME", value_parser = values::time_or_none, default_value = "100us")]
    work: Duration,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", value_parser = values::time_between(Duration::from_millis(200), Duration::from_secs(3600)), default_value = "8s")]
    time: Duration,
    /// Number of measurements of each policy
    #[arg(long = "repeat", alias = "rounds", value_name = "N", default_value_t = 3, value_parser = values::whole::<usize>(1..=1000))]
    rounds: usize,
    /// Measure only these: eevdf, credit, always-boost, loan, adaptive
    ///
    /// With --real also defaults, which is `vlane sched run` without options and without --config.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_arm)]
    only: Vec<String>,
    /// How to hold back a guest that has used more than its share [default: nice]
    #[arg(long, value_enum)]
    hold_back: Option<HoldBackArg>,
    /// TOML file with the scheduler's settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

/// A kind of real guest
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Real {
    /// User-Mode Linux
    Uml,
    /// QEMU, emulated where KVM does not work
    Qemu,
}

/// Parses the name of something to measure.
/// `vlane sched run` as it is without options.
const DEFAULTS: &str = "defaults";

fn parse_arm(text: &str) -> Result<String, String> {
    let policies = Policy::ALL.iter().map(|policy| policy.name());
    values::one_of(
        &text.to_ascii_lowercase(),
        "scheduler",
        ["eevdf", DEFAULTS].into_iter().chain(policies),
    )
}

/// Runs the command.
///
/// # Errors
///
/// Obstacles to the measurement, or to writing the report.
pub fn run(args: &ProveArgs) -> anyhow::Result<()> {
    args.output.check()?;
    let report = match args.real {
        Some(real) if args.express => express_and_loans(args, real)?,
        Some(real) => with_guests(args, real)?,
        None => natively(args)?,
    };
    args.output.show(&report)
}

fn gaps(args: &ProveArgs, usual: &[u64]) -> Vec<Duration> {
    let usual = usual.iter().map(|&ms| Duration::from_millis(ms));
    if args.gaps.is_empty() { usual.collect() } else { args.gaps.clone() }
}

fn guests(args: &ProveArgs) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    args.guests.unwrap_or(6 * cpus)
}

fn check_weights(args: &ProveArgs) -> anyhow::Result<()> {
    ensure_usage!(
        args.weights == [256],
        "--weights does not go with --real: all real guests weigh the same"
    );
    Ok(())
}

const fn machines(real: Real) -> guests::Machines {
    match real {
        Real::Uml => guests::Machines::Uml,
        Real::Qemu => guests::Machines::Qemu,
    }
}

/// Schedulers measured beside EEVDF: policies with the given options, and the default scheduler.
fn schedulers(args: &ProveArgs) -> Vec<guests::Scheduler> {
    let scheduler = |policy: Policy| {
        let mut arguments = vec!["--policy".to_owned(), policy.name().to_owned()];
        arguments.extend(scheduler_arguments(args));
        guests::Scheduler { name: policy.name().to_owned(), arguments }
    };
    let defaults = guests::Scheduler { name: DEFAULTS.to_owned(), arguments: Vec::new() };
    let all = Policy::ALL.into_iter().map(scheduler).chain([defaults]);
    // Without a file it is `adaptive`, once more.
    let is_usual = |name: &str| args.only.is_empty() && (name != DEFAULTS || args.config.is_some());
    all.filter(|scheduler| is_usual(&scheduler.name) || args.only.contains(&scheduler.name))
        .collect()
}

/// Arguments passed on to `vlane sched run`.
fn scheduler_arguments(args: &ProveArgs) -> Vec<String> {
    let mut arguments = Vec::new();
    if let Some(config) = &args.config {
        arguments.extend(["--config".to_owned(), config.display().to_string()]);
    }
    if let Some(hold_back) = args.hold_back.and_then(|arg| clap::ValueEnum::to_possible_value(&arg))
    {
        arguments.extend(["--hold-back".to_owned(), hold_back.get_name().to_owned()]);
    }
    arguments
}

fn with_guests(args: &ProveArgs, real: Real) -> anyhow::Result<Report> {
    check_weights(args)?;
    let options = guests::Options {
        command: command_line(),
        program: std::env::current_exe()?,
        machines: machines(real),
        guests: guests(args),
        latencies: gaps(args, &[20, 5]),
        time: args.time,
        rounds: args.rounds,
        schedulers: schedulers(args),
        install: if args.install { Install::Allowed } else { Install::Never },
    };
    Ok(guests::run(&options, &Interrupt::listen()?)?)
}

fn express_and_loans(args: &ProveArgs, real: Real) -> anyhow::Result<Report> {
    check_weights(args)?;
    let options = express::Options {
        command: command_line(),
        program: std::env::current_exe()?,
        machines: machines(real),
        guests: guests(args),
        readers: args.readers,
        latency: args.latency,
        time: args.time,
        rounds: args.rounds,
        arguments: scheduler_arguments(args),
        install: if args.install { Install::Allowed } else { Install::Never },
    };
    Ok(express::run(&options, &Interrupt::listen()?)?)
}

fn natively(args: &ProveArgs) -> anyhow::Result<Report> {
    let mut config = Config::of(args.config.as_ref())?;
    config.hold_back = args.hold_back.or(config.hold_back);
    let mut arms = vec![Arm { name: "EEVDF".into(), settings: None }];
    for policy in Policy::ALL {
        arms.push(Arm { name: policy.name().into(), settings: Some(config.settings(policy)?) });
    }
    if !args.only.is_empty() {
        for name in &args.only {
            ensure_usage!(
                arms.iter().any(|arm| arm.name.eq_ignore_ascii_case(name)),
                "there is no {name:?} to measure; change --only"
            );
        }
        arms.retain(|arm| args.only.iter().any(|name| arm.name.eq_ignore_ascii_case(name)));
    }
    let options = Options {
        command: command_line(),
        guests: guests(args),
        weights: args.weights.clone(),
        gaps: gaps(args, &[20, 5, 2]),
        work: args.work,
        time: args.time,
        ramp: Duration::from_secs(1),
        rounds: args.rounds,
        arms,
        state_dir: runtime_dir(),
        guard: GuardCommand::own()?,
    };
    Ok(live::run(&options, &Interrupt::listen()?)?)
}
