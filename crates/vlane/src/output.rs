//! How commands give their reports.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use vlane_lab::report::{Report, text};

/// Columns where nobody looks at a terminal.
const WIDTH: usize = 110;

/// What may be written over.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Overwrite {
    /// Replace files that exist, whatever is in them; never one that is in use, or a device
    #[arg(long)]
    pub force: bool,
}

/// Where a report goes.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Print the report as JSON instead of text
    #[arg(long)]
    json: bool,

    /// Write the report as a page with pictures too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,
}

impl OutputArgs {
    /// Says before the work whether its result can be written.
    pub fn check(&self) -> Result<()> {
        Ok(self.html.as_deref().map_or(Ok(()), |path| Report::check_path(path, self.overwrite.force))?)
    }

    /// Gives the report.
    pub fn show(&self, report: &Report) -> Result<()> {
        if let Some(path) = &self.html {
            report.write_to(path, self.overwrite.force)?;
        }
        let text = match self.json {
            true => report.to_json()?,
            false => text::render(report, width()),
        };
        print!("{text}");
        Ok(())
    }
}

fn width() -> usize {
    match std::io::stdout().is_terminal() {
        true => std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(WIDTH),
        false => WIDTH,
    }
}

/// The command as it was given, for the report: the program by its name.
pub fn command_line() -> String {
    let words = std::env::args_os().skip(1);
    let spec = vlane_boot::Spec::new("vlane", words);
    spec.shell_line()
}
