//! Lane threads that the deterministic simulator (checks/dst) steps. Steps are the parts of
//! [`Thread::run`], each as long as it is without a look at data that others may change. Polling is
//! the exception: it looks again.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use vlane_io::system::{self, Killed};
use vlane_io::{Event, Instant, Uring};
use vlane_policy::throttle::Limits;

use super::{INBOX, Thread};
use crate::error::{LaneError, Stopped};
use crate::inbox::{Message, pair};
use crate::lane::{Lane, LaneConfig};
use crate::limits::Budget;
use crate::polling::{PollMode, Polling};
use crate::routes::Routes;

/// The place of a thread in its loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// About to do a round.
    Round,
    /// Found no work, and is about to ask for kicks.
    Idle,
    /// Has asked for them, and is about to look at its mail and to sleep.
    Dozes,
}

struct Stepped {
    thread: Thread,
    ring: u32,
    at: At,
}

/// The threads of a volume, as [`crate::Pool`] has them.
pub struct Threads {
    routes: Arc<Routes>,
    threads: Vec<Stepped>,
    limits: (Limits, Option<Arc<Budget>>),
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A round with work.
    Works,
    /// A round without work.
    Finds,
    /// It asked for kicks, and goes to sleep; or found a request instead.
    AsksForKicks(bool),
    /// It woke up.
    Wakes,
    /// It died.
    Dies,
}

impl Step {
    /// The step's number: one for each kind.
    pub fn number(self) -> u64 {
        match self {
            Step::Works => 0,
            Step::Finds => 1,
            Step::AsksForKicks(sleeps) => 2 + u64::from(sleeps),
            Step::Wakes => 4,
            Step::Dies => 5,
        }
    }
}

impl Threads {
    /// Threads without lanes.
    ///
    /// # Errors
    /// An error if the system gives no descriptors.
    pub fn new(threads: usize, queues: u16) -> Result<Threads, LaneError> {
        let pairs = (0..threads).map(|_| pair()).collect::<Result<Vec<_>, _>>()?;
        let (outboxes, inboxes): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let routes =
            Arc::new(Routes::new(outboxes, (0..usize::from(queues)).map(|queue| queue % threads)));
        let mut stepped = Vec::new();
        for (number, inbox) in (0..).zip(inboxes) {
            let uring = Uring::new(64)?;
            let ring = uring.number();
            let polling = Polling::new(PollMode::default(), Duration::ZERO);
            let mut thread =
                Thread::new(number, uring, inbox, polling).with_routes(Arc::clone(&routes));
            thread.uring.watch(thread.inbox.wake_fd(), INBOX);
            stepped.push(Stepped { thread, ring, at: At::Round });
        }
        Ok(Threads { routes, threads: stepped, limits: (Limits::default(), None) })
    }

    /// The number of threads.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// The thread that a queue's lane is on, or on its way to.
    pub fn of_lane(&self, index: u16) -> Option<usize> {
        self.routes
            .running()
            .into_iter()
            .find(|running| running.lane == index)
            .map(|running| running.thread)
    }

    /// Returns true if a thread continues by itself: it is awake, or has been woken.
    pub fn can_step(&self, thread: usize) -> bool {
        let Stepped { thread, ring, at } = &self.threads[thread];
        *at != At::Dozes
            || thread.inbox.has_mail()
            || system::has_news(*ring)
            || thread.deadline().is_some_and(|deadline| deadline <= Instant::now())
    }

    /// The time at which a thread that sleeps wakes by itself.
    pub fn deadline(&self, thread: usize) -> Option<Instant> {
        self.threads[thread].thread.deadline()
    }

    /// Lets a thread take its next step. A dead thread is to be [buried](Threads::die) with all
    /// others.
    pub fn step(&mut self, thread: usize) -> Step {
        let stepped = &mut self.threads[thread];
        match catch_unwind(AssertUnwindSafe(|| stepped.step())) {
            Ok(step) => step,
            Err(payload) if payload.is::<Killed>() || payload.is::<vlane_ring::kill::Killed>() => {
                Step::Dies
            }
            Err(payload) => resume_unwind(payload),
        }
    }

    /// The process is dead: no part of its state is reported any more. The kernel's operations of
    /// it must have been ended before.
    pub fn die(self) {
        system::die();
        for Stepped { mut thread, .. } in self.threads {
            let _ = thread.uring.submit();
            while let Some(event) = thread.uring.next_event() {
                let Event::Finished(finished) = event else { continue };
                if let Some(Some(lane)) = thread.lanes.get_mut(usize::from(finished.place())) {
                    lane.abandon(finished);
                }
            }
        }
    }

    /// As [`crate::Pool::start`].
    pub fn start(&mut self, index: u16, config: LaneConfig) -> Receiver<Result<(), LaneError>> {
        let counters = Arc::clone(&config.counters);
        let limits = self.limits.1.clone();
        let reply = self.ask(index, |reply| Message::Start {
            index,
            config: Box::new(config),
            limits,
            reply,
        });
        self.routes.set_running(index, Some(counters));
        reply
    }

    /// As [`crate::Pool::stop`], or [`crate::Pool::suspend`].
    pub fn stop(&mut self, index: u16, suspends: bool) -> Receiver<Option<Stopped>> {
        self.routes.set_running(index, None);
        self.ask(index, |reply| Message::Stop { index, suspends, reply })
    }

    /// As [`crate::Pool::set_write_through`].
    pub fn set_write_through(&mut self, index: u16, on: bool) -> Receiver<()> {
        self.ask(index, |reply| Message::SetWriteThrough { index, on, reply })
    }

    /// As [`crate::Pool::set_sectors`].
    pub fn set_sectors(&mut self, index: u16, sectors: u64) -> Receiver<()> {
        self.ask(index, |reply| Message::SetSectors { index, sectors, reply })
    }

    /// As [`crate::Pool::set_limits`].
    pub fn set_limits(&mut self, limits: Limits) {
        let budget = match &self.limits.1 {
            Some(old) => old.replaced_by(limits),
            None => Budget::new(limits),
        };
        self.limits = (limits, budget.map(Arc::new));
        for index in 0..self.routes.queues() {
            self.routes.send(index, Message::SetLimits { index, limits: self.limits.1.clone() });
        }
    }

    /// As [`crate::Pool::move_lane`].
    pub fn move_lane(&mut self, index: u16, thread: usize) {
        self.routes.move_lane(index, thread);
    }

    /// Cancels the move of a lane that has not moved, as the steering thread soon does.
    pub fn cancel(&mut self, index: u16) {
        self.routes.cancel(index);
    }

    fn ask<T>(
        &self,
        index: u16,
        message: impl FnOnce(std::sync::mpsc::Sender<T>) -> Message,
    ) -> Receiver<T> {
        let (reply, answer) = channel();
        self.routes.send(index, message(reply));
        answer
    }
}

impl Stepped {
    /// See [`Thread::run`].
    fn step(&mut self) -> Step {
        let Stepped { thread, at, .. } = self;
        match *at {
            At::Round => {
                if thread.inbox.has_mail() {
                    thread.read_mail();
                }
                if thread.work() {
                    return Step::Works;
                }
                *at = At::Idle;
                Step::Finds
            }
            At::Idle => {
                let sleeps = thread.ask_for_kicks();
                *at = if sleeps { At::Dozes } else { At::Round };
                Step::AsksForKicks(sleeps)
            }
            At::Dozes => {
                thread.lanes.iter_mut().flatten().for_each(Lane::after_sleep);
                *at = At::Round;
                Step::Wakes
            }
        }
    }
}
