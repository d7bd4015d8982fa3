//! `vlane-lab compare peers`: compares vlane with qemu-storage-daemon. [`vlane_compare::peers`]
//! describes the measurement.

use std::path::PathBuf;
use std::time::Duration;
use vlane_report::build::Begun;

use anyhow::Context;
use clap::Args;
use vlane_compare::peers::{self, Options, RowResult, fixed};
use vlane_guest::Install;
use vlane_testbed::{Interrupt, Output};

use crate::exit::Partial;
use crate::output::{Overwrite, command_line};
use crate::values;

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
    /// Measure CPU time and latency per request at given rates instead of throughput
    #[arg(long)]
    fixed_load: bool,
    /// With --fixed-load, also measure vlane with these options of `vlane serve`
    ///
    /// Example: "--poll-max 0". May be given several times.
    #[arg(long, value_name = "OPTIONS", requires = "fixed_load", allow_hyphen_values = true, value_parser = parse_also)]
    also: Vec<Also>,
    /// Measurements of each contender per row [default: 5]
    #[arg(long = "repeat", alias = "pairs", value_name = "N", value_parser = values::whole::<u32>(1..=10_000))]
    pairs: Option<u32>,
    /// Duration of each measurement [default: 3s; with --fixed-load: 1.5s]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    time: Option<Duration>,
    /// Warm-up time of each measurement [default: 1s; with --fixed-load: 0.4s]
    #[arg(long, value_name = "TIME", value_parser = values::time_or_none)]
    ramp: Option<Duration>,
    /// Rows to measure, as --list names them [default: all]
    ///
    /// With --fixed-load, groups of rows (null, uml) can be named, too.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
    /// List the rows and exit
    #[arg(long)]
    list: bool,
    /// Install missing programs by apt-get (as root)
    #[arg(long)]
    install: bool,
    /// Print a Markdown table of the main rows at the end
    #[arg(long)]
    markdown: bool,
    /// Also print the project's own targets, and whether they are met
    #[arg(long, conflicts_with = "fixed_load")]
    targets: bool,
    /// Write every single measurement to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,
    /// Write a report: a page (.html), data (.json), or text (.txt)
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// CPU for the back ends [default: the first CPU that this process may use]
    #[arg(long, value_name = "CPU", value_parser = values::cpu)]
    server_cpu: Option<usize>,
    /// CPU for the driver [default: the second CPU that this process may use]
    #[arg(long, value_name = "CPU", value_parser = values::cpu)]
    driver_cpu: Option<usize>,
    /// Directory on a RAM disk (tmpfs) [default: /dev/shm or another]
    #[arg(long, value_name = "DIR")]
    ram_dir: Option<PathBuf>,
    /// Directory on the measured disk [default: the current one or /var/tmp]
    #[arg(long, value_name = "DIR")]
    disk_dir: Option<PathBuf>,
}

/// Further options of `vlane serve`.
#[derive(Debug, Clone)]
pub struct Also(pub Vec<String>);

/// Parses options of `vlane serve`, by its own definition.
pub fn parse_also(text: &str) -> Result<Also, String> {
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let all = ["vlane", "serve", "--null", "1G", "--socket", "s"].map(str::to_owned).into_iter();
    match words.first() {
        Some(first) if first.starts_with("--") => {
            let taken = crate::command().try_get_matches_from(all.chain(words.clone())).map(drop);
            taken.map(|()| Also(words)).map_err(|error| {
                let said = error.to_string();
                let line = said.lines().next().unwrap_or_default();
                format!("no options of `vlane serve`: {}", line.trim_start_matches("error: "))
            })
        }
        _ => Err(format!(
            "`{text}` is not an option of `vlane serve`; write it like \"--poll-max 0\""
        )),
    }
}

/// Parses the name of a row, or of a group of rows.
fn parse_row(text: &str) -> Result<String, String> {
    let named = |text: &&str| fixed::rows().iter().any(|row| row.is_called(text));
    let usual = peers::rows().into_iter().map(|row| row.id);
    let more = Some(text).filter(named).into_iter();
    values::one_of(
        text,
        "row",
        usual.chain(fixed::groups().iter().map(|group| group.id)).chain(more),
    )
}

/// Prints the names of rows.
fn list(fixed_load: bool) {
    match fixed_load {
        true => fixed::rows().iter().for_each(|row| println!("{:<22} {}", row.id(), row.title())),
        false => peers::rows().iter().for_each(|row| println!("{:<16} {}", row.id, row.title)),
    }
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the measurements.
pub fn run(args: &PeersArgs) -> anyhow::Result<()> {
    if args.list {
        list(args.fixed_load);
        return Ok(());
    }
    if let Some(path) = &args.html {
        vlane_testbed::reports::check_report(path, args.overwrite.force)?;
    }
    let options = Options {
        vlane: std::env::current_exe().context("cannot find this program's own file")?,
        rows: args.rows.clone(),
        pairs: args.pairs.unwrap_or(5),
        time: args.time.unwrap_or(Duration::from_millis(if args.fixed_load { 1500 } else { 3000 })),
        ramp: args.ramp.unwrap_or(Duration::from_millis(if args.fixed_load { 400 } else { 1000 })),
        install: if args.install { Install::Allowed } else { Install::Never },
        server_cpu: args.server_cpu,
        driver_cpu: args.driver_cpu,
        ram_dir: args.ram_dir.clone(),
        disk_dir: args.disk_dir.clone(),
    };
    let json = args.json.as_deref().map(|path| peers::json_output(path, args.overwrite.force));
    json.as_ref().map_or(Ok(()), Output::check)?;
    let interrupt = Interrupt::listen()?;
    if args.fixed_load {
        return fixed_load(args, &options, json.as_ref(), &interrupt);
    }
    let begun = Begun::now(command_line());
    let mut so_far: Vec<RowResult> = Vec::new();
    let mut written = Ok(());
    let outcome = peers::run(&options, &interrupt, |result| {
        println!("{}", result.title);
        print!("{}", peers::lines(result));
        so_far.push(result.clone());
        // After every row: a run that is killed keeps what it has.
        written = json.as_ref().map_or(Ok(()), |output| peers::write_json(output, &so_far));
    })?;
    for missing in &outcome.missing {
        println!("not measured: {missing}");
    }
    if args.targets {
        println!("\n{}", peers::targets(&outcome.rows));
    }
    if args.markdown {
        println!("\n{}", peers::markdown(&outcome.rows));
    }
    if let Some(path) = &args.html {
        let mut report = peers::report(&outcome, &begun);
        outcome.partial.iter().for_each(|missing| report.mark_partial(missing.clone()));
        vlane_testbed::reports::write_report(&report, path, args.overwrite.force)?;
        println!("{}", path.display());
    }
    written?;
    whole(outcome.partial)
}

/// An error, at the end, of a result that is not all of what was wanted.
fn whole(partial: Option<String>) -> anyhow::Result<()> {
    partial.map_or(Ok(()), |missing| Err(Partial(missing).into()))
}

/// The measurements at given rates.
fn fixed_load(
    args: &PeersArgs,
    options: &Options,
    json: Option<&Output>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let begun = Begun::now(command_line());
    let also: Vec<Vec<String>> = args.also.iter().map(|also| also.0.clone()).collect();
    let mut so_far: Vec<fixed::RowResult> = Vec::new();
    let mut written = Ok(());
    let outcome = fixed::run(options, &also, interrupt, |result| {
        print!("{}", fixed::lines(result));
        so_far.push(result.clone());
        // After every row: a run that is killed keeps what it has.
        written = json.map_or(Ok(()), |output| peers::write_json(output, &so_far));
    })?;
    let mut report = fixed::report(&outcome, options, &begun);
    outcome.partial.iter().for_each(|missing| report.mark_partial(missing.clone()));
    println!();
    for sentence in &report.summary {
        println!("{sentence}");
    }
    if args.markdown {
        println!("\n{}", fixed::markdown(&outcome.rows));
    }
    if let Some(path) = &args.html {
        vlane_testbed::reports::write_report(&report, path, args.overwrite.force)?;
        println!("{}", path.display());
    }
    written?;
    whole(outcome.partial)
}
