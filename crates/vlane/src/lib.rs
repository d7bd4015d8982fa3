//! The command line: reads arguments and prints for people.
//!
//! The program is [`main()`]. [`command()`] is the definition of its command line. Help,
//! completions and man pages are made from it, and the tests check each of its options.

#![forbid(unsafe_code)]

// First: its macros take the place of the standard library's in all modules below.
#[macro_use]
mod print;
#[macro_use]
mod exit;

mod analyze;
mod bench;
mod boot;
mod caches;
mod classes;
mod compare;
mod completions;
mod explain;
mod express;
mod inspect;
mod journal;
mod limit;
mod logging;
mod man;
mod manual;
mod misplaced;
mod notify;
mod output;
mod peers;
mod power_cut;
mod record;
mod replay;
mod report;
mod sched;
mod serve;
mod throttle;
mod together;
mod topologies;
mod trace;
mod values;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Serve virtual disks to virtual machines: one lane per vCPU, no lock
#[derive(Debug, Parser)]
#[command(name = "vlane", version = version(), propagate_version = true, max_term_width = 110, after_help = exit::help())]
struct Cli {
    #[command(flatten)]
    logging: logging::LogArgs,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one is made, once")]
enum Command {
    /// Serve a volume to virtual machines over vhost-user-blk
    Serve(serve::ServeArgs),
    /// Run a QEMU guest on a volume, or a demonstration
    Boot(boot::BootArgs),
    /// Measure a vhost-user-blk back end from the guest's side
    Bench(bench::BenchArgs),
    /// Show a served volume's requests by class
    Classes(classes::ClassesArgs),
    /// Show or set a served volume's limits per second
    Limit(limit::LimitArgs),
    /// Record every request of a served volume
    Record(record::RecordArgs),
    /// Send a recorded trace to a vhost-user-blk back end
    Replay(replay::ReplayArgs),
    /// Show a trace's sizes, locality, queue depth, latency, priorities and flushes
    Analyze(analyze::AnalyzeArgs),
    /// Show an image's partitions, file systems and journals
    Inspect(inspect::InspectArgs),
    /// Convert traces from and to other programs' formats
    Trace(trace::TraceArgs),
    /// Show how well guests' journals are found
    Journal(journal::JournalArgs),
    /// Compare vlane with qemu-storage-daemon on this machine
    Peers(peers::PeersArgs),
    /// Show a saved report, or write it in another form
    Report(report::ReportArgs),
    /// Compare host, virtio and emulated disks in one guest
    Compare(compare::CompareArgs),
    /// Compare one queue, many queues and many threads on a null device
    Topologies(topologies::TopologiesArgs),
    /// Compare the effects of cache modes on a guest, its neighbour and the page cache
    Caches(caches::CachesArgs),
    /// Run the guest's part of `caches`, inside the guest
    #[command(hide = true)]
    CachesJob(caches::CachesJobArgs),
    /// Measure the foreground's gain and the background's loss with express classes
    Express(express::ExpressArgs),
    /// Run the foreground program of `express guests`, inside the guest
    #[command(hide = true)]
    ExpressRead(express::ExpressReadArgs),
    /// Compare the baseline, each mechanism, and all combined in one guest
    Together(together::TogetherArgs),
    /// Run the guest's part of `together`, inside the guest
    #[command(hide = true)]
    TogetherJob(together::TogetherJobArgs),
    /// Schedule virtual CPUs: boost those whose I/O has completed, and keep shares fair
    Sched(sched::SchedArgs),
    /// Check the states that a power cut could leave of a guest's file system
    #[command(hide = true)]
    PowerCut(power_cut::PowerCutArgs),
    /// Measure how exactly a volume's limits are kept
    #[command(hide = true)]
    Throttle(throttle::ThrottleArgs),
    /// Print a shell's completions
    Completions(completions::CompletionsArgs),
    /// Write the man pages, one for each command
    Man(man::ManArgs),
}

/// The commit given to the build. A source archive has none, and a build needs no git.
const COMMIT: Option<&str> = option_env!("VLANE_COMMIT");

/// The words of `--version` after the name.
fn version() -> &'static str {
    static VERSION: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| version_with(COMMIT));
    &VERSION
}

fn version_with(commit: Option<&str>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    match commit.map(str::trim).filter(|commit| !commit.is_empty()) {
        Some(commit) => format!("{version} (commit {commit})"),
        None => version.to_owned(),
    }
}

/// The definition of the command line.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The program.
pub fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        let words: Vec<String> = std::env::args().skip(1).collect();
        misplaced::explained(error, command(), &words).exit()
    });
    vlane_report::machine::built_from(COMMIT);
    let format = match cli.logging.start() {
        Ok(format) => format,
        Err(error) => return logging::ended(Err(error), logging::Format::Text),
    };
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Boot(args) => boot::run(args),
        Command::Bench(args) => bench::run(&args),
        Command::Classes(args) => classes::run(&args),
        Command::Limit(args) => limit::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Analyze(args) => analyze::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Journal(args) => journal::run(&args),
        Command::Peers(args) => peers::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Topologies(args) => topologies::run(&args),
        Command::Caches(args) => caches::run(&args),
        Command::CachesJob(args) => caches::run_job(&args),
        Command::Express(args) => express::run(&args),
        Command::ExpressRead(args) => express::run_read(&args),
        Command::Together(args) => together::run(&args),
        Command::TogetherJob(args) => together::run_job(&args),
        Command::Sched(args) => sched::run(&args),
        Command::PowerCut(args) => power_cut::run(&args),
        Command::Throttle(args) => throttle::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    };
    // Lost output counts for more than a partial result.
    let result = match (result, print::finish()) {
        (Err(error), Err(unprinted)) if error.is::<exit::Partial>() => Err(unprinted),
        (Ok(()), printed) => printed,
        (failed, _) => failed,
    };
    logging::ended(result, format)
}

#[cfg(test)]
#[test]
fn version_has_the_builds_commit() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(version_with(Some("9b0ee78f9e55+\n")), format!("{version} (commit 9b0ee78f9e55+)"));
    assert_eq!(version_with(Some("")), version);
    assert_eq!(version_with(None), version);
}
