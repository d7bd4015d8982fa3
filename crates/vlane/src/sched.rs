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
    /// Say whether a scheduler runs, and what it has: machines, budgets
    Status(status::StatusArgs),
    /// Show what the running scheduler does
    Top(top::TopArgs),
    /// Measure what the live scheduler does to responses and shares
    Prove(prove::ProveArgs),
    /// Restore threads that a killed scheduler has left
    Repair(guard::RepairArgs),
    /// The scheduler's guard
    #[command(hide = true)]
    Guard(guard::GuardArgs),
    /// Simulate host schedulers: any number of CPUs, the same result every time
    Simulate(simulate::SimulateArgs),
    /// Measure the sched_ext vehicle in a guest whose kernel has sched_ext, against that kernel's own scheduler
    ProveSchedExt(sched_ext::ProveArgs),
    /// What `prove-sched-ext` runs in the guest; also runs on a host with sched_ext
    #[command(hide = true)]
    MeasureSchedExt(sched_ext::MeasureArgs),
}

/// Runs the command.
///
/// # Errors
///
/// What the command says.
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
