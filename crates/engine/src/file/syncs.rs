//! A channel whose `fdatasync`s are not what they are elsewhere, for experiments:
//!
//! * their success is seen later than it comes ([`FileOptions::flush_delay`]);
//! * of the page cache only the guest's journal is written to the device ([`FileOptions::danger_flush_journal_only`]): **other data that was flushed can be
//!   lost**.
//!
//! The channel inside knows nothing of it: an `fdatasync` is under way until it is told of its end, so flushes that come meanwhile wait for the next one, as
//! they would on a device that is that slow. A volume without these options has no such channel around its own.
//!
//! [`FileOptions::flush_delay`]: super::FileOptions::flush_delay
//! [`FileOptions::danger_flush_journal_only`]: super::FileOptions::danger_flush_journal_only

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use vlane_policy::journal::{Kind, Map};

use super::Shared;
use crate::operation::{Completion, Decisions, Operation, StorageFile, What};
use crate::{Channel, ChannelStats, Instant, Outcome, Request, Slot};

/// Pieces of a journal that are written one beside the other; of one that has more, the whole file is.
const MOST_PIECES: usize = 64;
/// What one operation writes at most: its length has 32 bits.
const PIECE: u64 = 1 << 30;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Syncs {
    inner: Box<dyn Channel>,
    shared: Arc<Shared>,
    delay: Duration,
    /// By slot, what is under way instead of its `fdatasync`, if it has one.
    under_way: Box<[Option<UnderWay>]>,
    /// Those that have ended well and are not yet told of, in the order of the times at which they are.
    delayed: VecDeque<(Instant, Slot, Completion)>,
}

/// Operations in an `fdatasync`'s place.
#[derive(Debug, Clone, Copy)]
struct UnderWay {
    /// How many have not ended.
    left: usize,
    /// The worst result so far.
    result: i32,
}

impl Syncs {
    pub(super) fn new(inner: Box<dyn Channel>, slots: u16, shared: Arc<Shared>) -> Syncs {
        let under_way = vec![None; usize::from(slots)].into_boxed_slice();
        Syncs { inner, delay: shared.flush_delay, shared, under_way, delayed: VecDeque::new() }
    }

    /// Has the channel inside do something for a request, and looks at what it asks for.
    fn pass(
        &mut self,
        slot: Slot,
        operations: &mut Vec<Operation>,
        work: impl FnOnce(&mut dyn Channel, &mut Vec<Operation>) -> Outcome,
    ) -> Outcome {
        let before = operations.len();
        let outcome = work(&mut *self.inner, operations);
        let is_sync = |operation: &Operation| matches!(operation.what, What::Sync);
        if operations.iter().skip(before).any(is_sync) {
            // It is the request's only one.
            self.replace(operations);
            let left = operations.len() - before;
            self.under_way[usize::from(slot.0)] = Some(UnderWay { left, result: 0 });
        }
        outcome
    }

    /// Puts the journal's pieces into the place of an `fdatasync`, which is the last of these operations.
    fn replace(&self, operations: &mut Vec<Operation>) {
        let journal = self.shared.journal.as_ref().filter(|_| self.shared.danger_flush_journal_only);
        let Some(map) = journal.map(super::journal::Journal::map) else { return };
        if let Some(pieces) = pieces(&map)
            && let Some(Operation { file, patient, .. }) = operations.pop()
        {
            operations.extend(pieces.into_iter().zip(0..).map(|((offset, len), number)| Operation {
                number,
                what: What::WriteBack,
                file,
                offset,
                len,
                durable: false,
                patient,
            }));
        }
    }
}

/// Where the journals lie, in parts that an operation takes; nothing if none is known, or there are too many.
fn pieces(map: &Map) -> Option<Vec<(u64, u64)>> {
    let mut parts = Vec::new();
    for piece in map.pieces().iter().filter(|piece| piece.verdict.kind == Kind::Journal) {
        let (mut offset, end) = (piece.range.start, piece.range.end);
        while offset < end && parts.len() <= MOST_PIECES {
            let len = PIECE.min(end - offset);
            parts.push((offset, len));
            offset += len;
        }
    }
    (1..=MOST_PIECES).contains(&parts.len()).then_some(parts)
}

impl Channel for Syncs {
    fn files(&self) -> &[StorageFile] {
        self.inner.files()
    }

    fn defaults(&self) -> Decisions {
        self.inner.defaults()
    }

    fn submit(
        &mut self,
        slot: Slot,
        request: &Request,
        decisions: Decisions,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        self.pass(slot, operations, |inner, operations| inner.submit(slot, request, decisions, operations))
    }

    fn completed(
        &mut self,
        slot: Slot,
        request: &Request,
        decisions: Decisions,
        completion: Completion,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let mut completion = completion;
        if let Some(under_way) = &mut self.under_way[usize::from(slot.0)] {
            under_way.left = under_way.left.saturating_sub(1);
            under_way.result = under_way.result.min(completion.result);
            if under_way.left > 0 {
                return Outcome::Pending;
            }
            completion = Completion { number: 0, result: under_way.result, piece: None };
            self.under_way[usize::from(slot.0)] = None;
            if completion.result >= 0 && !self.delay.is_zero() {
                self.delayed.push_back((Instant::now() + self.delay, slot, completion));
                return Outcome::Pending;
            }
        }
        self.pass(slot, operations, |inner, operations| {
            inner.completed(slot, request, decisions, completion, operations)
        })
    }

    fn go_on(
        &mut self,
        slot: Slot,
        request: &Request,
        decisions: Decisions,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let delayed = self.delayed.iter().position(|(_, delayed, _)| *delayed == slot);
        let Some((_, _, completion)) = delayed.and_then(|at| self.delayed.remove(at)) else {
            let go_on = |inner: &mut dyn Channel, operations: &mut Vec<Operation>| {
                inner.go_on(slot, request, decisions, operations)
            };
            return self.pass(slot, operations, go_on);
        };
        self.pass(slot, operations, |inner, operations| {
            inner.completed(slot, request, decisions, completion, operations)
        })
    }

    fn forget(&mut self, slot: Slot) {
        self.delayed.retain(|(_, delayed, _)| *delayed != slot);
        self.under_way[usize::from(slot.0)] = None;
        self.inner.forget(slot);
    }

    fn poll(&mut self, now: Instant, ready: &mut Vec<Slot>) {
        // They stay until they go on.
        let due = self.delayed.iter().take_while(|(at, ..)| *at <= now);
        ready.extend(due.map(|(_, slot, _)| *slot));
        self.inner.poll(now, ready);
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.inner.doorbell()
    }

    fn deadline(&self) -> Option<Instant> {
        let next = self.delayed.front().map(|(at, ..)| *at);
        next.into_iter().chain(self.inner.deadline()).min()
    }

    fn set_write_through(&mut self, on: bool) {
        self.inner.set_write_through(on);
    }

    fn stats(&self) -> ChannelStats {
        self.inner.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vlane_policy::journal::{FileSystem, Journal, Way};

    #[test]
    fn a_journal_is_written_in_parts_that_an_operation_takes_or_not_by_itself() {
        let journal = |kind, ranges| Journal { filesystem: FileSystem::Ext4, kind, way: Way::Layout, ranges };
        let of = |kind, ranges| pieces(&Map::new(&[journal(kind, ranges)]));
        assert_eq!(
            of(Kind::Journal, vec![4096..8192, 16384..20480]),
            Some(vec![(4096, 4096), (16384, 4096)])
        );
        let one = |start, end| vec![std::ops::Range { start, end }];
        let long = Some(vec![(4096, PIECE), (4096 + PIECE, PIECE), (4096 + 2 * PIECE, 4096)]);
        assert_eq!(of(Kind::Journal, one(4096, 2 * PIECE + 8192)), long);
        assert_eq!(of(Kind::Log, one(4096, 8192)), None, "no journal");
        assert_eq!(pieces(&Map::default()), None);
        let many = |count: u64| (0..count).map(|at| at * 8192..at * 8192 + 4096).collect();
        assert!(of(Kind::Journal, many(64)).is_some());
        assert_eq!(of(Kind::Journal, many(65)), None);
        assert_eq!(of(Kind::Journal, one(0, u64::MAX)), None);
    }
}
