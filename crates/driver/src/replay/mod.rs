//! Replay: a recorded sequence of requests against any vhost-user-blk back end.
//!
//! [`ReplayPlan`] takes the requests and finds out what must wait for what; [`replay`] drives them.
//!
//! # Order
//!
//! Each queue of the trace is a queue of the session, and gets exactly the trace's requests of that queue in the order in which they were
//! submitted. Between them three rules hold, all derived from when requests were submitted and completed in the trace:
//!
//! 1. **A flush waits for the writes that it covers.** It is not submitted before every write, discard and write-zeroes of any queue has
//!    completed that had completed in the trace before the flush was submitted.
//! 2. **What came after a flush waits for it.** A request of any queue that was submitted in the trace after a flush had completed is not submitted
//!    before that flush has completed. So whatever a file system ordered by a flush stays ordered, and a crash in the middle
//!    of a replay leaves what a crash in the middle of the recorded run could have left.
//! 3. **Writes to one place stay in order.** A write (discard, write-zeroes) waits for the last one before it, of any queue, that touched one of
//!    its blocks of 4 KiB; so the contents of the device at the end are those of the last submission to each block.
//!
//! Reads wait for flushes only: what they bring is not looked at. A request whose completion is not in the trace is waited for by nobody under
//! rules 1 and 2. Everything that a request waits for was submitted before it in the trace, so a replay cannot stop for good.
//!
//! # Time
//!
//! With [`Timing::Original`] a request is due at its time in the trace, divided by the speed. It may go out later: because the order says so,
//! because as many requests are out as the queue has slots, or because the driver was not ready; the report tells how often and how much.
//! With [`Timing::AsFast`] every request is due at once, and the number of slots is the queue depth; no queue gets more than
//! [`AHEAD`] requests ahead of the trace's first request that is still to be submitted, so the mix of the queues stays roughly the trace's.
//!
//! One thread drives all the queues.

mod engine;
mod plan;

use serde::{Deserialize, Serialize};

pub use engine::{ReplayOptions, ReplayReport, Timing, replay};
pub use plan::ReplayPlan;

/// How far a queue may be ahead of the trace's first request that has not been submitted, without timing.
pub const AHEAD: usize = 4096;

/// What a recorded request asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayKind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush; sector and length mean nothing.
    Flush,
    /// Discard.
    Discard,
    /// Write-zeroes.
    WriteZeroes,
}

impl ReplayKind {
    /// Whether it changes what is stored.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::WriteZeroes)
    }
}

/// One recorded request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayRequest {
    /// When it was submitted, in ns since the start of the trace.
    pub at_ns: u64,
    /// When it completed, on the same clock; `None` if the trace does not have it.
    pub done_ns: Option<u64>,
    /// The queue (lane) that it was submitted to.
    pub queue: u16,
    /// What it asked for.
    pub kind: ReplayKind,
    /// Its first sector of 512 bytes.
    pub sector: u64,
    /// Its length in sectors.
    pub sectors: u32,
    /// The header's ioprio field.
    pub ioprio: u16,
    /// What a write's data are made from: writes with the same number (a hash of the original data, say) get the same data. `None`
    /// takes the place that is written to and how often that was done, so that no two writes are alike.
    pub data: Option<u64>,
}
