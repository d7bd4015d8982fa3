//! Baseline, MQ and MT: what the number of queues and threads does to a device.
//!
//! The experiment of Kim, Kang and Eom, "Improving Performance of I/O Virtualization Framework based on Multi-queue SSD" (KIISE
//! 2016): a null device, so that nothing but the way to it is measured; so many jobs; three topologies.
//!
//! | | queues | threads | global mutex |
//! |---|---|---|---|
//! | Baseline | 1, shared by all jobs | 1 | for every access of the queue, and for the I/O thread's work |
//! | Baseline, no mutex | 1, shared by all jobs | 1 | none: the guest's own lock on its ring is left |
//! | MQ | one per job | 1 | for kicks, and for the I/O thread's work |
//! | MT | one per job | one per queue | none |
//!
//! The second is not in the paper: without it nobody knows what of MT's gain is the mutex's and what is the queues'. All run on the same small device in this process ([`device`]), in which nothing but these three things differs; and MQ
//! and MT as `vlane serve` runs them, in a process of its own. [`model`] predicts from measurements of one lane what more
//! lanes and more CPUs do, and [`validate`] holds that against measurements of two.

pub mod cell;
pub mod device;
pub mod guest;
pub mod lock;
mod measured;
pub mod micro;
pub mod model;
pub mod network;
pub mod observe;
mod patterns;
mod render;
mod run;
pub mod shared;
#[cfg(test)]
mod tests;
pub mod validate;

pub use measured::Options;
pub use patterns::{Pattern, Published, patterns};
pub use run::run;

use std::fmt;

/// How queues and threads are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topology {
    /// One queue, one thread, one mutex.
    Baseline,
    /// One queue, one thread; of locks only the guest's own on its ring.
    Unlocked,
    /// A queue per job, one thread.
    Mq,
    /// A queue and a thread per job.
    Mt,
}

impl Topology {
    /// The paper's three.
    pub const ALL: [Self; 3] = [Self::Baseline, Self::Mq, Self::Mt];
    /// Those, and Baseline without what is not about queues and threads.
    pub const MEASURED: [Self; 4] = [Self::Baseline, Self::Unlocked, Self::Mq, Self::Mt];

    /// Its queues for so many jobs.
    pub fn queues(self, jobs: u16) -> u16 {
        if self.shares_queue() { 1 } else { jobs }
    }

    /// Its threads for so many jobs.
    pub fn threads(self, jobs: u16) -> u16 {
        if self == Self::Mt { jobs } else { 1 }
    }

    /// The slots of each queue, for jobs of this depth.
    pub fn slots(self, jobs: u16, depth: u16) -> u16 {
        if self.shares_queue() { depth * jobs } else { depth }
    }

    /// Whether jobs share one queue.
    pub fn shares_queue(self) -> bool {
        matches!(self, Self::Baseline | Self::Unlocked)
    }

    /// Whether there is a global mutex.
    pub fn has_mutex(self) -> bool {
        matches!(self, Self::Baseline | Self::Mq)
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "Baseline",
            Self::Unlocked => "Baseline, no mutex",
            Self::Mq => "MQ",
            Self::Mt => "MT",
        })
    }
}

/// A device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The device in this process.
    Model,
    /// `vlane serve`.
    Vlane,
}

impl Kind {
    /// A topology on it.
    pub fn with(self, topology: Topology) -> Subject {
        Subject { kind: self, topology }
    }
}

/// A topology on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Subject {
    /// Which device.
    pub kind: Kind,
    /// How its queues and threads are arranged.
    pub topology: Topology,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = if self.kind == Kind::Vlane { "vlane " } else { "" };
        write!(f, "{before}{}", self.topology)
    }
}

/// Where jobs and the device's threads run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Job i and thread i on the same CPU, in turn over all: a lane on its vCPU's CPU.
    Together,
    /// Thread i on the CPU after job i's.
    Apart,
    /// As the kernel likes.
    Free,
}

/// Works for a time: what a guest's kernel or a host's storage stack would do for a request.
#[inline]
fn work(time: std::time::Duration) {
    if !time.is_zero() {
        let begin = std::time::Instant::now();
        while begin.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}
