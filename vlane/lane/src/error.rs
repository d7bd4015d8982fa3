//! The results that control gets from a lane.

use std::io;

use vlane_engine::EngineError;
use vlane_ring::QueueError;

use crate::counters::Snapshot;

/// The reason why a lane could not do a request of control.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The virtqueue is not as it should be.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The storage refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There is no io_uring to be had.
    #[error(transparent)]
    Io(#[from] vlane_io::Error),
    /// The system refused.
    #[error("the system refused a lane thread something")]
    System(#[from] io::Error),
    /// There is a lane for this queue already.
    #[error("queue {index} is running already")]
    Running {
        /// The queue's index.
        index: u16,
    },
    /// The thread is not there any more.
    #[error("the lane's thread has ended")]
    Gone,
}

/// A stopped lane's final state.
#[derive(Debug, Clone, Copy)]
pub struct Stopped {
    /// The position where another back end must continue ([`vlane_ring::QueueConfig::base`]).
    pub base: u32,
    /// Its counts, from its start to its end.
    pub counters: Snapshot,
}
