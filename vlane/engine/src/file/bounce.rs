//! Buffers for requests that direct I/O cannot take as they are.
//!
//! A request goes through them in pieces of at most [`PIECE`] bytes, and a channel has at most
//! [`BUDGET`] bytes at a time: the guest's requests must not decide how much memory the host needs.
//! A request that gets no buffer stands in line.

use std::collections::VecDeque;

use crate::{Piece, Slot};

/// The largest buffer, bytes, unless a block of the storage is larger.
pub(super) const PIECE: usize = 256 << 10;
/// A buffer for less.
const SMALL: usize = 16 << 10;
/// Bytes that one channel has in buffers at a time.
const BUDGET: usize = 32 << 20;
/// Buffers that are kept for the next requests.
const KEPT: usize = 32;

/// A channel's buffers.
#[derive(Debug, Default)]
pub(super) struct Pool {
    kept: Vec<Piece>,
    lent: usize,
    /// The waiting requests, and the bytes that each needs; the first one is served first.
    waiting: VecDeque<(Slot, usize)>,
}

impl Pool {
    /// A buffer of at least `len` bytes. If too much is lent already, or others wait, the request
    /// waits in line: [`Pool::next_ready`].
    pub(super) fn take(&mut self, slot: Slot, len: usize) -> Option<Piece> {
        if self.waiting.is_empty() && self.has_room(len) {
            return Some(self.lend(len));
        }
        self.waiting.push_back((slot, len));
        None
    }

    /// The first one that waits, with its buffer, if there is one by now.
    pub(super) fn next_ready(&mut self) -> Option<(Slot, Piece)> {
        let &(slot, len) = self.waiting.front().filter(|(_, len)| self.has_room(*len))?;
        self.waiting.pop_front();
        Some((slot, self.lend(len)))
    }

    /// True if [`Pool::next_ready`] has a request.
    pub(super) fn is_ready(&self) -> bool {
        self.waiting.front().is_some_and(|(_, len)| self.has_room(*len))
    }

    pub(super) fn give_back(&mut self, piece: Piece) {
        self.write_off(piece.len());
        if self.kept.len() < KEPT {
            self.kept.push(piece);
        }
    }

    /// A buffer that was lent for `len` bytes does not come back.
    pub(super) fn write_off(&mut self, len: usize) {
        self.lent -= size(len);
    }

    /// A request does not wait any more.
    pub(super) fn forget(&mut self, slot: Slot) {
        self.waiting.retain(|(waiting, _)| *waiting != slot);
    }

    fn has_room(&self, len: usize) -> bool {
        self.lent + size(len) <= BUDGET
    }

    fn lend(&mut self, len: usize) -> Piece {
        let size = size(len);
        self.lent += size;
        match self.kept.iter().rposition(|kept| kept.len() == size) {
            Some(at) => self.kept.swap_remove(at),
            None => Piece::new(size),
        }
    }
}

/// How large a buffer for `len` bytes is: one of few sizes, so that it fits the next request too.
fn size(len: usize) -> usize {
    if len <= SMALL { SMALL } else { len.next_power_of_two().max(PIECE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_lends_its_budget_and_reuses_buffers() {
        let mut pool = Pool::default();
        let lent: Vec<Piece> = std::iter::from_fn(|| pool.take(Slot(0), PIECE)).collect();
        assert_eq!(lent.len(), BUDGET / PIECE);
        assert!(pool.take(Slot(1), 1).is_none());
        lent.into_iter().for_each(|piece| pool.give_back(piece));
        assert_eq!((pool.lent, pool.kept.len()), (0, KEPT));
        assert!(pool.is_ready());
    }

    #[test]
    fn waiting_requests_are_served_in_order() {
        let mut pool = Pool::default();
        let mut lent: Vec<Piece> = std::iter::from_fn(|| pool.take(Slot(0), PIECE)).collect();
        pool.forget(Slot(0));
        assert!(pool.take(Slot(1), PIECE).is_none() && pool.take(Slot(2), 512).is_none());
        assert!(!pool.is_ready() && pool.next_ready().is_none());
        pool.give_back(lent.pop().expect("one"));
        // There would be room, but others were before.
        assert!(pool.take(Slot(3), 512).is_none());
        let (first, piece) = pool.next_ready().expect("room");
        assert_eq!((first, piece.len(), pool.is_ready()), (Slot(1), PIECE, false));
        pool.forget(Slot(2));
        pool.give_back(piece);
        assert_eq!(
            pool.next_ready().map(|(slot, piece)| (slot, piece.len())),
            Some((Slot(3), SMALL))
        );
        assert!(pool.next_ready().is_none());
    }
}
