//! Reports of commands: text, a page, JSON.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use vlane_report::{Begun, Report, text};
use vlane_testbed::{Call, Interrupt, check_report, write_report};

pub use vlane::output::*;

use crate::exit::Partial;

/// Columns that a report's text has at most, and at least.
const WIDTH: usize = 140;
const NARROWEST: usize = 80;

/// Destinations of a report
#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// Write the report as a page with pictures
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the report as JSON; `-` is standard output and replaces the text
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

/// The options of a measurement, and where its report goes
#[derive(Debug, Args)]
pub struct Reported<O: Args> {
    #[command(flatten)]
    pub options: O,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl<O: Args> Reported<O> {
    /// Measures with this program's own file, and shows the report.
    ///
    /// # Errors
    /// Those of the measurement, and of [`OutputArgs::show`].
    pub fn run<E>(&self, measure: impl FnOnce(&O, &Call<'_>) -> Result<Report, E>) -> Result<()>
    where
        anyhow::Error: From<E>,
    {
        self.output.check()?;
        self.output.show(&called(|call| measure(&self.options, call))?)
    }
}

/// Calls a measurement, with this program's own file.
pub fn called<T, E>(measure: impl FnOnce(&Call<'_>) -> Result<T, E>) -> Result<T>
where
    anyhow::Error: From<E>,
{
    let vlane = std::env::current_exe().context("cannot find this program's own file")?;
    let (begun, interrupt) = (Begun::now(command_line()), &Interrupt::listen()?);
    Ok(measure(&Call { vlane: &vlane, begun, interrupt })?)
}

impl OutputArgs {
    /// The files that it is written into.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.html.iter().chain(&self.json).map(PathBuf::as_path).filter(|path| !is_standard(path))
    }

    /// Says before the work whether its result can be written.
    pub fn check(&self) -> Result<()> {
        if self.html.as_deref().is_some_and(is_standard) {
            usage!("--html -: a page needs a file; give its name");
        }
        self.files().try_for_each(|path| Ok(check_report(path, self.overwrite.force)?))
    }

    /// Writes the report into its files. True, if one of them is standard output.
    pub fn write(&self, report: &Report) -> Result<bool> {
        for path in self.files() {
            write_report(report, path, self.overwrite.force)?;
        }
        let is_printed = self.json.as_deref().is_some_and(is_standard);
        if is_printed {
            print!("{}", report.to_json()?);
        }
        Ok(is_printed)
    }

    /// Writes the report into its files, and prints it. It is printed, too, if a file cannot be
    /// written: the measurements took their time.
    ///
    /// # Errors
    /// That of the file; [`Partial`] for a report of fewer measurements than were wanted.
    pub fn show(&self, report: &Report) -> Result<()> {
        self.show_as(report, || text::render(report, width()))
    }

    /// As [`OutputArgs::show`], with a text of its own.
    pub fn show_as(&self, report: &Report, text: impl FnOnce() -> String) -> Result<()> {
        let written = self.write(report);
        if !matches!(written, Ok(true)) {
            print!("{}", text());
        }
        written?;
        report.partial.as_ref().map_or(Ok(()), |missing| Err(Partial(missing.clone()).into()))
    }
}

/// Columns for a report's text.
pub fn width() -> usize {
    vlane_client::progress::columns().map_or(WIDTH, |columns| columns.clamp(NARROWEST, WIDTH))
}

/// The command as it was given, for the report: the program by its name.
pub fn command_line() -> String {
    let words = std::env::args_os().skip(1);
    let spec = vlane_guest::Spec::new("vlane-lab", words);
    spec.shell_line()
}
