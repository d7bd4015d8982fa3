//! `vlane-lab compare host`: host, virtio and emulated disks side by side, on the user's own
//! machine.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use vlane_compare::compare::columns::Column;
use vlane_compare::compare::{self, Found, Options, loads};
use vlane_compare::work;
use vlane_report::text;
use vlane_testbed::Installs;

use crate::output::{OutputArgs, Overwrite, called, width};

/// Compare disks: the host, vlane, virtio-blk, qemu-storage-daemon, emulated
///
/// Needs QEMU, fio, busybox, mkfs.ext4, and space for one scratch image per guest disk. Needs no
/// root. Takes less than ten minutes.
#[derive(Debug, Args)]
pub struct CompareArgs {
    #[command(flatten)]
    options: Options,
    /// Install missing programs by apt-get (as root), and a guest kernel into the cache directory
    #[arg(long)]
    install: bool,

    /// File for the page with the pictures
    #[arg(long, value_name = "FILE", default_value = "compare.html")]
    html: PathBuf,
    /// Write no page
    #[arg(long)]
    no_html: bool,
    /// Also write the report as JSON; `-` is standard output and replaces the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,
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
    let html = (!args.no_html).then(|| args.html.clone());
    let output = OutputArgs { html, json: args.json.clone(), overwrite: args.overwrite };
    output.check()?;
    let host = Installs { install: args.install }.host()?;
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
