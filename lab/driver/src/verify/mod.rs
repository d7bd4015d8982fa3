//! Checks that a back end keeps its data, also when it is killed in between.
//!
//! Every written block carries, in each of its 512-byte sectors, the run it belongs to and its own
//! address. It also carries a generation that grows with every write of the block, and a checksum.
//! A model in memory ([`VerifyState`]) knows for each block which generations a read may return.
//! While all is well, that is exactly the last acknowledged one. After a crash of the back end it
//! is any that was issued since the last one known to be flushed. [`verify_load`] writes, reads and
//! flushes at random and checks every read; [`verify_check`] reads everything and compares.
//!
//! The model lives in the driver, which survives the back end's death. To check a back end that was
//! killed: take the state of [`verify_load`], connect to the new back end, [`verify_check`]. Then
//! load it again with the same state, and so on:
//!
//! ```no_run
//! # use vlane_driver::{Session, SessionOptions, VerifyState, Workload};
//! # use vlane_driver::{verify_check, verify_load};
//! # fn start_back_end() {} fn kill_it_some_time_later() {}
//! # fn main() -> Result<(), vlane_driver::Error> {
//! # let socket = std::path::Path::new("/run/disk.sock");
//! # let going_on = &mut |_| std::ops::ControlFlow::Continue(());
//! let options = SessionOptions { depth: 32, ..SessionOptions::default() };
//! let load = Workload::verified();
//! start_back_end();
//! let mut state = VerifyState::new(&Session::connect(socket, &options)?, &load)?;
//! for _ in 0..100 {
//!     kill_it_some_time_later();
//!     let report = verify_load(Session::connect(socket, &options)?, &mut state, &load, going_on)?;
//!     assert!(report.backend_gone && report.is_clean(), "{report:?}");
//!     start_back_end();
//!     let report = verify_check(Session::connect(socket, &options)?, &mut state, going_on)?;
//!     assert!(report.is_clean(), "{report:?}");
//! }
//! # Ok(()) }
//! ```

mod job;
mod model;
mod sector;
mod state;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::lanes::Manner;
use crate::random::Rng;
use crate::run::{Driven, OnProgress, Plan, drive};
use crate::session::Session;
use crate::window::Errors;
use crate::workload::{Limit, Workload, region};
use job::VerifyJob;
use model::Block;
pub use model::Mismatch;

/// Flush after so many writes of a job, unless the load says otherwise.
const FLUSH_EVERY: u32 = 64;

/// The possible contents of each block of a region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyState {
    /// Distinguishes this run's sectors from other data on the device.
    run: u64,
    block: u32,
    offset: u64,
    capacity: u64,
    blocks: Vec<Block>,
}

impl VerifyState {
    /// A state for a device with unknown contents.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the region does not fit the device.
    pub fn new(session: &Session, options: &Workload) -> Result<Self, Error> {
        if options.block == 0 || !options.block.is_multiple_of(512) {
            return ErrorKind::Invalid
                .fail(format!("a block size of {} bytes is not a multiple of 512", options.block));
        }
        let config = session.config();
        let most = config.capacity.saturating_sub(options.offset);
        let size = options.size.unwrap_or(most.min(64 << 20));
        let region = region(options.offset, Some(size), options.block, config)?;
        let count =
            usize::try_from(region.blocks).ok().filter(|n| *n <= 1 << 30).ok_or_else(|| {
                let text = "the region has too many blocks to keep account of; give a size";
                Error::new(ErrorKind::Invalid, text)
            })?;
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let run = twox_hash::XxHash3_64::oneshot_with_seed(
            u64::from(std::process::id()),
            &now.as_nanos().to_le_bytes(),
        );
        Ok(Self {
            run,
            block: options.block,
            offset: region.offset,
            capacity: config.capacity,
            blocks: vec![Block::default(); count],
        })
    }

    /// Notes that the back end has died: writes acknowledged since the last flush may be lost. A
    /// load that the back end did not survive does so itself. Call this when a machine went down
    /// between two loads.
    pub fn crashed(&mut self) {
        self.blocks.iter_mut().for_each(Block::crash);
    }

    /// Checks that a session's device is the state's device.
    fn fits(&self, session: &Session) -> Result<(), Error> {
        let fail = |context: String| ErrorKind::State.fail(context);
        let capacity = session.config().capacity;
        if capacity < self.capacity {
            return fail(format!(
                "the state is about a device of {} bytes, this one has {capacity}",
                self.capacity
            ));
        }
        if session.data() < self.block {
            return fail(format!(
                "the session's buffers are smaller than the state's blocks of {} bytes",
                self.block
            ));
        }
        let queues = usize::from(session.negotiated().queues);
        if self.blocks.len() < queues * usize::from(session.depth()) * 2 {
            return fail(format!(
                "{} blocks are too few for {queues} jobs of that depth",
                self.blocks.len()
            ));
        }
        Ok(())
    }
}

/// The findings of a verified load or a check.
#[derive(Debug, Clone, Default, Serialize)]
pub struct VerifyReport {
    /// Blocks read and compared.
    pub reads: u64,
    /// Blocks written.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Sectors that held what they must not: the back end lost or damaged data.
    pub mismatches: u64,
    /// The first of them.
    pub first: Vec<Mismatch>,
    /// Blocks whose last acknowledged write was gone after a crash, having never been flushed: a
    /// device may do that.
    pub unflushed_lost: u64,
    /// Requests that failed.
    pub errors: Errors,
    /// True if the back end hung up before the end.
    pub backend_gone: bool,
    /// Back ends that came after others which had hung up
    /// ([`SessionOptions::reconnect`](crate::SessionOptions::reconnect)).
    pub reconnects: u64,
    /// The elapsed time, in seconds.
    pub seconds: f64,
}

impl VerifyReport {
    /// Returns true if all data read were right and no request failed.
    pub fn is_clean(&self) -> bool {
        self.mismatches == 0 && self.errors.total() == 0
    }
}

/// Most mismatches that are kept in words.
const FIRST: usize = 16;

/// Writes, reads and flushes a session's device at random, checking every read; ends by a flush if
/// the back end lives.
///
/// The state is always good for a following [`verify_check`] or load. The session must not have
/// been started; it is ended.
///
/// # Errors
/// [`ErrorKind::State`] if the state is not about this device, and as [`run`](crate::run). But a
/// back end that hangs up is no error here; it sets [`VerifyReport::backend_gone`].
pub fn verify_load(
    session: Session,
    state: &mut VerifyState,
    options: &Workload,
    progress: &mut OnProgress<'_>,
) -> Result<VerifyReport, Error> {
    if session.config().read_only {
        return ErrorKind::Invalid.fail("the device is read-only; a verified load writes");
    }
    if options.pattern.read_percent().is_none_or(|percent| percent >= 100) {
        return ErrorKind::Invalid.fail("a verified load needs writes");
    }
    go(session, state, Some(options), progress)
}

/// Reads every block that the state knows and compares; what is found then counts as what is there.
///
/// The session must not have been started; it is ended.
///
/// # Errors
/// As [`verify_load`].
pub fn verify_check(
    session: Session,
    state: &mut VerifyState,
    progress: &mut OnProgress<'_>,
) -> Result<VerifyReport, Error> {
    go(session, state, None, progress)
}

/// Loads, or reads all blocks once.
fn go(
    mut session: Session,
    state: &mut VerifyState,
    load: Option<&Workload>,
    progress: &mut OnProgress<'_>,
) -> Result<VerifyReport, Error> {
    state.fits(&session)?;
    let (mut queues, waker) = session.start()?;
    let (run, block, volatile) = (state.run, state.block, session.negotiated().write_cache);
    let can_flush = session.negotiated().flush;
    let check = Workload { limit: Limit::Count(0), seed: 0, ..Workload::default() };
    let options = load.unwrap_or(&check);
    let plan = Plan::of(options.limit, Duration::ZERO);
    let started = std::time::Instant::now();

    let jobs = queues.len();
    let mut rest = state.blocks.as_mut_slice();
    let mut first_sector = state.offset / 512;
    let mut sources = Vec::with_capacity(jobs);
    for (index, queue) in queues.chunks_mut(1).enumerate() {
        // The remaining blocks over the remaining jobs: equal to within one.
        let (blocks, others) = rest.split_at_mut(rest.len() / (jobs - index));
        rest = others;
        let sectors = blocks.len() as u64 * u64::from(block / 512);
        let job = VerifyJob {
            busy: vec![false; blocks.len()],
            left: load.map_or(blocks.len() as u64, |_| plan.window.count),
            blocks,
            load,
            run,
            first_sector,
            block,
            durable_when_done: !volatile || !can_flush,
            can_flush,
            rng: Rng::new(options.seed ^ run ^ (index as u64) << 48),
            final_flush: load.is_some() && can_flush,
            dirty: Vec::new(),
            flushing: None,
            writes_since: 0,
            next: 0,
            buffer: vec![0; block as usize],
            report: VerifyReport::default(),
        };
        sources.push((queue, job));
        first_sector += sectors;
    }
    let (wait, cpus) = (options.wait, &options.cpus[..]);
    let manner = Manner { wait, cpus, ..Manner::usual(plan.window) };
    let Driven { jobs, failure, .. } =
        drive(&mut session, &waker, &plan, manner, sources, progress);
    let mut report = VerifyReport::default();
    jobs.into_iter().for_each(|(job, _)| report.add(job.report));
    if failure.is_some() {
        // Requests that were out are in doubt, and unflushed data may go with the process.
        state.crashed();
    }
    report.seconds = started.elapsed().as_secs_f64();
    report.reconnects = session.reconnects();
    // If the session ends, all requests had come back and were flushed.
    match failure.map_or_else(|| session.stop(), Err) {
        Err(error) if !error.is_gone() => Err(error),
        ended => {
            report.backend_gone = ended.is_err();
            Ok(report)
        }
    }
}

impl VerifyReport {
    fn add(&mut self, other: Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.mismatches += other.mismatches;
        self.first.extend(other.first);
        self.first.truncate(FIRST);
        self.unflushed_lost += other.unflushed_lost;
        self.errors.add(&other.errors);
    }
}
