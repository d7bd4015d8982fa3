//! The loop of all drivers: one thread that keeps some queues busy with the requests of a
//! [`Source`].
//!
//! The clock is read once per batch of completions: that moment ends the requests of the batch and
//! begins those issued in their place. A latency therefore includes the driver's own time between
//! the two (some tens of ns per request of the batch). At depth 1 with interrupts it also includes
//! the time from the wake-up to the first look at the ring. Its resolution is that of `Instant`
//! (about 1 ns, 25 ns to read). It is kept in a histogram with three significant digits.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use vlane_error::counted;

use crate::error::{Error, ErrorKind};
use crate::ring::{BlkQueue, Completion, Request, RequestKind};
use crate::session::{Calls, GuestQueue};
use crate::window::Window;
use crate::workload::Wait;

/// Closer to a due time than this a driver does not sleep: waking up takes about as long.
pub(crate) const SPIN_NS: u64 = 50_000;

/// State shared by the threads of a run, and their clock.
#[derive(Debug)]
pub(crate) struct Shared {
    start: Instant,
    /// Leave at once; requests that are out stay out.
    pub(crate) abort: AtomicBool,
    /// The back end is gone.
    pub(crate) gone: AtomicBool,
    /// Begin no more requests.
    pub(crate) stop: AtomicBool,
    /// Requests completed so far, by all jobs; for the progress display.
    pub(crate) done: AtomicU64,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            abort: AtomicBool::default(),
            gone: AtomicBool::default(),
            stop: AtomicBool::default(),
            done: AtomicU64::default(),
        }
    }

    /// The run's clock: nanoseconds since its start (for 584 years).
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "584 years")]
    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// A moment of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// In ns of the run's clock.
    pub(crate) now: u64,
    /// The window has begun.
    pub(crate) measuring: bool,
    /// The window is over: no more requests.
    pub(crate) ended: bool,
}

impl Moment {
    /// True within the window.
    pub(crate) fn counts(&self) -> bool {
        self.measuring && !self.ended
    }
}

/// The answer of a source that is asked for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// One, now.
    Now,
    /// One at this time.
    At(u64),
    /// None before a completion. If no request is out, there are no more.
    Later,
}

/// A request that is out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out<T> {
    /// The time of its submission.
    pub(crate) since: u64,
    /// Sector and length are those of its place.
    pub(crate) request: Request,
    /// Knowledge of the source about it.
    pub(crate) tag: T,
}

impl<T> Out<T> {
    /// This request goes out now.
    #[inline]
    pub(crate) fn send(&mut self, request: Request, tag: T, at: &Moment) -> Next {
        *self = Self { since: at.now, request, tag };
        Next::Now
    }
}

/// A source of requests, which also takes account of their completions.
pub(crate) trait Source {
    /// Knowledge of the source about a request that is out.
    type Tag: Copy + Default;

    /// Makes the next request of a lane, for a free slot. Its data may be written.
    fn next(
        &mut self,
        lane: usize,
        queue: &mut BlkQueue,
        slot: u16,
        at: &Moment,
        out: &mut Out<Self::Tag>,
    ) -> Result<Next, Error>;

    /// All of a lane's slots are taken.
    fn full(&mut self, _lane: usize, _at: &Moment) {}

    /// A request has come back.
    fn done(
        &mut self,
        lane: usize,
        queue: &BlkQueue,
        out: &Out<Self::Tag>,
        completion: &Completion,
        at: &Moment,
    ) -> Result<(), Error>;

    /// The window is over; or, a last time, all requests have come back.
    fn end(&mut self, _now: u64) {}
}

/// A thread's way to drive its queues.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner<'a> {
    pub(crate) window: Window,
    pub(crate) wait: Wait,
    /// Most requests made visible at once; 0 is all.
    pub(crate) batch: u16,
    /// Closer to a due time than this it does not sleep.
    pub(crate) spin_ns: u64,
    /// Thread i runs on the CPU at place i (modulo the length); empty does not pin.
    pub(crate) cpus: &'a [usize],
}

impl Manner<'_> {
    /// It waits for interrupts, on any CPU.
    pub(crate) fn usual(window: Window) -> Self {
        Self { window, wait: Wait::Interrupt, batch: 0, spin_ns: SPIN_NS, cpus: &[] }
    }
}

/// The driver's own effort within the window.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Effort {
    pub(crate) kicks: u64,
    pub(crate) sleeps: u64,
    pub(crate) cpu: Duration,
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

/// A queue, and its slots.
struct Lane<'a, T> {
    queue: &'a mut GuestQueue,
    idle: Vec<u16>,
    /// By slot, its last request.
    out: Vec<Out<T>>,
}

/// A thread's queues.
pub(crate) struct Lanes<'a, T> {
    lanes: Vec<Lane<'a, T>>,
    calls: Calls,
    shared: &'a Shared,
    manner: Manner<'a>,
    at: Moment,
    effort: Effort,
    cpu_from: Duration,
}

impl<'a, T: Copy + Default> Lanes<'a, T> {
    pub(crate) fn new(
        queues: &'a mut [GuestQueue],
        manner: Manner<'a>,
        shared: &'a Shared,
    ) -> Result<Self, Error> {
        // Timeouts end when they are over, instead of up to 50 us later, as Linux allows itself. If
        // that is refused, the reported lateness shows it.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let calls = Calls::of(queues)?;
        let request = Request { kind: RequestKind::Read, sector: 0, len: 0, ioprio: 0 };
        let none = Out { since: 0, request, tag: T::default() };
        let lanes = queues.iter_mut().map(|queue| {
            queue.blk.disable_interrupts();
            let depth = queue.blk.depth();
            Lane { queue, idle: (0..depth).rev().collect(), out: vec![none; depth.into()] }
        });
        Ok(Self {
            lanes: lanes.collect(),
            calls,
            shared,
            at: Moment { now: shared.now(), measuring: manner.window.from == 0, ended: false },
            manner,
            effort: Effort::default(),
            cpu_from: thread_cpu(),
        })
    }

    /// Drives the queues until the source has no more requests and all have come back.
    pub(crate) fn run(mut self, source: &mut impl Source<Tag = T>) -> Result<Effort, Error> {
        let mut done = Vec::new();
        loop {
            let (mut due, mut moved) = (None, false);
            for index in 0..self.lanes.len() {
                self.lanes[index].queue.blk.reap(&mut done)?;
                if !done.is_empty() {
                    moved = true;
                    self.at.now = self.shared.now();
                    self.shared.done.fetch_add(done.len() as u64, Ordering::Relaxed);
                }
                self.look(source);
                let at = self.at;
                let Lane { queue, idle, out } = &mut self.lanes[index];
                for completion in done.drain(..) {
                    idle.push(completion.slot);
                    let out = &out[usize::from(completion.slot)];
                    source.done(index, &queue.blk, out, &completion, &at)?;
                }
                moved |= self.fill(index, source, &mut due)?;
            }
            if moved {
                continue;
            }
            let held = self.lanes.iter().map(|lane| u32::from(lane.queue.blk.held())).sum();
            if held == 0 && due.is_none() {
                break;
            }
            if self.shared.abort.load(Ordering::Relaxed) {
                return Err(aborted(held, self.shared.gone.load(Ordering::Relaxed)));
            }
            self.wait(due)?;
            if due.is_some() {
                self.at.now = self.shared.now();
            }
        }
        if !self.at.ended {
            self.effort.cpu = thread_cpu().saturating_sub(self.cpu_from);
        }
        source.end(self.at.now);
        // As an idle guest has it.
        self.lanes.iter_mut().for_each(|lane| {
            lane.queue.blk.enable_interrupts();
        });
        Ok(self.effort)
    }

    /// Looks whether the window has begun, or is over.
    #[inline]
    fn look(&mut self, source: &mut impl Source) {
        let Window { from, until, .. } = self.manner.window;
        if !self.at.measuring && self.at.now >= from {
            self.at.measuring = true;
            self.cpu_from = thread_cpu();
            self.effort = Effort::default();
        }
        if !self.at.ended && (self.at.now >= until || self.shared.stop.load(Ordering::Relaxed)) {
            self.at.ended = true;
            self.effort.cpu = thread_cpu().saturating_sub(self.cpu_from);
            source.end(self.at.now);
        }
    }

    /// Submits as many requests as a lane can take. Returns true if that was any. `due` becomes the
    /// time of the next request if only the time holds it back.
    #[inline]
    fn fill(
        &mut self,
        index: usize,
        source: &mut impl Source<Tag = T>,
        due: &mut Option<u64>,
    ) -> Result<bool, Error> {
        let Lane { queue, idle, out } = &mut self.lanes[index];
        let (mut unpublished, mut any, at) = (0, false, self.at);
        while let Some(slot) = idle.pop() {
            let out = &mut out[usize::from(slot)];
            let next = source.next(index, &mut queue.blk, slot, &at, out)?;
            if next != Next::Now {
                idle.push(slot);
                if let Next::At(time) = next {
                    *due = Some(due.map_or(time, |due| due.min(time)));
                }
                break;
            }
            submit(&mut queue.blk, slot, &out.request)?;
            any = true;
            unpublished += 1;
            if unpublished == self.manner.batch {
                unpublished = 0;
                publish(queue, &mut self.effort)?;
            }
        }
        if idle.is_empty() {
            source.full(index, &at);
        }
        if unpublished > 0 {
            publish(queue, &mut self.effort)?;
        }
        Ok(any)
    }

    /// Returns when there may be a completion to take back, or a request to submit, or a reason to
    /// stop.
    fn wait(&mut self, due: Option<u64>) -> Result<(), Error> {
        let interrupts = self.manner.wait == Wait::Interrupt;
        let mut ready = false;
        if interrupts {
            for lane in &mut self.lanes {
                // Every queue's interrupts have to be on, independently of the others.
                ready |= lane.queue.blk.enable_interrupts();
            }
        }
        if !ready {
            self.rest(interrupts, due)?;
        }
        if interrupts {
            self.lanes.iter_mut().for_each(|lane| lane.queue.blk.disable_interrupts());
        }
        Ok(())
    }

    /// Sleeps if that is allowed. A wake-up takes a while, so the last part of the time is spent
    /// awake: with interrupts on, as an idle guest has them.
    fn rest(&mut self, may_sleep: bool, due: Option<u64>) -> Result<(), Error> {
        let (shared, spin_ns) = (self.shared, self.manner.spin_ns);
        let left = || due.map(|due| due.saturating_sub(shared.now()));
        let sleep = left();
        if may_sleep && sleep.is_none_or(|left| left > spin_ns) {
            self.effort.sleeps += 1;
            self.calls.wait(sleep.map(|left| Duration::from_nanos(left - spin_ns)))?;
        }
        for turn in 0.. {
            let left = left();
            let near = left.is_some_and(|left| left < spin_ns);
            let used = self.lanes.iter().any(|lane| lane.queue.blk.has_used());
            if used || left == Some(0) || !near && turn == 64 {
                break;
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

#[inline]
fn publish(queue: &mut GuestQueue, effort: &mut Effort) -> Result<(), Error> {
    if queue.blk.publish() {
        effort.kicks += 1;
        queue.kick()?;
    }
    Ok(())
}

/// Puts a request into a slot.
#[inline]
fn submit(queue: &mut BlkQueue, slot: u16, request: &Request) -> Result<(), Error> {
    let Request { kind, sector, len, .. } = *request;
    if !matches!(kind, RequestKind::Discard | RequestKind::WriteZeroes) {
        return Ok(queue.submit(slot, *request)?);
    }
    let mut range = [0; 16];
    range[..8].copy_from_slice(&sector.to_le_bytes());
    range[8..12].copy_from_slice(&(len / 512).to_le_bytes());
    if let Some(data) = queue.data_mut(slot) {
        data.copy_in(0, &range)?;
    }
    Ok(queue.submit(slot, Request { sector: 0, len: 16, ..*request })?)
}

/// The error of a run that ends with requests out.
fn aborted(held: u32, gone: bool) -> Error {
    let held = counted(held, "request");
    match gone {
        true => Error::new(ErrorKind::Gone, format!("the back end hung up with {held} out")),
        false => Error::new(ErrorKind::Timeout, format!("{held} never came back")),
    }
}
