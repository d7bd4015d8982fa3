//! The replay itself: one thread that drives all queues of a session in the plan's order.

use std::time::Duration;

use super::plan::{ReplayPlan, State};
use super::{AHEAD, ReplayKind};
use crate::error::{Error, ErrorKind};
use crate::lanes::{Effort, Manner, Moment, Next, Out, Source};
use crate::report::{BackendUse, ByKind, Latency, Report};
use crate::ring::{BlkQueue, Completion, Request, RequestKind};
use crate::run::{OnProgress, Plan, drive};
use crate::session::Session;
use crate::window::{Counts, Latencies};
use crate::workload::Wait;

/// The times at which requests go out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Timing {
    /// At their times in the trace, so many times as fast; 1 is the original speed.
    Original {
        /// The speed relative to the trace; positive.
        speed: f64,
    },
    /// As soon as the order and the queue depth allow.
    AsFast,
}

/// Options of a replay.
#[derive(Debug, Clone)]
pub struct ReplayOptions {
    /// The times at which requests go out.
    pub timing: Timing,
    /// The driver's way to wait for completions.
    pub wait: Wait,
    /// The CPU that the driver runs on; `None` does not pin.
    pub cpu: Option<usize>,
}

impl Default for ReplayOptions {
    /// Original speed, waiting for interrupts, on any CPU.
    fn default() -> Self {
        Self { timing: Timing::Original { speed: 1.0 }, wait: Wait::Interrupt, cpu: None }
    }
}

/// The results of a replay.
#[derive(Debug, Clone)]
pub struct ReplayReport {
    /// Its figures as those of any run. The time is that to the last completion. There are fewer
    /// requests than in the trace if it was ended early.
    pub run: Report,
    /// The speed relative to the trace; absent if all requests were due at once.
    pub speed: Option<f64>,
    /// Requests in the trace.
    pub in_trace: u64,
    /// Time from the trace's start to its last submission, in seconds.
    pub trace_seconds: f64,
    /// Discards and write-zeroes alone.
    pub discards: Option<ByKind>,
    /// The delay of requests relative to their due times; empty with [`Timing::AsFast`].
    pub late: Option<Latency>,
    /// Requests that were due and went out later because of the order.
    pub held_by_order: u64,
    /// Requests that were due and went out later because every slot of the queue was taken.
    pub held_by_depth: u64,
}

/// Replays a trace on a session, which must not have been started; ends the session and returns the
/// results.
///
/// `progress` is called about four times a second; `Break` ends the replay early.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the trace does not fit the session (queues, request size) or the
/// device (its end, read-only), or the speed is not positive. [`ErrorKind::Unsupported`] if the
/// trace has requests that the device does not offer. [`ErrorKind::Gone`] if the back end hangs up,
/// and [`ErrorKind::Timeout`] if requests do not come back within 30 s of an early end.
/// [`ErrorKind::Queue`] if it breaks a queue, and the errors of [`Session::start`].
pub fn replay(
    mut session: Session,
    plan: &ReplayPlan,
    options: &ReplayOptions,
    progress: &mut OnProgress<'_>,
) -> Result<ReplayReport, Error> {
    check(&session, plan, options)?;
    let (mut queues, waker) = session.start()?;
    let cpus: Vec<_> = options.cpu.into_iter().collect();
    let total = match options.timing {
        Timing::Original { speed } => Some(Duration::from_nanos(scaled(plan.length_ns(), speed))),
        Timing::AsFast => None,
    };
    let time = Plan::open_end(total);
    let lane = |queue| Lane { left: plan.queue(queue), held: None };
    let source = Replay {
        lanes: (0..queues.len()).map(lane).collect(),
        plan,
        state: plan.state(),
        timing: options.timing,
        stats: Stats::default(),
    };
    let manner = Manner { wait: options.wait, cpus: &cpus, ..Manner::usual(time.window) };
    let sources = vec![(queues.as_mut_slice(), source)];
    let driven = drive(&mut session, &waker, &time, manner, sources, progress).whole()?;
    session.stop()?;
    let [(replay, effort)] = &driven.jobs[..] else {
        return ErrorKind::System.fail("the replay's thread is gone");
    };
    let backend = driven.backend(replay.stats.counts.completed);
    Ok(replay.stats.report(&session, plan, options, effort, backend))
}

/// Checks that a trace fits a device.
fn check(session: &Session, plan: &ReplayPlan, options: &ReplayOptions) -> Result<(), Error> {
    let (config, negotiated) = (session.config(), session.negotiated());
    let invalid = |context: String| ErrorKind::Invalid.fail(context);
    let unsupported = |what: &str| {
        let context = format!("the trace has {what} requests, which the device does not offer");
        ErrorKind::Unsupported.fail(context)
    };
    if let Timing::Original { speed } = options.timing
        && !(speed.is_finite() && speed > 0.0)
    {
        return invalid(format!("a speed of {speed} is impossible; it must be above 0"));
    }
    if plan.queues() > negotiated.queues {
        return invalid(format!(
            "the trace has {} queues, the session {}",
            plan.queues(),
            negotiated.queues
        ));
    }
    if plan.largest() > session.data().into() {
        return invalid(format!(
            "the trace has a request of {} bytes, the session's buffers have {}",
            plan.largest(),
            session.data()
        ));
    }
    let sectors = config.capacity / 512;
    if plan.end_sector() > sectors {
        return invalid(format!(
            "the trace reaches to sector {}, the device ends at {sectors}; replay it on a device \
             that is as large as the recorded one",
            plan.end_sector()
        ));
    }
    let has = |kind| plan.requests().iter().any(|request| request.kind == kind);
    if config.read_only && plan.requests().iter().any(|request| request.kind.writes()) {
        return invalid("the trace has writes, and the device is read-only".into());
    }
    if has(ReplayKind::Flush) && !negotiated.flush {
        return unsupported("flush");
    }
    let largest = |kind| plan.requests().iter().filter(|r| r.kind == kind).map(|r| r.sectors).max();
    for (kind, most, what) in [
        (ReplayKind::Discard, config.max_discard_sectors, "discard"),
        (ReplayKind::WriteZeroes, config.max_write_zeroes_sectors, "write-zeroes"),
    ] {
        match (largest(kind), most) {
            (None, _) => {}
            (Some(_), None) => return unsupported(what),
            (Some(largest), Some(most)) if largest > most => {
                return invalid(format!(
                    "the trace has a {what} of {largest} sectors, the device takes {most}"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// A time in the trace at another speed.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "53 bits of ns are 104 days; the conversion saturates"
)]
fn scaled(ns: u64, speed: f64) -> u64 {
    if (speed - 1.0).abs() < f64::EPSILON { ns } else { (ns as f64 / speed) as u64 }
}

/// A queue's part of the trace.
struct Lane<'a> {
    /// Unsubmitted requests, by place in the plan.
    left: &'a [u32],
    /// The reason why the first of `left`, being due, has not gone out at the first look.
    held: Option<Held>,
}

/// The reason why a due request does not go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    ByOrder,
    ByDepth,
}

/// The measured values.
#[derive(Default)]
struct Stats {
    counts: Counts,
    late: Latencies,
    held_by_order: u64,
    held_by_depth: u64,
    /// Writes so far: part of the data of those whose data are not given.
    written: u64,
    /// The begin of the replay, in ns of the run's clock.
    start: Option<u64>,
}

struct Replay<'a> {
    lanes: Vec<Lane<'a>>,
    plan: &'a ReplayPlan,
    state: State<'a>,
    timing: Timing,
    stats: Stats,
}

impl Replay<'_> {
    /// The due time of a request, in ns of the run's clock.
    fn due(&self, place: u32) -> u64 {
        let since_start = match self.timing {
            Timing::Original { speed } => scaled(self.plan.requests()[place as usize].at_ns, speed),
            Timing::AsFast => 0,
        };
        self.stats.start.unwrap_or(0) + since_start
    }

    /// A lane's next request, if the others' are not too far behind it.
    fn first(&self, lane: usize) -> Option<u32> {
        let place = *self.lanes[lane].left.first()?;
        if self.timing != Timing::AsFast {
            return Some(place);
        }
        let first = self.lanes.iter().filter_map(|lane| lane.left.first()).min();
        let ahead = u32::try_from(AHEAD).unwrap_or(u32::MAX);
        first.filter(|first| place < first.saturating_add(ahead)).map(|_| place)
    }
}

impl Source for Replay<'_> {
    /// The place in the plan.
    type Tag = u32;

    fn next(
        &mut self,
        lane: usize,
        queue: &mut BlkQueue,
        slot: u16,
        at: &Moment,
        out: &mut Out<u32>,
    ) -> Result<Next, Error> {
        self.stats.start.get_or_insert(at.now);
        let Some(place) = self.first(lane).filter(|_| !at.ended) else { return Ok(Next::Later) };
        let due = self.due(place);
        if due > at.now {
            return Ok(Next::At(due));
        }
        let Lane { left, held } = &mut self.lanes[lane];
        if !self.state.is_free(place) {
            // The first obstacle counts.
            held.get_or_insert(Held::ByOrder);
            return Ok(Next::Later);
        }
        *left = &left[1..];
        match held.take() {
            Some(Held::ByOrder) => self.stats.held_by_order += 1,
            Some(Held::ByDepth) => self.stats.held_by_depth += 1,
            None => {}
        }
        if self.timing != Timing::AsFast {
            self.stats.late.saturating_record(at.now - due);
        }
        let request = &self.plan.requests()[place as usize];
        let kind = RequestKind::from(request.kind);
        let (sector, len) = match kind {
            RequestKind::Flush => (0, 0),
            _ => (request.sector, request.sectors * 512),
        };
        if kind == RequestKind::Write {
            self.stats.written += 1;
            // Odd multipliers spread neighbouring places over all seeds.
            let own = || sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.stats.written;
            let seed = request.data.unwrap_or_else(own);
            if let Some(data) = queue.data_mut(slot) {
                data.fill_pattern_to(seed, len as usize);
            }
        }
        let request = Request { kind, sector, len, ioprio: request.ioprio.into() };
        Ok(out.send(request, place, at))
    }

    fn full(&mut self, lane: usize, at: &Moment) {
        if let Some(place) = self.first(lane).filter(|place| self.due(*place) <= at.now) {
            let free = self.state.is_free(place);
            self.lanes[lane].held.get_or_insert(if free { Held::ByDepth } else { Held::ByOrder });
        }
    }

    fn done(
        &mut self,
        _lane: usize,
        _queue: &BlkQueue,
        out: &Out<u32>,
        completion: &Completion,
        at: &Moment,
    ) -> Result<(), Error> {
        self.state.complete(out.tag);
        let counts = &mut self.stats.counts;
        counts.record(out.request.kind, at.now - out.since);
        let moves = matches!(out.request.kind, RequestKind::Read | RequestKind::Write);
        let len = if moves { out.request.len } else { 0 };
        counts.count(&Request { len, ..out.request }, completion, at.now);
        Ok(())
    }

    fn end(&mut self, _now: u64) {
        self.stats.counts.settle();
    }
}

impl Stats {
    fn report(
        &self,
        session: &Session,
        plan: &ReplayPlan,
        options: &ReplayOptions,
        effort: &Effort,
        backend: Option<BackendUse>,
    ) -> ReplayReport {
        let took = self.counts.last.saturating_sub(self.start.unwrap_or(0));
        let seconds = (took as f64 / 1e9).max(1e-9);
        ReplayReport {
            run: Report::of(session, &self.counts, seconds, effort, backend),
            speed: match options.timing {
                Timing::Original { speed } => Some(speed),
                Timing::AsFast => None,
            },
            in_trace: plan.requests().len() as u64,
            trace_seconds: plan.length_ns() as f64 / 1e9,
            discards: ByKind::of(&self.counts.discards, seconds),
            late: (!self.late.is_empty()).then(|| Latency::of(&self.late)),
            held_by_order: self.held_by_order,
            held_by_depth: self.held_by_depth,
        }
    }
}
