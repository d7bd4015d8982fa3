//! `vlane-lab report`: a saved report again, in another form.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use vlane_report::{Block, Report, Samples, is_svg_file, svg_file, text};
use vlane_testbed::{Output, Wanted, mistaken};

use crate::output::{OutputArgs, width};

/// Show a saved report in the terminal, or write it in another form
///
/// Reads the JSON of the measuring commands, and their pages, which contain it.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Report file: .json or .html
    file: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
    /// Write every chart as an SVG file into this directory, named by section and number
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write the single measurements behind the figures into this directory, as .csv
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Show the report in the terminal even if it is also written
    #[arg(long)]
    text: bool,
}

/// A name for a file. A report may come from anywhere: its names choose no other directory.
fn file_name(id: &str) -> String {
    id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
}

/// The pictures of a report's charts, by their files' names.
fn charts(report: &Report) -> impl Iterator<Item = (String, String)> {
    report.sections.iter().flat_map(|section| {
        let charts = section.blocks.iter().filter_map(|block| match block {
            Block::Chart(chart) => Some(chart),
            Block::Table(_) => None,
        });
        let name = file_name(&section.id);
        charts.zip(1..).map(move |(chart, n)| (format!("{name}-{n}.svg"), svg_file(chart)))
    })
}

/// Runs the command.
///
/// # Errors
/// If the file is no report, or another cannot be written.
pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    if let Some(words) = mistaken(&args.file, Wanted::Report) {
        anyhow::bail!(words);
    }
    let report = Report::read(&args.file)?;
    args.output.check()?;
    let is_printed = args.output.write(&report)?;
    for path in args.output.files() {
        eprintln!("{}", path.display());
    }
    let mut files = Vec::new();
    if let Some(dir) = &args.csv {
        anyhow::ensure!(
            !report.samples.is_empty(),
            "--csv: this report keeps no single measurements"
        );
        let csv = |samples: &Samples| (format!("{}.csv", file_name(&samples.id)), samples.csv());
        files.extend(report.samples.iter().map(csv).map(|file| (dir, file)));
    }
    if let Some(dir) = &args.svg {
        files.extend(charts(&report).map(|file| (dir, file)));
    }
    for dir in args.csv.iter().chain(&args.svg) {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    for (dir, (name, content)) in files {
        let path = dir.join(name);
        let output = Output::new(&path).replacing(is_svg_file);
        output.force(args.output.overwrite.force).write(content.as_bytes())?;
        eprintln!("{}", path.display());
    }
    let is_given = is_printed
        || args.output.files().next().is_some()
        || args.svg.is_some()
        || args.csv.is_some();
    if args.text || !is_given {
        print!("{}", text::render(&report, width()));
    }
    Ok(())
}
