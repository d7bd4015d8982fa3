//! `vlane-lab trace`: describes, replays and converts recorded traces.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use vlane_capture::replay::Settings;
use vlane_capture::{Imported, Trace, analyze, blktrace, iolog, msr, replay};
use vlane_error::counted;
use vlane_report::Begun;
use vlane_testbed::{Interrupt, Output, Progress, sniff};

use crate::exit::Partial;
use crate::explain;
use crate::output::{OutputArgs, Overwrite, command_line};

/// Analyze, replay or convert a recorded trace
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Describe a recorded trace: sizes, locality, depth, latency, priorities, flushes
    Analyze(AnalyzeArgs),
    /// Drive a recorded trace against any vhost-user-blk back end
    Replay(ReplayArgs),
    /// Convert a trace between vlane's format, fio's iolog and blktrace
    Convert(ConvertArgs),
}

/// Show a trace's sizes, locality, queue depth, latency, priorities and flushes
#[derive(Debug, Args)]
pub struct AnalyzeArgs {
    /// Trace file
    trace: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

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

/// Convert a trace between vlane's format, fio's iolog and blktrace
///
/// Fields that the other format lacks are left out, or filled with plain defaults. The tables are
/// in docs/src/trace-format.md.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Trace to read; its format is detected
    ///
    /// vlane's format, fio's iolog, blktrace's binary format, or MSR Cambridge's CSV.
    input: PathBuf,

    /// File to write
    output: PathBuf,

    /// Device to read from a trace of several: 8:16 (blktrace), hm.0 (MSR Cambridge)
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,

    #[command(flatten)]
    overwrite: Overwrite,

    /// Format to write
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Vlane)]
    to: Format,

    /// File that fio replays the iolog on
    #[arg(long, value_name = "PATH", default_value = "disk")]
    file: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// vlane's own
    Vlane,
    /// fio's iolog, version 3 (with times)
    Iolog,
    /// fio's iolog, version 2 (with pauses, for fio before 3.35)
    Iolog2,
    /// The binary format that blktrace writes and blkparse reads
    Blktrace,
}

/// Converts.
pub fn run(command: &TraceCommand) -> Result<()> {
    match command {
        TraceCommand::Analyze(args) => analyze(args),
        TraceCommand::Replay(args) => replay(args),
        TraceCommand::Convert(args) => convert(args),
    }
}

fn analyze(args: &AnalyzeArgs) -> Result<()> {
    args.output.check()?;
    let trace = Trace::load(&args.trace)?;
    args.output.show(&analyze::analyze(&trace, &command_line()))?;
    whole(&args.trace, &trace)
}

fn replay(args: &ReplayArgs) -> Result<()> {
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
    let replayed = replay::replay(&trace, &args.socket, &args.settings, &begun, &interrupt, told);
    let report = explain::connecting(&args.socket, replayed)?;
    drop(progress);
    args.output.show(&report)?;
    whole(&args.trace, &trace)
}

fn convert(args: &ConvertArgs) -> Result<()> {
    let output = Output::new(&args.output).force(args.overwrite.force);
    output.check()?;
    let Imported { trace, notes } = load(&args.input, args.device.as_deref())?;
    for note in notes {
        tracing::warn!("{}: {note}", args.input.display());
    }
    if trace.requests.is_empty() {
        bail!("{}: there is no request in it to be converted", args.input.display());
    }
    let left_out = match args.to {
        Format::Vlane => trace.save(&output).map(|()| 0)?,
        format => {
            let mut file = output.begin()?;
            let mut to = BufWriter::with_capacity(1 << 20, &mut file);
            let left_out = match format {
                Format::Iolog2 => iolog::write(&trace, 2, &args.file, &mut to)?,
                Format::Blktrace => blktrace::write(&trace, &mut to)?,
                Format::Iolog | Format::Vlane => iolog::write(&trace, 3, &args.file, &mut to)?,
            };
            let flushed = to.flush();
            flushed.with_context(|| format!("{}: cannot be written", output.path().display()))?;
            drop(to);
            file.finish()?;
            left_out
        }
    };
    let count = trace.requests.len() as u64 - left_out;
    print!("{}: {}", args.output.display(), counted(count, "request"));
    match left_out {
        0 => println!(),
        n => println!("; {n} left out, of kinds that the format does not have"),
    }
    whole(&args.input, &trace)
}

/// Reads a trace of a known format.
fn load(path: &Path, device: Option<&str>) -> Result<Imported> {
    let at = || format!("{}", path.display());
    let open =
        || File::open(path).map(|file| BufReader::with_capacity(1 << 20, file)).with_context(at);
    let mut head = Vec::new();
    open()?.take(4096).read_to_end(&mut head).with_context(at)?;
    if sniff::blktrace(&head).is_some() {
        return blktrace::read(open()?, device).with_context(at);
    }
    let first = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if std::str::from_utf8(first).is_ok_and(msr::is_line) {
        return msr::read(open()?, device).with_context(at);
    }
    if device.is_some() {
        bail!(
            "{}: --device is for traces of blktrace and MSR Cambridge; this one has one device",
            path.display()
        );
    }
    let trace = if sniff::is_iolog(&head) {
        iolog::read(open()?).with_context(at)?
    } else {
        Trace::load(path)?
    };
    Ok(Imported { trace, notes: Vec::new() })
}

/// An error, at the end, if a part of the recording is missing: there is a result, of the rest.
fn whole(path: &Path, trace: &Trace) -> Result<()> {
    match trace.what_is_missing() {
        Some(missing) => Err(Partial(format!("{}: {missing}", path.display())).into()),
        None => Ok(()),
    }
}
