//! A lane thread: its loop and its one wait point.

#[cfg(vlane_simulated)]
#[path = "../../../checks/dst/lane/src/simulated.rs"]
pub mod simulated;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use vlane_hint::LaneHint;
use vlane_io::{Event, Instant, Uring};
use vlane_ring::probes;

use crate::contention::Contention;
use crate::error::LaneError;
use crate::inbox::{Inbox, Message};
use crate::lane::{Lane, Settled};
use crate::limits::Budget;
use crate::meter::Gauge;
use crate::payoff::Turn;
use crate::polling::Polling;
use crate::recorder::Recorder;
use crate::routes::Routes;

/// The inbox's wake-up token; each lane has an even one and the next.
const INBOX: u32 = 0;
/// From one look at a lane without a kick descriptor to the next: at first, and at most. It doubles
/// with each empty look. So a guest's request waits no longer than the guest has been idle, and an
/// idle lane costs a look every now and then.
const LOOKS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

pub(crate) struct Thread {
    uring: Uring,
    inbox: Inbox,
    /// Taken out of the inbox and not read: it is read after the round.
    unread: VecDeque<Message>,
    /// The way to the other threads; without it, lanes stay.
    routes: Option<Arc<Routes>>,
    /// Set if the thread's load is measured.
    gauge: Option<Gauge>,
    /// By the number that the lane's completions carry; free places are reused.
    lanes: Vec<Option<Lane>>,
    /// The recorders of queues whose lane does not run.
    recorders: Vec<(u16, Box<Recorder>)>,
    hints: Vec<(u16, Box<LaneHint>)>,
    polling: Polling,
    contention: Contention,
    turn: Turn,
    /// The kernel's refusal was reported.
    complained: bool,
    /// The time until the next look at lanes without a kick descriptor.
    look: Duration,
    next_token: u32,
    exit: bool,
    /// Its place in the pool: for the probes.
    number: u32,
}

impl Thread {
    pub(crate) fn new(number: u32, uring: Uring, inbox: Inbox, polling: Polling) -> Thread {
        Thread {
            uring,
            inbox,
            unread: VecDeque::new(),
            routes: None,
            gauge: None,
            lanes: Vec::new(),
            recorders: Vec::new(),
            hints: Vec::new(),
            polling,
            contention: Contention::new(),
            turn: Turn::Storage,
            complained: false,
            look: LOOKS.0,
            next_token: 2,
            exit: false,
            number,
        }
    }

    /// Lets lanes move to other threads of the pool.
    pub(crate) fn with_routes(mut self, routes: Arc<Routes>) -> Thread {
        self.routes = Some(routes);
        self
    }

    /// Sets the gauge of its load.
    pub(crate) fn with_gauge(mut self, gauge: Option<Gauge>) -> Thread {
        self.gauge = gauge;
        self
    }

    /// Runs until it is asked to exit, and no request is in flight.
    pub(crate) fn run(&mut self) {
        self.uring.watch(self.inbox.wake_fd(), INBOX);
        while !self.is_over() {
            if let Some(gauge) = &mut self.gauge {
                gauge.goes_on();
            }
            if self.inbox.has_mail() {
                self.read_mail();
            }
            if self.exit {
                self.lanes.iter_mut().flatten().for_each(Lane::exit);
            }
            if self.work() {
                self.look = LOOKS.0;
                self.contention.worked();
                if let Some(gauge) = &mut self.gauge {
                    gauge.worked();
                }
                continue;
            }
            if self.is_over() {
                return;
            }
            if let Some(gauge) = &mut self.gauge {
                gauge.rests();
            }
            let deadline = self.deadline();
            let is_held = self.is_held();
            let Thread { lanes, uring, inbox, polling, contention, turn, .. } = self;
            polling.learn(|| lanes.iter().flatten().map(Lane::requests).sum());
            let find = || {
                lanes.iter_mut().flatten().any(Lane::has_work)
                    || uring.has_work()
                    || inbox.has_mail()
            };
            if !is_held && !contention.is_shared() && polling.poll(*turn, deadline, find) {
                continue;
            }
            if !self.ask_for_kicks() {
                continue;
            }
            if !self.inbox.has_mail() {
                self.sleep();
            }
            self.lanes.iter_mut().flatten().for_each(Lane::after_sleep);
        }
    }

    /// Asked to exit, and all lanes are gone.
    fn is_over(&self) -> bool {
        self.exit && self.lanes.iter().all(Option::is_none)
    }

    /// Asks all guests for kicks from now on, so that the thread can sleep. Returns false if one
    /// has made a request meanwhile: then none of them need.
    pub(crate) fn ask_for_kicks(&mut self) -> bool {
        let has_work = self.lanes.iter_mut().flatten().any(Lane::before_sleep);
        if has_work {
            self.lanes.iter_mut().flatten().for_each(Lane::after_sleep);
        }
        !has_work
    }

    /// One round: all work that is there now. Returns true if there was any.
    #[inline]
    fn work(&mut self) -> bool {
        let Thread { lanes, uring, contention, .. } = self;
        let show_early = !contention.is_shared();
        let mut worked = false;
        for lane in lanes.iter_mut().flatten() {
            worked |= lane.serve(uring, show_early);
            if let Some(deadline) = lane.deadline() {
                // off the data path: only lanes with a deadline need the time.
                let now = Instant::now();
                worked |= deadline <= now && lane.poll_channel(uring, now);
            }
        }
        if let Err(error) = uring.submit() {
            // A lane cannot make the kernel refuse the call itself; the only remedy is to continue.
            complain(&mut self.complained, &error);
        }
        while let Some(event) = self.uring.next_event() {
            worked = true;
            self.handle(event);
        }
        let Thread { lanes, uring, recorders, hints, .. } = self;
        let (mut answered, mut leaves) = (false, false);
        for place in lanes {
            let Some(lane) = place else { continue };
            answered |= lane.round_ends();
            let settled = lane.settle();
            leaves |= matches!(settled, Settled::Leaves(_));
            if settled == Settled::Ends {
                if let Some(recorder) = lane.take_recorder() {
                    recorders.push((lane.index, recorder));
                }
                if let Some(hint) = lane.take_hint() {
                    hints.push((lane.index, hint));
                }
                lane.unwatch(uring);
                // Before the descriptor is closed and its number used again.
                let _ = uring.submit();
                *place = None;
            }
        }
        if worked {
            self.turn = if answered { Turn::Guest } else { Turn::Storage };
        }
        if leaves {
            self.let_lanes_go();
        }
        worked
    }

    /// Lanes that are to go to another thread, and can, go there.
    #[cold]
    fn let_lanes_go(&mut self) {
        for place in 0..self.lanes.len() {
            let Some(lane) = &mut self.lanes[place] else { continue };
            let Settled::Leaves(to) = lane.settle() else { continue };
            let Some(routes) = &self.routes else {
                lane.stay();
                continue;
            };
            lane.departs(&mut self.uring);
            // Only this thread gets its completions: the other thread may be faster than the next
            // round.
            let _ = self.uring.submit();
            let Some(lane) = self.lanes[place].take() else { continue };
            if let Some(lane) = routes.hand_over(Box::new(lane), to, &self.inbox, &mut self.unread)
            {
                lane.watch(&mut self.uring);
                self.lanes[place] = Some(*lane);
            }
        }
        self.read_mail();
    }

    /// A lane comes from another thread, with its messages from the way.
    fn adopt(&mut self, mut lane: Box<Lane>, mail: Vec<Message>) {
        let (place, token) = (self.free_place(), self.take_token());
        // There are never more lanes than queues.
        lane.arrives(u16::try_from(place).unwrap_or(u16::MAX), token, &mut self.uring);
        self.put(place, *lane);
        mail.into_iter().for_each(|message| self.read(message));
    }

    fn free_place(&self) -> usize {
        self.lanes.iter().position(Option::is_none).unwrap_or(self.lanes.len())
    }

    fn take_token(&mut self) -> u32 {
        let token = self.next_token;
        self.next_token = if token + 2 == vlane_io::WAKE_TOKENS { 2 } else { token + 2 };
        token
    }

    fn put(&mut self, place: usize, lane: Lane) {
        match self.lanes.get_mut(place) {
            Some(free) => *free = Some(lane),
            None => self.lanes.push(Some(lane)),
        }
    }

    /// As good as no kick (vhost-user allows that, too): the lane is looked at all the time it
    /// runs.
    #[cold]
    fn cannot_wait(&mut self, token: u32, errno: i32) {
        if let Some(lane) = self.lanes.iter_mut().flatten().find(|lane| lane.token == token) {
            tracing::warn!(
                "queue {}: cannot wait for its kicks (error {errno}); polling it",
                lane.index
            );
            lane.kick = None;
        }
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        match event {
            Event::Finished(finished) => {
                if let Some(Some(lane)) = self.lanes.get_mut(usize::from(finished.place())) {
                    lane.finished(&mut self.uring, finished);
                }
            }
            Event::Wake { token: INBOX, armed } => {
                if !armed {
                    self.uring.watch(self.inbox.wake_fd(), INBOX);
                }
            }
            Event::Unwatchable { token, errno } => self.cannot_wait(token, errno),
            Event::Wake { token, armed } => {
                // A completion that belongs to no lane is the echo of a watch that ended.
                if let Some(lane) =
                    self.lanes.iter_mut().flatten().find(|lane| lane.token | 1 == token | 1)
                {
                    lane.woken(&mut self.uring, token, armed);
                }
            }
        }
    }

    /// Returns true if a lane waits for its volume's limits. Then no look for work is needed: they
    /// all have the same limits, whose end is known.
    fn is_held(&self) -> bool {
        self.lanes.iter().flatten().any(Lane::is_held)
    }

    /// The first time at which a lane's storage answers by itself, or its limits let it continue.
    fn deadline(&self) -> Option<Instant> {
        self.lanes.iter().flatten().filter_map(Lane::deadline).min()
    }

    fn sleep(&mut self) {
        let begin = Instant::now();
        let mut timeout = self.deadline().map(|deadline| deadline.saturating_duration_since(begin));
        let looks = self.lanes.iter().flatten().any(|lane| lane.kick.is_none());
        if looks {
            timeout = Some(timeout.map_or(self.look, |t| t.min(self.look)));
            self.look = (2 * self.look).min(LOOKS.1);
        }
        if timeout.is_some_and(|t| t.is_zero()) {
            return;
        }
        probes::sleep(self.number);
        if let Err(error) = self.uring.wait(timeout) {
            complain(&mut self.complained, &error);
        }
        probes::wake(self.number);
        if !self.is_held() {
            self.polling.slept_since(self.turn, begin);
        }
    }

    fn read_mail(&mut self) {
        while let Some(message) = self.unread.pop_front().or_else(|| self.inbox.next()) {
            self.read(message);
        }
    }

    fn read(&mut self, message: Message) {
        match message {
            Message::Start { index, config, limits, reply } => {
                let _ = reply.send(self.start(index, *config, limits));
            }
            Message::Stop { index, suspends, reply } => match self.lane(index) {
                Some(lane) if suspends => lane.suspend(reply),
                Some(lane) => lane.stop(reply),
                None => {
                    let _ = reply.send(None);
                }
            },
            Message::TryStop { index, stop, reply } => match self.lane(index) {
                Some(lane) => lane.try_stop(stop, reply),
                None => {
                    let _ = stop.fulfil() && reply.send(None).is_ok();
                }
            },
            Message::CarryOn { index } => {
                if let Some(lane) = self.lane(index) {
                    lane.carry_on();
                }
            }
            Message::Hold { index } => {
                if let Some(lane) = self.lane(index) {
                    lane.hold();
                }
            }
            Message::SetMemory { index, memory, drain, reply } => match self.lane(index) {
                Some(lane) => lane.set_memory(memory, drain, reply),
                None => {
                    let _ = reply.send(Ok(()));
                }
            },
            Message::SetCall { index, call, reply } => {
                self.with(index, &reply, |lane| lane.set_call(call))
            }
            Message::SetLog { index, log, ring, reply } => {
                self.with(index, &reply, |lane| lane.set_log(log, ring));
            }
            Message::SetWriteThrough { index, on, reply } => {
                self.with(index, &reply, |lane| lane.set_write_through(on));
            }
            Message::SetSectors { index, sectors, reply } => {
                self.with(index, &reply, |lane| lane.set_sectors(sectors));
            }
            Message::SetRecorder { index, recorder } => self.set_recorder(index, recorder),
            Message::SetHint { index, hint } => self.set_hint(index, hint),
            Message::SetLimits { index, limits } => {
                if let Some(lane) = self.lane(index) {
                    lane.set_limits(limits);
                }
            }
            Message::Move { index, to } => {
                if let Some(lane) = self.lane(index) {
                    lane.move_to(to);
                }
            }
            Message::Stay { index } => {
                if let Some(lane) = self.lane(index) {
                    lane.stay();
                }
            }
            Message::Adopt { lane, mail } => self.adopt(lane, mail),
            Message::Exit => self.exit = true,
        }
    }

    /// It has shown all its answers.
    fn lane(&mut self, index: u16) -> Option<&mut Lane> {
        let lane = self.lanes.iter_mut().flatten().find(|lane| lane.index == index)?;
        lane.show_coalesced();
        Some(lane)
    }

    fn with(&mut self, index: u16, reply: &Sender<()>, change: impl FnOnce(&mut Lane)) {
        if let Some(lane) = self.lane(index) {
            change(lane);
        }
        let _ = reply.send(());
    }

    fn set_recorder(&mut self, index: u16, recorder: Option<Box<Recorder>>) {
        self.recorders.retain(|(queue, _)| *queue != index);
        match (self.lane(index), recorder) {
            (Some(lane), recorder) => lane.set_recorder(recorder),
            (None, Some(recorder)) => self.recorders.push((index, recorder)),
            (None, None) => {}
        }
    }

    fn set_hint(&mut self, index: u16, hint: Option<Box<LaneHint>>) {
        self.hints.retain(|(queue, _)| *queue != index);
        match (self.lane(index), hint) {
            (Some(lane), hint) => lane.set_hint(hint),
            (None, Some(hint)) => self.hints.push((index, hint)),
            (None, None) => {}
        }
    }

    pub(crate) fn start(
        &mut self,
        index: u16,
        config: crate::LaneConfig,
        limits: Option<Arc<Budget>>,
    ) -> Result<(), LaneError> {
        if self.lane(index).is_some() {
            return Err(LaneError::Running { index });
        }
        let place = self.free_place();
        let number = u16::try_from(place).map_err(|_| LaneError::Gone)?;
        let token = self.take_token();
        let mut lane = Lane::new(index, number, token, config, &mut self.uring)?;
        lane.set_limits(limits);
        if let Some(at) = self.recorders.iter().position(|(queue, _)| *queue == index) {
            lane.set_recorder(Some(self.recorders.swap_remove(at).1));
        }
        if let Some(at) = self.hints.iter().position(|(queue, _)| *queue == index) {
            lane.set_hint(Some(self.hints.swap_remove(at).1));
        }
        lane.watch(&mut self.uring);
        self.put(place, lane);
        Ok(())
    }
}

/// Tells of the first refusal only, and slows the thread down at each.
#[cold]
fn complain(complained: &mut bool, error: &std::io::Error) {
    if !std::mem::replace(complained, true) {
        tracing::error!("io_uring_enter: {error}; retrying (logged once)");
    }
    std::thread::sleep(Duration::from_millis(1));
}
