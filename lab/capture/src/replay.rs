//! From a trace to a replay: which requests there are, and what the recorded order really was.
//!
//! A recorded time is right to within a few requests of a batch ([`SLACK_NS`]). The order that must
//! be kept is finer than that: a guest that saw its flush answered writes its commit record within
//! a microsecond. Within a lane the trace gives the order by numbers. Across lanes the times are
//! moved to the safe side by their largest error: requests that may have come before count as
//! having come before.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use vlane_driver::replay::{ReplayKind, ReplayOptions, ReplayPlan, ReplayRequest};
use vlane_driver::{OnProgress, Session};
use vlane_error::counted;
use vlane_trace::{Record, RequestKind};

use super::replay_report::{self, Facts};
use super::{Request, Trace};

pub use super::replay_report::Settings;
use vlane_report::Report;
use vlane_report::build::Begun;
use vlane_testbed::error::{Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;

/// Largest delay of a completion's recorded time: the time of the eight requests that share one
/// reading of the clock, on an engine that answers each with a system call.
pub const SLACK_NS: u64 = 20_000;

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
        return Err(Error::new(
            ErrorKind::Invalid,
            "the trace has no request that can be replayed",
        ));
    }
    Ok(Prepared { requests, left_out, split, depth: depth(trace) })
}

impl Prepared {
    /// The plan that a replay follows.
    ///
    /// # Errors
    /// Those of [`ReplayPlan::new`].
    pub fn plan(self) -> Result<ReplayPlan> {
        Ok(ReplayPlan::new(self.requests)?)
    }
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
    let mut lanes: BTreeMap<(u16, u32), Vec<usize>> = BTreeMap::new();
    for (at, request) in trace.requests.iter().enumerate() {
        lanes.entry((request.record.lane, request.run)).or_default().push(at);
    }
    let mut next: BTreeMap<(u16, u32), usize> = BTreeMap::new();
    for at in trace.by_submission() {
        let Request { record, run, .. } = &trace.requests[at];
        let lane = (record.lane, *run);
        let (Some(completed), next) = (lanes.get(&lane), next.entry(lane).or_insert(0)) else {
            continue;
        };
        while let Some(before) =
            completed.get(*next).filter(|b| trace.requests[**b].completion < record.after)
        {
            seen[*before] = record.submit;
            *next += 1;
        }
    }
    seen
}

/// Most requests that one lane had in flight, as its numbers tell.
pub fn depth(trace: &Trace) -> u16 {
    let in_flight = |request: &Request| request.record.seq.saturating_sub(request.record.after) + 1;
    let most = trace.requests.iter().map(in_flight).max().unwrap_or(1);
    u16::try_from(most).unwrap_or(u16::MAX)
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
    interrupt: &Interrupt,
    mut progress: impl FnMut(u64, u64),
) -> Result<Report> {
    let begun = Begun::now(&settings.command);
    let prepared = prepare(trace, settings.seed)?;
    let facts = Facts { left_out: prepared.left_out.clone(), split: prepared.split };
    // More than 1024 on a queue is a guest's largest queue, and much memory.
    let depth = settings.depth.unwrap_or(prepared.depth.min(1024));
    let plan = prepared.plan()?;
    let all = plan.requests().len() as u64;
    let session = Session::connect(socket, &plan.session_options(depth)?)?;
    let options = ReplayOptions { timing: settings.timing, wait: settings.wait, cpu: None };
    let on_progress: &mut OnProgress<'_> = &mut |state| {
        progress(state.done, all);
        if interrupt.is_raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let result = vlane_driver::replay::replay(session, &plan, &options, on_progress)?;
    if result.ios == 0 {
        interrupt.check()?;
    }
    let mut report = replay_report::report(trace, &result, &facts, &begun);
    if interrupt.is_raised() && result.ios < all {
        let done = format!("{} of {} were replayed", result.ios, counted(all, "request"));
        report.mark_partial(format!("PARTIAL: {done}: interrupted"));
    }
    Ok(report)
}
