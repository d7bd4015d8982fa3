//! A program that fsyncs a file on ext4, as the foreground job of a shell in a guest, in parallel
//! with readers of the same drive.
//!
//! An fsync that appends waits for the data, for blocks of the journal, for a flush, for the commit
//! block and for a second flush, one after the other. The journal's thread makes most of these
//! requests. They have the thread's priority, not the program's. A recorded turn shows how long
//! each of them took.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use vlane::values;

use super::guests::{figures, keys, typed};
use super::machine::{Behind, Beside, GuestArgs, Task};
use super::{BLOCK, reader};
use vlane_capture::Trace;
use vlane_capture::analyze::class_name;
use vlane_report::Report;
use vlane_report::build::Begun;
use vlane_testbed::error::Result;
use vlane_testbed::guests::Machines;
use vlane_testbed::interrupt::Interrupt;
use vlane_trace::{Priority, RequestKind};

pub(super) mod report;

/// Time of a measurement beside the foreground's, about.
const AROUND: Duration = Duration::from_secs(12);
/// Requests of an fsync, one after the other; no measurement takes longer than ten times as many.
const REQUESTS: u32 = 5;
/// Command of the background program with fsyncs.
const SYNCS: &str = "vlane express-read /mnt/$dev/background --sync --reads 4000000000 > /dev/null \
                     & beside=\"$beside $!\"; ";
/// Command of the background program that writes 4 MiB a second, without fsyncs.
const WRITER: &str = "(n=0; while sleep 0.25; do dd if=/dev/zero of=/mnt/$dev/written bs=64k \
                      count=16 seek=$((n++ % 64 * 16)) conv=notrunc 2> /dev/null; done) & \
                      beside=\"$beside $!\"; ";

/// The options
#[derive(Debug, Clone, Args)]
#[command(mut_arg("variants", |variants| variants.default_value("vanilla,proposed")))]
#[command(mut_arg("readers", |readers| readers.default_value("48")))]
pub struct Options {
    #[command(flatten)]
    pub(super) guest: GuestArgs,
    /// Fsyncs of the foreground program [default: 200 in uml, 100 in qemu]
    #[arg(long, value_name = "N", value_parser = values::whole::<u32>(1..=1_000_000))]
    pub(super) syncs: Option<u32>,
    /// Pause of the foreground before each fsync
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = values::time_or_none)]
    pub(super) think: Duration,
    /// Run a background program that writes 4 MiB a second without fsyncs
    #[arg(long)]
    pub(super) writer: bool,
    /// Run a background program that fsyncs a file of its own without a pause
    #[arg(long)]
    pub(super) background_sync: bool,
}

/// Results of one measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Median time of the foreground's fsyncs, in ms.
    pub p50_ms: f64,
    /// Their 99th percentile.
    pub p99_ms: f64,
    /// Their mean.
    pub mean_ms: f64,
    /// Fsyncs of the foreground per second.
    pub rate: f64,
    /// Figures of the background.
    pub beside: Beside,
}

impl Sample {
    fn of(syncs: u32, said: &[String], beside: Beside) -> Result<Self> {
        let [seconds, mean, p50, p99] = figures(said)?;
        let rate = f64::from(syncs) / seconds.max(1e-3);
        Ok(Self { p50_ms: p50 / 1e3, p99_ms: p99 / 1e3, mean_ms: mean / 1e3, rate, beside })
    }

    /// Fsyncs of the background per second.
    pub fn background(&self) -> f64 {
        self.beside.written / f64::from(BLOCK) / self.beside.seconds.max(1e-3)
    }
}

impl Options {
    /// Fsyncs of the foreground.
    fn syncs(&self, place: Machines) -> u32 {
        self.syncs.unwrap_or(if place == Machines::Uml { 200 } else { 100 })
    }
}

/// Requests of one kind and priority.
#[derive(Debug, PartialEq)]
pub struct Hop {
    /// The kind.
    pub title: &'static str,
    /// Their I/O priority.
    pub priority: String,
    /// Number of requests.
    pub count: usize,
    /// Mean, median and 99th percentile from the ring to the answer, in ms.
    pub times_ms: [f64; 3],
}

const TITLES: [&str; 6] = [
    "write outside the journal",
    "journal block",
    "flush before the commit block",
    "commit block",
    "flush after the commit block",
    "read",
];

/// The requests of a recorded turn, by kind and priority.
///
/// A file system has one commit at a time. So the first write to the journal after a flush that
/// followed journal blocks is the commit block.
pub fn hops(trace: &Trace) -> Vec<Hop> {
    let in_journal = |sector: u64| {
        trace.layouts.iter().any(|piece| sector.wrapping_sub(piece.sector) < piece.sectors)
    };
    let (mut times, mut last) = (std::collections::BTreeMap::<_, Vec<u64>>::new(), 4);
    for place in trace.by_submission() {
        let record = &trace.requests[place].record;
        let hop = match (record.kind, in_journal(record.sector), last) {
            (RequestKind::Read, ..) => 5,
            (RequestKind::Write, false, _) => 0,
            (RequestKind::Write, true, 2) => 3,
            (RequestKind::Write, true, _) => 1,
            (RequestKind::Flush, _, 1 | 2) => 2,
            (RequestKind::Flush, ..) => 4,
            _ => continue,
        };
        last = if (1..5).contains(&hop) { hop } else { last };
        times.entry((hop, record.priority.0)).or_default().push(record.service);
    }
    let hop = |((hop, priority), mut ns): ((usize, u32), Vec<u64>)| {
        let priority = Priority(priority);
        let priority = format!("{} {}", class_name(priority.class()), priority.level());
        let times_ms = reader::mean_and_percentiles(&mut ns).map(|us| us / 1e3);
        Hop { title: TITLES[hop], priority, count: ns.len(), times_ms }
    };
    times.into_iter().map(hop).collect()
}

/// Measures with vlane's own file, and makes a report.
///
/// # Errors
/// As [`super::guests::run`].
pub fn run(
    options: &Options,
    vlane: &Path,
    command: &str,
    interrupt: &Interrupt,
) -> Result<Report> {
    let (begun, keys) = (Begun::now(command), keys());
    let task = |place| {
        let (model, syncs) = (options.guest.model(place), options.syncs(place));
        let readers = options.guest.readers.unwrap_or_default();
        let request = model.latency.mul_f64(f64::from(readers + 2) / f64::from(model.parallel));
        let time = (options.think + request * REQUESTS) * syncs;
        let think = options.think.as_secs_f64();
        let job = format!("/mnt/@DEV@/foreground --sync --reads {syncs} --think {think}s");
        let besides = [(SYNCS, options.background_sync), (WRITER, options.writer)];
        let beside = besides.into_iter().filter_map(|(command, is_on)| is_on.then_some(command));
        Task {
            place,
            readers,
            typed: typed(&job),
            keys: &keys,
            beside: beside.collect(),
            behind: Behind::Fresh,
            takes: (AROUND + time, time * 10),
        }
    };
    let sample = |place, said: &[String], beside| Sample::of(options.syncs(place), said, beside);
    let show = |results: &[_]| report::fill(options, results, &begun);
    options.guest.measure(task, vlane, interrupt, sample, show)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use vlane_trace::{Header, LayoutPiece, Record, Status};

    #[test]
    fn sample_has_times_and_rates() {
        let said = ["10.0 14.0 0", "40000", "30000", "90000"].map(str::to_owned);
        let beside = Beside { seconds: 5.0, written: 409_600.0, ..Beside::default() };
        let sample = Sample::of(100, &said, beside).unwrap();
        assert_eq!((sample.p50_ms, sample.p99_ms, sample.mean_ms), (30.0, 90.0, 40.0));
        assert_eq!((sample.rate, sample.background()), (25.0, 20.0));
    }

    #[test]
    fn commit_is_split_into_its_requests() {
        use RequestKind::{Flush, Read, Write};
        let requests = [
            (Write, 9),
            (Read, 1),
            (Write, 100),
            (Write, 108),
            (Flush, 0),
            (Write, 116),
            (Flush, 0),
        ];
        let record = |(at, (kind, sector)): (u64, (RequestKind, u64))| Record {
            kind,
            status: Status::Ok,
            lane: 0,
            priority: Priority(2 << 13 | 3),
            submit: at * 1000,
            service: (at + 1) * 1_000_000,
            sector,
            sectors: 8,
            seq: 0,
            after: 0,
            more: false,
            unmap: false,
            hash: 0,
        };
        let records = (0..).zip(requests).map(record).collect();
        let mut trace = Trace::from_records(Header::default(), records);
        let piece = LayoutPiece { time: 0, filesystem: 0, sector: 100, sectors: 50, more: false };
        trace.layouts.push(piece);
        let hops = hops(&trace);
        let seen: Vec<_> = hops.iter().map(|hop| (hop.count, hop.times_ms[1])).collect();
        assert_eq!(seen, [(1, 1.0), (2, 3.0), (1, 5.0), (1, 6.0), (1, 7.0), (1, 2.0)]);
        assert!(hops.iter().map(|hop| hop.title).eq(TITLES));
        assert_eq!(hops[0].priority, "best effort 3");
    }
}
