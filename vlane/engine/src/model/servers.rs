//! One queue for all lanes: a request is given, when it comes, to the server that is free first. So
//! its end is known at once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{self as model, ModelConfig, nanoseconds};
use crate::{Decisions, Instant, Slot};

/// The device's servers, shared by all lanes without a lock.
#[derive(Debug)]
pub(crate) struct Servers {
    start: Instant,
    latency: u64,
    /// When each server will be free, nanoseconds since `start`.
    free_at: Box<[AtomicU64]>,
}

/// One lane's.
#[derive(Debug)]
pub(crate) struct Port {
    servers: Arc<Servers>,
    /// When each pending request is done; the first one on top.
    waiting: BinaryHeap<Reverse<(Instant, u16)>>,
}

impl Servers {
    pub(super) fn new(config: ModelConfig) -> Servers {
        let free_at = (0..config.parallelism.max(1)).map(|_| AtomicU64::new(0)).collect();
        Servers { start: Instant::now(), latency: nanoseconds(config.latency), free_at }
    }

    /// Gives a request to the server that is free first; says when it will be done.
    fn enqueue(&self, now: Instant) -> Instant {
        let now_ns = nanoseconds(now - self.start);
        loop {
            let load = |server: &&AtomicU64| server.load(Ordering::Relaxed);
            let Some(server) = self.free_at.iter().min_by_key(load) else { return now };
            let free = server.load(Ordering::Relaxed);
            let done = free.max(now_ns).saturating_add(self.latency);
            if server.compare_exchange(free, done, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return self.start + Duration::from_nanos(done);
            }
        }
    }
}

impl Port {
    pub(super) fn new(servers: Arc<Servers>, slots: u16) -> Port {
        Port { servers, waiting: BinaryHeap::with_capacity(usize::from(slots)) }
    }
}

impl model::Port for Port {
    // off the data path: the model device replaces storage in experiments only.
    fn submit(&mut self, slot: Slot, _: Decisions) {
        self.waiting.push(Reverse((self.servers.enqueue(Instant::now()), slot.0)));
    }

    fn poll(&mut self, now: Instant, ready: &mut Vec<Slot>) {
        while let Some(&Reverse((due, slot))) = self.waiting.peek() {
            if due > now {
                return;
            }
            self.waiting.pop();
            ready.push(Slot(slot));
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.waiting.peek().map(|Reverse((due, _))| *due)
    }

    fn forget(&mut self, slot: Slot) {
        self.waiting.retain(|Reverse((_, waiting))| *waiting != slot.0);
    }
}
