//! The system of the deterministic simulator: `vlane-io`, compiled a second time, has this file in
//! the place of its own `system.rs`.
//!
//! Rings, operations, writes to the page cache and the clock are those of the calling thread's own
//! [kernel](begin). The kernel does no work by itself. The simulator looks at its operations
//! ([`operations`]), moves their data ([`load`], [`store`]), ends them ([`finish`]) and lets time
//! pass ([`pass`]). Two parts are real: the entries that the engine submits, as io_uring would read
//! them, and eventfds.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::{Add, Sub};
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::{squeue, types};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Stands for the files.
pub trait Storage {
    /// A write through the page cache that is done when this returns: how many bytes it took, or an
    /// error number. With `nowait` it must not wait (`RWF_NOWAIT`).
    ///
    /// # Errors
    /// An error number.
    fn write(&mut self, fd: RawFd, offset: u64, bytes: &[u8], nowait: bool) -> Result<usize, i32>;

    /// Reports a failure to write back that this open file has not seen yet.
    ///
    /// # Errors
    /// The failure's error number.
    fn look(&mut self, fd: RawFd) -> Result<(), i32>;

    /// Before and after each system call: whether the process dies here.
    fn dies(&mut self) -> bool;
}

/// The value that a dying process unwinds with: [`std::panic::catch_unwind`] finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Killed;

/// The action of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// From the file into memory.
    Read,
    /// From memory into the file.
    Write,
    /// `fdatasync`
    Sync,
    /// `fallocate`, so that the extent reads as zeroes.
    Clear,
    /// A device's discard: the device decides how the extent reads then.
    Discard,
}

/// An operation that the kernel has.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The action.
    pub what: CallKind,
    /// The io_uring that it is in; none for a sync, which is a thread's own.
    pub ring: Option<u32>,
    /// The open file.
    pub fd: RawFd,
    /// Where, bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// With `RWF_DSYNC`.
    pub durable: bool,
    /// Left to a worker (`IOSQE_ASYNC`).
    pub patient: bool,
    /// All addresses of its buffers, and all their lengths, by "or": they show the alignment.
    pub addresses: u64,
    /// See [`Call::addresses`].
    pub lengths: u64,
}

struct Operation {
    call: Call,
    user_data: u64,
    buffers: Vec<libc::iovec>,
}

#[derive(Default)]
struct Ring {
    /// By user data, which descriptors are watched.
    watches: Vec<(u64, RawFd)>,
    /// Has ended, and is put into the completion queue when the kernel is entered.
    ended: VecDeque<Completion>,
    completions: VecDeque<Completion>,
}

#[derive(Default)]
struct Kernel {
    /// The process is: its unsubmitted operations never are.
    is_dead: bool,
    rings: BTreeMap<u32, Ring>,
    operations: BTreeMap<u64, Operation>,
    /// Operations that stay unreported until the process dies: ring and user data.
    forgotten: Vec<(u32, u64)>,
    /// By number, the results of syncs that have ended.
    synced: BTreeMap<u64, i32>,
    numbers: u64,
    ring_numbers: u32,
}

thread_local! {
    static KERNEL: RefCell<Kernel> = RefCell::default();
    static STORAGE: RefCell<Option<Box<dyn Storage>>> = const { RefCell::new(None) };
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn kernel<T>(with: impl FnOnce(&mut Kernel) -> T) -> T {
    KERNEL.with_borrow_mut(with)
}

/// Begins anew in this thread: no rings, no operations, the time is zero. Objects of earlier runs
/// must not be used any more.
pub fn begin(storage: Box<dyn Storage>) {
    kernel(|kernel| *kernel = Kernel::default());
    STORAGE.set(Some(storage));
    NOW.set(0);
}

/// The process is dead: operations that were pushed and not submitted are cancelled. Ends when the
/// last of its rings does.
pub fn die() {
    kernel(|kernel| {
        kernel.is_dead = true;
        for (ring, user_data) in std::mem::take(&mut kernel.forgotten) {
            if let Some(ring) = kernel.rings.get_mut(&ring) {
                ring.ended.push_back(Completion { user_data, result: -libc::ECANCELED, flags: 0 });
            }
        }
    });
}

/// Lets time pass.
pub fn pass(time: Duration) {
    NOW.set(NOW.get() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2));
}

/// The operations that the kernel has, by number, in the order in which it got them.
pub fn operations() -> Vec<(u64, Call)> {
    kernel(|kernel| {
        kernel.operations.iter().map(|(number, operation)| (*number, operation.call)).collect()
    })
}

/// The last operation that the kernel got.
pub fn newest() -> Option<(u64, Call)> {
    kernel(|kernel| {
        kernel.operations.last_key_value().map(|(number, operation)| (*number, operation.call))
    })
}

/// Reads an operation's memory, from its byte `at` on: zeroes for an operation that has ended, and
/// beyond its end.
pub fn load(number: u64, at: u64, into: &mut [u8]) {
    into.fill(0);
    walk(number, at, into.len(), |from, done, n| {
        // SAFETY: the buffers of an operation that has not ended are valid, as its submitter has
        // promised; `into` is none of them.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), into[done..].as_mut_ptr(), n) };
    });
}

/// Writes into the memory of a read, from its byte `at` on; any other operation is left alone.
pub fn store(number: u64, at: u64, from: &[u8]) {
    walk(number, at, from.len(), |to, done, n| {
        // SAFETY: as in `load`; and a read's buffers are there to be written.
        unsafe { std::ptr::copy_nonoverlapping(from[done..].as_ptr(), to, n) };
    });
}

/// Gives `each` an address, which byte of the range that is, and how many bytes of it lie there.
fn walk(number: u64, at: u64, len: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
    kernel(|kernel| {
        let Some(operation) = kernel.operations.get(&number) else { return };
        let mut skip = usize::try_from(at).unwrap_or(usize::MAX);
        let mut done = 0;
        for buffer in &operation.buffers {
            let here = skip.min(buffer.iov_len);
            skip -= here;
            let n = (buffer.iov_len - here).min(len - done);
            if n > 0 {
                each(buffer.iov_base.cast::<u8>().wrapping_add(here), done, n);
                done += n;
            }
        }
    });
}

/// Ends an operation: a count, or a negative error number. Its memory is its owner's again.
pub fn finish(number: u64, result: i32) {
    kernel(|kernel| {
        let Some(Operation { call, user_data, .. }) = kernel.operations.remove(&number) else {
            return;
        };
        match call.ring {
            None => drop(kernel.synced.insert(number, result)),
            Some(ring) => {
                if let Some(ring) = kernel.rings.get_mut(&ring) {
                    ring.ended.push_back(Completion { user_data, result, flags: 0 });
                }
            }
        }
    });
}

/// Ends an operation without a completion, as no kernel does: for planted bugs.
pub fn forget(number: u64) {
    kernel(|kernel| {
        let operation = kernel.operations.remove(&number);
        let of_ring = |operation: Operation| Some((operation.call.ring?, operation.user_data));
        kernel.forgotten.extend(operation.and_then(of_ring));
    });
}

/// A thread begins an `fdatasync`; its number, for [`synced`].
pub fn sync(fd: RawFd) -> u64 {
    kernel(|kernel| {
        let call = Call {
            what: CallKind::Sync,
            ring: None,
            fd,
            offset: 0,
            len: 0,
            durable: false,
            patient: false,
            addresses: 0,
            lengths: 0,
        };
        kernel.numbers += 1;
        kernel
            .operations
            .insert(kernel.numbers, Operation { call, user_data: 0, buffers: Vec::new() });
        kernel.numbers
    })
}

/// The outcome of an `fdatasync` that has ended: 0, or a negative error number.
pub fn synced(number: u64) -> Option<i32> {
    kernel(|kernel| kernel.synced.remove(&number))
}

/// True if a ring's thread has an event, or would get one if it asked.
pub fn has_news(ring: u32) -> bool {
    kernel(|kernel| {
        kernel.rings.get(&ring).is_some_and(|ring| {
            !ring.ended.is_empty() || !ring.completions.is_empty() || ring.is_ready()
        })
    })
}

fn storage<T>(with: impl FnOnce(&mut dyn Storage) -> T) -> Option<T> {
    STORAGE.with_borrow_mut(|storage| storage.as_mut().map(|storage| with(&mut **storage)))
}

/// The process may die here.
fn here() {
    if storage(|storage| storage.dies()) == Some(true) {
        std::panic::resume_unwind(Box::new(Killed));
    }
}

fn failed(errno: i32) -> i32 {
    // SAFETY: the thread's own error number.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// As the system's.
///
/// # Safety
/// As the system's.
pub unsafe fn pwritev2(
    fd: RawFd,
    buffers: *const libc::iovec,
    count: i32,
    offset: i64,
    flags: i32,
) -> isize {
    here();
    // SAFETY: as the caller promises.
    let buffers =
        unsafe { std::slice::from_raw_parts(buffers, usize::try_from(count).unwrap_or(0)) };
    let mut bytes = Vec::new();
    for buffer in buffers {
        // SAFETY: as the caller promises.
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(buffer.iov_base.cast::<u8>().cast_const(), buffer.iov_len)
        });
    }
    let nowait = flags & libc::RWF_NOWAIT != 0;
    let written = storage(|storage| storage.write(fd, offset.cast_unsigned(), &bytes, nowait));
    here();
    match written.unwrap_or(Err(libc::EIO)) {
        Ok(n) => n.cast_signed(),
        Err(errno) => failed(errno) as isize,
    }
}

/// As the system's, of an extent that has no page to wait for.
///
/// # Safety
/// None is needed; the system's has it.
pub unsafe fn sync_file_range(fd: RawFd, _offset: i64, _len: i64, _flags: u32) -> i32 {
    match storage(|storage| storage.look(fd)).unwrap_or(Ok(())) {
        Ok(()) => 0,
        Err(errno) => failed(errno),
    }
}

/// The simulation's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

impl Instant {
    /// The time that it is.
    pub fn now() -> Instant {
        Instant(NOW.get())
    }

    /// Since then.
    pub fn elapsed(&self) -> Duration {
        Instant::now() - *self
    }

    /// Later by so much.
    pub fn checked_add(&self, time: Duration) -> Option<Instant> {
        self.0.checked_add(u64::try_from(time.as_nanos()).ok()?).map(Instant)
    }

    /// Zero if the other one is later.
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// As [`Instant::saturating_duration_since`].
    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        self.checked_add(time).expect("a time that can be")
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// A completion queue entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

impl Completion {
    pub(crate) fn user_data(&self) -> u64 {
        self.user_data
    }

    pub(crate) fn result(&self) -> i32 {
        self.result
    }

    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }
}

impl Ring {
    /// Which of the watched descriptors are readable.
    fn look(&self) -> Vec<bool> {
        let borrow = |fd: RawFd| {
            // SAFETY: open as long as it is watched, as the watcher has promised; used in this
            // function only.
            unsafe { BorrowedFd::borrow_raw(fd) }
        };
        let fds: Vec<BorrowedFd<'_>> = self.watches.iter().map(|(_, fd)| borrow(*fd)).collect();
        let mut polled: Vec<PollFd<'_>> =
            fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        polled.iter().map(|fd| !fd.revents().is_empty()).collect()
    }

    fn is_ready(&self) -> bool {
        !self.watches.is_empty() && self.look().contains(&true)
    }

    /// Reports readable descriptors. An eventfd reports each write once, which is done here by
    /// reading it: it has no other reader.
    fn tell(&mut self) {
        if self.watches.is_empty() {
            return;
        }
        for (at, is_ready) in self.look().into_iter().enumerate() {
            if is_ready {
                let (user_data, fd) = self.watches[at];
                // SAFETY: as in `look`.
                let _ = rustix::io::read(unsafe { BorrowedFd::borrow_raw(fd) }, &mut [0; 8]);
                const MORE: u32 = 2;
                self.completions.push_back(Completion {
                    user_data,
                    result: libc::POLLIN.into(),
                    flags: MORE,
                });
            }
        }
    }
}

/// An io_uring, as far as [`crate::Uring`] uses it.
pub(crate) struct IoUring {
    number: u32,
    entries: usize,
    submissions: RefCell<VecDeque<[u64; 8]>>,
}

/// Takes every setup option and changes no state.
pub(crate) struct Builder;

impl Builder {
    pub(crate) fn setup_single_issuer(self) -> Builder {
        self
    }

    pub(crate) fn setup_defer_taskrun(self) -> Builder {
        self
    }

    pub(crate) fn setup_taskrun_flag(self) -> Builder {
        self
    }

    pub(crate) fn setup_submit_all(self) -> Builder {
        self
    }

    pub(crate) fn setup_clamp(self) -> Builder {
        self
    }

    pub(crate) fn setup_cqsize(self, _entries: u32) -> Builder {
        self
    }

    pub(crate) fn build(self, entries: u32) -> io::Result<IoUring> {
        let number = kernel(|kernel| {
            let number = kernel.ring_numbers;
            kernel.ring_numbers += 1;
            kernel.rings.insert(number, Ring::default());
            number
        });
        Ok(IoUring { number, entries: entries as usize, submissions: RefCell::default() })
    }
}

/// The submission queue.
pub(crate) struct Submission<'a>(&'a IoUring);

/// Full.
#[derive(Debug)]
pub(crate) struct Full;

impl Submission<'_> {
    /// As io_uring's.
    ///
    /// # Safety
    /// As io_uring's.
    pub unsafe fn push(&mut self, entry: &squeue::Entry) -> Result<(), Full> {
        let mut submissions = self.0.submissions.borrow_mut();
        if submissions.len() == self.0.entries {
            return Err(Full);
        }
        // SAFETY: an entry is 64 bytes that the kernel reads as they are, aligned to 8, all of them
        // set: it is made from zeroes.
        let words = unsafe { *std::ptr::from_ref(entry).cast::<[u64; 8]>() };
        submissions.push_back(words);
        Ok(())
    }

    pub(crate) fn sync(&mut self) {}

    pub(crate) fn len(&self) -> usize {
        self.0.submissions.borrow().len()
    }

    pub(crate) fn taskrun(&self) -> bool {
        kernel(|kernel| {
            kernel
                .rings
                .get(&self.0.number)
                .is_some_and(|ring| !ring.ended.is_empty() || ring.is_ready())
        })
    }

    pub(crate) fn cq_overflow(&self) -> bool {
        false
    }
}

/// The completion queue.
pub(crate) struct Completions(u32);

impl Completions {
    fn queue<T>(&self, with: impl FnOnce(&mut VecDeque<Completion>) -> T) -> Option<T> {
        kernel(|kernel| kernel.rings.get_mut(&self.0).map(|ring| with(&mut ring.completions)))
    }

    pub(crate) fn next(&mut self) -> Option<Completion> {
        self.queue(VecDeque::pop_front).flatten()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.queue(|queue| queue.len()).unwrap_or(0)
    }
}

/// Enters the kernel.
pub(crate) struct Submitter<'a>(&'a IoUring);

impl Submitter<'_> {
    pub(crate) fn register_files_sparse(&self, _count: u32) -> io::Result<()> {
        // So that operations name descriptors.
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn register_files_update(&self, _at: u32, _fds: &[RawFd]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn unregister_files(&self) -> io::Result<()> {
        Ok(())
    }

    /// As io_uring's. To wait means here that the operations under way are cancelled: no other
    /// thread would end them.
    ///
    /// # Safety
    /// As io_uring's.
    pub unsafe fn enter<T>(
        &self,
        to_submit: u32,
        want: u32,
        _flags: u32,
        _arg: Option<&T>,
    ) -> io::Result<usize> {
        here();
        let mut submissions = self.0.submissions.borrow_mut();
        let count = submissions.len().min(to_submit as usize);
        let entries: Vec<_> = submissions.drain(..count).collect();
        drop(submissions);
        let number = self.0.number;
        kernel(|kernel| {
            entries.into_iter().for_each(|entry| kernel.take(number, entry));
            if want > 0 {
                kernel.cancel(number);
            }
            if let Some(ring) = kernel.rings.get_mut(&number) {
                ring.completions.append(&mut ring.ended);
                ring.tell();
            }
        });
        here();
        Ok(count)
    }

    pub(crate) fn submit_with_args(
        &self,
        _want: usize,
        _args: &types::SubmitArgs<'_, '_>,
    ) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl IoUring {
    pub(crate) fn builder() -> Builder {
        Builder
    }

    pub(crate) fn submission(&mut self) -> Submission<'_> {
        Submission(self)
    }

    pub(crate) fn completion(&mut self) -> Completions {
        Completions(self.number)
    }

    pub(crate) fn submitter(&self) -> Submitter<'_> {
        Submitter(self)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for IoUring {
    fn drop(&mut self) {
        // The thread-locals may be gone already.
        let _ = KERNEL.try_with(|kernel| {
            let mut kernel = kernel.borrow_mut();
            kernel.rings.remove(&self.number);
            kernel.is_dead &= !kernel.rings.is_empty();
        });
    }
}

impl Kernel {
    /// Cancels a ring's operations under way.
    fn cancel(&mut self, number: u32) {
        let of_ring = |(_, operation): &(&u64, &mut Operation)| operation.call.ring == Some(number);
        let numbers: Vec<u64> =
            self.operations.iter_mut().filter(of_ring).map(|(number, _)| *number).collect();
        let Some(ring) = self.rings.get_mut(&number) else { return };
        for number in numbers {
            if let Some(Operation { user_data, .. }) = self.operations.remove(&number) {
                ring.ended.push_back(Completion { user_data, result: -libc::ECANCELED, flags: 0 });
            }
        }
    }

    /// Takes an entry as the kernel reads it (`struct io_uring_sqe`).
    #[allow(clippy::cast_possible_truncation, reason = "fields of words")]
    fn take(
        &mut self,
        number: u32,
        [first, at, address, lengths, user_data, _, command, _]: [u64; 8],
    ) {
        const READV: u8 = 1;
        const WRITEV: u8 = 2;
        const POLL_ADD: u8 = 6;
        const POLL_REMOVE: u8 = 7;
        const FALLOCATE: u8 = 17;
        const READ: u8 = 22;
        const WRITE: u8 = 23;
        const URING_CMD: u8 = 46;
        let (code, flags, fd) = (first as u8, (first >> 8) as u8, (first >> 32) as i32);
        let (len, how) = (lengths as u32, (lengths >> 32) as u32);
        let Some(ring) = self.rings.get_mut(&number) else { return };
        let what = match code {
            POLL_ADD => return ring.watches.push((user_data, fd)),
            POLL_REMOVE => return ring.watches.retain(|(watch, _)| *watch != address),
            READ | READV => CallKind::Read,
            WRITE | WRITEV => CallKind::Write,
            FALLOCATE => CallKind::Clear,
            URING_CMD => CallKind::Discard,
            _ => {
                let result = -libc::EINVAL;
                return ring.ended.push_back(Completion { user_data, result, flags: 0 });
            }
        };
        if self.is_dead {
            return ring.ended.push_back(Completion {
                user_data,
                result: -libc::ECANCELED,
                flags: 0,
            });
        }
        let pointer = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        let buffers = match code {
            READ | WRITE => vec![libc::iovec { iov_base: pointer.cast(), iov_len: len as usize }],
            READV | WRITEV => {
                // SAFETY: a list of so many buffers, which stays until the completion, as the
                // caller that pushed the entry has promised.
                unsafe {
                    std::slice::from_raw_parts(
                        pointer.cast_const().cast::<libc::iovec>(),
                        len as usize,
                    )
                }
                .to_vec()
            }
            _ => Vec::new(),
        };
        let call = Call {
            what,
            ring: Some(number),
            fd,
            offset: if what == CallKind::Discard { address } else { at },
            len: match what {
                CallKind::Clear => address,
                CallKind::Discard => command,
                _ => buffers.iter().map(|buffer| buffer.iov_len as u64).sum(),
            },
            durable: what == CallKind::Write && how & libc::RWF_DSYNC.cast_unsigned() != 0,
            patient: flags & (1 << 4) != 0,
            addresses: buffers.iter().fold(0, |or, buffer| or | buffer.iov_base as u64),
            lengths: buffers.iter().fold(0, |or, buffer| or | buffer.iov_len as u64),
        };
        self.numbers += 1;
        self.operations.insert(self.numbers, Operation { call, user_data, buffers });
    }
}
