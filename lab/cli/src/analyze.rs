//! `vlane-lab trace analyze`: describes a recorded trace.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use vlane_capture::Trace;
use vlane_capture::analyze::analyze;

use crate::exit::Partial;
use crate::output::OutputArgs;

/// Show a trace's sizes, locality, queue depth, latency, priorities and flushes
#[derive(Debug, Args)]
pub struct AnalyzeArgs {
    /// Trace file
    trace: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

/// Analyzes.
pub fn run(args: &AnalyzeArgs) -> Result<()> {
    args.output.check()?;
    let trace = Trace::load(&args.trace)?;
    args.output.show(&analyze(&trace, &crate::output::command_line()))?;
    whole(&args.trace, &trace)
}

/// An error, at the end, if a trace is not all of what was recorded: there is a result, of what
/// could be read.
pub fn whole(path: &Path, trace: &Trace) -> Result<()> {
    match trace.what_is_missing() {
        Some(missing) => Err(Partial(format!("{}: {missing}", path.display())).into()),
        None => Ok(()),
    }
}
