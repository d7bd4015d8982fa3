//! BLKDISCARD, for block devices. It is a system call that lasts as long as the device takes and io_uring has no
//! equivalent before Linux 6.12, so one thread per volume does it, started by the first DISCARD. It puts what came of it
//! into a queue of the channel that asked, and rings the channel's doorbell.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use vlane_trace::storage::{Clear, What};

use super::Shared;
use crate::Slot;
use crate::sync::{Waker, wake};

/// `_IO(0x12, 119)`
const BLKDISCARD: libc::Ioctl = 0x1277;

struct Job {
    shared: Arc<Shared>,
    /// Offset and length, bytes.
    span: [u64; 2],
    slot: Slot,
    results: Sender<(Slot, i32)>,
    doorbell: Arc<Waker>,
    /// What the recorder was told of it, if there is one.
    told: Option<u64>,
}

/// The way to the thread.
#[derive(Debug, Default)]
pub(super) struct Discarder {
    // Taken once per DISCARD on a block device, for a send.
    sender: Mutex<Option<Sender<Job>>>,
}

/// What came of a channel's discards.
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
    pub(super) fn begin(
        &self,
        shared: &Arc<Shared>,
        slot: Slot,
        (offset, len): (u64, u64),
        results: &Results,
    ) -> io::Result<()> {
        let discard = What::Clear { how: Clear::Discard, offset, len };
        let job = Job {
            told: shared.recorder.as_ref().map(|recorder| recorder.begin(discard)),
            shared: Arc::clone(shared),
            span: [offset, len],
            slot,
            results: results.sender.clone(),
            doorbell: Arc::clone(&results.doorbell),
        };
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &mut *sender {
            Some(sender) => sender,
            none => {
                let (sender, jobs) = channel::<Job>();
                // Ends with the volume, which holds the only sender.
                std::thread::Builder::new()
                    .name("discard".to_owned())
                    .spawn(move || jobs.iter().for_each(run))?;
                none.insert(sender)
            }
        };
        sender.send(job).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[allow(clippy::needless_pass_by_value)]
fn run(job: Job) {
    // SAFETY: an open device and a pair of numbers, as BLKDISCARD wants them.
    let result = unsafe { libc::ioctl(job.shared.file().as_raw_fd(), BLKDISCARD, &job.span) };
    let errno = if result < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { 0 };
    if let (Some(recorder), Some(told)) = (&job.shared.recorder, job.told) {
        recorder.end(told, -i64::from(errno));
    }
    // Nobody may want to know any more.
    let _ = job.results.send((job.slot, -errno));
    wake(&job.doorbell);
}
