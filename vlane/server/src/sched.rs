//! A session's connection to the vCPU scheduler: made, watched and given up in the session's own
//! thread.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vlane_hint::{Change, Client, Guest, LaneHint, ProcessId, default_sockets};

use crate::schedulers::Schedulers;
use crate::volume::Volume;

/// A session's connection, and what its lanes know of it.
pub(crate) struct SchedulerSession {
    volume: Arc<Volume>,
    client: Client,
}

impl SchedulerSession {
    /// Connects for the front end `pid`; `None` if there is no scheduler to report to, or the front
    /// end is gone already.
    pub(crate) fn new(volume: &Arc<Volume>, pid: Option<i32>) -> Option<SchedulerSession> {
        let (sockets, expected) = match &volume.schedulers {
            Schedulers::None => return None,
            Schedulers::Usual => (default_sockets(), false),
            Schedulers::At(path) => (vec![path.clone()], true),
        };
        // 0 is a process that is invisible here (another PID namespace).
        let pid = pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)?;
        let process = ProcessId::of(pid).ok()?;
        let guest = Guest {
            process,
            // Queue n is vCPU n's: how guests assign them when there are as many queues as vCPUs.
            vcpus: (0..u32::from(volume.queues())).collect(),
            name: volume.config.name.clone(),
            has_express: volume.config.express.mode.classifies(),
        };
        let client = Client::new(sockets, guest, expected, Instant::now());
        Some(SchedulerSession { volume: Arc::clone(volume), client })
    }

    /// Readable when there is work.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.client.fd()
    }

    /// The time until the next action, at the latest.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.client.deadline().map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Does it, without waiting.
    pub(crate) fn turn(&mut self) {
        match self.client.turn(Instant::now()) {
            None => {}
            Some(Change::Left) => {
                tracing::info!(
                    "{}: the vCPU scheduler is gone; it is no longer notified of completed I/O",
                    self.volume.config.name
                );
                self.tell_lanes(|_| None);
            }
            Some(Change::Joined(board, wake)) => {
                tracing::info!(
                    "{}: a vCPU scheduler joined; it is notified of completed I/O",
                    self.volume.config.name
                );
                self.tell_lanes(|index| {
                    LaneHint::new(Arc::clone(&board), index, Arc::clone(&wake))
                });
            }
        }
    }

    fn tell_lanes(&self, hint: impl Fn(u16) -> Option<LaneHint>) {
        for index in 0..self.volume.queues() {
            // A thread that is gone has no lanes.
            let _ = self.volume.pool.set_hint(index, hint(index).map(Box::new));
        }
    }
}

impl Drop for SchedulerSession {
    fn drop(&mut self) {
        self.tell_lanes(|_| None);
    }
}
