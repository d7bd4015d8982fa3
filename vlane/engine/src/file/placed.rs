//! A channel of a volume of which parts are read and written around the page cache: which way each
//! request goes, and each part of one that crosses a border. See [`super::placements`].
//!
//! A request inside one placement takes the same way as on a volume that has no other. One that
//! crosses a border goes part after part: data as one transfer each, a discard or zeroing as one
//! range each.

use std::ops::Range;

use vlane_ring::{RequestKind, SECTOR};

use super::channel::{FileChannel, Stage};
use super::placements::Begun;
use super::span;
use super::transfer::{Data, Extent, Transfer};
use crate::{Outcome, Request, Slot, Status};
use vlane_io::{Completion, Decisions, Operation, Placement};

impl FileChannel {
    /// As [`FileChannel::begin`].
    #[inline(never)]
    pub(super) fn submit_placed(
        &mut self,
        slot: Slot,
        request: &Request,
        decisions: Decisions,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let Some((placer, range)) = self.placer.as_mut().zip(touched(request)) else {
            return self.begin_placed(slot, request, decisions, operations);
        };
        let outcome = match placer.begin(slot, range) {
            Begun::Held => return Outcome::Pending,
            Begun::Mixed if matches!(request.kind(), RequestKind::In | RequestKind::Out) => {
                self.begin_mixed(slot, request, decisions, operations)
            }
            _ => {
                let decisions = self.placed(slot, decisions);
                self.begin_placed(slot, request, decisions, operations)
            }
        };
        self.ends_placed(slot, outcome)
    }

    /// As [`FileChannel::ended`].
    #[inline(never)]
    pub(super) fn completed_placed(
        &mut self,
        slot: Slot,
        request: &Request,
        decisions: Decisions,
        completion: Completion,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let decisions = self.placed(slot, decisions);
        let outcome = self.finished_placed(slot, request, decisions, completion, operations);
        self.ends_placed(slot, outcome)
    }

    /// As [`FileChannel::resume`].
    pub(super) fn go_on_placed(
        &mut self,
        slot: Slot,
        request: &Request,
        decisions: Decisions,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        if self.placer.as_ref().is_some_and(|placer| placer.is_held(slot)) {
            return self.submit_placed(slot, request, decisions, operations);
        }
        let decisions = self.placed(slot, decisions);
        let outcome = self.resume(slot, request, decisions, operations);
        self.ends_placed(slot, outcome)
    }

    /// Returns the decisions, with the placement of the request's present part: only the placer
    /// decides that here.
    fn placed(&self, slot: Slot, decisions: Decisions) -> Decisions {
        let is_direct = self.placer.as_ref().is_some_and(|placer| placer.is_direct(slot));
        Decisions { placement: placement(is_direct), ..decisions }
    }

    fn ends_placed(&mut self, slot: Slot, outcome: Outcome) -> Outcome {
        if let (Outcome::Done(_), Some(placer)) = (outcome, &mut self.placer) {
            placer.end(slot);
        }
        outcome
    }

    /// Begins a read or write that crosses a border.
    #[cold]
    fn begin_mixed(
        &mut self,
        slot: Slot,
        request: &Request,
        decisions: Decisions,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        if span(request.sector(), request.len()).is_none() {
            return Outcome::Done(Status::IoErr);
        }
        if request.kind() == RequestKind::Out {
            if self.shared.durability.is_lost() {
                return Outcome::Done(self.lost());
            }
            self.notice(request, decisions);
        }
        let progress = self.at(slot);
        (progress.stage, progress.durable) = (Stage::Transfer, decisions.durable);
        self.part_from(slot, request, decisions, 0, operations)
    }

    /// True if the finished transfer is only a part of a request's data.
    pub(super) fn has_next_part(&self, slot: Slot, request: &Request) -> bool {
        let Extent { data, len, .. } = self.progress[usize::from(slot.0)].transfer.extent();
        self.placer.is_some() && matches!(data, Data::Request(from) if from + len < request.len())
    }

    /// Begins the part of a request's data behind the one that is done.
    pub(super) fn next_part(
        &mut self,
        slot: Slot,
        request: &Request,
        decisions: Decisions,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let Extent { data, len, .. } = self.at(slot).transfer.extent();
        let done = match data {
            Data::Request(from) => from + len,
            Data::Zeroes => len,
        };
        self.part_from(slot, request, decisions, done, operations)
    }

    fn part_from(
        &mut self,
        slot: Slot,
        request: &Request,
        decisions: Decisions,
        done: u64,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        // It was one when the request was begun.
        let offset = span(request.sector(), request.len()).map_or(0, |(offset, _)| offset) + done;
        let (is_direct, border) = self.part(slot, offset);
        let decisions = Decisions { placement: placement(is_direct), ..decisions };
        let (file, align) = self.way_in(decisions.placement);
        let len = (request.len() - done).min(border - offset);
        let write = request.kind() == RequestKind::Out;
        self.at(slot).transfer =
            Transfer::new(Extent { data: Data::Request(done), write, file, offset, len, align }, 0);
        self.proceed(slot, request, decisions, None, operations)
    }

    fn part(&mut self, slot: Slot, at: u64) -> (bool, u64) {
        self.placer.as_mut().map_or((false, u64::MAX), |placer| placer.part(slot, at))
    }

    /// How the `left` bytes of a discard or zeroing go on at byte `at`: how that is placed, how
    /// many bytes of them are, and the blocks in which they are worked on.
    #[inline]
    pub(super) fn place_range(
        &mut self,
        slot: Slot,
        decisions: Decisions,
        at: u64,
        left: u64,
    ) -> (Decisions, u64, u64) {
        let Some(placer) = &mut self.placer else {
            let (_, align) = self.way_in(decisions.placement);
            return (decisions, left, align.block);
        };
        let (is_direct, border) = placer.part(slot, at);
        let decisions = Decisions { placement: placement(is_direct), ..decisions };
        let (_, align) = self.way_in(decisions.placement);
        (decisions, left.min(border - at), align.block)
    }
}

fn placement(is_direct: bool) -> Placement {
    if is_direct { Placement::Direct } else { Placement::Cached }
}

/// From the first to the last byte of the volume that a request touches; none for one that has no
/// place.
fn touched(request: &Request) -> Option<Range<u64>> {
    match request.kind() {
        RequestKind::In | RequestKind::Out => {
            let begin = request.sector().saturating_mul(SECTOR);
            Some(begin..begin.saturating_add(request.len()))
        }
        RequestKind::Discard | RequestKind::WriteZeroes => {
            let ranges = request.ranges().iter().map(|range| {
                let begin = range.sector.saturating_mul(SECTOR);
                begin..begin.saturating_add(u64::from(range.sectors) * SECTOR)
            });
            // Some that it does not touch may lie between.
            ranges
                .filter(|range| !range.is_empty())
                .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
        }
        RequestKind::Flush
        | RequestKind::GetId
        | RequestKind::Refused(_)
        | RequestKind::Unreachable => None,
    }
}
