//! `vlane volume CTL record`: a trace of a volume while it is served.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use vlane_client::Progress;
use vlane_client::control::Control;
use vlane_client::record::{RecordOptions, Recorded, Recording, record};
use vlane_client::{Interrupt, Output};
use vlane_error::counted;
use vlane_units::show_size;

use crate::exit::Partial;
use crate::output::Overwrite;

use crate::values;

/// Record every request of a volume that is served with --control
///
/// Ends after --time or --count, with the volume, or with Ctrl-C. Each of them leaves a complete
/// trace. If the server is killed or the file cannot be written, the trace has the requests until
/// then, and the status is 3. The volume's lanes never wait for the recording. Requests that they
/// cannot report in time are counted as lost.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    #[command(flatten)]
    overwrite: Overwrite,

    /// Duration of the recording [default: until it is stopped]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    time: Option<Duration>,

    /// Number of requests to record [default: all]
    #[arg(long, value_name = "N", value_parser = values::whole::<u64>(1..))]
    count: Option<u64>,

    /// Record a hash of each request's data; this costs the volume more
    #[arg(long)]
    hash: bool,
}

/// Records.
pub fn run(control: &Path, args: &RecordArgs) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let options = RecordOptions {
        output: Output::new(&args.output).force(args.overwrite.force),
        time: args.time,
        count: args.count,
        hashes: args.hash,
    };
    let mut progress = Progress::new(1);
    if let Some(time) = args.time {
        progress = progress.expecting(time);
    }
    progress.step(format!("recording into {}", args.output.display()));
    let control = Control::new(control);
    let Recording { recorded, broken } =
        record(&control, &options, &interrupt, &mut |state| progress.detail(&describe(state)))?;
    progress.clear();
    let why = if recorded.is_over { "; the volume ended" } else { "" };
    println!(
        "{}: {} in {:.1} s{why}",
        args.output.display(),
        describe(&recorded),
        recorded.elapsed.as_secs_f64()
    );
    if recorded.requests == 0 {
        println!("no requests were recorded: no guest sent any meanwhile");
    }
    let Some(why) = broken else { return Ok(()) };
    let file = args.output.display();
    Err(Partial(format!(
        "{file}: PARTIAL: {why}; the trace has the requests until then, and an unknown number of \
         requests is missing"
    ))
    .into())
}

fn describe(state: &Recorded) -> String {
    let lost = match state.lost {
        0 if state.is_cut => "cut off".to_owned(),
        0 => "none lost".to_owned(),
        n if state.is_cut => format!("{n} LOST, cut off"),
        n => format!("{n} LOST"),
    };
    format!("{}, {}, {lost}", counted(state.requests, "request"), show_size(state.bytes))
}
