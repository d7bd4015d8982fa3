//! BLKDISCARD, for block devices. It is a system call that lasts as long as the device takes and io_uring has no
//! equivalent before Linux 6.12, so one thread per volume does it, started by the first DISCARD; the lane learns of
//! the end from an eventfd that it reads through its io_uring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::EventfdFlags;

use super::Shared;

/// `_IO(0x12, 119)`
const BLKDISCARD: libc::Ioctl = 0x1277;

struct Job {
    shared: Arc<Shared>,
    /// Offset and length, bytes.
    span: [u64; 2],
    done: Arc<OwnedFd>,
}

/// The way to the thread.
#[derive(Debug, Default)]
pub(super) struct Discarder {
    // Taken once per DISCARD on a block device, for a send.
    sender: Mutex<Option<Sender<Job>>>,
}

impl Discarder {
    /// Begins a discard; returns the eventfd that says when it is done, and how: see [`outcome`].
    pub(super) fn begin(&self, shared: &Arc<Shared>, offset: u64, len: u64) -> io::Result<Arc<OwnedFd>> {
        let done = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
        let job = Job { shared: Arc::clone(shared), span: [offset, len], done: Arc::clone(&done) };
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
        sender.send(job).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(done)
    }
}

#[allow(clippy::needless_pass_by_value)]
fn run(job: Job) {
    // SAFETY: an open device and a pair of numbers, as BLKDISCARD wants them.
    let result = unsafe { libc::ioctl(job.shared.file.as_raw_fd(), BLKDISCARD, &job.span) };
    let errno = if result < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { 0 };
    let value = u64::from(errno.unsigned_abs()) + 1;
    // The lane waits for it: an eventfd that nobody else writes to takes it.
    let _ = rustix::io::write(&job.done, &value.to_ne_bytes());
}

/// What the value read from the eventfd means: 0, or a negative error number.
pub(super) fn outcome(value: u64) -> i32 {
    i32::try_from(value.saturating_sub(1)).map_or(-libc::EIO, |errno| -errno)
}
