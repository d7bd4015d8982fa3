//! Threads of a volume that the thread of a lane starts.

use std::io;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long a volume's end waits for a thread, which may hang with its storage.
const END: Duration = Duration::from_millis(200);

/// A volume's thread. Its owner waits for its end, but not for ever.
#[derive(Debug)]
pub(crate) struct Bounded {
    name: &'static str,
    ended: Mutex<Receiver<()>>,
}

impl Bounded {
    /// Starts it. All that `body` owns is dropped before the end is reported.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(
        name: &'static str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, ended) = sync_channel(0);
        start(Builder::new().name(name.to_owned()), move || {
            body();
            drop::<std::sync::mpsc::SyncSender<()>>(sender);
        })?;
        Ok(Self { name, ended: Mutex::new(ended) })
    }

    /// Waits for the end of a thread that was asked to end.
    pub(crate) fn join_for_a_while(&self) {
        let ended = vlane_error::locked(&self.ended);
        if ended.recv_timeout(END) == Err(RecvTimeoutError::Timeout) {
            tracing::debug!("the thread {} hangs, and is left alone", self.name);
        }
    }
}

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
