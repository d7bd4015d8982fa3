//! One lane: a virtqueue, its way into the storage, and the four steps of a request. The lane
//! **takes** it out of the ring, **decides** its treatment, **begins** it when there is room, and
//! **completes** it.

mod classes;
mod coalescing;
mod control;
mod events;
mod limits;
mod order;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use vlane_engine::{Channel, Decisions, Engine, EngineError, Operation, Outcome, PART, Taken};
use vlane_io::{Finished, InflightQueue, Instant, Uring};
use vlane_policy::express::{Class, Express, Mode};
use vlane_ring::{Queue, Request, RequestKind, Slot, Status};

use crate::call::Call;
use crate::classes::ClassBoard;
use crate::counters::{Counters, Snapshot};
use crate::limits::LaneLimits;
use crate::lists::{Links, List, Waiting};
use crate::observers::Observers;
use crate::pending::PendingRequests;

use classes::LaneClasses;
use control::Draining;
pub(crate) use control::Settled;
pub use events::{EventReceiver, EventSender, LaneEvent, event_channel};

/// Requests that one lane takes before another lane of the thread has its turn.
const BUDGET: usize = 128;
/// Bytes of requests that the storage may answer at once, by copying, before another lane has its
/// turn.
const BUDGET_BYTES: u64 = 32 << 20;
/// The most that a lane has begun and not answered. Beyond any of the two it begins no request.
#[cfg(not(vlane_simulated))]
const MOST_BEGUN: Load = Load { requests: 1024, bytes: 64 << 20, others: 0 };
/// The simulator's disk is small.
#[cfg(vlane_simulated)]
const MOST_BEGUN: Load = Load { requests: 1024, bytes: 12 << 10, others: 0 };
/// Bytes that one request counts there at most. A larger one is worked on in parts, one after the
/// other, and leaves room for others. No more than four large ones are begun: a queue that ends may
/// have to wait for each.
const SHARE: u64 = MOST_BEGUN.bytes / 4;
/// The most that a lane takes, and decides on, while there is no room to begin it.
const MOST_AHEAD: Load = Load { requests: 64, bytes: 64 << 20, others: 0 };
/// Operations that go to the kernel together. A device that gets thirty-two at once also answers
/// them at once, and then waits for the guest. With a few at a time both always have work.
const SUBMIT_AFTER: usize = 4;
/// Answers that a guest gets together when it was asleep at the last one.
const SHOW_AFTER_WAKE: usize = 8;

/// A lane's configuration.
#[derive(Debug)]
pub struct LaneConfig {
    /// The virtqueue.
    pub queue: Queue,
    /// The volume's storage.
    pub engine: Arc<dyn Engine>,
    /// Written by the guest when it wants to be served; none: the lane looks by itself, all the
    /// time.
    pub kick: Option<OwnedFd>,
    /// To be written when the guest wants to be signalled.
    pub call: Option<OwnedFd>,
    /// The answer to GET_ID: at most 20 bytes.
    pub serial: [u8; 20],
    /// Answer writes only when they are durable.
    pub write_through: bool,
    /// The lane's counters.
    pub counters: Arc<Counters>,
    /// The receiver of events that the lane cannot deal with.
    pub events: EventSender,
    /// The storage's due answers, noted by the lane; none for storage that cannot
    /// hang.
    pub watch: Option<Arc<PendingRequests>>,
    /// The volume's treatment of its requests' priorities.
    pub express: Express,
    /// The facts that the volume's lanes publish; with none, the lane is alone.
    pub classes: Option<Arc<ClassBoard>>,
}

/// A number of requests, and of the bytes that they move.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    requests: usize,
    /// The sum of their bytes, of each at most [`SHARE`].
    bytes: u64,
    /// The requests that move no data: flushes, and discards and zeroings, for which the channel
    /// has a limit.
    others: usize,
}

/// The reason why a request has no operation in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idle {
    /// The lane has not begun it.
    NotBegun,
    /// It continues after the lane's other work.
    Continues,
    /// It waits in the channel.
    InChannel,
}

pub(crate) struct Lane {
    pub(crate) index: u16,
    pub(crate) token: u32,
    queue: InflightQueue,
    channel: Box<dyn Channel>,
    /// The channel's operations for the storage; empty between two calls.
    operations: Vec<Operation>,
    /// By slot.
    decisions: Box<[Decisions]>,
    /// Default decisions, used when no policy applies.
    defaults: Decisions,
    /// The last request's priority; and the state of classes, if the volume has them.
    ioprio: u32,
    classes: Option<Box<LaneClasses>>,
    /// ... and looks at requests that come to the device or leave it.
    tracks: bool,
    links: Links,
    /// Taken and not begun; and the weight of these requests.
    waiting: Waiting,
    ahead: Load,
    /// The lane's part in the volume's limits, if it has any.
    limits: Option<Box<LaneLimits>>,
    /// The next request to begin is the next of the ring: none waits, classes are not mixed, and
    /// there are no limits.
    is_plain: bool,
    /// Requests that have begun, and that continue after the lane's other work.
    continuing: List,
    /// Begun, and given up for an end that may be called off: they stay in flight, or are begun
    /// again.
    parked: Vec<Slot>,
    /// Begun and not answered.
    begun: Load,
    sectors: u64,
    read_only: bool,
    serial: [u8; 20],
    /// Answers that the guest has not been shown, and those that wait for others.
    unshown: usize,
    pub(crate) coalesced: usize,
    has_answered: bool,
    /// The counters have changed since they were stored.
    is_touched: bool,
    counters: Snapshot,
    observers: Observers,
    pub(crate) kick: Option<OwnedFd>,
    call: Option<Call>,
    draining: Option<Draining>,
    broken: bool,
    /// A request outside of guest memory was reported.
    has_told_hole: bool,
    ready: Vec<Slot>,
    events: EventSender,
    shared_counters: Arc<Counters>,
    /// The counts before this lane was made.
    counted_before: Snapshot,
}

impl Lane {
    /// `place` is the lane's in its thread; `token` and the next number are those of its wake-ups.
    pub(crate) fn new(
        index: u16,
        place: u16,
        token: u32,
        config: LaneConfig,
        uring: &mut Uring,
    ) -> Result<Lane, EngineError> {
        let classes =
            LaneClasses::new(config.express, config.classes, index, config.queue.config().size);
        let LaneConfig {
            mut queue,
            engine,
            kick,
            call,
            serial,
            write_through,
            counters,
            events,
            watch,
            ..
        } = config;
        // Of a request without a priority.
        let class = classes.as_ref().map_or(Class::Normal, |classes| classes.class_of(0));
        let geometry = engine.geometry();
        let counted_before = counters.snapshot();
        let slots = queue.config().size;
        let mut channel = engine.channel(slots)?;
        channel.set_write_through(write_through);
        channel.set_mode(classes.as_ref().map_or(Mode::Off, |classes| classes.mode()));
        queue.disable_notify();
        queue.set_index(index);
        let queue = InflightQueue::new(queue, place, channel.files(), uring);
        let lane = Lane {
            index,
            token,
            queue,
            operations: Vec::with_capacity(4),
            decisions: vec![Decisions::default(); usize::from(slots)].into_boxed_slice(),
            defaults: Decisions { class, ..channel.defaults() },
            ioprio: 0,
            classes,
            tracks: false,
            channel,
            links: Links::new(slots),
            waiting: Waiting::EMPTY,
            ahead: Load::default(),
            limits: None,
            is_plain: true,
            continuing: List::EMPTY,
            parked: Vec::new(),
            begun: Load::default(),
            sectors: geometry.sectors,
            read_only: geometry.read_only,
            serial,
            unshown: 0,
            coalesced: 0,
            has_answered: false,
            is_touched: true,
            counters: counted_before,
            observers: Observers::new(index, slots, watch),
            kick,
            call: call.map(Call::new),
            draining: None,
            broken: false,
            has_told_hole: false,
            ready: Vec::new(),
            events,
            shared_counters: counters,
            counted_before,
        };
        // An interrupt may have been lost with the back end that was here before: one more does no
        // harm.
        lane.write_call();
        Ok(lane)
    }

    /// One turn: continues begun requests, takes the guest's new ones, and begins those that have
    /// room. Returns true if there was any work.
    ///
    /// With `show_early`, answers that the storage gives at once are shown to the guest at once. It
    /// works on the first ones while the lane continues with the others, and need not fall asleep
    /// between two batches. A guest that had to be woken gets the next ones together: waking it for
    /// each would cost it more than it gains.
    #[inline]
    pub(crate) fn serve(&mut self, uring: &mut Uring, show_early: bool) -> bool {
        if self.classes.is_some() {
            return self.serve_classes(uring, show_early);
        }
        self.serve_turn::<false>(uring, show_early)
    }

    /// `CLASSES` is true if the volume has classes: without them, a request has no cost for that.
    #[inline(always)]
    fn serve_turn<const CLASSES: bool>(&mut self, uring: &mut Uring, show_early: bool) -> bool {
        let mut worked = !self.continuing.is_empty() && self.go_on_with_a_part(uring);
        self.observers
            .turn_begins(|| !self.broken && self.draining.is_none() && self.queue.has_available());
        let (mut left, mut bytes, mut show_after) = (BUDGET, BUDGET_BYTES, 1);
        while left > 0 && bytes > 0 && self.has_room() {
            let Some(slot) = self.next::<CLASSES>() else { break };
            left -= 1;
            if uring.unsubmitted() >= SUBMIT_AFTER {
                // An error comes again at the end of the round, and is dealt with there.
                let _ = uring.submit();
            }
            let len = self.queue.request(slot).len();
            let Some(status) = self.begin::<CLASSES>(uring, slot) else { continue };
            bytes = bytes.saturating_sub(len);
            self.answer(slot, status);
            if show_early && self.unshown >= show_after {
                self.observers.shown_early(|| !self.queue.has_available());
                show_after = if self.show() { SHOW_AFTER_WAKE } else { 1 };
            }
        }
        if left < BUDGET {
            worked = true;
            self.is_touched = true;
        }
        if !self.has_room() {
            self.waits_for_storage();
            self.take_ahead();
        }
        // Before the answers are shown: what the guest does because of one is later.
        worked |= self.observers.turn_ends() > 0;
        self.show();
        worked
    }

    /// The next request to begin: the first of those that wait, or the next of the ring.
    #[inline(always)]
    fn next<const CLASSES: bool>(&mut self) -> Option<Slot> {
        if self.is_plain {
            return self.take::<CLASSES>();
        }
        self.next_in_order()
    }

    /// Takes a request out of the ring and decides what is to happen to it.
    #[inline(always)]
    fn take<const CLASSES: bool>(&mut self) -> Option<Slot> {
        if self.takes_no_more() {
            return None;
        }
        match self.queue.take() {
            Ok(slot) => {
                let slot = slot?;
                let decisions = self.defaults;
                self.decisions[usize::from(slot.0)] = decisions;
                let request = self.queue.request(slot);
                if CLASSES && request.priority().0 != self.ioprio {
                    self.changes_priority(slot);
                } else {
                    self.observers.taken(slot, request, decisions.class);
                }
                Some(slot)
            }
            Err(reason) => {
                self.break_down(reason);
                None
            }
        }
    }

    /// Takes requests that cannot be begun yet: one of a better class is to go first when there is
    /// room.
    #[cold]
    fn take_ahead(&mut self) {
        while self.ahead.is_below(self.most_ahead()) && self.take_one_ahead() {}
    }

    #[inline(never)]
    fn take_one_ahead(&mut self) -> bool {
        let taken = if self.classes.is_some() { self.take::<true>() } else { self.take::<false>() };
        let Some(slot) = taken else { return false };
        if self.orders() {
            self.promotes(slot);
        }
        self.wait(slot);
        self.begins_to_wait(slot);
        true
    }

    fn wait(&mut self, slot: Slot) {
        let list = self.list_of(slot);
        self.waiting.push(&mut self.links, list, slot);
        self.ahead.add(self.queue.request(slot));
        self.is_plain = false;
    }

    #[cold]
    fn next_waiting(&mut self) -> Option<Slot> {
        let slot = self.waiting.pop(&self.links)?;
        self.ahead.remove(self.queue.request(slot));
        self.update_is_plain();
        Some(slot)
    }

    /// Returns true if another request may be begun.
    #[inline]
    fn has_room(&self) -> bool {
        self.begun.is_below(MOST_BEGUN)
    }

    /// Begins a request; returns its answer if it has one already.
    #[inline(always)]
    fn begin<const CLASSES: bool>(&mut self, uring: &mut Uring, slot: Slot) -> Option<Status> {
        let request = self.queue.request(slot);
        // Counted once it is known that it is not refused.
        match request.kind() {
            RequestKind::In if request.fits(self.sectors) => {
                self.counters.reads += 1;
                self.counters.read_bytes += request.len();
            }
            //= virtio 5.2.6.2
            //# A device MUST set the status byte to VIRTIO_BLK_S_IOERR for a write request if the
            //# VIRTIO_BLK_F_RO feature if offered, and MUST NOT write any data.
            RequestKind::Out if !self.read_only && request.fits(self.sectors) => {
                self.counters.writes += 1;
                self.counters.written_bytes += request.len();
            }
            RequestKind::Flush => self.counters.flushes += 1,
            RequestKind::Discard | RequestKind::WriteZeroes
                if !self.read_only && request.fits(self.sectors) =>
            {
                self.counters.others += 1;
            }
            RequestKind::GetId => {
                self.counters.others += 1;
                request.fill(&self.serial);
                return Some(Status::Ok);
            }
            RequestKind::Refused(status) => return Some(self.refuse(status)),
            RequestKind::Unreachable => return Some(self.refuse_unreachable(slot)),
            _ => return Some(self.refuse(Status::IoErr)),
        }
        self.observers.begun(slot, request);
        let taken = Taken { slot, request, decisions: self.decisions[usize::from(slot.0)] };
        let outcome = self.channel.begin(taken, &mut self.operations);
        if let Outcome::Done(status) = outcome {
            return Some(status);
        }
        // A second reading lets the copy above be one word.
        let decisions = self.decisions[usize::from(slot.0)];
        self.begun.add(request);
        if CLASSES && self.tracks {
            self.goes_to_device(slot, decisions.class);
        }
        if let Outcome::Whole(file) = outcome {
            if CLASSES && decisions.class.is_foreground() {
                self.begin_express(uring, slot, file);
            } else {
                self.queue.submit_whole(uring, slot, file, decisions.durable);
            }
            return None;
        }
        self.proceed(uring, slot, outcome)
    }

    /// A foreground request: it goes where the fewest are before it, if that pays.
    #[cold]
    #[inline(never)]
    fn begin_express(&mut self, uring: &mut Uring, slot: Slot, file: u8) {
        let durable = self.decisions[usize::from(slot.0)].durable;
        let hands_over = self.classes.as_ref().is_some_and(|classes| classes.mode().hands_over());
        match hands_over {
            true => self.queue.submit_express(uring, slot, file, durable),
            false => self.queue.submit_whole(uring, slot, file, durable),
        }
    }

    /// Does what the channel wants for a request; returns its answer if it has one.
    #[inline]
    fn proceed(&mut self, uring: &mut Uring, slot: Slot, outcome: Outcome) -> Option<Status> {
        match outcome {
            Outcome::Done(status) => return Some(status),
            Outcome::Whole(file) => {
                let durable = self.decisions[usize::from(slot.0)].durable;
                self.queue.submit_whole(uring, slot, file, durable);
            }
            _ if self.is_ending() && self.goes_back(slot, outcome) => {}
            Outcome::Pending => {
                self.operations
                    .iter_mut()
                    .for_each(|operation| self.queue.submit(uring, slot, operation));
                self.operations.clear();
            }
            Outcome::Continue => self.continuing.push(&mut self.links, slot),
        }
        None
    }

    /// The storage has a result for one of this lane's operations.
    #[inline]
    pub(crate) fn finished(&mut self, uring: &mut Uring, finished: Finished) {
        let Some((slot, completion)) = self.queue.finish(finished) else { return };
        self.is_touched = true;
        let request = self.queue.request(slot);
        let decisions = self.decisions[usize::from(slot.0)];
        let outcome = self.channel.finished(
            Taken { slot, request, decisions },
            completion,
            &mut self.operations,
        );
        if let Outcome::Done(status) = outcome {
            self.answer_begun(slot, status);
        } else if let Some(status) = self.proceed(uring, slot, outcome) {
            self.answer_begun(slot, status);
        }
    }

    /// Continues a request that its channel named.
    pub(crate) fn go_on(&mut self, uring: &mut Uring, slot: Slot) {
        self.is_touched = true;
        let request = self.queue.request(slot);
        if !request.is_in_flight() {
            return;
        }
        let decisions = self.decisions[usize::from(slot.0)];
        let outcome = self.channel.go_on(Taken { slot, request, decisions }, &mut self.operations);
        if let Some(status) = self.proceed(uring, slot, outcome) {
            self.answer_begun(slot, status);
        }
    }

    /// Continues the next request in parts by one, which may take some milliseconds.
    #[cold]
    fn go_on_with_a_part(&mut self, uring: &mut Uring) -> bool {
        let next = self.continuing.pop(&self.links);
        next.inspect(|slot| self.go_on(uring, *slot)).is_some()
    }

    /// Collects the storage's completions; returns true if there were any.
    pub(crate) fn poll_channel(&mut self, uring: &mut Uring, now: Instant) -> bool {
        let mut ready = std::mem::take(&mut self.ready);
        self.channel.poll(now, &mut ready);
        let any = !ready.is_empty();
        for slot in ready.drain(..) {
            self.go_on(uring, slot);
        }
        self.ready = ready;
        any
    }

    /// Answers a request that was begun before.
    #[inline]
    fn answer_begun(&mut self, slot: Slot, status: Status) {
        let coalesces = self.tracks && self.leaves_device(slot, true);
        self.begun.remove(self.queue.request(slot));
        self.answer(slot, status);
        if coalesces {
            self.unshown -= 1;
            self.coalesced += 1;
        }
    }

    /// Answers a request.
    #[inline]
    fn answer(&mut self, slot: Slot, status: Status) {
        let decisions = &self.decisions;
        let class = || decisions[usize::from(slot.0)].class;
        self.observers.answered(slot, self.queue.request(slot), status, class);
        self.queue.answer(slot, status);
        self.unshown += 1;
    }

    /// The same, if none of its operations is in progress. A discard that a thread does cannot be
    /// called back, and would hit what is written next.
    #[cold]
    fn goes_back(&mut self, slot: Slot, outcome: Outcome) -> bool {
        let is_under_way = outcome == Outcome::Pending
            && self.operations.is_empty()
            && self.queue.request(slot).kind() == RequestKind::Discard;
        !is_under_way && self.put_back(slot)
    }

    /// Gives up a large request, or a discard or zeroing, that is half done, so that no thread need
    /// stay for it. The next server of the ring does all of it again. It stays in flight where the
    /// next server knows what is. Elsewhere it is put back into its ring. That is possible if it
    /// was taken last, but for requests that wait behind it: these are put back first. If another
    /// one behind it has begun, it continues to its end.
    #[cold]
    fn put_back(&mut self, slot: Slot) -> bool {
        let request = self.queue.request(slot);
        let load = Load::of(request);
        let class = self.decisions[usize::from(slot.0)].class;
        let demand = self.limits.as_ref().map(|limits| limits.demand(request, class));
        let is_long = request.len() > PART || is_range(request);
        let stays = self.stays_in_flight();
        if !is_long || !(stays || self.queue.put_back(slot)) {
            return false;
        }
        self.leaves_device(slot, false);
        self.begun.requests -= load.requests;
        self.begun.bytes -= load.bytes;
        self.begun.others -= load.others;
        self.operations.clear();
        self.channel.forget(slot);
        if let (Some(limits), Some(demand)) = (&self.limits, demand) {
            limits.refund(demand);
        }
        if stays && !self.is_suspending() {
            self.parked.push(slot);
        } else {
            self.observers.put_back(slot);
        }
        true
    }

    /// Returns begun requests without an operation in progress, each with the reason.
    fn idle(&mut self) -> Vec<(Slot, Idle)> {
        let continuing = std::iter::from_fn(|| self.continuing.pop(&self.links))
            .map(|slot| (slot, Idle::Continues));
        let mut idle: Vec<(Slot, Idle)> = continuing.collect();
        let mut waiting = Vec::new();
        self.channel.waiting(&mut waiting);
        idle.extend(waiting.into_iter().map(|slot| (slot, Idle::InChannel)));
        idle
    }

    /// Puts requests that were not begun back into the ring, as far as none that was taken after
    /// them was begun. It does the same with begun ones without an operation in progress, as far as
    /// [`Lane::put_back`] does.
    fn put_back_waiting(&mut self) {
        let waiting =
            std::iter::from_fn(|| self.next_waiting()).map(|slot| (slot, Idle::NotBegun, false));
        let mut slots: Vec<(Slot, Idle, bool)> = waiting.collect();
        slots.extend(self.idle().into_iter().map(|(slot, idle)| (slot, idle, false)));
        // The last one taken goes first. A queue may have 32,768 of them, so there is no search.
        let mut youngest_first: Vec<usize> = (0..slots.len()).collect();
        youngest_first.sort_unstable_by_key(|at| self.queue.taken_since(slots[*at].0));
        for at in youngest_first {
            let (slot, idle, is_gone) = &mut slots[at];
            *is_gone = match idle {
                Idle::NotBegun => self.queue.put_back(*slot),
                Idle::Continues | Idle::InChannel => self.put_back(*slot),
            };
            if *is_gone && *idle == Idle::NotBegun {
                self.observers.put_back(*slot);
            }
        }
        for (slot, idle, _) in slots.into_iter().filter(|(.., is_gone)| !is_gone) {
            match idle {
                Idle::NotBegun => self.wait(slot),
                Idle::Continues => self.continuing.push(&mut self.links, slot),
                Idle::InChannel => {}
            }
        }
    }

    #[cold]
    fn refuse(&mut self, status: Status) -> Status {
        self.counters.refused += 1;
        status
    }

    #[cold]
    fn refuse_unreachable(&mut self, slot: Slot) -> Status {
        if let Some(hole) = self.queue.request(slot).hole()
            && !std::mem::replace(&mut self.has_told_hole, true)
        {
            self.events.send(LaneEvent::Unreachable { index: self.index, hole });
        }
        self.refuse(Status::IoErr)
    }

    /// The end of a round: shows and counts its answers; returns true if the guest was shown one.
    /// Has no effect on an idle lane.
    #[inline]
    pub(crate) fn round_ends(&mut self) -> bool {
        if !std::mem::take(&mut self.is_touched) {
            return false;
        }
        self.observers.end_batch();
        self.show();
        self.store_counters();
        std::mem::take(&mut self.has_answered)
    }

    /// Shows the guest the answers that it has not seen, and signals it if it wants to be; returns
    /// true if it was.
    #[inline]
    fn show(&mut self) -> bool {
        if self.unshown == 0 {
            return false;
        }
        (self.unshown, self.coalesced) = (0, 0);
        self.has_answered = true;
        let signals = self.observers.shown(|| self.queue.show());
        if signals {
            self.counters.signals += 1;
            self.write_call();
        }
        signals
    }

    /// The time when the lane can continue by itself: its channel's deadline, its part of the
    /// limits, or the end of coalescing.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let has_others = self.limits.is_some() || self.coalesced > 0;
        if has_others { self.first_deadline() } else { self.channel_deadline() }
    }

    #[inline]
    fn channel_deadline(&self) -> Option<Instant> {
        if self.begun.requests == 0 { None } else { self.channel.deadline() }
    }

    /// Returns true if there is work without a notification: a new request of the guest, or one
    /// that can continue.
    #[inline]
    pub(crate) fn has_work(&mut self) -> bool {
        !self.continuing.is_empty()
            || if self.is_plain {
                self.has_room() && !self.takes_no_more() && self.queue.has_available()
            } else {
                self.has_next_in_order()
            }
    }

    /// Returns true if it takes no more out of the ring, for now or for good. Requests that an
    /// earlier back end had in flight are not in the ring, and are done in any case.
    #[inline]
    fn takes_no_more(&self) -> bool {
        self.broken
            || (self.draining.is_some() && (self.is_suspending() || !self.queue.is_replaying()))
    }

    /// Has the uring tell of the guest's kick, and of the channel's doorbell.
    pub(crate) fn watch(&self, uring: &mut Uring) {
        self.watch_kick(uring);
        self.watch_doorbell(uring);
    }

    fn watch_kick(&self, uring: &mut Uring) {
        if let Some(kick) = &self.kick {
            uring.watch(kick.as_fd(), self.token);
        }
    }

    fn watch_doorbell(&self, uring: &mut Uring) {
        if let Some(doorbell) = self.channel.doorbell() {
            uring.watch(doorbell, self.token + 1);
        }
    }

    pub(crate) fn unwatch(&self, uring: &mut Uring) {
        if self.kick.is_some() {
            uring.unwatch(self.token);
        }
        if self.channel.doorbell().is_some() {
            uring.unwatch(self.token + 1);
        }
    }

    /// One of the two was written. Without `armed` it must be watched anew.
    pub(crate) fn woken(&mut self, uring: &mut Uring, token: u32, armed: bool) {
        if token == self.token {
            self.count_kick();
            if !armed {
                self.watch_kick(uring);
            }
        } else {
            if !armed {
                self.watch_doorbell(uring);
            }
            // off the data path: once for each ring of the doorbell.
            self.poll_channel(uring, Instant::now());
        }
    }
}

impl Load {
    #[inline]
    fn is_below(self, most: Load) -> bool {
        self.requests - self.others < most.requests && self.bytes < most.bytes
    }

    /// The weight of a request.
    #[inline]
    fn of(request: &Request) -> Load {
        match request.kind() {
            RequestKind::In | RequestKind::Out => {
                Load { requests: 1, bytes: request.len().min(SHARE), others: 0 }
            }
            _ => Load { requests: 1, bytes: 0, others: 1 },
        }
    }

    #[inline]
    fn add(&mut self, request: &Request) {
        let load = Load::of(request);
        self.requests += load.requests;
        self.bytes += load.bytes;
        self.others += load.others;
    }

    #[inline]
    fn remove(&mut self, request: &Request) {
        let load = Load::of(request);
        self.requests -= load.requests;
        self.bytes -= load.bytes;
        self.others -= load.others;
    }
}

/// True for a request that discards or zeroes.
#[inline]
fn is_range(request: &Request) -> bool {
    matches!(request.kind(), RequestKind::Discard | RequestKind::WriteZeroes)
}
