//! `vlane-lab trace replay`: a recorded trace against any back end.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use vlane_capture::Trace;
use vlane_capture::replay::{Settings, replay};
use vlane_client::Progress;
use vlane_report::build::Begun;
use vlane_testbed::Interrupt;

use crate::analyze::whole;
use crate::explain;
use crate::output::{OutputArgs, command_line};

/// Send a recorded trace to a vhost-user-blk back end
///
/// Each lane of the trace becomes a queue with the same requests in the same order. A flush is sent
/// after the writes that it made durable. A request that came after a flush is sent after the flush
/// is answered.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Trace file
    trace: PathBuf,

    /// Socket of the back end
    socket: PathBuf,

    #[command(flatten)]
    settings: Settings,

    #[command(flatten)]
    output: OutputArgs,
}

/// Replays.
pub fn run(args: &ReplayArgs) -> Result<()> {
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let trace = Trace::load(&args.trace)?;
    if trace.changes_data() && !args.settings.yes_overwrite {
        bail!(
            "{}: the trace writes, and a replay destroys the content of {}; give --yes-overwrite \
             to allow this",
            args.trace.display(),
            args.socket.display()
        );
    }
    let begun = Begun::now(command_line());
    let mut progress = Progress::new(1);
    progress.step(format!("replaying {}", args.trace.display()));
    let told = |done: u64, all: u64| progress.detail(&format!("{done} of {all} requests"));
    let replayed = replay(&trace, &args.socket, &args.settings, &begun, &interrupt, told);
    let report = explain::connecting(&args.socket, replayed)?;
    drop(progress);
    args.output.show(&report)?;
    whole(&args.trace, &trace)
}
