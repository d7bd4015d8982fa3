//! `vlane volume`: a served volume, asked and changed by its control socket.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use vlane_client::control::Control;
use vlane_error::counted;
use vlane_units::show_size;

use crate::limit::LimitArgs;
use crate::record::RecordArgs;
use crate::{classes, limit, record};

/// Ask or change a volume while it is served with --control
#[derive(Debug, Args)]
pub struct VolumeArgs {
    /// Control socket of the volume: vlane serve ... --control PATH
    #[arg(value_name = "CONTROL_SOCKET")]
    control: PathBuf,

    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Debug, Subcommand)]
enum VolumeCommand {
    /// Show the volume, its threads, its limits, and its requests so far
    Status,
    /// Show or change the limits per second
    Limit(LimitArgs),
    /// Show the volume's requests by class
    ///
    /// Shows their number and their times in vlane and at the device: the mean and the 99th
    /// percentile. Shows also each lane's present limit of requests at the device.
    Classes,
    /// Record every request
    Record(RecordArgs),
}

/// `vlane limit`, `classes` and `record` as they were called before.
#[derive(Debug, Subcommand)]
pub enum Former {
    /// Former name of `vlane volume CONTROL_SOCKET limit`
    #[command(hide = true)]
    Limit(FormerArgs<LimitArgs>),
    /// Former name of `vlane volume CONTROL_SOCKET classes`
    #[command(hide = true)]
    Classes(FormerArgs<NoArgs>),
    /// Former name of `vlane volume CONTROL_SOCKET record`
    #[command(hide = true)]
    Record(FormerArgs<RecordArgs>),
}

/// The arguments with the socket among them.
#[derive(Debug, Args)]
pub struct FormerArgs<A: Args> {
    /// Control socket of the volume
    #[arg(value_name = "CONTROL_SOCKET")]
    control: PathBuf,

    #[command(flatten)]
    rest: A,
}

/// No arguments.
#[derive(Debug, Args)]
pub struct NoArgs {}

/// Runs the command.
///
/// # Errors
/// The volume cannot be asked, or refuses; those of a recording.
pub fn run(args: &VolumeArgs) -> Result<()> {
    match &args.command {
        VolumeCommand::Status => status(&args.control),
        VolumeCommand::Limit(limits) => limit::run(&args.control, limits),
        VolumeCommand::Classes => classes::run(&args.control),
        VolumeCommand::Record(options) => record::run(&args.control, options),
    }
}

/// Runs a command by its former name, and says the present one.
///
/// # Errors
/// As [`run`].
pub fn run_former(former: &Former) -> Result<()> {
    let (name, control) = match former {
        Former::Limit(args) => ("limit", &args.control),
        Former::Classes(args) => ("classes", &args.control),
        Former::Record(args) => ("record", &args.control),
    };
    eprintln!("vlane: `vlane {name}` is now `vlane volume {} {name}`", control.display());
    match former {
        Former::Limit(args) => limit::run(control, &args.rest),
        Former::Classes(_) => classes::run(control),
        Former::Record(args) => record::run(control, &args.rest),
    }
}

fn status(path: &Path) -> Result<()> {
    let control = Control::new(path);
    let (volume, counters, limits) = (control.volume()?, control.counters()?, control.limits()?);
    let topology = &volume.topology;
    let mode = if volume.read_only { ", read-only" } else { "" };
    println!(
        "{}: {}, blocks of {} bytes{mode}",
        volume.name,
        show_size(volume.size),
        volume.block_size
    );
    let cpus: Vec<String> = topology.cpus.iter().map(usize::to_string).collect();
    let pinned =
        if cpus.is_empty() { String::new() } else { format!(", on CPUs {}", cpus.join(",")) };
    println!(
        "served by process {}: {}, {} of at most {} in use{pinned}",
        counters.process.pid,
        counted(topology.queues, "queue"),
        counted(topology.threads_used, "thread"),
        topology.threads
    );
    let count = |name: &str| counters.sum.get(name).copied().unwrap_or(0);
    println!(
        "{} so far, {}, {}, {}, {}",
        counted(volume.sessions, "session"),
        counted(count("reads"), "read"),
        counted(count("writes"), "write"),
        counted(count("flushes"), "flush"),
        counted(count("others"), "other request")
    );
    println!("{}", limit::describe(&limits));
    // A server of an earlier version does not know the question.
    if let Ok(share) = control.cache()
        && let Some(budget) = share.budget_bytes
    {
        let paused = if share.is_paused { "; dropping pauses" } else { "" };
        println!(
            "page cache: {} of {}, {} of it not written back; {} dropped{paused}",
            show_size(share.cached_bytes),
            show_size(budget),
            show_size(share.dirty_bytes),
            show_size(share.dropped_bytes)
        );
    }
    if volume.recording {
        println!("a trace is being recorded");
    }
    Ok(())
}
