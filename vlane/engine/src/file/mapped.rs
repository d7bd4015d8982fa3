//! An image in memory (tmpfs): reads are copies from a mapping, without a system call.
//!
//! A page of the mapping is only touched when it is known to exist: touching a hole would allocate
//! it. Reads of a page not known yet go through `preadv`, which does the right thing, and the page
//! is known from then on. Should the page vanish all the same (another process truncates the file),
//! the guard trips, and every read goes through system calls for good, errors included.
//!
//! Writes are system calls, `pwrite`: the kernel's copy into a page is not interrupted by a signal.
//! A copy by vlane itself would be a third faster. But SIGKILL could stop it in the middle of a
//! sector, and half of the sector's old content, which the guest may have flushed long ago, would
//! be gone. No disk does that.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use vlane_ring::{RequestKind, SECTOR};
use vlane_trace::storage::{Action, Clear};

use super::{Discard, Shared, span};
use crate::recorder::RecordedCall;
use crate::{Channel, ChannelStats, IoErrorKind, Outcome, PART, Request, Slot, Status, Taken};
use vlane_io::Operation;
use vlane_io::select;

/// Bytes that are zeroed without a look at the lane's other work: allocating them takes some
/// milliseconds.
const ZEROES_PART: u64 = 16 << 20;

/// A lane's way into an image in memory.
#[derive(Debug)]
pub(super) struct MappedChannel {
    shared: Arc<Shared>,
    /// By slot, bytes that are done of a request that is worked on in parts.
    done: Box<[u64]>,
    stats: ChannelStats,
}

impl MappedChannel {
    pub(super) fn new(shared: Arc<Shared>, slots: u16) -> MappedChannel {
        let done = vec![0; usize::from(slots)].into_boxed_slice();
        MappedChannel { shared, done, stats: ChannelStats::default() }
    }

    #[inline]
    fn read(&mut self, request: &Request) -> Status {
        let Some((offset, _)) = span(request.sector(), request.len()) else { return Status::IoErr };
        self.read_at(request, request.buffers(), offset, request.len())
    }

    /// Reads `len` bytes at `offset` into `buffers`, which are the request's or a part of them.
    #[inline]
    fn read_at(
        &mut self,
        request: &Request,
        buffers: &[libc::iovec],
        offset: u64,
        len: u64,
    ) -> Status {
        if let Some(map) = &self.shared.map
            && let Some(mut at) = map.address(offset, len)
        {
            for buffer in buffers {
                // SAFETY: the guest's buffer stays mapped while the request is in flight; the
                // buffers' lengths add up to `len`, which the address is good for. Image and guest
                // memory are different mappings.
                unsafe {
                    std::ptr::copy_nonoverlapping(at, buffer.iov_base.cast::<u8>(), buffer.iov_len);
                    at = at.add(buffer.iov_len);
                }
            }
            if !map.is_lost() {
                return Status::Ok;
            }
        }
        self.read_by_call(request, buffers, offset, len)
    }

    #[cold]
    fn read_by_call(
        &mut self,
        request: &Request,
        buffers: &[libc::iovec],
        offset: u64,
        len: u64,
    ) -> Status {
        // SAFETY: the guest's buffers stay mapped while the request is in flight.
        if let Err(error) = unsafe { transfer_all(self.shared.file(), buffers, offset, false) } {
            return self.fail(request, &error);
        }
        if let Some(map) = &self.shared.map
            && !map.is_lost()
        {
            map.learn_after_read(self.shared.file(), offset, len);
        }
        Status::Ok
    }

    #[inline]
    fn write(&mut self, request: &Request) -> Status {
        let Some((offset, _)) = span(request.sector(), request.len()) else { return Status::IoErr };
        self.write_at(request, request.buffers(), offset, request.len())
    }

    /// Writes `buffers`, which are the request's or a part of them, `len` bytes, at `offset`.
    #[inline]
    fn write_at(
        &mut self,
        request: &Request,
        buffers: &[libc::iovec],
        offset: u64,
        len: u64,
    ) -> Status {
        let from = offset - request.sector().wrapping_mul(SECTOR);
        let told =
            RecordedCall::write(self.shared.recorder.as_ref(), request, from, (0, offset, len));
        // SAFETY: the guest's buffers stay mapped while the request is in flight.
        let written = unsafe { transfer_all(self.shared.file(), buffers, offset, true) };
        match &written {
            Ok(()) => told.end(len.cast_signed()),
            failed => told.end_with(failed),
        }
        if let Err(error) = written {
            return self.fail(request, &error);
        }
        if let Some(map) = &self.shared.map
            && map.address(offset, len).is_none()
            && !map.is_lost()
        {
            map.set_present(offset, len);
        }
        Status::Ok
    }

    /// Begins a request that would keep the lane from its other work for too long: a part each time
    /// that the lane has done that.
    #[cold]
    fn begin_in_parts(&mut self, slot: Slot) -> Outcome {
        self.done[usize::from(slot.0)] = 0;
        Outcome::Continue
    }

    /// The next part of a request; its status, if that is not the end.
    fn next_part(&mut self, request: &Request, done: u64) -> (u64, Status) {
        let write = match request.kind() {
            RequestKind::In => false,
            RequestKind::Out if request.is_memory_lost() => return (0, Status::IoErr),
            RequestKind::Out => true,
            _ => return self.next_zeroes(request, done),
        };
        let Some((start, _)) = span(request.sector(), request.len()) else {
            return (0, Status::IoErr);
        };
        let mut part = Vec::new();
        let len = select(&mut part, request.buffers(), done, PART);
        let status = match write {
            true => self.write_at(request, &part, start + done, len),
            false => self.read_at(request, &part, start + done, len),
        };
        (len, status)
    }

    /// The next part of a DISCARD or WRITE_ZEROES: of its ranges, one after the other.
    fn next_zeroes(&mut self, request: &Request, done: u64) -> (u64, Status) {
        let mut skip = done;
        for range in request.ranges() {
            let Some((offset, end)) = span(range.sector, u64::from(range.sectors) * SECTOR) else {
                return (0, Status::IoErr);
            };
            if skip >= end - offset {
                skip -= end - offset;
                continue;
            }
            let len = (end - offset - skip).min(ZEROES_PART);
            return (len, self.zero(request, range.unmap, offset + skip, len));
        }
        (0, Status::Ok)
    }

    #[cold]
    fn fail(&mut self, request: &Request, error: &io::Error) -> Status {
        if error.raw_os_error() == Some(libc::EFAULT) {
            // The guest's memory is gone, which is not the storage's failure.
            return Status::IoErr;
        }
        let kind = match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero => IoErrorKind::Short,
            _ => IoErrorKind::of(error),
        };
        self.stats.count_error(kind);
        tracing::debug!("{}: {request:?}: {error}", self.shared.path.display());
        Status::IoErr
    }

    /// Makes a range read as zeroes. Deallocates the parts that need not stay allocated.
    fn zero(&mut self, request: &Request, unmap: bool, offset: u64, len: u64) -> Status {
        let is_discard = request.kind() == RequestKind::Discard;
        if is_discard && self.shared.discard == Discard::Off {
            return Status::Ok;
        }
        let frees = (is_discard || unmap) && self.shared.discard == Discard::On;
        if let Some(map) = &self.shared.map {
            map.clear_present(offset, len);
        }
        let clear = Action::Clear { how: Clear::Punch, offset, len };
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let told = RecordedCall::new(self.shared.recorder.as_ref(), || clear);
        let mut result = self.fallocate(punch, offset, len);
        told.end_with(&result);
        if result.is_ok() && !frees {
            result = self.fallocate(FallocateFlags::KEEP_SIZE, offset, len);
        }
        match result {
            Ok(()) => Status::Ok,
            Err(error) => self.fail(request, &error),
        }
    }

    /// All ranges of a DISCARD or WRITE_ZEROES at once, if that does not take long.
    fn zero_all(&mut self, slot: Slot, request: &Request) -> Outcome {
        let total = ranges_len(request);
        if total > ZEROES_PART {
            return self.begin_in_parts(slot);
        }
        let mut done = 0;
        while done < total {
            let (len, status) = self.next_zeroes(request, done);
            if status != Status::Ok {
                return Outcome::Done(status);
            }
            done += len;
        }
        Outcome::Done(Status::Ok)
    }

    fn fallocate(&self, flags: FallocateFlags, offset: u64, len: u64) -> io::Result<()> {
        loop {
            match rustix::fs::fallocate(self.shared.file(), flags, offset, len) {
                Err(rustix::io::Errno::INTR) => {}
                result => return result.map_err(io::Error::from),
            }
        }
    }
}

impl Channel for MappedChannel {
    #[inline]
    fn begin(&mut self, taken: Taken<'_>, _: &mut Vec<Operation>) -> Outcome {
        self.stats.inline += 1;
        Outcome::Done(match taken.request.kind() {
            RequestKind::In | RequestKind::Out if taken.request.len() > PART => {
                return self.begin_in_parts(taken.slot);
            }
            RequestKind::In => self.read(taken.request),
            RequestKind::Out => self.write(taken.request),
            // Memory is as durable as it gets.
            RequestKind::Flush => Status::Ok,
            RequestKind::Discard | RequestKind::WriteZeroes => {
                return self.zero_all(taken.slot, taken.request);
            }
            RequestKind::GetId | RequestKind::Refused(_) | RequestKind::Unreachable => {
                Status::Unsupported
            }
        })
    }

    /// Does the next part.
    fn go_on(&mut self, taken: Taken<'_>, _: &mut Vec<Operation>) -> Outcome {
        let done = self.done[usize::from(taken.slot.0)];
        let (len, status) = self.next_part(taken.request, done);
        if status != Status::Ok {
            return Outcome::Done(status);
        }
        let total = match taken.request.kind() {
            RequestKind::In | RequestKind::Out => taken.request.len(),
            _ => ranges_len(taken.request),
        };
        if len == 0 || done + len >= total {
            return Outcome::Done(Status::Ok);
        }
        self.done[usize::from(taken.slot.0)] = done + len;
        Outcome::Continue
    }

    fn set_write_through(&mut self, _on: bool) {}

    fn stats(&self) -> ChannelStats {
        self.stats
    }
}

/// Bytes of all ranges of a request.
fn ranges_len(request: &Request) -> u64 {
    request.ranges().iter().map(|range| u64::from(range.sectors) * SECTOR).sum()
}

/// Reads or writes all of `buffers` at `offset`, however many calls it takes.
///
/// # Safety
/// The buffers must be mapped.
unsafe fn transfer_all(
    file: &File,
    buffers: &[libc::iovec],
    offset: u64,
    write: bool,
) -> io::Result<()> {
    let total: u64 = buffers.iter().map(|buffer| buffer.iov_len as u64).sum();
    let mut done = 0;
    // Only what comes in parts needs a list of its own.
    let mut rest: Option<Vec<libc::iovec>> = None;
    while done < total {
        let left = rest.as_deref().unwrap_or(buffers);
        let count = i32::try_from(left.len().min(1024)).unwrap_or(1024);
        let position = i64::try_from(offset + done).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: `left` has at least `count` buffers, mapped as the caller promises.
        let n = unsafe {
            match (left, write) {
                ([one], true) => {
                    libc::pwrite(file.as_raw_fd(), one.iov_base, one.iov_len, position)
                }
                (_, true) => libc::pwritev(file.as_raw_fd(), left.as_ptr(), count, position),
                (_, false) => libc::preadv(file.as_raw_fd(), left.as_ptr(), count, position),
            }
        };
        match usize::try_from(n) {
            Ok(0) if write => return Err(io::ErrorKind::WriteZero.into()),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                done += n as u64;
                if done < total {
                    let mut left = Vec::new();
                    select(&mut left, buffers, done, u64::MAX);
                    rest = Some(left);
                }
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}
