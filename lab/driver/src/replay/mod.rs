//! Replay: a recorded sequence of requests against any vhost-user-blk back end.
//!
//! [`ReplayPlan`] takes the requests and finds out what must wait for what; [`replay`] drives them.
//!
//! # Order
//!
//! Each queue of the trace is a queue of the session. It gets exactly the trace's requests of that
//! queue in the order in which they were submitted. Between them three rules hold, all derived from
//! when requests were submitted and completed in the trace:
//!
//! 1. **A flush waits for the writes that it covers.** The flush covers all writes, discards and
//!    write-zeroes, of any queue, that had completed in the trace before it was submitted. The
//!    flush is submitted after all of them have completed.
//! 2. **Later requests wait for an earlier flush.** The rule holds for a request of any queue that
//!    was submitted in the trace after a flush had completed. It goes out after that flush has
//!    completed. So all orders that a file system enforced by a flush hold. A crash in the middle
//!    of a replay leaves a state that a crash in the middle of the recorded run could have left.
//! 3. **Writes to one place stay in order.** A write (discard, write-zeroes) waits for the last
//!    one, of any queue, that touched one of its blocks of 4 KiB. So the contents of the device at
//!    the end are those of the last submission to each block.
//!
//! Reads wait for flushes only: their data are not looked at. No request waits, under rules 1 and
//! 2, for one whose completion is not in the trace. All dependencies of a request were submitted
//! before it in the trace, so a replay cannot stop for good.
//!
//! # Time
//!
//! With [`Timing::Original`] a request is due at its time in the trace, divided by the speed. Three
//! causes make it late: the order, as many requests out as the queue has slots, or a busy driver.
//! The report says how often and how much. With [`Timing::AsFast`] every request is due at once,
//! and the number of slots is the queue depth. No queue gets more than [`AHEAD`] requests ahead of
//! the trace's first unsubmitted request, so the mix of the queues stays roughly the trace's.
//!
//! One thread drives all the queues.

mod engine;
mod plan;

use serde::{Deserialize, Serialize};

use crate::ring::RequestKind;
pub use engine::{ReplayOptions, ReplayReport, Timing, replay};
pub use plan::ReplayPlan;

/// The distance by which a queue may be ahead of the trace's first unsubmitted request, without
/// timing.
pub const AHEAD: usize = 4096;

/// The kind of a recorded request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayKind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush; sector and length have no meaning.
    Flush,
    /// Discard.
    Discard,
    /// Write-zeroes.
    WriteZeroes,
}

impl ReplayKind {
    /// Returns true if it changes the stored data.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::WriteZeroes)
    }
}

impl From<ReplayKind> for RequestKind {
    fn from(kind: ReplayKind) -> Self {
        match kind {
            ReplayKind::Read => Self::Read,
            ReplayKind::Write => Self::Write,
            ReplayKind::Flush => Self::Flush,
            ReplayKind::Discard => Self::Discard,
            ReplayKind::WriteZeroes => Self::WriteZeroes,
        }
    }
}

/// A recorded request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayRequest {
    /// The time of its submission, in ns since the start of the trace.
    pub at_ns: u64,
    /// The time of its completion, on the same clock; `None` if the trace does not have it.
    pub done_ns: Option<u64>,
    /// The queue (lane) that it was submitted to.
    pub queue: u16,
    /// The request's kind.
    pub kind: ReplayKind,
    /// Its first sector of 512 bytes.
    pub sector: u64,
    /// Its length in sectors.
    pub sectors: u32,
    /// The header's ioprio field.
    pub ioprio: u16,
    /// The seed of a write's data: writes with the same number (a hash of the original data, say)
    /// get the same data. `None` takes the place that is written to and how often that was done, so
    /// that no two writes are alike.
    pub data: Option<u64>,
}
