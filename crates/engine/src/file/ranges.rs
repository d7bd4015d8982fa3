//! DISCARD and WRITE_ZEROES on a disk: one range after the other, each in the best way that the storage knows.
//!
//! Where direct I/O has blocks of more than a sector, a range is taken apart: the part of a block that it begins or ends with is not
//! discarded, and zeroed as a write of zeroes is; what is between is whole blocks.

use std::sync::atomic::Ordering;

use vlane_ring::{Kind, Range, SECTOR};

use super::channel::{FileChannel, Stage};
use super::transfer::{self, Data, Extent, Failure, Transfer};
use super::{Discard, span};
use crate::operation::{Decisions, Operation, Placement, What};
use crate::{Outcome, Request, Slot, Status};

/// A way to zero or discard a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Deallocates it: reads as zeroes.
    Punch,
    /// Zeroes it and keeps it allocated.
    Zero,
    /// Writes zeroes.
    Write,
    /// Tells the device that it is not needed (BLKDISCARD): what it reads as is the device's business.
    Device,
}

impl Way {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl FileChannel {
    /// The ways for a range, the best one first. A WRITE_ZEROES without "unmap" must not deallocate (virtio 1.2,
    /// 5.2.6.2).
    fn ways(&self, kind: Kind, range: &Range) -> &'static [Way] {
        match (kind, self.shared.discard) {
            (Kind::Discard, Discard::On) if self.shared.is_device => &[Way::Device],
            (Kind::Discard, Discard::On) => &[Way::Punch],
            (Kind::Discard, Discard::Keep) if !self.shared.is_device => &[Way::Zero],
            (Kind::Discard, _) => &[],
            (_, Discard::On) if range.unmap => &[Way::Punch, Way::Zero, Way::Write],
            _ => &[Way::Zero, Way::Write],
        }
    }

    /// Begins what is next of a request's ranges, or ends it.
    pub(super) fn next_range(
        &mut self,
        slot: Slot,
        request: &Request,
        decisions: Decisions,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        loop {
            let progress = self.at(slot);
            progress.stage = Stage::Range;
            let (index, way, done) = (progress.range, progress.way, progress.done);
            let Some(range) = request.ranges().get(index) else {
                return self.all_done(slot, request, decisions);
            };
            let Some((start, end)) = span(range.sector, u64::from(range.sectors) * SECTOR) else {
                self.flusher.count();
                return self.answer(slot, Status::IoErr);
            };
            let (at, left) = (start + done, end.saturating_sub(start + done));
            if left == 0 {
                (progress.range, progress.done, progress.way, progress.retries) = (index + 1, 0, 0, 0);
                continue;
            }
            let (decisions, left, block) = self.place_range(slot, decisions, at, left);
            // Part of a block, or whole ones.
            let into = at % block;
            let is_part = into > 0 || left < block;
            let len = if is_part { left.min(block - into) } else { left - left % block };
            let progress = self.at(slot);
            progress.part = len;
            if is_part && request.kind() == Kind::Discard {
                // A discard is advice.
                progress.done += len;
                continue;
            }
            let ways = self.ways(request.kind(), range);
            let way = if is_part { Some(Way::Write) } else { ways.get(way).copied() };
            match way {
                // A discard is advice; zeroes can always be written.
                None => {
                    let FileChannel { progress, holder, .. } = self;
                    transfer::release(holder.as_mut(), &mut progress[usize::from(slot.0)].hold);
                    self.range_part_done(slot);
                }
                Some(Way::Write) => return self.write_zeroes(slot, request, decisions, at, operations),
                Some(way) if self.shared.unknown_ways.load(Ordering::Relaxed) & way.bit() != 0 => {
                    self.at(slot).way += 1;
                }
                Some(way) => match self.begin_way(slot, decisions, way, at, operations) {
                    true => return Outcome::Pending,
                    false => self.at(slot).way += 1,
                },
            }
        }
    }

    /// Writes zeroes to the present part of a range, as any write is written.
    fn write_zeroes(
        &mut self,
        slot: Slot,
        request: &Request,
        decisions: Decisions,
        offset: u64,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let (file, align) = self.way_in(decisions.placement);
        let progress = self.at(slot);
        progress.stage = Stage::Zeroes;
        let extent = Extent { data: Data::Zeroes, write: true, file, offset, len: progress.part, align };
        progress.transfer = Transfer::new(extent, 0);
        self.proceed(slot, request, decisions, None, operations)
    }

    /// Begins the present part of a range in a way that the system knows, or waits for its blocks; false if that cannot be.
    fn begin_way(
        &mut self,
        slot: Slot,
        decisions: Decisions,
        way: Way,
        offset: u64,
        operations: &mut Vec<Operation>,
    ) -> bool {
        let FileChannel { shared, progress, holder, discards, .. } = self;
        let progress = &mut progress[usize::from(slot.0)];
        let len = progress.part;
        if let Some(holder) = holder.as_mut().filter(|_| decisions.placement == Placement::Direct)
            && progress.hold.is_none()
        {
            progress.hold = holder.begin_write(slot, offset..offset + len);
            if progress.hold.is_none() {
                return true;
            }
        }
        let what = match way {
            Way::Punch => What::Punch,
            Way::Zero => What::Zero,
            Way::Write | Way::Device => {
                let begun = discards.as_ref().is_some_and(|results| {
                    shared.discarder.begin(shared, slot, (offset, len), results).is_ok()
                });
                if !begun {
                    transfer::release(holder.as_mut(), &mut progress.hold);
                }
                return begun;
            }
        };
        let patient = progress.retries > 0;
        // The descriptor that claimed a device: see `open::claim`.
        operations.push(Operation { number: 0, what, file: 0, offset, len, durable: false, patient });
        true
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
        slot: Slot,
        request: &Request,
        decisions: Decisions,
        result: i32,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let FileChannel { progress, holder, .. } = self;
        let progress = &mut progress[usize::from(slot.0)];
        transfer::release(holder.as_mut(), &mut progress.hold);
        let (range, way) = (request.ranges().get(progress.range), progress.way);
        let way = range.and_then(|range| self.ways(request.kind(), range).get(way).copied());
        match (way, result.saturating_neg()) {
            (_, errno) if errno <= 0 => self.range_part_done(slot),
            (Some(way), libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY) => {
                self.shared.unknown_ways.fetch_or(way.bit(), Ordering::Relaxed);
                self.at(slot).way += 1;
            }
            // Not for this range: not aligned as the device wants it.
            (Some(_), libc::EINVAL) => self.at(slot).way += 1,
            (_, errno) if self.may_retry(slot, errno) => {}
            (_, errno) => return self.fail(slot, request, decisions, Failure::System(errno)),
        }
        self.next_range(slot, request, decisions, operations)
    }
}
