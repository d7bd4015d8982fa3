//! DISCARD and WRITE_ZEROES on a disk: one range after the other, each in the best way that the
//! storage knows.
//!
//! Where direct I/O has blocks of more than a sector, a range is divided. A part of a block at its
//! beginning or end is not discarded, and is zeroed by a write of zeroes; the rest is whole blocks.
//!
//! A range is worked on a piece at a time ([`Pieces`]), each in a turn of its own (`turns.rs`). A
//! request that names 2 GiB keeps no other waiting. The end of the lane waits for a piece.

use std::sync::atomic::Ordering;

use vlane_ring::{Range, RequestKind, SECTOR};

use super::channel::{FileChannel, Stage};
use super::transfer::{self, Data, Extent, Failure, Transfer};
use super::turns::Turn;
use super::{Discard, span};
use crate::{Outcome, Slot, Status, Taken};
use vlane_io::{Operation, OperationKind, Placement};

/// A way to zero or discard a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClearMethod {
    /// Deallocates it: reads as zeroes.
    Punch,
    /// Zeroes it and keeps it allocated.
    Zero,
    /// Writes zeroes.
    Write,
    /// Marks it as unused on the device, by io_uring. The device decides how it reads then.
    Discard,
    /// The same by a thread that waits for it (BLKDISCARD).
    Device,
}

/// Bytes of a range that are worked on at a time: powers of two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pieces {
    /// Of a range of a file that is deallocated. It takes as long as the file system has extents
    /// there.
    pub(super) punched: u64,
    /// Of one that is zeroed. Where the device has no command for it, the kernel writes it.
    pub(super) zeroed: u64,
    /// Of one to which vlane writes zeroes.
    pub(super) written: u64,
}

impl Pieces {
    /// Each lasts some milliseconds, on a disk that writes 100 MB in a second a sixth of one.
    pub(super) const USUAL: Pieces =
        Pieces { punched: 64 << 20, zeroed: 16 << 20, written: 1 << 20 };

    /// The most that goes in this way at once.
    fn of(self, way: ClearMethod) -> u64 {
        match way {
            ClearMethod::Punch => self.punched,
            ClearMethod::Zero => self.zeroed,
            ClearMethod::Write => self.written,
            // One command for any length, and one wait.
            ClearMethod::Discard | ClearMethod::Device => u64::MAX,
        }
    }
}

impl ClearMethod {
    /// In [`Shared::unknown_ways`](super::Shared::unknown_ways).
    pub(super) fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The turns among which a piece that goes in this way has its own.
    fn turn(self) -> Turn {
        if matches!(self, ClearMethod::Discard | ClearMethod::Device) {
            Turn::Discard
        } else {
            Turn::Zeroing
        }
    }
}

impl FileChannel {
    /// The ways for a range, the best one first. A WRITE_ZEROES without "unmap" must not deallocate
    /// (virtio 1.2, 5.2.6.2).
    fn ways(&self, kind: RequestKind, range: &Range) -> &'static [ClearMethod] {
        match (kind, self.shared.discard) {
            (RequestKind::Discard, Discard::On) if self.shared.is_device => {
                &[ClearMethod::Discard, ClearMethod::Device]
            }
            (RequestKind::Discard, Discard::On) => &[ClearMethod::Punch],
            (RequestKind::Discard, Discard::Keep) if !self.shared.is_device => &[ClearMethod::Zero],
            (RequestKind::Discard, _) => &[],
            (_, Discard::On) if range.unmap => {
                &[ClearMethod::Punch, ClearMethod::Zero, ClearMethod::Write]
            }
            _ => &[ClearMethod::Zero, ClearMethod::Write],
        }
    }

    /// Begins the next of a request's ranges, or ends it.
    pub(super) fn next_range(
        &mut self,
        taken: Taken<'_>,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        loop {
            let progress = self.at(taken.slot);
            progress.stage = Stage::Range;
            let (index, way, done) = (progress.range, progress.way, progress.done);
            let Some(range) = taken.request.ranges().get(index) else {
                self.end_turn(taken.slot);
                return self.all_done(taken);
            };
            let Some((start, end)) = span(range.sector, u64::from(range.sectors) * SECTOR) else {
                self.flusher.count();
                return self.answer(taken.slot, Status::IoErr);
            };
            let (at, left) = (start + done, end.saturating_sub(start + done));
            if left == 0 {
                (progress.range, progress.done, progress.way, progress.retries) =
                    (index + 1, 0, 0, 0);
                continue;
            }
            let (taken, left, block) = self.place_range(taken, at, left);
            // Part of a block, or whole ones.
            let into = at % block;
            let is_part = into > 0 || left < block;
            let len = if is_part { left.min(block - into) } else { left - left % block };
            let pieces = self.shared.pieces;
            let progress = self.at(taken.slot);
            progress.part = len;
            if is_part && taken.request.kind() == RequestKind::Discard {
                // A discard is advice.
                progress.done += len;
                continue;
            }
            let ways = self.ways(taken.request.kind(), range);
            let Some(way) =
                (if is_part { Some(ClearMethod::Write) } else { ways.get(way).copied() })
            else {
                // A discard is advice; zeroes can always be written.
                let FileChannel { progress, holder, .. } = self;
                transfer::release(holder.as_mut(), &mut progress[usize::from(taken.slot.0)].hold);
                self.range_part_done(taken.slot);
                continue;
            };
            if self.shared.unknown_ways.load(Ordering::Relaxed) & way.bit() != 0 {
                self.at(taken.slot).way += 1;
                continue;
            }
            self.at(taken.slot).part = len.min(pieces.of(way).max(block));
            if !self.has_turn(taken.slot, way.turn()) {
                return Outcome::Pending;
            }
            match way {
                ClearMethod::Write => {
                    return self.write_zeroes(taken, at, operations);
                }
                // A thread's discard cannot be called back: the lane may want the request to end
                // here.
                ClearMethod::Device
                    if !std::mem::replace(&mut self.at(taken.slot).is_armed, true) =>
                {
                    return Outcome::Continue;
                }
                way => match self.begin_way(taken, way, at, operations) {
                    true => return Outcome::Pending,
                    false => self.at(taken.slot).way += 1,
                },
            }
        }
    }

    /// Writes zeroes to the present part of a range, as any write is written.
    fn write_zeroes(
        &mut self,
        taken: Taken<'_>,
        offset: u64,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let (file, align) = self.way_in(taken.decisions.placement);
        let progress = self.at(taken.slot);
        progress.stage = Stage::Zeroes;
        let extent =
            Extent { data: Data::Zeroes, write: true, file, offset, len: progress.part, align };
        progress.transfer = Transfer::new(extent, 0);
        self.proceed(taken, None, operations)
    }

    /// Begins the present part of a range in a way that the system knows, or waits for its blocks;
    /// false if that cannot be.
    fn begin_way(
        &mut self,
        taken: Taken<'_>,
        way: ClearMethod,
        offset: u64,
        operations: &mut Vec<Operation>,
    ) -> bool {
        let FileChannel { shared, progress, holder, discards, .. } = self;
        let progress = &mut progress[usize::from(taken.slot.0)];
        let len = progress.part;
        if let Some(holder) =
            holder.as_mut().filter(|_| taken.decisions.placement == Placement::Direct)
            && progress.hold.is_none()
        {
            progress.hold = holder.begin_range(taken.slot, offset..offset + len);
            if progress.hold.is_none() {
                self.end_turn(taken.slot);
                return true;
            }
        }
        let kind = match way {
            ClearMethod::Punch => OperationKind::Punch,
            ClearMethod::Zero => OperationKind::Zero,
            ClearMethod::Discard => OperationKind::Discard,
            ClearMethod::Write | ClearMethod::Device => {
                progress.is_armed = false;
                let begun = discards.as_ref().is_some_and(|results| {
                    shared.discarder.begin(shared, taken.slot, (offset, len), results).is_ok()
                });
                if !begun {
                    transfer::release(holder.as_mut(), &mut progress.hold);
                }
                return begun;
            }
        };
        progress.is_exclusive = true;
        shared.kernel_lock.begin();
        let patient = progress.retries > 0;
        // The descriptor that claimed a device: see `open::claim`.
        operations.push(Operation {
            number: 0,
            kind,
            file: 0,
            offset,
            len,
            durable: false,
            patient,
        });
        true
    }

    /// True if a request has a turn; otherwise it waits for one.
    pub(super) fn has_turn(&mut self, slot: Slot, turn: Turn) -> bool {
        let FileChannel { progress, turns, .. } = self;
        let progress = &mut progress[usize::from(slot.0)];
        if progress.turn.is_none() {
            progress.turn = turns.take(slot, turn).then_some(turn);
        }
        progress.turn.is_some()
    }

    /// A request's turn is over, if it has one.
    pub(super) fn end_turn(&mut self, slot: Slot) {
        if let Some(turn) = self.at(slot).turn.take() {
            self.turns.end(turn);
        }
    }

    /// An operation of a range is not under way any more, if one was.
    pub(super) fn range_ended(&mut self, slot: Slot) {
        if std::mem::take(&mut self.at(slot).is_exclusive) {
            self.shared.kernel_lock.end();
        }
    }

    /// The present part of a range is done.
    pub(super) fn range_part_done(&mut self, slot: Slot) {
        let progress = self.at(slot);
        progress.done += progress.part;
        progress.retries = 0;
    }

    /// The present part of a range was worked on: the next one, another way, or an end.
    pub(super) fn range_completed(
        &mut self,
        taken: Taken<'_>,
        result: i32,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        self.range_ended(taken.slot);
        let FileChannel { progress, holder, .. } = self;
        let progress = &mut progress[usize::from(taken.slot.0)];
        transfer::release(holder.as_mut(), &mut progress.hold);
        let (range, way) = (taken.request.ranges().get(progress.range), progress.way);
        self.end_turn(taken.slot);
        let way = range.and_then(|range| self.ways(taken.request.kind(), range).get(way).copied());
        match (way, result.saturating_neg()) {
            (_, errno) if errno <= 0 => self.range_part_done(taken.slot),
            (Some(way), libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY) => {
                self.shared.unknown_ways.fetch_or(way.bit(), Ordering::Relaxed);
                self.at(taken.slot).way += 1;
            }
            // A security module that knows no such command, or pages that others have: there is the
            // system call.
            (Some(ClearMethod::Discard), libc::EACCES | libc::EPERM | libc::EBUSY) => {
                self.at(taken.slot).way += 1
            }
            // Not for this range: not aligned as the device wants it.
            (Some(_), libc::EINVAL) => self.at(taken.slot).way += 1,
            (_, errno) if self.may_retry(taken.slot, errno) => {}
            (_, errno) => return self.fail(taken, Failure::System(errno)),
        }
        self.next_range(taken, operations)
    }
}
