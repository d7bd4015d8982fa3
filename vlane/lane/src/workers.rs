//! The threads of a pool. Each is made when its first lane starts: a volume offers more queues than
//! most guests use.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::CpuSet;
use vlane_error::locked;
use vlane_io::{CrossThreadQueue, Uring};

use crate::error::LaneError;
use crate::inbox::{Inbox, Message};
use crate::meter::{Gauge, Meters};
use crate::polling::{PollMode, Polling};
use crate::routes::Routes;
use crate::thread::Thread;

/// Submissions that fit into a thread's io_uring at a time; more are submitted in parts.
const URING_ENTRIES: u32 = 1024;

/// The parts from which a thread is made.
pub(crate) struct Birth {
    pub(crate) number: usize,
    pub(crate) cpu: Option<usize>,
    pub(crate) poll: PollMode,
    pub(crate) poll_max: Duration,
    pub(crate) inbox: Inbox,
    pub(crate) routes: Arc<Routes>,
    pub(crate) meters: Option<Arc<Meters>>,
    pub(crate) queue: Option<CrossThreadQueue>,
}

enum Worker {
    /// A thread that is not made yet. With it, what its lanes are to have when they start.
    Unmade(Box<Birth>, Vec<Message>),
    Made(JoinHandle<()>),
    /// A thread that could not be made, and cannot be any more.
    Gone,
}

/// All threads of a pool, by number.
pub(crate) struct Workers {
    routes: Arc<Routes>,
    workers: Mutex<Vec<Worker>>,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers").field("routes", &self.routes).finish_non_exhaustive()
    }
}

impl Workers {
    pub(crate) fn new(routes: Arc<Routes>, births: impl Iterator<Item = Birth>) -> Workers {
        let workers = births.map(|birth| Worker::Unmade(Box::new(birth), Vec::new())).collect();
        Workers { routes, workers: Mutex::new(workers) }
    }

    /// Makes a thread, if it is not made yet.
    ///
    /// # Errors
    /// [`LaneError::Io`] without io_uring, [`LaneError::System`]. The next attempt may go well.
    pub(crate) fn make(&self, number: usize) -> Result<(), LaneError> {
        locked(&self.workers).get_mut(number).map_or(Ok(()), |worker| worker.make(&self.routes))
    }

    /// Sends a message to a lane; makes its thread, if a lane is to start.
    ///
    /// # Errors
    /// As [`Workers::make`]; [`LaneError::Gone`].
    pub(crate) fn send(&self, index: u16, message: Message) -> Result<(), LaneError> {
        let thread = self.routes.thread_of(index).ok_or(LaneError::Gone)?;
        let mut workers = locked(&self.workers);
        if let Some(worker) = workers.get_mut(thread)
            && let Worker::Unmade(_, told) = worker
        {
            match message {
                Message::SetHint { .. } | Message::SetRecorder { .. } => {
                    told.retain(|other| !is_replaced(other, &message));
                    told.push(message);
                    return Ok(());
                }
                // None of its lanes runs; the limits come with the start.
                Message::SetLimits { .. } | Message::Hold { .. } | Message::CarryOn { .. } => {
                    return Ok(());
                }
                _ => worker.make(&self.routes)?,
            }
        }
        // A thread that is made stays so.
        drop(workers);
        self.routes.send(index, message).then_some(()).ok_or(LaneError::Gone)
    }

    /// Threads that have ended by a fault.
    pub(crate) fn lost(&self) -> Vec<usize> {
        let has_ended = |worker: &Worker| match worker {
            Worker::Unmade(..) => false,
            Worker::Made(thread) => thread.is_finished(),
            Worker::Gone => true,
        };
        let workers = locked(&self.workers);
        (0..workers.len()).filter(|number| has_ended(&workers[*number])).collect()
    }

    /// Waits for the end of all threads, which must have been asked to end. None is made any more.
    pub(crate) fn join(&self) {
        // The lock is not held for as long as a thread may take.
        let workers = std::mem::take(&mut *locked(&self.workers));
        for worker in workers {
            if let Worker::Made(thread) = worker
                && thread.join().is_err()
            {
                tracing::error!("a lane thread panicked");
            }
        }
    }
}

/// True if a lane that gets the new one does not need the old one.
fn is_replaced(old: &Message, new: &Message) -> bool {
    let is_same_kind = matches!(
        (old, new),
        (Message::SetHint { .. }, Message::SetHint { .. })
            | (Message::SetRecorder { .. }, Message::SetRecorder { .. })
    );
    is_same_kind && old.index() == new.index()
}

impl Worker {
    fn make(&mut self, routes: &Routes) -> Result<(), LaneError> {
        let (birth, told) = match std::mem::replace(self, Worker::Gone) {
            Worker::Unmade(birth, told) => (birth, told),
            other => {
                *self = other;
                return Ok(());
            }
        };
        match birth.spawn() {
            Ok(thread) => {
                *self = Worker::Made(thread);
                for message in told {
                    let index = message.index().unwrap_or(0);
                    routes.send(index, message);
                }
                Ok(())
            }
            Err((error, birth)) => {
                if let Some(birth) = birth {
                    *self = Worker::Unmade(birth, told);
                }
                Err(error)
            }
        }
    }
}

impl Birth {
    /// Gives back what it was made of, if it cannot be made.
    fn spawn(self: Box<Birth>) -> Result<JoinHandle<()>, (LaneError, Option<Box<Birth>>)> {
        let name = format!("lane-{}", self.number);
        let (ready, started) = channel();
        let cradle = Arc::new(Mutex::new(Some(self)));
        let swap = |cradle: &Mutex<Option<Box<Birth>>>, put: Option<Box<Birth>>| {
            std::mem::replace(&mut *locked(cradle), put)
        };
        let own = Arc::clone(&cradle);
        let body = move || {
            let Some(birth) = swap(&own, None) else { return };
            match birth.begin() {
                Ok(mut thread) => {
                    let _ = ready.send(Ok(()));
                    thread.run();
                }
                Err((error, birth)) => {
                    swap(&own, Some(birth));
                    let _ = ready.send(Err(error));
                }
            }
        };
        let spawned = std::thread::Builder::new().name(name).spawn(body).map_err(LaneError::from);
        let made = spawned
            .and_then(|thread| started.recv().map_err(|_| LaneError::Gone)?.map(|()| thread));
        made.map_err(|error| (error, swap(&cradle, None)))
    }

    /// On the thread itself.
    fn begin(self: Box<Birth>) -> Result<Thread, (LaneError, Box<Birth>)> {
        if let Some(cpu) = self.cpu {
            let mut set = CpuSet::new();
            set.set(cpu);
            if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
                tracing::warn!(
                    "lane thread {} cannot be pinned to CPU {cpu}: {error}",
                    self.number
                );
            }
        }
        // Deadlines of a modelled device are exact; the default slack is 50 us.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut uring = match Uring::new(URING_ENTRIES) {
            Ok(uring) => uring,
            Err(error) => return Err((error.into(), self)),
        };
        let Birth { number, poll, poll_max, inbox, routes, meters, queue, .. } = *self;
        queue.into_iter().for_each(|queue| uring.join(queue));
        let gauge = meters.map(|meters| Gauge::new(meters, number));
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        Ok(Thread::new(number, uring, inbox, Polling::new(poll, poll_max))
            .with_routes(routes)
            .with_gauge(gauge))
    }
}
