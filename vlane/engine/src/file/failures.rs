//! Failed requests of a channel: their log lines, their counts, and the losses that they mean for
//! writes that were already answered.

use vlane_ring::RequestKind;

use super::channel::{FileChannel, Progress, Stage};
use super::transfer::Failure;
use crate::{IoErrorKind, Outcome, Status, Taken, Writeback};
use vlane_io::Placement;

impl FileChannel {
    /// A request failed for good.
    #[cold]
    pub(super) fn fail(&mut self, taken: Taken<'_>, failure: Failure) -> Outcome {
        let request = taken.request;
        if !matches!(request.kind(), RequestKind::In | RequestKind::Flush) {
            // Part of it may be done.
            self.flusher.count();
        }
        let path = self.shared.path.display();
        match failure {
            // The guest's memory is gone, which is not the storage's failure: the queue is going to
            // stop for it.
            Failure::MemoryLost => tracing::debug!("{path}: {request:?}: its memory is lost"),
            Failure::System(libc::EFAULT) if request.kind() != RequestKind::Flush => {
                tracing::debug!("{path}: {request:?}: its memory is lost");
            }
            Failure::Short => {
                tracing::debug!("{path}: {request:?}: beyond the end of the file");
                self.stats.count_error(IoErrorKind::Short);
            }
            Failure::System(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                tracing::debug!("{path}: {request:?}: {error}");
                // A device answers a write beyond its end as if there were no space. One that is
                // gone for good has no bytes at all, and its own error says more.
                let stored = self.shared.is_device.then(|| self.shared.stored_bytes()).flatten();
                let is_beyond = stored.is_some_and(|stored| {
                    stored > 0 && request.end().is_some_and(|end| end > stored)
                });
                let kind = if is_beyond { IoErrorKind::Short } else { IoErrorKind::of(&error) };
                self.stats.count_error(kind);
                self.note_loss(taken, errno, kind);
                let is_transfer =
                    matches!(self.at(taken.slot).stage, Stage::Transfer | Stage::Zeroes);
                if errno == libc::EINVAL
                    && is_transfer
                    && taken.decisions.placement == Placement::Direct
                {
                    self.shared.warn_of_refusal();
                }
            }
        }
        self.answer(taken.slot, Status::IoErr)
    }

    /// Notes a loss if a failure means that earlier writes, already answered, are lost.
    fn note_loss(&mut self, taken: Taken<'_>, errno: i32, kind: IoErrorKind) {
        let Progress { stage, durable, .. } = *self.at(taken.slot);
        let durability = &self.shared.durability;
        match stage {
            // The loss is noted before any request is answered.
            Stage::Sync => {}
            // Its own transfer, or the writeback after it, which may be that of any page: the
            // system does not say which.
            _ if durable
                && taken.request.kind() != RequestKind::In
                && kind == IoErrorKind::Device =>
            {
                durability.fail(errno, Writeback::Write);
            }
            // Most likely there was no place for this one; the witness knows of others.
            _ if taken.decisions.durable && taken.request.kind() != RequestKind::In => {
                durability.ask(Writeback::Write);
            }
            _ => {}
        }
    }
}
