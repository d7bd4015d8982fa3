//! The data path: one thread, its lanes, their requests.
//!
//! A **lane** is one virtqueue and the state that serves it. A **thread** runs one or more lanes
//! and has one wait point, its io_uring. Kicks of the guests, completions of the storage and
//! messages from control all arrive there. A request's path shares no state with another thread: no
//! lock, no allocation, no log line. No system call serves a single request (several share one),
//! except in engines that answer inline by one. Control reaches a lane only as a message in its
//! thread's inbox.
//!
//! [`Pool`] is the handle that the rest of vlane has: the threads of one volume.

#![forbid(unsafe_code)]

mod alarm;
mod call;
mod cancellable_request;
mod classes;
mod contention;
mod counters;
mod error;
mod governor;
mod governor_thread;
mod inbox;
mod lane;
mod limits;
mod lists;
mod mail;
mod meter;
mod observers;
mod payoff;
mod pending;
mod polling;
mod pool;
mod recorder;
mod routes;
mod sync;
mod thread;
mod topology;
mod workers;

#[cfg(test)]
mod classes_tests;
#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod handing_tests;
#[cfg(test)]
mod limits_tests;
#[cfg(test)]
mod moves_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod try_stop_tests;

pub use alarm::Alarm;
pub use classes::{
    BUCKETS, ClassBoard, ClassSnapshot, JOURNAL, KINDS, KindSnapshot, LaneWindow, TimesSnapshot,
    bucket_end,
};
pub use counters::{Counters, Snapshot};
pub use error::{LaneError, Stopped};
pub use lane::{EventReceiver, EventSender, LaneConfig, LaneEvent, event_channel};
pub use limits::Waits;
pub use pending::{PendingRequests, Waiting, WaitingKind};
pub use polling::PollMode;
pub use pool::{Pool, PoolConfig};
pub use recorder::{Recorded, Recorder, RecorderConfig, recorder};
#[cfg(vlane_simulated)]
pub use thread::simulated;
pub use topology::{
    CpuChoice, MAX_QUEUES, ThreadChoice, Topology, TopologyError, USUAL_QUEUES, online_cpus,
    parse_cpu_list,
};
