//! `vlane-lab prove journal`: how well guests' journals are found.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use vlane_capture::detection::prove::{self, ProveOptions, prove};
use vlane_client::Progress;
use vlane_guest::{Host, Install};
use vlane_testbed::Interrupt;

use crate::output::OutputArgs;

fn parse_guest(text: &str) -> Result<String, String> {
    match prove::names().any(|name| name == text) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "there is no such guest; there are {}",
            prove::names().collect::<Vec<_>>().join(", ")
        )),
    }
}

/// Record guests with wrapping journals, and compare found with true places
///
/// Takes ten minutes. Needs User-Mode Linux, fio, e2fsprogs, xfsprogs, fdisk, lvm2 and dmsetup, and
/// 4 GiB of space for temporary files.
#[derive(Debug, Args)]
pub struct ProveArgs {
    /// Run only these guests
    ///
    /// ordered-4, ordered-64, ordered-64-gpt, ordered-64-lvm, ordered-64-crypt, journal-64,
    /// journal-1024, journal-1024-gpt, xfs-64
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_guest)]
    only: Vec<String>,

    /// Keep the traces in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,

    /// Install missing programs by apt-get (as root)
    #[arg(long)]
    install: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
pub fn run(args: &ProveArgs) -> Result<()> {
    args.output.check()?;
    if let Some(keep) = &args.keep
        && !keep.is_dir()
    {
        bail!("{}: is not a directory; make it first", keep.display());
    }
    let interrupt = Interrupt::listen()?;
    let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
    let options = ProveOptions {
        vlane: std::env::current_exe().context("cannot find this program's own file")?,
        command: crate::output::command_line(),
        only: args.only.clone(),
        keep: args.keep.clone(),
    };
    let mut progress =
        Progress::new(if args.only.is_empty() { prove::names().count() } else { args.only.len() });
    let report = prove(&options, &host, &interrupt, &mut |guest| progress.step(guest))?;
    progress.clear();
    args.output.show(&report)
}
