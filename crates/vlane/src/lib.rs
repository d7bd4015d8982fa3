//! The command line: reads arguments, prints for people; nothing else.

#![forbid(unsafe_code)]

mod analyze;
mod bench;
mod boot;
mod compare;
mod output;
mod peers;
mod record;
mod replay;
mod report;
mod sched;
mod serve;
mod topologies;
mod trace;
mod work;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Serves virtual disks to virtual machines: one lane per vCPU, no lock.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 110)]
struct Cli {
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
    /// Drive any vhost-user-blk back end from the guest's side, and measure it
    Bench(bench::BenchArgs),
    /// Record every request of a volume while it is served
    Record(record::RecordArgs),
    /// Drive a recorded trace against any vhost-user-blk back end
    Replay(replay::ReplayArgs),
    /// Say what a recorded trace consists of: sizes, locality, queue depth, latency, priorities, flushes
    Analyze(analyze::AnalyzeArgs),
    /// Turn traces into those of other programs, and back
    Trace(trace::TraceArgs),
    /// Compare vlane with qemu-storage-daemon on this machine, interleaved
    Peers(peers::PeersArgs),
    /// Show a saved report again, or write it in another form
    Report(report::ReportArgs),
    /// Compare host, virtio and emulated disks in one guest, and see where requests go
    Compare(compare::CompareArgs),
    /// Measure one queue, many queues and many threads on a null device, and predict more CPUs
    Topologies(topologies::TopologiesArgs),
    /// Count the work per request: 4K against 512K, back ends and a guest
    Work(work::WorkArgs),
    /// Schedule virtual CPUs: who has finished I/O runs at once, and everybody keeps its share
    /// The virtual CPU scheduler: boost who has I/O, and stay fair
    /// Schedule vCPUs: boost those whose I/O has completed, and keep that fair
    Sched(sched::SchedArgs),
}

fn main() -> ExitCode {
    // Standard output is for results; everything that is told goes to standard error. VLANE_LOG=debug tells more.
    let filter = EnvFilter::try_from_env("VLANE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .compact()
        .init();
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Boot(args) => boot::run(args),
        Command::Bench(args) => bench::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Analyze(args) => analyze::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Peers(args) => peers::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Topologies(args) => topologies::run(&args),
        Command::Work(args) => work::run(&args),
        Command::Sched(args) => sched::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vlane: {error:#}");
            ExitCode::FAILURE
        }
    }
}
