//! `vlane journal`: how well guests' journals are found.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use vlane_boot::{Host, Install};
use vlane_lab::report::{Report, text};
use vlane_lab::trace::detection::prove::{self, ProveOptions, prove};
use vlane_lab::{Interrupt, Progress};

use crate::output::Overwrite;
use crate::report::width;

fn parse_guest(text: &str) -> Result<String, String> {
    match prove::names().any(|name| name == text) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "there is no such guest; there are {}",
            prove::names().collect::<Vec<_>>().join(", ")
        )),
    }
}

/// Show how well guests' journals are found.
#[derive(Debug, Args)]
pub struct JournalArgs {
    #[command(subcommand)]
    command: JournalCommand,
}

#[derive(Debug, Subcommand)]
enum JournalCommand {
    /// Run guests whose journals go round, record them, and compare what each way finds with where the journals are
    Prove(ProveArgs),
}

/// Run guests whose journals go round, record them, and compare what each way finds with where the journals are.
///
/// Takes ten minutes. Needs User-Mode Linux, fio, e2fsprogs, xfsprogs, fdisk, lvm2 and dmsetup, and 4 GiB of space for temporary files.
#[derive(Debug, Args)]
struct ProveArgs {
    /// Only these guests: ordered-4, ordered-64, ordered-64-gpt, ordered-64-lvm, ordered-64-crypt, journal-64, journal-1024, journal-1024-gpt, xfs-64
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_guest)]
    only: Vec<String>,

    /// Keep the traces in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,

    /// Install what is missing by apt-get (as root)
    #[arg(long)]
    install: bool,

    /// Write the report as a page with pictures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,
}

/// Runs the command.
pub fn run(args: &JournalArgs) -> Result<()> {
    let JournalCommand::Prove(args) = &args.command;
    for path in [&args.html, &args.json].into_iter().flatten() {
        Report::check_path(path, args.overwrite.force)?;
    }
    if let Some(keep) = &args.keep
        && !keep.is_dir()
    {
        bail!("{}: is no directory; make it first", keep.display());
    }
    let interrupt = Interrupt::listen()?;
    let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
    let options = ProveOptions {
        vlane: std::env::current_exe().context("cannot find this program's own file")?,
        version: env!("CARGO_PKG_VERSION").into(),
        command: crate::output::command_line(),
        only: args.only.clone(),
        keep: args.keep.clone(),
    };
    let mut progress = Progress::new(1);
    let report = prove(&options, &host, &interrupt, &mut |guest| progress.step(guest))?;
    progress.clear();
    for path in [&args.html, &args.json].into_iter().flatten() {
        report.write_to(path, args.overwrite.force)?;
    }
    print!("{}", text::render(&report, width()));
    Ok(())
}
