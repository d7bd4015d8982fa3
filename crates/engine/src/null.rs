//! A device without media, to measure everything but the storage: like Linux's null_blk.
//!
//! Reads leave the guest's buffers as they are and writes are forgotten. With a latency it becomes the model of a
//! device: each of `parallelism` servers works on one request for `latency`, and requests wait for the server that
//! is free first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vlane_ring::Kind;

use crate::{
    Channel, ChannelStats, Decisions, Engine, EngineError, ErrorKind, Geometry, Operation, Outcome, Request,
    Slot, Status,
};

/// What a [`NullEngine`] is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NullConfig {
    /// Bytes; a multiple of 512, not 0.
    pub size: u64,
    /// How long a request takes; none: answered at once.
    pub latency: Option<Duration>,
    /// Requests worked on at the same time, over all lanes; only with a latency. At least 1.
    pub parallelism: usize,
}

/// The null engine.
#[derive(Debug)]
pub struct NullEngine {
    config: NullConfig,
    model: Option<Arc<Model>>,
}

/// The device's servers, shared by all lanes without a lock.
#[derive(Debug)]
struct Model {
    start: Instant,
    latency: Duration,
    /// When each server will be free, nanoseconds since `start`.
    free_at: Box<[AtomicU64]>,
}

impl NullEngine {
    /// Makes the device.
    ///
    /// # Errors
    /// [`ErrorKind::Empty`], [`ErrorKind::OddSize`].
    pub fn new(config: NullConfig) -> Result<NullEngine, EngineError> {
        if config.size == 0 {
            let text = "a null device of size 0 makes no sense; give a size such as 16G";
            return Err(EngineError::new(ErrorKind::Empty, None, text));
        }
        if !config.size.is_multiple_of(512) {
            let text =
                format!("a null device of {} bytes is not a multiple of the sector size, 512", config.size);
            return Err(EngineError::new(ErrorKind::OddSize, None, text));
        }
        let model = config.latency.map(|latency| {
            let free_at = (0..config.parallelism.max(1)).map(|_| AtomicU64::new(0)).collect();
            Arc::new(Model { start: Instant::now(), latency, free_at })
        });
        Ok(NullEngine { config, model })
    }
}

impl Engine for NullEngine {
    fn geometry(&self) -> Geometry {
        Geometry {
            sectors: self.config.size / 512,
            block_size: 512,
            physical_exponent: 3,
            optimal_blocks: 0,
            read_only: false,
            discard: true,
            write_zeroes: true,
            write_cache: true,
        }
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn can_hang(&self) -> bool {
        false
    }

    fn channel(&self, slots: u16) -> Result<Box<dyn Channel>, EngineError> {
        Ok(match &self.model {
            None => Box::new(Instantly),
            Some(model) => Box::new(Modelled {
                model: Arc::clone(model),
                waiting: BinaryHeap::with_capacity(usize::from(slots)),
            }),
        })
    }
}

#[derive(Debug)]
struct Instantly;

impl Channel for Instantly {
    #[inline]
    fn submit(&mut self, _: Slot, _: &Request, _: Decisions, _: &mut Vec<Operation>) -> Outcome {
        Outcome::Done(Status::Ok)
    }

    fn set_write_through(&mut self, _on: bool) {}

    fn stats(&self) -> ChannelStats {
        ChannelStats::default()
    }
}

#[derive(Debug)]
struct Modelled {
    model: Arc<Model>,
    /// When each pending request is done; the first one on top.
    waiting: BinaryHeap<Reverse<(Instant, u16)>>,
}

impl Model {
    /// Gives a request to the server that is free first; says when it will be done.
    fn enqueue(&self, now: Instant) -> Instant {
        let since = |t: Instant| u64::try_from((t - self.start).as_nanos()).unwrap_or(u64::MAX);
        let now_ns = since(now);
        let latency = u64::try_from(self.latency.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let load = |server: &&AtomicU64| server.load(Ordering::Relaxed);
            let Some(server) = self.free_at.iter().min_by_key(load) else { return now };
            let free = server.load(Ordering::Relaxed);
            let done = free.max(now_ns).saturating_add(latency);
            if server.compare_exchange(free, done, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return self.start + Duration::from_nanos(done);
            }
        }
    }
}

impl Channel for Modelled {
    fn submit(&mut self, slot: Slot, request: &Request, _: Decisions, _: &mut Vec<Operation>) -> Outcome {
        if request.kind() == Kind::Flush {
            return Outcome::Done(Status::Ok);
        }
        self.waiting.push(Reverse((self.model.enqueue(Instant::now()), slot.0)));
        Outcome::Pending
    }

    /// Its time has come.
    fn go_on(&mut self, _: Slot, _: &Request, _: Decisions, _: &mut Vec<Operation>) -> Outcome {
        Outcome::Done(Status::Ok)
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

    fn set_write_through(&mut self, _on: bool) {}

    fn stats(&self) -> ChannelStats {
        ChannelStats::default()
    }
}
