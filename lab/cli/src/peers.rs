//! `vlane-lab compare peers`: compares vlane with qemu-storage-daemon. [`vlane_compare::peers`]
//! describes the measurement.

use std::path::PathBuf;
use std::time::Duration;
use vlane_report::build::Begun;

use anyhow::Context;
use clap::Args;
use vlane_compare::peers::{self, Options, RowResult};
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
    /// Measurements of each contender per row
    #[arg(long = "repeat", alias = "pairs", value_name = "N", default_value_t = 5, value_parser = values::whole::<usize>(1..=10_000))]
    pairs: usize,
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
    let (usual, rated) = (peers::rows(false, &[]), peers::rows(true, &[]));
    let mut names: Vec<&str> = usual.iter().map(|row| row.id.as_str()).collect();
    names.extend(rated.chunk_by(|a, b| a.group == b.group).map(|rows| rows[0].group.0));
    names.extend(rated.iter().map(|row| row.id.as_str()).filter(|id| *id == text));
    values::one_of(text, "row", names)
}

impl PeersArgs {
    fn options(&self) -> anyhow::Result<Options> {
        let (time, ramp) = if self.fixed_load { (1500, 400) } else { (3000, 1000) };
        Ok(Options {
            vlane: std::env::current_exe().context("cannot find this program's own file")?,
            fixed_load: self.fixed_load,
            also: self.also.iter().map(|also| also.0.clone()).collect(),
            rows: self.rows.clone(),
            pairs: self.pairs,
            time: self.time.unwrap_or(Duration::from_millis(time)),
            ramp: self.ramp.unwrap_or(Duration::from_millis(ramp)),
            install: if self.install { Install::Allowed } else { Install::Never },
            ram_dir: self.ram_dir.clone(),
            disk_dir: self.disk_dir.clone(),
        })
    }
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the measurements.
pub fn run(args: &PeersArgs) -> anyhow::Result<()> {
    if args.list {
        for row in peers::rows(args.fixed_load, &[]) {
            println!("{:<22} {}", row.id, row.title);
        }
        return Ok(());
    }
    if let Some(path) = &args.html {
        vlane_testbed::reports::check_report(path, args.overwrite.force)?;
    }
    let options = args.options()?;
    let json = args.json.as_deref().map(|path| peers::json_output(path, args.overwrite.force));
    json.as_ref().map_or(Ok(()), Output::check)?;
    let interrupt = Interrupt::listen()?;
    let begun = Begun::now(command_line());
    let mut so_far: Vec<RowResult> = Vec::new();
    let mut written = Ok(());
    let outcome = peers::run(&options, &interrupt, |result| {
        print!("{}", peers::lines(result));
        so_far.push(result.clone());
        // After every row: a run that is killed keeps what it has.
        written = json.as_ref().map_or(Ok(()), |output| peers::write_json(output, &so_far));
    })?;
    for missing in &outcome.missing {
        println!("not measured: {missing}");
    }
    let report = peers::report(&outcome, &options, &begun);
    println!("\n{}", report.summary.join("\n"));
    if args.targets {
        println!("\n{}", peers::targets(&outcome.rows));
    }
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
