//! One lane: a virtqueue, its way into the storage, and what control has asked of it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use vlane_engine::{Channel, Engine, EngineError, Outcome, Uring};
use vlane_hint::LaneHint;
use vlane_ring::{Broken, GuestMemory, Kind, Queue, Request, Slot, Status, probes};

use crate::call::Call;
use crate::counters::{Counters, Snapshot};
use crate::error::{LaneError, Stopped};
use crate::mail::{Listener, Teller, news};
use crate::pace::Pace;
use crate::recorder::{CLOCK_EVERY, Recorder};
use crate::sync::Wake;
use crate::watch::{Watch, Watched};

/// Requests that one lane takes before another lane of the thread has its turn.
const BUDGET: usize = 128;
/// Operations that go to the kernel together. A device that gets thirty-two at once also answers them at once, and then
/// waits for the guest; with a few at a time both always have something to do.
const SUBMIT_AFTER: usize = 4;
/// Answers that a guest gets together when it was asleep at the last one.
const SHOW_AFTER_WAKE: usize = 8;

/// What makes a lane.
#[derive(Debug)]
pub struct LaneConfig {
    /// The virtqueue.
    pub queue: Queue,
    /// The volume's storage.
    pub engine: Arc<dyn Engine>,
    /// Written by the guest when it wants to be served; none: the lane looks by itself, all the time.
    pub kick: Option<OwnedFd>,
    /// To be written when the guest wants to be signalled.
    pub call: Option<OwnedFd>,
    /// The answer to GET_ID: at most 20 bytes.
    pub serial: [u8; 20],
    /// Answer writes only when they are durable.
    pub write_through: bool,
    /// Where the lane counts.
    pub counters: Arc<Counters>,
    /// Where the lane tells what it cannot deal with.
    pub events: EventSender,
    /// Where the lane writes down what the storage has to answer; none for storage that cannot hang.
    pub watch: Option<Arc<Watch>>,
}

/// Something that the session must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneEvent {
    /// The driver broke the rules; the lane takes no more requests.
    Broken {
        /// The queue's index.
        index: u16,
        /// Which rule.
        reason: Broken,
    },
    /// Its thread ended by a fault of its own. What was in flight is not answered, and nobody knows how far it came.
    Lost {
        /// The queue's index.
        index: u16,
    },
}

/// Carries events from lanes to their session.
#[derive(Debug, Clone)]
pub struct EventSender(Teller<LaneEvent>);

/// The session's end.
#[derive(Debug)]
pub struct EventReceiver(Listener<LaneEvent>);

/// A channel for lane events that can be waited for together with other descriptors.
///
/// # Errors
/// When the system gives no eventfd.
pub fn event_channel() -> io::Result<(EventSender, EventReceiver)> {
    let (teller, listener) = news(Wake::new()?);
    Ok((EventSender(teller), EventReceiver(listener)))
}

impl EventSender {
    fn send(&self, event: LaneEvent) {
        self.0.send(event);
    }
}

impl EventReceiver {
    /// Readable when there is an event.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.0.wake().fd()
    }

    /// The next event, without waiting. Call until there is none.
    pub fn next(&self) -> Option<LaneEvent> {
        self.0.next()
    }
}

/// What became of a lane's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// There were none.
    Nothing,
    /// The guest can see them, and is looking.
    Answers,
    /// The guest can see them, and was signalled.
    Signalled,
}

/// What a lane does once nothing is in flight.
enum Draining {
    /// Wait for one of the others.
    Hold,
    Stop(Sender<Option<Stopped>>),
    Memory(Arc<GuestMemory>, Sender<Result<(), LaneError>>),
    /// The thread ends.
    Exit,
}

pub(crate) struct Lane {
    pub(crate) index: u16,
    pub(crate) token: u32,
    queue: Queue,
    channel: Box<dyn Channel>,
    pub(crate) kick: Option<OwnedFd>,
    call: Option<Call>,
    serial: [u8; 20],
    sectors: u64,
    read_only: bool,
    events: EventSender,
    shared_counters: Arc<Counters>,
    counters: Snapshot,
    /// What was counted before this lane was made.
    counted_before: Snapshot,
    draining: Option<Draining>,
    broken: bool,
    /// Answers that the guest has not been shown.
    unpublished: usize,
    has_answered: bool,
    done: Vec<(Slot, Status)>,
    /// Told of every request, if somebody wants to know.
    recorder: Option<Box<Recorder>>,
    /// Tells the vCPU scheduler, if there is one.
    hint: Option<Box<LaneHint>>,
    /// Whether there is any of the two: one branch for both per request.
    is_observed: bool,
    watched: Option<Watched>,
    pub(crate) pace: Pace,
}

impl Lane {
    pub(crate) fn new(
        index: u16,
        number: u16,
        token: u32,
        config: LaneConfig,
        uring: &mut Uring,
    ) -> Result<Lane, EngineError> {
        let LaneConfig { mut queue, engine, kick, call, serial, write_through, counters, events, watch } =
            config;
        let geometry = engine.geometry();
        let counted_before = counters.snapshot();
        let watched = watch.map(|watch| Watched::new(watch, index, queue.config().size));
        let mut channel = engine.channel(uring, number, queue.config().size)?;
        channel.set_write_through(write_through);
        queue.disable_notify();
        queue.set_index(index);
        let lane = Lane {
            index,
            token,
            queue,
            channel,
            kick,
            call: call.map(Call::new),
            serial,
            sectors: geometry.sectors,
            read_only: geometry.read_only,
            events,
            shared_counters: counters,
            counters: counted_before,
            counted_before,
            draining: None,
            broken: false,
            unpublished: 0,
            has_answered: false,
            done: Vec::new(),
            recorder: None,
            hint: None,
            is_observed: false,
            watched,
            pace: Pace::new(),
        };
        // An interrupt may have been lost with the back end that was here before: one more does no harm.
        lane.write_call();
        Ok(lane)
    }

    /// Takes what the guest has made available; says whether there was anything.
    ///
    /// With `show_early`, answers that the storage gives at once are shown to the guest at once: it works on the first
    /// ones while the lane goes on with the others, and need not fall asleep between two batches. A guest that had
    /// to be woken gets the next ones together: waking it for each would cost it more than it gains.
    #[inline]
    pub(crate) fn serve(&mut self, uring: &mut Uring, show_early: bool) -> bool {
        if self.broken || self.draining.is_some() {
            return false;
        }
        if let Some(hint) = &mut self.hint {
            // While nobody wants to know, requests are not looked at one by one.
            self.is_observed = self.recorder.is_some() || hint.is_armed();
            if hint.is_pending() && self.queue.has_available() {
                hint.submitted();
            }
        }
        let (mut taken, mut show_after) = (0, self.pace.show_after());
        // Everything that there was is answered: what comes next is the guest's answer to that.
        let mut is_all_shown = false;
        while taken < BUDGET {
            let slot = match self.queue.pop() {
                Ok(Some(slot)) => slot,
                Ok(None) => break,
                Err(reason) => {
                    self.break_down(reason);
                    break;
                }
            };
            taken += 1;
            if is_all_shown && let Some(hint) = &mut self.hint {
                hint.submitted();
            }
            is_all_shown = false;
            if self.recorder.is_some() && taken.is_multiple_of(CLOCK_EVERY) {
                self.end_batch(true);
            }
            if uring.unsubmitted() >= SUBMIT_AFTER {
                // An error comes again at the end of the round, and is dealt with there.
                let _ = uring.submit();
            }
            if let Some(status) = self.begin(uring, slot) {
                self.complete(slot, status);
                if show_early && self.unpublished >= show_after {
                    is_all_shown = self.hint.is_some() && !self.queue.has_available();
                    let woke = self.publish() == Shown::Signalled;
                    show_after = self.pace.show_after().max(if woke { SHOW_AFTER_WAKE } else { 1 });
                }
            }
        }
        // Before the answers are shown: what the guest does because of one is later.
        self.end_batch(false);
        self.publish();
        self.pace.took(taken);
        if taken > 0 {
            probes::batch_taken(self.index, taken);
        }
        taken > 0
    }

    /// Answers one request.
    #[inline]
    fn complete(&mut self, slot: Slot, status: Status) {
        if self.is_observed {
            self.observe(slot, status);
        }
        if let Some(watched) = &self.watched {
            watched.end(slot);
        }
        self.queue.complete(slot, status);
        self.unpublished += 1;
    }

    /// Tells those who want to know that a request was answered.
    fn observe(&mut self, slot: Slot, status: Status) {
        let request = self.queue.request(slot);
        if let Some(recorder) = &mut self.recorder {
            recorder.complete(slot, request, status);
        }
        if let Some(hint) = &mut self.hint {
            hint.completed(request);
        }
    }

    /// For the recorder: some requests were begun, or answered, together.
    #[inline]
    pub(crate) fn end_batch(&mut self, goes_on: bool) {
        if let Some(recorder) = &mut self.recorder {
            recorder.end_batch(goes_on);
        }
    }

    /// Begins one request; returns its answer if it has one already.
    #[inline]
    fn begin(&mut self, uring: &mut Uring, slot: Slot) -> Option<Status> {
        let request = self.queue.request(slot);
        if let Some(recorder) = &mut self.recorder {
            recorder.begin(slot, request);
        }
        // Counted once it is known that it is not refused.
        match request.kind() {
            Kind::In if request.fits(self.sectors) => {
                self.counters.reads += 1;
                self.counters.read_bytes += request.len();
            }
            Kind::Out if !self.read_only && request.fits(self.sectors) => {
                self.counters.writes += 1;
                self.counters.written_bytes += request.len();
            }
            Kind::Flush => self.counters.flushes += 1,
            Kind::Discard | Kind::WriteZeroes if !self.read_only && request.fits(self.sectors) => {
                self.counters.others += 1;
            }
            Kind::GetId => {
                self.counters.others += 1;
                request.fill(&self.serial);
                return Some(Status::Ok);
            }
            Kind::Refused(status) => return Some(self.refuse(status)),
            _ => return Some(self.refuse(Status::IoErr)),
        }
        if let Some(watched) = &mut self.watched {
            watched.begin(slot, request);
        }
        probes::request_submit(request);
        match self.channel.submit(uring, slot, request) {
            Outcome::Done(status) => Some(status),
            Outcome::Pending => None,
        }
    }

    #[cold]
    fn refuse(&mut self, status: Status) -> Status {
        self.counters.refused += 1;
        status
    }

    /// The uring has a result for one of this lane's requests.
    #[inline]
    pub(crate) fn completed(&mut self, uring: &mut Uring, slot: Slot, result: i32) {
        let request: &Request = self.queue.request(slot);
        if let Some(status) = self.channel.completed(uring, slot, request, result) {
            self.complete(slot, status);
        }
    }

    /// Collects what the storage answered without the uring; says whether there was anything.
    pub(crate) fn poll_channel(&mut self, now: Instant) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.channel.poll(now, &mut done);
        let any = !done.is_empty();
        for (slot, status) in done.drain(..) {
            self.complete(slot, status);
        }
        self.done = done;
        any
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.channel.deadline()
    }

    /// Shows the guest the answers that it has not seen, and signals it if it wants to be.
    #[inline]
    pub(crate) fn publish(&mut self) -> Shown {
        if self.unpublished == 0 {
            return Shown::Nothing;
        }
        self.unpublished = 0;
        self.has_answered = true;
        if let Some(recorder) = &mut self.recorder {
            recorder.published();
        }
        let signals = self.queue.publish();
        if let Some(hint) = &mut self.hint {
            // First of all: when the interrupt comes, the vCPU is to run already.
            hint.shown(signals);
        }
        if !signals {
            return Shown::Answers;
        }
        self.counters.signals += 1;
        probes::signal(self.index);
        self.write_call();
        Shown::Signalled
    }

    /// Whether the guest was shown an answer since this was asked last.
    pub(crate) fn take_answered(&mut self) -> bool {
        std::mem::take(&mut self.has_answered)
    }

    /// Makes public what was counted; once a round.
    pub(crate) fn store_counters(&mut self) {
        self.counters.take_channel(&self.channel.stats(), &self.counted_before);
        self.shared_counters.publish(&self.counters);
    }

    fn write_call(&self) {
        if let Some(call) = &self.call {
            call.signal();
        }
    }

    /// Whether the guest has made something available since the last look.
    #[inline]
    pub(crate) fn has_work(&mut self) -> bool {
        !self.broken && self.draining.is_none() && self.queue.has_available()
    }

    /// Before sleeping: asks for kicks. Returns whether there is work after all.
    pub(crate) fn before_sleep(&mut self) -> bool {
        if self.broken || self.draining.is_some() {
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
        self.pace.slept();
        if !self.broken && self.draining.is_none() {
            self.queue.disable_notify();
        }
    }

    pub(crate) fn count_kick(&mut self) {
        self.counters.kicks += 1;
        probes::kick(self.index);
    }

    #[cold]
    fn break_down(&mut self, reason: Broken) {
        self.broken = true;
        self.events.send(LaneEvent::Broken { index: self.index, reason });
    }

    pub(crate) fn stop(&mut self, reply: Sender<Option<Stopped>>) {
        self.draining = Some(Draining::Stop(reply));
    }

    /// Takes no more requests, and goes once those in flight are answered.
    pub(crate) fn exit(&mut self) {
        if matches!(self.draining, None | Some(Draining::Hold)) {
            self.draining = Some(Draining::Exit);
        }
    }

    /// Takes no more requests, until [`Lane::stop`] asks for the end of those that it has.
    pub(crate) fn hold(&mut self) {
        self.draining.get_or_insert(Draining::Hold);
    }

    pub(crate) fn set_memory(
        &mut self,
        memory: Arc<GuestMemory>,
        drain: bool,
        reply: Sender<Result<(), LaneError>>,
    ) {
        if drain {
            self.draining = Some(Draining::Memory(memory, reply));
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
    }

    pub(crate) fn set_sectors(&mut self, sectors: u64) {
        self.sectors = sectors;
    }

    /// Tells a recorder of every request from now on, or nobody.
    pub(crate) fn set_recorder(&mut self, recorder: Option<Box<Recorder>>) {
        self.recorder = recorder;
        self.is_observed = self.recorder.is_some() || self.hint.is_some();
        if let Some(recorder) = &mut self.recorder {
            recorder.start(self.queue.config().size, self.queue.in_flight());
        }
    }

    /// Takes the recorder out, for the lane that comes next.
    pub(crate) fn take_recorder(&mut self) -> Option<Box<Recorder>> {
        self.end_batch(false);
        self.recorder.take()
    }

    /// Tells the vCPU scheduler of what completes from now on, or nobody.
    pub(crate) fn set_hint(&mut self, hint: Option<Box<LaneHint>>) {
        self.hint = hint;
        self.is_observed = self.recorder.is_some() || self.hint.is_some();
    }

    /// Takes the hint out, for the lane that comes next.
    pub(crate) fn take_hint(&mut self) -> Option<Box<LaneHint>> {
        let mut hint = self.hint.take()?;
        hint.forget();
        Some(hint)
    }

    pub(crate) fn watch(&self, uring: &mut Uring) {
        if let Some(kick) = &self.kick {
            uring.watch(kick.as_fd(), self.token);
        }
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
