//! A virtqueue together with the kernel's operations for it.
//!
//! Until an operation completes, its memory must stay where it is and be used for it alone. So the
//! submitter of operations holds its queue here: a request cannot be answered, nor its memory
//! unmapped, while one of its operations is under way. Operations under way when the queue is
//! dropped stay for ever, with the memory that they refer to. So safe code cannot get it wrong, in
//! whichever order it drops things.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use io_uring::{opcode, squeue};
use vlane_memory::{DirtyLog, GuestMemory};
use vlane_ring::{Broken, Queue, QueueError, RequestKind, SECTOR, Slot, Status};

use crate::Piece;
use crate::operation::{Completion, Memory, Operation, OperationKind, StorageFile, ZEROES};
use crate::uring::{CrossThreadOperation, Finished, Target, Ticket, Uring};

/// The most buffers that one `preadv` takes (`IOV_MAX`).
const MAX_IOVECS: usize = 1024;
/// Buffers of a list that is kept for the next operation, and how many such lists are.
const KEPT: usize = 256;
const KEPT_LISTS: usize = 32;

#[repr(C, align(4096))]
struct ZeroPage([u8; 64 << 10]);
static ZERO_PAGE: ZeroPage = ZeroPage([0; 64 << 10]);

/// Memory of queues that were dropped while operations were under way.
static LEFT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// A virtqueue of which an io_uring works on the requests' operations.
pub struct InflightQueue {
    /// Stays if an operation is under way.
    kept: ManuallyDrop<Kept>,
    /// By slot, how many operations are under way.
    lent: Box<[u8]>,
    /// All of them.
    under_way: usize,
    handed_over: u64,
    /// By [`Operation::file`].
    targets: Vec<Target>,
    ticket: Ticket,
}

/// Memory and files that operations refer to.
struct Kept {
    queue: Queue,
    /// Of operations with memory that is not simply their request's.
    held: Vec<Held>,
    /// Lists to be used again.
    spare: Vec<Vec<libc::iovec>>,
    /// Open as long as an operation may go there.
    files: Box<[StorageFile]>,
}

/// The memory of one operation.
struct Held {
    slot: Slot,
    number: u8,
    buffers: Vec<libc::iovec>,
    piece: Option<Piece>,
}

// SAFETY: `buffers` are lists of guest memory, or of `piece`, for the kernel. Any thread may hold
// them; this code follows no pointer in them.
unsafe impl Send for Kept {}

impl std::fmt::Debug for InflightQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queue = &self.kept.queue;
        f.debug_struct("InflightQueue")
            .field("queue", queue)
            .field("under_way", &self.under_way)
            .finish()
    }
}

impl InflightQueue {
    /// Takes a queue. `place` comes with its operations' completions ([`Finished::place`]), `files`
    /// are those that operations name by their number, `uring` is the one that mostly gets them.
    pub fn new(
        queue: Queue,
        place: u16,
        files: &[StorageFile],
        uring: &mut Uring,
    ) -> InflightQueue {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let slots = usize::from(queue.config().size);
        let kept = Kept { queue, held: Vec::new(), spare: Vec::new(), files: files.into() };
        InflightQueue {
            kept: ManuallyDrop::new(kept),
            lent: vec![0; slots].into_boxed_slice(),
            under_way: 0,
            handed_over: 0,
            targets: files.iter().map(|file| uring.fix(file)).collect(),
            ticket: Ticket::new(place, NEXT.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Goes to another thread: `place` and `uring` are as in [`InflightQueue::new`].
    ///
    /// # Panics
    /// When an operation is under way: only the uring that has it reports its end.
    pub fn move_to(&mut self, place: u16, uring: &mut Uring) {
        assert!(
            self.under_way == 0,
            "a queue moves while {} operations are under way",
            self.under_way
        );
        self.targets = self.kept.files.iter().map(|file| uring.fix(file)).collect();
        self.ticket = self.ticket.at(place);
    }

    /// Submits the read or write of all of a request's data, at its own place in the file; a
    /// `durable` write is on stable storage when it completes. Its number is 0.
    ///
    /// # Panics
    /// As [`InflightQueue::submit`].
    #[inline]
    pub fn submit_whole(&mut self, uring: &mut Uring, slot: Slot, file: u8, durable: bool) {
        let entry = self.whole(slot, file, durable);
        self.push(uring, entry, slot, 0, false);
    }

    #[inline(always)]
    fn whole(&self, slot: Slot, file: u8, durable: bool) -> squeue::Entry {
        let request = self.kept.queue.request(slot);
        assert!(request.is_in_flight(), "an operation for {slot:?}, which is not in flight");
        let target = self.targets[usize::from(file)];
        let is_write = request.kind() == RequestKind::Out;
        let offset = request.sector().wrapping_mul(SECTOR);
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        let entry = match (request.buffers(), is_write) {
            ([one], false) => {
                let len = u32::try_from(one.iov_len).unwrap_or(u32::MAX);
                opcode::Read::new(target.fd, one.iov_base.cast(), len).offset(offset).build()
            }
            ([one], true) => {
                let len = u32::try_from(one.iov_len).unwrap_or(u32::MAX);
                opcode::Write::new(target.fd, one.iov_base.cast(), len)
                    .offset(offset)
                    .rw_flags(flags)
                    .build()
            }
            (all, _) => vectored(all, is_write, offset, flags, target),
        };
        entry.flags(target.flags)
    }

    /// As [`InflightQueue::submit_whole`], of an express request: if that pays, in the ring of the
    /// thread with the fewest operations in its own ([`Uring::join`]).
    ///
    /// # Panics
    /// As [`InflightQueue::submit`].
    #[cold]
    pub fn submit_express(&mut self, uring: &mut Uring, slot: Slot, file: u8, durable: bool) {
        assert!(
            self.kept.queue.request(slot).is_in_flight(),
            "an operation for {slot:?}, which is not in flight"
        );
        assert!(self.lent[usize::from(slot.0)] < u8::MAX, "too many operations for {slot:?}");
        if self.hand_over(uring, slot, file, durable) {
            return;
        }
        let entry = self.whole(slot, file, durable);
        self.lend(slot);
        // SAFETY: as in `push`.
        unsafe { uring.push_express(entry, self.ticket.of(slot, 0, false)) };
    }

    /// In another thread's ring. False, if that does not pay: then no state has changed.
    fn hand_over(&mut self, uring: &mut Uring, slot: Slot, file: u8, durable: bool) -> bool {
        let request = self.kept.queue.request(slot);
        let (memory, len, is_list) = match request.buffers() {
            [one] => (one.iov_base.expose_provenance(), one.iov_len, false),
            all => (all.as_ptr().expose_provenance(), all.len().min(MAX_IOVECS), true),
        };
        let operation = CrossThreadOperation {
            is_write: request.kind() == RequestKind::Out,
            is_list,
            rw_flags: if durable { libc::RWF_DSYNC } else { 0 },
            // The other ring may not know the file by a number.
            fd: self.kept.files[usize::from(file)].file().as_raw_fd(),
            memory,
            len: u32::try_from(len).unwrap_or(u32::MAX),
            offset: request.sector().wrapping_mul(SECTOR),
        };
        // SAFETY: as in `push`: the request's memory stays mapped, and the file open, until
        // `finish`, which needs the completion. On either ring, `lent` and `under_way` count the
        // operation until then.
        let is_handed_over = unsafe { uring.hand_over(operation, self.ticket.of(slot, 0, false)) };
        if is_handed_over {
            self.lend(slot);
            self.handed_over += 1;
        }
        is_handed_over
    }

    /// Operations that went to the rings of other threads.
    pub fn handed_over(&self) -> u64 {
        self.handed_over
    }

    /// Submits an operation for a request that is in flight.
    ///
    /// # Panics
    /// On a `slot` that is not from this queue or not in flight. Also on an operation that names a
    /// file the queue was not given, or that has the number of another one of the same request
    /// under way.
    #[inline]
    pub fn submit(&mut self, uring: &mut Uring, slot: Slot, operation: &mut Operation) {
        let request = self.kept.queue.request(slot);
        assert!(request.is_in_flight(), "an operation for {slot:?}, which is not in flight");
        let target = self.targets[usize::from(operation.file)];
        let flags = target.flags
            | if operation.patient { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let number = operation.number;
        let (entry, is_held) = self.kept.entry(slot, operation, target);
        self.push(uring, entry.flags(flags), slot, number, is_held);
    }

    #[inline(always)]
    fn push(
        &mut self,
        uring: &mut Uring,
        entry: squeue::Entry,
        slot: Slot,
        number: u8,
        is_held: bool,
    ) {
        self.lend(slot);
        // SAFETY: what the entry refers to is the request's memory, which the queue keeps mapped
        // until the request is answered, and lists and buffers of `kept`, which stay where they are
        // until `finish`. `answer` answers no request that has something lent, and dropping this
        // keeps all of it while something is.
        unsafe { uring.push(entry, self.ticket.of(slot, number, is_held)) };
    }

    /// Counts an operation.
    #[inline(always)]
    fn lend(&mut self, slot: Slot) {
        let lent = &mut self.lent[usize::from(slot.0)];
        assert!(*lent < u8::MAX, "too many operations for {slot:?}");
        *lent += 1;
        self.under_way += 1;
    }

    /// Takes back an operation's memory and file. None if the operation was not one of this
    /// queue's.
    #[inline]
    pub fn finish(&mut self, finished: Finished) -> Option<(Slot, Completion)> {
        let (slot, number, is_held) = self.ticket.read(&finished)?;
        let lent = self.lent.get_mut(usize::from(slot.0))?;
        *lent -= 1;
        self.under_way -= 1;
        let piece = if is_held { self.kept.take_back(slot, number) } else { None };
        Some((slot, Completion { number, result: finished.result(), piece }))
    }

    /// Operations under way.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Answers a request, as [`Queue::answer`]. A request that the kernel still works on stays
    /// unanswered.
    ///
    /// # Panics
    /// When `slot` is not from this queue.
    #[inline]
    pub fn answer(&mut self, slot: Slot, status: Status) {
        let is_lent = self.lent[usize::from(slot.0)] > 0;
        debug_assert!(!is_lent, "{slot:?} is answered while the kernel works on it");
        if !is_lent {
            self.kept.queue.answer(slot, status);
        }
    }

    /// Puts a request back, as [`Queue::put_back`]. A request that the kernel works on stays in
    /// flight.
    pub fn put_back(&mut self, slot: Slot) -> bool {
        self.lent.get(usize::from(slot.0)) == Some(&0) && self.kept.queue.put_back(slot)
    }
}

/// Reads go straight to the queue.
///
/// There is no `DerefMut`. With `&mut Queue` the queue could be answered, or replaced and its
/// memory unmapped, while the kernel works on that memory.
impl Deref for InflightQueue {
    type Target = Queue;

    #[inline(always)]
    fn deref(&self) -> &Queue {
        &self.kept.queue
    }
}

/// The changes that leave lent memory alone: requests in flight keep their slots, and the queue
/// keeps their memory mapped.
impl InflightQueue {
    /// As [`Queue::take`].
    ///
    /// # Errors
    /// [`Broken`], now and ever after.
    #[inline(always)]
    pub fn take(&mut self) -> Result<Option<Slot>, Broken> {
        self.kept.queue.take()
    }

    /// As [`Queue::has_available`].
    #[inline]
    pub fn has_available(&mut self) -> bool {
        self.kept.queue.has_available()
    }

    /// As [`Queue::show`].
    #[inline]
    pub fn show(&mut self) -> bool {
        self.kept.queue.show()
    }

    /// As [`Queue::enable_notify`].
    ///
    /// # Errors
    /// [`Broken`], as [`InflightQueue::take`].
    pub fn enable_notify(&mut self) -> Result<bool, Broken> {
        self.kept.queue.enable_notify()
    }

    /// As [`Queue::disable_notify`].
    pub fn disable_notify(&mut self) {
        self.kept.queue.disable_notify();
    }

    /// As [`Queue::leave_place`].
    pub fn leave_place(&mut self) {
        self.kept.queue.leave_place();
    }

    /// As [`Queue::set_memory`].
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn set_memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), QueueError> {
        self.kept.queue.set_memory(memory)
    }

    /// As [`Queue::set_log`].
    pub fn set_log(&mut self, log: Option<Arc<DirtyLog>>, ring: Option<u64>) {
        self.kept.queue.set_log(log, ring);
    }
}

impl Drop for InflightQueue {
    fn drop(&mut self) {
        if self.under_way == 0 {
            // SAFETY: dropped once, here, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.kept) };
        } else {
            tracing::error!(
                "{} operations of a queue that goes are under way: its memory stays",
                self.under_way
            );
            // SAFETY: taken once, here, and not used again.
            let kept = unsafe { ManuallyDrop::take(&mut self.kept) };
            vlane_error::locked(&LEFT).push(kept);
        }
    }
}

/// `_IO(0x12, 0)`
const BLOCK_URING_CMD_DISCARD: u32 = 0x1200;

/// RWF flags of an operation.
fn rw_flags(operation: &Operation) -> i32 {
    if operation.durable { libc::RWF_DSYNC } else { 0 }
}

impl Kept {
    /// An operation for the kernel, and whether a list of buffers is held for it.
    #[inline(never)]
    fn entry(
        &mut self,
        slot: Slot,
        operation: &mut Operation,
        target: Target,
    ) -> (squeue::Entry, bool) {
        let (fd, offset, len) = (target.fd, operation.offset, operation.len);
        let request = self.queue.request(slot);
        let fallocate = |mode| {
            opcode::Fallocate::new(fd, len)
                .offset(offset)
                .mode(mode | libc::FALLOC_FL_KEEP_SIZE)
                .build()
        };
        let entry = match &operation.kind {
            OperationKind::Punch => fallocate(libc::FALLOC_FL_PUNCH_HOLE),
            OperationKind::Zero => fallocate(libc::FALLOC_FL_ZERO_RANGE),
            OperationKind::Discard => {
                let mut command = [0; 16];
                command[..8].copy_from_slice(&len.to_ne_bytes());
                opcode::UringCmd16::new(fd, BLOCK_URING_CMD_DISCARD)
                    .addr(Some(offset))
                    .cmd(command)
                    .build()
            }
            OperationKind::Read(Memory::Request(0)) | OperationKind::Write(Memory::Request(0))
                if len == request.len() =>
            {
                vectored_of(request.buffers(), operation, target)
            }
            OperationKind::Read(_) | OperationKind::Write(_) => {
                return (self.hold(slot, operation, target), true);
            }
        };
        (entry, false)
    }

    /// A read or write that has a list of buffers of its own.
    fn hold(&mut self, slot: Slot, operation: &mut Operation, target: Target) -> squeue::Entry {
        let mut buffers = self.spare.pop().unwrap_or_default();
        let request = self.queue.request(slot);
        let len = usize::try_from(operation.len).unwrap_or(usize::MAX);
        let number = operation.number;
        // By these two it is found again.
        let is_new = !self.held.iter().any(|held| (held.slot, held.number) == (slot, number));
        assert!(is_new, "{slot:?} has two operations of the number {number}");
        match &mut operation.kind {
            OperationKind::Read(Memory::Request(from))
            | OperationKind::Write(Memory::Request(from)) => {
                select(&mut buffers, request.buffers(), *from, operation.len);
            }
            OperationKind::Read(Memory::Piece(piece, from))
            | OperationKind::Write(Memory::Piece(piece, from)) => {
                let bytes = piece.bytes_mut().get_mut(*from..).unwrap_or_default();
                let iov_len = len.min(bytes.len());
                buffers.push(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len });
            }
            OperationKind::Write(Memory::Zeroes) => {
                let mut left = operation.len.min(ZEROES);
                while left > 0 {
                    let n = left.min(ZERO_PAGE.0.len() as u64);
                    let iov_base = ZERO_PAGE.0.as_ptr().cast_mut().cast();
                    buffers
                        .push(libc::iovec { iov_base, iov_len: usize::try_from(n).unwrap_or(0) });
                    left -= n;
                }
            }
            // A read into the zeroes, which no operation may change, reads no byte.
            _ => {}
        }
        let entry = vectored_of(&buffers, operation, target);
        let piece = match std::mem::replace(&mut operation.kind, OperationKind::Punch) {
            OperationKind::Read(Memory::Piece(piece, _))
            | OperationKind::Write(Memory::Piece(piece, _)) => Some(piece),
            _ => None,
        };
        self.held.push(Held { slot, number, buffers, piece });
        entry
    }

    #[cold]
    fn take_back(&mut self, slot: Slot, number: u8) -> Option<Piece> {
        let at = self.held.iter().position(|held| (held.slot, held.number) == (slot, number))?;
        let Held { mut buffers, piece, .. } = self.held.swap_remove(at);
        buffers.clear();
        if buffers.capacity() <= KEPT && self.spare.len() < KEPT_LISTS {
            self.spare.push(buffers);
        }
        piece
    }
}

fn vectored_of(buffers: &[libc::iovec], operation: &Operation, target: Target) -> squeue::Entry {
    let is_write = matches!(operation.kind, OperationKind::Write(_));
    vectored(buffers, is_write, operation.offset, rw_flags(operation), target)
}

/// A read or write of a list of buffers, as many of them as one call takes.
fn vectored(
    buffers: &[libc::iovec],
    is_write: bool,
    offset: u64,
    flags: i32,
    target: Target,
) -> squeue::Entry {
    let count = u32::try_from(buffers.len().min(MAX_IOVECS)).unwrap_or(1024);
    let (fd, buffers) = (target.fd, buffers.as_ptr());
    match is_write {
        true => opcode::Writev::new(fd, buffers, count).offset(offset).rw_flags(flags).build(),
        false => opcode::Readv::new(fd, buffers, count).offset(offset).build(),
    }
}

/// Appends to `list` the `len` bytes of `buffers` from byte `from` on, as far as one call takes
/// them; says how many bytes that are.
pub fn select(list: &mut Vec<libc::iovec>, buffers: &[libc::iovec], from: u64, len: u64) -> u64 {
    let mut skip = usize::try_from(from).unwrap_or(usize::MAX);
    let mut left = usize::try_from(len).unwrap_or(usize::MAX);
    let mut selected = 0;
    for buffer in buffers {
        let here = skip.min(buffer.iov_len);
        skip -= here;
        let n = (buffer.iov_len - here).min(left);
        if n > 0 {
            let iov_base = buffer.iov_base.cast::<u8>().wrapping_add(here).cast();
            list.push(libc::iovec { iov_base, iov_len: n });
            left -= n;
            selected += n as u64;
        }
        if left == 0 || list.len() == MAX_IOVECS {
            break;
        }
    }
    selected
}
