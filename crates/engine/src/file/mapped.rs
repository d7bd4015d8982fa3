//! An image in memory (tmpfs), served from a mapping: a request is a copy, without a system call.
//!
//! A page of the mapping is only touched when it is known to exist: touching a hole would allocate it on a read, and
//! be a SIGBUS on a write when memory is full. Requests that touch a page not known yet go through `preadv` and
//! `pwritev`, which do the right thing, and the page is known from then on. Should the file be truncated by somebody
//! else all the same, the guard trips, and every request goes through system calls for good, errors included.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::mm::{MapFlags, ProtFlags};
use vlane_ring::fault::Guard;
use vlane_ring::{Kind, Range, SECTOR};

use super::Shared;
use crate::{Channel, ChannelStats, IoErrorKind, Outcome, Request, Slot, Status, Uring};

const PAGE: u64 = 4096;
/// How far one look at the file's holes goes, bytes.
const LEARN: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Map {
    base: *mut u8,
    len: usize,
    /// One bit per page that is known to exist. Losing a bit costs a system call, nothing else.
    present: Box<[AtomicU64]>,
    guard: Guard,
}

// SAFETY: shared memory accessed through raw copies only; unmapped once, in `Drop`.
unsafe impl Send for Map {}
// SAFETY: as above; concurrent requests to the same blocks race as they do on any disk.
unsafe impl Sync for Map {}

impl Map {
    pub(super) fn new(file: &File, size: u64, read_only: bool) -> io::Result<Map> {
        let len = usize::try_from(size.next_multiple_of(PAGE)).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let protection = if read_only { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file.as_fd(), 0)
        }?
        .cast::<u8>();
        let guard = Guard::new(base, len)?;
        let words = len / 4096;
        let present = (0..words.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let map = Map { base, len, present, guard };
        let mut at = 0;
        // An image in a few pieces is known from the start; a scattered one is learnt as it is used.
        for _ in 0..1000 {
            match map.learn(file, at, size) {
                Some(next) => at = next,
                None => break,
            }
        }
        Ok(map)
    }

    /// Notes what data lies between `from` and `limit`; says where to go on, if there is more.
    fn learn(&self, file: &File, from: u64, limit: u64) -> Option<u64> {
        let start = rustix::fs::seek(file, SeekFrom::Data(from)).ok().filter(|start| *start < limit)?;
        let end = rustix::fs::seek(file, SeekFrom::Hole(start)).ok()?.min(limit);
        self.set_present(start, end - start);
        Some(end)
    }

    fn pages(offset: u64, len: u64) -> std::ops::Range<u64> {
        offset / PAGE..(offset + len).div_ceil(PAGE)
    }

    fn set_present(&self, offset: u64, len: u64) {
        self.change(offset, len, |word, mask| {
            word.fetch_or(mask, Ordering::Relaxed);
        });
    }

    fn clear_present(&self, offset: u64, len: u64) {
        self.change(offset, len, |word, mask| {
            word.fetch_and(!mask, Ordering::Relaxed);
        });
    }

    fn change(&self, offset: u64, len: u64, change: impl Fn(&AtomicU64, u64)) {
        let pages = Map::pages(offset, len);
        let mut page = pages.start;
        while page < pages.end {
            let upto = pages.end.min((page / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (upto - page))) << (page % 64);
            if let Some(word) = usize::try_from(page / 64).ok().and_then(|word| self.present.get(word)) {
                change(word, mask);
            }
            page = upto;
        }
    }

    #[inline]
    fn is_present(&self, offset: u64, len: u64) -> bool {
        Map::pages(offset, len).all(|page| {
            let word = usize::try_from(page / 64).ok().and_then(|word| self.present.get(word));
            word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (page % 64)) != 0)
        })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: what `mmap` returned, unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

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
    fn transfer(&mut self, request: &Request, write: bool) -> Status {
        let Some(map) = &self.shared.map else { return Status::IoErr };
        let (offset, len) = (request.sector() * SECTOR, request.len());
        let inside = offset.checked_add(len).is_some_and(|end| end <= map.len as u64);
        if inside && map.is_present(offset, len) && !map.guard.tripped() {
            // SAFETY: `offset + len` is inside the mapping. A page that is gone after all trips the guard.
            #[allow(clippy::cast_possible_truncation)]
            let mut at = unsafe { map.base.add(offset as usize) };
            for buffer in request.buffers() {
                let guest = buffer.iov_base.cast::<u8>();
                // SAFETY: the guest's buffer stays mapped while the request is in flight; the buffers' lengths add up
                // to `len`. Image and guest memory are different mappings. The guest may change its buffer while it
                // is copied, as it may on any device.
                unsafe {
                    match write {
                        true => std::ptr::copy_nonoverlapping(guest, at, buffer.iov_len),
                        false => std::ptr::copy_nonoverlapping(at, guest, buffer.iov_len),
                    }
                    at = at.add(buffer.iov_len);
                }
            }
            if !map.guard.tripped() {
                return Status::Ok;
            }
        }
        self.transfer_by_call(request, write)
    }

    #[cold]
    fn transfer_by_call(&mut self, request: &Request, write: bool) -> Status {
        let (offset, len) = (request.sector() * SECTOR, request.len());
        // SAFETY: the guest's buffers stay mapped while the request is in flight.
        let result = unsafe { transfer_all(&self.shared.file, request.buffers(), offset, write) };
        match result {
            Ok(()) => {
                if let Some(map) = &self.shared.map {
                    if write {
                        map.set_present(offset, len);
                    } else {
                        map.learn(&self.shared.file, offset, offset.saturating_add(LEARN).min(map.len as u64));
                    }
                }
                Status::Ok
            }
            Err(error) => self.fail(request, &error),
        }
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

    fn zero(&mut self, request: &Request, keep_allocated: impl Fn(&Range) -> bool) -> Status {
        for range in request.ranges() {
            let (offset, len) = (range.sector * SECTOR, u64::from(range.sectors) * SECTOR);
            if len == 0 {
                continue;
            }
            if let Some(map) = &self.shared.map {
                map.clear_present(offset, len);
            }
            let file = &self.shared.file;
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let mut result = rustix::fs::fallocate(file, punch, offset, len);
            if result.is_ok() && keep_allocated(range) {
                result = rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, len);
            }
            if let Err(error) = result {
                return self.fail(request, &error.into());
            }
        }
        Status::Ok
    }
}

impl Channel for MappedChannel {
    #[inline]
    fn submit(&mut self, _uring: &mut Uring, _slot: Slot, request: &Request) -> Outcome {
        self.stats.inline += 1;
        Outcome::Done(match request.kind() {
            Kind::In => self.transfer(request, false),
            Kind::Out => self.transfer(request, true),
            // Memory is as durable as it gets.
            Kind::Flush => Status::Ok,
            Kind::Discard => self.zero(request, |_| false),
            Kind::WriteZeroes => self.zero(request, |range| !range.unmap),
            Kind::GetId | Kind::Refused(_) => Status::Unsupported,
        })
    }

    fn completed(&mut self, _: &mut Uring, _: Slot, _: &Request, _: i32) -> Option<Status> {
        None
    }

    fn is_synchronous(&self) -> bool {
        true
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
    let fd = file.as_raw_fd();
    for chunk in buffers.chunks(1024) {
        let before: usize = buffers.iter().take_while(|b| !std::ptr::eq(*b, &chunk[0])).map(|b| b.iov_len).sum();
        let mut rest: Vec<libc::iovec> = chunk.to_vec();
        let mut at = offset + before as u64;
        while !rest.is_empty() {
            let count = i32::try_from(rest.len()).unwrap_or(i32::MAX);
            let position = i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
            // SAFETY: `rest` is a valid array of `count` buffers, mapped as the caller promises.
            let n = unsafe {
                match write {
                    true => libc::pwritev(fd, rest.as_ptr(), count, position),
                    false => libc::preadv(fd, rest.as_ptr(), count, position),
                }
            };
            let n = match usize::try_from(n) {
                Ok(0) if write => return Err(io::ErrorKind::WriteZero.into()),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => n,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => continue,
                    error => return Err(error),
                },
            };
            at += n as u64;
            super::channel::advance(&mut rest, n);
        }
    }
    Ok(())
}
