//! `vlane-lab bench`: drives a vhost-user-blk back end from the guest's side.

mod runs;
mod verify;

use std::io::{IsTerminal, Write};
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use vlane_bench::{Ioprio, Load, Size};
use vlane_error::counted;
use vlane_testbed::Interrupt;
use vlane_units::{parse_ioprio, parse_rate, show_size};

use crate::{exit, explain, values};
use vlane_driver::{
    Arrivals, BackendUse, ByKind, Latency, Limit, Negotiated, OnProgress, OpenReport, Pattern,
    Progress, Report, Session, SessionOptions, Wait, Want, Workload,
};

use crate::output::{self, Overwrite};

/// Measure a vhost-user-blk back end from the guest's side
///
/// Each job is one thread with one virtqueue. A latency runs from the request's entry in the ring
/// until the guest sees its completion. CPU time and context switches are those of the process that
/// listens on the socket.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Socket of the back end
    ///
    /// With --profile, this socket replaces the profile's targets.
    #[arg(required_unless_present_any = ["profile", "list_profiles", "show_profile"])]
    socket: Option<PathBuf>,

    /// Access pattern: read, write, rw, trim, zero or idle
    ///
    /// A `rand` in front means random addresses, and `:70` after rw means 70 % reads. The pattern
    /// idle measures the CPU time of a back end without requests.
    #[arg(long, value_name = "PATTERN", default_value = "randread", value_parser = parse_rw, help_heading = "Load")]
    rw: String,
    /// Bytes per request
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = values::block, help_heading = "Load")]
    bs: u64,
    /// Requests in flight per job
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = values::whole::<u16>(1..=32768), help_heading = "Load")]
    depth: u16,
    /// Number of jobs: threads with one virtqueue each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u16>(1..=1024), help_heading = "Load")]
    jobs: u16,
    /// Duration of the measurement [default: 5s, or the profile's]
    #[arg(long, value_name = "TIME", value_parser = values::time, help_heading = "Load")]
    time: Option<Duration>,
    /// Warm-up time before the measurement [default: 1s, or the profile's]
    #[arg(long, value_name = "TIME", value_parser = values::time_or_none, help_heading = "Load")]
    ramp: Option<Duration>,
    /// Requests per second of all jobs, even if the back end does not keep up
    ///
    /// Latencies then count from the moment when a request was due. At most `--depth` requests are
    /// in flight. Later requests wait, and their wait counts as latency.
    #[arg(long, value_name = "IOPS", value_parser = parse_rate, help_heading = "Load")]
    rate: Option<f64>,
    /// Spacing of the requests of a given rate [default: constant]
    #[arg(long, value_enum, requires = "rate", help_heading = "Load")]
    arrivals: Option<Arrivals>,
    /// End after this many requests per job instead of after a time
    #[arg(long, value_name = "N", value_parser = values::whole::<u64>(1..), help_heading = "Load")]
    ios: Option<u64>,
    /// Start of the region to use
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = values::place, help_heading = "Load")]
    offset: u64,
    /// Length of the region to use [default: to the end of the device]
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Load")]
    size: Option<u64>,
    /// Seed for the random addresses and the data
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u64>(0..), help_heading = "Load")]
    seed: u64,
    /// Flush after every N writes of a job
    ///
    /// With a depth, each slot in flight counts its own writes.
    #[arg(long, value_name = "N", value_parser = values::whole::<u32>(1..), help_heading = "Load")]
    flush_every: Option<u32>,
    /// I/O priority of the requests: none, rt/0 to rt/7, be/0 to be/7, idle
    #[arg(long, value_name = "PRIO", default_value = "none", value_parser = parse_ioprio, help_heading = "Load")]
    ioprio: u16,

    /// How jobs wait for completions
    #[arg(long, value_enum, default_value_t = Wait::Interrupt, help_heading = "Guest")]
    wait: Wait,
    /// Most requests made visible at once
    ///
    /// 1 stands for a guest whose tasks submit one request at a time. 0 submits all that completed
    /// together.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::whole::<u16>(0..), help_heading = "Guest")]
    batch: u16,
    /// CPUs to pin the jobs to, in this order, such as 0,2
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::cpu, help_heading = "Guest")]
    cpus: Vec<usize>,
    /// Use packed rings
    #[arg(long, help_heading = "Guest")]
    packed: bool,
    /// Use the ring's own descriptors even if the back end offers indirect tables
    #[arg(long = "no-indirect", help_heading = "Guest")]
    direct: bool,
    /// Do not use the event index
    #[arg(long, help_heading = "Guest")]
    no_event_idx: bool,
    /// Entries of each virtqueue [default: what the depth needs, at least 128]
    #[arg(long, value_name = "N", value_parser = values::whole::<u16>(1..=32768), help_heading = "Guest")]
    queue_size: Option<u16>,
    /// Data segments of each request, as a guest's scattered pages make them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u16>(1..=1024), help_heading = "Guest")]
    segments: u16,
    /// Volatile write cache of the device, as a guest sets it
    #[arg(long, value_enum, default_value_t = CacheArg::Keep, help_heading = "Guest")]
    write_cache: CacheArg,

    /// Write, read and flush random self-checking blocks, then compare everything
    ///
    /// `--rw` may be randrw:N for N % reads [default: 33]. `--size` is 64M unless given. A flush
    /// follows every 64 writes unless `--flush-every` is given.
    #[arg(long, help_heading = "Verification")]
    verify: bool,
    /// Only read back and compare the blocks that the state file lists
    #[arg(long, requires = "state", conflicts_with = "verify", help_heading = "Verification")]
    verify_only: bool,
    /// File that keeps the list of written blocks between runs
    ///
    /// The file survives a crash of the back end.
    #[arg(long, value_name = "FILE", help_heading = "Verification")]
    state: Option<PathBuf>,

    /// Allow the back end's content to be overwritten
    ///
    /// Every write, discard or verification needs this, except on back ends that a profile starts.
    #[arg(long)]
    yes_overwrite: bool,

    #[command(flatten)]
    runs: runs::RunsArgs,

    #[command(flatten)]
    overwrite: Overwrite,

    /// Write the results as JSON; `-` is standard output and replaces the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CacheArg {
    /// Enable it: writes are stable after a flush
    On,
    /// Disable it: writes are stable when they complete
    Off,
    /// Keep the back end's setting
    Keep,
}

/// Parses a pattern, or `idle`.
fn parse_rw(text: &str) -> Result<String, String> {
    if text != "idle" {
        text.parse::<Pattern>()?;
    }
    Ok(text.to_owned())
}

impl BenchArgs {
    /// Gives the result as text, and as JSON if that was asked for.
    fn give(&self, value: &impl serde::Serialize, text: &str) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(value)?;
        output::give_json_or_text(self.json.as_deref(), &json, self.overwrite, text)
    }

    /// Gives the result of a single run, marked if it is shorter than requested.
    fn give_run(
        &self,
        result: &impl serde::Serialize,
        partial: bool,
        text: &str,
    ) -> anyhow::Result<()> {
        let mut value = serde_json::to_value(result)?;
        if partial {
            value["partial"] = true.into();
        }
        self.give(&value, &format!("{}{}", interrupted_line(partial), text.trim_end()))
    }

    fn time(&self) -> Duration {
        self.time.unwrap_or(Duration::from_secs(5))
    }

    fn ramp(&self) -> Duration {
        self.ramp.unwrap_or(Duration::from_secs(1))
    }

    /// The socket, where there must be one.
    fn socket(&self) -> anyhow::Result<&Path> {
        self.socket.as_deref().context("give the socket that the back end listens on")
    }

    /// An error unless the user permits the loss of the stored data.
    fn may_overwrite(&self, socket: &Path, what: &str) -> anyhow::Result<()> {
        if !self.yes_overwrite {
            bail!(
                "{what} writes, and destroys the content of {}; give --yes-overwrite to allow this",
                socket.display()
            );
        }
        Ok(())
    }

    /// The session of a single run of a load.
    fn session(&self, load: &Load) -> SessionOptions {
        SessionOptions {
            queue_size: self.queue_size,
            event_idx: if self.no_event_idx { Want::No } else { Want::IfOffered },
            indirect: if self.direct { Want::No } else { Want::IfOffered },
            ..load.session()
        }
    }

    /// The end of a single run.
    fn limit(&self) -> Limit {
        self.ios.map_or(Limit::Time(self.time()), Limit::Count)
    }

    /// The command line's load, of a pattern.
    fn load(&self, pattern: Pattern) -> anyhow::Result<Load> {
        let memory = u64::from(self.depth) * u64::from(self.jobs) * self.bs;
        if memory > 4 << 30 {
            usage!(
                "--bs x --depth x --jobs is {} of buffers; 4 GiB are the most",
                show_size(memory)
            );
        }
        let at_least_one = |number| NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN);
        Ok(Load {
            rw: vlane_bench::Pattern(pattern),
            bs: Size(self.bs),
            depth: at_least_one(self.depth),
            jobs: at_least_one(self.jobs),
            segments: at_least_one(self.segments),
            rate: self.rate,
            arrivals: self.arrivals,
            flush_every: self.flush_every.and_then(NonZeroU32::new),
            ioprio: Ioprio(self.ioprio),
            wait: self.wait,
            batch: self.batch,
            offset: Size(self.offset),
            size: self.size.map(Size),
            seed: self.seed,
            packed: self.packed,
            write_cache: match self.write_cache {
                CacheArg::On => Some(true),
                CacheArg::Off => Some(false),
                CacheArg::Keep => None,
            },
            ..Load::named(self.describe())
        })
    }

    /// A name for the command line's load, by which a later run finds it.
    fn describe(&self) -> String {
        let (bs, jobs) = (show_size(self.bs), counted(self.jobs, "job"));
        let rate = self.rate.map(|rate| format!(", {rate} per second")).unwrap_or_default();
        format!("{} {bs}, depth {}, {jobs}{rate}", self.rw, self.depth)
    }

    /// The access pattern; none for `idle`.
    fn pattern(&self) -> anyhow::Result<Option<Pattern>> {
        match self.rw.as_str() {
            "idle" => Ok(None),
            rw => Ok(Some(rw.parse().map_err(anyhow::Error::msg).context("--rw")?)),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the measurement; also requests that failed, after the results were printed.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    if args.runs.is_wanted() {
        return runs::run(args);
    }
    output::check_json(args.json.as_deref(), args.overwrite)?;
    if args.verify || args.verify_only {
        return verify::run(args);
    }
    if args.state.is_some() {
        usage!("--state goes with --verify or --verify-only");
    }
    let socket = args.socket()?;
    let pattern = args.pattern()?;
    let load = args.load(pattern.unwrap_or(Workload::default().pattern))?;
    let options = args.session(&load);
    if pattern.is_none() {
        return idle(args, socket, &options);
    }
    let workload =
        Workload { limit: args.limit(), ..load.workload(args.time(), args.ramp(), &args.cpus) };
    if load.rw.0.changes_data() {
        args.may_overwrite(socket, &format!("--rw {}", args.rw))?;
    }
    let session = explain::connecting(socket, Session::connect(socket, &options))?;
    let (report, partial) =
        with_progress(|progress| vlane_driver::run(session, &workload, progress))?;
    if partial && report.ios == 0 {
        bail!("interrupted before anything was measured");
    }
    args.give_run(&report, partial, &report_text(&report))?;
    match report.errors.total() {
        0 => ended(partial, report.seconds),
        n => bail!("{n} of {} failed", counted(report.ios, "request")),
    }
}

/// Measures the back end's use of CPU time without requests.
fn idle(args: &BenchArgs, socket: &Path, options: &SessionOptions) -> anyhow::Result<()> {
    let session = explain::connecting(socket, Session::connect(socket, options))?;
    let settle = args.ramp().max(Duration::from_secs(1));
    let ((used, watched), partial) =
        with_progress(|progress| vlane_driver::idle(session, settle, args.time(), progress))?;
    if partial && watched.is_zero() {
        bail!("interrupted before anything was measured");
    }
    args.give_run(&used, partial, &idle_text(&used, watched))?;
    ended(partial, watched.as_secs_f64())
}

/// The line above a partial result.
fn interrupted_line(partial: bool) -> &'static str {
    if partial { "INTERRUPTED: partial result\n" } else { "" }
}

/// The end of a run that was measured for so many seconds.
fn ended(partial: bool, seconds: f64) -> anyhow::Result<()> {
    let why = format!("interrupted after {seconds:.1} s: the result covers that time only");
    if partial { Err(exit::Partial(why).into()) } else { Ok(()) }
}

/// Runs a task that reports its progress, and shows that on a terminal; SIGINT, SIGTERM and
/// SIGHUP end it early. Returns its results, and whether it was ended so.
fn with_progress<T>(
    work: impl FnOnce(&mut OnProgress<'_>) -> Result<T, vlane_driver::Error>,
) -> anyhow::Result<(T, bool)> {
    let interrupt = Interrupt::listen()?;
    let mut stderr = std::io::stderr();
    let shown = stderr.is_terminal();
    let mut ended = false;
    let result = work(&mut |p: Progress| {
        if shown {
            let total = p.total.map_or(String::new(), |t| format!(" of {:.0}", t.as_secs_f64()));
            // Progress that cannot be shown is no reason to stop.
            let _ = write!(
                stderr,
                "\r\x1b[K{:5.1}{total} s  {} IOPS",
                p.elapsed.as_secs_f64(),
                group(p.iops)
            );
        }
        ended |= interrupt.is_raised();
        if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if shown {
        let _ = write!(stderr, "\r\x1b[K");
    }
    Ok((result?, ended))
}

/// A whole number with a space between thousands.
fn group(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// The target and the settings of a run, as text.
fn setting_text(r: &Report) -> String {
    let Negotiated { packed, event_idx, indirect, write_cache, .. } = r.negotiated;
    let ring: Vec<_> = [
        (true, if packed { "packed ring" } else { "split ring" }),
        (event_idx, "event index"),
        (indirect, "indirect"),
        (true, if write_cache { "write cache on" } else { "write cache off" }),
    ]
    .into_iter()
    .filter_map(|(is, what)| is.then_some(what))
    .collect();
    let mut wait = String::from(if r.wait == Wait::Poll { "polling" } else { "interrupts" });
    if r.batch > 0 {
        wait += &format!(", batches of at most {}", r.batch);
    }
    format!(
        "{}: {}{}, blocks of {} bytes; {} of {} entries, {}\n\
         {} of {}, depth {}, {}, {wait}, {:.2} s measured\n\n",
        r.socket,
        show_size(r.device.capacity),
        if r.device.read_only { ", read-only" } else { "" },
        r.device.blk_size,
        counted(r.negotiated.queues, "queue"),
        r.negotiated.queue_size,
        ring.join(", "),
        r.pattern,
        show_size(r.block.into()),
        r.depth,
        counted(r.jobs, "job"),
        r.seconds
    )
}

fn report_text(r: &Report) -> String {
    let mut out = setting_text(r);
    out += &format!(
        "  throughput   {} IOPS   {:.1} MB/s   ({} requests)\n",
        group(r.iops),
        r.mb_per_second,
        r.ios
    );
    match &r.open {
        None => out += &latency_line("latency", &r.latency),
        Some(open) => {
            out += &latency_line("response", &open.response);
            out += &latency_line("service", &r.latency);
            out += &latency_line("driver late", &open.late);
            out += &open_text(open, r);
        }
    }
    let kinds = [("reads", r.reads), ("writes", r.writes), ("flushes", r.flushes)];
    if kinds.iter().filter(|(_, by)| by.is_some()).count() > 1 {
        for (name, by) in kinds {
            if let Some(ByKind { iops, latency, .. }) = by {
                out += &format!("  {name:<12} {} IOPS\n", group(iops));
                out += &latency_line("", &latency);
            }
        }
    }
    match &r.backend {
        Some(b) => {
            out += &format!(
                "  back end     {:.3} us CPU per I/O   {:.4} context switches per I/O   {:.2} \
                 CPUs   {} (pid {})\n",
                b.cpu_us_per_io,
                b.switches_per_io,
                b.cpus,
                counted(b.threads, "thread"),
                b.pid
            );
        }
        None => {
            out += "  back end     its process cannot be looked at (another user's, or in another \
                    namespace)\n"
        }
    }
    out += &format!(
        "  driver       {:.3} us CPU per I/O   {:.4} kicks per I/O   {:.4} sleeps per I/O\n",
        r.driver_cpu_us_per_io, r.kicks_per_io, r.sleeps_per_io
    );
    let e = r.errors;
    if e.total() > 0 {
        out += &format!(
            "  ERRORS       {} I/O errors, {} unsupported, {} without a status, {} of a wrong \
             length\n",
            e.io, e.unsupported, e.no_status, e.length
        );
    }
    out
}

/// States if the back end kept up with a rate.
fn open_text(open: &OpenReport, r: &Report) -> String {
    let spacing = match open.arrivals {
        Arrivals::Constant => "evenly spaced",
        Arrivals::Poisson => "at random (Poisson)",
    };
    let mut out =
        format!("  rate         {} requests per second asked for, {spacing}: ", group(open.rate));
    if open.kept_up {
        out += &format!("kept; {} of {} waited for a slot\n", open.queued, open.arrived);
    } else {
        out += &format!(
            "NOT KEPT, only {} were completed; {} of {} were still waiting at the end, so \
             latencies grow with the time of the run\n",
            group(r.iops),
            open.unserved,
            open.arrived
        );
    }
    out
}

fn latency_line(name: &str, l: &Latency) -> String {
    format!(
        "  {name:<12} p50 {}  p90 {}  p99 {}  p99.9 {}  mean {}  min {}  max {} us\n",
        us(l.p50),
        us(l.p90),
        us(l.p99),
        us(l.p99_9),
        us(l.mean),
        us(l.min),
        us(l.max)
    )
}

/// Microseconds with three significant digits or so.
fn us(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => group(v),
    }
}

fn idle_text(used: &BackendUse, time: Duration) -> String {
    format!(
        "idle for {:.1} s: {:.3} ms CPU, {} in {} (pid {})\n",
        time.as_secs_f64(),
        used.cpu_seconds * 1e3,
        counted(used.switches, "context switch").replace("switchs", "switches"),
        counted(used.threads, "thread"),
        used.pid
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(
            (group(0.4), group(999.6), group(1_234_567.0)),
            ("0".into(), "1 000".into(), "1 234 567".into())
        );
        assert_eq!(
            (us(0.123), us(12.34), us(1234.5)),
            ("0.12".into(), "12.3".into(), "1 234".into())
        );
    }
}
