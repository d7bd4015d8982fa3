//! `vlane peers`: vlane and qemu-storage-daemon side by side. What is measured and how is in [`vlane_lab::peers`].

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use vlane_boot::Install;
use vlane_lab::peers::{self, Options, RowResult};
use vlane_lab::report::Report;
use vlane_lab::{Interrupt, Machine, Output, date};

use crate::output::Overwrite;
use crate::report::command_line;
use crate::values;

/// Compare vlane with qemu-storage-daemon on this machine, interleaved.
///
/// Needs two CPUs, qemu-storage-daemon, and fio for the row about the disk. Images of 1 GiB on a RAM disk and 2 GiB on a disk are written
/// for it and removed afterwards.
#[derive(Debug, Args)]
pub struct PeersArgs {
    /// Measurements of each contender per row
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = values::whole::<u32>(1..=10_000))]
    pairs: u32,
    /// Time of each measurement
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = values::time)]
    time: Duration,
    /// Time before each measurement that does not count
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = values::time_or_none)]
    ramp: Duration,
    /// Rows to measure, as --list names them [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
    /// Name the rows and end
    #[arg(long)]
    list: bool,
    /// Install what is missing through apt-get (as root)
    #[arg(long)]
    install: bool,
    /// Print what matters most as a Markdown table at the end
    #[arg(long)]
    markdown: bool,
    /// Also print the project's own targets, and which of them are met
    #[arg(long)]
    targets: bool,
    /// Write every single measurement to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,
    /// Write a report: a page that holds its own data (.html), or the data alone (.json), or text (.txt)
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The CPU for the back ends [default: the first this process may use]
    #[arg(long, value_name = "CPU", value_parser = values::cpu)]
    server_cpu: Option<usize>,
    /// The CPU for the driver [default: the second]
    #[arg(long, value_name = "CPU", value_parser = values::cpu)]
    driver_cpu: Option<usize>,
    /// A directory on a RAM disk (tmpfs) [default: /dev/shm or another]
    #[arg(long, value_name = "DIR")]
    ram_dir: Option<PathBuf>,
    /// A directory on the disk to be measured [default: the current one or /var/tmp]
    #[arg(long, value_name = "DIR")]
    disk_dir: Option<PathBuf>,
}

/// Parses the name of a row.
fn parse_row(text: &str) -> Result<String, String> {
    values::one_of(text, "row", peers::rows().iter().map(|row| row.id))
}

/// Runs the command.
///
/// # Errors
/// Whatever keeps the measurements from being made.
pub fn run(args: &PeersArgs) -> anyhow::Result<()> {
    if args.list {
        for row in peers::rows() {
            println!("{:<16} {}", row.id, row.title);
        }
        return Ok(());
    }
    if let Some(path) = &args.html {
        Report::check_path(path, args.overwrite.force)?;
    }
    let options = Options {
        vlane: std::env::current_exe().context("cannot find this program's own file")?,
        rows: args.rows.clone(),
        pairs: args.pairs,
        time: args.time,
        ramp: args.ramp,
        install: if args.install { Install::Allowed } else { Install::Never },
        server_cpu: args.server_cpu,
        driver_cpu: args.driver_cpu,
        ram_dir: args.ram_dir.clone(),
        disk_dir: args.disk_dir.clone(),
    };
    let json = args.json.as_deref().map(|path| peers::json_output(path, args.overwrite.force));
    json.as_ref().map_or(Ok(()), Output::check)?;
    let interrupt = Interrupt::listen()?;
    let (created, start) = (date::now(), Instant::now());
    let mut so_far: Vec<RowResult> = Vec::new();
    let results = peers::run(&options, &interrupt, |result| {
        println!("{}", result.title);
        print!("{}", peers::lines(result));
        so_far.push(result.clone());
        // After every row: an interrupted run keeps what it has.
        match &json {
            Some(output) => peers::write_json(output, &so_far),
            None => Ok(()),
        }
    })?;
    if args.targets {
        println!("\n{}", peers::targets(&results));
    }
    if args.markdown {
        println!("\n{}", peers::markdown(&results));
    }
    if let Some(path) = &args.html {
        let machine = Machine::describe(env!("CARGO_PKG_VERSION"), &["qemu-storage-daemon", "fio"]);
        let seconds = start.elapsed().as_secs_f64();
        peers::report(&results, &command_line(), created, seconds, machine)
            .write_to(path, args.overwrite.force)?;
        println!("{}", path.display());
    }
    Ok(())
}
