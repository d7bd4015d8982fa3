//! `vlane report`: a saved report again, in another form.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use vlane_lab::Output;
use vlane_lab::report::{Block, Report, is_svg_file, svg_file, text};

use crate::output::Overwrite;

/// Show a saved report again: in the terminal, or written in another form.
///
/// Reads the JSON that measuring commands write, and the pages, which hold it.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The report: .json or .html
    file: PathBuf,
    /// Write it as a page: no network, readable on a phone, on paper and in the dark
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write its data
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,
    /// Write every chart as a picture of its own into this directory, named by section and number
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Show it in the terminal, even if it is also written
    #[arg(long)]
    text: bool,
}

/// Runs the command.
///
/// # Errors
/// If the file is no report, or something cannot be written.
pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let report = Report::read(&args.file)?;
    for path in [&args.html, &args.json].into_iter().flatten() {
        report.write_to(path, args.overwrite.force)?;
        eprintln!("{}", path.display());
    }
    if let Some(dir) = &args.svg {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        for section in &report.sections {
            // A report may come from anywhere: its names choose no other directory.
            let name: String =
                section.id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            let charts = section.blocks.iter().filter_map(|block| match block {
                Block::Chart(chart) => Some(chart),
                Block::Table(_) => None,
            });
            for (chart, number) in charts.zip(1..) {
                let path = dir.join(format!("{name}-{number}.svg"));
                let output = Output::new(&path).replacing(is_svg_file).force(args.overwrite.force);
                output.write(svg_file(chart).as_bytes())?;
                eprintln!("{}", path.display());
            }
        }
    }
    if args.text || (args.html.is_none() && args.json.is_none() && args.svg.is_none()) {
        print!("{}", text::render(&report, width()));
    }
    Ok(())
}

/// Columns of the terminal that standard output goes to; 100 if it goes elsewhere.
pub fn width() -> usize {
    vlane_lab::progress::columns().unwrap_or(100)
}

/// The command line of this process, as one would type it again.
pub fn command_line() -> String {
    let words: Vec<_> =
        std::env::args_os().skip(1).map(|word| vlane_boot::quote(&word.to_string_lossy())).collect();
    format!("vlane {}", words.join(" "))
}
