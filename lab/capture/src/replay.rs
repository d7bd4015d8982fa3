//! From a trace to a replay: which requests there are, and what the recorded order really was.
//!
//! A recorded time is right to within a few requests of a batch ([`SLACK_NS`]). The order that must
//! be kept is finer than that: a guest that saw its flush answered writes its commit record within
//! a microsecond. Within a lane the trace gives the order by numbers. Across lanes the times are
//! moved to the safe side by their largest error: requests that may have come before count as
//! having come before.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use clap::Args;
use vlane::values;
use vlane_driver::replay::{ReplayKind, ReplayOptions, ReplayPlan, ReplayRequest, Timing};
use vlane_driver::{OnProgress, Session, Wait};
use vlane_error::counted;
use vlane_trace::{Record, RequestKind};

use super::{Request, Trace, replay_report};

use vlane_report::{Begun, Note, Report};
use vlane_testbed::{ErrorKind, Fail, Interrupt, Result};

/// Largest delay of a completion's recorded time: the time of the eight requests that share one
/// reading of the clock, on an engine that answers each with a system call.
pub const SLACK_NS: u64 = 20_000;

/// How a trace is replayed.
#[derive(Debug, Args)]
pub struct Settings {
    /// Speed relative to the recording
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = values::factor)]
    #[arg(conflicts_with = "as_fast_as_possible")]
    pub speed: f64,

    /// Send requests as soon as the order allows, not at their recorded times
    #[arg(long)]
    pub as_fast_as_possible: bool,

    /// Most requests in flight per queue [default: as many as in the trace]
    #[arg(long, value_name = "N", value_parser = values::whole::<u16>(1..=32768))]
    pub depth: Option<u16>,

    /// Seed for the written data
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u64>(0..))]
    pub seed: u64,

    /// Poll for completions instead of sleeping
    #[arg(long)]
    pub poll: bool,

    /// Allow the back end's content to be overwritten
    ///
    /// The trace writes, and its data are not the recorded data.
    #[arg(long)]
    pub yes_overwrite: bool,
}

/// The replayable part of a trace.
#[derive(Debug)]
pub struct Prepared {
    /// In the order in which the requests were taken.
    pub requests: Vec<ReplayRequest>,
    /// Omitted requests with their number: requests for the serial number, malformed ones, ones
    /// beyond the volume's end.
    pub left_out: BTreeMap<&'static str, u64>,
    /// Requests that there are more than were recorded, because one of several ranges becomes one
    /// per range.
    pub split: u64,
    /// Most requests that one lane had in flight.
    pub depth: u16,
}

/// Takes a trace's requests for a replay. Writes get their data from `seed` and, if the trace has
/// hashes, the hash of the data, so that equal data are equal again. Otherwise each write has its
/// own data. The same seed makes the same data every time.
///
/// # Errors
/// [`ErrorKind::Invalid`] if no request of it can be replayed.
pub fn prepare(trace: &Trace, seed: u64) -> Result<Prepared> {
    let mut left_out = BTreeMap::new();
    let mut split = 0;
    let bounds = seen(trace);
    let (begin, _) = trace.span();
    let mut requests = Vec::with_capacity(trace.requests.len());
    for at in trace.by_submission() {
        let Request { record, run, .. } = &trace.requests[at];
        let kind = match why_not(trace, record) {
            Ok(kind) => kind,
            Err(why) => {
                *left_out.entry(why).or_insert(0) += 1;
                continue;
            }
        };
        split += u64::from(record.more);
        let seen = record.completed().saturating_sub(SLACK_NS).min(bounds[at]).max(record.submit);
        let data = match record.hash {
            0 => mix(mix(mix(seed, record.lane.into()), (*run).into()), record.seq.into()),
            hash => mix(seed, hash),
        };
        requests.push(ReplayRequest {
            at_ns: record.submit - begin,
            done_ns: Some(seen - begin),
            queue: record.lane,
            kind,
            sector: record.sector,
            sectors: record.sectors,
            // Linux uses 16 bits of the field.
            ioprio: u16::try_from(record.priority.0 & 0xffff).unwrap_or(0),
            data: Some(data),
        });
    }
    if requests.is_empty() {
        return ErrorKind::Invalid.fail("the trace has no request that can be replayed");
    }
    let depth = trace.requests.iter().map(Request::in_flight).max().unwrap_or(1);
    Ok(Prepared { requests, left_out, split, depth: u16::try_from(depth).unwrap_or(u16::MAX) })
}

/// How a request is replayed, or why it is not.
fn why_not(trace: &Trace, record: &Record) -> std::result::Result<ReplayKind, &'static str> {
    let kind = match record.kind {
        RequestKind::Read => ReplayKind::Read,
        RequestKind::Write => ReplayKind::Write,
        RequestKind::Flush => return Ok(ReplayKind::Flush),
        RequestKind::Discard => ReplayKind::Discard,
        RequestKind::WriteZeroes => ReplayKind::WriteZeroes,
        RequestKind::GetId => return Err("requests for the serial number"),
        RequestKind::Refused => return Err("malformed requests"),
    };
    let end = record.sector.checked_add(record.sectors.into());
    match end {
        _ if record.sectors == 0 => Err("requests without data"),
        Some(end) if trace.header.sectors == 0 || end <= trace.header.sectors => Ok(kind),
        _ => Err("requests beyond the volume's end"),
    }
}

/// For each request, by its place in the trace, the latest time at which the guest saw it
/// completed. That is the time at which the first request of its lane was taken that is known to
/// have come after. `u64::MAX` if there is none.
fn seen(trace: &Trace) -> Vec<u64> {
    let mut seen = vec![u64::MAX; trace.requests.len()];
    // The file has each lane's requests in the order of completion; by_submission has them in that
    // of `seq`.
    let mut lanes: BTreeMap<(u16, u32), VecDeque<usize>> = BTreeMap::new();
    for (at, request) in trace.requests.iter().enumerate() {
        lanes.entry((request.record.lane, request.run)).or_default().push_back(at);
    }
    for at in trace.by_submission() {
        let Request { record, run, .. } = &trace.requests[at];
        let Some(completed) = lanes.get_mut(&(record.lane, *run)) else { continue };
        while let Some(&before) = completed.front()
            && trace.requests[before].completion < record.after
        {
            completed.pop_front();
            seen[before] = record.submit;
        }
    }
    seen
}

/// Two numbers as one, so that near ones become far ones (the finalizer of splitmix64).
fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_add(0x2545_f491_4f6c_dd1d);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Replays a trace on the back end at `socket`. `progress` gets the number of finished requests and
/// their total.
///
/// # Errors
/// Those of [`prepare`], [`Session::connect`] and [`vlane_driver::replay::replay`];
/// [`ErrorKind::Interrupted`].
pub fn replay(
    trace: &Trace,
    socket: &Path,
    settings: &Settings,
    begun: &Begun,
    interrupt: &Interrupt,
    mut progress: impl FnMut(u64, u64),
) -> Result<Report> {
    let prepared = prepare(trace, settings.seed)?;
    // More than 1024 on a queue is a guest's largest queue, and much memory.
    let depth = settings.depth.unwrap_or(prepared.depth.min(1024));
    let plan = ReplayPlan::new(prepared.requests)?;
    let all = plan.requests().len() as u64;
    let session = Session::connect(socket, &plan.session_options(depth)?)?;
    let timing = match settings.as_fast_as_possible {
        true => Timing::AsFast,
        false => Timing::Original { speed: settings.speed },
    };
    let wait = if settings.poll { Wait::Poll } else { Wait::Interrupt };
    let options = ReplayOptions { timing, wait, cpu: None };
    let on_progress: &mut OnProgress<'_> = &mut |state| {
        progress(state.done, all);
        interrupt.going_on()
    };
    let result = vlane_driver::replay::replay(session, &plan, &options, on_progress)?;
    if result.run.ios == 0 {
        interrupt.check()?;
    }
    let mut report = replay_report::report(trace, &result, begun);
    let left_out = prepared.left_out.into_iter();
    report.notes.extend(left_out.map(|(what, n)| Note::info(format!("Left out: {n} {what}."))));
    if prepared.split > 0 {
        report.notes.push(Note::info(format!(
            "Requests of several ranges are one request per range here: {} more than recorded.",
            prepared.split
        )));
    }
    if interrupt.is_raised() && result.run.ios < all {
        let done = format!("{} of {} were replayed", result.run.ios, counted(all, "request"));
        report.mark_partial(format!("PARTIAL: {done}: interrupted"));
    }
    Ok(report)
}
