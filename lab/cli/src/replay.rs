//! `vlane-lab trace replay`: a recorded trace against any back end.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use vlane_capture::Trace;
use vlane_capture::replay::{Settings, replay};
use vlane_client::Progress;
use vlane_driver::Wait;
use vlane_driver::replay::Timing;
use vlane_testbed::Interrupt;

use crate::analyze::whole;
use crate::output::OutputArgs;
use crate::{explain, values};

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

    /// Speed relative to the recording
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = values::factor, conflicts_with = "as_fast_as_possible")]
    speed: f64,

    /// Send requests as soon as the order allows, not at their recorded times
    #[arg(long)]
    as_fast_as_possible: bool,

    /// Most requests in flight per queue [default: as many as in the trace]
    #[arg(long, value_name = "N", value_parser = values::whole::<u16>(1..=32768))]
    depth: Option<u16>,

    /// Seed for the written data
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u64>(0..))]
    seed: u64,

    /// Poll for completions instead of sleeping
    #[arg(long)]
    poll: bool,

    /// Allow the back end's content to be overwritten
    ///
    /// The trace writes, and its data are not the recorded data.
    #[arg(long)]
    yes_overwrite: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Replays.
pub fn run(args: &ReplayArgs) -> Result<()> {
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let trace = Trace::load(&args.trace)?;
    if trace.changes_data() && !args.yes_overwrite {
        bail!(
            "{}: the trace writes, and a replay destroys the content of {}; give --yes-overwrite \
             to allow this",
            args.trace.display(),
            args.socket.display()
        );
    }
    let settings = Settings {
        timing: match args.as_fast_as_possible {
            true => Timing::AsFast,
            false => Timing::Original { speed: args.speed },
        },
        wait: if args.poll { Wait::Poll } else { Wait::Interrupt },
        depth: args.depth,
        seed: args.seed,
        command: crate::output::command_line(),
    };
    let mut progress = Progress::new(1);
    progress.step(format!("replaying {}", args.trace.display()));
    let told = |done: u64, all: u64| progress.detail(&format!("{done} of {all} requests"));
    let replayed = replay(&trace, &args.socket, &settings, &interrupt, told);
    let report = explain::connecting(&args.socket, replayed)?;
    drop(progress);
    args.output.show(&report)?;
    whole(&args.trace, &trace)
}
