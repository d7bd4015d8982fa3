//! The transfer of an extent: of a part of a request's data to or from a part of a file, in however
//! many operations that takes.
//!
//! The caller gives it the extent and the file's demands on operations ([`Extent`]), and gets the
//! next step ([`Next`]): an operation, to wait, or the end. Each part of the extent goes one of
//! three ways, by how it lies:
//!
//! | the part | goes |
//! |---|---|
//! | what the file takes as it is | in one operation on the request's own buffers, up to [`PART`] |
//! | what is not aligned enough | through a buffer of ours, up to [`PIECE`]; what is read is widened to whole blocks |
//! | a write of less than a block | the blocks are read into a buffer of ours, changed there and written back, up to [`CHANGE`]; meanwhile nobody else writes to them |
//!
//! A transfer has one operation under way, and holds its blocks from before that operation to its
//! end. While it waits, it holds only the buffer with which it continues: so there is no circle of
//! waits.

use vlane_ring::Request;

use super::bounce::{PIECE, Pool};
use super::exclusion::{Hold, Holder};
use crate::{ChannelStats, PART, Piece, Slot};
use vlane_io::{Completion, Memory, Operation, OperationKind, ZEROES};

/// How often an operation that the system refused for the moment is begun again.
pub(super) const MAX_RETRIES: u32 = 64;
/// Bytes of blocks that are changed at a time, unless one is larger: more than a usual request that
/// begins or ends within a block.
const CHANGE: u64 = 16 << 10;

/// Where data goes, or comes from.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extent {
    pub(super) data: Data,
    /// From the data to the file.
    pub(super) write: bool,
    /// [`Operation::file`].
    pub(super) file: u8,
    /// Where in the file, bytes.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) len: u64,
    pub(super) align: Align,
}

/// The data to transfer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Data {
    /// The request's, from this byte on.
    Request(u64),
    /// Zeroes; only to be written.
    Zeroes,
}

impl Default for Data {
    fn default() -> Data {
        Data::Request(0)
    }
}

/// A file's demands on operations: powers of two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Align {
    /// Of offset and length, and of the length of each buffer, bytes.
    pub(super) block: u64,
    /// Of the address of each buffer.
    pub(super) memory: usize,
}

impl Align {
    /// Demands no alignment, as a file that goes through the page cache.
    pub(super) const NONE: Align = Align { block: 1, memory: 1 };

    /// True if one operation at `offset` takes all of a request's data as it lies. Every buffer
    /// must be whole blocks: kernels differ, this satisfies all.
    #[inline]
    pub(super) fn takes_all(self, request: &Request, offset: u64) -> bool {
        let (block, memory) = (self.block - 1, self.memory - 1);
        let misfit = (offset | request.len()) & block;
        let with = |misfit: u64, buffer: &libc::iovec| {
            misfit | (buffer.iov_len as u64 & block) | (buffer.iov_base as usize & memory) as u64
        };
        match request.buffers() {
            // Nearly all.
            [one] => with(misfit, one) == 0,
            all => all.iter().fold(misfit, with) == 0,
        }
    }

    /// The same for `len` bytes of its data from byte `from` on.
    fn takes(self, request: &Request, from: u64, offset: u64, len: u64) -> bool {
        let (block, memory) = (self.block - 1, self.memory - 1);
        let (mut skip, mut left) = (from, len);
        let mut misfit = (offset | len) & block;
        for buffer in request.buffers() {
            let here = skip.min(buffer.iov_len as u64);
            skip -= here;
            let n = (buffer.iov_len as u64 - here).min(left);
            left -= n;
            if n > 0 {
                let address = (buffer.iov_base as u64).wrapping_add(here);
                misfit |= (n & block) | (address & memory as u64);
            }
        }
        misfit == 0
    }
}

impl Default for Align {
    fn default() -> Align {
        Align::NONE
    }
}

/// The next step.
#[derive(Debug)]
pub(super) enum Next {
    /// This; its completion goes to [`Transfer::completed`].
    Operation(Operation),
    /// To wait for a buffer ([`Pool::next_ready`], [`Transfer::give`]) or for the blocks
    /// ([`Holder::granted`]), and then [`Transfer::go_on`].
    Wait,
    /// All of it is done.
    Done,
    /// It is over, and not all of it is done.
    Failed(Failure),
}

/// Why a transfer is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The file ends before the extent does.
    Short,
    /// The guest's memory with the data is gone.
    MemoryLost,
    /// The system's error number.
    System(i32),
}

/// The means that a channel lends a request's transfer.
#[derive(Debug)]
pub(super) struct Means<'a> {
    pub(super) slot: Slot,
    pub(super) pool: &'a mut Pool,
    /// None: the file has no blocks that a request could be part of.
    pub(super) holder: Option<&'a mut Holder>,
    /// The request's hold on blocks.
    pub(super) hold: &'a mut Option<Hold>,
    /// A worker does the writes now: the kernel would wait for its own lock of the file.
    pub(super) patient: bool,
    pub(super) stats: &'a mut ChannelStats,
}

/// An extent, and how far its transfer has come.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    extent: Extent,
    /// Bytes that are done.
    done: u64,
    step: Step,
    retries: u32,
    /// Its operations are for workers.
    patient: bool,
    /// The buffer for the next step.
    piece: Option<Piece>,
}

/// The step under way.
#[derive(Debug, Clone, Copy, Default)]
enum Step {
    #[default]
    Nothing,
    /// The data itself, this many bytes of it.
    Plain(u64),
    /// Blocks into a buffer, for the request.
    Read(Blocks),
    /// Blocks into a buffer, to be changed there.
    Fetch(Blocks),
    /// Blocks from a buffer.
    Store(Blocks),
}

/// Blocks of the file that a buffer stands for, and how many bytes of them have been moved.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    start: u64,
    len: usize,
    moved: usize,
}

impl Transfer {
    /// A transfer of which the first `done` bytes are done.
    pub(super) fn new(extent: Extent, done: u64) -> Transfer {
        Transfer { extent, done, ..Transfer::default() }
    }

    /// One whose first operation is under way: on all of the request's data.
    pub(super) fn begun(extent: Extent) -> Transfer {
        Transfer { extent, step: Step::Plain(extent.len), ..Transfer::default() }
    }

    /// From now on a worker, which can wait, does its operations.
    pub(super) fn may_wait(&mut self) {
        self.patient = true;
    }

    /// Returns the extent that it moves.
    pub(super) fn extent(&self) -> Extent {
        self.extent
    }

    /// The buffer that it waited for.
    pub(super) fn give(&mut self, piece: Piece) {
        self.piece = Some(piece);
    }

    /// Begins the rest, or continues after a wait.
    pub(super) fn go_on(
        &mut self,
        request: &Request,
        durable: bool,
        means: &mut Means<'_>,
    ) -> Next {
        let Extent { data, write, offset, len, align, .. } = self.extent;
        let (at, left) = (offset + self.done, len - self.done);
        if left == 0 {
            return Next::Done;
        }
        if write && self.is_lost(request) {
            return self.fail(Failure::MemoryLost, None, means);
        }

        // The way: plain, if it can be.
        let is_change = write && (!at.is_multiple_of(align.block) || left < align.block);
        let whole = if write && !is_change { left - left % align.block } else { left };
        let plain = match data {
            Data::Zeroes => whole.min(ZEROES),
            Data::Request(_) => whole.min(PART),
        };
        let is_plain = !is_change
            && match data {
                Data::Zeroes => true,
                Data::Request(from) => align.takes(request, from + self.done, at, plain),
            };

        // A transfer takes a buffer first, then the blocks. So a holder of blocks never waits for a
        // buffer.
        let most = if is_change { CHANGE } else { PIECE as u64 }.max(align.block);
        let start = at - at % align.block;
        let stop = match is_plain {
            true => at + plain,
            false => (at + whole).next_multiple_of(align.block).min(start + most),
        };
        let blocks =
            Blocks { start, len: usize::try_from(stop - start).unwrap_or(PIECE), moved: 0 };
        if !is_plain && self.piece.is_none() {
            self.piece = means.pool.take(means.slot, blocks.len);
            if self.piece.is_none() {
                return Next::Wait;
            }
        }
        if write
            && let Some(holder) = &mut means.holder
            && means.hold.is_none()
        {
            *means.hold = match is_change {
                true => holder.begin_change(means.slot, start..stop),
                false => holder.begin_write(means.slot, start..stop),
            };
            if means.hold.is_none() {
                return Next::Wait;
            }
        }

        // The operation.
        let mut piece = self.piece.take();
        self.step = match (is_plain, write, is_change) {
            (true, ..) => Step::Plain(plain),
            (_, false, _) => Step::Read(blocks),
            (_, true, true) => Step::Fetch(blocks),
            (_, true, false) => Step::Store(blocks),
        };
        if let (Step::Store(_), Some(piece)) = (self.step, &mut piece) {
            self.put(request, blocks, piece);
        }
        // After the copy: it may be what met the loss.
        if matches!(self.step, Step::Store(_)) && self.is_lost(request) {
            return self.fail(Failure::MemoryLost, piece, means);
        }
        self.operation(piece, durable, false, means)
    }

    /// An operation has ended.
    pub(super) fn finished(
        &mut self,
        request: &Request,
        durable: bool,
        completion: Completion,
        means: &mut Means<'_>,
    ) -> Next {
        let Completion { result, piece, .. } = completion;
        let Ok(n) = usize::try_from(result) else {
            return self.refused(result.saturating_neg(), durable, piece, means);
        };

        // The data itself.
        if let Step::Plain(len) = self.step {
            self.done += len.min(n as u64);
            if n == 0 {
                return self.fail(Failure::Short, piece, means);
            }
            means.stats.retries += u64::from((n as u64) < len);
            self.release(means);
            return self.go_on(request, durable, means);
        }

        // Blocks: the rest of them first, if only some were moved.
        let (
            Step::Read(mut blocks) | Step::Fetch(mut blocks) | Step::Store(mut blocks),
            Some(mut piece),
        ) = (self.step, piece)
        else {
            return self.fail(Failure::System(libc::EIO), None, means);
        };
        let Extent { offset, len, align, .. } = self.extent;
        blocks.moved = (blocks.moved + n).min(blocks.len);
        let end = (blocks.start + blocks.len as u64).min(offset + len);
        let needed = match self.step {
            // At the end of a file there may be more blocks than file.
            Step::Read(_) => usize::try_from(end - blocks.start).unwrap_or(blocks.len),
            _ => blocks.len,
        };
        if blocks.moved < needed && n > 0 && (blocks.moved as u64).is_multiple_of(align.block) {
            means.stats.retries += 1;
            match &mut self.step {
                Step::Read(step) | Step::Fetch(step) | Step::Store(step) => *step = blocks,
                Step::Nothing | Step::Plain(_) => {}
            }
            return self.operation(Some(piece), durable, false, means);
        }
        match self.step {
            Step::Fetch(_) => {
                // Blocks beyond the end of the file read as zeroes.
                piece.bytes_mut()[blocks.moved..].fill(0);
                self.put(request, blocks, &mut piece);
                if self.is_lost(request) {
                    return self.fail(Failure::MemoryLost, Some(piece), means);
                }
                self.step = Step::Store(Blocks { moved: 0, ..blocks });
                return self.operation(Some(piece), durable, false, means);
            }
            _ if blocks.moved < needed => return self.fail(Failure::Short, Some(piece), means),
            Step::Read(_) => {
                if let (Data::Request(from), skip, n) = self.overlap(blocks) {
                    request.copy_into(from + self.done, &piece.bytes()[skip..skip + n]);
                }
            }
            _ => {}
        }
        self.done = end - offset;
        means.pool.give_back(piece);
        self.release(means);
        self.go_on(request, durable, means)
    }

    /// The system has refused an operation.
    #[cold]
    fn refused(
        &mut self,
        errno: i32,
        durable: bool,
        piece: Option<Piece>,
        means: &mut Means<'_>,
    ) -> Next {
        if !is_momentary(errno) || self.retries == MAX_RETRIES {
            return self.fail(Failure::System(errno), piece, means);
        }
        self.retries += 1;
        means.stats.retries += 1;
        // An operation that the system refused for the moment is left to a worker, which can wait.
        self.operation(piece, durable, true, means)
    }

    /// Ends it where it is: it has no operation under way, nor ever will have.
    pub(super) fn forget(&mut self, means: &mut Means<'_>) {
        means.pool.forget(means.slot);
        if let Some(holder) = &mut means.holder {
            holder.forget(means.slot);
        }
        if let Step::Read(blocks) | Step::Fetch(blocks) | Step::Store(blocks) = self.step {
            // Went with the operation that was not begun.
            means.pool.write_off(blocks.len);
        }
        self.end(None, means);
    }

    /// The operation of the present step, or the rest of it.
    fn operation(
        &mut self,
        piece: Option<Piece>,
        durable: bool,
        patient: bool,
        means: &mut Means<'_>,
    ) -> Next {
        let Extent { data, write, file, offset, .. } = self.extent;
        let (memory, offset, len) = match (self.step, piece) {
            (Step::Plain(len), _) => match data {
                Data::Request(from) => (Memory::Request(from + self.done), offset + self.done, len),
                Data::Zeroes => (Memory::Zeroes, offset + self.done, len),
            },
            (Step::Read(blocks) | Step::Fetch(blocks) | Step::Store(blocks), Some(piece)) => {
                let moved = blocks.moved;
                (
                    Memory::Piece(piece, moved),
                    blocks.start + moved as u64,
                    (blocks.len - moved) as u64,
                )
            }
            // An operation without a request.
            (_, piece) => return self.fail(Failure::System(libc::EIO), piece, means),
        };
        let reads = !write || matches!(self.step, Step::Fetch(_));
        let kind = if reads { OperationKind::Read(memory) } else { OperationKind::Write(memory) };
        let patient = patient || self.patient || means.patient && !reads;
        Next::Operation(Operation {
            number: 0,
            kind,
            file,
            offset,
            len,
            durable: durable && !reads,
            patient,
        })
    }

    /// Puts the data to write into the buffer that stands for `blocks`.
    fn put(&self, request: &Request, blocks: Blocks, piece: &mut Piece) {
        let (data, skip, n) = self.overlap(blocks);
        let bytes = &mut piece.bytes_mut()[skip..skip + n];
        match data {
            Data::Request(from) => request.copy_from(from + self.done, bytes),
            Data::Zeroes => bytes.fill(0),
        }
    }

    /// Where in a buffer for `blocks` the data is that is not done, and how much of it.
    fn overlap(&self, blocks: Blocks) -> (Data, usize, usize) {
        let Extent { data, offset, len, .. } = self.extent;
        let skip = usize::try_from(offset + self.done - blocks.start)
            .unwrap_or(blocks.len)
            .min(blocks.len);
        let left = usize::try_from(len - self.done).unwrap_or(usize::MAX);
        (data, skip, left.min(blocks.len - skip))
    }

    /// True if the data to write is not there any more.
    fn is_lost(&self, request: &Request) -> bool {
        matches!(self.extent.data, Data::Request(_)) && request.is_memory_lost()
    }

    fn fail(&mut self, failure: Failure, piece: Option<Piece>, means: &mut Means<'_>) -> Next {
        self.end(piece, means);
        Next::Failed(failure)
    }

    /// Gives back its holds.
    fn end(&mut self, piece: Option<Piece>, means: &mut Means<'_>) {
        for piece in [piece, self.piece.take()].into_iter().flatten() {
            means.pool.give_back(piece);
        }
        self.release(means);
    }

    /// The present step is over: others may have its blocks.
    fn release(&mut self, means: &mut Means<'_>) {
        self.step = Step::Nothing;
        release(means.holder.as_deref_mut(), means.hold);
    }
}

/// Gives back a request's hold.
#[inline]
pub(super) fn release(holder: Option<&mut Holder>, hold: &mut Option<Hold>) {
    if let (Some(hold), Some(holder)) = (hold.take(), holder) {
        holder.end(hold);
    }
}

/// True if the system refused only for the moment.
pub(super) fn is_momentary(errno: i32) -> bool {
    matches!(errno, libc::EAGAIN | libc::EINTR | libc::EBUSY)
}
