//! `vlane sched`: the vCPU scheduler, simulated and live.

mod guard;
mod run;
pub mod settings;
mod status;
mod top;

use clap::{Args, Subcommand};

/// `vlane sched`
#[derive(Debug, Args)]
pub struct SchedArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one is made, once")]
enum Command {
    /// Schedule virtual CPUs of this host
    Run(run::RunArgs),
    /// Show whether a scheduler runs, its machines and its budgets
    Status(status::StatusArgs),
    /// Show the running scheduler's vCPUs, once a second
    Top(top::TopArgs),
    /// Restore threads that a killed scheduler left changed
    Repair(guard::RepairArgs),
    /// The scheduler's guard
    #[command(hide = true)]
    Guard(guard::GuardArgs),
}

/// Runs the command.
///
/// # Errors
///
/// The errors of the subcommand.
pub fn run(args: &SchedArgs) -> anyhow::Result<()> {
    match &args.command {
        Command::Run(args) => run::run(args),
        Command::Status(args) => status::run(args),
        Command::Top(args) => top::run(args),
        Command::Repair(args) => guard::repair(args),
        Command::Guard(args) => guard::run(args),
    }
}
