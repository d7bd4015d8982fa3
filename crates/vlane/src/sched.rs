//! `vlane sched`: the vCPU scheduler, simulated and live.

mod guard;
mod prove;
mod run;
mod sched_ext;
mod settings;
mod simulate;
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
enum Command {
    /// Schedule virtual CPUs of this host
    Run(run::RunArgs),
    /// Show whether a scheduler runs, its machines and its budgets
    Status(status::StatusArgs),
    /// Show the running scheduler's vCPUs, once a second
    Top(top::TopArgs),
    /// Measure the live scheduler's effect on responses and shares
    Prove(prove::ProveArgs),
    /// Restore threads that a killed scheduler left changed
    Repair(guard::RepairArgs),
    /// The scheduler's guard
    #[command(hide = true)]
    Guard(guard::GuardArgs),
    /// Simulate host schedulers: any number of CPUs, reproducible results
    Simulate(simulate::SimulateArgs),
    /// Compare the sched_ext vehicle with the kernel's scheduler in a guest with sched_ext
    ProveSchedExt(sched_ext::ProveArgs),
    /// Run the guest's part of `prove-sched-ext`; also runs on a host with sched_ext
    #[command(hide = true)]
    MeasureSchedExt(sched_ext::MeasureArgs),
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
        Command::Prove(args) => prove::run(args),
        Command::Repair(args) => guard::repair(args),
        Command::Guard(args) => guard::run(args),
        Command::Simulate(args) => simulate::run(args),
        Command::ProveSchedExt(args) => sched_ext::prove(args),
        Command::MeasureSchedExt(args) => sched_ext::measure(args),
    }
}
