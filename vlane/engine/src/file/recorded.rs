//! A channel whose requests and operations are written down. It passes every call on, and asks the
//! storage for no operation itself.
//!
//! It sees requests, answers, and operations of io_uring. A channel's own system calls are recorded
//! where they are made ([`RecordedCall`](crate::recorder::RecordedCall)). These are the inline
//! write (`channel.rs`), an image in memory (`mapped.rs`), a device's discard (`discard.rs`) and
//! the sync at the end (`mod.rs`).

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::Mode;
use vlane_ring::RequestKind;
use vlane_trace::storage::{Action as Change, Clear, Data};

use super::span;
use crate::recorder::{self, StorageRecorder};
use crate::{Channel, ChannelStats, Instant, Outcome, Request, Slot, Taken};
use vlane_io::{Completion, Decisions, Memory, Operation, OperationKind, StorageFile};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Recorded {
    inner: Box<dyn Channel>,
    recorder: Arc<StorageRecorder>,
    lane: u16,
    /// By slot, the request's number, if it is one that is written down.
    requests: Box<[Option<u64>]>,
    /// The operations under way: slot, number in its request, and number in the record.
    under_way: Vec<(Slot, u8, u64)>,
}

impl Recorded {
    pub(super) fn new(
        inner: Box<dyn Channel>,
        recorder: Arc<StorageRecorder>,
        slots: u16,
    ) -> Recorded {
        let requests = vec![None; usize::from(slots)].into_boxed_slice();
        Recorded { lane: recorder.lane(), inner, recorder, requests, under_way: Vec::new() }
    }

    /// Has the channel act for a request, and records the result.
    // off the data path: the recorder exists in tests of power cuts only.
    fn tell(
        &mut self,
        taken: Taken<'_>,
        operations: &mut Vec<Operation>,
        work: impl FnOnce(&mut dyn Channel, &mut Vec<Operation>) -> Outcome,
    ) -> Outcome {
        let number = self.requests[usize::from(taken.slot.0)];
        let before = operations.len();
        let inner = &mut *self.inner;
        let outcome = recorder::within(number, || work(inner, operations));
        match outcome {
            Outcome::Done(status) => {
                if let Some(number) = self.requests[usize::from(taken.slot.0)].take() {
                    self.recorder.answer(number, status);
                }
            }
            Outcome::Whole(file) if taken.request.kind() == RequestKind::Out => {
                let offset = span(taken.request.sector(), taken.request.len())
                    .map_or(0, |(offset, _)| offset);
                let data = recorder::data(taken.request, 0, taken.request.len());
                let durable = taken.decisions.durable;
                self.submitted(taken.slot, 0, Change::Write { file, offset, durable, data });
            }
            Outcome::Whole(_) | Outcome::Continue => {}
            Outcome::Pending => {
                for operation in operations.iter().skip(before) {
                    if let Some(what) = told(taken.request, operation) {
                        self.submitted(taken.slot, operation.number, what);
                    }
                }
            }
        }
        outcome
    }

    fn submitted(&mut self, slot: Slot, number: u8, what: Change) {
        let request = self.requests[usize::from(slot.0)];
        let operation = recorder::within(request, || self.recorder.submitted(what));
        self.under_way.push((slot, number, operation));
    }
}

/// An operation as the record has it; none for one that makes no change.
fn told(request: &Request, operation: &Operation) -> Option<Change> {
    let Operation { file, offset, len, durable, .. } = *operation;
    let data = match &operation.kind {
        OperationKind::Read(_) => return None,
        OperationKind::Punch => return Some(Change::Clear { how: Clear::Punch, offset, len }),
        OperationKind::Zero => return Some(Change::Clear { how: Clear::Zero, offset, len }),
        OperationKind::Discard => return Some(Change::Clear { how: Clear::Discard, offset, len }),
        OperationKind::Write(Memory::Request(from)) => recorder::data(request, *from, len),
        OperationKind::Write(Memory::Zeroes) => Data::Zeroes(len),
        OperationKind::Write(Memory::Piece(piece, from)) => {
            let bytes = piece.bytes().get(*from..).unwrap_or_default();
            let len = usize::try_from(len).map_or(bytes.len(), |len| len.min(bytes.len()));
            Data::of(bytes[..len].to_vec())
        }
    };
    Some(Change::Write { file, offset, durable, data })
}

impl Channel for Recorded {
    fn files(&self) -> &[StorageFile] {
        self.inner.files()
    }

    fn defaults(&self) -> Decisions {
        self.inner.defaults()
    }

    fn begin(&mut self, taken: Taken<'_>, operations: &mut Vec<Operation>) -> Outcome {
        let number = self.recorder.request(self.lane, taken.request, taken.decisions.durable);
        self.requests[usize::from(taken.slot.0)] = number;
        self.tell(taken, operations, |inner, operations| inner.begin(taken, operations))
    }

    fn finished(
        &mut self,
        taken: Taken<'_>,
        completion: Completion,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let is_it =
            |(at, number, _): &(Slot, u8, u64)| (*at, *number) == (taken.slot, completion.number);
        if let Some(index) = self.under_way.iter().position(is_it) {
            let (.., operation) = self.under_way.swap_remove(index);
            self.recorder.finished(operation, i64::from(completion.result));
        }
        self.tell(taken, operations, |inner, operations| {
            inner.finished(taken, completion, operations)
        })
    }

    fn go_on(&mut self, taken: Taken<'_>, operations: &mut Vec<Operation>) -> Outcome {
        self.tell(taken, operations, |inner, operations| inner.go_on(taken, operations))
    }

    fn forget(&mut self, slot: Slot) {
        // Some operations may be recorded as begun and never begin: none waits for them.
        self.under_way.retain(|(at, ..)| *at != slot);
        if let Some(number) = self.requests[usize::from(slot.0)].take() {
            self.recorder.forget(number);
        }
        self.inner.forget(slot);
    }

    fn waiting(&self, slots: &mut Vec<Slot>) {
        self.inner.waiting(slots);
    }

    fn poll(&mut self, now: Instant, ready: &mut Vec<Slot>) {
        self.inner.poll(now, ready);
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.inner.doorbell()
    }

    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }

    fn is_in_journal(&mut self, request: &Request) -> bool {
        self.inner.is_in_journal(request)
    }

    fn set_mode(&mut self, mode: Mode) {
        self.inner.set_mode(mode);
    }

    fn set_write_through(&mut self, on: bool) {
        self.inner.set_write_through(on);
    }

    fn stats(&self) -> ChannelStats {
        self.inner.stats()
    }
}
