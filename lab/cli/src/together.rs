//! `vlane-lab prove together`: the baseline, each mechanism alone, and all of them.
//! [`vlane_mechanisms::together`] describes the measurement.

use anyhow::Context;
use clap::Args;
use vlane_guest::{Host, Install};
use vlane_mechanisms::together::{self, Options};
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};

/// Compare the baseline, each mechanism, and all combined in one guest
///
/// The guest computes, writes mail and starts a program, in parallel with its own readers, on a
/// host with more vCPUs than CPUs. The mechanisms are lanes, pdc, express and loans. The report has
/// the foreground's times, the losses of the others and the host's cost. Loans need CAP_SYS_NICE.
/// Without it the report leaves them out and says so.
#[derive(Debug, Args)]
pub struct TogetherArgs {
    #[command(flatten)]
    options: Options,
    /// Install missing programs by apt-get (as root), and guest kernels into the cache directory
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measures.
///
/// # Errors
/// Obstacles to the measurements, or to writing the report.
pub fn run(args: &TogetherArgs) -> anyhow::Result<()> {
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
    let vlane = std::env::current_exe().context("cannot find this program's own file")?;
    let report = together::run(&args.options, &vlane, &command_line(), &host, &interrupt)?;
    args.output.show(&report)
}
