//! Operations that go to another thread's io_uring, over real files: lanes that stop, move and end
//! while some are out, threads that end.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use vlane_driver::ring::{Arena, BlkOptions, BlkQueue, Format, Request, RequestKind};
use vlane_engine::file::{Cache, FileEngine, FileOptions};
use vlane_engine::null::NullEngine;
use vlane_engine::{
    Channel, ChannelStats, Completion, Engine, EngineError, Geometry, Operation, Outcome, Status,
    StorageFile, Taken,
};
use vlane_policy::express::{Express, Mode};

use crate::{Counters, LaneConfig, PollMode, Pool, PoolConfig, Stopped, Topology, event_channel};

const DEPTH: u16 = 64;
const BLOCK: u32 = 4096;
/// The blocks of each lane; no other lane uses them.
const BLOCKS: u64 = 256;
const LIMIT: Duration = Duration::from_secs(60);
/// As Linux writes it for a real-time task.
const EXPRESS: u32 = 1 << 13;

fn engine(lanes: u64) -> Arc<dyn Engine> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = format!("/var/tmp/vlane-handing-{}-{number}", std::process::id());
    let file = std::fs::File::create_new(&path).unwrap();
    file.set_len(lanes * BLOCKS * u64::from(BLOCK)).unwrap();
    let options = FileOptions { cache: Cache::Auto, ..FileOptions::default() };
    let engine = FileEngine::open(path.as_ref(), options);
    std::fs::remove_file(path).unwrap();
    Arc::new(engine.unwrap())
}

/// A pipe: a read of it is in progress until a test writes, so a thread's queue is as long as a
/// test wants it.
#[derive(Debug)]
struct Pipe(StorageFile);

#[derive(Debug)]
struct PipeChannel([StorageFile; 1]);

impl Engine for Pipe {
    fn geometry(&self) -> Geometry {
        NullEngine::modelled(1 << 20, None).unwrap().geometry()
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn channel(&self, _: u16) -> Result<Box<dyn Channel>, EngineError> {
        Ok(Box::new(PipeChannel([self.0.clone()])))
    }
}

impl Channel for PipeChannel {
    fn files(&self) -> &[StorageFile] {
        &self.0
    }

    fn begin(&mut self, _taken: Taken<'_>, _: &mut Vec<Operation>) -> Outcome {
        Outcome::Whole(0)
    }

    fn finished(
        &mut self,
        taken: Taken<'_>,
        completion: Completion,
        _: &mut Vec<Operation>,
    ) -> Outcome {
        let is_whole = u64::try_from(completion.result) == Ok(taken.request.len());
        Outcome::Done(if is_whole { Status::Ok } else { Status::IoErr })
    }

    fn set_write_through(&mut self, _: bool) {}

    fn stats(&self) -> ChannelStats {
        ChannelStats::default()
    }
}

/// Reads that are under way in one thread, until they are let go.
struct Ballast {
    guest: Guest,
    to: OwnedFd,
}

impl Ballast {
    const READS: u16 = 40;
    const LEN: u32 = 512;

    fn new(index: u16, mode: Mode, pool: &Pool, ioprio: u32) -> Ballast {
        let (from, to) = rustix::pipe::pipe().unwrap();
        let engine: Arc<dyn Engine> = Arc::new(Pipe(StorageFile::new(from.into())));
        let mut guest = Guest::new(index, mode, &engine);
        guest.start(pool, None);
        for slot in 0..Ballast::READS {
            guest.read_pipe(slot, ioprio);
        }
        guest.show();
        guest.until_begun(Ballast::READS);
        Ballast { guest, to }
    }

    /// All reads end.
    fn let_go(&mut self) {
        let out = self.guest.out.iter().flatten().count();
        let bytes = vec![0; out * usize::try_from(Ballast::LEN).unwrap()];
        assert_eq!(rustix::io::write(&self.to, &bytes).unwrap(), bytes.len());
        self.guest.wait();
    }
}

fn pool(threads: u16) -> Pool {
    let topology = Topology { queues: threads * 2, threads, cpus: Vec::new(), adapts: false };
    let poll_max = Duration::from_micros(50);
    Pool::new(&PoolConfig { topology, poll: PollMode::Balanced, poll_max, hands_over: true })
        .unwrap()
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Numbers without a pattern that matters here.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[derive(Debug, Clone, Copy)]
struct Out {
    is_write: bool,
    is_of_pipe: bool,
    block: u64,
    version: u64,
}

/// One queue of a guest, and its lane in a pool.
struct Guest {
    index: u16,
    mode: Mode,
    arena: Arena,
    driver: BlkQueue,
    kick: OwnedFd,
    call: OwnedFd,
    engine: Arc<dyn Engine>,
    counters: Arc<Counters>,
    /// By slot.
    out: Vec<Option<Out>>,
    /// The last write to each block.
    versions: Vec<u64>,
    written: u64,
    answered: u64,
}

impl Guest {
    fn new(index: u16, mode: Mode, engine: &Arc<dyn Engine>) -> Guest {
        let format = if index.is_multiple_of(2) { Format::Split } else { Format::Packed };
        let (segments, data) = (if index == 1 { 3 } else { 1 }, BLOCK);
        let options = BlkOptions {
            format,
            size: None,
            depth: DEPTH,
            data,
            segments,
            indirect: true,
            event_idx: true,
        };
        let arena = Arena::new(0x8000_0000, options.arena_bytes().unwrap()).unwrap();
        let driver = BlkQueue::new(&arena, options).unwrap();
        Guest {
            index,
            mode,
            driver,
            arena,
            kick: eventfd(),
            call: eventfd(),
            engine: Arc::clone(engine),
            counters: Arc::default(),
            out: vec![None; usize::from(DEPTH)],
            versions: vec![0; usize::try_from(BLOCKS).unwrap()],
            written: 0,
            answered: 0,
        }
    }

    fn start(&self, pool: &Pool, stopped: Option<Stopped>) {
        let mut queue = crate::cost_tests::device(&self.arena, &self.driver, true);
        if let Some(stopped) = stopped {
            let config = vlane_ring::QueueConfig { base: stopped.base, ..queue.config().clone() };
            queue = vlane_ring::Queue::new(config, crate::cost_tests::memory(&self.arena)).unwrap();
        }
        let config = LaneConfig {
            queue,
            engine: Arc::clone(&self.engine),
            kick: Some(self.kick.try_clone().unwrap()),
            call: Some(self.call.try_clone().unwrap()),
            serial: [0; 20],
            write_through: false,
            counters: Arc::clone(&self.counters),
            events: event_channel().unwrap().0,
            watch: None,
            express: Express { mode: self.mode, ..Express::default() },
            classes: None,
        };
        pool.start(self.index, config, &[]).unwrap();
    }

    /// Makes requests in free slots, on blocks that no other request is at: all shown to the lane
    /// together.
    fn submit(&mut self, dice: &mut Dice, count: u16, ioprio: u32, writes: bool) {
        let mut left = count;
        for slot in 0..DEPTH {
            let at = usize::from(slot);
            if left == 0 || self.out[at].is_some() {
                continue;
            }
            let block = dice.below(BLOCKS);
            if self.out.iter().flatten().any(|out| out.block == block) {
                continue;
            }
            left -= 1;
            let kind =
                if writes && dice.below(3) == 0 { RequestKind::Write } else { RequestKind::Read };
            let version = match kind {
                RequestKind::Write => {
                    self.written += 1;
                    self.written
                }
                _ => self.versions[usize::try_from(block).unwrap()],
            };
            let data = self.driver.data_mut(slot).unwrap();
            let mark = if kind == RequestKind::Write { version } else { u64::MAX };
            for at in [0, usize::try_from(BLOCK).unwrap() - 8] {
                data.copy_in(at, &mark.to_le_bytes()).unwrap();
            }
            self.out[at] = Some(Out {
                is_write: kind == RequestKind::Write,
                is_of_pipe: false,
                block,
                version,
            });
            let sector = (u64::from(self.index) * BLOCKS + block) * u64::from(BLOCK) / 512;
            self.driver.submit(slot, Request { kind, sector, len: BLOCK, ioprio }).unwrap();
        }
    }

    fn read_pipe(&mut self, slot: u16, ioprio: u32) {
        self.out[usize::from(slot)] =
            Some(Out { is_write: false, is_of_pipe: true, block: slot.into(), version: 0 });
        self.driver
            .submit(slot, Request { kind: RequestKind::Read, sector: 0, len: Ballast::LEN, ioprio })
            .unwrap();
    }

    fn show(&mut self) {
        if self.driver.publish() {
            rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
        }
    }

    /// Takes what was answered, and looks at it.
    fn reap(&mut self) {
        let mut done = Vec::new();
        self.driver.reap(&mut done).unwrap();
        for completion in done {
            let out = self.out[usize::from(completion.slot)]
                .take()
                .expect("answered twice, or never asked");
            self.answered += 1;
            assert_eq!(completion.status, 0, "{out:?}");
            if out.is_of_pipe {
                continue;
            }
            let data = self.driver.data(completion.slot).unwrap();
            for at in [0, usize::try_from(BLOCK).unwrap() - 8] {
                let mut found = [0; 8];
                data.copy_out(at, &mut found).unwrap();
                assert_eq!(u64::from_le_bytes(found), out.version, "{out:?} at {at}");
            }
            if out.is_write {
                self.versions[usize::try_from(out.block).unwrap()] = out.version;
            }
        }
    }

    fn wait(&mut self) {
        let begin = Instant::now();
        while self.out.iter().any(Option::is_some) {
            self.reap();
            assert!(
                begin.elapsed() < LIMIT,
                "queue {}: never answered: {:?}",
                self.index,
                self.out
            );
            std::thread::yield_now();
        }
    }

    /// Waits until the lane has begun so many reads.
    fn until_begun(&self, reads: u16) {
        let begin = Instant::now();
        while self.counters.snapshot().reads < reads.into() {
            assert!(begin.elapsed() < LIMIT, "queue {}: not begun", self.index);
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn handed_over(&self) -> u64 {
        self.counters.snapshot().handed_over
    }
}

/// They leave a thread with a long queue, and come back later.
#[test]
fn express_requests_go_to_idle_thread() {
    for (mode, expected) in [(Mode::Off, 0), (Mode::Order, 0), (Mode::Shortest, 10), (Mode::On, 10)]
    {
        let pool = pool(2);
        let mut ballast = Ballast::new(0, mode, &pool, 0);
        for slot in Ballast::READS..Ballast::READS + 10 {
            ballast.guest.read_pipe(slot, EXPRESS);
        }
        ballast.guest.show();
        // The others are out while their thread decides.
        ballast.guest.until_begun(Ballast::READS + 10);
        ballast.let_go();
        pool.stop(0, &[]).unwrap();
        assert_eq!(ballast.guest.handed_over(), expected, "{mode:?}");
        assert_eq!(ballast.guest.counters.snapshot().requests(), ballast.guest.answered);
    }
}

#[test]
fn express_requests_behind_express_ones_stay() {
    // Only those behind a margin of others, whichever of the thread's lanes these are of.
    for (ioprio, expected) in [(EXPRESS, 0), (0, 10)] {
        let pool = pool(2);
        let mut ballast = Ballast::new(0, Mode::Shortest, &pool, EXPRESS);
        let mut next = Ballast::new(2, Mode::Shortest, &pool, ioprio);
        for slot in Ballast::READS..Ballast::READS + 10 {
            ballast.guest.read_pipe(slot, EXPRESS);
        }
        ballast.guest.show();
        ballast.guest.until_begun(Ballast::READS + 10);
        ballast.let_go();
        next.let_go();
        pool.stop(0, &[]).unwrap();
        assert_eq!(ballast.guest.handed_over(), expected, "behind reads of priority {ioprio}");
    }
}

#[test]
fn stopping_lane_waits_for_handed_operations() {
    let pool = pool(2);
    let mut ballast = Ballast::new(0, Mode::Shortest, &pool, 0);
    ballast.guest.read_pipe(Ballast::READS, EXPRESS);
    ballast.guest.show();
    let begin = Instant::now();
    while ballast.guest.handed_over() == 0 {
        assert!(begin.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_micros(100));
    }
    std::thread::scope(|scope| {
        let stops = scope.spawn(|| pool.stop(0, &[]).unwrap());
        // All but one, whichever that is.
        let reads = usize::from(Ballast::READS) * usize::try_from(Ballast::LEN).unwrap();
        assert_eq!(rustix::io::write(&ballast.to, &vec![0; reads]).unwrap(), reads);
        while ballast.guest.out.iter().flatten().count() > 1 {
            ballast.guest.reap();
            std::thread::sleep(Duration::from_micros(100));
        }
        assert!(!stops.is_finished(), "it stopped while a read of its was under way");
        ballast.let_go();
    });
}

#[test]
fn unprofitable_operation_stays_in_its_thread() {
    let engine = engine(2);
    let pool = pool(2);
    let mut guest = Guest::new(0, Mode::Shortest, &engine);
    guest.start(&pool, None);
    let mut dice = Dice(2);
    let margin = u16::try_from(vlane_io::HAND_OVER_MARGIN).unwrap();
    for _ in 0..50 {
        // The last one meets margin - 1.
        guest.submit(&mut dice, margin, EXPRESS, true);
        guest.show();
        guest.wait();
        // Other waiting requests are no reason for background ones.
        guest.submit(&mut dice, DEPTH, 0, true);
        guest.show();
        guest.wait();
    }
    assert_eq!(guest.handed_over(), 0);
}

/// Lanes on threads of one pool, and random events: no step waits for a lane to be idle.
fn muddle(seed: u64, steps: u64) -> u64 {
    const LANES: u16 = 3;
    let engine = engine(LANES.into());
    let mut dice = Dice(seed);
    let mut guests: Vec<_> =
        (0..LANES).map(|lane| Guest::new(lane, Mode::Shortest, &engine)).collect();
    let threads = pool(LANES + 1);
    guests.iter().for_each(|guest| guest.start(&threads, None));
    // Of two threads, the queues are long all the time.
    let mut ballasts =
        [0, 1].map(|thread| Ballast::new(LANES + 1 + thread, Mode::Shortest, &threads, 0));
    for _ in 0..steps {
        let lane = u16::try_from(dice.below(LANES.into())).unwrap();
        let guest = &mut guests[usize::from(lane)];
        match dice.below(16) {
            0 => {
                let stopped = threads.stop(lane, &[]).unwrap();
                guest.start(&threads, stopped);
                guest.show_again();
            }
            1 => {
                threads.move_lane(lane, usize::try_from(dice.below(u64::from(LANES) + 1)).unwrap())
            }
            2..10 => {
                let (few, many) = (dice.below(12), dice.below(u64::from(DEPTH)));
                guest.submit(&mut dice, u16::try_from(many).unwrap(), 0, true);
                guest.submit(&mut dice, u16::try_from(few).unwrap(), EXPRESS, true);
                guest.show();
            }
            10 => guest.wait(),
            _ => guest.reap(),
        }
    }
    if dice.below(2) == 0 {
        guests.iter_mut().for_each(Guest::wait);
    }
    ballasts.iter_mut().for_each(Ballast::let_go);
    // Ends all threads, with what is out.
    drop(threads);
    for guest in &mut guests {
        guest.reap();
        assert_eq!(guest.answered, guest.counters.snapshot().requests(), "lane {}", guest.index);
    }
    guests.iter().map(Guest::handed_over).sum()
}

impl Guest {
    /// The next back end of the ring may not have heard of the last kick.
    fn show_again(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }
}

#[test]
fn handed_operations_survive_stops_and_moves() {
    // `VLANE_HANDING` says how many others.
    let more: u64 =
        std::env::var("VLANE_HANDING").map_or(0, |text| text.parse().expect("a number"));
    let handed_over: u64 = (0..4 + more).map(|seed| muddle(seed, 150)).sum();
    assert!(handed_over > 0, "nothing was handed over");
}

/// It keeps none, either.
#[test]
fn ended_thread_takes_no_operations() {
    for round in 0..8 {
        let engine = engine(2);
        let threads = pool(2);
        // On thread 0.
        let mut ballast = Ballast::new(2, Mode::Shortest, &threads, 0);
        let mut guest = Guest::new(0, Mode::Shortest, &engine);
        guest.start(&threads, None);
        let mut dice = Dice(round);
        for step in 0..6 {
            if step == 2 {
                threads.routes().end_one(1);
            }
            guest.submit(&mut dice, 40, 0, true);
            guest.submit(&mut dice, 10, EXPRESS, true);
            guest.show();
            // In every second round it ends before the others could know it.
            if step > 3 || (step < 2 && round % 2 == 0) {
                guest.wait();
            }
        }
        guest.wait();
        // It was asked to end; when it does is the host's affair.
        let told = Instant::now();
        while threads.lost().is_empty() {
            assert!(told.elapsed() < Duration::from_secs(60), "it goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        // An answer may be seen before it is counted; not so once the lane has heard of something.
        threads.set_write_through(0, false, &[]).unwrap();
        let before = guest.handed_over();
        guest.submit(&mut dice, 40, 0, true);
        guest.submit(&mut dice, 10, EXPRESS, true);
        guest.show();
        guest.wait();
        assert_eq!((threads.lost(), guest.handed_over()), (vec![1], before));
        assert!(before > 0 || round % 2 != 0, "nothing was handed over");
        ballast.let_go();
    }
}
