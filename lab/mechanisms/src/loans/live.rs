//! The live scheduler, measured natively: threads that compute all the time stand for guests, one
//! of them also does I/O.
//!
//! Guest 1 does one synchronous I/O after the other. An event comes some time after the last one
//! was served. It is taken when the guest next runs, and costs it some CPU time. The response is an
//! event's wait; the share is each guest's part of the CPUs. The scheduler is the real one, and
//! gets events as from a disk's back end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};
use vlane_error::counted;

use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};
use vlane_policy::loan::{Claim, Policy, VcpuId};
use vlane_sched::live::Daemon;
use vlane_sched::live::source::{Mailbox, Mark, Poster};
use vlane_sched::live::state::DaemonState;
use vlane_sched::realtime::guard::GuardCommand;
use vlane_sched::realtime::{RealTime, Settings, monotonic_ns, priority};
use vlane_sched::sys::{self, Attr};
use vlane_sched::thread::Thread;
use vlane_sched::{VcpuThreads, Vehicle};

use super::figures::{LIVE, Seen, ns};
use super::study::Study;
use super::{Options, sched};
use vlane_report::Report;
use vlane_testbed::{Call, Error, ErrorKind, Interrupt, Progress, Result, pause, settle, usage};

/// Token of the guest with I/O at the scheduler.
const TOKEN: u64 = 1;
/// Time before each measurement.
const RAMP: Duration = Duration::from_secs(1);
/// How often a thread looks for the beginning.
const LOOK: Duration = Duration::from_millis(2);

/// The load of one measurement.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// Weight of each guest, the one with I/O first.
    pub(crate) weights: Vec<u32>,
    /// Threads that compute, and are not the scheduler's.
    pub(crate) strangers: usize,
    /// Time from an event that was served to the next one; it varies by half.
    pub(crate) gap: Duration,
    /// CPU time that an event costs the guest.
    pub(crate) work: Duration,
    /// Time that does not count.
    pub(crate) ramp: Duration,
    /// Time of the measurement.
    pub(crate) time: Duration,
    /// Seed of the times between events.
    pub(crate) seed: u64,
    /// Prints `loaded` when the threads are the scheduler's.
    pub(crate) is_told: bool,
}

/// State that the threads of one measurement share.
#[derive(Debug, Default)]
struct Shared {
    /// No guest computes before.
    go: AtomicBool,
    stop: AtomicBool,
    /// Counts responses while it is set.
    counting: AtomicBool,
    /// When the event came that has not been taken yet; 0: none.
    pending: AtomicU64,
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::caused_by(ErrorKind::Io, what, error)
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// A guest that computes; with I/O if it has a device.
fn guest(shared: &Shared, work_ns: u64, io: Option<(Sender<()>, Option<Poster>)>) -> Vec<u64> {
    let mut responses = Vec::new();
    let is_over = || shared.stop.load(Ordering::Relaxed);
    while !shared.go.load(Ordering::Relaxed) && !is_over() {
        std::thread::sleep(LOOK);
    }
    let mut work = 0x9e37_79b9_7f4a_7c15_u64;
    while !is_over() {
        // A few microseconds: as late as a guest takes an interrupt. An emulated CPU gives up its
        // turn at each pause of a loop that spins.
        for _ in 0..500 {
            work = std::hint::black_box(work.rotate_left(5).wrapping_mul(0x2545_f491_4f6c_dd1d));
        }
        let Some((next, poster)) = &io else { continue };
        let at = shared.pending.swap(0, Ordering::Acquire);
        if at == 0 {
            continue;
        }
        let until = cpu_ns() + work_ns;
        while cpu_ns() < until {
            std::hint::spin_loop();
        }
        let response_ns = monotonic_ns().saturating_sub(at);
        if shared.counting.load(Ordering::Relaxed) {
            responses.push(response_ns);
        }
        if let Some(poster) = poster {
            poster.post(Mark::Served { token: TOKEN, response_ns });
        }
        if next.send(()).is_err() {
            break;
        }
    }
    responses
}

/// The disk: an event `gap` (0.5 to 1.5 of it) after the last one was served.
fn disk(shared: &Shared, load: &Load, served: &Receiver<()>, poster: Option<&Poster>) {
    // It must not wait for its turn itself.
    let _ = sys::set(tid(), &Attr::round_robin(priority::GUARD));
    let mut random = fastrand::Rng::with_seed(load.seed | 1);
    loop {
        std::thread::sleep(load.gap.mul_f64(0.5 + random.f64()));
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let at = monotonic_ns();
        // The scheduler first, then the guest: it is boosted when the interrupt comes.
        if let Some(poster) = poster {
            poster.post(Mark::Event { token: TOKEN });
        }
        shared.pending.store(at, Ordering::Release);
        if served.recv().is_err() {
            return;
        }
    }
}

/// A scheduler of threads, each as the vCPU of a machine of its own; the first one has events.
fn schedule(
    vehicle: Box<dyn Vehicle>,
    mailbox: Mailbox,
    threads: impl Iterator<Item = (u32, u32)>,
) -> vlane_sched::Result<(Daemon, Vec<VcpuId>)> {
    let mut daemon = Daemon::new(vehicle, "measured");
    let source = daemon.add_source(Box::new(mailbox));
    let mut add = |(vm, (tid, weight)): (u32, (u32, u32))| {
        let name = format!("guest {}", vm + 1);
        let threads = VcpuThreads { pid: std::process::id(), index: 0, tids: vec![tid], name };
        daemon.add(threads, Claim { vm, weight, cap_permille: 0 })
    };
    let ids = (0..).zip(threads).map(&mut add).collect::<vlane_sched::Result<Vec<_>>>()?;
    ids.iter().take(1).for_each(|&id| daemon.name_vcpu(source, TOKEN, id));
    Ok((daemon, ids))
}

/// Schedules until `stop` is readable. Returns the state, and CPU time that was charged and lent.
fn run_daemon(
    mut daemon: Daemon,
    ids: &[VcpuId],
    stop: BorrowedFd<'_>,
) -> vlane_sched::Result<(DaemonState, u64, u64)> {
    Daemon::raise()?;
    daemon.run(stop)?;
    let accounts = ids.iter().filter_map(|&id| daemon.vehicle().account(id));
    let (charged, lent) = accounts.fold((0, 0), |(charged, lent), account| {
        (charged + account.totals.used_ns, lent + account.totals.lent_ns)
    });
    let state = daemon.state(monotonic_ns());
    tracing::debug!("{}", serde_json::to_string(&state).unwrap_or_default());
    Ok((state, charged, lent))
}

/// A thread of a measurement.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let thread = Builder::new().name(name.into()).spawn_scoped(scope, body);
    thread.map_err(failed("cannot start a thread"))
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T> {
    thread
        .join()
        .map_err(|_| Error::new(ErrorKind::Process, "a thread of the measurement panicked"))
}

/// One measurement, under a scheduler with this vehicle, or under the kernel's alone.
pub(crate) fn measure(
    load: &Load,
    vehicle: Option<Box<dyn Vehicle>>,
    interrupt: &Interrupt,
) -> Result<Seen> {
    let (shared, stop) = (Shared::default(), eventfd(0, EventfdFlags::CLOEXEC));
    let stop = stop.map_err(|error| failed("cannot make an eventfd")(error.into()))?;
    std::thread::scope(|scope| {
        let seen = measured(scope, load, vehicle, (&shared, &stop), interrupt);
        // Also where it broke off.
        shared.stop.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&stop, &1_u64.to_ne_bytes());
        let (guest, mut seen) = seen?;
        seen.responses = joined(guest)?;
        interrupt.check()?;
        Ok(seen)
    })
}

/// The measurement without the responses, which guest 1 has when it ends.
fn measured<'scope>(
    scope: &'scope Scope<'scope, '_>,
    load: &'scope Load,
    vehicle: Option<Box<dyn Vehicle>>,
    (shared, stop): (&'scope Shared, &'scope OwnedFd),
    interrupt: &Interrupt,
) -> Result<(ScopedJoinHandle<'scope, Vec<u64>>, Seen)> {
    let (poster, mailbox) = Mailbox::new(true).map_err(sched)?;
    let poster = vehicle.is_some().then_some(poster);
    let ((next, served), (tell, told)) = (channel(), channel());
    let (mut io, work_ns) = (Some((next, poster.clone())), ns(load.work));
    let (mut guests, mut tids) = (Vec::new(), Vec::new());
    for number in 1..=load.weights.len() + load.strangers {
        let (tell, io) = (tell.clone(), io.take());
        let body = move || {
            let _ = tell.send(tid());
            guest(shared, work_ns, io)
        };
        guests.push(spawn(scope, format!("guest-{number}"), body)?);
        tids.extend(told.recv());
    }
    tids.truncate(load.weights.len());
    let threads = tids.iter().map(|&tid| Thread::open(tid).map_err(sched));
    let threads = threads.collect::<Result<Vec<_>>>()?;
    let weighed = tids.into_iter().zip(load.weights.iter().copied());
    let scheduler = match vehicle {
        Some(vehicle) => {
            let (daemon, ids) = schedule(vehicle, mailbox, weighed).map_err(sched)?;
            Some(spawn(scope, "scheduler", move || run_daemon(daemon, &ids, stop.as_fd()))?)
        }
        None => None,
    };
    shared.go.store(true, Ordering::Relaxed);
    if load.is_told {
        println!("loaded");
    }
    spawn(scope, "disk", move || disk(shared, load, &served, poster.as_ref()))?;

    let used = || -> Vec<u64> {
        threads.iter().map(|thread| thread.clock().map_or(0, |clock| clock.ran_ns)).collect()
    };
    pause(Instant::now() + load.ramp, interrupt)?;
    shared.counting.store(true, Ordering::Relaxed);
    let (begin, before) = (Instant::now(), used());
    pause(begin + load.time, interrupt)?;
    shared.counting.store(false, Ordering::Relaxed);
    let (time, after) = (begin.elapsed(), used());
    let _ = rustix::io::write(stop, &1_u64.to_ne_bytes());
    let used_meanwhile =
        before.iter().zip(&after).map(|(before, after)| after.saturating_sub(*before));
    let mut seen = Seen {
        used: used_meanwhile.collect(),
        weights: load.weights.clone(),
        time,
        ..Seen::default()
    };
    if let Some(scheduler) = scheduler {
        let (state, charged, lent) = joined(scheduler)?.map_err(sched)?;
        seen.scheduled = [after.iter().sum(), charged];
        seen.lent_ns = lent;
        state.vcpus.iter().take(1).for_each(|first| seen.add_state(&state, first));
    }
    Ok((guests.swap_remove(0), seen))
}

/// Measures threads under EEVDF alone and under policies with their settings, and makes the report.
/// `state_dir`: where the scheduler keeps its list of changed threads; `guard`: how its guard is
/// started.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Invalid`] for a machine on
/// which it cannot run, [`ErrorKind::Interrupted`], and those of the scheduler.
pub fn run(
    options: &Options,
    policies: &[(Policy, Settings)],
    (state_dir, guard): (&Path, &GuardCommand),
    call: &Call<'_>,
) -> Result<Report> {
    let interrupt = call.interrupt;
    let each = policies.iter().map(|(policy, settings)| (policy.name(), Some(settings)));
    let mut arms: Vec<(&str, Option<&Settings>)> =
        [("EEVDF", None)].into_iter().chain(each).collect();
    let is_known = |name: &str| arms.iter().any(|(arm, _)| arm.eq_ignore_ascii_case(name));
    if let Some(name) = options.only.iter().find(|name| !is_known(name)) {
        return usage(format!("there is no {name:?} to measure; change --only"));
    }
    arms.retain(|(name, _)| options.has(name));
    vlane_sched::realtime::check().map_err(sched)?;
    let (gaps, guests) = (options.gaps(&[20, 5, 2]), options.guests());
    let last = options.weights.last().copied().unwrap_or(vlane_policy::loan::units::DEFAULT_WEIGHT);
    let weights = options.weights.iter().copied().chain(std::iter::repeat(last)).take(guests);
    let load = Load {
        weights: weights.collect(),
        strangers: 0,
        gap: Duration::ZERO,
        work: options.work,
        ramp: RAMP,
        time: options.time,
        seed: 0,
        is_told: false,
    };
    let name = |gap: &Duration| {
        let words = format!("an event {gap:?} after the last one was served");
        (format!("gap-{}us", gap.as_micros()), words)
    };
    let study = Study {
        begun: call.begun.clone(),
        titles: ["loans", "Loans, live: response and fairness"],
        guests: None,
        figures: LIVE,
        at_most: Some(0.1),
        loads: gaps.iter().map(name).collect(),
        arms: arms.iter().map(|(name, _)| (*name).to_owned()).collect(),
        rounds: options.rounds,
        time: options.time,
        about: format!(
            "{} of this program compute all the time. Guest 1 also serves events, each with {:?} \
             of CPU time. A response lasts from the event until it is served.",
            counted(guests, "thread"),
            options.work
        ),
        warnings: Vec::new(),
        sections: Vec::new(),
    };
    let steps = options.rounds * gaps.len() * arms.len();
    let progress = Progress::new(steps).expecting(options.time + RAMP);
    settle(options.rounds, interrupt)?;
    study.in_turns(progress, |round, at, arm| {
        let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(round as u64 * 31 + at as u64 + 1);
        let load = Load { gap: gaps[at], seed, ..load.clone() };
        let start = |settings: &Settings| -> vlane_sched::Result<Box<dyn Vehicle>> {
            Ok(Box::new(RealTime::new(settings.clone(), state_dir, guard.clone())?))
        };
        measure(&load, arms[arm].1.map(start).transpose().map_err(sched)?, interrupt)
    })
}
