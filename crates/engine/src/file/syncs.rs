//! A channel whose `fdatasync`s are not what they are elsewhere, for experiments: their success is seen later than it comes ([`FileOptions::flush_delay`]).
//!
//! The channel inside knows nothing of it: an `fdatasync` is under way until it is told of its end, so flushes that come meanwhile wait for the next one, as
//! they would on a device that is that slow. A volume without these options has no such channel around its own.
//!
//! [`FileOptions::flush_delay`]: super::FileOptions::flush_delay

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::operation::{Completion, Decisions, Operation, StorageFile, What};
use crate::{Channel, ChannelStats, Outcome, Request, Slot};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Syncs {
    inner: Box<dyn Channel>,
    delay: Duration,
    /// By slot, whether its operation is an `fdatasync`.
    under_way: Box<[bool]>,
    /// Those that have ended well and are not yet told of, in the order of the times at which they are.
    delayed: VecDeque<(Instant, Slot, Completion)>,
}

impl Syncs {
    pub(super) fn new(inner: Box<dyn Channel>, slots: u16, delay: Duration) -> Syncs {
        let under_way = vec![false; usize::from(slots)].into_boxed_slice();
        Syncs { inner, delay, under_way, delayed: VecDeque::new() }
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
        let mut new = operations.iter().skip(before);
        self.under_way[usize::from(slot.0)] |= new.any(|operation| matches!(operation.what, What::Sync));
        outcome
    }
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
        if self.under_way[usize::from(slot.0)] && completion.result >= 0 && !self.delay.is_zero() {
            self.delayed.push_back((Instant::now() + self.delay, slot, completion));
            return Outcome::Pending;
        }
        self.under_way[usize::from(slot.0)] = false;
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
        self.under_way[usize::from(slot.0)] = false;
        self.pass(slot, operations, |inner, operations| {
            inner.completed(slot, request, decisions, completion, operations)
        })
    }

    fn forget(&mut self, slot: Slot) {
        self.delayed.retain(|(_, delayed, _)| *delayed != slot);
        self.under_way[usize::from(slot.0)] = false;
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
