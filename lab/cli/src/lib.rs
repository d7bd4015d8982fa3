//! The command line of `vlane-lab`: measurements and proofs; the product's commands are there, too,
//! for experiments with them.

#![forbid(unsafe_code)]

// First: its macros take the place of the standard library's in all modules below.
#[macro_use]
extern crate vlane;

mod bench;
mod compare;
mod demonstration;
mod explain;
mod express;
mod loans;
mod manual;
mod output;
mod peers;
mod power_cut;
mod report;
mod sched_ext;
mod topologies;
mod trace;

use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use vlane::serve::{Experiments, ServeArgs};
// Below them, modules say `crate::exit`, `crate::values` and so on, as they would in the product.
use vlane::{Common, Program, exit, misplaced, values};
use vlane_capture::prove::ProveOptions;
use vlane_mechanisms::loans::simulated;
use vlane_mechanisms::{bypass, caches, lanes, throttle, together};

use crate::output::Reported;

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
    Simulate(Reported<simulated::Options>),
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
    CachesJob(caches::job::GuestJob),
    /// Run the foreground program of `prove express` or `prove loans`
    #[command(hide = true)]
    ExpressRead(vlane_mechanisms::express::reader::Options),
    /// Run the guest's part of `prove together`
    #[command(hide = true)]
    TogetherJob(together::job::Job),
    /// Run the guest's part of `prove sched-ext`; also runs on a host with sched_ext
    #[command(hide = true)]
    SchedExtJob(sched_ext::Job),
}

/// Compare disks, back ends, cache modes, or queues and threads
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one is made, once")]
enum Compared {
    /// Compare disks: the host, vlane, virtio-blk, qemu-storage-daemon, emulated
    ///
    /// Needs QEMU, fio, busybox, mkfs.ext4, and space for one scratch image per guest disk. Needs
    /// no root. Takes less than ten minutes.
    Host(compare::CompareArgs),
    /// Compare vlane with qemu-storage-daemon on this machine
    ///
    /// Measures both in turns. Needs two CPUs, qemu-storage-daemon, and fio for the row about the
    /// disk. A fio with libblkio, if there is one, is a second client. The command makes images of
    /// 1 GiB on a RAM disk and of 2 GiB on a disk, and removes them.
    ///
    /// With --fixed-load, it compares the cost at the same rate instead of the highest rate. The
    /// clients are then fio with libblkio, and fio in a User-Mode Linux guest and in a QEMU guest.
    Peers(peers::PeersArgs),
    /// Compare cache modes: effects on a guest, its neighbour and the page cache
    ///
    /// A neighbour reads its hot set at random through the page cache. In parallel, a volume is
    /// served in one mode after the other, and this program or a guest with ext4 writes a journal
    /// on it. Both back ends share a memory cgroup, which needs root. The command sets
    /// vm.dirty_bytes for the whole host and restores it at the end. It makes its own images and
    /// removes them.
    Caches(Reported<caches::Options>),
    /// Compare one queue, many queues and many threads on a null device
    ///
    /// Baseline is one queue and one thread for all jobs. MQ is a queue per job and one thread. MT
    /// is a queue and a thread per job. Takes a few minutes, --quick half a minute. Needs no root
    /// and no other program.
    Topologies(Reported<topologies::TopologiesArgs>),
}

/// Prove a mechanism's worth with real guests, or the lack of it
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one is made, once")]
enum Proved {
    /// Measure classes: the foreground's gain and the background's loss
    ///
    /// Compares `serve --classes` and `vlane-fg` with the baseline. A crowd of background readers
    /// has one request each in flight, and one foreground reader is measured. The device is a model
    /// of a drive with one queue per back-end thread.
    #[command(subcommand)]
    Express(express::Express),
    /// Compare cache modes for real programs in a guest, on storage with a cap of reads
    ///
    /// Data of a guest's program fit the host's page cache and not the guest's memory. The journal
    /// goes round and pushes them out. Then the storage, which answers few reads per second, has to
    /// be asked. Needs root, User-Mode Linux, and the programs: RocksDB's db_bench for key-value
    /// and fill-sync, MariaDB and sysbench for oltp. Sets vm.dirty_bytes for the whole host and
    /// restores it at the end. Takes half an hour for each program, and more while hits still move.
    Bypass(Reported<bypass::Options>),
    /// Compare one queue, many queues and many threads in a guest
    ///
    /// Baseline is one queue and one thread of the back end. MQ is a queue for each vCPU and one
    /// thread. MT is a queue for each vCPU and a thread for each queue. A fio in a QEMU guest reads
    /// and writes images on a RAM disk. Takes 20 minutes.
    Lanes(Reported<lanes::Options>),
    /// Measure the live scheduler's effect on responses and shares
    ///
    /// One guest does I/O, and others compute. The command measures the guest's response and all
    /// shares of the CPUs under EEVDF, credit, always-boost, loan and adaptive, in turns. Threads
    /// of this program simulate guests; --real runs real guests. Needs CAP_SYS_NICE, an otherwise
    /// idle machine, and a few minutes.
    Loans(Reported<vlane_mechanisms::loans::Options>),
    /// Compare the baseline, each mechanism, and all combined in one guest
    ///
    /// The guest computes, writes mail and starts a program, in parallel with its own readers, on a
    /// host with more vCPUs than CPUs. The mechanisms are lanes, pdc, express and loans. The report
    /// has the foreground's times, the losses of the others and the host's cost. Loans need
    /// CAP_SYS_NICE. Without it the report leaves them out and says so.
    Together(Reported<together::Options>),
    /// Check what a power cut could leave of a guest's file system
    ///
    /// A guest writes, and everything that reaches the storage is recorded. Its file system is then
    /// checked in many states that a power cut could have left.
    PowerCut(Reported<vlane_power_cut::Options>),
    /// Measure how well guests' journals are found
    ///
    /// Records guests with wrapping journals, and compares found with true places. Takes ten
    /// minutes. Needs User-Mode Linux, fio, e2fsprogs, xfsprogs, fdisk, lvm2 and dmsetup, and 4 GiB
    /// of space for temporary files.
    Journal(Reported<ProveOptions>),
    /// Measure how exactly a volume's limits are kept
    ///
    /// Measures IOPS and bandwidth, one lane and two, with vlane's driver and with fio, second by
    /// second.
    Limits(Reported<throttle::Options>),
    /// Compare the sched_ext vehicle with the kernel's scheduler in a guest with sched_ext
    ///
    /// Boots a guest for each round. 12 threads compute and one also gets events, on 2 CPUs, under
    /// the kernel's scheduler and under the vehicle's policies, in turns. Then kills the loader
    /// repeatedly. Needs qemu-system-x86_64 and a vlane built with `--features sched-ext`. Takes
    /// a few minutes.
    SchedExt(Reported<vlane_mechanisms::sched_ext::Options>),
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
            Compared::Caches(args) => args.run(caches::run),
            Compared::Topologies(args) => args.run(topologies::run),
        },
        Command::Prove(proved) => match &proved {
            Proved::Express(args) => express::run(args),
            Proved::Bypass(args) => args.run(bypass::run),
            Proved::Lanes(args) => args.run(lanes::run),
            Proved::Loans(args) => args.run(loans::run),
            Proved::Together(args) => args.run(together::run),
            Proved::PowerCut(args) => power_cut::run(args),
            Proved::Journal(args) => args.run(vlane_capture::prove::prove),
            Proved::Limits(args) => args.run(throttle::run),
            Proved::SchedExt(args) => sched_ext::prove(args),
        },
        Command::Trace(args) => trace::run(&args),
        Command::Simulate(args) => args.run(simulated::run),
        Command::Report(args) => report::run(&args),
        Command::Serve(LabServeArgs { mut serve, experiments }) => {
            serve.experiments = experiments;
            vlane::serve::run(&serve)
        }
        Command::Boot(args) => demonstration::run(args),
        Command::Common(common) => common.run(&PROGRAM),
        Command::CachesJob(job) => Ok(job.run_in_guest()?),
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
