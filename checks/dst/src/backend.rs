//! The back end: an engine, its threads and lanes, and the pending requests of control.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use vlane_engine::Engine;
use vlane_engine::file::{FileEngine, Simulated, SimulatedSyncs};
use vlane_lane::simulated::Threads;
use vlane_lane::{
    ClassBoard, Counters, EventReceiver, LaneConfig, LaneError, Stopped, event_channel,
};

use crate::guest::Guest;
use crate::kernel::{Files, Kernel};
use crate::plan::Plan;

type Given<T> = Result<T, Box<dyn std::error::Error>>;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Backend {
    engine: Arc<FileEngine>,
    pub(crate) threads: Threads,
    pub(crate) syncs: SimulatedSyncs,
    events: EventReceiver,
    board: Option<Arc<ClassBoard>>,
    starts: Vec<Receiver<Result<(), LaneError>>>,
    switches: Vec<Receiver<()>>,
    sizes: Vec<Receiver<()>>,
    stops: Vec<Receiver<Option<Stopped>>>,
    /// The positions where the lanes stopped, as far as they have.
    bases: Vec<u32>,
}

/// The answers to control.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// All lanes have the write cache as it was asked for.
    pub(crate) is_switched: bool,
    /// All lanes know the new size.
    pub(crate) is_resized: bool,
    /// All lanes have stopped, there.
    pub(crate) stopped: Option<Vec<u32>>,
    /// A broken invariant.
    pub(crate) failure: Option<String>,
}

/// An open image.
fn engine(plan: &Plan, sectors: u64, kernel: &Rc<RefCell<Kernel>>) -> Given<Arc<FileEngine>> {
    let file = || File::open("/dev/null");
    let is_direct = plan.cache == vlane_engine::file::Cache::None;
    let direct = is_direct.then(file).transpose()?;
    let (buffered, witness) = (file()?, file()?);
    let mut kernel = kernel.borrow_mut();
    kernel.files = Files {
        direct: direct.as_ref().map(AsRawFd::as_raw_fd),
        buffered: buffered.as_raw_fd(),
        witness: witness.as_raw_fd(),
        block: plan.block,
        memory: plan.memory,
    };
    kernel.open();
    let (cache, block, memory) = (plan.cache, plan.block, usize::try_from(plan.memory)?);
    let Plan { is_device, pieces, turns, .. } = *plan;
    let engine = Simulated {
        cache,
        direct,
        buffered,
        witness,
        block,
        memory,
        sectors,
        is_device,
        pieces,
        turns,
    };
    Ok(Arc::new(FileEngine::simulated(engine)))
}

impl Backend {
    /// A back end whose lanes are to start where `bases` says.
    pub(crate) fn new(
        plan: &Plan,
        sectors: u64,
        kernel: &Rc<RefCell<Kernel>>,
        guest: &Guest,
        bases: &[u32],
        write_through: bool,
    ) -> Given<Backend> {
        let engine = engine(plan, sectors, kernel)?;
        let syncs = engine.simulated_syncs();
        Backend::with((engine, syncs), plan, guest, bases, write_through)
    }

    /// Continues with the same image on other lanes.
    pub(crate) fn goes_on(
        self,
        plan: &Plan,
        guest: &Guest,
        bases: &[u32],
        write_through: bool,
    ) -> Given<Backend> {
        self.threads.die();
        Backend::with((self.engine, self.syncs), plan, guest, bases, write_through)
    }

    fn with(
        (engine, syncs): (Arc<FileEngine>, SimulatedSyncs),
        plan: &Plan,
        guest: &Guest,
        bases: &[u32],
        write_through: bool,
    ) -> Given<Backend> {
        let mut threads = Threads::new(plan.threads, plan.queues)?;
        let (sender, events) = event_channel()?;
        let board = plan.express.mode.classifies().then(|| Arc::new(ClassBoard::new(plan.queues)));
        let mut starts = Vec::new();
        for (index, base) in (0..plan.queues).zip(bases) {
            let (kick, call) = guest.descriptors(index)?;
            let engine: Arc<dyn Engine> = Arc::<FileEngine>::clone(&engine);
            let config = LaneConfig {
                queue: guest.device(index, *base)?,
                engine,
                kick: Some(kick),
                call: Some(call),
                serial: [0; 20],
                write_through,
                counters: Arc::new(Counters::default()),
                events: sender.clone(),
                watch: None,
                express: plan.express,
                classes: board.clone(),
            };
            starts.push(threads.start(index, config));
        }
        Ok(Backend {
            engine,
            threads,
            syncs,
            events,
            board,
            starts,
            switches: Vec::new(),
            sizes: Vec::new(),
            stops: Vec::new(),
            bases: Vec::new(),
        })
    }

    /// Returns true if an answer is awaited.
    pub(crate) fn is_asked(&self) -> bool {
        !(self.starts.is_empty()
            && self.switches.is_empty()
            && self.sizes.is_empty()
            && self.stops.is_empty())
    }

    /// Returns true if the lanes are to stop.
    pub(crate) fn stops(&self) -> bool {
        !self.stops.is_empty()
    }

    pub(crate) fn set_write_through(&mut self, queues: u16, on: bool) {
        self.switches =
            (0..queues).map(|index| self.threads.set_write_through(index, on)).collect();
    }

    pub(crate) fn set_sectors(&mut self, queues: u16, sectors: u64) {
        self.engine.set_sectors(sectors);
        self.sizes = (0..queues).map(|index| self.threads.set_sectors(index, sectors)).collect();
    }

    pub(crate) fn stop(&mut self, queues: u16, suspends: bool) {
        self.stops = (0..queues).map(|index| self.threads.stop(index, suspends)).collect();
    }

    /// Returns the answers to control so far.
    pub(crate) fn news(&mut self) -> News {
        let mut news = News::default();
        if let Some(event) = self.events.next() {
            news.failure = Some(format!("{event:?}"));
        }
        let mut fail = |why: String| news.failure = Some(why);
        self.starts.retain(|reply| match reply.try_recv() {
            Ok(Ok(())) => false,
            Ok(Err(error)) => {
                fail(format!("a lane does not start: {error}"));
                false
            }
            Err(_) => true,
        });
        news.is_switched = all_done(&mut self.switches);
        news.is_resized = all_done(&mut self.sizes);
        while let Some(stop) = self.stops.first() {
            match stop.try_recv() {
                Ok(Some(Stopped { base, .. })) => self.bases.push(base),
                Ok(None) => news.failure = Some("a lane that was to stop was not there".to_owned()),
                Err(_) => break,
            }
            self.stops.remove(0);
            if self.stops.is_empty() {
                news.stopped = Some(std::mem::take(&mut self.bases));
            }
        }
        news
    }

    /// The process is dead.
    pub(crate) fn die(self) {
        self.threads.die();
        drop(self.board);
    }
}

/// Returns true if the last of the answers has come.
fn all_done(replies: &mut Vec<Receiver<()>>) -> bool {
    let waited = !replies.is_empty();
    replies.retain(|reply| reply.try_recv() == Err(TryRecvError::Empty));
    waited && replies.is_empty()
}
