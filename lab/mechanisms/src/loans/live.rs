//! The live scheduler, measured natively: threads that compute all the time stand for guests, one
//! of them also does I/O.
//!
//! Guest 1 does one synchronous I/O after the other. An event comes some time after the last one
//! was served. It is taken when the guest next runs, and costs it some CPU time. The response is an
//! event's wait; the share is each guest's part of the CPUs. The scheduler is the real one, with
//! its guard, and gets events as from a disk's back end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vlane_report::build::Begun;

use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};
use vlane_policy::loan::Claim;
use vlane_sched::VcpuThreads;
use vlane_sched::live::Daemon;
use vlane_sched::live::source::{Mailbox, Mark, Poster};
use vlane_sched::realtime::guard::GuardCommand;
use vlane_sched::realtime::{RealTime, Settings, monotonic_ns, priority};
use vlane_sched::sys::{self, Attr};
use vlane_sched::thread::Thread;

use super::figures::{Measured, Sample};
use super::live_report::{self, Labels};
use vlane_client::progress::Progress;
use vlane_report::Report;
use vlane_report::judge::Arms;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::rounds::{Rounds, in_turns};

/// Token of the guest with I/O at the scheduler.
const TOKEN: u64 = 1;

/// The options.
#[derive(Debug, Clone)]
pub struct Options {
    /// The command line, for the report.
    pub command: String,
    /// Guests, the one with I/O included.
    pub guests: usize,
    /// Weight of each guest; fewer than guests: the last one counts for the rest.
    pub weights: Vec<u32>,
    /// Times from an event that was served to the next one; they vary by half.
    pub gaps: Vec<Duration>,
    /// CPU time that an event costs the guest.
    pub work: Duration,
    /// Time of each measurement.
    pub time: Duration,
    /// Time before each.
    pub ramp: Duration,
    /// Rounds.
    pub rounds: usize,
    /// The compared arms: the baseline (EEVDF alone) and policies with their settings.
    pub arms: Vec<Arm>,
    /// Where the scheduler keeps its list of changed threads.
    pub state_dir: PathBuf,
    /// How a guard is started.
    pub guard: GuardCommand,
}

/// One of the schedulers that are compared.
#[derive(Debug, Clone)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// Its settings; none: EEVDF alone.
    pub settings: Option<Settings>,
}

/// State that the threads of one measurement share.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Counts responses from here on.
    counting: AtomicBool,
    /// When the event came that has not been taken yet; 0: none.
    pending: AtomicU64,
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::caused_by(ErrorKind::Io, what, error)
}

pub(super) fn sched(error: vlane_sched::Error) -> Error {
    let kind = match error.kind() {
        vlane_sched::ErrorKind::Invalid | vlane_sched::ErrorKind::Unsupported => ErrorKind::Invalid,
        _ => ErrorKind::Process,
    };
    Error::caused_by(kind, "the scheduler cannot run", error)
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Computes for so long, in CPU time of its own.
fn compute(ns: u64) {
    let until = cpu_ns() + ns;
    while cpu_ns() < until {
        std::hint::spin_loop();
    }
}

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// A guest that computes; with I/O if it has a device.
fn guest(
    shared: &Shared,
    work_ns: u64,
    io: Option<(&mpsc::Sender<()>, Option<&Poster>)>,
) -> Vec<u64> {
    let mut responses = Vec::new();
    while !shared.stop.load(Ordering::Relaxed) {
        // A few microseconds: as late as a guest takes an interrupt.
        for _ in 0..1000 {
            std::hint::spin_loop();
        }
        let Some((next, poster)) = io else { continue };
        let at = shared.pending.swap(0, Ordering::Acquire);
        if at == 0 {
            continue;
        }
        compute(work_ns);
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
fn disk(
    shared: &Shared,
    gap: Duration,
    served: &mpsc::Receiver<()>,
    poster: Option<&Poster>,
    seed: u64,
) {
    // It must not wait for its turn itself.
    let _ = sys::set(tid(), &Attr::round_robin(priority::GUARD));
    let mut random = fastrand::Rng::with_seed(seed);
    loop {
        std::thread::sleep(gap.mul_f64(0.5 + random.f64()));
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

/// The scheduler in a thread of its own, and how to end it.
struct Running {
    poster: Poster,
    stop: std::os::fd::OwnedFd,
    thread: JoinHandle<vlane_sched::Result<(u64, [u64; 3])>>,
}

impl Running {
    fn start(
        settings: &Settings,
        options: &Options,
        guests: Vec<u32>,
        weights: &[u32],
    ) -> Result<Self> {
        let (poster, mailbox) = Mailbox::new(true).map_err(sched)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(std::io::Error::from);
        let stop = stop.map_err(failed("cannot make an eventfd"))?;
        let theirs = stop.try_clone().map_err(failed("cannot share an eventfd"))?;
        let (ready, is_ready) = mpsc::channel();
        let (settings, dir, guard) =
            (settings.clone(), options.state_dir.clone(), options.guard.clone());
        let weights = weights.to_vec();
        let begin = move || -> vlane_sched::Result<Daemon> {
            Daemon::raise()?;
            let name = settings.params.policy.name();
            let vehicle = RealTime::new(settings, &dir, guard)?;
            let mut daemon = Daemon::new(Box::new(vehicle), name);
            let source = daemon.add_source(Box::new(mailbox));
            for (number, (tid, weight)) in (0_u32..).zip(guests.into_iter().zip(weights)) {
                let threads = VcpuThreads {
                    pid: std::process::id(),
                    index: 0,
                    tids: vec![tid],
                    name: format!("guest {}", number + 1),
                };
                let id = daemon.add(threads, Claim { vm: number, weight, cap_permille: 0 })?;
                if number == 0 {
                    daemon.name_vcpu(source, TOKEN, id);
                }
            }
            Ok(daemon)
        };
        let body = move || {
            let mut daemon = match begin() {
                Ok(daemon) => daemon,
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return Ok((0, [0; 3]));
                }
            };
            let _ = ready.send(Ok(()));
            let begun = cpu_ns();
            daemon.run(std::os::fd::AsFd::as_fd(&theirs))?;
            let used = cpu_ns() - begun;
            let state = daemon.state(monotonic_ns());
            let first = state.vcpus.first();
            let count = |name: &str| state.counters.get(name).copied().unwrap_or(0);
            let boosts = first.map_or([0; 3], |vcpu| {
                [vcpu.boosts + vcpu.wake_boosts, vcpu.denied, count("denied_rt_budget")]
            });
            tracing::debug!("{}", serde_json::to_string(&state).unwrap_or_default());
            Ok((used, boosts))
        };
        let thread = std::thread::Builder::new().name("scheduler".into()).spawn(body);
        let thread = thread.map_err(failed("cannot start a thread"))?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(Self { poster, stop, thread }),
            Ok(Err(error)) => Err(sched(error)),
            Err(_) => {
                Err(Error::new(ErrorKind::Process, "the scheduler ended before it had begun"))
            }
        }
    }

    fn end(self) -> Result<(u64, [u64; 3])> {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        let result = self.thread.join();
        result.map_err(|_| Error::new(ErrorKind::Process, "the scheduler panicked"))?.map_err(sched)
    }
}

/// Waits, unless it is interrupted.
fn pause(time: Duration, interrupt: &Interrupt) {
    let until = Instant::now() + time;
    while Instant::now() < until && !interrupt.is_raised() {
        std::thread::sleep((until - Instant::now()).min(Duration::from_millis(100)));
    }
}

/// One measurement.
fn measure(
    options: &Options,
    weights: &[u32],
    gap: Duration,
    arm: &Arm,
    seed: u64,
    interrupt: &Interrupt,
) -> Result<Sample> {
    let shared = Arc::new(Shared::default());
    let (next, served) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let (hand, poster_for_guest) = mpsc::channel::<Option<Poster>>();
    let work_ns = u64::try_from(options.work.as_nanos()).unwrap_or(u64::MAX);
    let mut guests: Vec<JoinHandle<Vec<u64>>> = Vec::new();
    let mut first = Some((next, poster_for_guest));
    for number in 0..options.guests {
        let (shared, tell, mine) = (Arc::clone(&shared), tell.clone(), first.take());
        let body = move || {
            let _ = tell.send((number, tid()));
            let Some((next, posters)) = mine else { return guest(&shared, work_ns, None) };
            let Ok(poster) = posters.recv() else { return Vec::new() };
            guest(&shared, work_ns, Some((&next, poster.as_ref())))
        };
        let thread = std::thread::Builder::new().name(format!("guest-{}", number + 1)).spawn(body);
        guests.push(thread.map_err(failed("cannot start a thread"))?);
    }
    let mut tids = vec![0; options.guests];
    for (number, tid) in told.iter().take(options.guests) {
        tids[number] = tid;
    }
    let threads =
        tids.iter().map(|&tid| Thread::open(tid).map_err(sched)).collect::<Result<Vec<_>>>()?;
    let running = match &arm.settings {
        Some(settings) => Running::start(settings, options, tids, weights).map(Some),
        None => Ok(None),
    };
    let running = match running {
        Ok(running) => running,
        Err(error) => {
            shared.stop.store(true, Ordering::Relaxed);
            return Err(error);
        }
    };
    let poster = running.as_ref().map(|running| running.poster.clone());
    let _ = hand.send(poster.clone());
    let body = {
        let shared = Arc::clone(&shared);
        move || disk(&shared, gap, &served, poster.as_ref(), seed | 1)
    };
    let disk = std::thread::Builder::new().name("disk".into()).spawn(body);
    let disk = disk.map_err(failed("cannot start a thread"))?;

    let used = || -> Vec<u64> {
        threads.iter().map(|thread| thread.clock().map_or(0, |clock| clock.ran_ns)).collect()
    };
    pause(options.ramp, interrupt);
    shared.counting.store(true, Ordering::Relaxed);
    let (begin, before) = (Instant::now(), used());
    pause(options.time, interrupt);
    shared.counting.store(false, Ordering::Relaxed);
    let (time, after) = (begin.elapsed(), used());
    let ended = running.map(Running::end);
    shared.stop.store(true, Ordering::Relaxed);
    let panicked = |_| Error::new(ErrorKind::Process, "a guest panicked");
    let seen = guests.into_iter().map(JoinHandle::join).collect::<std::result::Result<Vec<_>, _>>();
    let responses = seen.map_err(panicked)?.into_iter().next().unwrap_or_default();
    let _ = disk.join();
    let (daemon_ns, boosts) = ended.transpose()?.unwrap_or_default();
    interrupt.check()?;
    let used =
        before.iter().zip(&after).map(|(before, after)| after.saturating_sub(*before)).collect();
    Ok(Sample { responses, used, time, daemon_ns, boosts, ..Sample::default() })
}

fn check(options: &Options) -> Result<()> {
    let invalid = |text: &str| Err(Error::new(ErrorKind::Usage, text));
    if !(2..=1000).contains(&options.guests) {
        return invalid("there are between 2 and 1000 guests; change --guests");
    }
    if options.rounds == 0 || options.time < Duration::from_millis(200) || options.gaps.is_empty() {
        return invalid("measure at least once, for 200 ms, with one --gap");
    }
    if options.weights.contains(&0) {
        return invalid("a weight is at least 1; change --weights");
    }
    Ok(())
}

/// Measures, and makes the report of it.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Invalid`] for a machine on
/// which it cannot run, [`ErrorKind::Interrupted`], and what the scheduler says.
pub fn run(options: &Options, interrupt: &Interrupt) -> Result<Report> {
    check(options)?;
    vlane_sched::live::probe::real_time().map_err(sched)?;
    let begun = Begun::now(&options.command);
    let last = options.weights.last().copied().unwrap_or(vlane_policy::loan::units::DEFAULT_WEIGHT);
    let weights: Vec<u32> = (0..options.guests)
        .map(|number| options.weights.get(number).copied().unwrap_or(last))
        .collect();
    let names = || options.arms.iter().map(|arm| arm.name.clone());
    let mut loads: Vec<Arms<Sample>> = options.gaps.iter().map(|_| Arms::once(names())).collect();
    let steps = options.rounds * options.gaps.len() * options.arms.len();
    let mut progress = Progress::new(steps).expecting(options.time + options.ramp);
    let rounds = Rounds::measure(options.rounds, |round| {
        for (load, gap) in options.gaps.iter().enumerate() {
            let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(round as u64 * 31 + load as u64 + 1);
            in_turns(&mut loads[load], round, |at, arm| {
                progress.step(format!("an event every {gap:?}, {arm}"));
                measure(options, &weights, *gap, &options.arms[at], seed, interrupt)
            })?;
        }
        Ok(())
    })?;
    drop(progress);
    loads.iter_mut().for_each(|arms| arms.keep(rounds.whole()));
    let about = format!(
        "{} threads of this program compute all the time; guest 1 also serves events, each with \
         {:?} of CPU time. A response lasts from the event until it is served.",
        options.guests, options.work
    );
    let (time, rounds_kept) = (options.time, rounds.whole());
    let measured =
        Measured { loads, weights, begun, rounds: rounds_kept, time, about, warnings: Vec::new() };
    let labels = Labels {
        loads: options
            .gaps
            .iter()
            .map(|gap| format!("an event {gap:?} after the last one was served"))
            .collect(),
        ids: options.gaps.iter().map(|gap| format!("gap-{}us", gap.as_micros())).collect(),
        versions: Vec::new(),
    };
    let report = live_report::make(&labels, &measured);
    let mut report = report.context(ErrorKind::Io, || "cannot make the report")?;
    rounds.mark(&mut report);
    Ok(report)
}
