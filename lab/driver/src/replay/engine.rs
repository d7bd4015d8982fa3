//! The replay itself: one thread that drives all queues of a session in the plan's order.

use std::time::Duration;

use crate::ring::{Completion, Request, RequestKind};
use hdrhistogram::Histogram;
use serde::Serialize;
use vlane_error::counted;

use super::plan::{ReplayPlan, State};
use super::{AHEAD, ReplayKind};
use crate::clock::Clock;
use crate::device::{BlkConfig, Negotiated};
use crate::error::{Error, ErrorKind};
use crate::job::{Shared, precise_sleep, thread_cpu};
use crate::report::{BackendUse, ByKind, Errors, Latency};
use crate::run::{OnProgress, Plan, drive};
use crate::session::{Calls, GuestQueue, Session};
use crate::window::latency_histogram;
use crate::workload::Wait;

/// Closer to a due time than this a replay does not sleep: waking up takes about as long.
const SPIN_NS: u64 = 50_000;

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
#[derive(Debug, Clone, Serialize)]
pub struct ReplayReport {
    /// The socket driven.
    pub socket: String,
    /// The device's description of itself.
    pub device: BlkConfig,
    /// The result of the negotiation with the back end.
    pub negotiated: Negotiated,
    /// The speed relative to the trace; absent if all requests were due at once.
    pub speed: Option<f64>,
    /// Most requests out at once, per queue.
    pub depth: u16,
    /// Requests in the trace.
    pub in_trace: u64,
    /// Time from the trace's start to its last submission, in seconds.
    pub trace_seconds: f64,
    /// Time that the replay took, to its last completion, in seconds.
    pub seconds: f64,
    /// Requests completed, errors too; fewer than in the trace if it was ended early.
    pub ios: u64,
    /// Requests per second.
    pub iops: f64,
    /// Data read and written per second, in MB (10^6 bytes).
    pub mb_per_second: f64,
    /// From a request's submission to the sight of its completion, of all requests.
    pub latency: Latency,
    /// Reads alone.
    pub reads: Option<ByKind>,
    /// Writes alone.
    pub writes: Option<ByKind>,
    /// Flushes alone.
    pub flushes: Option<ByKind>,
    /// Discards and write-zeroes alone.
    pub discards: Option<ByKind>,
    /// The delay of requests relative to their due times; empty with [`Timing::AsFast`].
    pub late: Option<Latency>,
    /// Requests that were due and went out later because of the order.
    pub held_by_order: u64,
    /// Requests that were due and went out later because every slot of the queue was taken.
    pub held_by_depth: u64,
    /// Requests that failed.
    pub errors: Errors,
    /// The use of resources by the back end's process; absent if it could not be looked at.
    pub backend: Option<BackendUse>,
    /// CPU time of the driver's thread per request, in us.
    pub driver_cpu_us_per_io: f64,
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
    let work = |shared: &Shared, clock: &Clock| {
        Replay::new(&mut queues, plan, options, shared, clock)?.run()
    };
    let driven = drive(&mut session, &waker, &cpus, &time, vec![Box::new(work)], progress);
    let mut stats = driven.results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let stats =
        stats.pop().ok_or_else(|| Error::new(ErrorKind::System, "the replay's thread is gone"))?;
    session.stop()?;
    let usage = driven.usage.map(|(pid, usage)| BackendUse::of(pid, &usage, stats.ios()));
    Ok(stats.report(&session, plan, options, usage))
}

/// Checks that a trace fits a device.
fn check(session: &Session, plan: &ReplayPlan, options: &ReplayOptions) -> Result<(), Error> {
    let (config, negotiated) = (session.config(), session.negotiated());
    let invalid = |context: String| Err(Error::new(ErrorKind::Invalid, context));
    let unsupported = |what: &str| {
        let context = format!("the trace has {what} requests, which the device does not offer");
        Err(Error::new(ErrorKind::Unsupported, context))
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

/// A request that is out.
#[derive(Debug, Clone, Copy)]
struct Out {
    place: u32,
    since: u64,
}

/// A queue's part of the trace.
struct Lane<'a> {
    queue: &'a mut GuestQueue,
    /// Unsubmitted requests, by place in the plan.
    left: &'a [u32],
    out: Vec<Out>,
    idle: Vec<u16>,
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
struct Stats {
    reads: Histogram<u64>,
    writes: Histogram<u64>,
    flushes: Histogram<u64>,
    discards: Histogram<u64>,
    late: Histogram<u64>,
    held_by_order: u64,
    held_by_depth: u64,
    bytes: u64,
    errors: Errors,
    cpu: Duration,
    /// The last completion, in ns of the replay.
    last: u64,
}

struct Replay<'a> {
    lanes: Vec<Lane<'a>>,
    calls: Calls,
    plan: &'a ReplayPlan,
    state: State<'a>,
    options: &'a ReplayOptions,
    shared: &'a Shared,
    clock: &'a Clock,
    stats: Stats,
    /// Writes so far: part of the data of those whose data are not given.
    written: u64,
}

impl<'a> Replay<'a> {
    fn new(
        queues: &'a mut [GuestQueue],
        plan: &'a ReplayPlan,
        options: &'a ReplayOptions,
        shared: &'a Shared,
        clock: &'a Clock,
    ) -> Result<Self, Error> {
        let calls = Calls::of(queues.iter())?;
        let lane = |(index, queue): (usize, &'a mut GuestQueue)| {
            let depth = queue.blk.depth();
            Lane {
                left: plan.queue(index),
                out: vec![Out { place: 0, since: 0 }; depth.into()],
                idle: (0..depth).rev().collect(),
                held: None,
                queue,
            }
        };
        let stats = Stats {
            reads: latency_histogram()?,
            writes: latency_histogram()?,
            flushes: latency_histogram()?,
            discards: latency_histogram()?,
            late: latency_histogram()?,
            held_by_order: 0,
            held_by_depth: 0,
            bytes: 0,
            errors: Errors::default(),
            cpu: Duration::ZERO,
            last: 0,
        };
        let lanes = queues.iter_mut().enumerate().map(lane).collect();
        Ok(Self {
            lanes,
            calls,
            plan,
            state: plan.state(),
            options,
            shared,
            clock,
            stats,
            written: 0,
        })
    }

    /// Submits all requests and waits until they have come back.
    fn run(mut self) -> Result<Stats, Error> {
        precise_sleep();
        let cpu = thread_cpu();
        let mut done: Vec<Completion> = Vec::new();
        self.lanes.iter_mut().for_each(|lane| lane.queue.blk.disable_interrupts());
        let start = self.clock.now();
        loop {
            let ended = self.shared.stop.load(std::sync::atomic::Ordering::Relaxed);
            if ended {
                self.lanes.iter_mut().for_each(|lane| lane.left = &[]);
            }
            let now = self.clock.now() - start;
            let next = self.submit_all(now)?;
            if self.lanes.iter().all(|lane| lane.left.is_empty() && lane.queue.blk.held() == 0) {
                break;
            }
            if self.reap_all(start, &mut done)? {
                continue;
            }
            if self.shared.abort.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(self.aborted());
            }
            self.wait(start, next)?;
        }
        self.stats.cpu = thread_cpu().saturating_sub(cpu);
        self.lanes.iter_mut().for_each(|lane| {
            // As an idle guest has it.
            lane.queue.blk.enable_interrupts();
        });
        Ok(self.stats)
    }

    /// The due time of a request, in ns of the replay.
    fn due(&self, place: u32) -> u64 {
        match self.options.timing {
            Timing::Original { speed } => scaled(self.plan.requests()[place as usize].at_ns, speed),
            Timing::AsFast => 0,
        }
    }

    /// Submits the requests that are due and may go out; returns the due time of the next request
    /// that only the time holds back.
    fn submit_all(&mut self, now: u64) -> Result<Option<u64>, Error> {
        let limit = match self.options.timing {
            Timing::Original { .. } => u32::MAX,
            Timing::AsFast => {
                let first = self.lanes.iter().filter_map(|lane| lane.left.first()).min();
                first.map_or(u32::MAX, |first| {
                    first.saturating_add(u32::try_from(AHEAD).unwrap_or(u32::MAX))
                })
            }
        };
        let mut next = None;
        for index in 0..self.lanes.len() {
            let mut submitted = false;
            while let Some(place) =
                self.lanes[index].left.first().copied().filter(|place| *place < limit)
            {
                let due = self.due(place);
                if due > now {
                    next = Some(next.map_or(due, |next: u64| next.min(due)));
                    break;
                }
                let held = match self.state.is_free(place) {
                    false => Some(Held::ByOrder),
                    true if self.lanes[index].idle.is_empty() => Some(Held::ByDepth),
                    true => None,
                };
                if held.is_some() {
                    // The first obstacle counts.
                    let lane = &mut self.lanes[index];
                    lane.held = lane.held.or(held);
                    break;
                }
                self.submit(index, place, now, now - due)?;
                submitted = true;
            }
            let queue = &mut self.lanes[index].queue;
            if submitted && queue.blk.publish() {
                queue.kick()?;
            }
        }
        Ok(next)
    }

    fn submit(&mut self, index: usize, place: u32, now: u64, late: u64) -> Result<(), Error> {
        let request = &self.plan.requests()[place as usize];
        let lane = &mut self.lanes[index];
        let Some(slot) = lane.idle.pop() else { return Ok(()) };
        lane.left = &lane.left[1..];
        match lane.held.take() {
            Some(Held::ByOrder) => self.stats.held_by_order += 1,
            Some(Held::ByDepth) => self.stats.held_by_depth += 1,
            None => {}
        }
        if matches!(self.options.timing, Timing::Original { .. }) {
            self.stats.late.saturating_record(late);
        }
        let (kind, sector, len) = match request.kind {
            ReplayKind::Read => (RequestKind::Read, request.sector, request.sectors * 512),
            ReplayKind::Flush => (RequestKind::Flush, 0, 0),
            ReplayKind::Write => {
                self.written += 1;
                // Odd multipliers spread neighbouring places over all seeds.
                let own = || request.sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.written;
                let seed = request.data.unwrap_or_else(own);
                if let Some(data) = lane.queue.blk.data_mut(slot) {
                    data.fill_pattern_to(seed, request.sectors as usize * 512);
                }
                (RequestKind::Write, request.sector, request.sectors * 512)
            }
            ReplayKind::Discard | ReplayKind::WriteZeroes => {
                let mut range = [0; 16];
                range[..8].copy_from_slice(&request.sector.to_le_bytes());
                range[8..12].copy_from_slice(&request.sectors.to_le_bytes());
                if let Some(data) = lane.queue.blk.data_mut(slot) {
                    data.copy_in(0, &range)?;
                }
                let kind = if request.kind == ReplayKind::Discard {
                    RequestKind::Discard
                } else {
                    RequestKind::WriteZeroes
                };
                (kind, 0, 16)
            }
        };
        lane.queue
            .blk
            .submit(slot, Request { kind, sector, len, ioprio: request.ioprio.into() })?;
        lane.out[usize::from(slot)] = Out { place, since: now };
        Ok(())
    }

    /// Takes back completed requests; returns true if there were any.
    fn reap_all(&mut self, start: u64, done: &mut Vec<Completion>) -> Result<bool, Error> {
        let mut any = false;
        for lane in &mut self.lanes {
            lane.queue.blk.reap(done)?;
            if done.is_empty() {
                continue;
            }
            any = true;
            let now = self.clock.now() - start;
            self.stats.last = now;
            let n = done.len() as u64;
            self.shared.done.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
            for completion in done.drain(..) {
                let Out { place, since } = lane.out[usize::from(completion.slot)];
                lane.idle.push(completion.slot);
                self.state.complete(place);
                let request = &self.plan.requests()[place as usize];
                let bytes = u64::from(request.sectors) * 512;
                let stats = &mut self.stats;
                let (histogram, moved) = match request.kind {
                    ReplayKind::Read => (&mut stats.reads, bytes),
                    ReplayKind::Write => (&mut stats.writes, bytes),
                    ReplayKind::Flush => (&mut stats.flushes, 0),
                    ReplayKind::Discard | ReplayKind::WriteZeroes => (&mut stats.discards, 0),
                };
                histogram.saturating_record(now.saturating_sub(since));
                if completion.status != 0 {
                    stats.errors.count(completion.status);
                } else {
                    stats.bytes += moved;
                    if request.kind == ReplayKind::Read && u64::from(completion.len) != bytes + 1 {
                        stats.errors.length += 1;
                    }
                }
            }
        }
        Ok(any)
    }

    /// Returns when there may be a request to take back, or to submit.
    fn wait(&mut self, start: u64, next: Option<u64>) -> Result<(), Error> {
        if self.options.wait == Wait::Poll {
            std::hint::spin_loop();
            return Ok(());
        }
        let mut ready = false;
        for lane in &mut self.lanes {
            ready |= lane.queue.blk.enable_interrupts();
        }
        if !ready {
            let now = self.clock.now() - start;
            match next {
                None => self.calls.wait(None)?,
                Some(next) if next > now + SPIN_NS => {
                    self.calls.wait(Some(Duration::from_nanos(next - now - SPIN_NS)))?;
                }
                Some(next) => {
                    while self.clock.now() - start < next
                        && !self.lanes.iter().any(|lane| lane.queue.blk.has_used())
                    {
                        std::hint::spin_loop();
                    }
                }
            }
        }
        self.lanes.iter_mut().for_each(|lane| lane.queue.blk.disable_interrupts());
        Ok(())
    }

    fn aborted(&self) -> Error {
        let held: u32 = self.lanes.iter().map(|lane| u32::from(lane.queue.blk.held())).sum();
        if self.shared.gone.load(std::sync::atomic::Ordering::Relaxed) {
            Error::new(
                ErrorKind::Gone,
                format!("the back end hung up with {} out", counted(held, "request")),
            )
        } else {
            Error::new(ErrorKind::Timeout, format!("{} never came back", counted(held, "request")))
        }
    }
}

impl Stats {
    fn ios(&self) -> u64 {
        self.reads.len() + self.writes.len() + self.flushes.len() + self.discards.len()
    }

    fn report(
        &self,
        session: &Session,
        plan: &ReplayPlan,
        options: &ReplayOptions,
        backend: Option<BackendUse>,
    ) -> ReplayReport {
        let ios = self.ios();
        let seconds = (self.last as f64 / 1e9).max(1e-9);
        let mut total = self.reads.clone();
        for other in [&self.writes, &self.flushes, &self.discards] {
            // They have the same bounds, so they can be added.
            let _ = total.add(other);
        }
        ReplayReport {
            socket: session.socket().display().to_string(),
            device: *session.config(),
            negotiated: *session.negotiated(),
            speed: match options.timing {
                Timing::Original { speed } => Some(speed),
                Timing::AsFast => None,
            },
            depth: session.depth(),
            in_trace: plan.requests().len() as u64,
            trace_seconds: plan.length_ns() as f64 / 1e9,
            seconds,
            ios,
            iops: ios as f64 / seconds,
            mb_per_second: self.bytes as f64 / seconds / 1e6,
            latency: Latency::of(&total),
            reads: ByKind::of(&self.reads, seconds),
            writes: ByKind::of(&self.writes, seconds),
            flushes: ByKind::of(&self.flushes, seconds),
            discards: ByKind::of(&self.discards, seconds),
            late: (!self.late.is_empty()).then(|| Latency::of(&self.late)),
            held_by_order: self.held_by_order,
            held_by_depth: self.held_by_depth,
            errors: self.errors,
            backend,
            driver_cpu_us_per_io: if ios == 0 {
                0.0
            } else {
                self.cpu.as_secs_f64() * 1e6 / ios as f64
            },
        }
    }
}
