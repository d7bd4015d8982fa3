//! A device without media, to measure everything but the storage: like Linux's null_blk.
//!
//! Reads leave the guest's buffers as they are and writes are forgotten. With a latency it is a
//! [model](crate::model) of a device: answers come when that has served the request.

use std::time::Duration;

use crate::Mode;
use vlane_ring::RequestKind;

use crate::model::{DeviceQueues, Model, ModelConfig, Port};
use crate::{
    Channel, ChannelStats, Engine, EngineError, ErrorKind, Geometry, Instant, Operation, Outcome,
    Slot, Status, Taken,
};

/// The properties of a [`NullEngine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NullConfig {
    /// Bytes; a multiple of 512, not 0.
    pub size: u64,
    /// How long a request takes; none: answered at once.
    pub latency: Option<Duration>,
    /// Requests worked on at the same time, over all lanes; only with a latency. At least 1.
    pub parallelism: usize,
}

/// The null engine.
#[derive(Debug)]
pub struct NullEngine {
    size: u64,
    model: Option<Model>,
}

impl NullEngine {
    /// Makes the device; one with a latency has one queue for all lanes.
    ///
    /// # Errors
    /// [`ErrorKind::Empty`], [`ErrorKind::OddSize`].
    pub fn new(config: NullConfig) -> Result<NullEngine, EngineError> {
        let NullConfig { size, latency, parallelism } = config;
        let queues = DeviceQueues::Shared;
        NullEngine::modelled(
            size,
            latency.map(|latency| ModelConfig { latency, parallelism, queues }),
        )
    }

    /// Makes a device of so many bytes that takes as long as a model does.
    ///
    /// # Errors
    /// As [`NullEngine::new`].
    pub fn modelled(size: u64, model: Option<ModelConfig>) -> Result<NullEngine, EngineError> {
        if size == 0 {
            let text = "a null device needs a size above 0, such as 16G";
            return Err(EngineError::new(ErrorKind::Empty, text));
        }
        if !size.is_multiple_of(512) {
            let text =
                format!("a null device of {size} bytes is not a multiple of the sector size, 512");
            return Err(EngineError::new(ErrorKind::OddSize, text));
        }
        Ok(NullEngine { size, model: model.map(Model::new) })
    }
}

impl Engine for NullEngine {
    fn geometry(&self) -> Geometry {
        Geometry {
            sectors: self.size / 512,
            block_size: 512,
            physical_exponent: 3,
            optimal_blocks: 0,
            read_only: false,
            discard: true,
            write_zeroes: true,
            write_cache: true,
        }
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn can_hang(&self) -> bool {
        false
    }

    fn channel(&self, slots: u16) -> Result<Box<dyn Channel>, EngineError> {
        Ok(match &self.model {
            None => Box::new(Instantly),
            Some(model) => Box::new(Modelled(model.port(slots))),
        })
    }
}

#[derive(Debug)]
struct Instantly;

impl Channel for Instantly {
    #[inline]
    fn begin(&mut self, _: Taken<'_>, _: &mut Vec<Operation>) -> Outcome {
        Outcome::Done(Status::Ok)
    }

    fn set_write_through(&mut self, _on: bool) {}

    fn stats(&self) -> ChannelStats {
        ChannelStats::default()
    }
}

#[derive(Debug)]
struct Modelled(Box<dyn Port>);

impl Channel for Modelled {
    fn begin(&mut self, taken: Taken<'_>, _: &mut Vec<Operation>) -> Outcome {
        if taken.request.kind() == RequestKind::Flush {
            return Outcome::Done(Status::Ok);
        }
        self.0.submit(taken.slot, taken.decisions);
        Outcome::Pending
    }

    /// Its time has come.
    fn go_on(&mut self, _: Taken<'_>, _: &mut Vec<Operation>) -> Outcome {
        Outcome::Done(Status::Ok)
    }

    fn forget(&mut self, slot: Slot) {
        self.0.forget(slot);
    }

    fn poll(&mut self, now: Instant, ready: &mut Vec<Slot>) {
        self.0.poll(now, ready);
    }

    fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }

    fn set_mode(&mut self, mode: Mode) {
        self.0.set_mode(mode);
    }

    fn set_write_through(&mut self, _on: bool) {}

    fn stats(&self) -> ChannelStats {
        ChannelStats { handed_over: self.0.handed_over(), ..ChannelStats::default() }
    }
}
