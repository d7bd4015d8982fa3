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
use crate::{Outcome, Request, Slot, Status, Taken};
use vlane_io::{Completion, Operation, Placement};

impl FileChannel {
    /// As [`FileChannel::begin`].
    #[inline(never)]
    pub(super) fn submit_placed(
        &mut self,
        taken: Taken<'_>,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let Some((placer, range)) = self.placer.as_mut().zip(touched(taken.request)) else {
            return self.begin_placed(taken, operations);
        };
        let outcome = match placer.begin(taken.slot, range) {
            Begun::Held => return Outcome::Pending,
            Begun::Mixed if matches!(taken.request.kind(), RequestKind::In | RequestKind::Out) => {
                self.begin_mixed(taken, operations)
            }
            _ => {
                let taken = self.placed(taken);
                self.begin_placed(taken, operations)
            }
        };
        self.ends_placed(taken.slot, outcome)
    }

    /// As [`FileChannel::ended`].
    #[inline(never)]
    pub(super) fn completed_placed(
        &mut self,
        taken: Taken<'_>,
        completion: Completion,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let taken = self.placed(taken);
        let outcome = self.finished_placed(taken, completion, operations);
        self.ends_placed(taken.slot, outcome)
    }

    /// As [`FileChannel::resume`].
    pub(super) fn go_on_placed(
        &mut self,
        taken: Taken<'_>,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        if self.placer.as_ref().is_some_and(|placer| placer.is_held(taken.slot)) {
            return self.submit_placed(taken, operations);
        }
        let taken = self.placed(taken);
        let outcome = self.resume(taken, operations);
        self.ends_placed(taken.slot, outcome)
    }

    /// Returns the decisions, with the placement of the request's present part: only the placer
    /// decides that here.
    fn placed<'a>(&self, taken: Taken<'a>) -> Taken<'a> {
        taken.placed(self.placer.as_ref().is_some_and(|placer| placer.is_direct(taken.slot)))
    }

    fn ends_placed(&mut self, slot: Slot, outcome: Outcome) -> Outcome {
        if let (Outcome::Done(_), Some(placer)) = (outcome, &mut self.placer) {
            placer.end(slot);
        }
        outcome
    }

    /// Begins a read or write that crosses a border.
    #[cold]
    fn begin_mixed(&mut self, taken: Taken<'_>, operations: &mut Vec<Operation>) -> Outcome {
        if span(taken.request.sector(), taken.request.len()).is_none() {
            return Outcome::Done(Status::IoErr);
        }
        if taken.request.kind() == RequestKind::Out {
            if self.shared.durability.is_lost() {
                return Outcome::Done(self.lost());
            }
            self.notice(taken.request, taken.decisions);
        }
        let progress = self.at(taken.slot);
        (progress.stage, progress.durable) = (Stage::Transfer, taken.decisions.durable);
        self.part_from(taken, 0, operations)
    }

    /// True if the finished transfer is only a part of a request's data.
    pub(super) fn has_next_part(&self, slot: Slot, request: &Request) -> bool {
        let Extent { data, len, .. } = self.progress[usize::from(slot.0)].transfer.extent();
        self.placer.is_some() && matches!(data, Data::Request(from) if from + len < request.len())
    }

    /// Begins the part of a request's data behind the one that is done.
    pub(super) fn next_part(
        &mut self,
        taken: Taken<'_>,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let Extent { data, len, .. } = self.at(taken.slot).transfer.extent();
        let done = match data {
            Data::Request(from) => from + len,
            Data::Zeroes => len,
        };
        self.part_from(taken, done, operations)
    }

    fn part_from(
        &mut self,
        taken: Taken<'_>,
        done: u64,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        // It was one when the request was begun.
        let offset = span(taken.request.sector(), taken.request.len())
            .map_or(0, |(offset, _)| offset)
            + done;
        let (is_direct, border) = self.part(taken.slot, offset);
        let taken = taken.placed(is_direct);
        let (file, align) = self.way_in(taken.decisions.placement);
        let len = (taken.request.len() - done).min(border - offset);
        let write = taken.request.kind() == RequestKind::Out;
        self.at(taken.slot).transfer =
            Transfer::new(Extent { data: Data::Request(done), write, file, offset, len, align }, 0);
        self.proceed(taken, None, operations)
    }

    fn part(&mut self, slot: Slot, at: u64) -> (bool, u64) {
        self.placer.as_mut().map_or((false, u64::MAX), |placer| placer.part(slot, at))
    }

    /// How the `left` bytes of a discard or zeroing go on at byte `at`: how that is placed, how
    /// many bytes of them are, and the blocks in which they are worked on.
    #[inline]
    pub(super) fn place_range<'a>(
        &mut self,
        taken: Taken<'a>,
        at: u64,
        left: u64,
    ) -> (Taken<'a>, u64, u64) {
        let Some(placer) = &mut self.placer else {
            let (_, align) = self.way_in(taken.decisions.placement);
            return (taken, left, align.block);
        };
        let (is_direct, border) = placer.part(taken.slot, at);
        let taken = taken.placed(is_direct);
        let (_, align) = self.way_in(taken.decisions.placement);
        (taken, left.min(border - at), align.block)
    }
}

impl Taken<'_> {
    /// The same request, with the placement of its present part.
    fn placed(mut self, is_direct: bool) -> Self {
        self.decisions.placement = if is_direct { Placement::Direct } else { Placement::Cached };
        self
    }
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
