//! A lane's way into a file or device on a disk: io_uring, and inline writes where the page cache takes them.
//!
//! A request is in one [`Stage`] at a time, and has at most one operation in flight. The usual one is a transfer that
//! ends with its first completion; everything else (short transfers, bounce buffers, retries, several ranges) is kept
//! off that path.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use vlane_ring::Kind;

use super::bounce::{Bounce, PIECE, Pool};
use super::{Cache, PART, Shared, inline, span};
use crate::uring::Target;
use crate::{Channel, ChannelStats, IoErrorKind, Outcome, Request, Slot, Status, Uring, Writeback};

/// How often an operation that the system interrupted is begun again.
const MAX_RETRIES: u32 = 64;
/// What `preadv` takes at once (`IOV_MAX`): the rest follows as after a short transfer.
const MAX_IOVECS: usize = 1024;
/// Buffers that a slot's list keeps room for: see `Request` in the crate `ring`, which does the same.
const KEPT: usize = 256;
/// Until the next look for a bounce buffer, nanoseconds.
const BOUNCE_PAUSE: u32 = 500_000;

/// What a request is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    /// Data between its own buffers and the storage.
    #[default]
    Transfer,
    /// Data between a bounce buffer and the storage.
    Bounce,
    /// Waiting for a bounce buffer.
    BounceWait,
    /// A range of a DISCARD or WRITE_ZEROES.
    Range,
    /// Its writes being made durable.
    Sync,
}

/// How far one request has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) stage: Stage,
    /// What was written is durable when it is written (RWF_DSYNC).
    durable: bool,
    /// [`FileChannel::switches`] when its flush began.
    flushed_at: u32,
    pub(super) retries: u32,
    /// Bytes of the request, or of its present range, that are done.
    pub(super) done: u64,
    /// Range that is being worked on.
    pub(super) range: usize,
    /// Which of a range's ways is being tried.
    pub(super) way: usize,
    /// What is left of the buffers after a partial transfer, up to [`PART`]; its bytes.
    pub(super) rest: Vec<libc::iovec>,
    part: u64,
    bounce: Option<Bounced>,
    /// The device's discard that is under way, and where its eventfd's value goes.
    pub(super) discard: Option<Arc<OwnedFd>>,
    pub(super) discarded: u64,
}

/// A bounce buffer, and what of the storage it stands for.
#[derive(Debug)]
struct Bounced {
    buffer: Bounce,
    /// Offset and bytes, both multiples of the device's block.
    start: u64,
    len: u64,
    /// Bytes transferred.
    got: u64,
}

// SAFETY: the buffers in `rest` are guest memory, usable from any thread as long as the request is in flight.
unsafe impl Send for Progress {}

/// A lane's way into a file or device.
#[derive(Debug)]
pub(super) struct FileChannel {
    pub(super) shared: Arc<Shared>,
    pub(super) lane: u16,
    pub(super) progress: Box<[Progress]>,
    pub(super) file: Target,
    buffered: Option<Target>,
    write_through: bool,
    /// Writes were answered that nobody has made durable, and write-through was switched on since.
    debt: bool,
    /// How often write-through was switched on.
    switches: u32,
    writes: inline::Writes,
    bounces: Pool,
    pause: Box<types::Timespec>,
    pub(super) stats: ChannelStats,
}

impl FileChannel {
    pub(super) fn new(shared: Arc<Shared>, uring: &mut Uring, lane: u16, slots: u16) -> FileChannel {
        FileChannel {
            lane,
            progress: (0..slots).map(|_| Progress::default()).collect(),
            file: uring.fix(shared.key, &shared.file),
            buffered: shared.buffered.as_ref().map(|(file, key)| uring.fix(*key, file)),
            write_through: shared.cache == Cache::WriteThrough,
            shared,
            debt: false,
            switches: 0,
            writes: inline::Writes::default(),
            bounces: Pool::default(),
            pause: Box::new(types::Timespec::new().nsec(BOUNCE_PAUSE)),
            stats: ChannelStats::default(),
        }
    }

    pub(super) fn at(&mut self, slot: Slot) -> &mut Progress {
        &mut self.progress[usize::from(slot.0)]
    }

    /// The image as it is read and written now.
    #[inline]
    pub(super) fn target(&self) -> Target {
        match self.buffered {
            Some(buffered) if !self.shared.is_direct() => buffered,
            _ => self.file,
        }
    }

    /// The same for plain system calls. Never the direct descriptor: those are for the page cache.
    fn cached_fd(&self) -> RawFd {
        self.shared.buffered.as_ref().map_or(&self.shared.file, |(file, _)| file).as_raw_fd()
    }

    fn write_flags(&self) -> i32 {
        if self.write_through { libc::RWF_DSYNC } else { 0 }
    }

    #[inline]
    fn transfer(&mut self, uring: &mut Uring, slot: Slot, request: &Request, write: bool) -> Outcome {
        let Some((offset, _)) = span(request.sector(), request.len()) else {
            return Outcome::Done(Status::IoErr);
        };
        if request.len() == 0 {
            return Outcome::Done(Status::Ok);
        }
        if write {
            self.at(slot).durable = self.write_through;
        }
        if self.shared.is_direct() {
            if !self.is_aligned(offset, request.len(), request.buffers()) {
                self.stats.bounced += 1;
                return self.begin_otherwise(uring, slot, request);
            }
        } else if write && !self.write_through && request.len() <= inline::LARGEST {
            let fd = self.cached_fd();
            // SAFETY: the request's buffers are mapped as long as it is in flight.
            match unsafe { self.writes.attempt(fd, request.buffers(), offset) } {
                n if n == request.len() => {
                    self.stats.inline += 1;
                    return Outcome::Done(Status::Ok);
                }
                0 => {}
                n => {
                    self.at(slot).done = n;
                    return self.begin_otherwise(uring, slot, request);
                }
            }
        }
        if request.len() > PART {
            return self.begin_otherwise(uring, slot, request);
        }
        let target = self.target();
        let entry = match request.buffers() {
            [one] => {
                let len = u32::try_from(one.iov_len).unwrap_or(u32::MAX);
                match write {
                    true => opcode::Write::new(target.fd, one.iov_base.cast(), len)
                        .offset(offset)
                        .rw_flags(self.write_flags())
                        .build(),
                    false => opcode::Read::new(target.fd, one.iov_base.cast(), len).offset(offset).build(),
                }
                .flags(target.flags)
            }
            several => self.vectored(several, offset, write),
        };
        // SAFETY: the request and its buffers stay where they are until it is answered.
        unsafe { uring.push(entry, self.lane, slot) };
        Outcome::Pending
    }

    /// Begins a transfer that is not one operation on the request's own buffers, or goes on after its beginning.
    #[cold]
    fn begin_otherwise(&mut self, uring: &mut Uring, slot: Slot, request: &Request) -> Outcome {
        match self.go_on(uring, slot, request) {
            Outcome::Done(status) => Outcome::Done(self.answer(slot, status)),
            Outcome::Pending => Outcome::Pending,
        }
    }

    /// Whether direct I/O takes it. Every buffer must be whole blocks: kernels differ, this satisfies all.
    #[inline]
    fn is_aligned(&self, offset: u64, len: u64, buffers: &[libc::iovec]) -> bool {
        let (block, memory) = (self.shared.offset_align - 1, self.shared.memory_align - 1);
        let misfit = buffers.iter().fold((offset | len) & block, |misfit, buffer| {
            misfit | (buffer.iov_len as u64 & block) | (buffer.iov_base as usize & memory) as u64
        });
        misfit == 0
    }

    pub(super) fn vectored(&self, buffers: &[libc::iovec], offset: u64, write: bool) -> squeue::Entry {
        let target = self.target();
        let count = u32::try_from(buffers.len().min(MAX_IOVECS)).unwrap_or(1024);
        match write {
            true => opcode::Writev::new(target.fd, buffers.as_ptr(), count)
                .offset(offset)
                .rw_flags(self.write_flags())
                .build(),
            false => opcode::Readv::new(target.fd, buffers.as_ptr(), count).offset(offset).build(),
        }
        .flags(target.flags)
    }

    /// Begins what is left of a transfer, in the way that its alignment asks for.
    #[cold]
    fn go_on(&mut self, uring: &mut Uring, slot: Slot, request: &Request) -> Outcome {
        let write = request.kind() == Kind::Out;
        let done = self.at(slot).done;
        let Some((start, _)) = span(request.sector(), request.len()) else {
            return Outcome::Done(Status::IoErr);
        };
        let (offset, left) = (start + done, request.len() - done);
        if write && request.is_memory_lost() {
            // What is there now is not what the guest wrote.
            return Outcome::Done(Status::IoErr);
        }
        let mut rest = std::mem::take(&mut self.at(slot).rest);
        let part = select(&mut rest, request.buffers(), done);
        let aligned = self.is_aligned(offset, part, &rest);
        let progress = self.at(slot);
        progress.rest = rest;
        progress.part = part;
        if self.shared.is_direct() && !aligned {
            if !write || (offset | left).is_multiple_of(self.shared.offset_align) {
                return self.bounce(uring, slot, request);
            }
            // Part of a device block: the page cache reads, changes and writes it. From now on it does so for all,
            // because a direct write and a cached change of the same block could overtake each other.
            self.shared.leave_direct("the guest writes less than a block of the storage");
        }
        let write_through = self.write_through;
        let progress = self.at(slot);
        progress.stage = Stage::Transfer;
        // The guest may have switched it since the beginning: all parts are durable, or the whole is not.
        progress.durable &= write_through;
        // What the system refused for the moment is left to a worker, who can wait.
        let flags = if progress.retries > 0 { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let entry = self.vectored(&self.progress[usize::from(slot.0)].rest, offset, write).flags(flags);
        // SAFETY: `rest` and what it points to stay where they are until the request is answered.
        unsafe { uring.push(entry, self.lane, slot) };
        Outcome::Pending
    }

    /// Begins the next piece of a transfer that goes through a bounce buffer.
    fn bounce(&mut self, uring: &mut Uring, slot: Slot, request: &Request) -> Outcome {
        let write = request.kind() == Kind::Out;
        let align = self.shared.offset_align;
        let done = self.at(slot).done;
        let Some((base, end)) = span(request.sector(), request.len()) else {
            return Outcome::Done(Status::IoErr);
        };
        let start = (base + done) / align * align;
        let stop = end.next_multiple_of(align).min(start + (PIECE as u64).max(align));
        let len = usize::try_from(stop - start).unwrap_or(PIECE);
        let Some(mut buffer) = self.bounces.take(len) else {
            self.at(slot).stage = Stage::BounceWait;
            let entry = opcode::Timeout::new(&raw const *self.pause).build();
            // SAFETY: the time lives in a box of the channel's, which is not dropped while anything is pending.
            unsafe { uring.push(entry, self.lane, slot) };
            return Outcome::Pending;
        };
        if write {
            // SAFETY: the request's buffers are mapped as long as it is in flight.
            unsafe { buffer.gather(request.buffers(), done, len) };
            // After the copy: it may be what met the loss.
            if request.is_memory_lost() {
                self.bounces.give_back(buffer);
                return Outcome::Done(Status::IoErr);
            }
        }
        let progress = self.at(slot);
        progress.stage = Stage::Bounce;
        progress.bounce = Some(Bounced { buffer, start, len: len as u64, got: 0 });
        self.push_bounce(uring, slot, write);
        Outcome::Pending
    }

    fn push_bounce(&mut self, uring: &mut Uring, slot: Slot, write: bool) {
        let write_through = self.write_through;
        let progress = self.at(slot);
        progress.durable &= write_through;
        let Some(bounced) = &mut progress.bounce else { return };
        let at = usize::try_from(bounced.got).unwrap_or(0);
        let iov_base = bounced.buffer.as_mut_ptr().wrapping_add(at).cast();
        let iov_len = usize::try_from(bounced.len).unwrap_or(0) - at;
        let offset = bounced.start + bounced.got;
        progress.rest.clear();
        progress.rest.push(libc::iovec { iov_base, iov_len });
        let entry = self.vectored(&self.progress[usize::from(slot.0)].rest, offset, write);
        // SAFETY: the bounce buffer and `rest` are not touched until the operation completes.
        unsafe { uring.push(entry, self.lane, slot) };
    }

    /// `n` bytes more went between a bounce buffer and the storage.
    fn bounced(&mut self, uring: &mut Uring, slot: Slot, request: &Request, n: u64) -> Option<Status> {
        let write = request.kind() == Kind::Out;
        let align = self.shared.offset_align;
        let (base, end) = span(request.sector(), request.len())?;
        let progress = self.at(slot);
        let mut bounced = progress.bounce.take()?;
        bounced.got += n;
        let first = base + progress.done;
        // At the end of a file the piece may be longer than what is there, and than what is needed.
        let needed = end.min(bounced.start + bounced.len);
        let arrived = bounced.start + bounced.got;
        if arrived < needed {
            if n == 0 || !arrived.is_multiple_of(align) {
                self.bounces.give_back(bounced.buffer);
                return Some(self.cut_short(request));
            }
            progress.bounce = Some(bounced);
            self.stats.retries += 1;
            self.push_bounce(uring, slot, write);
            return None;
        }
        let skip = usize::try_from(first - bounced.start).unwrap_or(0);
        let len = usize::try_from(needed - first).unwrap_or(0);
        if !write {
            // SAFETY: the request's buffers are mapped as long as it is in flight; the device wrote `got` bytes, which
            // reach to `needed`.
            unsafe { bounced.buffer.scatter(skip, request.buffers(), progress.done, len) };
        }
        progress.done += len as u64;
        let done = progress.done;
        self.bounces.give_back(bounced.buffer);
        if done == request.len() {
            return Some(Status::Ok);
        }
        self.pending(uring, slot, request)
    }

    /// [`FileChannel::go_on`] for a completion.
    fn pending(&mut self, uring: &mut Uring, slot: Slot, request: &Request) -> Option<Status> {
        match self.go_on(uring, slot, request) {
            Outcome::Done(status) => Some(status),
            Outcome::Pending => None,
        }
    }

    fn push_flush(&mut self, uring: &mut Uring, slot: Slot) {
        let target = self.target();
        self.at(slot).flushed_at = self.switches;
        let entry =
            opcode::Fsync::new(target.fd).flags(types::FsyncFlags::DATASYNC).build().flags(target.flags);
        // SAFETY: refers to no memory.
        unsafe { uring.push(entry, self.lane, slot) };
    }

    /// The image is shorter than its volume.
    #[cold]
    fn cut_short(&mut self, request: &Request) -> Status {
        self.stats.count_error(IoErrorKind::Short);
        tracing::debug!("{}: {request:?}: beyond the end of the file", self.shared.path.display());
        Status::IoErr
    }

    /// The system said no: again, if it was only for the moment, or if there is another way.
    #[cold]
    pub(super) fn failed(
        &mut self,
        uring: &mut Uring,
        slot: Slot,
        request: &Request,
        errno: i32,
    ) -> Option<Status> {
        if errno == libc::EFAULT && request.kind() != Kind::Flush {
            // The guest's memory is gone, which is not the storage's failure: the queue is going to stop for it.
            tracing::debug!("{}: {request:?}: its memory is lost", self.shared.path.display());
            if let Some(bounced) = self.at(slot).bounce.take() {
                self.bounces.give_back(bounced.buffer);
            }
            return Some(Status::IoErr);
        }
        let again = match errno {
            libc::EAGAIN | libc::EINTR | libc::EBUSY => true,
            // Not aligned as the device wants it, whatever it announced.
            libc::EINVAL
                if matches!(request.kind(), Kind::In | Kind::Out) && self.shared.buffered.is_some() =>
            {
                if self.shared.is_direct() {
                    self.shared.leave_direct("the storage refuses direct I/O");
                }
                true
            }
            _ => false,
        };
        let progress = self.at(slot);
        if let Some(bounced) = progress.bounce.take() {
            self.bounces.give_back(bounced.buffer);
        }
        let progress = self.at(slot);
        if again && progress.retries < MAX_RETRIES {
            progress.retries += 1;
            self.stats.retries += 1;
            return match (self.at(slot).stage, request.kind()) {
                (Stage::Sync, _) => {
                    self.push_flush(uring, slot);
                    None
                }
                (Stage::Range, _) => self.range_again(uring, slot, request),
                _ => self.pending(uring, slot, request),
            };
        }
        let error = std::io::Error::from_raw_os_error(errno);
        let kind = IoErrorKind::of(&error);
        self.stats.count_error(kind);
        self.note_loss(slot, request, errno, kind);
        tracing::debug!("{}: {request:?}: {error}", self.shared.path.display());
        Some(Status::IoErr)
    }

    /// A transfer between the request's own buffers and the storage moved `n` bytes.
    fn transferred(&mut self, uring: &mut Uring, slot: Slot, request: &Request, n: u64) -> Option<Status> {
        let progress = self.at(slot);
        progress.done += n;
        if progress.done >= request.len() {
            return Some(Status::Ok);
        }
        if n == 0 {
            return Some(self.cut_short(request));
        }
        // A whole part is no repetition.
        self.stats.retries += u64::from(n != progress.part);
        self.pending(uring, slot, request)
    }

    /// Everything but the usual: see [`Channel::completed`].
    #[cold]
    fn completed_otherwise(
        &mut self,
        uring: &mut Uring,
        slot: Slot,
        request: &Request,
        result: i32,
    ) -> Option<Status> {
        let status = match (self.at(slot).stage, u64::try_from(result)) {
            (Stage::Range, _) => self.range_completed(uring, slot, request, result)?,
            (Stage::BounceWait, _) => self.pending(uring, slot, request)?,
            (_, Err(_)) => self.failed(uring, slot, request, result.saturating_neg())?,
            (Stage::Transfer, Ok(n)) => self.transferred(uring, slot, request, n)?,
            (Stage::Bounce, Ok(n)) => self.bounced(uring, slot, request, n)?,
            (Stage::Sync, Ok(_)) => {
                // If it began after the switch to write-through, what was answered before that is on the device now.
                self.debt &= self.at(slot).flushed_at != self.switches;
                let status = self.proven(Writeback::Flush);
                return Some(self.answer(slot, status));
            }
        };
        let writes = matches!(request.kind(), Kind::Out | Kind::WriteZeroes);
        if status != Status::Ok || !writes || !self.write_through {
            return Some(self.answer(slot, status));
        }
        if self.debt || !self.at(slot).durable {
            let progress = self.at(slot);
            progress.stage = Stage::Sync;
            progress.retries = 0;
            self.push_flush(uring, slot);
            return None;
        }
        let status = self.proven(Writeback::Write);
        Some(self.answer(slot, status))
    }

    /// The answer to a flush, or a durable write, of which the system says that it went well: so it does to one of two that go on
    /// together, whatever happened to the pages of both.
    fn proven(&mut self, during: Writeback) -> Status {
        if self.shared.durability.ask(during) { self.lost() } else { Status::Ok }
    }

    /// The answer to everything but reads once something was lost.
    #[cold]
    fn lost(&mut self) -> Status {
        self.stats.lost_errors += 1;
        Status::IoErr
    }

    /// A request failed for good: whether that means that others, which were answered, are lost.
    #[cold]
    fn note_loss(&mut self, slot: Slot, request: &Request, errno: i32, kind: IoErrorKind) {
        let (stage, durable) = (self.at(slot).stage, self.at(slot).durable);
        let durability = &self.shared.durability;
        match stage {
            Stage::Sync if request.kind() == Kind::Flush => durability.fail(errno, Writeback::Flush),
            Stage::Sync => durability.fail(errno, Writeback::Write),
            // Its own transfer, or the writeback after it, which may be that of any page: the system does not say which.
            _ if durable && kind == IoErrorKind::Device => durability.fail(errno, Writeback::Write),
            // Most likely there was no place for this one; the witness knows of others.
            _ if self.write_through && request.kind() != Kind::In => {
                durability.ask(Writeback::Write);
            }
            _ => {}
        }
    }

    /// Leaves the slot as the next request wants to find it.
    fn answer(&mut self, slot: Slot, status: Status) -> Status {
        let progress = self.at(slot);
        progress.stage = Stage::Transfer;
        progress.durable = false;
        progress.retries = 0;
        progress.done = 0;
        progress.range = 0;
        progress.way = 0;
        progress.discard = None;
        if progress.rest.capacity() >= KEPT {
            progress.rest = Vec::new();
        }
        status
    }
}

impl Channel for FileChannel {
    #[inline]
    fn submit(&mut self, uring: &mut Uring, slot: Slot, request: &Request) -> Outcome {
        match request.kind() {
            Kind::In => self.transfer(uring, slot, request, false),
            Kind::GetId | Kind::Refused(_) => Outcome::Done(Status::Unsupported),
            Kind::Flush if self.shared.read_only => Outcome::Done(Status::Ok),
            _ if self.shared.durability.is_lost() => Outcome::Done(self.lost()),
            Kind::Out => self.transfer(uring, slot, request, true),
            Kind::Flush => {
                self.at(slot).stage = Stage::Sync;
                self.push_flush(uring, slot);
                Outcome::Pending
            }
            Kind::Discard | Kind::WriteZeroes => {
                let progress = self.at(slot);
                progress.stage = Stage::Range;
                progress.durable = false;
                match self.push_range(uring, slot, request) {
                    Outcome::Done(status) => Outcome::Done(self.answer(slot, status)),
                    Outcome::Pending => Outcome::Pending,
                }
            }
        }
    }

    #[inline]
    fn completed(&mut self, uring: &mut Uring, slot: Slot, request: &Request, result: i32) -> Option<Status> {
        let progress = &self.progress[usize::from(slot.0)];
        let fresh = progress.stage == Stage::Transfer && progress.done == 0 && progress.retries == 0;
        if fresh && u64::try_from(result).is_ok_and(|n| n == request.len()) {
            // The usual end, without touching the rest of the state.
            if !self.write_through || request.kind() == Kind::In {
                return Some(Status::Ok);
            }
        }
        self.completed_otherwise(uring, slot, request, result)
    }

    fn set_write_through(&mut self, on: bool) {
        let on = on || self.shared.cache == Cache::WriteThrough;
        // The guest is not going to flush what it wrote before.
        if on && !self.write_through {
            self.debt = true;
            self.switches = self.switches.wrapping_add(1);
        }
        self.write_through = on;
    }

    fn stats(&self) -> ChannelStats {
        self.stats
    }
}

/// Makes `rest` what comes after the first `done` bytes of `buffers`, up to [`PART`] bytes and in as many buffers as one call takes; returns how many
/// bytes that are.
pub(super) fn select(rest: &mut Vec<libc::iovec>, buffers: &[libc::iovec], done: u64) -> u64 {
    rest.clear();
    rest.extend_from_slice(buffers);
    advance(rest, usize::try_from(done).unwrap_or(usize::MAX));
    rest.truncate(MAX_IOVECS);
    let mut len = 0;
    for (index, buffer) in rest.iter_mut().enumerate() {
        let left = usize::try_from(PART - len).unwrap_or(usize::MAX);
        buffer.iov_len = buffer.iov_len.min(left);
        len += buffer.iov_len as u64;
        if len == PART {
            rest.truncate(index + 1);
            break;
        }
    }
    len
}

/// Drops the first `n` bytes of a list of buffers.
pub(super) fn advance(buffers: &mut Vec<libc::iovec>, n: usize) {
    let mut left = n;
    let mut gone = 0;
    for buffer in buffers.iter_mut() {
        if left < buffer.iov_len {
            buffer.iov_base = buffer.iov_base.cast::<u8>().wrapping_add(left).cast();
            buffer.iov_len -= left;
            break;
        }
        left -= buffer.iov_len;
        gone += 1;
    }
    buffers.drain(..gone);
}
