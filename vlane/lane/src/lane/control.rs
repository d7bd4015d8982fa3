//! Control's requests to a lane, and the lane's way to sleep and to its end.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use vlane_engine::Decisions;
use vlane_hint::LaneHint;
use vlane_io::{Instant, Uring};
use vlane_memory::GuestMemory;
use vlane_ring::{Broken, probes};

use super::events::LaneEvent;
use super::{Idle, Lane};
use crate::call::Call;
use crate::cancellable_request::CancellableRequest;
use crate::error::{LaneError, Stopped};
use crate::recorder::Recorder;

/// The next action of a lane once no request is in flight.
pub(super) enum Draining {
    /// Wait for one of the others.
    Hold,
    Stop(Sender<Option<Stopped>>),
    /// As a stop, but waiting requests stay in flight; only begun ones must end.
    Suspend(Sender<Option<Stopped>>),
    /// The same, unless that is called off before.
    TryStop(Arc<CancellableRequest>, Sender<Option<Stopped>>),
    Memory(Arc<GuestMemory>, Sender<Result<(), LaneError>>),
    /// Goes to that thread. Needs only that no operation is in progress: waiting requests move,
    /// too.
    Move(usize),
    /// The thread ends.
    Exit,
}

/// A lane's state after a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It continues.
    Stays,
    /// It is to go to that thread now.
    Leaves(usize),
    /// It has ended.
    Ends,
}

impl Lane {
    /// Makes public what was counted; once a round.
    pub(crate) fn store_counters(&mut self) {
        self.counters.take_channel(&self.channel.stats(), &self.counted_before);
        self.counters.handed_over += self.queue.handed_over();
        self.shared_counters.publish(&self.counters);
    }

    /// Requests that it has served.
    pub(crate) fn requests(&self) -> u64 {
        self.counters.requests() - self.counted_before.requests()
    }

    pub(super) fn write_call(&self) {
        if let Some(call) = &self.call {
            call.signal();
        }
    }

    /// Before sleeping: asks for kicks. Returns true if there is work after all.
    pub(crate) fn before_sleep(&mut self) -> bool {
        if !self.continuing.is_empty() {
            return true;
        }
        if self.takes_no_more() {
            return false;
        }
        let takes = if self.orders() { self.takes_ahead() } else { self.has_room() };
        if !takes {
            // Requests in the ring have to wait for operations in progress, which wake the thread.
            return false;
        }
        if self.is_held() && !self.looks_further() {
            // ... or for the volume's limits, for which there is a deadline: no kick changes that.
            return false;
        }
        let asked = self.queue.enable_notify();
        // That touched the ring, perhaps as the first access since its memory went: no look would
        // follow until the next kick.
        if self.queue.is_memory_lost() {
            self.break_down(Broken::MemoryLost);
            return false;
        }
        match asked {
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

    /// After a sleep: kicks are not needed for now. A lane that takes no more requests asks for no
    /// kicks, and may have left its place there.
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

    /// Stops it where it marks what is in flight; a stop elsewhere.
    pub(crate) fn suspend(&mut self, reply: Sender<Option<Stopped>>) {
        if !self.queue.is_tracked() {
            return self.stop(reply);
        }
        self.draining = Some(Draining::Suspend(reply));
        self.tell_classes();
        self.requeue_parked();
        while let Some(slot) = self.next_waiting() {
            self.observers.put_back(slot);
        }
        for (slot, idle) in self.idle() {
            if !self.put_back(slot) && idle == Idle::Continues {
                self.continuing.push(&mut self.links, slot);
            }
        }
        self.leave_budget();
    }

    /// True if a request that is half done stays in flight, for the queue's next server, which
    /// knows of it.
    pub(super) fn stays_in_flight(&self) -> bool {
        match self.draining {
            Some(Draining::Suspend(_)) => true,
            Some(Draining::TryStop(..)) => self.queue.is_tracked(),
            _ => false,
        }
    }

    /// Requests that were given up wait for their turn again.
    fn requeue_parked(&mut self) {
        for slot in std::mem::take(&mut self.parked) {
            self.wait(slot);
            self.begins_to_wait(slot);
        }
    }

    /// Requests in flight stay so for another device.
    pub(super) fn is_suspending(&self) -> bool {
        matches!(self.draining, Some(Draining::Suspend(_)))
    }

    /// As [`Lane::stop`], for as long as `stop` stands.
    pub(crate) fn try_stop(
        &mut self,
        stop: Arc<CancellableRequest>,
        reply: Sender<Option<Stopped>>,
    ) {
        // A thread that hangs reads this when it is not wanted any more.
        if stop.is_open() {
            self.drain(Draining::TryStop(stop, reply));
        }
    }

    /// Does not stop after all, if it was going to and that was called off.
    pub(crate) fn carry_on(&mut self) {
        if matches!(&self.draining, Some(Draining::TryStop(stop, _)) if !stop.is_open()) {
            self.draining = None;
            self.is_touched = true;
            self.requeue_parked();
        }
    }

    fn drain(&mut self, draining: Draining) {
        self.draining = Some(draining);
        self.tell_classes();
        self.requeue_parked();
        self.put_back_waiting();
        // Requests that could not be put back do not wait any more, and pay when they are begun.
        self.leave_budget();
    }

    /// Drains for a waiting caller. A lane that only moves has time.
    pub(super) fn is_ending(&self) -> bool {
        !matches!(self.draining, None | Some(Draining::Move(_)))
    }

    /// Takes no more requests, and goes once those in flight are answered.
    pub(crate) fn exit(&mut self) {
        if matches!(self.draining, None | Some(Draining::Hold | Draining::Move(_))) {
            self.drain(Draining::Exit);
        }
    }

    /// Takes no more requests, until [`Lane::stop`] asks for the end of those that it has.
    pub(crate) fn hold(&mut self) {
        self.stay();
        if self.draining.is_none() {
            self.drain(Draining::Hold);
        }
    }

    /// Takes no more requests, and leaves for another thread once no operation is in progress;
    /// unless another action is due then.
    pub(crate) fn move_to(&mut self, thread: usize) {
        self.draining.get_or_insert(Draining::Move(thread));
    }

    /// Does not move, if it was going to.
    pub(crate) fn stay(&mut self) {
        if matches!(self.draining, Some(Draining::Move(_))) {
            self.draining = None;
        }
    }

    /// Leaves its thread.
    pub(crate) fn departs(&mut self, uring: &mut Uring) {
        self.stay();
        self.unwatch(uring);
    }

    /// Comes to a thread: `place`, `token` and `uring` are as in [`Lane::new`]. Events of the
    /// meantime are found there: the thread looks at the ring before it sleeps, and written
    /// descriptors are readable still.
    pub(crate) fn arrives(&mut self, place: u16, token: u32, uring: &mut Uring) {
        self.token = token;
        self.queue.move_to(place, uring);
        self.watch(uring);
        self.after_sleep();
        self.poll_channel(uring, Instant::now());
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
        // For completions while there was none, or while the old one had lost its reader.
        self.write_call();
    }

    pub(crate) fn set_log(&mut self, log: Option<Arc<vlane_memory::DirtyLog>>, ring: Option<u64>) {
        self.queue.set_log(log, ring);
    }

    pub(crate) fn set_write_through(&mut self, on: bool) {
        self.channel.set_write_through(on);
        self.defaults = Decisions { class: self.defaults.class, ..self.channel.defaults() };
        if self.defaults.durable {
            // The guest is not going to flush what is under way.
            self.decisions.iter_mut().for_each(|decisions| decisions.durable = true);
        }
    }

    pub(crate) fn set_sectors(&mut self, sectors: u64) {
        self.sectors = sectors;
    }

    /// Sets or removes the recorder of every request from now on.
    pub(crate) fn set_recorder(&mut self, recorder: Option<Box<Recorder>>) {
        self.observers.set_recorder(recorder, self.queue.config().size, self.queue.in_flight());
    }

    /// Takes the recorder out, for the lane that comes next.
    pub(crate) fn take_recorder(&mut self) -> Option<Box<Recorder>> {
        self.observers.take_recorder()
    }

    /// Sets or removes the vCPU scheduler's hint from now on.
    pub(crate) fn set_hint(&mut self, hint: Option<Box<LaneHint>>) {
        self.observers.set_hint(hint);
    }

    /// Drops an ended operation without a receiver: the process has died.
    #[cfg(vlane_simulated)]
    pub(crate) fn abandon(&mut self, finished: vlane_io::Finished) {
        let _ = self.queue.finish(finished);
    }

    /// Takes the hint out, for the lane that comes next.
    pub(crate) fn take_hint(&mut self) -> Option<Box<LaneHint>> {
        self.observers.take_hint()
    }

    /// Does what waits for the last request in flight, if it was that.
    #[inline]
    pub(crate) fn settle(&mut self) -> Settled {
        if self.draining.is_none() { Settled::Stays } else { self.drained() }
    }

    #[cold]
    fn drained(&mut self) -> Settled {
        // Its ring has all answers, for any next server.
        self.show_coalesced();
        if let Some(Draining::Move(to)) = self.draining {
            return if self.queue.under_way() == 0 { Settled::Leaves(to) } else { Settled::Stays };
        }
        let is_idle = match self.is_suspending() {
            true => self.begun.requests == 0,
            false => {
                self.queue.in_flight() == self.parked.len()
                    && (self.broken || !self.queue.is_replaying())
            }
        };
        if !is_idle {
            return Settled::Stays;
        }
        match self.draining.take() {
            Some(Draining::Hold) => {
                // The end may not come, if another lane's storage hangs: the ring's next server
                // finds it in order.
                self.queue.leave_place();
                self.draining = Some(Draining::Hold);
                Settled::Stays
            }
            Some(Draining::Stop(reply) | Draining::Suspend(reply)) => self.stops(&reply),
            Some(Draining::TryStop(stop, reply)) if stop.fulfil() => self.stops(&reply),
            Some(Draining::Memory(memory, reply)) => {
                let _ = reply.send(self.queue.set_memory(memory).map_err(LaneError::Queue));
                Settled::Stays
            }
            Some(Draining::Exit) => {
                self.store_counters();
                Settled::Ends
            }
            // ... or cancelled: it continues.
            Some(Draining::Move(_) | Draining::TryStop(..)) | None => Settled::Stays,
        }
    }

    fn stops(&mut self, reply: &Sender<Option<Stopped>>) -> Settled {
        for slot in std::mem::take(&mut self.parked) {
            self.observers.put_back(slot);
        }
        self.queue.leave_place();
        self.store_counters();
        let counters = self.counters.since(&self.counted_before);
        let _ = reply.send(Some(Stopped { base: self.queue.base(), counters }));
        Settled::Ends
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
        f.debug_struct("Lane")
            .field("index", &self.index)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
