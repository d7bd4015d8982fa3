//! The wait for what a dead process has left of an image, before it can be served.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use vlane_engine::file::Leftover;

use crate::notify;

/// Interval of the repeated message.
const AGAIN: Duration = Duration::from_secs(10);
/// A wait that ends sooner is not worth a line: an ordinary restart does.
const UNTOLD: Duration = Duration::from_secs(2);

/// Tells what is waited for, and when it is enough.
pub(super) struct Waiting<'a> {
    path: &'a Path,
    signals: &'a SignalFd,
    /// `--lock-timeout`.
    limit: Option<Duration>,
    told: Option<Instant>,
    was_ended: bool,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(path: &'a Path, signals: &'a SignalFd, limit: Option<Duration>) -> Self {
        Self { path, signals, limit, told: None, was_ended: false }
    }

    /// True if the wait continues.
    pub(super) fn goes_on(&mut self, leftover: &Leftover) -> bool {
        // SIGHUP has no size to look at yet, and no other program could take over.
        let ends = [Signal::SIGTERM, Signal::SIGINT].map(|signal| signal as u32);
        while let Ok(Some(signal)) = self.signals.read_signal() {
            self.was_ended |= ends.contains(&signal.ssi_signo);
        }
        if self.was_ended || self.limit.is_some_and(|limit| leftover.waited >= limit) {
            return false;
        }
        let is_due = self.told.map_or(leftover.waited >= UNTOLD, |told| told.elapsed() >= AGAIN);
        if is_due {
            let is_first = self.told.replace(Instant::now()).is_none();
            let image = self.path.display();
            match is_first {
                true => {
                    tracing::warn!("{image}: waiting for the previous server to release the image")
                }
                false => tracing::warn!(
                    "{image}: waiting, for {} s so far: the image {leftover}; it is served as \
                     soon as that has ended; SIGTERM ends the wait",
                    leftover.waited.as_secs()
                ),
            }
            // Twice as long as until the next time.
            notify::waiting(&format!("waiting: {image} {leftover}"), 2 * AGAIN);
        }
        true
    }

    /// True if a signal has ended the wait.
    pub(super) fn was_ended(&self) -> bool {
        self.was_ended
    }

    /// The wait is over; a log line follows if its beginning had one.
    pub(super) fn over(&self) {
        if self.told.is_some() {
            tracing::info!(
                "{}: the wait is over: no request of a dead process is left",
                self.path.display()
            );
        }
    }
}
