//! What control asks of a lane, and how it goes to sleep and to its end.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use vlane_hint::LaneHint;
use vlane_ring::{Broken, GuestMemory, probes};

use super::Lane;
use super::events::LaneEvent;
use crate::call::Call;
use crate::error::{LaneError, Stopped};
use crate::recorder::Recorder;

/// What a lane does once nothing is in flight.
pub(super) enum Draining {
    /// Wait for one of the others.
    Hold,
    Stop(Sender<Option<Stopped>>),
    Memory(Arc<GuestMemory>, Sender<Result<(), LaneError>>),
    /// The thread ends.
    Exit,
}

impl Lane {
    /// Makes public what was counted; once a round.
    pub(crate) fn store_counters(&mut self) {
        self.counters.take_channel(&self.channel.stats(), &self.counted_before);
        self.shared_counters.publish(&self.counters);
    }

    pub(super) fn write_call(&self) {
        if let Some(call) = &self.call {
            call.signal();
        }
    }

    /// Before sleeping: asks for kicks. Returns whether there is work after all.
    pub(crate) fn before_sleep(&mut self) -> bool {
        if !self.again.is_empty() {
            return true;
        }
        if self.takes_no_more() {
            return false;
        }
        if !self.has_room() {
            // What is in the ring has to wait for what is under way, which wakes the thread.
            return false;
        }
        if self.queue.is_memory_lost() {
            self.break_down(Broken::MemoryLost);
            return false;
        }
        match self.queue.enable_notify() {
            Ok(true) => {
                self.queue.disable_notify();
                true
            }
            Ok(false) => false,
            Err(reason) => {
                self.break_down(reason);
                false
            }
        }
    }

    /// After a sleep: kicks are not needed for now. A lane that takes nothing more has no wish, and may have left its place there.
    pub(crate) fn after_sleep(&mut self) {
        if !self.takes_no_more() {
            self.queue.disable_notify();
        }
    }

    pub(super) fn count_kick(&mut self) {
        self.is_touched = true;
        self.counters.kicks += 1;
        probes::kick(self.index);
    }

    #[cold]
    pub(super) fn break_down(&mut self, reason: Broken) {
        self.broken = true;
        self.events.send(LaneEvent::Broken { index: self.index, reason });
    }

    pub(crate) fn stop(&mut self, reply: Sender<Option<Stopped>>) {
        self.drain(Draining::Stop(reply));
    }

    fn drain(&mut self, draining: Draining) {
        self.draining = Some(draining);
        self.put_back_waiting();
    }

    /// Takes no more requests, and goes once those in flight are answered.
    pub(crate) fn exit(&mut self) {
        if matches!(self.draining, None | Some(Draining::Hold)) {
            self.drain(Draining::Exit);
        }
    }

    /// Takes no more requests, until [`Lane::stop`] asks for the end of those that it has.
    pub(crate) fn hold(&mut self) {
        if self.draining.is_none() {
            self.drain(Draining::Hold);
        }
    }

    pub(crate) fn set_memory(
        &mut self,
        memory: Arc<GuestMemory>,
        drain: bool,
        reply: Sender<Result<(), LaneError>>,
    ) {
        if drain {
            self.drain(Draining::Memory(memory, reply));
        } else {
            let _ = reply.send(self.queue.set_memory(memory).map_err(LaneError::Queue));
        }
    }

    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call.map(Call::new);
        // What was completed while there was none, or while the old one had lost its reader.
        self.write_call();
    }

    pub(crate) fn set_log(&mut self, log: Option<Arc<vlane_ring::DirtyLog>>, ring: Option<u64>) {
        self.queue.set_log(log, ring);
    }

    pub(crate) fn set_write_through(&mut self, on: bool) {
        self.channel.set_write_through(on);
        self.defaults = self.channel.defaults();
        if self.defaults.durable {
            // The guest is not going to flush what is under way.
            self.decisions.iter_mut().for_each(|decisions| decisions.durable = true);
        }
    }

    pub(crate) fn set_sectors(&mut self, sectors: u64) {
        self.sectors = sectors;
    }

    /// Tells a recorder of every request from now on, or nobody.
    pub(crate) fn set_recorder(&mut self, recorder: Option<Box<Recorder>>) {
        self.observers.set_recorder(recorder, self.queue.config().size, self.queue.in_flight());
    }

    /// Takes the recorder out, for the lane that comes next.
    pub(crate) fn take_recorder(&mut self) -> Option<Box<Recorder>> {
        self.observers.take_recorder()
    }

    /// Tells the vCPU scheduler of what completes from now on, or nobody.
    pub(crate) fn set_hint(&mut self, hint: Option<Box<LaneHint>>) {
        self.observers.set_hint(hint);
    }

    /// Takes the hint out, for the lane that comes next.
    pub(crate) fn take_hint(&mut self) -> Option<Box<LaneHint>> {
        self.observers.take_hint()
    }

    /// Does what waits for the last request in flight, if it was that. Returns true when the lane is to go.
    pub(crate) fn settle(&mut self) -> bool {
        if self.draining.is_none() || self.queue.in_flight() > 0 {
            return false;
        }
        match self.draining.take() {
            Some(Draining::Hold) => {
                // The end may not come, if another lane's storage hangs: whoever serves the ring next finds it in order.
                self.publish();
                self.queue.leave_place();
                self.draining = Some(Draining::Hold);
                false
            }
            Some(Draining::Stop(reply)) => {
                self.publish();
                self.queue.leave_place();
                self.store_counters();
                let _ = reply.send(Some(Stopped {
                    base: self.queue.base(),
                    counters: self.counters.since(&self.counted_before),
                }));
                true
            }
            Some(Draining::Memory(memory, reply)) => {
                let _ = reply.send(self.queue.set_memory(memory).map_err(LaneError::Queue));
                false
            }
            Some(Draining::Exit) => {
                self.publish();
                self.store_counters();
                true
            }
            None => false,
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.events.send(LaneEvent::Lost { index: self.index });
        }
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("index", &self.index).field("queue", &self.queue).finish_non_exhaustive()
    }
}
