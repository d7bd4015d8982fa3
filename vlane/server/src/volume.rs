//! The served volume: an engine and its lane threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vlane_engine::file::Identity;
use vlane_engine::{Engine, Geometry, LostWrite};
use vlane_error::locked;
use vlane_lane::{
    Alarm, ClassBoard, Counters, LaneError, PollMode, Pool, PoolConfig, Snapshot, Topology, Waits,
};
use vlane_policy::express::Express;
use vlane_policy::throttle::{Limits, LimitsError};

use crate::recorded::Recording;
use crate::schedulers::Schedulers;
use crate::stall::{Stalls, Unanswered};
use crate::unused::Unused;
use crate::watch::VolumeWatch;

/// A volume's options, besides its engine.
#[derive(Debug, Clone)]
pub struct VolumeConfig {
    /// For messages: the image's name.
    pub name: String,
    /// The disk's serial number, as the guest sees it; at most 20 bytes.
    pub serial: String,
    /// Queues, threads, CPUs.
    pub topology: Topology,
    /// The polling mode of threads.
    pub poll: PollMode,
    /// Longest busy polling; zero: none.
    pub poll_max: Duration,
    /// The treatment of the guest's request priorities.
    pub express: Express,
}

impl VolumeConfig {
    /// Offers no more queues than there are descriptors for, though no fewer than threads. For a
    /// default number of queues.
    pub fn fit_descriptors(&mut self) {
        let Some(limit) = vlane_error::raise_descriptor_limit() else { return };
        let left = limit.saturating_sub(of_threads(self) + OTHERS) / OF_QUEUE;
        let most = u16::try_from(left).unwrap_or(u16::MAX).max(self.topology.threads);
        self.topology.queues = self.topology.queues.min(most);
    }
}

/// The reason why a volume cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// A lane thread did not start.
    #[error("{name}: cannot start its lane threads")]
    Threads {
        /// The volume.
        name: String,
        /// The reason.
        #[source]
        source: LaneError,
    },
    /// Too long, or not what the specification allows.
    #[error(
        "serial number {serial:?} is longer than 20 bytes or not plain ASCII; choose another with \
         --serial"
    )]
    Serial {
        /// As given.
        serial: String,
    },
    /// There are not enough file descriptors.
    #[error(
        "{name}: {queues} queues need up to {needed} file descriptors, but this process may only \
         open {limit}; raise the limit (ulimit -n, or LimitNOFILE= of the service), or offer \
         fewer with --queues"
    )]
    Descriptors {
        /// The volume.
        name: String,
        /// Offered.
        queues: u16,
        /// Descriptors.
        needed: u64,
        /// Descriptors.
        limit: u64,
    },
}

/// Facts on the present session, for clients of the control socket.
#[derive(Debug, Clone, Default)]
pub(crate) struct SessionFacts {
    /// Counted from 1.
    pub(crate) number: u64,
    /// The front end's process.
    pub(crate) pid: Option<i32>,
    /// Virtio feature bits that were agreed on.
    pub(crate) features: u64,
    /// Lanes that run.
    pub(crate) lanes: Vec<u16>,
}

/// A volume: serves one session at a time.
#[derive(Debug)]
pub struct Volume {
    pub(crate) config: VolumeConfig,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) pool: Pool,
    /// Goes after the pool: it tells of the last requests, too.
    watch: VolumeWatch,
    pub(crate) counters: Vec<Arc<Counters>>,
    /// The lanes' counts by class, if there are classes.
    pub(crate) classes: Option<Arc<ClassBoard>>,
    pub(crate) recording: Recording,
    pub(crate) schedulers: Schedulers,
    /// None for storage that cannot hang.
    stalls: Option<Stalls>,
    sessions: AtomicU64,
    pub(crate) session: Mutex<Option<SessionFacts>>,
    /// The identity of the image, if it is one.
    identity: Option<Identity>,
    /// A guest that had another disk may continue with it.
    may_be_another: bool,
    /// The last reported front end that ran no ring, and the reason.
    pub(crate) told_unused: Mutex<Option<(Option<i32>, Unused)>>,
}

impl Volume {
    /// Starts the volume's threads.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn new(engine: Arc<dyn Engine>, config: VolumeConfig) -> Result<Volume, VolumeError> {
        if config.serial.len() > 20
            || !config.serial.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
        {
            return Err(VolumeError::Serial { serial: config.serial });
        }
        check_descriptors(&config)?;
        let pool_config = PoolConfig {
            topology: config.topology.clone(),
            poll: config.poll,
            poll_max: config.poll_max,
            hands_over: config.express.mode.hands_over(),
        };
        let pool = Pool::new(&pool_config)
            .map_err(|source| VolumeError::Threads { name: config.name.clone(), source })?;
        let system = |source| VolumeError::Threads {
            name: config.name.clone(),
            source: LaneError::System(source),
        };
        let alarm = Arc::new(Alarm::new().map_err(system)?);
        let counters: Vec<Arc<Counters>> = (0..config.topology.queues)
            .map(|_| Arc::new(Counters::with_alarm(Arc::clone(&alarm))))
            .collect();
        let watch = VolumeWatch::start(&config.name, Arc::clone(&engine), counters.clone(), alarm)
            .map_err(system)?;
        let stalls =
            engine.can_hang().then(|| Stalls::start(&config.name)).transpose().map_err(system)?;
        let classes = config
            .express
            .mode
            .classifies()
            .then(|| Arc::new(ClassBoard::new(config.topology.queues)));
        let identity = engine.identity();
        Ok(Volume {
            identity,
            may_be_another: false,
            config,
            engine,
            pool,
            watch,
            counters,
            classes,
            recording: Recording::default(),
            schedulers: Schedulers::None,
            stalls,
            sessions: AtomicU64::new(0),
            session: Mutex::default(),
            told_unused: Mutex::default(),
        })
    }

    /// Sets the volume's limits, for all its lanes together, from now on. Does not wait for
    /// requests that have begun.
    ///
    /// # Errors
    /// [`LimitsError`]; then the old limits stay.
    pub fn set_limits(&self, limits: Limits) -> Result<(), LimitsError> {
        limits.check()?;
        self.pool.set_limits(limits);
        Ok(())
    }

    /// The volume's limits, and how often they kept a lane waiting since they were set.
    pub fn limits(&self) -> (Limits, Waits) {
        self.pool.limits()
    }

    /// Tells a vCPU scheduler of completed I/O.
    pub fn with_schedulers(mut self, schedulers: Schedulers) -> Volume {
        self.schedulers = schedulers;
        self
    }

    /// Descriptors that a process needs which takes over with so many of them: these, the lanes'
    /// copies, and its own. It refuses to start with less than any volume like this needs.
    pub fn descriptors_with(&self, handed: usize) -> u64 {
        let running =
            handed as u64 + 2 * u64::from(self.queues()) + of_threads(&self.config) + OTHERS;
        running.max(needed(&self.config))
    }

    /// Lets a guest continue with this image that had another one, or a longer one: the image is
    /// ruined if that is a mistake.
    pub fn for_any_guest(mut self, may_be_another: bool) -> Volume {
        self.may_be_another = may_be_another;
        self
    }

    /// The identity of the image, if it is one.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// [`Volume::for_any_guest`].
    pub(crate) fn may_be_another(&self) -> bool {
        self.may_be_another
    }

    /// The disk's properties for a guest.
    pub fn geometry(&self) -> Geometry {
        self.engine.geometry()
    }

    /// Queues that are offered.
    pub fn queues(&self) -> u16 {
        self.config.topology.queues
    }

    /// The lanes that run, each with its thread.
    pub fn places(&self) -> Vec<(u16, usize)> {
        self.pool.places()
    }

    /// Lane threads that have ended by a fault: their queues are not served any more.
    pub fn lost_threads(&self) -> Vec<usize> {
        self.pool.lost()
    }

    /// The counts of all lanes since the volume is served.
    pub fn counters(&self) -> Snapshot {
        self.counters.iter().fold(Snapshot::default(), |mut sum, lane| {
            sum.add(&lane.snapshot());
            sum
        })
    }

    /// Writes all data to stable storage, even without a guest's flush.
    ///
    /// # Errors
    /// The storage's error; after a lost write, always the error of that loss.
    pub fn sync(&self) -> std::io::Result<()> {
        let result = self.engine.sync();
        if result.is_err() {
            self.watch.look();
        }
        result
    }

    /// Ends the lanes' threads, with their io_urings: see [`Pool::end`]. For a process that ends
    /// next.
    pub fn end(&self) {
        self.pool.end();
    }

    /// Writes that were answered and are lost, if there are any. The loss was reported, as an
    /// error; all writes and flushes since then were answered with one.
    pub fn lost_write(&self) -> Option<LostWrite> {
        self.engine.lost_write()
    }

    /// Sets the function to call, once, when writes are lost: in a thread of the volume's, which
    /// may take its time. Only the first function counts.
    pub fn on_lost_write(&self, what: impl Fn() + Send + Sync + 'static) {
        self.watch.on_loss(Box::new(what));
    }

    /// Times that a request waited for the storage for as long as [`crate::STALLED`].
    pub fn stalls(&self) -> u64 {
        self.stalls.as_ref().map_or(0, Stalls::count)
    }

    /// The requests that the storage has not answered, the oldest first.
    pub fn unanswered(&self) -> Vec<Unanswered> {
        self.stalls.as_ref().map(Stalls::unanswered).unwrap_or_default()
    }

    /// For lanes.
    pub(crate) fn watch(&self) -> Option<Arc<vlane_lane::PendingRequests>> {
        self.stalls.as_ref().map(Stalls::watch)
    }

    pub(crate) fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Another process has counted so many before.
    pub(crate) fn continue_sessions(&self, sessions: u64) {
        self.sessions.store(sessions, Ordering::Relaxed);
    }

    /// Sessions so far, the present one included.
    pub(crate) fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// The present session.
    pub(crate) fn session(&self) -> Option<SessionFacts> {
        locked(&self.session).clone()
    }

    pub(crate) fn serial(&self) -> [u8; 20] {
        let mut serial = [0; 20];
        serial[..self.config.serial.len()].copy_from_slice(self.config.serial.as_bytes());
        serial
    }
}

/// Descriptors that a volume needs in addition to its queues and threads. They are files, sockets,
/// and those of the user. A message also brings some (at most 32 memory regions, for as long as
/// they are mapped).
const OTHERS: u64 = 64;

/// Descriptors of each thread: an io_uring and an inbox, its CPU time if a client asks for it, and
/// a bell if others hand it operations.
fn of_threads(config: &VolumeConfig) -> u64 {
    let Topology { threads, adapts, .. } = config.topology;
    (2 + u64::from(adapts) + u64::from(config.express.mode.hands_over())) * u64::from(threads)
}

/// Descriptors of each queue: kick, call and error. The lane has copies of two while it runs;
/// during an upgrade there are copies of all three.
const OF_QUEUE: u64 = 6;

fn needed(config: &VolumeConfig) -> u64 {
    OF_QUEUE * u64::from(config.topology.queues) + of_threads(config) + OTHERS
}

/// Refuses a volume that the limit of descriptors is too low for.
fn check_descriptors(config: &VolumeConfig) -> Result<(), VolumeError> {
    let (queues, needed) = (config.topology.queues, needed(config));
    match vlane_error::raise_descriptor_limit() {
        Some(limit) if limit < needed => {
            Err(VolumeError::Descriptors { name: config.name.clone(), queues, needed, limit })
        }
        _ => Ok(()),
    }
}
