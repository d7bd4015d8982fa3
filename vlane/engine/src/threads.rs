//! Threads of a volume that the thread of a lane starts.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that may run on all CPUs of the process. A new thread inherits the CPUs of the
/// one that starts it, and a lane's thread may be pinned to one.
///
/// # Errors
/// When the system gives no thread.
pub(crate) fn start(
    builder: Builder,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    builder.spawn(move || {
        // The first thread of the process is never pinned by vlane. A refusal leaves all as it is.
        let first = Some(rustix::process::getpid());
        if let Ok(cpus) = rustix::thread::sched_getaffinity(first) {
            let _ = rustix::thread::sched_setaffinity(None, &cpus);
        }
        body();
    })
}
