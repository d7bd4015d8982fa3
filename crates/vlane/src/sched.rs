//! `vlane sched`: the vCPU scheduler, simulated and live.

mod sched_ext;
#[cfg(feature = "sched-ext")]
mod sched_ext_report;

use clap::{Args, Subcommand};

/// `vlane sched`
#[derive(Debug, Args)]
pub struct SchedArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure the sched_ext vehicle in a guest whose kernel has sched_ext, against that kernel's own scheduler
    ProveSchedExt(sched_ext::ProveArgs),
    /// What `prove-sched-ext` runs in the guest; also runs on a host with sched_ext
    #[command(hide = true)]
    MeasureSchedExt(sched_ext::MeasureArgs),
}

pub fn run(args: &SchedArgs) -> anyhow::Result<()> {
    match &args.command {
        Command::ProveSchedExt(args) => sched_ext::prove(args),
        Command::MeasureSchedExt(args) => sched_ext::measure(args),
    }
}
