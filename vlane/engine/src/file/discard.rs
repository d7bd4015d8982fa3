//! BLKDISCARD, for block devices where io_uring has no command for it (before Linux 6.12). It is a
//! system call that lasts as long as the device takes. So threads of the volume do it, as many as
//! there are discards, up to [`THREADS`]. A thread ends after [`IDLE`] without work. The outcome of
//! a discard is put into a queue of the channel that asked, and the channel's doorbell is rung.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use vlane_error::locked;
use vlane_trace::storage::{Action, Clear};

use super::Shared;
use crate::sync::{Waker, wake};
use crate::{Slot, threads};

/// `_IO(0x12, 119)`
const BLKDISCARD: libc::Ioctl = 0x1277;
/// Threads of a volume, at most.
const THREADS: usize = 32;
/// How long a thread waits for the next discard.
const IDLE: Duration = Duration::from_secs(1);
/// Bytes of a thread's stack.
const STACK: usize = 64 << 10;

struct Job {
    shared: Arc<Shared>,
    /// Offset and length, bytes.
    span: [u64; 2],
    slot: Slot,
    results: Sender<(Slot, i32)>,
    doorbell: Arc<Waker>,
    /// The recorder's number for it, if there is a recorder.
    told: Option<u64>,
}

/// Waiting discards and their threads.
#[derive(Debug, Default)]
pub(super) struct Discarder {
    // Taken once per DISCARD on a block device, and by its thread.
    state: Mutex<State>,
    has_job: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// The results of a channel's discards.
#[derive(Debug)]
pub(super) struct Results {
    sender: Sender<(Slot, i32)>,
    receiver: Receiver<(Slot, i32)>,
    doorbell: Arc<Waker>,
}

impl Results {
    pub(super) fn new(doorbell: Arc<Waker>) -> Results {
        let (sender, receiver) = channel();
        Results { sender, receiver, doorbell }
    }

    /// The next one: whose discard, and 0 or a negative error number.
    pub(super) fn next(&mut self) -> Option<(Slot, i32)> {
        self.receiver.try_recv().ok()
    }
}

impl Discarder {
    /// Begins a discard, `len` bytes at `offset`. Its result comes to `results`.
    // off the data path: a discard is a call for another thread.
    pub(super) fn begin(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        slot: Slot,
        (offset, len): (u64, u64),
        results: &Results,
    ) -> io::Result<()> {
        let mut state = locked(&self.state);
        if state.idle <= state.jobs.len() && state.threads < THREADS {
            let pool = Arc::clone(self);
            let builder = std::thread::Builder::new().name("discard".to_owned()).stack_size(STACK);
            match threads::start(builder, move || pool.work()) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => return Err(error),
                // Those that are there do it.
                Err(_) => {}
            }
        }
        let discard = Action::Clear { how: Clear::Discard, offset, len };
        state.jobs.push_back(Job {
            told: shared.recorder.as_ref().map(|recorder| recorder.submitted(discard)),
            shared: Arc::clone(shared),
            span: [offset, len],
            slot,
            results: results.sender.clone(),
            doorbell: Arc::clone(&results.doorbell),
        });
        drop(state);
        self.has_job.notify_one();
        Ok(())
    }

    /// The work of a thread.
    fn work(&self) {
        let mut state = locked(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                run(job);
                state = locked(&self.state);
                continue;
            }
            state.idle += 1;
            let waited = self.has_job.wait_timeout(state, IDLE);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

fn run(job: Job) {
    let Job { shared, span, slot, results, doorbell, told } = job;
    // SAFETY: an open device and a pair of numbers, as BLKDISCARD wants them.
    let result = unsafe { libc::ioctl(shared.file().as_raw_fd(), BLKDISCARD, &span) };
    let errno =
        if result < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { 0 };
    if let (Some(recorder), Some(told)) = (&shared.recorder, told) {
        recorder.finished(told, -i64::from(errno));
    }
    // Once the answer is there, the volume may end, and its image is to be closed then.
    drop(shared);
    // The channel may be gone.
    let _ = results.send((slot, -errno));
    wake(&doorbell);
}
