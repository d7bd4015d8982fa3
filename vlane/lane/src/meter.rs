//! The governor's facts on a thread: its idle time, and its number of rounds. A thread without a
//! governor has none of this.
//!
//! The thread reads the clock when it runs out of work and when it has some again; while it always
//! has some, it reads none. A thread that has work wakes the governor, if that sleeps.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vlane_error::locked;

/// One thread's meter, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Meter {
    /// Time without work, in ns, but for the time since `idle_since`.
    idle: AtomicU64,
    /// Since when it has had none, in ns from the origin; 0: it has some.
    idle_since: AtomicU64,
    rounds: AtomicU64,
    /// The kernel's number for it.
    tid: AtomicI32,
}

/// All threads' of a pool.
#[derive(Debug)]
pub(crate) struct Meters {
    origin: Instant,
    threads: Vec<Meter>,
    /// The governor wants to be woken by the next thread that has work.
    asleep: AtomicBool,
    looker: Mutex<Option<std::thread::Thread>>,
}

/// A reading of a thread's meter.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reading {
    /// Time without work since the origin.
    pub(crate) idle: Duration,
    pub(crate) rounds: u64,
}

impl Meters {
    pub(crate) fn new(threads: usize) -> Meters {
        Meters {
            origin: Instant::now(),
            threads: (0..threads).map(|_| Meter::default()).collect(),
            asleep: AtomicBool::new(false),
            looker: Mutex::default(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn read(&self, thread: usize) -> Reading {
        let Some(meter) = self.threads.get(thread) else { return Reading::default() };
        let (mut since, mut idle) = (0, 0);
        // Both of the same moment, unless the thread is quicker than the reader again and again:
        // then they are off by a short rest.
        for _ in 0..4 {
            since = meter.idle_since.load(Ordering::Acquire);
            idle = meter.idle.load(Ordering::Acquire);
            if meter.idle_since.load(Ordering::Acquire) == since {
                break;
            }
        }
        let going_on = if since == 0 { 0 } else { self.now().saturating_sub(since) };
        Reading {
            idle: Duration::from_nanos(idle + going_on),
            rounds: meter.rounds.load(Ordering::Relaxed),
        }
    }

    /// The kernel's number of a thread; 0 before it runs.
    pub(crate) fn tid(&self, thread: usize) -> i32 {
        self.threads.get(thread).map_or(0, |meter| meter.tid.load(Ordering::Relaxed))
    }

    /// From now on the next thread that has work wakes the calling one ([`std::thread::park`]). A
    /// thread that got some at this moment may not: look again a moment later, before sleeping for
    /// longer.
    pub(crate) fn wake_me(&self) {
        *locked(&self.looker) = Some(std::thread::current());
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// Returns true if no thread has woken the governor since.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }

    #[cold]
    pub(crate) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(looker) = &*locked(&self.looker)
        {
            looker.unpark();
        }
    }
}

/// A thread's side.
#[derive(Debug)]
pub(crate) struct Gauge {
    meters: Arc<Meters>,
    number: usize,
    idle: u64,
    since: u64,
    rounds: u64,
}

impl Gauge {
    /// On the thread itself.
    pub(crate) fn new(meters: Arc<Meters>, number: usize) -> Gauge {
        let gauge = Gauge { meters, number, idle: 0, since: 0, rounds: 0 };
        if let Some(meter) = gauge.meter() {
            meter.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        }
        gauge
    }

    fn meter(&self) -> Option<&Meter> {
        self.meters.threads.get(self.number)
    }

    /// A round had work.
    #[inline]
    pub(crate) fn worked(&mut self) {
        self.rounds += 1;
        if let Some(meter) = self.meter() {
            meter.rounds.store(self.rounds, Ordering::Relaxed);
        }
    }

    /// The thread is idle.
    pub(crate) fn rests(&mut self) {
        self.since = self.meters.now().max(1);
        if let Some(meter) = self.meter() {
            meter.idle_since.store(self.since, Ordering::Release);
        }
    }

    /// If it rested, there may be work again.
    #[inline]
    pub(crate) fn goes_on(&mut self) {
        if self.since != 0 {
            self.wakes();
        }
    }

    fn wakes(&mut self) {
        self.idle += self.meters.now().saturating_sub(std::mem::take(&mut self.since));
        if let Some(meter) = self.meter() {
            meter.idle.store(self.idle, Ordering::Release);
            meter.idle_since.store(0, Ordering::Release);
        }
        if self.meters.asleep.load(Ordering::Relaxed) {
            self.meters.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_resting_thread_is_idle() {
        let meters = Arc::new(Meters::new(2));
        let mut gauge = Gauge::new(Arc::clone(&meters), 1);
        assert!(meters.tid(1) > 0 && meters.tid(0) == 0 && meters.tid(9) == 0);
        gauge.rests();
        let pause = Duration::from_millis(5);
        std::thread::sleep(pause);
        assert!(meters.read(1).idle >= pause, "while it rests");
        gauge.goes_on();
        let idle = meters.read(1).idle;
        assert!(idle >= pause);
        gauge.worked();
        std::thread::sleep(pause);
        assert_eq!((meters.read(1).idle, meters.read(1).rounds), (idle, 1));
    }

    #[test]
    fn working_thread_wakes_the_governor() {
        let meters = Arc::new(Meters::new(1));
        let looking = Arc::clone(&meters);
        let looker = std::thread::spawn(move || {
            looking.wake_me();
            while looking.is_asleep() {
                std::thread::park();
            }
        });
        let mut gauge = Gauge::new(Arc::clone(&meters), 0);
        while !meters.is_asleep() {
            std::thread::yield_now();
        }
        gauge.rests();
        gauge.goes_on();
        looker.join().expect("it was woken");
    }
}
