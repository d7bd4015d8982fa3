//! The scheduler's end of the board. Its values were written by a process that may be hostile: any
//! value does no more harm than a wrong mark, and marks come only as often as the scheduler looks.

use crate::board::{Board, Classes, Slot};
use crate::sync::{Arc, Ordering, fence};

/// How often a slot is read again that changes meanwhile.
const TRIES: usize = 4;

/// A lane's mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The guest was signalled that I/O is complete, and has not answered.
    Event {
        /// When the oldest unanswered signal came, `CLOCK_MONOTONIC`, ns; never in the future.
        at: u64,
        /// Signals since the last look, those included that are answered already.
        count: u32,
    },
    /// The guest answered: it submitted again. There may have been no [`Mark::Event`] before: it
    /// was over at the time of the look.
    Served {
        /// When, `CLOCK_MONOTONIC`, ns; never in the future.
        at: u64,
        /// How long after the signal, ns.
        response_ns: u64,
        /// Signals since the last look, if all of them are answered; otherwise the [`Mark::Event`]
        /// that follows has them.
        count: u32,
    },
}

/// A slot as it was at the last look.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    events: u64,
    served: u64,
}

/// The scheduler's view of one board.
#[derive(Debug)]
pub struct BoardReader {
    board: Arc<Board>,
    seen: Vec<Seen>,
}

impl BoardReader {
    /// A watch on `board`, which stays off until [`BoardReader::arm`].
    pub fn new(board: Arc<Board>) -> BoardReader {
        let seen = vec![Seen::default(); board.lanes().into()];
        BoardReader { board, seen }
    }

    /// The board.
    pub const fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// True if any of the volume's requests may be express, by the back end's word.
    pub fn has_express(&self) -> bool {
        self.board.has_express()
    }

    /// How many lanes there are.
    pub fn lanes(&self) -> u16 {
        self.board.lanes()
    }

    /// Lets lanes mark completions of these classes from now on; [`Classes::NONE`] switches the
    /// board off.
    pub fn arm(&self, classes: Classes) {
        self.board.arm(classes);
    }

    /// True if a lane has marked since the last look, by its own word.
    pub fn is_marked(&self) -> bool {
        self.board.wake().load(Ordering::Relaxed) == 0
    }

    /// Returns the lanes' marks since the last look, by lane; of one lane the served ones before
    /// those that came then. Asks to be woken at the next mark: later marks are seen here or wake.
    ///
    /// `now` is `CLOCK_MONOTONIC`, ns.
    pub fn collect(&mut self, now: u64) -> impl Iterator<Item = (u16, Mark)> + '_ {
        self.board.wake().store(1, Ordering::Relaxed);
        // The counterpart of the lane's: it marks first and looks at this word then.
        fence(Ordering::SeqCst);
        let BoardReader { board, seen } = self;
        let lanes = (0..board.lanes()).zip(seen.iter_mut());
        lanes.flat_map(move |(lane, seen)| {
            let marks = board.slot(lane).map_or([None, None], |slot| look(&slot, seen, now));
            marks.into_iter().flatten().map(move |mark| (lane, mark))
        })
    }
}

/// One look at one slot.
#[inline]
fn look(slot: &Slot<'_>, seen: &mut Seen, now: u64) -> [Option<Mark>; 2] {
    let mut tries = 0;
    let (served, events, since, at, response) = loop {
        let served = slot.served.load(Ordering::Acquire);
        let events = slot.events.load(Ordering::Acquire);
        if (served, events) == (seen.served, seen.events) {
            return [None, None];
        }
        let since = slot.since.load(Ordering::Acquire);
        let at = slot.served_at.load(Ordering::Acquire);
        let response = slot.response.load(Ordering::Acquire);
        tries += 1;
        // A lane without unanswered completions, whose answer is not counted yet, is in between:
        // the count of its signals belongs to the answer.
        let is_between = since == 0 && served == seen.served;
        if !is_between && slot.served.load(Ordering::Acquire) == served {
            break (served, events, since, at, response);
        }
        // A lane that is faster than this, again and again, is not one.
        if tries == TRIES {
            if is_between {
                // The answer comes with a wake-up of its own.
                return [None, None];
            }
            break (served, events, since, at, response);
        }
    };
    let count = u32::try_from(events.wrapping_sub(seen.events)).unwrap_or(u32::MAX);
    let answered = served != seen.served;
    let pending = since != 0 && count > 0;
    *seen = Seen { events, served };
    let at = at.min(now);
    let served = answered.then_some(Mark::Served {
        at,
        response_ns: response.min(at),
        count: if pending { 0 } else { count },
    });
    let event = pending.then_some(Mark::Event { at: since.min(now), count });
    [served, event]
}
