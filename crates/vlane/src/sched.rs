//! `vlane sched`: the vCPU scheduler, simulated and live.

use clap::{Args, Subcommand};

/// `vlane sched`
#[derive(Debug, Args)]
pub struct SchedArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
}

pub fn run(args: &SchedArgs) -> anyhow::Result<()> {
    match &args.command {
    }
}
