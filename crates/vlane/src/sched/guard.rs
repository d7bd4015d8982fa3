//! `vlane sched guard` (hidden: the scheduler starts it) and `vlane sched repair`.

use std::path::PathBuf;

use clap::Args;
use vlane_sched::realtime::{guard, table};

/// The scheduler's guard; the scheduler starts it itself.
#[derive(Debug, Args)]
pub struct GuardArgs {
    /// The scheduler's list of changed threads
    table: PathBuf,
}

/// Runs the command.
///
/// # Errors
///
/// Threads could not be restored.
pub fn run(args: &GuardArgs) -> anyhow::Result<()> {
    Ok(guard::guard(&args.table)?)
}

/// Restores threads that a scheduler left changed which was killed together with its guard.
///
/// `vlane sched run` does this when it starts. Threads of schedulers that are alive are left alone.
#[derive(Debug, Args)]
pub struct RepairArgs {
    /// Where the schedulers kept their lists of changed threads [default: /run/vlane, or $XDG_RUNTIME_DIR/vlane]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
///
/// Threads could not be restored.
pub fn repair(args: &RepairArgs) -> anyhow::Result<()> {
    let dir = args.state_dir.clone().unwrap_or_else(super::settings::runtime_dir);
    let restored = table::repair(&dir)?;
    anyhow::ensure!(
        restored.failed == 0,
        "{} threads could not be restored: CAP_SYS_NICE is needed (sudo)",
        restored.failed
    );
    println!("{} threads looked at, {} restored", restored.seen, restored.changed);
    Ok(())
}
