//! `vlane-lab prove limits`: how exactly a volume's limits are kept. For work on vlane.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use vlane_guest::{Host, Install};
use vlane_mechanisms::throttle;
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};
use crate::values;

/// Measure how exactly a volume's limits are kept
///
/// Measures IOPS and bandwidth, one lane and two, with vlane's driver and with fio, second by
/// second.
#[derive(Debug, Args)]
pub struct ThrottleArgs {
    /// Duration of each row, in whole seconds
    #[arg(long = "time", alias = "seconds", value_name = "TIME", default_value = "10s", value_parser = values::time_in::<u32>("s", 1..=3600))]
    seconds: u32,
    /// Install missing programs by apt-get (as root)
    #[arg(long)]
    install: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Measures.
pub fn run(args: &ThrottleArgs) -> Result<()> {
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
    let vlane = std::env::current_exe().context("cannot find this program's own file")?;
    let time = Duration::from_secs(args.seconds.into());
    let report = throttle::run(&vlane, time, &host, &command_line(), &interrupt)?;
    args.output.show(&report)
}
