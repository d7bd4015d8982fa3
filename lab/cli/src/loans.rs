//! `vlane-lab prove loans`: measures responses and shares under the live scheduler.

use anyhow::Result;
use vlane::sched::settings::{Config, runtime_dir};
use vlane_mechanisms::loans::{Options, guests, live};
use vlane_policy::loan::Policy;
use vlane_report::Report;
use vlane_sched::realtime::guard::GuardCommand;
use vlane_testbed::Call;

/// Measures with vlane's own file.
///
/// # Errors
///
/// Settings of the scheduler that make no sense, and obstacles to the measurement.
pub fn run(options: &Options, call: &Call<'_>) -> Result<Report> {
    if let Some(machines) = options.real {
        return Ok(guests::run(options, machines, call)?);
    }
    let mut config = Config::of(options.config.as_ref())?;
    config.hold_back = options.hold_back.or(config.hold_back);
    let settings = |policy: Policy| Ok((policy, config.settings(policy)?));
    let policies = Policy::ALL.into_iter().map(settings).collect::<Result<Vec<_>>>()?;
    let scheduler = (&*runtime_dir(), &GuardCommand::own());
    Ok(live::run(options, &policies, scheduler, call)?)
}
