//! An image in memory (tmpfs): reads are copies from a mapping, without a system call.
//!
//! A page of the mapping is only touched when it is known to exist: touching a hole would allocate it. Reads of a
//! page not known yet go through `preadv`, which does the right thing, and the page is known from then on. Should the
//! page vanish all the same (somebody truncates the file), the guard trips, and every read goes through system calls
//! for good, errors included.
//!
//! Writes are system calls, `pwrite`: the kernel's copy into a page is not interrupted by a signal. A copy of our own
//! would be a third faster, and SIGKILL could stop it in the middle of a sector, with the sector's old content, which
//! the guest may have flushed long ago, half gone. No disk does that.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use vlane_ring::{Kind, SECTOR};

use super::{Shared, span};
use crate::{Channel, ChannelStats, IoErrorKind, Outcome, Request, Slot, Status, Uring};

/// A lane's way into an image in memory.
#[derive(Debug)]
pub(super) struct MappedChannel {
    shared: Arc<Shared>,
    stats: ChannelStats,
}

impl MappedChannel {
    pub(super) fn new(shared: Arc<Shared>) -> MappedChannel {
        MappedChannel { shared, stats: ChannelStats::default() }
    }

    #[inline]
    fn read(&mut self, request: &Request) -> Status {
        let Some((offset, _)) = span(request.sector(), request.len()) else { return Status::IoErr };
        if let Some(map) = &self.shared.map
            && let Some(mut at) = map.address(offset, request.len())
        {
            for buffer in request.buffers() {
                // SAFETY: the guest's buffer stays mapped while the request is in flight; the buffers' lengths add up
                // to the request's, which the address is good for. Image and guest memory are different mappings.
                unsafe {
                    std::ptr::copy_nonoverlapping(at, buffer.iov_base.cast::<u8>(), buffer.iov_len);
                    at = at.add(buffer.iov_len);
                }
            }
            if !map.is_lost() {
                return Status::Ok;
            }
        }
        self.read_by_call(request, offset)
    }

    #[cold]
    fn read_by_call(&mut self, request: &Request, offset: u64) -> Status {
        // SAFETY: the guest's buffers stay mapped while the request is in flight.
        if let Err(error) = unsafe { transfer_all(&self.shared.file, request.buffers(), offset, false) } {
            return self.fail(request, &error);
        }
        if let Some(map) = &self.shared.map
            && !map.is_lost()
        {
            map.learn_after_read(&self.shared.file, offset, request.len());
        }
        Status::Ok
    }

    #[inline]
    fn write(&mut self, request: &Request) -> Status {
        let Some((offset, _)) = span(request.sector(), request.len()) else { return Status::IoErr };
        // SAFETY: the guest's buffers stay mapped while the request is in flight.
        if let Err(error) = unsafe { transfer_all(&self.shared.file, request.buffers(), offset, true) } {
            return self.fail(request, &error);
        }
        if let Some(map) = &self.shared.map
            && map.address(offset, request.len()).is_none()
            && !map.is_lost()
        {
            map.set_present(offset, request.len());
        }
        Status::Ok
    }

    #[cold]
    fn fail(&mut self, request: &Request, error: &io::Error) -> Status {
        let kind = match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero => IoErrorKind::Short,
            _ => IoErrorKind::of(error),
        };
        self.stats.count_error(kind);
        tracing::debug!("{}: {request:?}: {error}", self.shared.path.display());
        Status::IoErr
    }

    /// Makes all ranges read as zeroes. What need not stay allocated is deallocated.
    fn zero(&mut self, request: &Request, discard: bool) -> Status {
        for range in request.ranges() {
            let Some((offset, end)) = span(range.sector, u64::from(range.sectors) * SECTOR) else {
                return Status::IoErr;
            };
            let len = end - offset;
            if len == 0 {
                continue;
            }
            if let Some(map) = &self.shared.map {
                map.clear_present(offset, len);
            }
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let mut result = self.fallocate(punch, offset, len);
            if result.is_ok() && !discard && !range.unmap {
                result = self.fallocate(FallocateFlags::KEEP_SIZE, offset, len);
            }
            if let Err(error) = result {
                return self.fail(request, &error);
            }
        }
        Status::Ok
    }

    fn fallocate(&self, flags: FallocateFlags, offset: u64, len: u64) -> io::Result<()> {
        loop {
            match rustix::fs::fallocate(&self.shared.file, flags, offset, len) {
                Err(rustix::io::Errno::INTR) => {}
                result => return result.map_err(io::Error::from),
            }
        }
    }
}

impl Channel for MappedChannel {
    #[inline]
    fn submit(&mut self, _uring: &mut Uring, _slot: Slot, request: &Request) -> Outcome {
        self.stats.inline += 1;
        Outcome::Done(match request.kind() {
            Kind::In => self.read(request),
            Kind::Out => self.write(request),
            // Memory is as durable as it gets.
            Kind::Flush => Status::Ok,
            Kind::Discard => self.zero(request, true),
            Kind::WriteZeroes => self.zero(request, false),
            Kind::GetId | Kind::Refused(_) => Status::Unsupported,
        })
    }

    fn completed(&mut self, _: &mut Uring, _: Slot, _: &Request, _: i32) -> Option<Status> {
        None
    }

    fn set_write_through(&mut self, _on: bool) {}

    fn stats(&self) -> ChannelStats {
        self.stats
    }
}

/// Reads or writes all of `buffers` at `offset`, however many calls it takes.
///
/// # Safety
/// The buffers must be mapped.
unsafe fn transfer_all(file: &File, buffers: &[libc::iovec], offset: u64, write: bool) -> io::Result<()> {
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
                ([one], true) => libc::pwrite(file.as_raw_fd(), one.iov_base, one.iov_len, position),
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
                    super::channel::advance(rest.get_or_insert_with(|| buffers.to_vec()), n);
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
