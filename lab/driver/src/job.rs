//! One job: one thread that keeps one queue full.
//!
//! The clock is read once per batch of completions: that moment ends the requests of the batch and
//! begins those issued in their place. A latency therefore includes the driver's own time between
//! the two (some tens of ns per request of the batch). At depth 1 with interrupts it also includes
//! the time from the wake-up to the first look at the ring. Its resolution is that of `Instant`
//! (about 1 ns, 25 ns to read). It is kept in a histogram with three significant digits.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::ring::{Completion, Request, RequestKind};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use vlane_error::counted;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::rate::{Books, OpenStats, Schedule};
use crate::report::Errors;
use crate::session::GuestQueue;
use crate::window::{Window, latency_histogram};
use crate::workload::{Requests, Wait, Workload};

/// Closer to an arrival than this a job does not sleep.
const SPIN_NS: u64 = 50_000;
/// Makes the calling thread's timeouts end when they are over, instead of up to 50 us later, which
/// is what Linux allows itself.
pub(crate) fn precise_sleep() {
    // If it is refused, the reported lateness shows it.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// State shared by the threads of a run.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Leave at once; what is out stays out.
    pub(crate) abort: AtomicBool,
    /// The back end is gone.
    pub(crate) gone: AtomicBool,
    /// Begin no more requests.
    pub(crate) stop: AtomicBool,
    /// Requests completed so far, by all jobs; for the progress display.
    pub(crate) done: AtomicU64,
}

/// A job's measured values.
#[derive(Debug)]
pub(crate) struct JobStats {
    pub(crate) reads: Histogram<u64>,
    pub(crate) writes: Histogram<u64>,
    pub(crate) flushes: Histogram<u64>,
    pub(crate) bytes: u64,
    pub(crate) errors: Errors,
    pub(crate) kicks: u64,
    pub(crate) sleeps: u64,
    pub(crate) cpu: Duration,
    /// The last completion within the window, in ns of the run's clock.
    pub(crate) last: u64,
    /// Requests completed within the window. Those whose latency counts are others in an open loop:
    /// those that arrived within it.
    pub(crate) completed: u64,
    /// The additional values of an open loop.
    pub(crate) open: Option<OpenStats>,
}

impl JobStats {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            reads: latency_histogram()?,
            writes: latency_histogram()?,
            flushes: latency_histogram()?,
            bytes: 0,
            errors: Errors::default(),
            kicks: 0,
            sleeps: 0,
            cpu: Duration::ZERO,
            last: 0,
            completed: 0,
            open: None,
        })
    }

    fn histogram(&mut self, kind: RequestKind) -> &mut Histogram<u64> {
        match kind {
            RequestKind::Read => &mut self.reads,
            RequestKind::Flush => &mut self.flushes,
            _ => &mut self.writes,
        }
    }
}

/// A request that is out.
#[derive(Debug, Clone, Copy)]
struct Out {
    since: u64,
    kind: RequestKind,
    /// The time at which it should have been submitted (open loop).
    arrival: u64,
}

pub(crate) struct Job<'a> {
    pub(crate) queue: &'a mut GuestQueue,
    pub(crate) workload: &'a Workload,
    pub(crate) requests: Requests,
    pub(crate) shared: &'a Shared,
    pub(crate) clock: &'a Clock,
    pub(crate) window: Window,
    /// The arrival times of requests, if they do not wait for each other.
    pub(crate) schedule: Option<Schedule>,
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

impl Job<'_> {
    /// Runs until the window's end and until all requests have come back.
    pub(crate) fn run(self) -> Result<JobStats, Error> {
        match self.schedule.clone() {
            None => self.run_closed(),
            Some(schedule) => self.run_open(schedule),
        }
    }

    /// Every completion makes room for the next request.
    fn run_closed(mut self) -> Result<JobStats, Error> {
        let mut stats = JobStats::new()?;
        let depth = self.queue.blk.depth();
        self.prepare(depth)?;
        let mut out = vec![Out { since: 0, kind: RequestKind::Read, arrival: 0 }; depth.into()];
        let mut done: Vec<Completion> = Vec::with_capacity(depth.into());
        let mut left = self.window.count;
        let batch = if self.workload.batch == 0 { u16::MAX } else { self.workload.batch };
        self.queue.blk.disable_interrupts();

        let (mut cpu_from, mut measuring) = (thread_cpu(), self.window.from == 0);
        let now = self.clock.now();
        for slot in 0..depth {
            if left > 0 {
                left -= 1;
                out[usize::from(slot)] = self.issue(slot, now)?;
            }
        }
        self.publish(&mut stats)?;

        let mut ended = false;
        while self.queue.blk.held() > 0 {
            self.queue.blk.reap(&mut done)?;
            if done.is_empty() {
                if self.shared.abort.load(Ordering::Relaxed) {
                    return Err(self.aborted());
                }
                self.wait(&mut stats)?;
                continue;
            }
            let now = self.clock.now();
            if !measuring && now >= self.window.from {
                measuring = true;
                cpu_from = thread_cpu();
                (stats.kicks, stats.sleeps) = (0, 0);
            }
            if !ended && (now >= self.window.until || self.shared.stop.load(Ordering::Relaxed)) {
                ended = true;
                stats.cpu = thread_cpu().saturating_sub(cpu_from);
            }
            if measuring && !ended {
                self.record(&done, &out, now, &mut stats);
            }
            self.shared.done.fetch_add(done.len() as u64, Ordering::Relaxed);
            let mut unpublished = 0;
            for completion in done.drain(..) {
                if !ended && left > 0 {
                    left -= 1;
                    let slot = completion.slot;
                    let (kind, offset) = self.requests.next(slot);
                    out[usize::from(slot)] = Out { since: now, kind, arrival: now };
                    submit(self.queue, self.workload, slot, kind, offset)?;
                    unpublished += 1;
                    if unpublished == batch {
                        unpublished = 0;
                        self.publish(&mut stats)?;
                    }
                }
            }
            self.publish(&mut stats)?;
        }
        if !ended {
            stats.cpu = thread_cpu().saturating_sub(cpu_from);
        }
        // As an idle guest has it.
        self.queue.blk.enable_interrupts();
        Ok(stats)
    }

    /// Requests go out when the schedule says so, if there is a slot.
    fn run_open(mut self, schedule: Schedule) -> Result<JobStats, Error> {
        let mut stats = JobStats::new()?;
        let depth = self.queue.blk.depth();
        self.prepare(depth)?;
        precise_sleep();
        let mut out = vec![Out { since: 0, kind: RequestKind::Read, arrival: 0 }; depth.into()];
        let mut idle: Vec<u16> = (0..depth).rev().collect();
        let mut done: Vec<Completion> = Vec::with_capacity(depth.into());
        let batch = if self.workload.batch == 0 { u16::MAX } else { self.workload.batch };
        let mut books = Books::new(schedule, self.window, depth)?;
        self.queue.blk.disable_interrupts();

        let (mut cpu_from, mut measuring, mut ended) = (thread_cpu(), self.window.from == 0, false);
        loop {
            let now = self.clock.now();
            if !measuring && now >= self.window.from {
                measuring = true;
                cpu_from = thread_cpu();
                (stats.kicks, stats.sleeps) = (0, 0);
            }
            if !ended && (now >= self.window.until || self.shared.stop.load(Ordering::Relaxed)) {
                ended = true;
                stats.cpu = thread_cpu().saturating_sub(cpu_from);
                books.end(now);
            }
            let mut unpublished = 0;
            while let Some(arrival) = books.take(now) {
                // The books and this list have the same slots.
                let Some(slot) = idle.pop() else { break };
                out[usize::from(slot)] = Out { arrival, ..self.issue(slot, now)? };
                unpublished += 1;
                if unpublished == batch {
                    unpublished = 0;
                    self.publish(&mut stats)?;
                }
            }
            if unpublished > 0 {
                self.publish(&mut stats)?;
            }
            self.queue.blk.reap(&mut done)?;
            if !done.is_empty() {
                let now = self.clock.now();
                self.shared.done.fetch_add(done.len() as u64, Ordering::Relaxed);
                for completion in done.drain(..) {
                    let Out { since, kind, arrival } = out[usize::from(completion.slot)];
                    idle.push(completion.slot);
                    if books.complete(arrival, now) {
                        stats.histogram(kind).saturating_record(now - since);
                    }
                    if measuring && !ended {
                        stats.last = now;
                        self.count(&completion, kind, &mut stats);
                    }
                }
                continue;
            }
            if ended && self.queue.blk.held() == 0 {
                break;
            }
            if self.shared.abort.load(Ordering::Relaxed) {
                return Err(self.aborted());
            }
            self.wait_until(books.next(), &mut stats)?;
        }
        // As an idle guest has it.
        self.queue.blk.enable_interrupts();
        stats.open = Some(books.stats);
        Ok(stats)
    }

    /// Returns when there may be a completion to reap, or when it is `until`.
    ///
    /// A wake-up takes a while, so the last part of the time is spent awake: with interrupts on, as
    /// an idle guest has them.
    fn wait_until(&mut self, until: Option<u64>, stats: &mut JobStats) -> Result<(), Error> {
        let Some(until) = until else { return self.wait(stats) };
        let interrupts = self.workload.wait == Wait::Interrupt;
        if interrupts && self.queue.blk.enable_interrupts() {
            self.queue.blk.disable_interrupts();
            return Ok(());
        }
        let mut now = self.clock.now();
        if interrupts && now + SPIN_NS < until {
            stats.sleeps += 1;
            self.queue.wait_for(Duration::from_nanos(until - now - SPIN_NS))?;
            now = self.clock.now();
        }
        while now < until && !self.queue.blk.has_used() && !self.shared.stop.load(Ordering::Relaxed)
        {
            std::hint::spin_loop();
            now = self.clock.now();
            if self.shared.abort.load(Ordering::Relaxed) || now + SPIN_NS < until {
                break;
            }
        }
        if interrupts {
            self.queue.blk.disable_interrupts();
        }
        Ok(())
    }

    /// Fills the buffers: with data that does not compress where they are written from.
    fn prepare(&mut self, depth: u16) -> Result<(), Error> {
        for slot in 0..depth {
            if let Some(data) = self.queue.blk.data_mut(slot) {
                data.fill_pattern(self.workload.seed ^ u64::from(slot));
            }
        }
        Ok(())
    }

    fn issue(&mut self, slot: u16, now: u64) -> Result<Out, Error> {
        let (kind, offset) = self.requests.next(slot);
        submit(self.queue, self.workload, slot, kind, offset)?;
        Ok(Out { since: now, kind, arrival: now })
    }

    #[inline]
    fn publish(&mut self, stats: &mut JobStats) -> Result<(), Error> {
        if self.queue.blk.publish() {
            stats.kicks += 1;
            self.queue.kick()?;
        }
        Ok(())
    }

    #[inline]
    fn record(&self, done: &[Completion], out: &[Out], now: u64, stats: &mut JobStats) {
        stats.last = now;
        for completion in done {
            let Out { since, kind, .. } = out[usize::from(completion.slot)];
            stats.histogram(kind).saturating_record(now - since);
            self.count(completion, kind, stats);
        }
    }

    /// Takes account of a completion within the window.
    #[inline]
    fn count(&self, completion: &Completion, kind: RequestKind, stats: &mut JobStats) {
        stats.completed += 1;
        let bytes = if kind == RequestKind::Flush { 0 } else { self.workload.block };
        if completion.status == 0 {
            stats.bytes += u64::from(bytes);
            if kind == RequestKind::Read && completion.len != bytes + 1 {
                stats.errors.length += 1;
            }
        } else {
            stats.errors.count(completion.status);
        }
    }

    /// Returns when there may be a completion to reap, or a reason to stop.
    #[inline]
    fn wait(&mut self, stats: &mut JobStats) -> Result<(), Error> {
        match self.workload.wait {
            Wait::Interrupt => {
                if !self.queue.blk.enable_interrupts() {
                    stats.sleeps += 1;
                    self.queue.wait()?;
                }
                self.queue.blk.disable_interrupts();
            }
            Wait::Poll => {
                for _ in 0..64 {
                    if self.queue.blk.has_used() {
                        break;
                    }
                    std::hint::spin_loop();
                }
            }
        }
        Ok(())
    }

    fn aborted(&self) -> Error {
        let held = self.queue.blk.held();
        if self.shared.gone.load(Ordering::Relaxed) {
            Error::new(
                ErrorKind::Gone,
                format!("the back end hung up with {} out", counted(held, "request")),
            )
        } else {
            Error::new(ErrorKind::Timeout, format!("{} never came back", counted(held, "request")))
        }
    }
}

/// Issues one request.
#[inline]
fn submit(
    queue: &mut GuestQueue,
    workload: &Workload,
    slot: u16,
    kind: RequestKind,
    offset: u64,
) -> Result<(), Error> {
    let (sector, len) = match kind {
        RequestKind::Flush => (0, 0),
        RequestKind::Discard | RequestKind::WriteZeroes => {
            let mut range = [0; 16];
            range[..8].copy_from_slice(&(offset / 512).to_le_bytes());
            range[8..12].copy_from_slice(&(workload.block / 512).to_le_bytes());
            if let Some(data) = queue.blk.data_mut(slot) {
                data.copy_in(0, &range)?;
            }
            (0, 16)
        }
        _ => (offset / 512, workload.block),
    };
    queue.blk.submit(slot, Request { kind, sector, len, ioprio: workload.ioprio.into() })?;
    Ok(())
}
