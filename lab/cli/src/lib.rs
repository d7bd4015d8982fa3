//! The command line of `vlane-lab`: measurements and proofs; the product's commands are there, too,
//! for experiments with them.

#![forbid(unsafe_code)]

// First: its macros take the place of the standard library's in all modules below.
#[macro_use]
extern crate vlane;

mod bench;
mod caches;
mod compare;
mod demonstration;
mod explain;
mod express;
mod journal;
mod loans;
mod manual;
mod output;
mod peers;
mod power_cut;
mod report;
mod sched_ext;
mod simulate;
mod throttle;
mod together;
mod topologies;
mod trace;

use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use vlane::serve::{Experiments, ServeArgs};
// Below them, modules say `crate::exit`, `crate::values` and so on, as they would in the product.
use vlane::{Common, Program, exit, misplaced, serve, values};

/// `vlane-lab`.
pub static PROGRAM: Program = Program { name: "vlane-lab", command, pages: manual::PAGES };

/// Measure virtual disks: back ends, guests, traces, and each of vlane's mechanisms
#[derive(Debug, Parser)]
#[command(name = "vlane-lab", version = vlane::version(), propagate_version = true, max_term_width = 110, after_help = exit::help())]
struct Cli {
    #[command(flatten)]
    logging: vlane::logging::LogArgs,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one is made, once")]
enum Command {
    /// Drive any vhost-user-blk back end from the guest's side, and measure it
    Bench(bench::BenchArgs),
    /// Compare disks, back ends, cache modes, or queues and threads
    #[command(subcommand)]
    Compare(Compared),
    /// Prove a mechanism's worth with real guests, or the lack of it
    #[command(subcommand)]
    Prove(Proved),
    /// Analyze, replay or convert a recorded trace
    #[command(subcommand)]
    Trace(trace::TraceCommand),
    /// Simulate host schedulers: any number of CPUs, reproducible results
    Simulate(simulate::SimulateArgs),
    /// Show a saved report in the terminal, or write it in another form
    Report(report::ReportArgs),
    /// Serve a volume as `vlane serve` does, with options for experiments
    Serve(LabServeArgs),
    /// Run a QEMU guest on a volume, or a demonstration that needs no guest
    Boot(vlane::boot::BootArgs),
    #[command(flatten)]
    Common(Common),
    /// Run the guest's part of `compare caches`
    #[command(hide = true)]
    CachesJob(vlane_mechanisms::caches::job::GuestJob),
    /// Run the foreground program of `prove express guests`
    #[command(hide = true)]
    ExpressRead(vlane_mechanisms::express::reader::Options),
    /// Run the guest's part of `prove together`
    #[command(hide = true)]
    TogetherJob(vlane_mechanisms::together::job::Job),
    /// Run the guest's part of `prove sched-ext`; also runs on a host with sched_ext
    #[command(hide = true)]
    SchedExtJob(sched_ext::Job),
}

/// Compare disks, back ends, cache modes, or queues and threads
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one is made, once")]
enum Compared {
    /// Compare the host's disk with a guest's virtio and emulated disks
    Host(compare::CompareArgs),
    /// Compare vlane with qemu-storage-daemon on this machine
    Peers(peers::PeersArgs),
    /// Compare cache modes: effects on a guest, its neighbour and the page cache
    Caches(caches::CachesArgs),
    /// Compare one queue, many queues and many threads on a null device
    Topologies(topologies::TopologiesArgs),
}

/// Prove a mechanism's worth with real guests, or the lack of it
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one is made, once")]
enum Proved {
    /// Measure classes: the foreground's gain and the background's loss
    #[command(subcommand)]
    Express(express::Express),
    /// Measure the live scheduler's effect on responses and shares
    Loans(loans::ProveArgs),
    /// Measure all mechanisms, each alone and combined, in one guest
    Together(together::TogetherArgs),
    /// Check what a power cut could leave of a guest's file system
    PowerCut(power_cut::PowerCutArgs),
    /// Measure how well guests' journals are found
    Journal(journal::ProveArgs),
    /// Measure how exactly a volume's limits are kept
    Limits(throttle::ThrottleArgs),
    /// Compare the sched_ext vehicle with the kernel's scheduler in a guest with sched_ext
    SchedExt(sched_ext::ProveArgs),
}

/// Serve a volume as `vlane serve` does, with options for experiments
#[derive(Debug, Args)]
struct LabServeArgs {
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten)]
    experiments: Experiments,
}

/// The definition of the command line. The product's own commands are not listed.
pub fn command() -> clap::Command {
    ["inspect", "volume", "sched"].into_iter().fold(Cli::command(), |command, name| {
        command.mut_subcommand(name, |below| below.hide(true))
    })
}

/// The program.
pub fn main() -> ExitCode {
    let cli = command()
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .unwrap_or_else(|error| misplaced::exit(error, &PROGRAM));
    vlane_report::machine::built_from(vlane::COMMIT);
    vlane::run(&PROGRAM, &cli.logging, || run(cli.command))
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Bench(args) => bench::run(&args),
        Command::Compare(compared) => match &compared {
            Compared::Host(args) => compare::run(args),
            Compared::Peers(args) => peers::run(args),
            Compared::Caches(args) => caches::run(args),
            Compared::Topologies(args) => topologies::run(args),
        },
        Command::Prove(proved) => match &proved {
            Proved::Express(args) => express::run(args),
            Proved::Loans(args) => loans::run(args),
            Proved::Together(args) => together::run(args),
            Proved::PowerCut(args) => power_cut::run(args),
            Proved::Journal(args) => journal::run(args),
            Proved::Limits(args) => throttle::run(args),
            Proved::SchedExt(args) => sched_ext::prove(args),
        },
        Command::Trace(args) => trace::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Serve(LabServeArgs { mut serve, experiments }) => {
            serve.experiments = experiments;
            vlane::serve::run(&serve)
        }
        Command::Boot(args) => demonstration::run(args),
        Command::Common(common) => common.run(&PROGRAM),
        Command::CachesJob(job) => caches::run_job(&job),
        Command::ExpressRead(args) => Ok(vlane_mechanisms::express::reader::run(&args)?),
        Command::TogetherJob(job) => Ok(job.run()?),
        Command::SchedExtJob(args) => sched_ext::measure(&args),
    }
}

#[cfg(test)]
#[test]
fn pages_fit_the_commands() {
    let found = vlane::manual::mismatches(&PROGRAM);
    assert!(found.is_empty(), "{found:#?}");
}
