//! The signals of `vlane serve`.
//!
//! Signals are blocked in all threads and read by one. So an unread signal outlives the program
//! when another one takes over. It is the successor's, which begins with signals blocked.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags};

use super::stop::{Ending, Stage};
use super::upgrade::Upgrade;
use crate::notify;

/// Targets of the signals.
pub(super) struct Means {
    pub(super) ending: Ending,
    pub(super) resize: SyncSender<()>,
    pub(super) upgrade: Arc<Upgrade>,
    /// For the service manager.
    pub(super) status: String,
}

/// Holds the signals back from now on, until [`thread`] reads them. To be called before there are
/// other threads.
pub(super) fn hold() -> nix::Result<SignalFd> {
    let mut all = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR2]
        .into_iter()
        .for_each(|one| all.add(one));
    all.thread_block()?;
    SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// The thread that does what they ask for.
pub(super) fn thread(signals: SignalFd, means: Means) -> std::io::Result<()> {
    let upgrades = means.upgrade.thread()?;
    let body = move || {
        let Means { ending, resize, upgrade, status } = means;
        loop {
            let mut fds = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
            if let Err(error) = rustix::event::poll(&mut fds, None)
                && error != rustix::io::Errno::INTR
            {
                return tracing::error!("can no longer wait for signals: {error}");
            }
            // Read and done as one: in between, no program takes over.
            let mut turn = vlane_error::locked(&upgrade.turn);
            let Ok(Some(signal)) = signals.read_signal() else { continue };
            match i32::try_from(signal.ssi_signo).map(Signal::try_from) {
                // Neither may keep the other waiting: storage that hangs can make both wait for
                // ever.
                Ok(Ok(Signal::SIGHUP)) => {
                    notify::reloading();
                    turn.looks += usize::from(resize.try_send(()).is_ok());
                    notify::ready(&status);
                }
                // One that waits already is enough.
                Ok(Ok(Signal::SIGUSR2)) => {
                    let _ = upgrades.try_send(());
                }
                _ => {
                    turn.is_ending = true;
                    ending.enter(Stage::Draining);
                }
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(body).map(drop)
}
