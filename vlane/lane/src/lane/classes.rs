//! Requests by class: the order of their turns, and their numbers at the device. See
//! `docs/src/express.md`.
//!
//! A lane of a volume without classes has none of this, and is compiled without it
//! ([`Lane::serve`]). While only one class is there, a request costs a comparison with the priority
//! of the one before it. While classes are mixed, the lane takes all requests of its ring. It
//! begins them in the order of the classes, as far as its window allows.

use std::sync::Arc;

use vlane_engine::Class;
use vlane_io::Uring;
use vlane_policy::express::window::{LaneMessage, Nanos, Turn};
use vlane_policy::express::{Each, Express, Ioprio, Mode, Turns, Window, inherits};
use vlane_ring::{RequestKind, Slot};

use super::{Draining, Lane, Load, MOST_AHEAD};
use crate::classes::{ClassBoard, kind};

/// While only one class is there, the requests of one turn of so many are timed.
const TIMED: u32 = 64;
/// ... and so many turns are published together.
const TOLD: u64 = 8;
/// The precision of the times at which classes were last seen.
const SEEN_EVERY: Nanos = 5_000_000;

/// In the time at which a request was begun: it is counted at the device in its class.
const COUNTED: Nanos = 1;

/// A lane's part in its volume's classes.
pub(crate) struct LaneClasses {
    express: Express,
    pub(super) board: Arc<ClassBoard>,
    index: usize,
    /// The present run of requests of one priority: where they are counted, and how many of this
    /// turn came before it.
    class: Class,
    kind: usize,
    run: usize,
    /// Its requests of earlier turns, and how many turns these were, one of which ended with a full
    /// ring.
    uncounted: u64,
    untold: u64,
    full: u64,
    /// The time at which each class was last published as seen.
    seen: [Nanos; 4],
    /// Classes are mixed: all requests are timed.
    pub(super) is_mixed: bool,
    turns: Turns,
    window: Window,
    /// While classes are mixed, at the device: express requests, promoted ones, and others.
    /// Requests begun before that are among the others.
    at_device: [u32; 3],
    /// Timed requests at the device; and the published number of all the others.
    timed_there: u32,
    told: u32,
    /// In this turn: begun, and answered since the last one.
    begun: u32,
    answered: u32,
    /// When answers that wait for others are shown.
    pub(super) coalesced_until: Nanos,
    /// By slot: when a request was taken, and begun; zero: that was not looked at.
    pub(super) taken_at: Box<[Nanos]>,
    begun_at: Box<[Nanos]>,
    /// Read once per turn, and once for the answers between two turns.
    clock: Nanos,
    is_stale: bool,
    timed: u32,
}

impl LaneClasses {
    pub(super) fn new(
        express: Express,
        board: Option<Arc<ClassBoard>>,
        index: u16,
        slots: u16,
    ) -> Option<Box<LaneClasses>> {
        if !express.mode.classifies() {
            return None;
        }
        let fits = |board: &Arc<ClassBoard>| board.begins(index.into());
        let board = board.filter(fits).unwrap_or_else(|| {
            let board = ClassBoard::new(index.saturating_add(1));
            board.begins(index.into());
            Arc::new(board)
        });
        let class = express.classes.of(Ioprio(0));
        Some(Box::new(LaneClasses {
            express,
            board,
            index: index.into(),
            class,
            kind: kind(class, 0),
            run: 0,
            uncounted: 0,
            untold: 0,
            full: 0,
            seen: [0; 4],
            is_mixed: false,
            turns: Turns::default(),
            window: Window::default(),
            at_device: [0; 3],
            timed_there: 0,
            told: 0,
            begun: 0,
            answered: 0,
            coalesced_until: 0,
            taken_at: vec![0; slots.into()].into_boxed_slice(),
            begun_at: vec![0; slots.into()].into_boxed_slice(),
            clock: 0,
            is_stale: true,
            timed: 0,
        }))
    }

    /// Requests are begun in the order of their classes.
    #[inline]
    pub(super) fn orders(&self) -> bool {
        self.is_mixed && self.express.mode.orders()
    }

    /// The class whose turn it is among those that wait, if there is room for it at the device.
    pub(super) fn next(&self, waits: Each<bool>) -> Option<Class> {
        self.window.next(&self.turns, waits, self.at_device)
    }

    /// The effect of the classes.
    pub(super) fn mode(&self) -> Mode {
        self.express.mode
    }

    /// The class under which requests of the next run are counted.
    pub(super) fn class_of(&self, ioprio: u32) -> Class {
        self.express.classes.of(Ioprio(ioprio))
    }

    #[inline]
    fn now(&mut self) -> Nanos {
        if std::mem::take(&mut self.is_stale) {
            self.clock = self.board.now();
        }
        self.clock
    }

    /// Returns true if requests that come to the device, or leave it, are looked at one by one.
    fn tracks(&self) -> bool {
        self.is_mixed || self.timed == 0 || self.timed_there > 0
    }

    /// The run ends: what it had is counted.
    fn end_run(&mut self, taken: usize) {
        if let Some(lane) = self.board.lane(self.index) {
            lane.count(self.kind, self.uncounted + taken.saturating_sub(self.run) as u64);
        }
        (self.run, self.uncounted) = (taken, 0);
    }

    fn sees(&mut self, class: Class) {
        let now = self.now();
        let seen = &mut self.seen[class as usize];
        if *seen == 0 || now.saturating_sub(*seen) > SEEN_EVERY {
            *seen = now;
            self.board.sees(class, now);
        }
        self.board.mixes(now);
    }

    /// Does what the volume does. The number of requests at the device is `there`.
    #[inline]
    fn follow(&mut self, there: usize) {
        let is_mixed = self.board.is_mixed();
        if is_mixed != self.is_mixed {
            self.changes(is_mixed, there);
        }
    }

    #[cold]
    fn changes(&mut self, is_mixed: bool, there: usize) {
        self.is_mixed = is_mixed;
        self.at_device = [0, 0, u32::try_from(there).unwrap_or(u32::MAX)];
        self.begun_at.iter_mut().for_each(|begun| *begun &= !COUNTED);
        self.taken_at.fill(0);
        let now = self.now();
        self.window.closes(now);
        self.turns = Turns::default();
    }

    /// Notes when a request was begun that was taken `taken_at`.
    fn leaves_queue(&mut self, slot: Slot, kind: usize) {
        let now = self.now();
        let taken = self.taken_at[usize::from(slot.0)];
        if let Some(lane) = self.board.lane(self.index) {
            lane.queued(kind, now.saturating_sub(taken));
        }
    }

    /// The end of a turn; `is_wanted` is true if more wait than there is room for. While only one
    /// class is there, several turns are published together, at the latest when the lane is idle.
    #[inline]
    fn end_turn(&mut self, taken: usize, there: usize, is_wanted: bool, is_full: bool) {
        if taken > 0 {
            self.uncounted += (taken - self.run) as u64;
            self.run = 0;
            self.untold += 1;
            self.full += u64::from(is_full);
            if !self.is_mixed && self.untold < TOLD {
                return;
            }
        }
        let there = u32::try_from(there).unwrap_or(u32::MAX);
        if self.untold > 0 || there != self.told || self.begun > 0 || self.answered > 0 {
            self.tell_turns(there, is_wanted);
        }
    }

    #[inline(never)]
    fn tell_turns(&mut self, there: u32, is_wanted: bool) {
        let begun = std::mem::take(&mut self.begun);
        self.answered = 0;
        let untold = std::mem::take(&mut self.untold);
        if untold > 0 {
            self.end_run(0);
            self.sees(self.class);
            if let Some(lane) = self.board.lane(self.index) {
                lane.turns(untold, std::mem::take(&mut self.full));
            }
        }
        self.tell(there, begun, is_wanted);
    }

    fn tell(&mut self, there: u32, begun: u32, is_wanted: bool) {
        self.told = there;
        let at_device = if self.is_mixed { self.at_device.iter().sum() } else { there };
        if !self.orders() {
            if let Some(lane) = self.board.lane(self.index) {
                lane.tell(LaneMessage::unbounded(at_device), 0, at_device);
            }
            return;
        }
        let now = self.now();
        let LaneClasses { board, window, index, .. } = self;
        let turn = Turn { at_device, begun, is_wanted, probe_at: board.probe_at() };
        if let Some(probe) = window.turn(now, turn, || board.shared(now)) {
            board.probe(probe);
        }
        if let Some(lane) = board.lane(*index) {
            lane.tell(window.message(turn), window.size(), at_device);
        }
        // Also a lane that only answers notices that the others are gone.
        board.mixes(now);
    }
}

impl Drop for LaneClasses {
    fn drop(&mut self) {
        self.tell_turns(0, false);
        if let Some(lane) = self.board.lane(self.index) {
            lane.tell(LaneMessage::default(), 0, 0);
        }
    }
}

impl Lane {
    /// A turn of a lane of a volume with classes.
    #[inline(never)]
    pub(super) fn serve_classes(&mut self, uring: &mut Uring, show_early: bool) -> bool {
        let waits_few = self.waits_few(self.coalesced);
        if let Some(classes) = &mut self.classes {
            classes.is_stale = true;
            classes.timed = (classes.timed + 1) % TIMED;
            classes.follow(self.begun.requests - self.begun.others);
            self.tracks = classes.tracks();
            if self.coalesced > 0 && (waits_few || classes.coalesced_until <= classes.now()) {
                self.unshown += self.coalesced;
                self.is_touched = true;
            }
        }
        self.update_is_plain();
        let mut worked = self.serve_turn::<true>(uring, show_early);
        let is_wanted = self.ahead.requests > 0;
        let is_full = self.queue.in_flight() >= usize::from(self.queue.config().size);
        let taken = self.observers.taken_in_turn();
        if let Some(classes) = &mut self.classes {
            classes.end_turn(taken, self.begun.requests, is_wanted, is_full);
            classes.is_stale = true;
        }
        // The window may be another one now.
        worked |= is_wanted && self.orders() && self.may_begin() && !self.is_held();
        worked
    }

    /// Publishes the unshown counts: the lane takes no more.
    pub(super) fn tell_classes(&mut self) {
        if let Some(classes) = &mut self.classes {
            classes.tell_turns(classes.told, false);
        }
    }

    /// A request was taken whose priority differs from that of the one before it.
    #[cold]
    #[inline(never)]
    pub(super) fn changes_priority(&mut self, slot: Slot) {
        let ioprio = self.queue.request(slot).priority().0;
        self.begins_run(ioprio);
        self.decisions[usize::from(slot.0)] = self.defaults;
        self.observers.taken(slot, self.queue.request(slot), self.defaults.class);
    }

    /// Requests of that priority come now.
    fn begins_run(&mut self, ioprio: u32) {
        let taken = self.observers.taken_in_turn();
        let Some(classes) = &mut self.classes else { return };
        classes.end_run(taken);
        let class = classes.class_of(ioprio);
        classes.kind = kind(class, ioprio);
        self.ioprio = ioprio;
        if classes.class != class {
            classes.class = class;
            self.defaults.class = class;
            classes.sees(class);
            classes.follow(self.begun.requests - self.begun.others);
            self.tracks = classes.tracks();
            self.update_is_plain();
        }
    }

    /// As many as may be taken ahead: while classes are mixed, all that the ring has.
    pub(super) fn most_ahead(&self) -> Load {
        match &self.classes {
            Some(classes) if classes.orders() => Load { requests: usize::MAX, ..MOST_AHEAD },
            _ => MOST_AHEAD,
        }
    }

    /// A request was taken while classes are mixed: it may be one that the foreground waits for.
    pub(super) fn promotes(&mut self, slot: Slot) {
        let request = self.queue.request(slot);
        if !matches!(request.kind(), RequestKind::Out | RequestKind::Flush) {
            return;
        }
        let Some(classes) = &mut self.classes else { return };
        let own = &mut self.decisions[usize::from(slot.0)];
        let is_awaited = || {
            request.kind() == RequestKind::Flush
                || Ioprio(request.priority().0) == Ioprio::JOURNAL
                || self.channel.is_in_journal(request)
        };
        let (express, now) = (classes.board.express_seen(), classes.now());
        let class = inherits(own.class, is_awaited, express, now);
        if class != own.class {
            own.class = class;
            self.observers.promoted(request);
            // It is counted here, and not with its run.
            classes.run += 1;
            if let Some(lane) = classes.board.lane(classes.index) {
                lane.count(class as usize, 1);
            }
        }
    }

    /// A request was taken that waits from now on.
    pub(super) fn begins_to_wait(&mut self, slot: Slot) {
        if let Some(classes) = &mut self.classes {
            let now = classes.now();
            classes.taken_at[usize::from(slot.0)] = now;
        }
    }

    /// A request that waited in that list is begun next; `waits` marks the lists that had some
    /// until now.
    pub(super) fn begins_waited(&mut self, slot: Slot, list: Class, waits: Each<bool>) {
        let (class, ioprio) =
            (self.decisions[usize::from(slot.0)].class, self.queue.request(slot).priority().0);
        if let Some(classes) = &mut self.classes {
            classes.turns.begun(list, waits);
            classes.leaves_queue(slot, kind(class, ioprio));
        }
    }

    /// Returns true if a request that comes now is taken, though it may not be begun yet.
    pub(super) fn takes_ahead(&self) -> bool {
        self.orders() && !self.takes_no_more() && self.ahead.is_below(self.most_ahead())
    }

    /// Goes to another thread, and takes what waits along.
    pub(super) fn is_moving(&self) -> bool {
        matches!(self.draining, Some(Draining::Move(_)))
    }

    /// The device has a request.
    #[inline(never)]
    pub(super) fn goes_to_device(&mut self, slot: Slot, class: Class) {
        let Some(classes) = &mut self.classes else { return };
        if !classes.is_mixed && classes.timed != 0 {
            return;
        }
        let mut now = classes.now() & !COUNTED;
        if classes.is_mixed {
            now |= COUNTED;
            if matches!(self.queue.request(slot).kind(), RequestKind::In | RequestKind::Out) {
                classes.at_device[place(class)] += 1;
                classes.begun += 1;
            }
        }
        classes.begun_at[usize::from(slot.0)] = now;
        classes.timed_there += 1;
    }

    /// ... and has it no longer: it `is_answered`, or put back. Returns true if its answer waits
    /// for others.
    #[inline(never)]
    pub(super) fn leaves_device(&mut self, slot: Slot, is_answered: bool) -> bool {
        let Some(classes) = &mut self.classes else { return false };
        let (request, class) =
            (self.queue.request(slot), self.decisions[usize::from(slot.0)].class);
        let begun = std::mem::take(&mut classes.begun_at[usize::from(slot.0)]);
        if classes.is_mixed {
            classes.answered += 1;
            let is_counted = begun & COUNTED != 0;
            if matches!(request.kind(), RequestKind::In | RequestKind::Out) {
                classes.at_device[if is_counted { place(class) } else { 2 }] -= 1;
            }
        }
        if begun == 0 {
            return false;
        }
        classes.timed_there -= 1;
        let now = classes.now();
        self.tracks = classes.tracks();
        if !is_answered {
            return false;
        }
        if class == Class::Express && now.saturating_sub(classes.seen[0]) > SEEN_EVERY {
            // The rest of its fsync comes from now on.
            classes.sees(class);
        }
        if classes.orders() && matches!(request.kind(), RequestKind::In | RequestKind::Out) {
            classes.window.answered(begun, now);
        }
        if let Some(lane) = classes.board.lane(classes.index) {
            lane.device(kind(class, request.priority().0), now.saturating_sub(begun));
        }
        self.coalesces(slot, class, now)
    }
}

/// The place of a class in [`LaneClasses::at_device`].
#[inline]
fn place(class: Class) -> usize {
    match class {
        Class::Express => 0,
        Class::Promoted => 1,
        Class::Normal | Class::Background => 2,
    }
}

/// The classes that have waiting requests.
impl crate::lists::Waiting {
    pub(super) fn waits(&self) -> Each<bool> {
        Each(Class::ALL.map(|class| self.has(class)))
    }
}
