//! A lane thread's io_uring: its one wait point, and the way to the storage.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::{cqueue, opcode, squeue, types};

use crate::cross_thread::{CELLS, CrossThreadQueue, Words};
use crate::operation::{FileKey, StorageFile};
use crate::system::IoUring;
use crate::{Error, ErrorKind, Slot};

/// Tokens below this are for wake-ups ([`Event::Wake`]).
pub const WAKE_TOKENS: u32 = 1 << 24;

/// Files that a ring knows by a number of its own; more are used by their descriptors.
const FIXED_FILES: u32 = 16;

/// Before the kernel is asked again that lacked memory: at first, and at last. Memory comes back
/// when operations complete, which takes the storage about as long.
const SHORTEST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

const TAG: u64 = 0xf << 60;
const TAG_WAKE: u64 = 1 << 60;
const TAG_OP: u64 = 2 << 60;
const TAG_IGNORED: u64 = 3 << 60;
/// Another thread's operation: its cell (8 bits), and its queue (16).
const TAG_GUEST: u64 = 4 << 60;
/// The queue's waker.
const TAG_WAKER: u64 = 5 << 60;
/// As [`TAG_OP`], of an express request.
const TAG_EXPRESS: u64 = 6 << 60;

/// An operation goes to another thread's submission queue if that has at least so many fewer
/// operations than this one has requests that are not express. There and back costs 6 to 32 us
/// where that thread sleeps (docs/src/shortest.md). In that time a device that serves 500,000
/// requests a second from a queue serves up to sixteen.
pub const HAND_OVER_MARGIN: usize = 16;

/// An arrival on the ring.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The descriptor watched with this token became readable.
    Wake {
        /// As given to [`Uring::watch`].
        token: u32,
        /// The watch continues. If not, it must be set up again.
        armed: bool,
    },
    /// The descriptor with this token cannot be watched: its kind, such as a regular file, has no
    /// wait. Trying again would fail again.
    Unwatchable {
        /// As given to [`Uring::watch`].
        token: u32,
        /// The system's error number.
        errno: i32,
    },
    /// An operation completed: for [`crate::InflightQueue::finish`].
    Finished(Finished),
}

/// An operation that completed. There is one of them for each operation.
#[derive(Debug, PartialEq, Eq)]
pub struct Finished {
    data: u64,
    result: i32,
}

impl Finished {
    /// The place of its queue, as given to [`crate::InflightQueue::new`].
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    pub fn place(&self) -> u16 {
        (self.data >> 24) as u16
    }

    pub(crate) fn result(&self) -> i32 {
        self.result
    }
}

/// How a queue marks its operations, and knows them again. From the lowest bit: number (8 bits),
/// slot (16), place (16), the queue among all that ever were there (19), a mark that the queue
/// holds memory for it (1), and the tag (4).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket(u64);

const HELD: u64 = 1 << 59;
const OWNER: u64 = ((1 << 35) - 1) << 24;

impl Ticket {
    pub(crate) fn new(place: u16, queue: u32) -> Ticket {
        Ticket(TAG_OP | (u64::from(queue) << 40 & OWNER) | u64::from(place) << 24)
    }

    /// The same queue's, at another place.
    pub(crate) fn at(self, place: u16) -> Ticket {
        Ticket(self.0 & !(0xffff << 24) | u64::from(place) << 24)
    }

    #[inline]
    pub(crate) fn of(self, slot: Slot, number: u8, is_held: bool) -> u64 {
        self.0 | u64::from(slot.0) << 8 | u64::from(number) | if is_held { HELD } else { 0 }
    }

    /// Slot, number, and true if memory is held; none if another queue marked it.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn read(self, finished: &Finished) -> Option<(Slot, u8, bool)> {
        let data = finished.data;
        let is_ours = (data ^ self.0) & OWNER == 0;
        is_ours.then_some((Slot((data >> 8) as u16), data as u8, data & HELD != 0))
    }
}

/// A file as the ring knows it: by its descriptor, or by its number among the ring's fixed files,
/// which spares each operation two updates of a counter that all lanes share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    /// For the operation's descriptor field.
    pub(crate) fd: types::Fd,
    /// To be added to the operation's flags.
    pub(crate) flags: squeue::Flags,
}

/// A read or write that any thread can submit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CrossThreadOperation {
    pub(crate) is_write: bool,
    /// `memory` is a list of so many buffers, not so many bytes.
    pub(crate) is_list: bool,
    pub(crate) rw_flags: i32,
    pub(crate) fd: RawFd,
    pub(crate) memory: usize,
    pub(crate) len: u32,
    pub(crate) offset: u64,
}

impl CrossThreadOperation {
    fn words(self) -> Words {
        let how = u64::from(self.is_write) | u64::from(self.is_list) << 1;
        let CrossThreadOperation { rw_flags, fd, memory, len, offset, .. } = self;
        let high = |number: i32| u64::from(number.cast_unsigned()) << 32;
        [how | high(rw_flags), high(fd), memory as u64, u64::from(len), offset]
    }

    #[allow(clippy::cast_possible_truncation, reason = "what `words` put together")]
    fn of([how, fd, memory, len, offset]: Words) -> CrossThreadOperation {
        let high = |word: u64| ((word >> 32) as u32).cast_signed();
        CrossThreadOperation {
            is_write: how & 1 != 0,
            is_list: how & 2 != 0,
            rw_flags: high(how),
            fd: high(fd),
            memory: memory as usize,
            len: len as u32,
            offset,
        }
    }

    fn entry(self) -> squeue::Entry {
        let CrossThreadOperation { rw_flags, offset, len, .. } = self;
        let fd = types::Fd(self.fd);
        let bytes = std::ptr::with_exposed_provenance_mut::<u8>(self.memory);
        let list = bytes.cast::<libc::iovec>().cast_const();
        match (self.is_list, self.is_write) {
            (false, false) => opcode::Read::new(fd, bytes, len).offset(offset).build(),
            (false, true) => {
                opcode::Write::new(fd, bytes, len).offset(offset).rw_flags(rw_flags).build()
            }
            (true, false) => opcode::Readv::new(fd, list, len).offset(offset).build(),
            (true, true) => {
                opcode::Writev::new(fd, list, len).offset(offset).rw_flags(rw_flags).build()
            }
        }
    }
}

/// One io_uring, used by the thread that made it (the kernel serves no other).
pub struct Uring {
    ring: IoUring,
    /// The fixed files, in order; none when the kernel gave no table.
    fixed: Option<Vec<FileKey>>,
    /// Pushed and not yet submitted.
    unsubmitted: usize,
    /// Operations that have not completed.
    in_flight: usize,
    /// Watches that ended by themselves, and have not been seen to last since.
    ended: Vec<u32>,
    /// Where operations are handed to other threads, and come from them.
    cross_thread: Option<Box<CrossThread>>,
    /// After the kernel's last refusal for want of memory; zero: it did not refuse.
    pause: Duration,
    /// Not `Send`: dropped by its thread, too.
    thread: PhantomData<*const ()>,
}

#[derive(Debug)]
struct CrossThread {
    queue: CrossThreadQueue,
    /// Other threads' operations in this ring.
    guests: usize,
    /// This thread's operations of express requests in this ring.
    express: usize,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

impl Uring {
    /// An io_uring with room for `entries` submissions at a time, at most 32768.
    ///
    /// # Errors
    /// [`ErrorKind::NoIoUring`] where the kernel or a sandbox forbids it, [`ErrorKind::Limit`]
    /// where a limit is too low; both name the action to take.
    pub fn new(entries: u32) -> Result<Uring, Error> {
        let entries = entries.clamp(64, 32768);
        let ring = IoUring::builder()
            .setup_single_issuer()
            // Completions are worked on when the lane asks for them: batches, and no interruption.
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(entries.saturating_mul(2))
            .build(entries)
            .map_err(setup_error)?;
        let fixed = ring.submitter().register_files_sparse(FIXED_FILES).is_ok().then(Vec::new);
        Ok(Uring {
            ring,
            fixed,
            unsubmitted: 0,
            in_flight: 0,
            ended: Vec::new(),
            cross_thread: None,
            pause: Duration::ZERO,
            thread: PhantomData,
        })
    }

    /// Takes a queue among the threads of a volume: operations may go to the others' rings, and
    /// come from them.
    pub fn join(&mut self, queue: CrossThreadQueue) {
        self.cross_thread = Some(Box::new(CrossThread { queue, guests: 0, express: 0 }));
        self.watch_waker();
    }

    fn watch_waker(&mut self) {
        let Some(cross_thread) = &self.cross_thread else { return };
        let fd = types::Fd(cross_thread.queue.waker().as_fd().as_raw_fd());
        let poll = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build();
        self.push_entry(&poll.user_data(TAG_WAKER));
    }

    /// Makes `file` one of the ring's fixed files, if it is not yet and there is room. It stays
    /// open as long as the ring exists.
    pub(crate) fn fix(&mut self, file: &StorageFile) -> Target {
        let (key, fd) = (file.key(), file.file().as_raw_fd());
        let by_descriptor = Target { fd: types::Fd(fd), flags: squeue::Flags::empty() };
        let Some(files) = &mut self.fixed else { return by_descriptor };
        let known = files.iter().position(|known| *known == key);
        let number = known.unwrap_or(files.len());
        let (Ok(at), Ok(index)) = (u32::try_from(number), i32::try_from(number)) else {
            return by_descriptor;
        };
        if known.is_none() {
            if at >= FIXED_FILES || self.ring.submitter().register_files_update(at, &[fd]).is_err()
            {
                return by_descriptor;
            }
            files.push(key);
        }
        Target { fd: types::Fd(index), flags: squeue::Flags::FIXED_FILE }
    }

    /// Says with [`Event::Wake`] each time `fd` becomes readable (an eventfd: each time it is
    /// written). The caller need not read from it. `fd` must stay open until [`Uring::unwatch`].
    pub fn watch(&mut self, fd: BorrowedFd<'_>, token: u32) {
        debug_assert!(token < WAKE_TOKENS);
        let poll = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32)
            .multi(true)
            .build();
        self.push_entry(&poll.user_data(TAG_WAKE | u64::from(token)));
    }

    /// Ends a watch. Events of it that are on their way may still arrive.
    pub fn unwatch(&mut self, token: u32) {
        self.ended.retain(|ended| *ended != token);
        let remove = opcode::PollRemove::new(TAG_WAKE | u64::from(token)).build();
        self.push_entry(&remove.user_data(TAG_IGNORED));
    }

    /// Queues an operation, marked by a [`Ticket`].
    ///
    /// # Safety
    /// All memory that `entry` refers to must stay valid until its completion arrives.
    #[inline]
    pub(crate) unsafe fn push(&mut self, entry: squeue::Entry, data: u64) {
        self.in_flight += 1;
        self.push_entry(&entry.user_data(data));
    }

    /// As [`Uring::push`], for an express request.
    ///
    /// # Safety
    /// As [`Uring::push`].
    pub(crate) unsafe fn push_express(&mut self, entry: squeue::Entry, data: u64) {
        let Some(cross_thread) = self.cross_thread.as_deref_mut() else {
            // SAFETY: as promised to this function.
            return unsafe { self.push(entry, data) };
        };
        cross_thread.express += 1;
        // SAFETY: as promised to this function.
        unsafe { self.push(entry, data & !TAG | TAG_EXPRESS) };
    }

    #[inline]
    fn push_entry(&mut self, entry: &squeue::Entry) {
        // SAFETY: for operations, `push` passes on its caller's promise; polls refer to no memory.
        if unsafe { self.ring.submission().push(entry) }.is_ok() {
            self.unsubmitted += 1;
        } else {
            self.push_after_others(entry);
        }
    }

    /// The ring is full: makes room. Submission itself needs no memory of ours and cannot fail for
    /// good.
    #[cold]
    fn push_after_others(&mut self, entry: &squeue::Entry) {
        loop {
            if self.enter(0).is_err() {
                std::thread::yield_now();
            }
            // SAFETY: as in `push_entry`.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                self.unsubmitted += 1;
                return;
            }
        }
    }

    /// Operations that were pushed and not yet submitted.
    #[inline]
    pub fn unsubmitted(&self) -> usize {
        self.unsubmitted
    }

    /// Operations that have not completed, wherever they were submitted.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Hands a read or write, marked by a [`Ticket`], to the thread with the fewest operations in
    /// its ring, if it pays. False, if it does not: then no state has changed. Its completion
    /// arrives here, as any other.
    ///
    /// # Safety
    /// As [`Uring::push`]; and the descriptor must stay open as long.
    #[cold]
    pub(crate) unsafe fn hand_over(&mut self, operation: CrossThreadOperation, data: u64) -> bool {
        let completed = self.ring.completion().len();
        let Some(CrossThread { queue, express, .. }) = self.cross_thread.as_deref_mut() else {
            return false;
        };
        // To go past others of its class is no gain, as they wait no less. Operations in the
        // completion queue wait for this thread only: an image in the page cache has no queue.
        let others = (self.in_flight - queue.handed_out() - *express).saturating_sub(completed);
        let Some(to) = queue.shortest(others, HAND_OVER_MARGIN) else { return false };
        let is_sent = queue.send(to, operation.words(), data);
        self.in_flight += usize::from(is_sent);
        is_sent
    }

    /// Its io_uring's number.
    #[cfg(vlane_simulated)]
    pub fn number(&self) -> u32 {
        self.ring.number()
    }

    /// Operations in this ring, whosesoever.
    fn length(&self) -> usize {
        let (guests, out) = self
            .cross_thread
            .as_ref()
            .map_or((0, 0), |cross_thread| (cross_thread.guests, cross_thread.queue.handed_out()));
        self.in_flight - out + guests
    }

    /// Takes events that the completion queue does not carry: results of operations that were
    /// handed over. Takes operations that were handed to this thread.
    #[cold]
    fn next_by_cross_thread(&mut self) -> Option<Event> {
        loop {
            let cross_thread = self.cross_thread.as_deref_mut()?;
            if let Some((data, result)) = cross_thread.queue.next_result() {
                self.in_flight -= 1;
                return Some(Event::Finished(Finished { data, result }));
            }
            if !cross_thread.queue.has_mail() {
                self.cross_thread.as_ref()?.queue.publish(self.length());
                return None;
            }
            self.open_mail();
        }
    }

    fn open_mail(&mut self) {
        let Some(mut cross_thread) = self.cross_thread.take() else { return };
        let before = cross_thread.guests;
        let CrossThread { queue, guests, .. } = &mut *cross_thread;
        queue.open(|from, cell, words| {
            *guests += 1;
            let entry = CrossThreadOperation::of(words).entry();
            let data = TAG_GUEST | (from * CELLS + cell) as u64;
            // SAFETY: the owner of the operation has promised it (`hand_over`), until it sees the
            // completion; that is after this ring has it.
            self.push_entry(&entry.user_data(data));
        });
        let has_guests = cross_thread.guests > before;
        self.cross_thread = Some(cross_thread);
        if has_guests {
            // An error comes again at the next round's end, and is dealt with there.
            let _ = self.submit();
        }
    }

    /// A completion that is none of this thread's operations or watches.
    #[cold]
    fn other(&mut self, data: u64, result: i32, armed: bool) {
        match data & TAG {
            TAG_GUEST => {
                let Some(cross_thread) = self.cross_thread.as_deref_mut() else { return };
                #[allow(clippy::cast_possible_truncation)]
                let cell = (data & !TAG) as usize;
                cross_thread.guests -= 1;
                cross_thread.queue.give_back(cell / CELLS, cell % CELLS, result);
            }
            TAG_WAKER if !armed => self.watch_waker(),
            _ => {}
        }
    }

    /// Submits the pushed operations and lets the kernel work on completions, if there are any.
    /// Does not wait.
    #[inline]
    pub fn submit(&mut self) -> io::Result<()> {
        if self.unsubmitted > 0 || self.kernel_has_work() { self.enter(0) } else { Ok(()) }
    }

    /// Submits the pushed operations and waits until an event arrives, or `timeout` passes. Returns
    /// at once when another thread has something for this one.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.cross_thread.as_ref().is_some_and(|cross_thread| !cross_thread.queue.falls_asleep())
        {
            return Ok(());
        }
        let result = self.sleep(timeout);
        if let Some(cross_thread) = &self.cross_thread {
            cross_thread.queue.wakes();
        }
        result
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let Some(timeout) = timeout else { return self.enter(1) };
        let timespec = types::Timespec::from(timeout);
        let args = types::SubmitArgs::new().timespec(&timespec);
        self.ring.submission().sync();
        let result = self.ring.submitter().submit_with_args(1, &args);
        self.after_enter(result)
    }

    /// True if the kernel waits to be entered: to work on completions, or to hand out those that
    /// found the completion queue full.
    #[inline]
    fn kernel_has_work(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    fn enter(&mut self, want: u32) -> io::Result<()> {
        const GETEVENTS: u32 = 1;
        let to_submit = u32::try_from(self.unsubmitted).unwrap_or(u32::MAX);
        self.ring.submission().sync();
        // SAFETY: no argument is passed; the submitted entries are covered by `push`.
        let result = unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(to_submit, want, GETEVENTS, None)
        };
        self.after_enter(result)
    }

    fn after_enter(&mut self, result: io::Result<usize>) -> io::Result<()> {
        self.unsubmitted = self.ring.submission().len();
        let Err(error) = result else {
            self.pause = Duration::ZERO;
            return Ok(());
        };
        match error.raw_os_error() {
            // Interrupted or timed out: the queued entries stay queued.
            Some(libc::EINTR | libc::ETIME) => Ok(()),
            // Short of memory for the moment. The kernel does not wait for it, and would be asked
            // again at once.
            Some(libc::EBUSY | libc::EAGAIN | libc::ENOMEM) => {
                self.pause = (self.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
                // off the data path: the kernel is short of memory.
                std::thread::sleep(self.pause);
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// True if [`Uring::submit`] and [`Uring::next_event`] would find work. Costs two loads, and
    /// one more with a queue.
    #[inline]
    pub fn has_work(&mut self) -> bool {
        self.unsubmitted > 0
            || self.kernel_has_work()
            || !self.ring.completion().is_empty()
            || self.cross_thread.as_ref().is_some_and(|cross_thread| cross_thread.queue.has_mail())
    }

    fn wake(&mut self, token: u32, result: i32, armed: bool) -> Event {
        if armed {
            if !self.ended.is_empty() {
                self.ended.retain(|ended| *ended != token);
            }
            return Event::Wake { token, armed };
        }
        match -result {
            errno @ (libc::EBADF | libc::EINVAL | libc::EPERM | libc::EOPNOTSUPP) => {
                Event::Unwatchable { token, errno }
            }
            // Ready at once each time: it would keep its thread busy for ever.
            _ if self.ended.contains(&token) => Event::Unwatchable { token, errno: libc::EPERM },
            // A completion queue that is full ends watches too, and errors may pass.
            _ => {
                self.ended.push(token);
                Event::Wake { token, armed }
            }
        }
    }

    /// The next thing that arrived, if any.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            let Some(entry) = self.ring.completion().next() else {
                return if self.cross_thread.is_none() {
                    None
                } else {
                    self.next_by_cross_thread()
                };
            };
            let data = entry.user_data();
            #[allow(clippy::cast_possible_truncation)]
            match data & TAG {
                TAG_OP => {
                    self.in_flight -= 1;
                    return Some(Event::Finished(Finished { data, result: entry.result() }));
                }
                TAG_EXPRESS => {
                    self.in_flight -= 1;
                    if let Some(cross_thread) = &mut self.cross_thread {
                        cross_thread.express -= 1;
                    }
                    return Some(Event::Finished(Finished { data, result: entry.result() }));
                }
                // A poll that was cancelled is not armed and needs no answer.
                TAG_WAKE if entry.result() != -libc::ECANCELED => {
                    let token = data as u32 & (WAKE_TOKENS - 1);
                    return Some(self.wake(token, entry.result(), cqueue::more(entry.flags())));
                }
                _ => self.other(data, entry.result(), cqueue::more(entry.flags())),
            }
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // Closing a ring does not wait for its operations, and the kernel would go on writing to
        // memory that its owner has kept for them. Waiting is what its owner expects, however long
        // it takes; and so do other threads, for what they have handed over.
        if let Some(cross_thread) = &self.cross_thread {
            cross_thread.queue.leave();
            self.open_mail();
        }
        let guests = |uring: &Uring| {
            uring.cross_thread.as_ref().map_or(0, |cross_thread| cross_thread.guests)
        };
        while self.next_event().is_some() {}
        while self.in_flight + guests(self) > 0 {
            if let Err(error) = self.wait(None) {
                let left = self.in_flight + guests(self);
                tracing::error!("io_uring_enter, waiting for {left} operations: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
            while self.next_event().is_some() {}
        }
        // A closed ring lets go of its files some time later; the images' locks are to end now.
        if self.fixed.take().is_some_and(|files| !files.is_empty()) {
            let _ = self.ring.submitter().unregister_files();
        }
    }
}

fn setup_error(error: io::Error) -> Error {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let disabled = disabled.as_deref().map(str::trim).unwrap_or("0");
    let errno = error.raw_os_error();
    if matches!(errno, Some(libc::EPERM | libc::EACCES)) && disabled != "0" {
        let context = format!(
            "io_uring is switched off on this system (kernel.io_uring_disabled is {disabled}); \
             allow it with `sysctl kernel.io_uring_disabled=0`, or with 1 and this process in the \
             group kernel.io_uring_group"
        );
        return Error::caused_by(ErrorKind::NoIoUring, context, error);
    }
    let (kind, context) = match errno {
        Some(libc::EPERM | libc::EACCES) => (
            ErrorKind::NoIoUring,
            "io_uring is forbidden here, probably by a sandbox (seccomp filter, container \
             profile, SELinux); allow the system calls io_uring_setup, io_uring_enter and \
             io_uring_register for vlane",
        ),
        Some(libc::ENOSYS) => (
            ErrorKind::NoIoUring,
            "io_uring is not there: the kernel was built without it, or a sandbox hides it; vlane \
             needs Linux 6.1 or later with CONFIG_IO_URING, and a sandbox that allows \
             io_uring_setup, io_uring_enter, io_uring_register",
        ),
        Some(libc::EINVAL) => (
            ErrorKind::NoIoUring,
            "this kernel's io_uring is too old (no deferred task work); vlane needs Linux 6.1 or \
             later",
        ),
        Some(libc::ENOMEM) => (
            ErrorKind::Limit,
            "no memory for an io_uring: the limit of locked memory (ulimit -l) or of the memory \
             cgroup is too low; raise it, or use fewer threads with --threads",
        ),
        Some(libc::EMFILE | libc::ENFILE) => (
            ErrorKind::Limit,
            "no file descriptor left for an io_uring; raise the limit (ulimit -n), or use fewer \
             threads with --threads",
        ),
        _ => (ErrorKind::Io, "cannot set up an io_uring"),
    };
    Error::caused_by(kind, context, error)
}
