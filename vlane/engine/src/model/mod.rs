//! The model of a device: how long requests take, and which of them wait for which. It has no
//! thread of its own: each caller brings it up to date. It is made for measurements, so a lock
//! inside it does no harm; only the model takes that lock.
//!
//! Its behaviour is documented for users in docs/src/model-device.md.

mod queues;
mod round_robin;
mod servers;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Mode;
use crate::{Instant, Slot};
use vlane_io::Decisions;

/// The properties of a modelled device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelConfig {
    /// How long it works on a request.
    pub latency: Duration,
    /// Requests that it works on at the same time. At least 1.
    pub parallelism: usize,
    /// Which of the waiting requests is next.
    pub queues: DeviceQueues,
}

/// Which of the requests that wait a modelled device works on next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceQueues {
    /// One queue for all: the first that came.
    #[default]
    Shared,
    /// A submission queue for each thread that submits, as an NVMe drive has one for each CPU: they
    /// take turns, a request at a time.
    RoundRobin,
}

/// A modelled device.
#[derive(Debug, Clone)]
pub(crate) enum Model {
    Shared(Arc<servers::Servers>),
    RoundRobin(Arc<queues::Queues>),
}

/// One lane's way into it. Each request is given to it once, and named by [`Port::poll`] once.
pub(crate) trait Port: Send + fmt::Debug {
    /// The device gets a request.
    fn submit(&mut self, slot: Slot, decisions: Decisions);

    /// See [`crate::Channel::set_mode`].
    fn set_mode(&mut self, _mode: Mode) {}

    /// Names the requests that the device has served.
    fn poll(&mut self, now: Instant, ready: &mut Vec<Slot>);

    /// When to ask again: no request of this lane is served before.
    fn deadline(&self) -> Option<Instant>;

    /// A request is not to be named any more.
    fn forget(&mut self, slot: Slot);

    /// Requests that went to the queue of another thread.
    fn handed_over(&self) -> u64 {
        0
    }
}

impl Model {
    pub(crate) fn new(config: ModelConfig) -> Model {
        match config.queues {
            DeviceQueues::Shared => Model::Shared(Arc::new(servers::Servers::new(config))),
            DeviceQueues::RoundRobin => Model::RoundRobin(Arc::new(queues::Queues::new(config))),
        }
    }

    /// A way in for a lane that submits from the present thread.
    pub(crate) fn port(&self, slots: u16) -> Box<dyn Port> {
        match self {
            Model::Shared(servers) => Box::new(servers::Port::new(Arc::clone(servers), slots)),
            Model::RoundRobin(queues) => Box::new(queues::Port::new(Arc::clone(queues), slots)),
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
