//! Descriptors that arrive with messages must not reach another program.
//!
//! The `vhost` crate receives them without close-on-exec. A descriptor that another program
//! inherits pins the guest's memory for as long as that program runs. One that survives an upgrade
//! pins it for good. So each is marked as soon as the crate passes it on, and no program is started
//! between the two moments. The serving thread holds [`handling`] meanwhile, and a thread that
//! starts a program holds [`none_arrives`].

use std::fs::File;
use std::io;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

use rustix::io::FdFlags;

/// A program that is started copies all descriptors of the process, so there is one lock for all
/// sessions. These share it.
static ARRIVING: RwLock<()> = RwLock::new(());

/// Held while a message is received and handled.
pub(crate) fn handling() -> RwLockReadGuard<'static, ()> {
    ARRIVING.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits, for `limit` at most, until no message is under way. While the result is held, every
/// descriptor of the process that came with a message closes on execution. Returns `None` if a
/// message is not over in time.
#[must_use]
pub fn none_arrives(limit: Duration) -> Option<RwLockWriteGuard<'static, ()>> {
    let begin = Instant::now();
    loop {
        match ARRIVING.try_write() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if begin.elapsed() >= limit => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Has a descriptor that a message brought close on execution.
///
/// # Errors
/// The system's error.
pub(crate) fn closing(file: File) -> io::Result<File> {
    rustix::io::fcntl_setfd(&file, FdFlags::CLOEXEC)?;
    Ok(file)
}
