//! Measures the vehicle on the kernel that this runs on. The threads only compute, and one of them
//! also gets events. They run under the kernel's own scheduler and under the vehicle, in turns.
//!
//! The events come from a real-time thread. It stands for the lane that completes I/O and for the
//! scheduler's event loop. It notes the time, informs the vehicle, and wakes again when the thread
//! has seen the event, or when the vehicle is due. The thread looks for events between two short
//! pieces of work, like a guest that is interrupted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use vlane_policy::loan::units::{DEFAULT_WEIGHT, MS};
use vlane_policy::loan::{Account, Claim, Decision, Params, Policy, VcpuId};

use vlane_sched::ext::{Counters, Options, Presence, SchedExt, state};
use vlane_sched::sys::{self, Attr};
use vlane_sched::{Error, ErrorKind, Result, VcpuThreads, Vehicle};

fn failed(
    kind: ErrorKind,
    what: &str,
    cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::caused_by(kind, format!("sched_ext: {what}"), cause)
}

/// Parameters of one turn.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The vehicle's policy; `None`: the kernel's own scheduler.
    pub policy: Option<Policy>,
    /// How long.
    pub seconds: f64,
    /// Threads that only compute, besides the one with events.
    pub hogs: usize,
    /// Mean time between two events, nanoseconds; each is between half and one and a half of it.
    pub every_ns: u64,
    /// The longest boost, nanoseconds; an emulated CPU takes ten times as long to serve an event.
    pub boost_max_ns: u64,
    /// Ordinary threads that the vehicle is not given, besides, on the same CPUs.
    pub strangers: usize,
    /// The threads' weights with a vehicle, in turns; empty: all the usual one.
    pub weights: Vec<u32>,
}

impl Turn {
    fn weight(&self, place: usize) -> u32 {
        let at = place.checked_rem(self.weights.len());
        at.and_then(|at| self.weights.get(at)).copied().unwrap_or(DEFAULT_WEIGHT)
    }
}

/// Results of one turn.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Shown {
    /// `eevdf`, or the policy's name.
    pub scheduler: String,
    /// Times from event to answer, microseconds, in order.
    pub responses_us: Vec<u64>,
    /// Those of them whose event was granted a boost.
    pub granted_us: Vec<u64>,
    /// CPU time of each thread over what its weight entitles it to; the first is the one with
    /// events.
    pub shares: Vec<f64>,
    /// Events that the policy granted a boost for (loans and own credits).
    pub granted: u64,
    /// Events that it denied.
    pub denied: u64,
    /// CPU time per boost that was lent, microseconds.
    pub lent_us_per_boost: f64,
    /// Waiting vCPUs that events put on a CPU, and how often that could not be done at once.
    pub moved: u64,
    /// See [`Counters`].
    pub missed: u64,
    /// See [`Counters`].
    pub overtime: u64,
    /// See [`Counters`].
    pub sheltered: u64,
    /// Microseconds from an event until the vehicle had decided and done what follows, median.
    pub tell_us: f64,
    /// How late the real-time thread woke at the most, milliseconds: more than a few mean that the
    /// machine itself stood still.
    pub late_ms: f64,
    /// Every thread's books, in the order of `shares`; empty without a vehicle.
    pub books: Vec<Kept>,
}

/// Changes of one account between the beginning of the measuring and its end.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Kept {
    /// CPU time by the kernel's count, nanoseconds.
    pub kernel_ns: u64,
    /// CPU time that was charged, nanoseconds.
    pub charged_ns: u64,
    /// Of that, while boosted.
    pub boosted_ns: u64,
    /// Time that it was given.
    pub allotted_ns: u64,
    /// Time that it lost because it had too much. (`forgiven_ns`: time that it need not pay because
    /// it owed too much.)
    pub expired_ns: u64,
    /// See `expired_ns`.
    pub forgiven_ns: u64,
    /// Credits at the beginning and at the end.
    pub credit_ns: [i64; 2],
}

/// An event that was served.
#[derive(Debug, Clone, Copy)]
struct Answer {
    response_ns: u64,
    /// How long telling it took.
    tell_ns: u64,
    /// True if it was granted a boost.
    granted: bool,
}

/// Shared by the threads of a turn.
#[derive(Debug, Default)]
struct Desk {
    /// Until then no thread computes: loading a program takes CPU time as well.
    go: AtomicBool,
    stop: AtomicBool,
    /// Time of the event that is still unseen; 0: none.
    posted: AtomicU64,
    /// How long it took until the last one was seen.
    response: AtomicU64,
}

fn now() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Runs a turn.
///
/// # Errors
///
/// The vehicle cannot be loaded, or is thrown out.
pub fn turn(turn: &Turn) -> Result<Shown> {
    let desk = Arc::new(Desk::default());
    let (seen, wake) = pair()?;
    let (tell, tids) = mpsc::channel();
    let mut hogs: Vec<JoinHandle<u64>> = Vec::new();
    for place in 0..=turn.hogs {
        let (desk, tell) = (Arc::clone(&desk), tell.clone());
        let wake = if place == 0 { Some(clone(&wake)?) } else { None };
        hogs.push(std::thread::spawn(move || hog(&desk, place, &tell, wake)));
    }
    let strangers: Vec<JoinHandle<u64>> = (0..turn.strangers)
        .map(|_| {
            let (desk, tell) = (Arc::clone(&desk), mpsc::channel().0);
            std::thread::spawn(move || hog(&desk, usize::MAX, &tell, None))
        })
        .collect();
    let mut found: Vec<(usize, u32)> = tids.iter().take(turn.hogs + 1).collect();
    found.sort_unstable();

    let shown = carried(turn, &desk, &found, seen);
    desk.stop.store(true, Ordering::Relaxed);
    let used: Vec<u64> = hogs.into_iter().map(|hog| hog.join().unwrap_or(0)).collect();
    for stranger in strangers {
        let _ = stranger.join();
    }
    let (mut shown, before) = shown?;
    let used: Vec<u64> =
        used.iter().zip(&before).map(|(&now, &before)| now.saturating_sub(before)).collect();
    let weight = |place: usize| turn.policy.map_or(1.0, |_| f64::from(turn.weight(place)));
    let weights: f64 = (0..used.len()).map(weight).sum();
    let all = used.iter().sum::<u64>() as f64;
    let entitled = |place: usize| (all * weight(place) / weights).max(1.0);
    shown.shares =
        used.iter().enumerate().map(|(place, &used)| used as f64 / entitled(place)).collect();
    Ok(shown)
}

/// Gives the threads to the vehicle, each as a vCPU of a machine of its own.
fn join(vehicle: &mut SchedExt, turn: &Turn, found: &[(usize, u32)]) -> Result<Vec<VcpuId>> {
    let add = |&(place, tid): &(usize, u32)| {
        let vm = u32::try_from(place).unwrap_or(u32::MAX);
        let name = format!("hog {place}");
        let threads = VcpuThreads { pid: std::process::id(), index: 0, tids: vec![tid], name };
        vehicle.add(&threads, Claim { weight: turn.weight(place), ..Claim::of(vm) })
    };
    found.iter().map(add).collect()
}

/// An account's changes between two looks, and the kernel's CPU time of its thread.
fn kept(from: &Account, to: &Account, kernel_ns: u64) -> Kept {
    let (was, is) = (&from.totals, &to.totals);
    Kept {
        kernel_ns,
        charged_ns: is.used_ns - was.used_ns,
        boosted_ns: is.boosted_ns - was.boosted_ns,
        allotted_ns: is.allotted_ns - was.allotted_ns,
        expired_ns: is.expired_ns - was.expired_ns,
        forgiven_ns: is.forgiven_ns - was.forgiven_ns,
        credit_ns: [from.credit_ns, to.credit_ns],
    }
}

/// The part of a turn in which the threads run: with a vehicle or without.
fn carried(
    turn: &Turn,
    desk: &Arc<Desk>,
    found: &[(usize, u32)],
    seen: std::os::fd::OwnedFd,
) -> Result<(Shown, Vec<u64>)> {
    let scheduler = turn.policy.map_or("eevdf", Policy::name).to_string();
    let mut shown = Shown { scheduler, ..Shown::default() };
    let load =
        |policy| SchedExt::load(Options { params: params(turn, policy), ..Options::default() });
    let mut vehicle = turn.policy.map(load).transpose()?;
    let ids = vehicle.as_mut().map_or(Ok(Vec::new()), |vehicle| join(vehicle, turn, found))?;
    desk.go.store(true, Ordering::Relaxed);
    // Two seconds to settle, which do not count: accounts begin empty, and loading took CPU time.
    let settled = Instant::now() + Duration::from_secs(2);
    until(settled, vehicle.as_mut())?;
    let before: Vec<u64> = found.iter().map(|&(_, tid)| used_by(tid)).collect();
    let opened = accounts(vehicle.as_mut(), &ids)?;

    let lane = Lane {
        desk: Arc::clone(desk),
        seen,
        every_ns: turn.every_ns,
        vehicle,
        vcpu: ids.first().copied(),
    };
    let ends = Instant::now() + Duration::from_secs_f64(turn.seconds);
    let heard = std::thread::spawn(move || lane.run(ends)).join();
    let panicked = |_| Err(Error::new(ErrorKind::Io, "the lane's thread panicked"));
    let Heard { answers, late_ns, mut vehicle } = heard.unwrap_or_else(panicked)?;
    let after = found.iter().map(|&(_, tid)| used_by(tid));
    let kernel: Vec<u64> =
        after.zip(&before).map(|(after, before)| after.saturating_sub(*before)).collect();
    let closed = accounts(vehicle.as_mut(), &ids)?;
    let kept = opened
        .iter()
        .zip(&closed)
        .zip(kernel)
        .map(|((from, to), kernel_ns)| kept(from, to, kernel_ns));
    shown.books.extend(kept);
    desk.stop.store(true, Ordering::Relaxed);
    shown.responses_us = answers.iter().map(|answer| answer.response_ns / 1000).collect();
    let granted = answers.iter().filter(|answer| answer.granted);
    shown.granted_us = granted.map(|answer| answer.response_ns / 1000).collect();
    let mut told: Vec<u64> = answers.iter().map(|answer| answer.tell_ns).collect();
    told.sort_unstable();
    shown.late_ms = late_ns as f64 / 1e6;
    shown.tell_us = told.get(told.len() / 2).map_or(0.0, |median| *median as f64 / 1000.0);
    if let Some(vehicle) = &vehicle {
        look(vehicle, &ids, &mut shown)?;
    }
    drop(vehicle);
    unloaded(Duration::from_secs(5))?;
    Ok((shown, before))
}

/// The accounts as they are now; none without a vehicle.
fn accounts(vehicle: Option<&mut SchedExt>, ids: &[VcpuId]) -> Result<Vec<Account>> {
    let Some(vehicle) = vehicle else { return Ok(Vec::new()) };
    vehicle.settle_all(now())?;
    Ok(ids.iter().filter_map(|&id| vehicle.account(id)).collect())
}

/// The vehicle's own figures.
fn look(vehicle: &SchedExt, ids: &[VcpuId], shown: &mut Shown) -> Result<()> {
    let Counters { moved, missed, overtime, sheltered, .. } = vehicle.counters()?;
    (shown.moved, shown.missed, shown.overtime, shown.sheltered) =
        (moved, missed, overtime, sheltered);
    if let Some(account) = ids.first().and_then(|&id| vehicle.account(id)) {
        let totals = account.totals;
        shown.granted = totals.boosts + totals.wake_boosts;
        shown.denied = totals.denied;
        shown.lent_us_per_boost = totals.lent_ns as f64 / 1000.0 / totals.boosts.max(1) as f64;
    }
    Ok(())
}

fn params(turn: &Turn, policy: Policy) -> Params {
    let sound = Params::sound(policy);
    Params { boost_max_ns: turn.boost_max_ns, ..sound }
}

/// Does the vehicle's work until then.
fn until(end: Instant, mut vehicle: Option<&mut SchedExt>) -> Result<()> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let mut pause = left;
        if let Some(vehicle) = &mut vehicle {
            let time = now();
            let next = vehicle.tick(time)?;
            pause = pause.min(Duration::from_nanos(next.saturating_sub(time).max(1)));
        }
        std::thread::sleep(pause);
    }
}

/// Computes until it is stopped; the CPU time it has used.
fn hog(
    desk: &Desk,
    place: usize,
    tell: &mpsc::Sender<(usize, u32)>,
    wake: Option<std::os::fd::OwnedFd>,
) -> u64 {
    let tid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    let _ = tell.send((place, tid));
    while !desk.go.load(Ordering::Relaxed) && !desk.stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut work = 0x9e37_79b9_7f4a_7c15_u64;
    while !desk.stop.load(Ordering::Relaxed) {
        for _ in 0..200 {
            work = std::hint::black_box(work.rotate_left(5).wrapping_mul(0x2545_f491_4f6c_dd1d));
        }
        if let Some(wake) = &wake {
            let posted = desk.posted.swap(0, Ordering::Acquire);
            if posted != 0 {
                desk.response.store(now().saturating_sub(posted), Ordering::Release);
                let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
            }
        }
    }
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time of a thread of this process so far, nanoseconds (`/proc/PID/task/TID/schedstat`).
fn used_by(tid: u32) -> u64 {
    let text =
        std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Sends events and takes answers. It shares no state: the vehicle has one owner.
struct Lane {
    desk: Arc<Desk>,
    seen: std::os::fd::OwnedFd,
    every_ns: u64,
    vehicle: Option<SchedExt>,
    /// The vCPU of the events.
    vcpu: Option<VcpuId>,
}

/// Answers that the lane got.
struct Heard {
    answers: Vec<Answer>,
    /// How late it woke at the most.
    late_ns: u64,
    vehicle: Option<SchedExt>,
}

impl Lane {
    /// At a real-time priority: it is not the one that is measured.
    fn run(mut self, ends: Instant) -> Result<Heard> {
        let tid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        sys::set(tid, &Attr::round_robin(10)).map_err(|e| {
            failed(ErrorKind::Permission, "the source of events cannot be made real-time", e)
        })?;
        // The same events in every turn.
        let mut random = fastrand::Rng::with_seed(88_172_645_463_325_252);
        let (mut due, mut answers, mut late_ns) = (now(), Vec::new(), 0);
        let mut outstanding: Option<Answer> = None;
        while Instant::now() < ends {
            let time = now();
            let mut next = due.min(time + 50 * MS);
            if let Some(vehicle) = &mut self.vehicle {
                next = next.min(vehicle.tick(time)?);
            }
            let asleep = now();
            let left = next.saturating_sub(asleep);
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::try_from(left).unwrap_or(0) };
            let mut fds = [PollFd::new(&self.seen, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(failed(ErrorKind::Io, "poll", e)),
            }
            late_ns = late_ns.max(now().saturating_sub(asleep + left));
            if fds[0].revents().contains(PollFlags::IN) {
                let _ = rustix::io::read(&self.seen, &mut [0; 8]);
                let response_ns = self.desk.response.load(Ordering::Acquire);
                if let (Some(vehicle), Some(id)) = (&mut self.vehicle, self.vcpu) {
                    vehicle.served(id, now(), response_ns)?;
                }
                answers.extend(outstanding.take().map(|answer| Answer { response_ns, ..answer }));
            }
            let time = now();
            if time >= due {
                due = time + self.every_ns / 2 + random.u64(..self.every_ns.max(1));
                if outstanding.is_none() {
                    let posted = now();
                    self.desk.posted.store(posted, Ordering::Release);
                    let granted = match (&mut self.vehicle, self.vcpu) {
                        (Some(vehicle), Some(id)) => {
                            matches!(vehicle.event(id, posted)?, Decision::Boost { .. })
                        }
                        _ => false,
                    };
                    let tell_ns = now().saturating_sub(posted);
                    outstanding = Some(Answer { response_ns: 0, tell_ns, granted });
                }
            }
        }
        Ok(Heard { answers, late_ns, vehicle: self.vehicle })
    }
}

fn pair() -> Result<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| failed(ErrorKind::Io, "no eventfd", e))?;
    Ok((clone(&fd)?, fd))
}

fn clone(fd: &std::os::fd::OwnedFd) -> Result<std::os::fd::OwnedFd> {
    fd.try_clone().map_err(|e| failed(ErrorKind::Io, "no file descriptor left", e))
}

/// Waits until no scheduler is loaded.
///
/// # Errors
///
/// One still is, after `limit`.
pub fn unloaded(limit: Duration) -> Result<Duration> {
    let begun = Instant::now();
    loop {
        match state() {
            Presence::Disabled | Presence::Missing => return Ok(begun.elapsed()),
            Presence::Busy { state, ops } if begun.elapsed() > limit => {
                return Err(Error::new(
                    ErrorKind::Io,
                    format!(
                        "sched_ext: {ops:?} is still loaded ({state}) {} ms after its end",
                        limit.as_millis()
                    ),
                ));
            }
            Presence::Busy { .. } => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Loads the vehicle, gives it threads that compute, prints `loaded`, and runs until this process
/// is killed.
///
/// # Errors
///
/// The vehicle cannot be loaded, or is thrown out.
pub fn hold(hogs: usize) -> Result<()> {
    use std::io::Write;
    let desk = Arc::new(Desk::default());
    let (tell, tids) = mpsc::channel();
    for place in 0..hogs {
        let (desk, tell) = (Arc::clone(&desk), tell.clone());
        std::thread::spawn(move || hog(&desk, place, &tell, None));
    }
    let mut vehicle = SchedExt::load(Options::default())?;
    for (place, tid) in tids.iter().take(hogs) {
        let vm = u32::try_from(place).unwrap_or(u32::MAX);
        let name = format!("hog {place}");
        vehicle.add(
            &VcpuThreads { pid: std::process::id(), index: 0, tids: vec![tid], name },
            Claim::of(vm),
        )?;
    }
    desk.go.store(true, Ordering::Relaxed);
    println!("loaded");
    let _ = std::io::stdout().flush();
    loop {
        until(Instant::now() + Duration::from_secs(1), Some(&mut vehicle))?;
    }
}
