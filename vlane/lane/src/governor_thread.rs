//! The thread that moves lanes: it looks at the others from time to time, asks the [`Governor`],
//! and sends the lanes to their threads.
//!
//! The thread sleeps while all lanes are idle, and is woken by the next thread that has work. While
//! one thread does for all lanes it looks less and less often, up to [`LONGEST`].

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::governor::{Governor, LaneLook, Look, ThreadLook};
use crate::meter::Meters;
use crate::routes::Routes;

/// Time between two looks, at least and at most.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(160);
/// For how long a lane may keep the guest waiting because it is to move.
const PATIENCE: Duration = Duration::from_millis(100);

/// The thread. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct GovernorThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    routes: Arc<Routes>,
    meters: Arc<Meters>,
    ended: AtomicBool,
}

impl GovernorThread {
    /// Steers the lanes of a pool of so many threads.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(
        threads: usize,
        routes: Arc<Routes>,
        meters: Arc<Meters>,
    ) -> io::Result<GovernorThread> {
        let shared = Arc::new(Shared { routes, meters, ended: AtomicBool::new(false) });
        let looking = Arc::clone(&shared);
        let body = move || looking.run(threads);
        let thread = std::thread::Builder::new().name("governor".to_owned()).spawn(body)?;
        Ok(GovernorThread { shared, thread: Some(thread) })
    }
}

impl Drop for GovernorThread {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that chooses the number of lane threads panicked");
            }
        }
    }
}

impl Shared {
    fn run(&self, threads: usize) {
        let mut governor = Governor::new(threads);
        let mut eyes = Eyes::new(threads);
        let mut under_way: Vec<(u16, usize, Instant)> = Vec::new();
        let (mut period, mut empty) = (SHORTEST, 0);
        self.look(&mut eyes);
        while !self.has_ended() {
            self.pause(period);
            let look = self.look(&mut eyes);
            for step in governor.decide(&look) {
                tracing::debug!("lane {} is to go to thread {}", step.lane, step.thread);
                self.routes.move_lane(step.lane, step.thread);
                under_way.push((step.lane, step.thread, Instant::now()));
            }
            under_way.retain(|(lane, to, since)| {
                let is_there =
                    look.lanes.iter().any(|seen| (seen.lane, seen.thread) == (*lane, *to));
                if !is_there && since.elapsed() > PATIENCE {
                    self.routes.cancel(*lane);
                    return false;
                }
                !is_there
            });
            empty = if look.lanes.iter().all(|lane| lane.requests == 0) { empty + 1 } else { 0 };
            let is_settled = governor.is_settled() && under_way.is_empty();
            if is_settled && empty >= 2 {
                self.sleep();
                self.look(&mut eyes);
                (period, empty) = (SHORTEST, 0);
            } else {
                let is_easy =
                    look.threads.iter().all(|thread| thread.busy < look.length.mul_f64(0.4));
                period = if is_settled && is_easy { (period * 2).min(LONGEST) } else { SHORTEST };
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn pause(&self, period: Duration) {
        let begin = Instant::now();
        while let Some(left) = period.checked_sub(begin.elapsed()).filter(|left| !left.is_zero())
            && !self.has_ended()
        {
            std::thread::park_timeout(left);
        }
    }

    /// Sleeps until a thread has work.
    fn sleep(&self) {
        let counted = || {
            self.routes
                .running()
                .iter()
                .map(|lane| lane.counters.snapshot().requests())
                .sum::<u64>()
        };
        let before = counted();
        self.meters.wake_me();
        // Work that came at that moment is counted a moment later.
        std::thread::park_timeout(SHORTEST);
        if counted() != before {
            return;
        }
        while self.meters.is_asleep() && !self.has_ended() {
            std::thread::park();
        }
    }

    /// The changes since the last look.
    fn look(&self, eyes: &mut Eyes) -> Look {
        let running = self.routes.running();
        let (now, before) = (Instant::now(), std::mem::take(&mut eyes.lanes));
        let length = now - std::mem::replace(&mut eyes.at, now);
        let mut look = Look { length, ..Look::default() };
        for (number, seen) in eyes.threads.iter_mut().enumerate() {
            let is_used = running.iter().any(|lane| lane.thread == number);
            look.threads.push(seen.look(&self.meters, number, is_used, length));
        }
        for lane in running {
            let requests = lane.counters.snapshot().requests();
            let new = requests - before.get(&lane.lane).copied().unwrap_or(requests).min(requests);
            look.lanes.push(LaneLook { lane: lane.lane, thread: lane.thread, requests: new });
            eyes.lanes.insert(lane.lane, requests);
        }
        look
    }
}

/// The observations of the last look.
#[derive(Debug)]
struct Eyes {
    at: Instant,
    threads: Vec<Seen>,
    /// By lane, its requests.
    lanes: HashMap<u16, u64>,
}

/// A thread.
#[derive(Debug, Default)]
struct Seen {
    idle: Duration,
    rounds: u64,
    /// The CPU time; `None` when it was not looked at.
    cpu: Option<Duration>,
    /// `/proc/self/task/TID/schedstat`.
    schedstat: Option<File>,
}

impl Eyes {
    fn new(threads: usize) -> Eyes {
        Eyes {
            at: Instant::now(),
            threads: (0..threads).map(|_| Seen::default()).collect(),
            lanes: HashMap::new(),
        }
    }
}

impl Seen {
    fn look(
        &mut self,
        meters: &Meters,
        number: usize,
        is_used: bool,
        length: Duration,
    ) -> ThreadLook {
        let reading = meters.read(number);
        let idle = reading.idle.saturating_sub(std::mem::replace(&mut self.idle, reading.idle));
        let rounds = reading.rounds
            - std::mem::replace(&mut self.rounds, reading.rounds).min(reading.rounds);
        let busy = length.saturating_sub(idle);
        let cpu = if is_used { self.cpu_time(meters.tid(number)) } else { None };
        let used = cpu.zip(self.cpu).map(|(now, before)| now.saturating_sub(before));
        self.cpu = cpu;
        // If the system does not report CPU time, looking for work is free.
        ThreadLook { busy, cpu: used.unwrap_or(busy), rounds }
    }

    /// The CPU time of a thread of this process; `None` where the system does not report it.
    fn cpu_time(&mut self, tid: i32) -> Option<Duration> {
        if self.schedstat.is_none() && tid > 0 {
            self.schedstat = File::open(format!("/proc/self/task/{tid}/schedstat")).ok();
        }
        let mut text = [0; 64];
        let length = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(text.get(..length)?).ok()?;
        text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    }
}
