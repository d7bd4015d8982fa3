//! The memory in which requests in flight are marked, which the front end keeps while back ends
//! come and go (vhost-user, "Inflight I/O tracking").

use std::fs::File;
use std::sync::Arc;

use vhost::vhost_user::Result;
use vhost::vhost_user::message::{VhostUserInflight, VhostUserVringState};
use vlane_error::{counted, describe};
use vlane_ring::{InflightError, InflightRegion, Notes, Queue};

use super::{State, refuse, refuse_for_good};

/// The memory of SET_INFLIGHT_FD.
pub(super) struct Tracking {
    region: Arc<InflightRegion>,
    /// For a process that takes over.
    pub(super) shape: VhostUserInflight,
    pub(super) file: File,
}

impl std::fmt::Debug for Tracking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracking").field("region", &self.region).finish_non_exhaustive()
    }
}

fn refused(error: InflightError) -> vhost::vhost_user::Error {
    refuse(describe(&error))
}

impl Tracking {
    /// New memory, for the front end to keep.
    pub(super) fn create(queues: u16, size: u16) -> Result<(VhostUserInflight, File)> {
        let bytes = InflightRegion::bytes(queues, size).map_err(refused)?;
        let file = InflightRegion::create(queues, size).map_err(refused)?;
        Ok((VhostUserInflight::new(bytes, 0, queues, size), file))
    }

    /// Opens the front end's memory.
    pub(super) fn open(shape: VhostUserInflight, file: File) -> Result<Tracking> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = shape;
        let region = InflightRegion::map(&file, mmap_offset, mmap_size, num_queues, queue_size)
            .map_err(refused)?;
        Ok(Tracking { region, shape, file })
    }

    /// Maps it once more, as the next process does.
    pub(super) fn rehearse(&self) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = self.shape;
        let mapped =
            InflightRegion::map(&self.file, mmap_offset, mmap_size, num_queues, queue_size);
        mapped.map(drop).map_err(refused)
    }

    /// The notes for the next back end, if there is room.
    pub(super) fn notes(&self) -> Option<Notes> {
        self.region.notes()
    }

    /// Notes that no request is in flight any more.
    pub(super) fn forget(&self) {
        self.region.forget();
    }
}

impl State {
    /// Stops a ring and returns the position where it continues. If it `suspends`, requests may
    /// stay in flight, marked.
    pub(super) fn take_base(&mut self, index: u32, suspends: bool) -> Result<VhostUserVringState> {
        let (number, _) = self.vring(index).map_err(refuse_for_good)?;
        self.stop_or_suspend(number, suspends)?;
        self.leave_to_others();
        let vring = &mut self.vrings[usize::from(number)];
        vring.started = false;
        vring.kick = None;
        Ok(VhostUserVringState::new(index, vring.base))
    }

    /// Once no ring runs any more, the guest may go to another host. This host's page cache cannot
    /// be seen there.
    fn leave_to_others(&mut self) {
        if !self.running().is_empty() || !std::mem::take(&mut self.has_run) {
            return;
        }
        if let Err(error) = self.volume.sync() {
            tracing::error!(
                "{}: writes that were answered cannot be written to the storage: {error}; a host \
                 that serves this guest next may not see them: look at the storage, and have the \
                 guest check its file systems",
                self.volume.config.name
            );
        }
    }

    /// Has a new queue mark what it has in flight, and do again what the back end before had: so
    /// many requests.
    pub(super) fn track(&self, index: u16, queue: &mut Queue) -> usize {
        let Some(part) = self.tracking.as_ref().and_then(|tracking| tracking.region.part(index))
        else {
            return 0;
        };
        let again = queue.track(part);
        if again > 0 {
            tracing::info!(
                "{}: queue {index}: {} that the last back end had in flight {} done again",
                self.volume.config.name,
                counted(again, "request"),
                if again == 1 { "is" } else { "are" }
            );
        }
        again
    }
}
