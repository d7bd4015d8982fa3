//! `vlane sched`: the vCPU scheduler, simulated and live.

mod simulate;

use clap::{Args, Subcommand};

/// `vlane sched`
#[derive(Debug, Args)]
pub struct SchedArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Simulate host schedulers: any number of CPUs, the same result every time
    Simulate(simulate::SimulateArgs),
}

/// Runs the command.
///
/// # Errors
///
/// What the command says.
pub fn run(args: &SchedArgs) -> anyhow::Result<()> {
    match &args.command {
        Command::Simulate(args) => simulate::run(args),
    }
}
