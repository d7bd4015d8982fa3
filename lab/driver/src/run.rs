//! A run: the job threads, their measuring window, and the observations from outside meanwhile.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::job::{Job, JobStats, Shared};
use crate::observe::{Snapshot, Usage};
use crate::rate::{OpenStats, Schedule};
use crate::report::{BackendUse, Buckets, ByKind, Latency, OpenReport, Report};
use crate::session::{GuestQueue, Session, Waker};
use crate::window::Window;
use crate::workload::{Limit, Region, Requests, Workload};

/// The time that requests that are out at the end may take to come back: 30 s.
const DRAIN_NS: u64 = 30_000_000_000;
/// The interval of progress reports.
const TICK: Duration = Duration::from_millis(250);

/// A run's progress.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Time since the start.
    pub elapsed: Duration,
    /// Time that it will take in all, if that is known.
    pub total: Option<Duration>,
    /// Requests completed.
    pub done: u64,
    /// Requests per second since the last time.
    pub iops: f64,
}

/// The function that a run calls about four times a second; `Break` ends it early, as if its time
/// were over.
pub type OnProgress<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// Binds the calling thread, and those that it will start, to a set of CPUs.
///
/// # Errors
/// [`ErrorKind::Invalid`] if there is no such CPU, or none of them may be used.
pub fn pin(cpus: &[usize]) -> Result<(), Error> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if *cpu >= CpuSet::MAX_CPU {
            return Err(Error::new(ErrorKind::Invalid, format!("there is no CPU {cpu}")));
        }
        set.set(*cpu);
    }
    sched_setaffinity(None, &set).map_err(|e| {
        let cpus: Vec<_> = cpus.iter().map(ToString::to_string).collect();
        Error::caused_by(
            ErrorKind::Invalid,
            format!("cannot run on CPU {}", cpus.join(",")),
            std::io::Error::from(e),
        )
    })
}

/// Runs a workload on every queue of a session, which must not have been started; ends the session
/// and returns the results.
///
/// `progress` is called about four times a second.
///
/// # Errors
/// [`ErrorKind::Gone`] if the back end hangs up, and [`ErrorKind::Timeout`] if requests do not come
/// back within 30 s of the end. [`ErrorKind::Queue`] if it breaks a queue, and the errors of
/// [`Workload::check`] and [`Session::start`].
pub fn run(
    mut session: Session,
    workload: &Workload,
    progress: &mut OnProgress<'_>,
) -> Result<Report, Error> {
    let region = workload.check(session.config(), session.negotiated())?;
    let (mut queues, waker) = session.start()?;
    let plan = Plan::of(workload.limit, workload.ramp);
    let driven = load(&mut session, &mut queues, &waker, workload, region, &plan, progress);
    let stats = first_error(driven.results)?;
    session.stop()?;
    let window = Window { until: driven.until.min(plan.window.until), ..plan.window };
    Ok(report(&session, workload, &stats, driven.usage, window))
}

/// Watches an idle back end. Makes 1000 reads on every queue, waits for `settle` until it has
/// calmed down, then measures its process's use during `time` of quiet. The session must not have
/// been started; it is ended afterwards.
///
/// `progress` is called about four times a second, and may end it early: the time for which it was
/// watched is returned, too.
///
/// # Errors
/// As [`run`]; [`ErrorKind::System`] if the process cannot be looked at.
pub fn idle(
    mut session: Session,
    settle: Duration,
    time: Duration,
    progress: &mut OnProgress<'_>,
) -> Result<(BackendUse, Duration), Error> {
    let workload = Workload { limit: Limit::Count(1000), block: 512, ..Workload::default() };
    let region = workload.check(session.config(), session.negotiated())?;
    let (mut queues, waker) = session.start()?;
    let plan = Plan::of(workload.limit, Duration::ZERO);
    let going_on: &mut OnProgress<'_> = &mut |_| ControlFlow::Continue(());
    first_error(
        load(&mut session, &mut queues, &waker, &workload, region, &plan, going_on).results,
    )?;
    let look = || {
        session.pid().and_then(|pid| Some((pid, Snapshot::take(pid)?))).ok_or_else(|| {
            let context = format!(
                "{}: the back end's process cannot be looked at: it is another user's, or in \
                 another namespace",
                session.socket().display()
            );
            Error::new(ErrorKind::System, context)
        })
    };
    let begin = Instant::now();
    let total = Some(settle.saturating_add(time));
    // Returns the quiet time, and true if the run may continue.
    let mut quiet = |time: Duration| -> Result<(Duration, bool), Error> {
        let from = Instant::now();
        loop {
            let left = time.saturating_sub(from.elapsed());
            if left.is_zero() {
                return Ok((time, true));
            }
            if session.wait_hangup(left.min(TICK)) {
                return Err(Error::new(ErrorKind::Gone, "the back end hung up while it was idle"));
            }
            let state = Progress { elapsed: begin.elapsed(), total, done: 0, iops: 0.0 };
            if progress(state).is_break() {
                return Ok((from.elapsed().min(time), false));
            }
        }
    };
    let (_, go_on) = quiet(settle)?;
    let (pid, before) = look()?;
    let (watched, _) = if go_on { quiet(time)? } else { (Duration::ZERO, false) };
    let (_, after) = look()?;
    session.stop()?;
    Ok((BackendUse::of(pid, &after.since(&before), 0), watched))
}

/// Runs a workload on started queues.
fn load(
    session: &mut Session,
    queues: &mut [GuestQueue],
    waker: &Waker,
    workload: &Workload,
    region: Region,
    plan: &Plan,
    progress: &mut OnProgress<'_>,
) -> Driven<JobStats> {
    let jobs = session.negotiated().queues - workload.idle;
    let window = plan.window;
    let bodies = (0..jobs).zip(queues).map(|(index, queue)| {
        let requests = Requests::new(workload, region, index, jobs);
        let schedule = workload.rate.map(|rate| Schedule::new(rate, index, jobs, workload.seed));
        let body: Body<'_, JobStats> = Box::new(move |shared, clock| {
            Job { queue, workload, requests, shared, clock, window, schedule }.run()
        });
        body
    });
    drive(session, waker, &workload.cpus, plan, bodies.collect(), progress)
}

/// The times of a run's measurement, and its length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) window: Window,
    total: Option<Duration>,
}

impl Plan {
    /// Measures until the jobs end by themselves; `total` is the expected time.
    pub(crate) fn open_end(total: Option<Duration>) -> Self {
        Self { window: Window { from: 0, until: u64::MAX, count: u64::MAX }, total }
    }

    pub(crate) fn of(limit: Limit, ramp: Duration) -> Self {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        match limit {
            Limit::Time(time) => {
                let total = ramp.saturating_add(time);
                Self {
                    window: Window { from: ns(ramp), until: ns(total), count: u64::MAX },
                    total: Some(total),
                }
            }
            Limit::Count(count) => {
                Self { window: Window { from: 0, until: u64::MAX, count }, total: None }
            }
        }
    }
}

/// One job's work.
pub(crate) type Body<'a, T> = Box<dyn FnOnce(&Shared, &Clock) -> Result<T, Error> + Send + 'a>;

/// The jobs' results.
pub(crate) struct Driven<T> {
    pub(crate) results: Vec<Result<T, Error>>,
    /// The use of resources by the back end's process within the window.
    pub(crate) usage: Option<(i32, Usage)>,
    /// The time at which the jobs were asked to end, in ns of the run's clock; the maximum if they
    /// ended by themselves.
    pub(crate) until: u64,
}

/// Runs jobs, each in a thread, and watches the back end meanwhile.
pub(crate) fn drive<T: Send>(
    session: &mut Session,
    waker: &Waker,
    cpus: &[usize],
    plan: &Plan,
    bodies: Vec<Body<'_, T>>,
    progress: &mut OnProgress<'_>,
) -> Driven<T> {
    let shared = Shared::default();
    let clock = Clock::start();
    let (sender, ended) = channel();
    std::thread::scope(|scope| {
        let jobs = bodies.len();
        let mut threads = Vec::with_capacity(jobs);
        for (index, body) in bodies.into_iter().enumerate() {
            let (shared, clock, sender) = (&shared, &clock, sender.clone());
            let cpu = (!cpus.is_empty()).then(|| cpus[index % cpus.len()]);
            threads.push(scope.spawn(move || {
                let result =
                    cpu.map_or(Ok(()), |cpu| pin(&[cpu])).and_then(|()| body(shared, clock));
                // The receiver lives until every job has ended.
                let _ = sender.send(result.is_err());
                result
            }));
        }
        drop(sender);
        let mut overseer =
            Overseer { session, waker, shared: &shared, clock: &clock, ended: &ended, jobs };
        let (usage, until) = overseer.watch(plan, progress);
        let results = threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(Error::new(ErrorKind::System, "a job panicked")))
            })
            .collect();
        Driven { results, usage, until }
    })
}

/// All results, or the most informative error: not that of a job which was merely asked to leave.
fn first_error(results: Vec<Result<JobStats, Error>>) -> Result<Vec<JobStats>, Error> {
    let mut worst: Option<Error> = None;
    let mut stats = Vec::with_capacity(results.len());
    for result in results {
        match result {
            Ok(one) => stats.push(one),
            Err(error) if worst.as_ref().is_none_or(|w| w.kind() == ErrorKind::Timeout) => {
                worst = Some(error)
            }
            Err(_) => {}
        }
    }
    worst.map_or(Ok(stats), Err)
}

/// The main thread while the jobs run.
struct Overseer<'a> {
    session: &'a mut Session,
    waker: &'a Waker,
    shared: &'a Shared,
    clock: &'a Clock,
    ended: &'a Receiver<bool>,
    jobs: usize,
}

impl Overseer<'_> {
    /// Watches the jobs until all have ended; returns what the back end used within the window, and
    /// when that ended.
    fn watch(&mut self, plan: &Plan, progress: &mut OnProgress<'_>) -> (Option<(i32, Usage)>, u64) {
        let look = |session: &Session| session.pid().and_then(Snapshot::take);
        let Window { from, mut until, .. } = plan.window;
        let (mut before, mut after) = (None, None);
        let (mut left, mut failed, mut told) = (self.jobs, false, false);
        let (mut last_tick, mut last_done) = (Instant::now(), 0);
        while left > 0 {
            let now = self.clock.now();
            if before.is_none() && now >= from {
                before = look(self.session);
            }
            if !told && now >= until {
                told = true;
                after = look(self.session);
                self.shared.stop.store(true, Ordering::Relaxed);
                // A job without completions does not look at the clock.
                self.waker.wake();
            }
            // Another process's use is not reported.
            if self.session.wait_hangup(Duration::ZERO) && self.session.reconnect().is_err() {
                self.shared.gone.store(true, Ordering::Relaxed);
                failed = true;
            }
            if failed || now > until.saturating_add(DRAIN_NS) {
                self.shared.abort.store(true, Ordering::Relaxed);
                self.waker.wake();
            }
            if last_tick.elapsed() >= TICK {
                let done = self.shared.done.load(Ordering::Relaxed);
                let iops = (done - last_done) as f64 / last_tick.elapsed().as_secs_f64();
                let state =
                    Progress { elapsed: Duration::from_nanos(now), total: plan.total, done, iops };
                if progress(state).is_break() {
                    until = until.min(now);
                }
                (last_tick, last_done) = (Instant::now(), done);
            }
            let next = [from, until].into_iter().find(|at| *at > now).unwrap_or(u64::MAX);
            let sleep = Duration::from_nanos(next - now).min(Duration::from_millis(50));
            match self.ended.recv_timeout(sleep) {
                Ok(error) => {
                    left -= 1;
                    failed |= error;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let used = || {
            if self.session.reconnects() > 0 {
                return None;
            }
            let after = after.or_else(|| look(self.session))?;
            Some((self.session.pid()?, after.since(&before?)))
        };
        (used(), until)
    }
}

fn report(
    session: &Session,
    workload: &Workload,
    stats: &[JobStats],
    usage: Option<(i32, Usage)>,
    window: Window,
) -> Report {
    let all = sum_of(stats);
    let ios = all.completed;
    let until = if window.until == u64::MAX { all.last } else { window.until };
    let seconds = (until.saturating_sub(window.from) as f64 / 1e9).max(1e-9);
    let mut total = all.reads.clone();
    let _ = total.add(&all.writes);
    let _ = total.add(&all.flushes);
    let per_io = |value: f64| if ios == 0 { 0.0 } else { value / ios as f64 };
    let jobs = session.negotiated().queues - workload.idle;
    let slots = u64::from(session.depth()) * u64::from(jobs);
    Report {
        socket: session.socket().display().to_string(),
        device: *session.config(),
        negotiated: *session.negotiated(),
        pattern: workload.pattern.to_string(),
        block: workload.block,
        depth: session.depth(),
        jobs,
        wait: workload.wait,
        batch: workload.batch,
        seconds,
        ios,
        iops: ios as f64 / seconds,
        mb_per_second: all.bytes as f64 / seconds / 1e6,
        latency: Latency::of(&total),
        histogram: Buckets::of(&total),
        open: all
            .open
            .zip(workload.rate)
            .map(|(open, rate)| OpenReport::of(&open, rate, ios, slots)),
        reads: ByKind::of(&all.reads, seconds),
        writes: ByKind::of(&all.writes, seconds),
        flushes: ByKind::of(&all.flushes, seconds),
        errors: all.errors,
        backend: usage.map(|(pid, usage)| BackendUse::of(pid, &usage, ios)),
        driver_cpu_us_per_io: per_io(all.cpu.as_secs_f64() * 1e6),
        kicks_per_io: per_io(all.kicks as f64),
        sleeps_per_io: per_io(all.sleeps as f64),
    }
}

/// The sum of all jobs' values.
fn sum_of(stats: &[JobStats]) -> JobStats {
    let mut all = match JobStats::new() {
        Ok(all) => all,
        Err(_) => unreachable!("the same histograms were made before"),
    };
    for one in stats {
        // They have the same bounds, so they can be added.
        let _ = all.reads.add(&one.reads);
        let _ = all.writes.add(&one.writes);
        let _ = all.flushes.add(&one.flushes);
        all.bytes += one.bytes;
        all.errors.add(&one.errors);
        all.kicks += one.kicks;
        all.sleeps += one.sleeps;
        all.cpu += one.cpu;
        all.last = all.last.max(one.last);
        all.completed += one.completed;
        if let Some(open) = &one.open {
            match &mut all.open {
                Some(sum) => sum.add(open),
                None => {
                    let mut sum = match OpenStats::new() {
                        Ok(sum) => sum,
                        Err(_) => unreachable!("the same histograms were made before"),
                    };
                    sum.add(open);
                    all.open = Some(sum);
                }
            }
        }
    }
    all
}

impl BackendUse {
    /// The figures of a usage for a number of requests.
    pub fn of(pid: i32, usage: &Usage, ios: u64) -> Self {
        // The window of the snapshots is that of the requests to within a millisecond; both are per
        // second in effect.
        let per_io = |value: f64| if ios == 0 { 0.0 } else { value / ios as f64 };
        let cpu_seconds = usage.cpu.as_secs_f64();
        Self {
            pid,
            cpu_seconds,
            cpus: cpu_seconds / usage.wall.as_secs_f64().max(1e-9),
            cpu_us_per_io: per_io(cpu_seconds * 1e6),
            switches: usage.switches,
            switches_per_io: per_io(usage.switches as f64),
            threads: usage.threads,
        }
    }
}
