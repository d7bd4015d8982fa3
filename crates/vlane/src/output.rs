//! How commands give their reports.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use vlane_host::Output;
use vlane_host::reports::{check_report, write_report};
use vlane_report::{Report, text};

use crate::exit::Partial;

/// Columns that a report's text has at most, and at least.
const WIDTH: usize = 140;
const NARROWEST: usize = 80;

/// Permission to replace files
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Overwrite {
    /// Replace existing files, but never a file in use or a device
    #[arg(long)]
    pub force: bool,
}

/// Destinations of a report
#[derive(Debug, Args)]
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

/// Gives a result that is no report as JSON: into a file that it may not replace without `--force`, or to standard output.
pub fn give_json(path: &Path, json: &str, overwrite: Overwrite) -> Result<()> {
    match is_standard(path) {
        true => println!("{json}"),
        false => Output::new(path).force(overwrite.force).write(format!("{json}\n").as_bytes())?,
    }
    Ok(())
}

/// The same, and gives the text where the result is not on standard output already: also if its
/// file cannot be written.
pub fn give_json_or_text(path: Option<&Path>, json: &str, overwrite: Overwrite, text: &str) -> Result<()> {
    let given = path.map_or(Ok(()), |path| give_json(path, json, overwrite));
    if given.is_err() || !path.is_some_and(is_standard) {
        println!("{text}");
    }
    given
}

/// Says before the work whether [`give_json`] can write.
pub fn check_json(path: Option<&Path>, overwrite: Overwrite) -> Result<()> {
    match path.filter(|path| !is_standard(path)) {
        Some(path) => Ok(Output::new(path).force(overwrite.force).check()?),
        None => Ok(()),
    }
}

/// True if a file's name means standard output.
pub fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// Columns for a report's text.
pub fn width() -> usize {
    vlane_client::progress::columns().map_or(WIDTH, |columns| columns.clamp(NARROWEST, WIDTH))
}

/// The command as it was given, for the report: the program by its name.
pub fn command_line() -> String {
    let words = std::env::args_os().skip(1);
    let spec = vlane_boot::Spec::new("vlane", words);
    spec.shell_line()
}
