//! A device in this process: queues, I/O threads, and the paper's global mutex if it has one.
//!
//! It has the device's side of vlane's virtqueues and vlane's null engine, and nothing of a lane's cleverness: an I/O thread sleeps until
//! it is kicked, takes what is there, answers it, signals, and sleeps again, as QEMU's does. So Baseline, MQ and MT on it
//! differ in the number of queues, the number of threads and the mutex alone, and what is between them is theirs.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use vlane_driver::GuestQueue;
use vlane_driver::ring::{Arena, Format};
use vlane_engine::null::{NullConfig, NullEngine};
use vlane_engine::{Channel, Engine, Outcome};
use vlane_memory::{GuestMemory, Region, RegionSpec};
use vlane_ring::{Kind, Queue, QueueConfig, RingFormat, Slot, Status};

use super::lock::{FifoLock, LockUse};
use vlane_host::error::{Context, Error, ErrorKind, Result};

/// Requests that are taken from one queue before another has its turn.
const BUDGET: usize = 128;
/// The event that means "look whether to stop".
const STOP: u64 = u64::MAX;

/// What the device is to be like.
#[derive(Debug)]
pub struct DeviceConfig {
    /// I/O threads; queue i belongs to thread i modulo their number.
    pub threads: usize,
    /// The CPU of each thread; empty: anywhere.
    pub cpus: Vec<usize>,
    /// The mutex that every batch is processed under; none: threads share nothing.
    pub lock: Option<Arc<FifoLock>>,
    /// Capacity in bytes.
    pub bytes: u64,
    /// CPU time that the I/O thread spends on each request besides: what a host's storage stack would cost.
    pub work: Duration,
}

/// What one I/O thread did so far. Written by it alone, read by anybody.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Kernel thread number; 0 until it runs.
    pub tid: AtomicI32,
    /// Requests answered.
    pub requests: AtomicU64,
    /// Visits to a queue that found something.
    pub batches: AtomicU64,
    /// Signals sent to the guest.
    pub signals: AtomicU64,
    /// Times it slept.
    pub sleeps: AtomicU64,
    /// Time waited for the mutex, in ns.
    pub waited_ns: AtomicU64,
    /// Acquisitions of the mutex that had to wait.
    pub contended: AtomicU64,
    /// Acquisitions of the mutex.
    pub taken: AtomicU64,
}

/// A running device. Dropping it ends its threads.
#[derive(Debug)]
pub struct Device {
    shared: Arc<Shared>,
    counters: Vec<Arc<Counters>>,
    threads: Vec<JoinHandle<Result<()>>>,
    wakes: Vec<OwnedFd>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    failed: AtomicBool,
}

/// A queue as its thread has it.
struct Served {
    queue: Queue,
    kick: OwnedFd,
    call: OwnedFd,
    /// There may be more than was taken: no kick will tell.
    ready: bool,
}

impl Device {
    /// Starts a device on queues that lie in `arena`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives no descriptors, memory or threads; [`ErrorKind::Invalid`] if the queues cannot be served.
    pub fn start(
        arena: &Arena,
        queues: &[GuestQueue],
        event_idx: bool,
        config: &DeviceConfig,
    ) -> Result<Self> {
        let memory = memory_of(arena)?;
        let threads = config.threads.clamp(1, queues.len().max(1));
        let mut shares: Vec<Vec<Served>> = (0..threads).map(|_| Vec::new()).collect();
        for (index, guest) in queues.iter().enumerate() {
            shares[index % threads].push(serve(arena, guest, event_idx, &memory)?);
        }
        let null = NullConfig { size: config.bytes, latency: None, parallelism: 1 };
        let engine = NullEngine::new(null).context(ErrorKind::Invalid, || "there is no null device")?;
        let engine = Arc::new(engine);
        let mut device =
            Self { shared: Arc::default(), counters: Vec::new(), threads: Vec::new(), wakes: Vec::new() };
        for (number, share) in shares.into_iter().enumerate() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let wake = eventfd(0, flags).context(ErrorKind::Io, || "cannot make an eventfd")?;
            let events = watch(&share, &wake)?;
            let counters = Arc::new(Counters::default());
            let thread = IoThread {
                share,
                events,
                engine: Arc::clone(&engine),
                lock: config.lock.clone(),
                work: config.work,
                cpu: config.cpus.get(number).copied(),
                shared: Arc::clone(&device.shared),
                counters: Arc::clone(&counters),
            };
            let shared = Arc::clone(&device.shared);
            let body = move || {
                let result = thread.run();
                if result.is_err() {
                    shared.failed.store(true, Ordering::Relaxed);
                }
                result
            };
            let builder = std::thread::Builder::new().name(format!("io-{number}"));
            let thread = builder.spawn(body).context(ErrorKind::Io, || "cannot start a thread")?;
            device.threads.push(thread);
            device.counters.push(counters);
            device.wakes.push(wake);
        }
        Ok(device)
    }

    /// Its threads' counters.
    pub fn counters(&self) -> &[Arc<Counters>] {
        &self.counters
    }

    /// Whether a thread has ended with an error: nothing more will be answered.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Ends the threads and tells how it went.
    ///
    /// # Errors
    /// The first thread's that failed: [`ErrorKind::Process`] if a queue was broken.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.shared.stop.store(true, Ordering::SeqCst);
        for wake in &self.wakes {
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread
                .join()
                .unwrap_or_else(|_| Err(Error::new(ErrorKind::Process, "an I/O thread panicked")));
            result = result.and(ended);
        }
        result
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// The driver's memory as a device maps it.
fn memory_of(arena: &Arena) -> Result<Arc<GuestMemory>> {
    let fd = arena.fd().ok_or_else(|| Error::new(ErrorKind::Io, "guest memory has no file"))?;
    let fd = fd.try_clone_to_owned().context(ErrorKind::Io, || "cannot duplicate a descriptor")?;
    let spec = RegionSpec { guest: arena.base(), size: arena.size(), user: arena.user_addr(), offset: 0 };
    let region = Region::map(spec, &std::fs::File::from(fd));
    let memory = region.and_then(|region| GuestMemory::new(vec![region]));
    Ok(Arc::new(memory.context(ErrorKind::Io, || "cannot map guest memory a second time")?))
}

fn serve(arena: &Arena, guest: &GuestQueue, event_idx: bool, memory: &Arc<GuestMemory>) -> Result<Served> {
    let at = guest.blk.layout();
    let config = QueueConfig {
        layout: match at.format {
            Format::Split => RingFormat::Split,
            Format::Packed => RingFormat::Packed,
        },
        size: at.size,
        event_idx,
        desc: arena.to_user(at.desc),
        driver: arena.to_user(at.driver),
        device: arena.to_user(at.device),
        // Both wrap counters of a fresh packed ring are 1.
        base: if at.format == Format::Packed { 1 << 15 | 1 << 31 } else { 0 },
        log_addr: None,
    };
    let queue = Queue::new(config, Arc::clone(memory));
    let twin = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let (kick, call) = (twin(guest.kick_fd()), twin(guest.call_fd()));
    let what = || "cannot duplicate an eventfd";
    Ok(Served {
        queue: queue.context(ErrorKind::Invalid, || "the device cannot use the queue")?,
        kick: kick.context(ErrorKind::Io, what)?,
        call: call.context(ErrorKind::Io, what)?,
        ready: true,
    })
}

/// Waits for the edges of all kicks and of `wake`: nothing ever needs to be read.
fn watch(share: &[Served], wake: &OwnedFd) -> Result<OwnedFd> {
    let what = || "cannot wait for eventfds";
    let events = epoll::create(epoll::CreateFlags::CLOEXEC).context(ErrorKind::Io, what)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    for (index, served) in share.iter().enumerate() {
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&events, &served.kick, data, flags).context(ErrorKind::Io, what)?;
    }
    epoll::add(&events, wake, epoll::EventData::new_u64(STOP), flags).context(ErrorKind::Io, what)?;
    Ok(events)
}

struct IoThread {
    share: Vec<Served>,
    events: OwnedFd,
    engine: Arc<NullEngine>,
    lock: Option<Arc<FifoLock>>,
    work: Duration,
    cpu: Option<usize>,
    shared: Arc<Shared>,
    counters: Arc<Counters>,
}

impl IoThread {
    fn run(mut self) -> Result<()> {
        if let Some(cpu) = self.cpu {
            vlane_driver::pin(&[cpu])?;
        }
        self.counters.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        let mut channels = Vec::new();
        for served in &self.share {
            let channel = self.engine.channel(served.queue.config().size);
            channels.push(channel.context(ErrorKind::Io, || "the null device refuses a queue")?);
        }
        let sectors = self.engine.geometry().sectors;
        let mut usage = LockUse::default();
        let no_event = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = vec![no_event; self.share.len() + 1];
        while !self.shared.stop.load(Ordering::SeqCst) {
            for (served, channel) in self.share.iter_mut().zip(&mut channels) {
                if !served.ready {
                    continue;
                }
                let held = self.lock.as_deref().map(|lock| lock.lock(&mut usage));
                let result = visit(served, channel.as_mut(), sectors, self.work, &self.counters);
                drop(held);
                result?;
                count(&self.counters.waited_ns, usage.waited_ns);
                count(&self.counters.contended, usage.contended);
                count(&self.counters.taken, usage.taken);
            }
            if self.share.iter().any(|served| served.ready) {
                continue;
            }
            let slept = self.counters.sleeps.load(Ordering::Relaxed);
            count(&self.counters.sleeps, slept + 1);
            match epoll::wait(&self.events, events.as_mut_slice(), None) {
                Ok(n) => {
                    for event in &events[..n] {
                        let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                        if let Some(served) = self.share.get_mut(index) {
                            served.ready = true;
                        }
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return Err(Error::caused_by(
                        ErrorKind::Io,
                        "cannot wait for kicks",
                        std::io::Error::from(error),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// One thread writes, so a plain store is enough.
fn count(counter: &AtomicU64, value: u64) {
    counter.store(value, Ordering::Relaxed);
}

/// Answers what is in a queue, at most [`BUDGET`] requests, and signals the guest if it wants to be.
fn visit(
    served: &mut Served,
    channel: &mut dyn Channel,
    sectors: u64,
    work: Duration,
    counters: &Counters,
) -> Result<()> {
    let broken = |reason| Error::caused_by(ErrorKind::Process, "the driver broke a virtqueue", reason);
    let mut taken = 0;
    served.queue.disable_notify();
    loop {
        let before = taken;
        while taken < BUDGET {
            let Some(slot) = served.queue.pop().map_err(broken)? else { break };
            taken += 1;
            super::work(work);
            let status = answer(&served.queue, slot, channel, sectors);
            served.queue.complete(slot, status);
        }
        if taken > before && served.queue.publish() {
            count(&counters.signals, counters.signals.load(Ordering::Relaxed) + 1);
            // One that is full is readable already.
            let _ = rustix::io::write(served.call.as_fd(), &1_u64.to_ne_bytes());
        }
        served.ready = taken >= BUDGET;
        if served.ready || !served.queue.enable_notify().map_err(broken)? {
            break;
        }
        served.queue.disable_notify();
    }
    if taken > 0 {
        count(&counters.requests, counters.requests.load(Ordering::Relaxed) + taken as u64);
        count(&counters.batches, counters.batches.load(Ordering::Relaxed) + 1);
    }
    Ok(())
}

fn answer(queue: &Queue, slot: Slot, channel: &mut dyn Channel, sectors: u64) -> Status {
    let request = queue.request(slot);
    match request.kind() {
        Kind::Refused(status) => return status,
        Kind::Unreachable => return Status::IoErr,
        Kind::GetId => return Status::Unsupported,
        _ if !request.fits(sectors) => return Status::IoErr,
        _ => {}
    }
    // The null device without a latency answers at once, and asks nobody.
    match channel.submit(slot, request, channel.defaults(), &mut Vec::new()) {
        Outcome::Done(status) => status,
        Outcome::Whole(_) | Outcome::Pending | Outcome::Again => Status::IoErr,
    }
}
