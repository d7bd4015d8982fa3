//! One measurement: a topology, so many jobs, one pattern, on one device.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread::{JoinHandle, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use vlane_driver::observe::Snapshot;
use vlane_driver::ring::{Arena, BlkOptions, Format};
use vlane_driver::{GuestQueue, Region, Session, SessionOptions, Workload};
use vlane_error::counted;

use super::device::{Counters, Device, DeviceConfig};
use super::guest::{DRAIN, Job, JobStats, Own, Shared, Waker};
use super::lock::{FifoLock, LockUse};
use super::observe::{Threads, Used};
use super::shared::SharedQueue;
use super::{Kind, Placement, Subject};
use vlane_host::error::{Context, Error, ErrorKind, Result};
use vlane_host::interrupt::Interrupt;
use vlane_host::server::{Server, Storage};

/// The null device's capacity: 16 GiB.
const BYTES: u64 = 16 << 30;
/// Guest physical address of the memory: above 4 GiB, as a large guest's is.
const MEMORY_BASE: u64 = 1 << 32;

/// What to measure.
#[derive(Debug, Clone)]
pub struct CellPlan<'a> {
    /// Which device, with which topology.
    pub subject: Subject,
    /// Jobs; the lanes' number follows from it and the topology.
    pub jobs: u16,
    /// Requests out per job.
    pub depth: u16,
    /// The pattern; its `cpus`, `limit` and `ramp` are not used.
    pub workload: &'a Workload,
    /// Where threads run.
    pub placement: Placement,
    /// The CPUs to use.
    pub cpus: &'a [usize],
    /// CPU time that a job, and the device, spend on each request besides (the device in this process only).
    pub work: (Duration, Duration),
    /// Time before the measurement.
    pub ramp: Duration,
    /// Time measured.
    pub time: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    /// Requests per second.
    pub iops: f64,
    /// 10^6 bytes per second.
    pub mb_per_second: f64,
    /// Median latency, us.
    pub p50: f64,
    /// 95th percentile, us.
    pub p95: f64,
    /// 99th percentile, us.
    pub p99: f64,
    /// CPU time of the jobs per request, ns.
    pub guest_cpu: f64,
    /// CPU time of the device's threads per request, ns.
    pub device_cpu: f64,
    /// Context switches of both per request.
    pub switches: f64,
    /// Kicks per request.
    pub kicks: f64,
    /// Signals to the guest per request; unknown for a device in another process.
    pub signals: Option<f64>,
    /// Sleeps of the jobs per request.
    pub sleeps: f64,
    /// The mutex, if there is one.
    pub lock: Option<LockFigures>,
}

/// A mutex, per request.
#[derive(Debug, Clone, Copy, Default)]
pub struct LockFigures {
    /// Acquisitions per request.
    pub taken: f64,
    /// Share of the acquisitions that had to wait.
    pub contended: f64,
    /// Time waited per request, us, all threads together.
    pub wait_per_io: f64,
    /// Mean of the waits of those who waited, us.
    pub wait_mean: f64,
}

/// What else runs meanwhile.
#[derive(Debug)]
pub struct Hog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hog {
    /// Keeps a CPU busy with work that touches nobody's memory, until it is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] without threads.
    pub fn on(cpu: usize) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let body = move || {
            // Where it may not run there, it keeps another CPU busy, and the figures show it.
            let _ = vlane_driver::pin(&[cpu]);
            let (mut x, table) = (1_u64, vec![7_u64; 1024]);
            while !seen.load(Ordering::Relaxed) {
                for word in &table {
                    x = std::hint::black_box(x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word);
                }
            }
        };
        let thread = std::thread::Builder::new().name("hog".into()).spawn(body);
        let thread = thread.context(ErrorKind::Io, || "cannot start a thread")?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The CPUs of jobs and of the device's threads; empty: anywhere.
fn places(plan: &CellPlan<'_>, threads: usize) -> (Vec<usize>, Vec<usize>) {
    let n = plan.cpus.len().max(1);
    let turn = |count: usize, by: usize| (0..count).map(|i| plan.cpus[(i + by) % n]).collect();
    match plan.placement {
        _ if plan.cpus.is_empty() => (Vec::new(), Vec::new()),
        Placement::Free => (Vec::new(), Vec::new()),
        Placement::Together => (turn(plan.jobs.into(), 0), turn(threads, 0)),
        Placement::Apart => (turn(plan.jobs.into(), 0), turn(threads, 1)),
    }
}

/// Measures one cell. `program` is vlane's own file, `dir` a place for sockets; both are used only for vlane's own device.
///
/// # Errors
/// What the device, the guest's side or the server say; [`ErrorKind::Invalid`] if nothing was answered in the time;
/// [`ErrorKind::Interrupted`].
pub fn measure(plan: &CellPlan<'_>, program: &Path, dir: &Path, interrupt: &Interrupt) -> Result<Cell> {
    interrupt.check()?;
    let topology = plan.subject.topology;
    let (queues, threads) = (topology.queues(plan.jobs), topology.threads(plan.jobs));
    let (job_cpus, thread_cpus) = places(plan, threads.into());
    let workload = Workload { cpus: job_cpus, ..plan.workload.clone() };
    match plan.subject {
        Subject { kind: Kind::Model, .. } => model(plan, &workload, queues, thread_cpus, interrupt),
        Subject { kind: Kind::Vlane, .. } => {
            let threads = threads.to_string();
            let cpus: Vec<_> = thread_cpus.iter().map(ToString::to_string).collect();
            let lists_each_once = thread_cpus.iter().enumerate().all(|(i, c)| !thread_cpus[..i].contains(c));
            let cpus = match (cpus.is_empty(), lists_each_once) {
                (true, _) => "none".into(),
                (false, true) => cpus.join(","),
                // More threads than CPUs go round, which is what its own word for that does.
                (false, false) => "auto".into(),
            };
            let queues_text = queues.to_string();
            let arguments = ["--queues", &queues_text, "--threads", &threads, "--cpus", &cpus];
            let mut server = Server::vlane(program, dir, Storage::null(BYTES), &[], &arguments)?;
            let options = SessionOptions {
                queues,
                depth: topology.slots(plan.jobs, plan.depth),
                data: workload.block,
                ..SessionOptions::default()
            };
            let mut session = server.connect(&options)?;
            let region = workload.check(session.config(), session.negotiated())?;
            let (mut guest, _) = session.start()?;
            let mut cell = {
                let back = Back::Process(&session);
                run(plan, &workload, region, &mut guest, None, &back, interrupt)?
            };
            session.stop()?;
            drop(session);
            cell.signals = None;
            server.stop(Duration::from_secs(5))?;
            Ok(cell)
        }
    }
}

/// On the device in this process.
fn model(
    plan: &CellPlan<'_>,
    workload: &Workload,
    queues: u16,
    thread_cpus: Vec<usize>,
    interrupt: &Interrupt,
) -> Result<Cell> {
    let topology = plan.subject.topology;
    let options = BlkOptions {
        format: Format::Split,
        size: None,
        depth: topology.slots(plan.jobs, plan.depth),
        data: workload.block,
        segments: 1,
        indirect: true,
        event_idx: true,
    };
    let bytes = options.arena_bytes().map_err(vlane_driver::Error::from)? * usize::from(queues);
    let arena = Arena::new(MEMORY_BASE, bytes).map_err(vlane_driver::Error::from)?;
    let guest: std::result::Result<Vec<_>, _> =
        (0..queues).map(|_| GuestQueue::new(&arena, options)).collect();
    let mut guest = guest?;
    let lock = topology.has_mutex().then(|| Arc::new(FifoLock::default()));
    let config = DeviceConfig {
        threads: topology.threads(plan.jobs).into(),
        cpus: thread_cpus,
        lock: lock.clone(),
        bytes: BYTES,
        work: plan.work.1,
    };
    let device = Device::start(&arena, &guest, true, &config)?;
    let region = Region { offset: 0, blocks: BYTES / u64::from(workload.block) };
    let cell = run(plan, workload, region, &mut guest, lock, &Back::Here(&device), interrupt);
    // The device's own error says more than that of a guest that waited for it.
    device.stop()?;
    cell
}

/// The side that serves.
enum Back<'a> {
    Here(&'a Device),
    Process(&'a Session),
}

/// What the serving side has used and counted up to a moment; a device in another process tells nothing that it counts.
enum BackLook {
    Here(Threads, [u64; 4]),
    Process(Option<Snapshot>),
}

impl Back<'_> {
    fn look(&self) -> BackLook {
        match self {
            Self::Here(device) => {
                let tids = device.counters().iter().map(|c| c.tid.load(Ordering::Relaxed));
                let threads = Threads::take(tids);
                let sum = |pick: fn(&Counters) -> &AtomicU64| {
                    device.counters().iter().map(|c| pick(c).load(Ordering::Relaxed)).sum()
                };
                let counts =
                    [sum(|c| &c.signals), sum(|c| &c.waited_ns), sum(|c| &c.taken), sum(|c| &c.contended)];
                BackLook::Here(threads, counts)
            }
            Self::Process(session) => BackLook::Process(session.pid().and_then(Snapshot::take)),
        }
    }

    fn is_gone(&self) -> bool {
        match self {
            Self::Here(device) => device.has_failed(),
            Self::Process(session) => session.wait_hangup(Duration::ZERO),
        }
    }
}

impl BackLook {
    /// CPU time and switches; signals, time waited for the mutex, its acquisitions, and those that waited.
    fn since(&self, before: &Self) -> (Used, [u64; 4]) {
        match (self, before) {
            (Self::Here(now, counts), Self::Here(before, old)) => {
                (now.since(before), std::array::from_fn(|i| counts[i].saturating_sub(old[i])))
            }
            (Self::Process(Some(now)), Self::Process(Some(before))) => {
                let used = now.since(before);
                (Used { cpu: used.cpu, switches: used.switches }, [0; 4])
            }
            _ => <_>::default(),
        }
    }
}

/// Runs the jobs on started queues.
fn run(
    plan: &CellPlan<'_>,
    workload: &Workload,
    region: Region,
    guest: &mut Vec<GuestQueue>,
    lock: Option<Arc<FifoLock>>,
    back: &Back<'_>,
    interrupt: &Interrupt,
) -> Result<Cell> {
    let waker = Waker::of(guest)?;
    let shared = Shared::new();
    let window = (nanos(plan.ramp), nanos(plan.ramp + plan.time));
    let tids: Vec<_> = (0..plan.jobs).map(|_| Arc::new(AtomicI32::new(0))).collect();
    let job = |index: u16| Job {
        index,
        jobs: plan.jobs,
        workload,
        region,
        depth: plan.depth,
        shared: &shared,
        window,
        tid: Arc::clone(&tids[usize::from(index)]),
        work: plan.work.0,
    };
    let is_shared = plan.subject.topology.shares_queue();
    // Without the device's mutex (a device that has none), the guest's own lock on its ring is left.
    let share = |queue| SharedQueue::new(queue, plan.jobs, plan.depth, lock.clone().unwrap_or_default());
    let one_queue = is_shared.then(|| guest.pop()).flatten().map(share).transpose()?;
    let wake = || {
        waker.wake();
        if let Some(queue) = &one_queue {
            queue.wake_all();
        }
    };
    let (results, before, after) = std::thread::scope(|scope| {
        let threads = start(scope, plan.jobs, one_queue.as_ref(), guest, lock.as_deref(), job);
        let all_ended = || threads.iter().all(|thread| thread.is_finished());
        let (before, after) = watch(&shared, window, back, &tids, &wake, &all_ended, interrupt);
        let panicked = |_| Err(Error::new(ErrorKind::Process, "a job panicked"));
        let joined = threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked));
        (joined.collect::<Vec<_>>(), before, after)
    });
    interrupt.check()?;
    let stats = results.into_iter().collect::<Result<Vec<_>>>()?;
    summarize(plan, &stats, &before, &after, lock.is_some() || is_shared)
}

/// Starts the jobs, each with a port to the one queue or to a queue of its own.
pub(super) fn start<'scope, 'env: 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    jobs: u16,
    one_queue: Option<&'env SharedQueue>,
    guest: &'env mut [GuestQueue],
    lock: Option<&'env FifoLock>,
    job: impl Fn(u16) -> Job<'env>,
) -> Vec<ScopedJoinHandle<'scope, Result<JobStats>>> {
    let own = (0..jobs).zip(guest).map(|(index, queue)| {
        let job = job(index);
        scope.spawn(move || job.run(Own::new(queue, lock)))
    });
    match one_queue {
        None => own.collect(),
        Some(queue) => {
            let shared = (0..jobs).map(|index| {
                let job = job(index);
                scope.spawn(move || job.run(queue.port(index)))
            });
            shared.collect()
        }
    }
}

/// What was seen at one end of the window.
struct Look {
    at: Instant,
    jobs: Threads,
    back: BackLook,
}

/// Waits for the window's ends and for the jobs; ends them.
fn watch(
    shared: &Shared,
    window: (u64, u64),
    back: &Back<'_>,
    tids: &[Arc<AtomicI32>],
    wake: &dyn Fn(),
    all_ended: &dyn Fn() -> bool,
    interrupt: &Interrupt,
) -> (Option<Look>, Option<Look>) {
    let look = || Look {
        at: Instant::now(),
        jobs: Threads::take(tids.iter().map(|tid| tid.load(Ordering::Relaxed))),
        back: back.look(),
    };
    let (mut before, mut after, mut stopped) = (None, None, None::<Instant>);
    while !all_ended() {
        let now = shared.now();
        if before.is_none() && now >= window.0 {
            before = Some(look());
        }
        let failed = back.is_gone();
        if stopped.is_none() && (now >= window.1 || failed || interrupt.is_raised()) {
            after = Some(look());
            shared.stop.store(true, Ordering::Relaxed);
            stopped = Some(Instant::now());
        }
        if failed || stopped.is_some_and(|since| since.elapsed() > DRAIN) {
            shared.abort.store(true, Ordering::Relaxed);
            wake();
        }
        let next = [window.0, window.1].into_iter().find(|at| *at > now).map_or(2_000_000, |at| at - now);
        std::thread::sleep(Duration::from_nanos(next.clamp(200_000, 20_000_000)));
    }
    (before, after)
}

fn summarize(
    plan: &CellPlan<'_>,
    stats: &[JobStats],
    before: &Option<Look>,
    after: &Option<Look>,
    has_lock: bool,
) -> Result<Cell> {
    let (Some(before), Some(after), Some(first)) = (before, after, stats.first()) else {
        return Err(Error::new(ErrorKind::Process, "the jobs ended before the measurement did"));
    };
    let mut latency = first.latency.clone();
    latency.reset();
    let mut lock = LockUse::default();
    let (mut bytes, mut kicks, mut sleeps, mut errors) = (0, 0, 0, 0);
    for job in stats {
        let _ = latency.add(&job.latency);
        lock.add(&job.counts.lock);
        bytes += job.bytes;
        kicks += job.counts.kicks;
        sleeps += job.counts.sleeps;
        errors += job.errors;
    }
    if errors > 0 {
        return Err(Error::new(
            ErrorKind::Process,
            format!("{} failed on a null device", counted(errors, "request")),
        ));
    }
    let ios = latency.len() as f64;
    if ios == 0.0 {
        let context =
            "no request was answered within the time measured: the machine is too busy for it; change --time";
        return Err(Error::new(ErrorKind::Invalid, context));
    }
    let seconds = plan.time.as_secs_f64();
    let iops = ios / seconds;
    // What is observed from outside has a window of its own, which is nearly the same: rates are compared with rates.
    let wall = (after.at - before.at).as_secs_f64().max(1e-9);
    let per_io = |total: f64| total / wall / iops;
    let jobs = after.jobs.since(&before.jobs);
    let (back, [signals, waited_ns, taken, contended]) = after.back.since(&before.back);
    let us = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
    let lock = has_lock.then(|| {
        let (taken, contended) = (lock.taken + taken, lock.contended + contended);
        let waited = lock.waited_ns + waited_ns;
        let share = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
        LockFigures {
            taken: taken as f64 / ios,
            contended: share(contended, taken),
            wait_per_io: waited as f64 / 1000.0 / ios,
            wait_mean: share(waited, contended) / 1000.0,
        }
    });
    Ok(Cell {
        iops,
        mb_per_second: bytes as f64 / seconds / 1e6,
        p50: us(0.5),
        p95: us(0.95),
        p99: us(0.99),
        guest_cpu: per_io(jobs.cpu.as_secs_f64() * 1e9),
        device_cpu: per_io(back.cpu.as_secs_f64() * 1e9),
        switches: per_io((jobs.switches + back.switches) as f64),
        kicks: kicks as f64 / ios,
        signals: Some(per_io(signals as f64)),
        sleeps: sleeps as f64 / ios,
        lock,
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
