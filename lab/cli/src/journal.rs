//! `vlane-lab prove journal`: how well guests' journals are found.

use anyhow::{Context, Result};
use clap::Args;
use vlane_capture::prove::{ProveOptions, prove};
use vlane_guest::{Host, Install};
use vlane_report::build::Begun;
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};

/// Record guests with wrapping journals, and compare found with true places
///
/// Takes ten minutes. Needs User-Mode Linux, fio, e2fsprogs, xfsprogs, fdisk, lvm2 and dmsetup, and
/// 4 GiB of space for temporary files.
#[derive(Debug, Args)]
pub struct ProveArgs {
    #[command(flatten)]
    options: ProveOptions,

    /// Install missing programs by apt-get (as root)
    #[arg(long)]
    install: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
pub fn run(args: &ProveArgs) -> Result<()> {
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
    let vlane = std::env::current_exe().context("cannot find this program's own file")?;
    let begun = Begun::now(command_line());
    args.output.show(&prove(&args.options, &vlane, &host, &interrupt, &begun)?)
}
