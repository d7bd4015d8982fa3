//! `vlane sched guard` (hidden: the scheduler starts it) and `vlane sched repair`.

use std::path::PathBuf;

use clap::Args;
use vlane_error::counted;
use vlane_sched::realtime::{guard, repair};

/// Run the scheduler's guard; the scheduler starts it
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

/// Restore threads that a scheduler left changed when it was killed with its guard
///
/// `vlane sched run` does this when it starts. Threads of live schedulers are left alone. A list is
/// used only if nobody but root and the present user can have written it. A damaged list is kept as
/// FILE.damaged.
#[derive(Debug, Args)]
pub struct RepairArgs {
    /// Directory of the lists of changed threads [default: /run/vlane-sched]
    ///
    /// Without root, the default is $XDG_RUNTIME_DIR/vlane-sched.
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
    let repair::Repaired { restored, lists, held, problems } = repair::repair(&dir)?;
    for problem in &problems {
        eprintln!("vlane: {problem}");
    }
    println!(
        "{}: {} that schedulers had left; {} looked at, {} restored",
        dir.display(),
        counted(lists, "list"),
        counted(restored.seen, "thread"),
        restored.changed
    );
    if held > 0 {
        println!(
            "{} of schedulers that run, or are just being restored by their guards: left alone",
            counted(held, "list")
        );
    }
    anyhow::ensure!(
        restored.failed == 0,
        "{} could not be restored: CAP_SYS_NICE is needed (sudo)",
        counted(restored.failed, "thread")
    );
    anyhow::ensure!(
        problems.is_empty(),
        "{}: not everything in it could be read or believed",
        dir.display()
    );
    Ok(())
}
