//! `vlane-lab compare peers`: compares vlane with qemu-storage-daemon. [`vlane_compare::peers`]
//! describes the measurement.

use std::path::PathBuf;

use clap::Args;
use vlane_compare::peers::{self, Options, RowResult};
use vlane_testbed::Output;

use crate::exit::Partial;
use crate::output::{Overwrite, called};

/// Compare vlane with qemu-storage-daemon on this machine
///
/// Measures both in turns. Needs two CPUs, qemu-storage-daemon, and fio for the row about the disk.
/// A fio with libblkio, if there is one, is a second client. The command makes images of 1 GiB on a
/// RAM disk and of 2 GiB on a disk, and removes them.
///
/// With --fixed-load, it compares the cost at the same rate instead of the highest rate. The
/// clients are then fio with libblkio, and fio in a User-Mode Linux guest and in a QEMU guest.
#[derive(Debug, Args)]
pub struct PeersArgs {
    #[command(flatten)]
    options: Options,
    /// List the rows and exit
    #[arg(long)]
    list: bool,
    /// Print a Markdown table of the main rows at the end
    #[arg(long)]
    markdown: bool,
    /// Write every single measurement to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,
    /// Write a report: a page (.html), data (.json), or text (.txt)
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the measurements.
pub fn run(args: &PeersArgs) -> anyhow::Result<()> {
    if args.list {
        for row in peers::rows(args.options.fixed_load, &[]) {
            println!("{:<22} {}", row.id, row.title);
        }
        return Ok(());
    }
    if let Some(path) = &args.html {
        vlane_testbed::reports::check_report(path, args.overwrite.force)?;
    }
    let json = args.json.as_deref().map(|path| peers::json_output(path, args.overwrite.force));
    json.as_ref().map_or(Ok(()), Output::check)?;
    let mut so_far: Vec<RowResult> = Vec::new();
    let mut written = Ok(());
    let done = |result: &RowResult| {
        print!("{}", peers::lines(result));
        so_far.push(result.clone());
        // After every row: a killed run keeps the rows before.
        written = json.as_ref().map_or(Ok(()), |output| peers::write_json(output, &so_far));
    };
    let (outcome, report) = called(|call| peers::run(&args.options, call, done))?;
    for missing in &outcome.missing {
        println!("not measured: {missing}");
    }
    println!("\n{}", report.summary.join("\n"));
    if args.markdown {
        println!("\n{}", peers::markdown(&outcome.rows));
    }
    if let Some(path) = &args.html {
        vlane_testbed::reports::write_report(&report, path, args.overwrite.force)?;
        println!("{}", path.display());
    }
    written?;
    outcome.partial.map_or(Ok(()), |missing| Err(Partial(missing).into()))
}
