//! Turns of a channel's discards and zeroings at the storage.
//!
//! A range moves no data of the guest, so it does not count for the data that a lane may begin. Its
//! number is bounded here instead: a device that works on many of them has no place left for
//! others, and ranges that the kernel leaves to its workers would take all of these. A turn is one
//! piece of a range. Then it is the next request's, so one of 2 GiB delays no other. A request that
//! waits for blocks or a buffer has no turn meanwhile: it may wait for a slow one that others do
//! not need.

use std::collections::VecDeque;

use crate::Slot;

/// Discards of a device that one channel has under way: as many requests as most devices have
/// places for.
const DISCARDS: usize = 32;
/// Zeroings, and discards of a file's range, that one channel has under way. Each is a worker's of
/// the kernel, and its lane's thread has eight at least.
const ZEROINGS: usize = 4;

/// The purpose of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// A device's discard.
    Discard,
    /// A zeroing, or a discard of a file's range.
    Zeroing,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Turns {
    /// By kind: the most turns, the present turns, and the waiting requests.
    lines: [Line; 2],
    /// All waiting requests.
    waiting: usize,
}

#[derive(Debug)]
struct Line {
    most: usize,
    under_way: usize,
    waiting: VecDeque<Slot>,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns::new([DISCARDS, ZEROINGS])
    }
}

impl Turns {
    /// With so many at a time, in the order of [`Turn`].
    pub(super) fn new(most: [usize; 2]) -> Turns {
        Turns {
            lines: most.map(|most| Line { most, under_way: 0, waiting: VecDeque::new() }),
            waiting: 0,
        }
    }

    /// True if a request has a turn now. If not, it waits for it: [`Turns::next`].
    pub(super) fn take(&mut self, slot: Slot, turn: Turn) -> bool {
        let line = &mut self.lines[turn as usize];
        let has_one = line.waiting.is_empty() && line.under_way < line.most;
        match has_one {
            true => line.under_way += 1,
            false => {
                line.waiting.push_back(slot);
                self.waiting += 1;
            }
        }
        has_one
    }

    /// A turn is over.
    pub(super) fn end(&mut self, turn: Turn) {
        let line = &mut self.lines[turn as usize];
        line.under_way = line.under_way.saturating_sub(1);
    }

    /// True if [`Turns::next`] has a request.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.waiting > 0 && self.lines.iter().any(Line::is_ready)
    }

    /// The next request that waited and has a turn now.
    pub(super) fn next(&mut self) -> Option<(Slot, Turn)> {
        let turn = [Turn::Discard, Turn::Zeroing]
            .into_iter()
            .find(|turn| self.lines[*turn as usize].is_ready())?;
        let line = &mut self.lines[turn as usize];
        let slot = line.waiting.pop_front()?;
        line.under_way += 1;
        self.waiting -= 1;
        Some((slot, turn))
    }

    /// Requests that wait: they have no operation under way.
    pub(super) fn waiting(&self) -> impl Iterator<Item = Slot> {
        self.lines.iter().flat_map(|line| line.waiting.iter().copied())
    }

    /// A request does not wait any more.
    pub(super) fn forget(&mut self, slot: Slot) {
        for line in &mut self.lines {
            // Where all are forgotten, the last one is the first.
            if let Some(at) = line.waiting.iter().rposition(|waiting| *waiting == slot) {
                line.waiting.remove(at);
                self.waiting -= 1;
            }
        }
    }
}

impl Line {
    fn is_ready(&self) -> bool {
        !self.waiting.is_empty() && self.under_way < self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_within_the_limit() {
        let mut turns = Turns::new([1, 2]);
        let take = |turns: &mut Turns, slot, turn| turns.take(Slot(slot), turn);
        assert!([0, 1].iter().all(|slot| take(&mut turns, *slot, Turn::Zeroing)));
        assert!(![2, 3, 4].iter().any(|slot| take(&mut turns, *slot, Turn::Zeroing)));
        assert!(take(&mut turns, 5, Turn::Discard), "zeroings are not in its way");
        assert!(!take(&mut turns, 6, Turn::Discard) && !turns.is_ready());
        turns.forget(Slot(3));
        turns.end(Turn::Zeroing);
        assert!(!take(&mut turns, 0, Turn::Zeroing), "it goes behind those that wait");
        assert_eq!(turns.next(), Some((Slot(2), Turn::Zeroing)));
        assert_eq!((turns.next(), turns.is_ready()), (None, false));
        turns.end(Turn::Discard);
        turns.end(Turn::Zeroing);
        let next: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(next, [(Slot(6), Turn::Discard), (Slot(4), Turn::Zeroing)]);
        assert_eq!(turns.waiting().collect::<Vec<_>>(), [Slot(0)]);
    }
}
