//! `vlane-lab prove loans`: measures responses and shares under the live scheduler.

use std::path::Path;

use anyhow::Result;
use vlane::sched::settings::{Config, runtime_dir};
use vlane_mechanisms::loans::{Options, guests, live};
use vlane_policy::loan::Policy;
use vlane_report::Report;
use vlane_sched::realtime::guard::GuardCommand;
use vlane_testbed::Interrupt;

/// Measures with vlane's own file.
///
/// # Errors
///
/// Settings of the scheduler that make no sense, and obstacles to the measurement.
pub fn run(options: &Options, vlane: &Path, command: &str, ended: &Interrupt) -> Result<Report> {
    if let Some(machines) = options.real {
        return Ok(guests::run(options, machines, vlane, command, ended)?);
    }
    let mut config = Config::of(options.config.as_ref())?;
    config.hold_back = options.hold_back.or(config.hold_back);
    let settings = |policy: Policy| Ok((policy, config.settings(policy)?));
    let policies = Policy::ALL.into_iter().map(settings).collect::<Result<Vec<_>>>()?;
    let scheduler = (&*runtime_dir(), &GuardCommand::own()?);
    Ok(live::run(options, &policies, scheduler, command, ended)?)
}
