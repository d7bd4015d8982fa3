//! `vlane-lab compare host`: host, virtio and emulated disks side by side, on the user's own
//! machine.

use clap::{Args, ValueEnum};
use vlane_compare::compare::columns::Column;
use vlane_compare::compare::{self, Found, Options, loads};
use vlane_compare::work;
use vlane_report::text;
use vlane_testbed::Installs;

use crate::output::{OutputArgs, called, width};

/// Compare disks: the host, vlane, virtio-blk, qemu-storage-daemon, emulated
///
/// Needs QEMU, fio, busybox, mkfs.ext4, and space for one scratch image per guest disk. Needs no
/// root. Takes less than ten minutes.
#[derive(Debug, Args)]
#[command(mut_arg("html", |html| html.default_value("compare.html")))]
pub struct CompareArgs {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    installs: Installs,
    /// Write no page
    #[arg(long)]
    no_html: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the comparison; its processes and files are gone then.
pub fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let options = &args.options;
    if options.list {
        for column in Column::value_variants() {
            println!("{:<24} {}", column.id(), column.about());
        }
        println!();
        for load in loads::all() {
            println!("{:<24} {}", load.id(), load.long_name());
        }
        return Ok(());
    }
    let mut output = args.output.clone();
    output.html = output.html.filter(|_| !args.no_html);
    output.check()?;
    let host = args.installs.host()?;
    if options.work {
        return output.show(&called(|call| work::run(options, &host, call))?);
    }
    let found = Found::look(options, &host)?;
    eprint!("{}", found.about());
    let report = called(|call| compare::run(options, &host, &found, call))?;
    let shown = output.show_as(&report, || text::render(&compare::report::brief(&report), width()));
    for path in output.files().filter(|path| path.exists()) {
        eprintln!("the whole report: {}", path.display());
    }
    shown
}
