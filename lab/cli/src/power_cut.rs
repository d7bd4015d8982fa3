//! `vlane-lab prove power-cut`: checks the states that a power cut can leave of a guest's file
//! system. For those who work on vlane.

use anyhow::bail;
use vlane_power_cut::Options;

use crate::output::{Reported, called};

/// Runs the command.
///
/// # Errors
/// Obstacles to the check; and faults that it finds, after the report.
pub fn run(args: &Reported<Options>) -> anyhow::Result<()> {
    args.output.check()?;
    let (report, bad) = called(|call| vlane_power_cut::run(&args.options, call))?;
    let shown = args.output.show(&report);
    match bad.is_empty() {
        true => shown,
        // It counts for more than a report that is partial, or a file that could not be written.
        false => bail!("broken states: {}; see the report", bad.join(", ")),
    }
}
