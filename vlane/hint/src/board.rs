//! The board: the layout of the memory that lanes and scheduler share.
//!
//! All words have 64 bits. The header has three lines of 128 bytes (two cache lines: they are
//! fetched in pairs), so that words that lanes only read are not in one line with words that they
//! write:
//!
//! | word | what | written by |
//! |---|---|---|
//! | 0 | magic | back end, once |
//! | 1 | version, and the number of lanes in the upper half | back end, once |
//! | 2 | 1: some of the volume's requests may be express ([`Classes::EXPRESS`]); 0: none ever is | back end, once |
//! | 16 | armed: the classes of requests that count; 0: nobody wants to know | scheduler (and back end, 0, when the scheduler is gone) |
//! | 32 | wake: not 0 when the scheduler wants its eventfd to be written at the next mark | scheduler sets, lanes clear |
//! | 33 | express: not 0 when an express completion was shown since it was last cleared | lanes set, scheduler clears |
//! | 64 + 16 n | slot of lane n: events, since, served, served at, response | lane n |
//!
//! `events` counts the signals to the guest that showed completions. `since` is when the oldest
//! unserved one came (`CLOCK_MONOTONIC`, ns), 0 when all are served. `served` counts the guest's
//! answers, `served at` is the time of the last one, `response` how long it took.
//!
//! Back ends from before there were classes leave word 2 at 0, and never set the bits of
//! [`Classes::EXPRESS`]; schedulers from before arm all bits. So old and new understand each other,
//! and the version is the same.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vlane_memory::shared::SharedWords;
use vlane_ring::{PriorityClass, Request, RequestKind};

use crate::error::HintError;

/// Lanes that a board may have; more than a volume has queues.
pub const MAX_LANES: u16 = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"vlanesch");
const VERSION: u64 = 1;
const PAGE: usize = 4096;
/// The word for the classes of the volume's requests.
const ABOUT: usize = 2;
const HAS_EXPRESS: u64 = 1;
const LINE: usize = 16;
const ARMED: usize = LINE;
const WAKE: usize = 2 * LINE;
/// Lanes with express completions write the line of [`WAKE`] anyway.
const SHOWN_EXPRESS: usize = WAKE + 1;
const SLOTS: usize = 4 * LINE;

/// Classes of requests, as bits: whose completions the scheduler wants to hear of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes(pub u64);

impl Classes {
    /// No class.
    pub const NONE: Classes = Classes(0);
    /// Every request.
    pub const ALL: Classes = Classes(u64::MAX);
    /// Reads, of any priority.
    pub const READS: Classes = Classes(0xf);
    /// Writes, of any priority.
    pub const WRITES: Classes = Classes(0xf0);
    /// Flushes: a program waits until data is safe.
    pub const FLUSHES: Classes = Classes(1 << 8);
    /// All requests of no other class.
    pub const OTHERS: Classes = Classes(1 << 9);
    /// Reads whose class in the volume is express: the lane's decision, not the guest's priority.
    pub const EXPRESS_READS: Classes = Classes(1 << 10);
    /// Writes and flushes of that class. The program of an fsync waits for its flush.
    pub const EXPRESS_WRITES: Classes = Classes(1 << 11);
    /// Both.
    pub const EXPRESS: Classes = Classes::EXPRESS_READS.and(Classes::EXPRESS_WRITES);

    /// The classes of a request; `is_express`: its lane says so.
    #[inline]
    pub(crate) fn of(request: &Request, is_express: bool) -> Classes {
        let priority = match request.priority().class() {
            PriorityClass::None => 0,
            PriorityClass::RealTime => 1,
            PriorityClass::BestEffort => 2,
            PriorityClass::Idle => 3,
        };
        match request.kind() {
            RequestKind::In => Classes(1 << priority | u64::from(is_express) << 10),
            RequestKind::Out => Classes(1 << (4 + priority) | u64::from(is_express) << 11),
            RequestKind::Flush => Classes(Classes::FLUSHES.0 | u64::from(is_express) << 11),
            _ => Classes::OTHERS,
        }
    }

    /// Both.
    pub const fn and(self, other: Classes) -> Classes {
        Classes(self.0 | other.0)
    }

    /// True if a class is in both.
    pub const fn meets(self, other: Classes) -> bool {
        self.0 & other.0 != 0
    }

    /// True if these are express requests and no others. Then only an express request is the
    /// guest's answer: another one shows that the guest runs, but not that it runs for the waiting
    /// program.
    pub const fn is_express_only(self) -> bool {
        self.0 != 0 && self.0 & !Classes::EXPRESS.0 == 0
    }
}

/// A lane's slot.
pub(crate) struct Slot<'a> {
    pub(crate) events: &'a AtomicU64,
    pub(crate) since: &'a AtomicU64,
    pub(crate) served: &'a AtomicU64,
    pub(crate) served_at: &'a AtomicU64,
    pub(crate) response: &'a AtomicU64,
}

/// The memory that lanes and scheduler share.
#[derive(Debug)]
pub struct Board {
    words: SharedWords,
    lanes: u16,
}

/// Bytes of a board.
fn bytes(lanes: u16) -> usize {
    ((SLOTS + LINE * usize::from(lanes)) * size_of::<u64>()).next_multiple_of(PAGE)
}

impl Board {
    /// A new board, off, and the descriptor to send. `has_express`: some of the volume's requests
    /// may be express.
    ///
    /// # Errors
    /// [`HintError::Memory`]; [`HintError::Board`] for no lanes or more than [`MAX_LANES`].
    pub fn create(lanes: u16, has_express: bool) -> Result<(Arc<Board>, OwnedFd), HintError> {
        check_lanes(lanes)?;
        let (words, fd) = SharedWords::create("vlane-board", bytes(lanes))?;
        let board = Board { words, lanes };
        board.word(0).store(MAGIC, Ordering::Relaxed);
        board.word(1).store(VERSION | u64::from(lanes) << 32, Ordering::Relaxed);
        board.word(ABOUT).store(u64::from(has_express) * HAS_EXPRESS, Ordering::Relaxed);
        Ok((Arc::new(board), fd))
    }

    /// Maps a board from a sender who announced so many lanes. No value in it is trusted.
    ///
    /// # Errors
    /// [`HintError::Memory`] if it is not safe to map, [`HintError::Board`] if it is none.
    pub fn open(fd: BorrowedFd<'_>, lanes: u16) -> Result<Arc<Board>, HintError> {
        check_lanes(lanes)?;
        let board = Board { words: SharedWords::open(fd, bytes(lanes))?, lanes };
        if board.word(0).load(Ordering::Relaxed) != MAGIC {
            return Err(HintError::Board("no magic at its beginning"));
        }
        let head = board.word(1).load(Ordering::Relaxed);
        if head & 0xffff_ffff != VERSION {
            return Err(HintError::Board("another version"));
        }
        if head >> 32 != u64::from(lanes) {
            return Err(HintError::Board("not as many lanes as were announced"));
        }
        Ok(Arc::new(board))
    }

    /// True if any of the volume's requests may be express, by the back end's word.
    pub fn has_express(&self) -> bool {
        self.word(ABOUT).load(Ordering::Relaxed) & HAS_EXPRESS != 0
    }

    /// How many lanes it has.
    pub fn lanes(&self) -> u16 {
        self.lanes
    }

    /// Sets the classes whose completions are marked from now on; [`Classes::NONE`] for none.
    pub fn arm(&self, classes: Classes) {
        self.word(ARMED).store(classes.0, Ordering::SeqCst);
    }

    /// The classes that are marked.
    #[inline]
    pub fn armed(&self) -> Classes {
        Classes(self.word(ARMED).load(Ordering::Relaxed))
    }

    /// Notes that an express completion was shown.
    #[inline]
    pub fn note_express(&self) {
        let shown = self.word(SHOWN_EXPRESS);
        // A line that is only read stays in the caches of all lanes.
        if shown.load(Ordering::Relaxed) == 0 {
            shown.store(1, Ordering::Relaxed);
        }
    }

    /// Returns true if an express completion was shown since the last call. Back ends from before
    /// there was this word never say so.
    pub fn take_express(&self) -> bool {
        let shown = self.word(SHOWN_EXPRESS);
        shown.load(Ordering::Relaxed) != 0 && shown.swap(0, Ordering::Relaxed) != 0
    }

    #[inline]
    pub(crate) fn wake(&self) -> &AtomicU64 {
        self.word(WAKE)
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        // Always there: the size was checked when the board was made.
        self.words.word(at).unwrap_or(&NOWHERE)
    }

    /// The slot of a lane that the board has.
    #[inline]
    pub(crate) fn slot(&self, lane: u16) -> Option<Slot<'_>> {
        match self.words.words(SLOTS + LINE * usize::from(lane), LINE)? {
            [events, since, served, served_at, response, ..] if lane < self.lanes => {
                Some(Slot { events, since, served, served_at, response })
            }
            _ => None,
        }
    }

    /// Fills it with values that make no sense; for tests.
    #[cfg(test)]
    pub(crate) fn scribble(&self, mut value: impl FnMut() -> u64) {
        for at in 2..self.words.len() {
            self.word(at).store(value(), Ordering::Relaxed);
        }
    }
}

fn check_lanes(lanes: u16) -> Result<(), HintError> {
    match lanes {
        0 => Err(HintError::Board("no lanes")),
        lanes if lanes > MAX_LANES => Err(HintError::Board("more lanes than a board may have")),
        _ => Ok(()),
    }
}
