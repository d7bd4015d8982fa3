//! `vlane-lab prove loans`: measures responses and shares under the live scheduler.

use clap::Args;
use vlane_mechanisms::loans::{Options, guests, live};
use vlane_report::Report;
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};
use vlane_policy::loan::Policy;
use vlane_sched::realtime::guard::GuardCommand;

use vlane::sched::settings::{Config, runtime_dir};

/// Measure the live scheduler's effect on responses and shares
///
/// One guest does I/O, and others compute. The command measures the guest's response and all shares
/// of the CPUs under EEVDF, credit, always-boost, loan and adaptive, in turns. Threads of this
/// program simulate guests; --real runs real guests. Needs CAP_SYS_NICE, an otherwise idle machine,
/// and some minutes.
#[derive(Debug, Args)]
pub struct ProveArgs {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
///
/// # Errors
///
/// Obstacles to the measurement, or to writing the report.
pub fn run(args: &ProveArgs) -> anyhow::Result<()> {
    args.output.check()?;
    args.output.show(&report(&args.options)?)
}

fn report(options: &Options) -> anyhow::Result<Report> {
    let interrupt = Interrupt::listen()?;
    if let Some(machines) = options.real {
        let own = std::env::current_exe()?;
        return Ok(guests::run(options, machines, &own, &command_line(), &interrupt)?);
    }
    let mut config = Config::of(options.config.as_ref())?;
    config.hold_back = options.hold_back.or(config.hold_back);
    let settings = |policy: Policy| Ok((policy, config.settings(policy)?));
    let policies = Policy::ALL.into_iter().map(settings).collect::<anyhow::Result<Vec<_>>>()?;
    let scheduler = (&*runtime_dir(), &GuardCommand::own()?);
    Ok(live::run(options, &policies, scheduler, &command_line(), &interrupt)?)
}
