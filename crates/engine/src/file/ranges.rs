//! DISCARD and WRITE_ZEROES on a disk: one range after the other, each in the best way that the storage knows.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use io_uring::{opcode, types};
use vlane_ring::{Kind, Range, SECTOR};

use super::channel::{FileChannel, Stage};
use super::{discard, span};
use crate::{Outcome, Request, Slot, Status, Uring};

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

#[repr(C, align(4096))]
struct Zeroes([u8; 64 << 10]);
static ZEROES: Zeroes = Zeroes([0; 64 << 10]);
/// Bytes of zeroes written at a time.
const WRITE_AT_ONCE: u64 = 1 << 20;

impl Way {
    fn mode(self) -> Option<i32> {
        match self {
            Way::Punch => Some(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
            Way::Zero => Some(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE),
            Way::Write | Way::Device => None,
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl FileChannel {
    /// The ways for a range, the best one first. A WRITE_ZEROES without "unmap" must not deallocate (virtio 1.2,
    /// 5.2.6.2).
    fn ways(&self, kind: Kind, range: &Range) -> &'static [Way] {
        match kind {
            Kind::Discard if self.shared.is_device => &[Way::Device],
            Kind::Discard => &[Way::Punch],
            _ if range.unmap => &[Way::Punch, Way::Zero, Way::Write],
            _ => &[Way::Zero, Way::Write],
        }
    }

    /// Begins the next range, or says that all are done.
    pub(super) fn push_range(&mut self, uring: &mut Uring, slot: Slot, request: &Request) -> Outcome {
        loop {
            let progress = self.at(slot);
            let (index, way, done) = (progress.range, progress.way, progress.done);
            let Some(range) = request.ranges().get(index) else { return Outcome::Done(Status::Ok) };
            let Some((start, end)) = span(range.sector, u64::from(range.sectors) * SECTOR) else {
                return Outcome::Done(Status::IoErr);
            };
            if start + done >= end {
                self.next_range(slot);
                continue;
            }
            let Some(way) = self.ways(request.kind(), range).get(way).copied() else {
                // A discard is advice; zeroes can always be written.
                self.next_range(slot);
                continue;
            };
            if self.shared.unknown_ways.load(Ordering::Relaxed) & way.bit() != 0 {
                self.at(slot).way += 1;
                continue;
            }
            if !self.push_way(uring, slot, way, start + done, end - start - done) {
                self.at(slot).way += 1;
                continue;
            }
            return Outcome::Pending;
        }
    }

    /// Begins a range in one way; false if that cannot be.
    fn push_way(&mut self, uring: &mut Uring, slot: Slot, way: Way, offset: u64, len: u64) -> bool {
        let entry = match way {
            Way::Punch | Way::Zero => {
                // The descriptor that claimed a device: see `open::claim`.
                let target = self.file;
                let mode = way.mode().unwrap_or(0);
                opcode::Fallocate::new(target.fd, len).offset(offset).mode(mode).build().flags(target.flags)
            }
            Way::Write => {
                if self.shared.is_direct() && !(offset | len).is_multiple_of(self.shared.offset_align) {
                    self.shared.leave_direct("the guest zeroes less than a block of the storage");
                }
                let progress = self.at(slot);
                progress.rest.clear();
                let mut left = len.min(WRITE_AT_ONCE);
                while left > 0 {
                    let n = left.min(ZEROES.0.len() as u64);
                    // Never written to: only writes to the file refer to it.
                    let iov_base = ZEROES.0.as_ptr().cast_mut().cast();
                    progress.rest.push(libc::iovec { iov_base, iov_len: usize::try_from(n).unwrap_or(0) });
                    left -= n;
                }
                self.vectored(&self.progress[usize::from(slot.0)].rest, offset, true)
            }
            Way::Device => {
                let Ok(event) = self.shared.discarder.begin(&self.shared, offset, len) else { return false };
                let progress = self.at(slot);
                let fd = types::Fd(event.as_raw_fd());
                progress.discard = Some(event);
                let value = &raw mut progress.discarded;
                opcode::Read::new(fd, value.cast(), 8).build()
            }
        };
        // SAFETY: zeroes are static; `rest` and `discarded` stay where they are, and are not touched, until the
        // operation completes.
        unsafe { uring.push(entry, self.lane, slot) };
        true
    }

    fn next_range(&mut self, slot: Slot) {
        let progress = self.at(slot);
        progress.range += 1;
        progress.way = 0;
        progress.done = 0;
        progress.retries = 0;
    }

    /// The same range in the same way: the system refused for the moment.
    pub(super) fn range_again(&mut self, uring: &mut Uring, slot: Slot, request: &Request) -> Option<Status> {
        self.at(slot).stage = Stage::Range;
        match self.push_range(uring, slot, request) {
            Outcome::Done(status) => Some(status),
            Outcome::Pending => None,
        }
    }

    /// One range was worked on: the next one, another way, or an end.
    pub(super) fn range_completed(
        &mut self,
        uring: &mut Uring,
        slot: Slot,
        request: &Request,
        result: i32,
    ) -> Option<Status> {
        let progress = self.at(slot);
        let result = match progress.discard.take() {
            Some(_) if result == 8 => discard::outcome(progress.discarded),
            Some(_) if result >= 0 => -libc::EIO,
            _ => result,
        };
        let way = request.ranges().get(progress.range).and_then(|range| {
            let way = self.progress[usize::from(slot.0)].way;
            self.ways(request.kind(), range).get(way).copied()
        });
        match (way, -result) {
            (Some(Way::Write), errno) if errno <= 0 => self.at(slot).done += u64::from(errno.unsigned_abs()),
            (_, errno) if errno <= 0 => self.next_range(slot),
            (Some(way), libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY) if way != Way::Write => {
                self.shared.unknown_ways.fetch_or(way.bit(), Ordering::Relaxed);
                self.at(slot).way += 1;
            }
            // Not for this range: not aligned as the device wants it.
            (Some(way), libc::EINVAL) if way != Way::Write => self.at(slot).way += 1,
            (_, errno) => return self.failed(uring, slot, request, errno),
        }
        self.range_again(uring, slot, request)
    }
}
