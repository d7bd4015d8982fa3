//! The guest's jobs: each a thread that keeps so many requests out, on a queue of its own or on one that all share.
//!
//! A job does what a program with `libaio` does in the guest: it takes what has come back, puts new requests in its
//! place, `batch` at a time (1: a system call for each, as fio has it by default), and sleeps when nothing has come back. How
//! requests reach the device is a [`Port`]: [`Own`] here, [`SharedPort`](super::shared::SharedPort) for the Baseline.
//!
//! The driver's job (`vlane_driver`) is not used for that: it owns its queue, and submits and publishes in place. Here a batch is sent as one step, because
//! a step is what the mutex covers, and it has the CPU time of a guest's program in front of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use vlane_driver::ring::{Completion, Kind, Request};
use vlane_driver::{GuestQueue, Region, Requests, Workload, pin};
use vlane_error::counted;

use super::lock::{FifoLock, LockUse};
use vlane_host::error::{Context, Error, ErrorKind, Result};

/// The longest latency told apart, in ns.
const LONGEST_NS: u64 = 60_000_000_000;

/// A job's way to the device.
pub trait Port {
    /// Appends what has come back, without waiting.
    ///
    /// # Errors
    /// When the device broke the queue.
    fn take(&mut self, done: &mut Vec<Completion>) -> Result<()>;

    /// Issues requests, each in a slot that is idle, and makes them visible together.
    ///
    /// # Errors
    /// When the queue refuses one.
    fn send(&mut self, requests: &[(u16, Request)]) -> Result<()>;

    /// Returns when something may have come back, or when the run was told to end.
    ///
    /// # Errors
    /// When the system refuses to wait.
    fn wait(&mut self) -> Result<()>;

    /// What it has counted.
    fn counts(&mut self) -> &mut PortCounts;

    /// The job has nothing out and will not come back.
    fn leave(&mut self) {}
}

/// What a port counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct PortCounts {
    /// Kicks.
    pub kicks: u64,
    /// Times that the job slept.
    pub sleeps: u64,
    /// The global mutex.
    pub lock: LockUse,
}

/// A queue that no other job uses.
#[derive(Debug)]
pub struct Own<'a> {
    queue: &'a mut GuestQueue,
    /// The mutex that a vCPU takes to tell the device something (where QEMU has one).
    lock: Option<&'a FifoLock>,
    counts: PortCounts,
}

impl<'a> Own<'a> {
    /// A port on a queue.
    pub fn new(queue: &'a mut GuestQueue, lock: Option<&'a FifoLock>) -> Self {
        queue.blk.disable_interrupts();
        Self { queue, lock, counts: PortCounts::default() }
    }
}

impl Port for Own<'_> {
    #[inline]
    fn take(&mut self, done: &mut Vec<Completion>) -> Result<()> {
        Ok(self.queue.blk.reap(done).map_err(vlane_driver::Error::from)?)
    }

    #[inline]
    fn send(&mut self, requests: &[(u16, Request)]) -> Result<()> {
        for (slot, request) in requests {
            self.queue.blk.submit(*slot, *request).map_err(vlane_driver::Error::from)?;
        }
        if self.queue.blk.publish() {
            self.counts.kicks += 1;
            let _held = self.lock.map(|lock| lock.lock(&mut self.counts.lock));
            self.queue.kick()?;
        }
        Ok(())
    }

    #[inline]
    fn wait(&mut self) -> Result<()> {
        if !self.queue.blk.enable_interrupts() {
            self.counts.sleeps += 1;
            self.queue.wait()?;
        }
        self.queue.blk.disable_interrupts();
        Ok(())
    }

    fn counts(&mut self) -> &mut PortCounts {
        &mut self.counts
    }
}

/// What a run's threads share.
#[derive(Debug)]
pub struct Shared {
    /// Begin no more requests.
    pub stop: AtomicBool,
    /// Leave at once.
    pub abort: AtomicBool,
    /// Jobs that have ended.
    pub ended: AtomicU64,
    start: Instant,
}

impl Shared {
    /// For a run that begins now.
    pub fn new() -> Self {
        let flag = || AtomicBool::new(false);
        Self { stop: flag(), abort: flag(), ended: AtomicU64::new(0), start: Instant::now() }
    }

    /// Nanoseconds since the run's beginning.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "584 years")]
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self::new()
    }
}

/// One job.
#[derive(Debug)]
pub struct Job<'a> {
    /// Its number.
    pub index: u16,
    /// How many there are.
    pub jobs: u16,
    /// What it does.
    pub workload: &'a Workload,
    /// Where on the device.
    pub region: Region,
    /// Requests that it keeps out.
    pub depth: u16,
    /// What the run's threads share.
    pub shared: &'a Shared,
    /// When it measures, in ns of the run's clock.
    pub window: (u64, u64),
    /// Where it leaves its kernel thread number.
    pub tid: Arc<AtomicI32>,
    /// CPU time that it spends on each request besides: what a guest's program and kernel would cost.
    pub work: Duration,
}

/// What a job measured.
#[derive(Debug)]
pub struct JobStats {
    /// Of requests completed within the window, in ns.
    pub latency: Histogram<u64>,
    /// Bytes of those.
    pub bytes: u64,
    /// Requests completed in all, the ramp and the end included.
    pub completed: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Its port's, within the window.
    pub counts: PortCounts,
}

/// A slot whose request is not out.
const IDLE: u64 = u64::MAX;

impl Job<'_> {
    /// Runs until it is told to stop and everything that is out has come back.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] when it is told to leave with requests out; [`ErrorKind::Process`] when a request comes back that is not
    /// out, or the device breaks the queue.
    pub fn run<P: Port>(self, mut port: P) -> Result<JobStats> {
        let result = self.drive(&mut port);
        port.leave();
        self.shared.ended.fetch_add(1, Ordering::SeqCst);
        result
    }

    fn drive<P: Port>(&self, port: &mut P) -> Result<JobStats> {
        let cpus = &self.workload.cpus;
        if !cpus.is_empty() {
            pin(&[cpus[usize::from(self.index) % cpus.len()]])?;
        }
        self.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        let latency = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        let latency = latency.context(ErrorKind::Io, || "cannot make a histogram")?;
        let mut stats =
            JobStats { latency, bytes: 0, completed: 0, errors: 0, counts: PortCounts::default() };
        let mut requests = Requests::new(self.workload, self.region, self.index, self.jobs);
        let batch = match self.workload.batch {
            0 => usize::from(self.depth),
            n => usize::from(n),
        };
        let mut since = vec![IDLE; usize::from(self.depth)];
        let mut done = Vec::with_capacity(usize::from(self.depth));
        let mut ready: Vec<(u16, Request)> = Vec::with_capacity(usize::from(self.depth));
        let mut out: usize = 0;
        let now = self.shared.now();
        for slot in 0..self.depth {
            self.put(&mut ready, slot, &mut requests);
        }
        out += self.send(port, &mut ready, &mut since, now, batch)?;
        let (mut measuring, mut measured) = (false, false);
        while out > 0 {
            port.take(&mut done)?;
            if done.is_empty() {
                if self.shared.abort.load(Ordering::Relaxed) {
                    return Err(Error::new(
                        ErrorKind::Timeout,
                        format!("{} never came back", counted(out, "request")),
                    ));
                }
                port.wait()?;
                continue;
            }
            let now = self.shared.now();
            if !measuring && now >= self.window.0 {
                measuring = true;
                *port.counts() = PortCounts::default();
            }
            if !measured && now >= self.window.1 {
                measured = true;
                stats.counts = *port.counts();
            }
            let stop = self.shared.stop.load(Ordering::Relaxed);
            for completion in done.drain(..) {
                let slot = usize::from(completion.slot);
                let begun = since.get_mut(slot).map_or(IDLE, |since| std::mem::replace(since, IDLE));
                if begun == IDLE {
                    let context = format!("the device answered request {slot}, which it was not given");
                    return Err(Error::new(ErrorKind::Process, context));
                }
                out -= 1;
                stats.completed += 1;
                stats.errors += u64::from(completion.status != 0);
                if measuring && !measured {
                    stats.latency.saturating_record(now - begun);
                    stats.bytes += u64::from(self.workload.block);
                }
                if !stop {
                    self.put(&mut ready, completion.slot, &mut requests);
                }
            }
            out += self.send(port, &mut ready, &mut since, now, batch)?;
        }
        if !measured {
            stats.counts = *port.counts();
        }
        Ok(stats)
    }

    #[inline]
    fn put(&self, ready: &mut Vec<(u16, Request)>, slot: u16, requests: &mut Requests) {
        let (kind, at) = requests.next(slot);
        let len = if kind == Kind::Flush { 0 } else { self.workload.block };
        ready.push((slot, Request { kind, sector: at / 512, len, ioprio: 0 }));
    }

    /// Sends what is ready, a batch at a time; returns how many that were.
    #[inline]
    fn send<P: Port>(
        &self,
        port: &mut P,
        ready: &mut Vec<(u16, Request)>,
        since: &mut [u64],
        now: u64,
        batch: usize,
    ) -> Result<usize> {
        for (slot, _) in ready.iter() {
            since[usize::from(*slot)] = now;
        }
        for part in ready.chunks(batch) {
            super::work(self.work.saturating_mul(u32::try_from(part.len()).unwrap_or(u32::MAX)));
            port.send(part)?;
        }
        let sent = ready.len();
        ready.clear();
        Ok(sent)
    }
}

/// Makes jobs that sleep look again: at the end of a run, or when the device is gone.
#[derive(Debug)]
pub struct Waker(pub Vec<OwnedFd>);

impl Waker {
    /// For the queues' interrupts.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if there are no descriptors left.
    pub fn of(queues: &[GuestQueue]) -> Result<Self> {
        let calls: std::io::Result<Vec<_>> =
            queues.iter().map(|q| q.call_fd().try_clone_to_owned()).collect();
        Ok(Self(calls.context(ErrorKind::Io, || "cannot duplicate an eventfd")?))
    }

    /// Wakes everybody once.
    pub fn wake(&self) {
        for call in &self.0 {
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
    }
}

/// How long requests that are out at the end of a run may take.
pub const DRAIN: Duration = Duration::from_secs(30);
