//! Storage engines: where a volume's data is.
//!
//! | engine | data | I/O |
//! |---|---|---|
//! | [`null::NullEngine`] | none | answers at once, or after a fixed latency, with a given parallelism: a model of a device |
//! | [`behind::Behind`] | another engine's | that engine's, after the model of a device has served the request |
//! | [`file::FileEngine`] | a regular file or a block device | io_uring; inline where that is cheaper |
//!
//! An [`Engine`] is the volume: one per volume, shared, asked rarely. A [`Channel`] is one lane's
//! way into it: owned by the lane's thread, asked for every request, never shared. So no engine
//! needs a lock on the data path.
//!
//! # The contract
//! * **I/O model.** [`Channel::begin`] either answers the request ([`Outcome::Done`]) or takes it
//!   ([`Outcome::Pending`]) and answers it once later: from [`Channel::finished`], when an
//!   [`Operation`] that it asked for completes, or from [`Channel::go_on`]. It does not block for
//!   longer than a memory copy of a few MiB takes: longer work is done in parts
//!   ([`Outcome::Continue`]).
//! * **Decisions.** The decisions made for a request when it was taken ([`Decisions`]) come with
//!   each call for it, and stay the same. There is one exception: a request that was not to be
//!   durable becomes so at the moment at which the guest switches its write cache off.
//! * **Lifetime.** A request's buffers stay mapped until it is answered. The submitter of
//!   operations ([`vlane_io::InflightQueue`]) lets no request be answered while the kernel works on
//!   its memory.
//! * **Bad requests.** The lane has checked that the request lies inside [`Geometry::sectors`]; a
//!   channel must still not panic for any request.
//! * **Errors.** A failed request is answered with [`Status::IoErr`], and counted in
//!   [`Channel::stats`]. Other requests are not affected.
//! * **Durability.** All writes answered before a flush was submitted are on stable storage when
//!   the flush is answered `Ok`. After [`Channel::set_write_through`], every write is when it is
//!   answered. The storage may lose an answered write ([`Engine::lost_write`]). From then on no
//!   flush of any channel, and no write that has begun since, is answered `Ok`, for as long as the
//!   engine lives.

pub mod behind;
mod error;
pub mod file;
mod lost;
pub mod model;
pub mod null;
pub mod pages;
mod recorder;
mod stats;
mod sync;
mod threads;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

pub use error::{Error as EngineError, ErrorKind};
pub use lost::{LostWrite, Writeback};
pub use recorder::StorageRecorder;
pub use stats::{ChannelStats, IoErrorKind};
pub use vlane_io::{
    Class, Completion, Decisions, Instant, Memory, Operation, OperationKind, Piece, Placement,
    StorageFile, ZEROES,
};
pub use vlane_policy::express::Mode;
pub use vlane_ring::{Request, Slot, Status};

/// The volume's shape, as a guest sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Size in sectors of 512 bytes.
    pub sectors: u64,
    /// Logical block size, bytes: the unit below which requests cost more. A power of two, at least
    /// 512.
    pub block_size: u32,
    /// Logical blocks per physical block, as a power of two.
    pub physical_exponent: u8,
    /// Optimal request size, in logical blocks; 0 when there is none.
    pub optimal_blocks: u32,
    /// True if writes are refused.
    pub read_only: bool,
    /// DISCARD does something.
    pub discard: bool,
    /// WRITE_ZEROES spares the guest the writing. Where it does not, zeroes are written for a guest
    /// that asks all the same.
    pub write_zeroes: bool,
    /// Writes may be answered before they are durable (flush makes them so).
    pub write_cache: bool,
}

/// A volume's storage. See the [contract](crate).
pub trait Engine: Send + Sync + fmt::Debug {
    /// Returns the volume's shape, as a guest sees it.
    fn geometry(&self) -> Geometry;

    /// Bytes that the storage has at this moment, which may be fewer than the volume's. None where
    /// that cannot differ.
    fn stored_bytes(&self) -> Option<u64> {
        None
    }

    /// Writes everything that was answered to stable storage; blocks. For the end, not for the data
    /// path.
    ///
    /// # Errors
    /// The storage's error; after a loss, always the first one.
    fn sync(&self) -> io::Result<()>;

    /// Which image it is, if it is one. Asks the system; not for the data path.
    fn identity(&self) -> Option<file::Identity> {
        None
    }

    /// Returns the loss of answered writes, if there was one. Reads go on all the same.
    fn lost_write(&self) -> Option<LostWrite> {
        None
    }

    /// Returns the reason why the storage takes no writes at present, with the action to take; none
    /// if no reason is known. Not for the data path.
    fn refuses_writes(&self) -> Option<String> {
        None
    }

    /// Returns a report of the guest's journals, if the volume looks for them. May take a second;
    /// not for the data path.
    fn journal(&self) -> Option<file::JournalReport> {
        None
    }

    /// Returns a report of the volume's share of the page cache, if that is bounded.
    fn cache_budget(&self) -> Option<file::CacheReport> {
        None
    }

    /// True if a request can hang because of something outside this process; the lane then looks
    /// for hanging requests.
    fn can_hang(&self) -> bool {
        true
    }

    /// A way into it for one lane. `slots` is the number of requests that can be in flight.
    ///
    /// # Errors
    /// [`EngineError`] when the system refuses a resource that the channel needs.
    fn channel(&self, slots: u16) -> Result<Box<dyn Channel>, EngineError>;
}

/// Bytes that one operation moves at most, and that a lane copies without a look at its other work.
///
/// Requests may be up to 1 GiB large. One that is larger than this is worked on in parts, one after
/// the other. No Linux guest sends such ones.
pub const PART: u64 =
    if cfg!(vlane_simulated) { 4096 } else { vlane_ring::limits::SIZE_MAX as u64 };

/// The state of a request after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Answered.
    Done(Status),
    /// Continues when its only operation completes. It is the simplest: all of its data between its
    /// own buffers and its own place in this file. Nearly all requests are like this; it spares
    /// them the [`Operation`] in words.
    Whole(u8),
    /// Continues when one of its operations completes, or when [`Channel::poll`] names it.
    Pending,
    /// There is more to do, after the lane's other work: [`Channel::go_on`].
    Continue,
}

/// A request that its lane has taken, as a [`Channel`] is given it.
#[derive(Debug, Clone, Copy)]
pub struct Taken<'a> {
    /// Its place in its queue.
    pub slot: Slot,
    /// The request.
    pub request: &'a Request,
    /// The decisions made for it.
    pub decisions: Decisions,
}

/// One lane's way into an engine. See the [contract](crate).
///
/// A channel puts its operations on the storage into `operations`; the lane has them submitted. A
/// request is answered when none of its operations is under way. A channel that is recorded is
/// wrapped (`file/recorded.rs`), which passes each of these on.
pub trait Channel: Send + fmt::Debug {
    /// The files that its operations name by their number here. They stay the same.
    fn files(&self) -> &[StorageFile] {
        &[]
    }

    /// Returns the decisions for a request that no policy decides about.
    fn defaults(&self) -> Decisions {
        Decisions::default()
    }

    /// Begins a request, which the lane has checked against the geometry.
    fn begin(&mut self, taken: Taken<'_>, operations: &mut Vec<Operation>) -> Outcome;

    /// One of a request's operations completed. Not called for a channel that asks for none.
    fn finished(
        &mut self,
        _taken: Taken<'_>,
        _completion: Completion,
        _operations: &mut Vec<Operation>,
    ) -> Outcome {
        Outcome::Done(Status::IoErr)
    }

    /// Continues a request that [`Channel::poll`] named, or that asked for it with
    /// [`Outcome::Continue`]. Not called for a channel that does neither.
    fn go_on(&mut self, _taken: Taken<'_>, _operations: &mut Vec<Operation>) -> Outcome {
        Outcome::Done(Status::IoErr)
    }

    /// The request was put back into its ring, unanswered, and none of its operations is under way:
    /// its slot is as it was before [`Channel::begin`], and a wait of its ends.
    fn forget(&mut self, _slot: Slot) {}

    /// Names requests that wait for others of this channel to end, and have no operation under way:
    /// the lane may [forget](Channel::forget) any of them.
    fn waiting(&self, _slots: &mut Vec<Slot>) {}

    /// Names the requests that can go on. The lane asks when the [doorbell](Channel::doorbell) was
    /// rung, and at the [deadline](Channel::deadline).
    fn poll(&mut self, _now: Instant, _ready: &mut Vec<Slot>) {}

    /// An eventfd that another thread writes when [`Channel::poll`] has a request. It stays the
    /// same.
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// When [`Channel::poll`] will have something, if it knows; in the past: it has.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Sets the effect of the requests' classes from now on. A channel with submission queues of
    /// its own sends express requests to the shortest. One that writes to the page cache has it
    /// written back early.
    fn set_mode(&mut self, _mode: Mode) {}

    /// True if a write goes to a journal of the guest's, as far as the storage knows.
    fn is_in_journal(&mut self, _request: &Request) -> bool {
        false
    }

    /// From now on, answer writes only when they are durable; or no longer.
    fn set_write_through(&mut self, on: bool);

    /// Returns the counts so far.
    fn stats(&self) -> ChannelStats;
}
