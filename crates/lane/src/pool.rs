//! The lane threads of one volume, and what control can ask of them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::thread::CpuSet;
use vlane_engine::{EngineError, Uring};
use vlane_ring::{DirtyLog, GuestMemory, QueueError};

use crate::counters::Snapshot;
use crate::inbox::{Message, Outbox, pair};
use crate::lane::LaneConfig;
use crate::thread::Thread;
use crate::topology::Topology;

/// Submissions that fit into a thread's io_uring at a time; more are submitted in parts.
const URING_ENTRIES: u32 = 1024;

/// What makes a pool.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Threads and their CPUs.
    pub topology: Topology,
    /// The longest time that a thread looks for work before it sleeps; zero: it sleeps at once.
    pub poll_max: Duration,
}

/// Why a lane could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The virtqueue is not as it should be.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The storage refused.
    #[error(transparent)]
    Engine(EngineError),
    /// The system refused.
    #[error("the system refused a lane thread something")]
    System(#[source] io::Error),
    /// There is a lane for this queue already.
    #[error("queue {index} is running already")]
    Running {
        /// The queue's index.
        index: u16,
    },
    /// The thread is not there any more.
    #[error("the lane's thread has ended")]
    Gone,
}

/// What is left of a lane.
#[derive(Debug, Clone, Copy)]
pub struct Stopped {
    /// Where another back end must go on ([`vlane_ring::QueueConfig::base`]).
    pub base: u32,
    /// What it counted.
    pub counters: Snapshot,
}

#[derive(Debug)]
struct Worker {
    outbox: Outbox,
    join: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outbox")
    }
}

/// The lane threads of one volume. Queue i runs on thread i modulo their number. Dropping it drains all lanes.
#[derive(Debug)]
pub struct Pool {
    workers: Vec<Worker>,
}

impl Pool {
    /// Starts the threads; a thread without lanes sleeps and costs nothing.
    ///
    /// # Errors
    /// [`LaneError::Engine`] without io_uring, [`LaneError::System`].
    pub fn new(config: &PoolConfig) -> Result<Pool, LaneError> {
        let mut pool = Pool { workers: Vec::new() };
        for number in 0..usize::from(config.topology.threads) {
            let cpu = config.topology.cpus.get(number).copied();
            pool.workers.push(spawn(number, cpu, config.poll_max)?);
        }
        Ok(pool)
    }

    fn worker(&self, index: u16) -> &Worker {
        &self.workers[usize::from(index) % self.workers.len()]
    }

    fn send(&self, index: u16, message: Message) -> Result<(), LaneError> {
        self.worker(index).outbox.send(message).then_some(()).ok_or(LaneError::Gone)
    }

    /// Starts the lane of queue `index`.
    ///
    /// # Errors
    /// [`LaneError`].
    pub fn start(&self, index: u16, config: LaneConfig) -> Result<(), LaneError> {
        let (reply, answer) = channel();
        self.send(index, Message::Start { index, config: Box::new(config), reply })?;
        answer.recv().map_err(|_| LaneError::Gone)?
    }

    /// Stops the lane of queue `index` when its last request in flight is answered. Nothing, if there was none.
    ///
    /// `call` is the lane's call descriptor, if it has one: a front end that let it fill up keeps the lane waiting
    /// for ever in its next signal; emptying it here lets the lane go on.
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn stop(&self, index: u16, call: Option<&OwnedFd>) -> Result<Option<Stopped>, LaneError> {
        let (reply, answer) = channel();
        self.send(index, Message::Stop { index, reply })?;
        wait(&answer, call)
    }

    /// Replaces the lane's call descriptor.
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn set_call(&self, index: u16, call: Option<OwnedFd>) -> Result<(), LaneError> {
        self.send(index, Message::SetCall { index, call })
    }

    /// Lets the lane go on with other memory; with `drain`, only after its requests in flight are answered, so
    /// that the old memory is not touched any more when this returns.
    ///
    /// # Errors
    /// [`LaneError::Queue`] when the ring is not in the new memory, [`LaneError::Gone`].
    pub fn set_memory(
        &self,
        index: u16,
        memory: Arc<GuestMemory>,
        drain: bool,
        call: Option<&OwnedFd>,
    ) -> Result<(), LaneError> {
        let (reply, answer) = channel();
        self.send(index, Message::SetMemory { index, memory, drain, reply })?;
        wait(&answer, call)?
    }

    /// Begins or ends dirty logging; see [`vlane_ring::Queue::set_log`].
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn set_log(&self, index: u16, log: Option<Arc<DirtyLog>>, ring: Option<u64>) -> Result<(), LaneError> {
        self.send(index, Message::SetLog { index, log, ring })
    }

    /// Answer writes only when they are durable, or no longer.
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn set_write_through(&self, index: u16, on: bool) -> Result<(), LaneError> {
        self.send(index, Message::SetWriteThrough { index, on })
    }

    /// The volume has another size.
    ///
    /// # Errors
    /// [`LaneError::Gone`].
    pub fn set_sectors(&self, index: u16, sectors: u64) -> Result<(), LaneError> {
        self.send(index, Message::SetSectors { index, sectors })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for worker in &self.workers {
            worker.outbox.send(Message::Exit);
        }
        for worker in &mut self.workers {
            if let Some(join) = worker.join.take()
                && join.join().is_err()
            {
                tracing::error!("a lane thread panicked");
            }
        }
    }
}

/// Waits for an answer, emptying `call` once a second so that nobody can keep the lane in a write to it.
fn wait<T>(answer: &Receiver<T>, call: Option<&OwnedFd>) -> Result<T, LaneError> {
    loop {
        match answer.recv_timeout(Duration::from_secs(1)) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(LaneError::Gone),
            Err(RecvTimeoutError::Timeout) => {
                let Some(call) = call else { continue };
                let mut fds = [PollFd::new(call, PollFlags::IN)];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                if rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
                    let _ = rustix::io::read(call.as_fd(), &mut [0u8; 8]);
                }
            }
        }
    }
}

fn spawn(number: usize, cpu: Option<usize>, poll_max: Duration) -> Result<Worker, LaneError> {
    let (outbox, inbox) = pair()?;
    let (ready, started) = channel();
    let body = move || {
        if let Some(cpu) = cpu {
            let mut set = CpuSet::new();
            set.set(cpu);
            if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
                tracing::warn!("lane thread {number} cannot be pinned to CPU {cpu}: {error}");
            }
        }
        // Deadlines of a modelled device are exact; the default slack is 50 us.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        match Uring::new(URING_ENTRIES) {
            Ok(uring) => {
                let _ = ready.send(Ok(()));
                Thread::new(uring, inbox, poll_max).run();
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        }
    };
    let join = std::thread::Builder::new().name(format!("lane-{number}")).spawn(body)?;
    started.recv().map_err(|_| LaneError::Gone)??;
    Ok(Worker { outbox, join: Some(join) })
}
