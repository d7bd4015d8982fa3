//! A run: the job threads, their measuring window, and what is observed from outside meanwhile.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::job::{Job, JobStats, Shared, Window};
use crate::observe::{Snapshot, Usage};
use crate::report::{BackendUse, ByKind, Latency, Report};
use crate::session::{GuestQueue, Session, Waker};
use crate::workload::{Limit, Requests, Workload};

/// How long requests that are out at the end may take to come back.
const DRAIN: Duration = Duration::from_secs(30);
/// How often progress is told.
const TICK: Duration = Duration::from_millis(250);

/// How far a run is.
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
        Error::with(
            ErrorKind::Invalid,
            format!("cannot run on CPU {}", cpus.join(",")),
            std::io::Error::from(e),
        )
    })
}

/// Runs a workload on every queue of a session, which must not have been started; stops it and returns the results.
///
/// `progress` is called about four times a second.
///
/// # Errors
/// [`ErrorKind::Gone`] if the back end hangs up, [`ErrorKind::Timeout`] if requests do not come back within 30 s of the end,
/// [`ErrorKind::Queue`] if it breaks a queue, and those of [`Workload::check`] and [`Session::start`].
pub fn run(
    session: &mut Session,
    workload: &Workload,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, Error> {
    workload.check(session.config(), session.negotiated())?;
    let (mut queues, waker) = session.start()?;
    let (stats, usage) = drive(session, &mut queues, &waker, workload, progress)?;
    session.stop()?;
    Ok(report(session, workload, &stats, usage, window(workload).0))
}

/// Watches a back end that has nothing to do: 1000 reads on every queue, `settle` of quiet for it to calm down, then what
/// its process uses during `time` of quiet. The session must not have been started; it is stopped afterwards.
///
/// # Errors
/// As [`run`]; [`ErrorKind::System`] if the process cannot be looked at.
pub fn idle(session: &mut Session, settle: Duration, time: Duration) -> Result<BackendUse, Error> {
    let workload = Workload { limit: Limit::Count(1000), block: 512, ..Workload::default() };
    let (mut queues, waker) = session.start()?;
    drive(session, &mut queues, &waker, &workload, &mut |_| ())?;
    let look = || {
        session.pid().and_then(|pid| Some((pid, Snapshot::take(pid)?))).ok_or_else(|| {
            let context = format!(
                "{}: the back end's process cannot be looked at: it is another user's, or in another namespace",
                session.socket().display()
            );
            Error::new(ErrorKind::System, context)
        })
    };
    let quiet = |time| match session.wait_hangup(time) {
        true => Err(Error::new(ErrorKind::Gone, "the back end hung up while it was idle")),
        false => Ok(()),
    };
    quiet(settle)?;
    let (pid, before) = look()?;
    quiet(time)?;
    let (_, after) = look()?;
    session.stop()?;
    Ok(BackendUse::of(pid, &after.since(&before), 0))
}

/// Runs a workload on started queues, and what the back end's process used meanwhile.
#[expect(clippy::type_complexity, reason = "two results")]
fn drive(
    session: &Session,
    queues: &mut [GuestQueue],
    waker: &Waker,
    workload: &Workload,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Vec<JobStats>, Option<(i32, Usage)>), Error> {
    let region = workload.check(session.config(), session.negotiated())?;
    let jobs = session.negotiated().queues;
    let shared = Shared::default();
    let (window, total) = window(workload);
    let clock = Clock::start();
    let (sender, ended) = channel();

    let (results, usage) = std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(queues.len());
        for (index, queue) in (0_u16..).zip(queues) {
            let requests = Requests::new(workload, region, index, jobs);
            let (shared, clock, sender) = (&shared, &clock, sender.clone());
            let cpu =
                (!workload.cpus.is_empty()).then(|| workload.cpus[usize::from(index) % workload.cpus.len()]);
            threads.push(scope.spawn(move || {
                let result = cpu
                    .map_or(Ok(()), |cpu| pin(&[cpu]))
                    .and_then(|()| Job { queue, workload, requests, shared, clock, window }.run());
                // The receiver lives until every job has ended.
                let _ = sender.send(result.is_err());
                result
            }));
        }
        drop(sender);
        let overseer =
            Overseer { session, waker, shared: &shared, clock: &clock, ended: &ended, jobs: jobs.into() };
        let usage = overseer.watch(window, total, progress);
        let results: Vec<_> = threads
            .into_iter()
            .map(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::System, "a job panicked")))
            })
            .collect();
        (results, usage)
    });
    Ok((first_error(results)?, usage))
}

/// All results, or the error that tells most: not that of a job which was merely told to leave.
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

/// The measuring window of a workload, and the time it will take.
fn window(workload: &Workload) -> (Window, Option<Duration>) {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    match workload.limit {
        Limit::Time(time) => {
            let total = workload.ramp.saturating_add(time);
            (Window { from: ns(workload.ramp), until: ns(total), count: u64::MAX }, Some(total))
        }
        Limit::Count(count) => (Window { from: 0, until: u64::MAX, count }, None),
    }
}

/// The main thread while the jobs run.
struct Overseer<'a> {
    session: &'a Session,
    waker: &'a Waker,
    shared: &'a Shared,
    clock: &'a Clock,
    ended: &'a Receiver<bool>,
    jobs: usize,
}

impl Overseer<'_> {
    /// Watches the jobs until all have ended; returns what the back end used within the window.
    fn watch(
        &self,
        window: Window,
        total: Option<Duration>,
        progress: &mut dyn FnMut(Progress),
    ) -> Option<(i32, Usage)> {
        let look = || self.session.pid().and_then(Snapshot::take);
        let (mut before, mut after) = (None, None);
        let (mut left, mut failed) = (self.jobs, false);
        let (mut last_tick, mut last_done) = (Instant::now(), 0);
        while left > 0 {
            let now = self.clock.now();
            if before.is_none() && now >= window.from {
                before = look();
            }
            if after.is_none() && now >= window.until {
                after = look();
                self.shared.stop.store(true, Ordering::Relaxed);
                // A job without completions does not look at the clock.
                self.waker.wake();
            }
            let drain = u64::try_from(DRAIN.as_nanos()).unwrap_or(u64::MAX);
            if failed || now > window.until.saturating_add(drain) {
                self.shared.abort.store(true, Ordering::Relaxed);
                self.waker.wake();
            }
            if self.session.wait_hangup(Duration::ZERO) {
                self.shared.gone.store(true, Ordering::Relaxed);
                self.shared.abort.store(true, Ordering::Relaxed);
                self.waker.wake();
            }
            if last_tick.elapsed() >= TICK {
                let done = self.shared.done.load(Ordering::Relaxed);
                #[expect(clippy::cast_precision_loss, reason = "for people")]
                let iops = (done - last_done) as f64 / last_tick.elapsed().as_secs_f64();
                progress(Progress { elapsed: Duration::from_nanos(now), total, done, iops });
                (last_tick, last_done) = (Instant::now(), done);
            }
            let next = [window.from, window.until].into_iter().find(|at| *at > now).unwrap_or(u64::MAX);
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
        let after = after.or_else(look);
        Some((self.session.pid()?, after?.since(&before?)))
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people: 53 bits are enough")]
fn report(
    session: &Session,
    workload: &Workload,
    stats: &[JobStats],
    usage: Option<(i32, Usage)>,
    window: Window,
) -> Report {
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
    }
    let ios = all.ios();
    let until = if window.until == u64::MAX { all.last } else { window.until };
    let seconds = (until.saturating_sub(window.from) as f64 / 1e9).max(1e-9);
    let mut total = all.reads.clone();
    let _ = total.add(&all.writes);
    let _ = total.add(&all.flushes);
    let per_io = |value: f64| if ios == 0 { 0.0 } else { value / ios as f64 };
    Report {
        socket: session.socket().display().to_string(),
        device: *session.config(),
        negotiated: *session.negotiated(),
        pattern: workload.pattern.to_string(),
        block: workload.block,
        depth: session.depth(),
        jobs: session.negotiated().queues,
        wait: workload.wait,
        batch: workload.batch,
        seconds,
        ios,
        iops: ios as f64 / seconds,
        mb_per_second: all.bytes as f64 / seconds / 1e6,
        latency: Latency::of(&total),
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

#[expect(clippy::cast_precision_loss, reason = "figures for people: 53 bits are enough")]
impl BackendUse {
    /// What a usage means for a number of requests.
    pub fn of(pid: i32, usage: &Usage, ios: u64) -> Self {
        // The window of the snapshots is that of the requests to within a millisecond; both are per second in effect.
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
