//! The lane threads of one volume, and control's requests to them.

use std::io::IoSliceMut;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::ReadWriteFlags;
use vlane_error::locked;
use vlane_hint::LaneHint;
use vlane_io::cross_thread_queues;
use vlane_memory::{DirtyLog, GuestMemory};
use vlane_policy::throttle::Limits;

use crate::cancellable_request::CancellableRequest;
use crate::counters::Counters;
use crate::error::{LaneError, Stopped};
use crate::governor_thread::GovernorThread;
use crate::inbox::{Message, Outbox, pair};
use crate::lane::LaneConfig;
use crate::limits::{Budget, Waits};
use crate::meter::Meters;
use crate::polling::PollMode;
use crate::recorder::Recorder;
use crate::routes::Routes;
use crate::topology::Topology;
use crate::workers::{Birth, Workers};

/// A pool's configuration.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Threads and their CPUs.
    pub topology: Topology,
    /// The mode that decides when a thread looks for work before it sleeps.
    pub poll: PollMode,
    /// The longest time that it does; zero: it sleeps at once.
    pub poll_max: Duration,
    /// Express requests go to the thread with the fewest operations in its io_uring.
    pub hands_over: bool,
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outbox")
    }
}

/// The lane threads of one volume. Queue i runs on thread i modulo their number, or where it pays
/// ([`Topology::adapts`]). Dropping it drains all lanes.
///
/// Every request to a lane has been carried out when the call returns. A front end that lets a call
/// descriptor fill up keeps the lane that signals it waiting for ever. With it wait all lanes of
/// that thread. So every request takes `calls`, the call descriptors of all lanes that run: when
/// the thread does not answer, they are emptied.
#[derive(Debug)]
pub struct Pool {
    /// Goes first: no lane begins to move any more.
    steering: Mutex<Option<GovernorThread>>,
    routes: Arc<Routes>,
    workers: Workers,
    /// Held while a lane is informed of it, so that none keeps the one before.
    limits: Mutex<(Limits, Option<Arc<Budget>>)>,
}

impl Pool {
    /// Makes the threads that are there from the beginning: the first, or all where lanes or
    /// operations go from one to the other. The others are made when their first lanes start. A
    /// thread without lanes sleeps and takes no CPU time.
    ///
    /// # Errors
    /// [`LaneError::Io`] without io_uring, [`LaneError::System`].
    pub fn new(config: &PoolConfig) -> Result<Pool, LaneError> {
        let Topology { queues, threads, ref cpus, adapts } = config.topology;
        let threads = usize::from(threads).max(1);
        let pairs = (0..threads).map(|_| pair()).collect::<Result<Vec<_>, _>>()?;
        let (outboxes, inboxes): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        // Lanes that go where it pays begin together.
        let beginnings =
            (0..usize::from(queues)).map(|queue| if adapts { 0 } else { queue % threads });
        let routes = Arc::new(Routes::new(outboxes, beginnings));
        let meters = adapts.then(|| Arc::new(Meters::new(threads)));
        let hands_over = config.hands_over && threads > 1;
        let mut queues =
            if hands_over { cross_thread_queues(threads)? } else { Vec::new() }.into_iter();
        let births = inboxes.into_iter().enumerate().map(|(number, inbox)| Birth {
            number,
            cpu: cpus.get(number).copied(),
            poll: config.poll,
            poll_max: config.poll_max,
            inbox,
            routes: Arc::clone(&routes),
            meters: meters.clone(),
            queue: queues.next(),
        });
        let workers = Workers::new(Arc::clone(&routes), births);
        let pool = Pool { steering: Mutex::default(), routes, workers, limits: Mutex::default() };
        // The first shows whether there can be any.
        let at_once = if hands_over || adapts { threads } else { 1 };
        (0..at_once).try_for_each(|number| pool.workers.make(number))?;
        if let Some(meters) = meters {
            let steering = GovernorThread::start(threads, Arc::clone(&pool.routes), meters)?;
            *locked(&pool.steering) = Some(steering);
        }
        Ok(pool)
    }

    /// Threads that have ended by a fault: their queues are not served any more.
    pub fn lost(&self) -> Vec<usize> {
        self.workers.lost()
    }

    /// Drains all lanes and ends the threads. When it returns, their io_urings are gone, and none
    /// holds a file of the image's or memory of the guest's. A process that exits while it has a
    /// ring leaves that to the kernel, which does it some time later. No lane can start any more.
    pub fn end(&self) {
        drop(locked(&self.steering).take());
        self.routes.end();
        self.workers.join();
    }

    /// The lanes that run, each with its thread.
    pub fn places(&self) -> Vec<(u16, usize)> {
        self.routes.running().into_iter().map(|lane| (lane.lane, lane.thread)).collect()
    }

    /// Moves the lane of queue `index`, if it runs, to another thread. It goes as soon as the
    /// storage works on none of its requests, and until then takes no more of them. Does not wait.
    /// A pool that adapts ([`Topology::adapts`]) may move it again.
    pub fn move_lane(&self, index: u16, thread: usize) {
        // Without such a thread, it stays.
        if self.workers.make(thread).is_ok() {
            self.routes.move_lane(index, thread);
        }
    }

    #[cfg(test)]
    pub(crate) fn make(&self, thread: usize) {
        self.workers.make(thread).unwrap_or_else(|error| panic!("{error}"));
    }

    #[cfg(test)]
    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    fn send(&self, index: u16, message: Message) -> Result<(), LaneError> {
        self.workers.send(index, message)
    }

    /// Sends a message that is answered, and waits for the answer.
    fn ask<T>(
        &self,
        index: u16,
        calls: &[BorrowedFd<'_>],
        message: impl FnOnce(Sender<T>) -> Message,
    ) -> Result<T, LaneError> {
        let (reply, answer) = channel();
        self.send(index, message(reply))?;
        wait(&answer, calls)
    }

    /// Sets the common limits of all lanes from now on: those that run, and those that start. Does
    /// not wait for those that run; each goes by the new limits after the round that it is in.
    pub fn set_limits(&self, limits: Limits) {
        let mut held = locked(&self.limits);
        let budget = match &held.1 {
            Some(old) => old.replaced_by(limits),
            None => Budget::new(limits),
        };
        *held = (limits, budget.map(Arc::new));
        // Also to those that are not known to run yet: their start may be in the inbox.
        for index in 0..self.routes.queues() {
            // A thread that is gone begins no request.
            let _ = self.send(index, Message::SetLimits { index, limits: held.1.clone() });
        }
    }

    /// The common limits of all lanes, and how often they kept one waiting since they were set.
    pub fn limits(&self) -> (Limits, Waits) {
        let held = locked(&self.limits);
        (held.0, held.1.as_ref().map(|budget| budget.waits()).unwrap_or_default())
    }

    /// Starts the lane of queue `index`. `calls`: see [`Pool`].
    ///
    /// # Errors
    /// [`LaneError`].
    pub fn start(
        &self,
        index: u16,
        config: LaneConfig,
        calls: &[BorrowedFd<'_>],
    ) -> Result<(), LaneError> {
        let counters = Arc::clone(&config.counters);
        let (reply, answer) = channel();
        let held = locked(&self.limits);
        let limits = held.1.clone();
        self.send(index, Message::Start { index, config: Box::new(config), limits, reply })?;
        drop(held);
        wait(&answer, calls)??;
        self.routes.set_running(index, Some(counters));
        Ok(())
    }

    /// Stops the lane of queue `index` when its last request in flight is answered. `None`, if
    /// there was none.
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn stop(&self, index: u16, calls: &[BorrowedFd<'_>]) -> Result<Option<Stopped>, LaneError> {
        self.routes.set_running(index, None);
        self.ask(index, calls, |reply| Message::Stop { index, suspends: false, reply })
    }

    /// As [`Pool::stop`], for a queue that marks its requests in flight
    /// ([`vlane_ring::Queue::track`]). Requests that the storage has not begun stay in flight, for
    /// the queue's next server. Those that it has begun are waited for, because they cannot be
    /// cancelled: a late write would hit the next server's.
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn suspend(
        &self,
        index: u16,
        calls: &[BorrowedFd<'_>],
    ) -> Result<Option<Stopped>, LaneError> {
        self.routes.set_running(index, None);
        self.ask(index, calls, |reply| Message::Stop { index, suspends: true, reply })
    }

    /// Stops all these lanes within `limit`, or as many as can be. A lane whose storage hangs
    /// continues instead, as without the request. Says which have stopped; a lane that did not run
    /// is not among them.
    ///
    /// # Errors
    /// [`LaneError::Gone`]: a thread is lost, and its lanes with it; those of the others have
    /// stopped or continue.
    pub fn try_stop(
        &self,
        lanes: &[(u16, Arc<Counters>)],
        limit: Duration,
    ) -> Result<Vec<(u16, Stopped)>, LaneError> {
        let begin = Instant::now();
        let (mut asked, mut lost) = (Vec::new(), false);
        // All of them, before the first is waited for.
        for (index, counters) in lanes {
            let (index, stop) = (*index, Arc::new(CancellableRequest::default()));
            let (reply, answer) = channel();
            self.routes.set_running(index, None);
            match self.send(index, Message::TryStop { index, stop: Arc::clone(&stop), reply }) {
                Ok(()) => asked.push((index, counters, stop, answer)),
                Err(_) => lost = true,
            }
        }
        let mut stopped = Vec::new();
        for (index, counters, stop, answer) in asked {
            let mut told = answer.recv_timeout(limit.saturating_sub(begin.elapsed()));
            if matches!(told, Err(RecvTimeoutError::Timeout)) {
                if stop.cancel() {
                    let _ = self.send(index, Message::CarryOn { index });
                    self.routes.set_running(index, Some(Arc::clone(counters)));
                    continue;
                }
                // It is stopping at this moment.
                told = answer.recv().map_err(RecvTimeoutError::from);
            }
            match told {
                Ok(end) => stopped.extend(end.map(|end| (index, end))),
                Err(_) => lost = true,
            }
        }
        if lost { Err(LaneError::Gone) } else { Ok(stopped) }
    }

    /// Lets all these lanes take no more requests, before they are stopped one after the other.
    /// Otherwise one whose storage hangs would keep the others running until then. Does not wait.
    pub fn hold(&self, indices: impl IntoIterator<Item = u16>) {
        for index in indices {
            // A thread that is gone takes none.
            let _ = self.send(index, Message::Hold { index });
        }
    }

    /// Replaces the lane's call descriptor; `calls` must have the old one, too.
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn set_call(
        &self,
        index: u16,
        call: Option<OwnedFd>,
        calls: &[BorrowedFd<'_>],
    ) -> Result<(), LaneError> {
        self.ask(index, calls, |reply| Message::SetCall { index, call, reply })
    }

    /// Gives the lane other memory. With `drain`, only after its requests in flight are answered,
    /// so that the old memory is not touched any more when this returns.
    ///
    /// # Errors
    /// [`LaneError::Queue`] when the ring is not in the new memory, [`LaneError::Gone`].
    pub fn set_memory(
        &self,
        index: u16,
        memory: Arc<GuestMemory>,
        drain: bool,
        calls: &[BorrowedFd<'_>],
    ) -> Result<(), LaneError> {
        self.ask(index, calls, |reply| Message::SetMemory { index, memory, drain, reply })?
    }

    /// Begins or ends dirty logging; see [`vlane_ring::Queue::set_log`]. The lane's writes after
    /// the return are logged.
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn set_log(
        &self,
        index: u16,
        log: Option<Arc<DirtyLog>>,
        ring: Option<u64>,
        calls: &[BorrowedFd<'_>],
    ) -> Result<(), LaneError> {
        self.ask(index, calls, |reply| Message::SetLog { index, log, ring, reply })
    }

    /// Answer writes only when they are durable, or no longer.
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn set_write_through(
        &self,
        index: u16,
        on: bool,
        calls: &[BorrowedFd<'_>],
    ) -> Result<(), LaneError> {
        self.ask(index, calls, |reply| Message::SetWriteThrough { index, on, reply })
    }

    /// Records the lane of queue `index` from now on, or from when it starts, across its stops and
    /// starts; `None` ends that. Does not wait: a recorder has ended when its [`crate::Recorded`]
    /// says so.
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn set_recorder(
        &self,
        index: u16,
        recorder: Option<Box<Recorder>>,
    ) -> Result<(), LaneError> {
        self.send(index, Message::SetRecorder { index, recorder })
    }

    /// Connects the lane of queue `index` to the vCPU scheduler, now or from its start, across its
    /// stops and starts; `None` ends that. Does not wait.
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn set_hint(&self, index: u16, hint: Option<Box<LaneHint>>) -> Result<(), LaneError> {
        self.send(index, Message::SetHint { index, hint })
    }

    /// The volume has another size.
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn set_sectors(
        &self,
        index: u16,
        sectors: u64,
        calls: &[BorrowedFd<'_>],
    ) -> Result<(), LaneError> {
        self.ask(index, calls, |reply| Message::SetSectors { index, sectors, reply })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for an answer, emptying `calls` once a second so that a full one cannot keep the thread in
/// a write.
fn wait<T>(answer: &Receiver<T>, calls: &[BorrowedFd<'_>]) -> Result<T, LaneError> {
    loop {
        match answer.recv_timeout(Duration::from_secs(1)) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(LaneError::Gone),
            Err(RecvTimeoutError::Timeout) => {
                for call in calls {
                    // For any mode of the descriptor: another holder may be quicker to read it.
                    let (mut count, current) = ([0u8; 8], u64::MAX);
                    let mut buffers = [IoSliceMut::new(&mut count)];
                    let _ =
                        rustix::io::preadv2(call, &mut buffers, current, ReadWriteFlags::NOWAIT);
                }
            }
        }
    }
}
