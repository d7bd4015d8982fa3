//! A file or device on a disk: io_uring, and inline where the page cache has it.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use io_uring::{opcode, squeue, types};
use vlane_ring::{Kind, Range, SECTOR};

use super::bounce::Bounce;
use super::{Cache, Shared};
use crate::{Channel, ChannelStats, IoErrorKind, Outcome, Request, Slot, Status, Uring};

/// How often an operation that the system interrupted is begun again.
const MAX_RETRIES: u32 = 64;
/// An inline write that takes longer than this met a full page cache: the next ones go through io_uring's workers.
const SLOW_WRITE: Duration = Duration::from_micros(500);
/// For how long.
const SLOW_WRITE_PAUSE: Duration = Duration::from_millis(50);
/// After a miss, so many reads go without an inline attempt; doubled with each further miss up to the second number.
const MISS_PAUSE: (u32, u32) = (4, 256);

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
/// `_IO(0x12, 119)`
const BLKDISCARD: libc::Ioctl = 0x1277;

/// How far one request has come.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes transferred.
    done: u64,
    retries: u32,
    /// Range that is being worked on.
    range: usize,
    /// Which of a range's ways is being tried.
    attempt: usize,
    /// What is left of the buffers after a partial transfer.
    rest: Vec<libc::iovec>,
    bounce: Option<Bounce>,
}

// SAFETY: the buffers in `rest` are guest memory, usable from any thread as long as the request is in flight.
unsafe impl Send for Progress {}

/// Reads that are worth an inline attempt, by what the last ones found.
#[derive(Debug, Default)]
struct InlineReads {
    /// Reads to go without an attempt.
    pause: u32,
    next_pause: u32,
    /// The file system knows no RWF_NOWAIT.
    impossible: bool,
}

/// A lane's way into a file or device.
#[derive(Debug)]
pub(super) struct FileChannel {
    shared: Arc<Shared>,
    lane: u16,
    progress: Box<[Progress]>,
    write_through: bool,
    inline_reads: InlineReads,
    /// Writes go through io_uring until then.
    slow_writes_until: Option<Instant>,
    stats: ChannelStats,
}

impl FileChannel {
    pub(super) fn new(shared: Arc<Shared>, lane: u16, slots: u16) -> FileChannel {
        let write_through = shared.cache == Cache::WriteThrough;
        FileChannel {
            shared,
            lane,
            progress: (0..slots).map(|_| Progress::default()).collect(),
            write_through,
            inline_reads: InlineReads::default(),
            slow_writes_until: None,
            stats: ChannelStats::default(),
        }
    }

    fn fd(&self) -> RawFd {
        match &self.shared.buffered {
            Some(buffered) if !self.shared.is_direct() => buffered.as_raw_fd(),
            _ => self.shared.file.as_raw_fd(),
        }
    }

    fn write_flags(&self) -> i32 {
        if self.write_through { libc::RWF_DSYNC } else { 0 }
    }

    #[inline]
    fn transfer(&mut self, uring: &mut Uring, slot: Slot, request: &Request, write: bool) -> Outcome {
        if request.len() == 0 {
            return Outcome::Done(Status::Ok);
        }
        let offset = request.sector() * SECTOR;
        if self.shared.is_direct() {
            let blocks = self.shared.offset_align;
            let memory = self.shared.memory_align;
            let offset_ok = offset.is_multiple_of(blocks) && request.len().is_multiple_of(blocks);
            let memory_ok = |b: &libc::iovec| {
                (b.iov_base as usize).is_multiple_of(memory) && (b.iov_len as u64).is_multiple_of(blocks.min(512))
            };
            if !offset_ok || !request.buffers().iter().all(memory_ok) {
                return self.transfer_unaligned(uring, slot, request, write, offset_ok);
            }
        } else {
            let inline = if write { self.write_inline(request, offset) } else { self.read_inline(request, offset) };
            match inline {
                n if n == request.len() => {
                    self.stats.inline += 1;
                    return Outcome::Done(Status::Ok);
                }
                0 => {}
                n => {
                    self.progress[usize::from(slot.0)].done = n;
                    self.push_rest(uring, slot, request, write);
                    return Outcome::Pending;
                }
            }
        }
        let fd = types::Fd(self.fd());
        let entry = match request.buffers() {
            [one] => {
                let len = u32::try_from(one.iov_len).unwrap_or(u32::MAX);
                match write {
                    true => opcode::Write::new(fd, one.iov_base.cast(), len)
                        .offset(offset)
                        .rw_flags(self.write_flags())
                        .build(),
                    false => opcode::Read::new(fd, one.iov_base.cast(), len).offset(offset).build(),
                }
            }
            several => self.vectored(several, offset, write),
        };
        // SAFETY: the request and its buffers stay where they are until it is answered.
        unsafe { uring.push(entry, self.lane, slot) };
        Outcome::Pending
    }

    fn vectored(&self, buffers: &[libc::iovec], offset: u64, write: bool) -> squeue::Entry {
        let fd = types::Fd(self.fd());
        // More than the system takes at once (IOV_MAX): the rest follows as after a short transfer.
        let count = u32::try_from(buffers.len().min(1024)).unwrap_or(1024);
        match write {
            true => opcode::Writev::new(fd, buffers.as_ptr(), count)
                .offset(offset)
                .rw_flags(self.write_flags())
                .build(),
            false => opcode::Readv::new(fd, buffers.as_ptr(), count).offset(offset).build(),
        }
    }

    /// Tries to read from the page cache without waiting; says how many bytes it got.
    fn read_inline(&mut self, request: &Request, offset: u64) -> u64 {
        let state = &mut self.inline_reads;
        if state.impossible {
            return 0;
        }
        if state.pause > 0 {
            state.pause -= 1;
            return 0;
        }
        let (Ok(count), Ok(offset)) = (i32::try_from(request.buffers().len().min(1024)), i64::try_from(offset)) else {
            return 0;
        };
        // SAFETY: the request's buffers are mapped as long as it is in flight.
        let n = unsafe {
            let fd = self.shared.file.as_raw_fd();
            libc::preadv2(fd, request.buffers().as_ptr(), count, offset, libc::RWF_NOWAIT)
        };
        let n = u64::try_from(n).unwrap_or_else(|_| {
            let error = std::io::Error::last_os_error().raw_os_error();
            state.impossible = matches!(error, Some(libc::EOPNOTSUPP | libc::EINVAL));
            0
        });
        if n == request.len() {
            state.next_pause = 0;
        } else {
            state.next_pause = (state.next_pause * 2).clamp(MISS_PAUSE.0, MISS_PAUSE.1);
            state.pause = state.next_pause;
        }
        n
    }

    /// Writes to the page cache; says how many bytes it took. File systems do buffered writes without waiting only
    /// in part (ext4 not at all), and io_uring then hands each one to a worker thread, at several times the price. So
    /// the lane writes by itself, and keeps its eye on the clock: a write that had to wait for the disk makes the next
    /// ones asynchronous.
    fn write_inline(&mut self, request: &Request, offset: u64) -> u64 {
        if self.write_through {
            return 0;
        }
        let begin = Instant::now();
        if self.slow_writes_until.is_some_and(|until| begin < until) {
            return 0;
        }
        let (Ok(count), Ok(offset)) = (i32::try_from(request.buffers().len().min(1024)), i64::try_from(offset)) else {
            return 0;
        };
        let fd = self.fd();
        // SAFETY: the request's buffers are mapped as long as it is in flight.
        let n = unsafe { libc::pwritev(fd, request.buffers().as_ptr(), count, offset) };
        let took = begin.elapsed();
        self.slow_writes_until = (took > SLOW_WRITE).then(|| begin + took + SLOW_WRITE_PAUSE);
        // An error comes again through io_uring, and is dealt with there.
        u64::try_from(n).unwrap_or(0)
    }

    /// A request that direct I/O does not take as it is.
    #[cold]
    fn transfer_unaligned(
        &mut self,
        uring: &mut Uring,
        slot: Slot,
        request: &Request,
        write: bool,
        offset_ok: bool,
    ) -> Outcome {
        self.stats.bounced += 1;
        if write && !offset_ok {
            // Part of a device block: the page cache reads, changes and writes it. From now on it does so for all,
            // because a direct write and a cached change of the same block could overtake each other.
            if !self.shared.direct_off.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "{}: the guest writes less than the announced block of {} bytes; going on through the page cache",
                    self.shared.path.display(),
                    self.shared.block_size
                );
            }
            return self.transfer(uring, slot, request, write);
        }
        let Some((start, len)) = self.enclosing(request) else { return Outcome::Done(Status::IoErr) };
        let progress = &mut self.progress[usize::from(slot.0)];
        let mut bounce = match progress.bounce.take() {
            Some(bounce) if bounce.len() >= len => bounce,
            _ => Bounce::new(len),
        };
        if write {
            // SAFETY: the request's buffers are mapped as long as it is in flight.
            unsafe { bounce.gather(request.buffers()) };
        }
        let base = bounce.as_mut_ptr();
        progress.bounce = Some(bounce);
        progress.rest.clear();
        progress.rest.push(libc::iovec { iov_base: base.cast(), iov_len: len });
        let entry = self.vectored(&self.progress[usize::from(slot.0)].rest, start, write);
        // SAFETY: the bounce buffer and `rest` are not touched until the request is answered.
        unsafe { uring.push(entry, self.lane, slot) };
        Outcome::Pending
    }

    /// The aligned range that holds the request: offset and length, bytes.
    fn enclosing(&self, request: &Request) -> Option<(u64, usize)> {
        let align = self.shared.offset_align.max(1);
        let offset = request.sector() * SECTOR;
        let start = offset - offset % align;
        let len = offset.checked_add(request.len())?.checked_next_multiple_of(align)? - start;
        Some((start, usize::try_from(len).ok()?))
    }

    /// A bounced transfer arrived with `n` bytes in all.
    fn bounced(&mut self, slot: Slot, request: &Request, n: u64) -> Option<Status> {
        let (start, _) = self.enclosing(request)?;
        let skip = request.sector() * SECTOR - start;
        let progress = &mut self.progress[usize::from(slot.0)];
        // At the end of a file the enclosing range may be longer than the file is.
        if n < skip + request.len() {
            return None;
        }
        if request.kind() == Kind::In
            && let Some(bounce) = &progress.bounce
        {
            // SAFETY: the request's buffers are mapped as long as it is in flight.
            unsafe { bounce.scatter(usize::try_from(skip).unwrap_or(0), request.buffers()) };
        }
        Some(Status::Ok)
    }

    /// Goes on with what a partial transfer left.
    #[cold]
    fn push_rest(&mut self, uring: &mut Uring, slot: Slot, request: &Request, write: bool) {
        let is_bounced = self.progress[usize::from(slot.0)].bounce.is_some();
        let enclosing = self.enclosing(request);
        let progress = &mut self.progress[usize::from(slot.0)];
        progress.rest.clear();
        let start = match (&mut progress.bounce, enclosing) {
            (Some(bounce), Some((start, len))) => {
                progress.rest.push(libc::iovec { iov_base: bounce.as_mut_ptr().cast(), iov_len: len });
                start
            }
            _ => {
                progress.rest.extend_from_slice(request.buffers());
                request.sector() * SECTOR
            }
        };
        debug_assert!(is_bounced == progress.bounce.is_some());
        advance(&mut progress.rest, usize::try_from(progress.done).unwrap_or(usize::MAX));
        let offset = start + progress.done;
        // Asynchronous from the start: it would have blocked, or was cut short, a moment ago.
        let entry = self.vectored(&self.progress[usize::from(slot.0)].rest, offset, write).flags(squeue::Flags::ASYNC);
        // SAFETY: `rest` and what it points to stay where they are until the request is answered.
        unsafe { uring.push(entry, self.lane, slot) };
    }

    fn push_flush(&mut self, uring: &mut Uring, slot: Slot) {
        let entry =
            opcode::Fsync::new(types::Fd(self.fd())).flags(types::FsyncFlags::DATASYNC).build();
        // SAFETY: refers to no memory.
        unsafe { uring.push(entry, self.lane, slot) };
    }

    /// The ways to zero or discard a range, the best one first.
    fn ways(kind: Kind, range: &Range) -> [i32; 2] {
        match kind {
            Kind::WriteZeroes if !range.unmap => [ZERO, PUNCH],
            _ => [PUNCH, ZERO],
        }
    }

    /// Begins the next range of a DISCARD or WRITE_ZEROES, or says that all are done.
    fn push_range(&mut self, uring: &mut Uring, slot: Slot, request: &Request) -> Outcome {
        loop {
            let progress = &mut self.progress[usize::from(slot.0)];
            let Some(range) = request.ranges().get(progress.range) else { return Outcome::Done(Status::Ok) };
            if range.sectors == 0 {
                progress.range += 1;
                continue;
            }
            let mode = FileChannel::ways(request.kind(), range)[progress.attempt];
            let (offset, len) = (range.sector * SECTOR, u64::from(range.sectors) * SECTOR);
            let entry = opcode::Fallocate::new(types::Fd(self.fd()), len).offset(offset).mode(mode).build();
            // SAFETY: refers to no memory.
            unsafe { uring.push(entry, self.lane, slot) };
            return Outcome::Pending;
        }
    }

    /// One range was worked on: the next one, another way, or an end.
    fn range_completed(&mut self, uring: &mut Uring, slot: Slot, request: &Request, result: i32) -> Option<Status> {
        let progress = &mut self.progress[usize::from(slot.0)];
        let is_discard = request.kind() == Kind::Discard;
        let unable = result == -libc::EOPNOTSUPP || result == -libc::ENOSYS || result == -libc::EINVAL;
        if result >= 0 {
            progress.range += 1;
            progress.attempt = 0;
        } else if unable && !is_discard && progress.attempt == 0 {
            progress.attempt = 1;
        } else if unable && is_discard {
            // A discard is advice. A device that cannot zero what it deallocates may still take one.
            if self.shared.is_device
                && let Some(range) = request.ranges().get(progress.range)
            {
                let span = [range.sector * SECTOR, u64::from(range.sectors) * SECTOR];
                // SAFETY: an open device and a pair of numbers, as BLKDISCARD wants them.
                let _ = unsafe { libc::ioctl(self.shared.file.as_raw_fd(), BLKDISCARD, &span) };
            }
            progress.range += 1;
        } else if unable {
            return Some(Status::Unsupported);
        } else {
            return self.failed(uring, slot, request, -result);
        }
        match self.push_range(uring, slot, request) {
            Outcome::Done(status) => Some(status),
            Outcome::Pending => None,
        }
    }

    /// The system said no: again, if it was only for the moment.
    #[cold]
    fn failed(&mut self, uring: &mut Uring, slot: Slot, request: &Request, errno: i32) -> Option<Status> {
        let progress = &mut self.progress[usize::from(slot.0)];
        if matches!(errno, libc::EAGAIN | libc::EINTR | libc::EBUSY) && progress.retries < MAX_RETRIES {
            progress.retries += 1;
            self.stats.retries += 1;
            match request.kind() {
                Kind::In => self.push_rest(uring, slot, request, false),
                Kind::Out => self.push_rest(uring, slot, request, true),
                Kind::Flush => self.push_flush(uring, slot),
                _ => {
                    let _ = self.push_range(uring, slot, request);
                }
            }
            return None;
        }
        let error = std::io::Error::from_raw_os_error(errno);
        self.stats.count_error(IoErrorKind::of(&error));
        tracing::debug!("{}: {request:?}: {error}", self.shared.path.display());
        Some(Status::IoErr)
    }

    fn answer(&mut self, slot: Slot, status: Status) -> Status {
        let progress = &mut self.progress[usize::from(slot.0)];
        progress.done = 0;
        progress.retries = 0;
        progress.range = 0;
        progress.attempt = 0;
        progress.bounce = None;
        status
    }
}

impl Channel for FileChannel {
    fn submit(&mut self, uring: &mut Uring, slot: Slot, request: &Request) -> Outcome {
        match request.kind() {
            Kind::In => self.transfer(uring, slot, request, false),
            Kind::Out => self.transfer(uring, slot, request, true),
            Kind::Flush if self.shared.read_only => Outcome::Done(Status::Ok),
            Kind::Flush => {
                self.push_flush(uring, slot);
                Outcome::Pending
            }
            Kind::Discard | Kind::WriteZeroes => self.push_range(uring, slot, request),
            Kind::GetId | Kind::Refused(_) => Outcome::Done(Status::Unsupported),
        }
    }

    #[inline]
    fn completed(&mut self, uring: &mut Uring, slot: Slot, request: &Request, result: i32) -> Option<Status> {
        let kind = request.kind();
        let status = match kind {
            Kind::Discard | Kind::WriteZeroes => self.range_completed(uring, slot, request, result)?,
            _ if result < 0 => self.failed(uring, slot, request, -result)?,
            Kind::In | Kind::Out => {
                let n = u64::try_from(result).unwrap_or(0);
                let progress = &mut self.progress[usize::from(slot.0)];
                // The usual end, without touching the rest of the state.
                if n == request.len() && progress.done == 0 && progress.bounce.is_none() {
                    return Some(Status::Ok);
                }
                progress.done += n;
                let done = progress.done;
                let all = match progress.bounce.is_some() {
                    true => self.bounced(slot, request, done),
                    false => (done >= request.len()).then_some(Status::Ok),
                };
                match all {
                    Some(status) => status,
                    None if n == 0 => {
                        self.stats.count_error(IoErrorKind::Short);
                        Status::IoErr
                    }
                    None => {
                        self.stats.retries += 1;
                        self.push_rest(uring, slot, request, kind == Kind::Out);
                        return None;
                    }
                }
            }
            _ => Status::Ok,
        };
        Some(self.answer(slot, status))
    }

    fn is_synchronous(&self) -> bool {
        !self.shared.is_direct()
    }

    fn set_write_through(&mut self, on: bool) {
        self.write_through = on || self.shared.cache == Cache::WriteThrough;
    }

    fn stats(&self) -> ChannelStats {
        self.stats
    }
}

/// Drops the first `n` bytes of a list of buffers.
pub(super) fn advance(buffers: &mut Vec<libc::iovec>, n: usize) {
    let mut left = n;
    let mut gone = 0;
    for buffer in buffers.iter_mut() {
        if left < buffer.iov_len {
            // SAFETY: `left` is inside the buffer.
            buffer.iov_base = unsafe { buffer.iov_base.cast::<u8>().add(left) }.cast();
            buffer.iov_len -= left;
            break;
        }
        left -= buffer.iov_len;
        gone += 1;
    }
    buffers.drain(..gone);
}
