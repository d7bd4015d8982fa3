//! An engine behind the model of a device: real data, and the times of the model. For experiments:
//! a guest with real programs on a drive that this machine has not got.
//!
//! A request waits until the model has served it, and then goes to the engine, whose time is added.
//! So the engine should be quick: an image in the page cache, or in memory. A flush does not wait
//! in the model.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::Mode;
use vlane_ring::RequestKind;

use crate::model::{Model, ModelConfig, Port};
use crate::{
    Channel, ChannelStats, Completion, Decisions, Engine, EngineError, Geometry, Instant,
    LostWrite, Operation, Outcome, Request, Slot, StorageFile, Taken, file,
};

/// See the [module](self).
#[derive(Debug)]
pub struct Behind {
    inner: Arc<dyn Engine>,
    model: Model,
}

impl Behind {
    /// Puts a model before an engine.
    pub fn new(inner: Arc<dyn Engine>, model: ModelConfig) -> Behind {
        Behind { inner, model: Model::new(model) }
    }
}

impl Engine for Behind {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn stored_bytes(&self) -> Option<u64> {
        self.inner.stored_bytes()
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn identity(&self) -> Option<file::Identity> {
        self.inner.identity()
    }

    fn lost_write(&self) -> Option<LostWrite> {
        self.inner.lost_write()
    }

    fn refuses_writes(&self) -> Option<String> {
        self.inner.refuses_writes()
    }

    fn journal(&self) -> Option<file::JournalReport> {
        self.inner.journal()
    }

    fn cache_budget(&self) -> Option<file::CacheReport> {
        self.inner.cache_budget()
    }

    fn can_hang(&self) -> bool {
        self.inner.can_hang()
    }

    fn channel(&self, slots: u16) -> Result<Box<dyn Channel>, EngineError> {
        Ok(Box::new(Delayed {
            inner: self.inner.channel(slots)?,
            port: self.model.port(slots),
            is_in_model: vec![false; usize::from(slots)].into_boxed_slice(),
        }))
    }
}

#[derive(Debug)]
struct Delayed {
    inner: Box<dyn Channel>,
    port: Box<dyn Port>,
    /// By slot: the engine has not been given the request yet.
    is_in_model: Box<[bool]>,
}

impl Channel for Delayed {
    fn files(&self) -> &[StorageFile] {
        self.inner.files()
    }

    fn defaults(&self) -> Decisions {
        self.inner.defaults()
    }

    fn begin(&mut self, taken: Taken<'_>, operations: &mut Vec<Operation>) -> Outcome {
        if taken.request.kind() == RequestKind::Flush {
            return self.inner.begin(taken, operations);
        }
        self.is_in_model[usize::from(taken.slot.0)] = true;
        self.port.submit(taken.slot, taken.decisions);
        Outcome::Pending
    }

    fn finished(
        &mut self,
        taken: Taken<'_>,
        completion: Completion,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        self.inner.finished(taken, completion, operations)
    }

    fn go_on(&mut self, taken: Taken<'_>, operations: &mut Vec<Operation>) -> Outcome {
        match std::mem::take(&mut self.is_in_model[usize::from(taken.slot.0)]) {
            true => self.inner.begin(taken, operations),
            false => self.inner.go_on(taken, operations),
        }
    }

    fn forget(&mut self, slot: Slot) {
        match std::mem::take(&mut self.is_in_model[usize::from(slot.0)]) {
            true => self.port.forget(slot),
            false => self.inner.forget(slot),
        }
    }

    fn waiting(&self, slots: &mut Vec<Slot>) {
        self.inner.waiting(slots);
    }

    fn poll(&mut self, now: Instant, ready: &mut Vec<Slot>) {
        self.port.poll(now, ready);
        self.inner.poll(now, ready);
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.inner.doorbell()
    }

    fn deadline(&self) -> Option<Instant> {
        [self.port.deadline(), self.inner.deadline()].into_iter().flatten().min()
    }

    fn is_in_journal(&mut self, request: &Request) -> bool {
        self.inner.is_in_journal(request)
    }

    fn set_mode(&mut self, mode: Mode) {
        self.port.set_mode(mode);
        self.inner.set_mode(mode);
    }

    fn set_write_through(&mut self, on: bool) {
        self.inner.set_write_through(on);
    }

    fn stats(&self) -> ChannelStats {
        let stats = self.inner.stats();
        ChannelStats { handed_over: stats.handed_over + self.port.handed_over(), ..stats }
    }
}
