//! `vlane-lab prove power-cut`: checks the states that a power cut can leave of a guest's file
//! system. For those who work on vlane.

use anyhow::{Context, bail};
use clap::Args;
use vlane_power_cut::{Options, Outcome};
use vlane_report::build::Begun;
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};

/// Check the states that a power cut could leave of a guest's file system
///
/// A guest writes, and everything that reaches the storage is recorded. Its file system is then
/// checked in many states that a power cut could have left.
#[derive(Debug, Args)]
pub struct PowerCutArgs {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the check; and faults that it finds, after the report.
pub fn run(args: &PowerCutArgs) -> anyhow::Result<()> {
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let vlane = std::env::current_exe().context("cannot find this program's own file")?;
    let begun = Begun::now(command_line());
    let (outcomes, partial) = vlane_power_cut::run(&args.options, &vlane, &interrupt)?;
    let mut report = vlane_power_cut::report(&args.options, &outcomes, &begun);
    partial.into_iter().for_each(|missing| report.mark_partial(missing));
    let shown = args.output.show(&report);
    let name = |outcome: &Outcome| format!("{} with {}", outcome.what(), outcome.arm.name());
    let bad: Vec<String> = outcomes.iter().filter(|outcome| !outcome.is_good()).map(name).collect();
    match bad.is_empty() {
        true => shown,
        // It counts for more than a report that is partial, or a file that could not be written.
        false => bail!("broken states: {}; see the report", bad.join(", ")),
    }
}
