//! A run: the job threads, their measuring window, and the observations from outside meanwhile.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use vlane_cost::{Snapshot, Used};

use crate::error::{Error, ErrorKind};
use crate::job::Job;
use crate::lanes::{Effort, Lanes, Manner, Shared, Source};
use crate::rate::{Books, OpenStats, Schedule};
use crate::report::{BackendUse, ByKind, OpenReport, Report};
use crate::session::{GuestQueue, Session, Waker};
use crate::window::{Counts, Window};
use crate::workload::{Limit, Requests, Workload};

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
            return ErrorKind::Invalid.fail(format!("there is no CPU {cpu}"));
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
    let plan = Plan::of(workload.limit, workload.ramp);
    let driven = load(&mut session, workload, &plan, progress)?;
    session.stop()?;
    let window = Window { until: driven.until.min(plan.window.until), ..plan.window };
    Ok(report(&session, workload, &driven, window))
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
    let plan = Plan::of(workload.limit, Duration::ZERO);
    load(&mut session, &workload, &plan, &mut |_| ControlFlow::Continue(()))?;
    let look = || {
        session.pid().and_then(|pid| Some((pid, Snapshot::of(pid)?))).ok_or_else(|| {
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
                return ErrorKind::Gone.fail("the back end hung up while it was idle");
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

/// Starts a session's queues and runs a workload on them.
fn load<'a>(
    session: &mut Session,
    workload: &'a Workload,
    plan: &Plan,
    progress: &mut OnProgress<'_>,
) -> Result<Driven<Job<'a>>, Error> {
    let region = workload.check(session.config(), session.negotiated())?;
    let (mut queues, waker) = session.start()?;
    let jobs = session.negotiated().queues - workload.idle;
    let Workload { seed, wait, batch, ref cpus, .. } = *workload;
    let mut sources = Vec::new();
    for (index, queue) in (0..jobs).zip(queues.chunks_mut(1)) {
        for slot in 0..queue[0].blk.depth() {
            // Data that does not compress.
            if let Some(data) = queue[0].blk.data_mut(slot) {
                data.fill_pattern(seed ^ u64::from(slot));
            }
        }
        let depth = queue[0].blk.depth();
        let books = |rate| Books::new(Schedule::new(rate, index, jobs, seed), plan.window, depth);
        let job = Job {
            workload,
            requests: Requests::new(workload, region, index, jobs),
            left: plan.window.count,
            books: workload.rate.map(books),
            counts: Counts::default(),
        };
        sources.push((queue, job));
    }
    let manner = Manner { wait, batch, cpus, ..Manner::usual(plan.window) };
    drive(session, &waker, plan, manner, sources, progress).whole()
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

/// The results of a run's threads.
pub(crate) struct Driven<S> {
    /// The sources with their counts, and the driver's own effort.
    pub(crate) jobs: Vec<(S, Effort)>,
    /// The most informative error of all threads.
    pub(crate) failure: Option<Error>,
    /// The use of resources by the back end's process within the window.
    usage: Option<(i32, Used)>,
    /// The time at which the jobs were asked to end, in ns of the run's clock; the maximum if they
    /// ended by themselves.
    pub(crate) until: u64,
}

impl<S> Driven<S> {
    /// The results, if no thread failed.
    pub(crate) fn whole(self) -> Result<Self, Error> {
        match self.failure {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }

    /// The back end's use, for a number of requests.
    pub(crate) fn backend(&self, ios: u64) -> Option<BackendUse> {
        self.usage.as_ref().map(|(pid, usage)| BackendUse::of(*pid, usage, ios))
    }
}

/// Runs sources on their queues, each in a thread, and watches the back end meanwhile.
pub(crate) fn drive<S: Source + Send>(
    session: &mut Session,
    waker: &Waker,
    plan: &Plan,
    manner: Manner<'_>,
    sources: Vec<(&mut [GuestQueue], S)>,
    progress: &mut OnProgress<'_>,
) -> Driven<S> {
    let shared = Shared::new();
    let (sender, ended) = channel();
    std::thread::scope(|scope| {
        let left = sources.len();
        let mut threads = Vec::with_capacity(left);
        for (index, (queues, mut source)) in sources.into_iter().enumerate() {
            let (shared, sender) = (&shared, sender.clone());
            threads.push(scope.spawn(move || {
                let cpu = manner.cpus.get(index % manner.cpus.len().max(1));
                let result = cpu
                    .map_or(Ok(()), |cpu| pin(&[*cpu]))
                    .and_then(|()| Lanes::new(queues, manner, shared)?.run(&mut source));
                // The receiver lives until every job has ended.
                let _ = sender.send(result.is_err());
                (source, result)
            }));
        }
        drop(sender);
        let mut overseer = Overseer { session, waker, shared: &shared, ended: &ended, left };
        let (usage, until) = overseer.watch(plan, progress);
        let mut driven = Driven { jobs: Vec::new(), failure: None, usage, until };
        for thread in threads {
            let (effort, error) = match thread.join() {
                Ok((source, Ok(effort))) => (Some((source, effort)), None),
                Ok((source, Err(error))) => (Some((source, Effort::default())), Some(error)),
                Err(_) => (None, Some(Error::new(ErrorKind::System, "a job panicked"))),
            };
            driven.jobs.extend(effort);
            // The error of a job that was merely asked to leave is less useful than another's.
            let asked = |e: &Error| matches!(e.kind(), ErrorKind::Timeout | ErrorKind::Gone);
            if driven.failure.as_ref().is_none_or(asked) {
                driven.failure = error.or(driven.failure);
            }
        }
        driven
    })
}

/// The main thread while the jobs run.
struct Overseer<'a> {
    session: &'a mut Session,
    waker: &'a Waker,
    shared: &'a Shared,
    ended: &'a Receiver<bool>,
    /// Jobs that run.
    left: usize,
}

impl Overseer<'_> {
    /// Watches the jobs until all have ended; returns what the back end used within the window, and
    /// when that ended.
    fn watch(&mut self, plan: &Plan, progress: &mut OnProgress<'_>) -> (Option<(i32, Used)>, u64) {
        let look = |session: &Session| session.pid().and_then(Snapshot::of);
        let Window { from, mut until, .. } = plan.window;
        let (mut before, mut after) = (None, None);
        let (mut failed, mut told) = (false, false);
        let (mut last_tick, mut last_done) = (Instant::now(), 0);
        while self.left > 0 {
            let now = self.shared.now();
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
                    self.left -= 1;
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
    driven: &Driven<Job<'_>>,
    window: Window,
) -> Report {
    let (mut all, mut effort) = (Counts::default(), Effort::default());
    let mut open: Option<OpenStats> = None;
    for (job, of_job) in &driven.jobs {
        all += &job.counts;
        effort.kicks += of_job.kicks;
        effort.sleeps += of_job.sleeps;
        effort.cpu += of_job.cpu;
        if let Some(books) = &job.books {
            open.get_or_insert_default().add(&books.stats);
        }
    }
    let ios = all.completed;
    let until = if window.until == u64::MAX { all.last } else { window.until };
    let seconds = (until.saturating_sub(window.from) as f64 / 1e9).max(1e-9);
    let jobs = session.negotiated().queues - workload.idle;
    let slots = u64::from(session.depth()) * u64::from(jobs);
    let mut writes = all.writes.clone();
    writes += &all.discards;
    Report {
        pattern: workload.pattern.to_string(),
        block: workload.block,
        jobs,
        wait: workload.wait,
        batch: workload.batch,
        open: open.zip(workload.rate).map(|(open, rate)| OpenReport::of(&open, rate, ios, slots)),
        writes: ByKind::of(&writes, seconds),
        ..Report::of(session, &all, seconds, &effort, driven.backend(ios))
    }
}

impl BackendUse {
    /// The figures of a usage for a number of requests.
    pub fn of(pid: i32, usage: &Used, ios: u64) -> Self {
        // The window of the snapshots is that of the requests to within a millisecond; both are per
        // second in effect.
        let per_io = |value: f64| if ios == 0 { 0.0 } else { value / ios as f64 };
        let cpu_seconds = usage.cpu().as_secs_f64();
        Self {
            pid,
            cpu_seconds,
            cpus: cpu_seconds / usage.wall.as_secs_f64().max(1e-9),
            cpu_us_per_io: per_io(cpu_seconds * 1e6),
            switches: usage.switches(),
            switches_per_io: per_io(usage.switches() as f64),
            threads: usage.roles.iter().map(|role| role.threads).sum(),
        }
    }
}
