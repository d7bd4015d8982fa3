//! Lanes that move between threads while they run: with requests, with messages of control, with
//! storage that hangs.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use vlane_driver::ring::{Arena, BlkOptions, BlkQueue, Format, Request, RequestKind};
use vlane_engine::null::{NullConfig, NullEngine};
use vlane_engine::{
    Channel, ChannelStats, Completion, Engine, EngineError, Geometry, Memory, Operation,
    OperationKind, Outcome, Status, StorageFile, Taken,
};
use vlane_hint::{Board, BoardReader, Classes, LaneHint, Mark};
use vlane_memory::{GuestMemory, Region, RegionSpec};
use vlane_policy::express::{Express, Mode};
use vlane_policy::throttle::Limits;
use vlane_ring::{Queue, QueueConfig, RingFormat};

use crate::{
    Counters, LaneConfig, Pool, PoolConfig, RecorderConfig, Stopped, Topology, event_channel,
    recorder,
};

const DEPTH: u16 = 8;
const BLOCK: u32 = 4096;
const BLOCKS: u64 = 64;
const LIMIT: Duration = Duration::from_secs(60);

/// Reads and writes of a file, each by the io_uring of the lane's thread.
#[derive(Debug)]
struct Files {
    file: StorageFile,
    /// Leave it to a worker, which takes its time.
    patient: bool,
}

#[derive(Debug)]
struct FilesChannel {
    files: [StorageFile; 1],
    patient: bool,
}

impl Engine for Files {
    fn geometry(&self) -> Geometry {
        NullEngine::new(NullConfig {
            size: BLOCKS * u64::from(BLOCK),
            latency: None,
            parallelism: 1,
        })
        .unwrap()
        .geometry()
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn channel(&self, _: u16) -> Result<Box<dyn Channel>, EngineError> {
        Ok(Box::new(FilesChannel { files: [self.file.clone()], patient: self.patient }))
    }
}

impl Channel for FilesChannel {
    fn files(&self) -> &[StorageFile] {
        &self.files
    }

    fn begin(&mut self, taken: Taken<'_>, operations: &mut Vec<Operation>) -> Outcome {
        let kind = match taken.request.kind() {
            vlane_ring::RequestKind::In => OperationKind::Read(Memory::Request(0)),
            vlane_ring::RequestKind::Out => OperationKind::Write(Memory::Request(0)),
            _ => return Outcome::Done(Status::Ok),
        };
        let (offset, len, patient) =
            (taken.request.sector() * 512, taken.request.len(), self.patient);
        operations.push(Operation {
            number: 0,
            kind,
            file: 0,
            offset,
            len,
            durable: false,
            patient,
        });
        Outcome::Pending
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

/// The contents of a block.
fn content(block: u64) -> [u8; 8] {
    (block * 0x0101_0101_0101 + 7).to_le_bytes()
}

fn files(patient: bool) -> Arc<dyn Engine> {
    let file = File::from(rustix::fs::memfd_create("blocks", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(BLOCKS * u64::from(BLOCK)).unwrap();
    for block in 0..BLOCKS {
        file.write_all_at(&content(block), block * u64::from(BLOCK)).unwrap();
    }
    Arc::new(Files { file: StorageFile::new(file), patient })
}

fn null(latency: Option<Duration>) -> Arc<dyn Engine> {
    let size = BLOCKS * u64::from(BLOCK);
    Arc::new(NullEngine::new(NullConfig { size, latency, parallelism: 4 }).unwrap())
}

/// One queue of a guest, and its lane in a pool.
struct Guest {
    index: u16,
    arena: Arena,
    driver: BlkQueue,
    format: Format,
    memory: Arc<GuestMemory>,
    kick: OwnedFd,
    call: OwnedFd,
    engine: Arc<dyn Engine>,
    has_data: bool,
    counters: Arc<Counters>,
    /// By slot, the block of a request that is out.
    out: Vec<Option<u64>>,
    answered: u64,
    errors: u64,
    sectors: u64,
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

impl Guest {
    fn new(index: u16, format: Format, engine: &Arc<dyn Engine>, has_data: bool) -> Guest {
        let options = BlkOptions {
            format,
            size: None,
            depth: DEPTH,
            data: BLOCK,
            segments: 1,
            indirect: true,
            event_idx: true,
        };
        let arena = Arena::new(0x8000_0000, options.arena_bytes().unwrap()).unwrap();
        let driver = BlkQueue::new(&arena, options).unwrap();
        let memory = mapped(&arena);
        Guest {
            index,
            driver,
            format,
            memory,
            kick: eventfd(),
            call: eventfd(),
            engine: Arc::clone(engine),
            has_data,
            counters: Arc::default(),
            out: vec![None; usize::from(DEPTH)],
            answered: 0,
            errors: 0,
            sectors: BLOCKS * u64::from(BLOCK) / 512,
            arena,
        }
    }

    fn start(&self, pool: &Pool, stopped: Option<Stopped>) {
        let at = self.driver.layout();
        let (layout, fresh) = match self.format {
            Format::Split => (RingFormat::Split, 0),
            Format::Packed => (RingFormat::Packed, 0x8000_8000),
        };
        let config = QueueConfig {
            layout,
            size: at.size,
            event_idx: true,
            desc: self.arena.to_user(at.desc),
            driver: self.arena.to_user(at.driver),
            device: self.arena.to_user(at.device),
            base: stopped.map_or(fresh, |stopped| stopped.base),
            log_addr: None,
        };
        let config = LaneConfig {
            queue: Queue::new(config, Arc::clone(&self.memory)).unwrap(),
            engine: Arc::clone(&self.engine),
            kick: Some(self.kick.try_clone().unwrap()),
            call: Some(self.call.try_clone().unwrap()),
            serial: [0; 20],
            write_through: false,
            counters: Arc::clone(&self.counters),
            events: event_channel().unwrap().0,
            watch: None,
            // Some order their requests by class.
            express: Express {
                mode: if self.index % 2 == 1 { Mode::On } else { Mode::Off },
                ..Express::default()
            },
            classes: None,
        };
        pool.start(self.index, config, &[]).unwrap();
        if stopped.is_some() {
            pool.set_sectors(self.index, self.sectors, &[]).unwrap();
        }
    }

    /// Makes up to so many requests, one after the other from `block` on; kicks if the lane wants
    /// it.
    fn submit(&mut self, block: u64, count: u16) {
        let mut left = count;
        for slot in 0..DEPTH {
            let out = &mut self.out[usize::from(slot)];
            if left > 0 && out.is_none() {
                left -= 1;
                let block = (block + u64::from(left)) % BLOCKS;
                *out = Some(block);
                let sector = block * u64::from(BLOCK) / 512;
                // Real time, none, idle, as Linux writes them.
                let ioprio = [1 << 13, 0, 3 << 13][(block % 3) as usize];
                self.driver
                    .submit(slot, Request { kind: RequestKind::Read, sector, len: BLOCK, ioprio })
                    .unwrap();
            }
        }
        if self.driver.publish() {
            rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
        }
    }

    /// Takes what was answered, and looks at it.
    fn reap(&mut self) {
        let mut done = Vec::new();
        self.driver.reap(&mut done).unwrap();
        for completion in done {
            let block = self.out[usize::from(completion.slot)]
                .take()
                .expect("answered twice, or never asked");
            self.answered += 1;
            if completion.status != 0 {
                self.errors += 1;
            } else if self.has_data {
                let mut found = [0; 8];
                self.driver.data(completion.slot).unwrap().copy_out(0, &mut found).unwrap();
                assert_eq!(found, content(block), "block {block}");
            }
        }
    }

    fn is_done(&self) -> bool {
        self.out.iter().all(Option::is_none)
    }

    /// Waits until all requests are answered.
    fn wait(&mut self) {
        let begin = Instant::now();
        while !self.is_done() {
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
}

fn mapped(arena: &Arena) -> Arc<GuestMemory> {
    let spec =
        RegionSpec { guest: arena.base(), size: arena.size(), user: arena.user_addr(), offset: 0 };
    let file = File::from(arena.fd().unwrap().try_clone_to_owned().unwrap());
    Arc::new(GuestMemory::new(vec![Region::map(spec, &file).unwrap()]).unwrap())
}

fn pool(queues: u16, threads: u16) -> Pool {
    let topology = Topology { queues, threads, cpus: Vec::new(), adapts: false };
    Pool::new(&PoolConfig {
        topology,
        poll: crate::PollMode::Balanced,
        poll_max: Duration::from_micros(50),
        hands_over: false,
    })
    .unwrap()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn is_at(pool: &Pool, lane: u16, thread: usize) -> bool {
    pool.places().contains(&(lane, thread))
}

/// An event while requests run.
#[derive(Debug, Clone, Copy)]
enum Act {
    Submit {
        lane: usize,
        block: u64,
        count: u16,
    },
    Reap {
        lane: usize,
    },
    Move {
        lane: u16,
        to: usize,
    },
    Stay {
        lane: u16,
    },
    Call {
        lane: usize,
    },
    Memory {
        lane: usize,
        drain: bool,
    },
    /// Reads beyond half of the device are refused from now on, or not.
    Sectors {
        lane: usize,
        half: bool,
    },
    WriteThrough {
        lane: usize,
        on: bool,
    },
    Record {
        lane: usize,
        on: bool,
    },
    Hint {
        lane: usize,
    },
    Restart {
        lane: usize,
        hold: bool,
    },
    /// A limit of thousands of requests per second; 0: no limits.
    Limit {
        thousands: u64,
    },
}

const LANES: u16 = 3;
const THREADS: usize = 3;

fn act() -> impl Strategy<Value = Act> {
    let lane = || 0..usize::from(LANES);
    let number = || 0..LANES;
    prop_oneof![
        6 => (lane(), 0..BLOCKS, 1..=DEPTH).prop_map(|(lane, block, count)| Act::Submit { lane, block, count }),
        2 => lane().prop_map(|lane| Act::Reap { lane }),
        4 => (number(), 0..THREADS).prop_map(|(lane, to)| Act::Move { lane, to }),
        1 => number().prop_map(|lane| Act::Stay { lane }),
        1 => lane().prop_map(|lane| Act::Call { lane }),
        1 => (lane(), any::<bool>()).prop_map(|(lane, drain)| Act::Memory { lane, drain }),
        1 => (lane(), any::<bool>()).prop_map(|(lane, half)| Act::Sectors { lane, half }),
        1 => (lane(), any::<bool>()).prop_map(|(lane, on)| Act::WriteThrough { lane, on }),
        1 => (lane(), any::<bool>()).prop_map(|(lane, on)| Act::Record { lane, on }),
        1 => lane().prop_map(|lane| Act::Hint { lane }),
        1 => (lane(), any::<bool>()).prop_map(|(lane, hold)| Act::Restart { lane, hold }),
        1 => prop_oneof![Just(0), 50..500_u64].prop_map(|thousands| Act::Limit { thousands }),
    ]
}

/// Does all acts; a second thread moves lanes all the time if `unrest`.
fn run(engine: &Arc<dyn Engine>, has_data: bool, packed: bool, unrest: bool, acts: &[Act]) {
    let format = if packed { Format::Packed } else { Format::Split };
    let pool = pool(LANES, u16::try_from(THREADS).unwrap());
    let mut guests: Vec<_> =
        (0..LANES).map(|index| Guest::new(index, format, engine, has_data)).collect();
    guests.iter().for_each(|guest| guest.start(&pool, None));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if unrest {
            scope.spawn(|| {
                let mut n = 0_usize;
                while !over.load(Ordering::Relaxed) {
                    n = n.wrapping_add(1);
                    pool.move_lane(
                        u16::try_from(n % usize::from(LANES)).unwrap(),
                        n * 7 / 3 % THREADS,
                    );
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
        }
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            acts.iter().for_each(|act| perform(*act, &pool, &mut guests));
            guests.iter_mut().for_each(Guest::wait);
        }));
        over.store(true, Ordering::Relaxed);
        if let Err(panic) = acted {
            std::panic::resume_unwind(panic);
        }
    });
    for guest in &guests {
        let stopped = pool.stop(guest.index, &[]).unwrap();
        assert!(stopped.is_some(), "queue {}: no lane to stop", guest.index);
        let counted = guest.counters.snapshot();
        assert_eq!(counted.requests(), guest.answered, "queue {}", guest.index);
        assert_eq!(counted.refused, guest.errors, "queue {}", guest.index);
    }
}

fn perform(act: Act, pool: &Pool, guests: &mut [Guest]) {
    match act {
        Act::Submit { lane, block, count } => guests[lane].submit(block, count),
        Act::Reap { lane } => guests[lane].reap(),
        Act::Move { lane, to } => pool.move_lane(lane, to),
        Act::Stay { lane } => pool.routes().cancel(lane),
        Act::Call { lane } => {
            let guest = &mut guests[lane];
            guest.call = eventfd();
            let call = guest.call.try_clone().unwrap();
            pool.set_call(guest.index, Some(call), &[]).unwrap();
            assert!(
                is_readable(guest.call.as_fd()),
                "the lane did not get its new call descriptor"
            );
        }
        Act::Memory { lane, drain } => {
            let guest = &mut guests[lane];
            guest.memory = mapped(&guest.arena);
            pool.set_memory(guest.index, Arc::clone(&guest.memory), drain, &[]).unwrap();
        }
        Act::Sectors { lane, half } => {
            let guest = &mut guests[lane];
            guest.wait();
            let all = BLOCKS * u64::from(BLOCK) / 512;
            guest.sectors = if half { all / 2 } else { all };
            pool.set_sectors(guest.index, guest.sectors, &[]).unwrap();
            let before = guest.errors;
            guest.submit(BLOCKS - 1, 1);
            guest.wait();
            assert_eq!(guest.errors - before, u64::from(half), "the lane did not get its size");
        }
        Act::WriteThrough { lane, on } => {
            pool.set_write_through(guests[lane].index, on, &[]).unwrap()
        }
        Act::Record { lane, on } => {
            let config = RecorderConfig { origin: Instant::now(), hashes: false, entries: 64 };
            let (recorder, _) = recorder(guests[lane].index, config);
            pool.set_recorder(guests[lane].index, on.then(|| Box::new(recorder))).unwrap();
        }
        Act::Limit { thousands } => pool.set_limits(Limits {
            iops: NonZeroU64::new(thousands * 1000),
            burst: Duration::from_millis(1),
            ..Limits::default()
        }),
        Act::Hint { lane } => pool.set_hint(guests[lane].index, None).unwrap(),
        Act::Restart { lane, hold } => {
            let guest = &mut guests[lane];
            if hold {
                pool.hold([guest.index]);
            }
            let stopped = pool.stop(guest.index, &[]).unwrap();
            assert!(stopped.is_some(), "no lane to stop");
            guest.start(pool, stopped);
        }
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    rustix::io::read(fd, &mut [0; 8]).is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Every request is answered once, and every message arrives, under any moves and messages.
    #[test]
    fn moves_and_messages_lose_no_request(
        engine in 0..4, packed: bool, unrest: bool, acts in prop::collection::vec(act(), 1..120),
    ) {
        let (engine, has_data) = match engine {
            0 => (null(None), false),
            1 => (null(Some(Duration::from_micros(200))), false),
            2 => (files(false), true),
            _ => (files(true), true),
        };
        run(&engine, has_data, packed, unrest, &acts);
    }
}

/// The storage need not be asked for that.
#[test]
fn moving_lane_takes_waiting_requests_along() {
    let engine = null(Some(Duration::from_millis(300)));
    let pool = pool(1, 2);
    let mut guest = Guest::new(0, Format::Split, &engine, false);
    guest.start(&pool, None);
    // On a busy machine the device can have served all of them before the look.
    let is_taken_along = (1..=20).any(|round| {
        guest.submit(0, DEPTH);
        let reads = u64::from(DEPTH) * round;
        wait_for("the requests are not taken", || guest.counters.snapshot().reads == reads);
        let to = usize::from(round % 2 == 1);
        pool.move_lane(0, to);
        wait_for("the lane does not move", || is_at(&pool, 0, to));
        guest.reap();
        let is_taken_along = !guest.is_done();
        guest.wait();
        is_taken_along
    });
    assert!(is_taken_along, "they were waited for");
}

/// It stays until the storage answers, and serves again after the cancel.
#[test]
fn hung_lane_stays_and_survives_cancelled_move() {
    let (from, to) = rustix::pipe::pipe().unwrap();
    let engine: Arc<dyn Engine> =
        Arc::new(Files { file: StorageFile::new(File::from(from)), patient: false });
    let pool = pool(2, 2);
    let mut guest = Guest::new(0, Format::Split, &engine, false);
    guest.start(&pool, None);
    guest.submit(0, 1);
    wait_for("the request is not taken", || guest.counters.snapshot().reads == 1);
    pool.move_lane(0, 1);
    // Control is heard meanwhile.
    pool.set_write_through(0, true, &[]).unwrap();
    guest.submit(8, 1);
    pool.set_write_through(0, false, &[]).unwrap();
    assert!(
        is_at(&pool, 0, 0) && guest.counters.snapshot().reads == 1,
        "it goes on as if nothing were asked"
    );
    pool.routes().cancel(0);
    wait_for("it does not serve any more", || guest.counters.snapshot().reads == 2);
    pool.move_lane(0, 1);
    let block = vec![1; usize::try_from(BLOCK).unwrap()];
    for _ in 0..2 {
        rustix::io::write(&to, &block).unwrap();
    }
    guest.wait();
    wait_for("it does not move when it could", || is_at(&pool, 0, 1));
    assert_eq!((guest.answered, guest.errors), (2, 0));
}

#[test]
fn recorder_and_hint_move_with_their_lane() {
    let engine = files(false);
    let pool = pool(1, 3);
    let mut guest = Guest::new(0, Format::Split, &engine, true);
    let (recorder, mut recorded) =
        recorder(0, RecorderConfig { origin: Instant::now(), hashes: false, entries: 1024 });
    let (board, fd) = Board::create(1, false).unwrap();
    let mut watch = BoardReader::new(Board::open(fd.as_fd(), 1).unwrap());
    watch.arm(Classes::ALL);
    pool.set_recorder(0, Some(Box::new(recorder))).unwrap();
    pool.set_hint(0, LaneHint::new(board, 0, Arc::new(eventfd())).map(Box::new)).unwrap();
    guest.start(&pool, None);
    let (rounds, mut signalled) = (12, 0);
    for round in 0..rounds {
        let to = round % 3;
        pool.move_lane(0, to);
        wait_for("the lane does not move", || is_at(&pool, 0, to));
        if guest.driver.enable_interrupts() {
            guest.reap();
        }
        guest.submit(u64::try_from(round).unwrap(), 1);
        guest.wait();
        for (_, mark) in watch.collect(u64::MAX) {
            let (Mark::Event { count, .. } | Mark::Served { count, .. }) = mark;
            signalled += u64::from(count);
        }
    }
    pool.stop(0, &[]).unwrap();
    let mut entries = 0;
    recorded.drain(|_| entries += 1);
    assert_eq!(entries, rounds + 1, "one for each request and one for the start");
    assert!(
        signalled >= u64::try_from(rounds).unwrap() / 2,
        "{signalled} signals were told of {rounds}"
    );
}

/// True if this process has a thread of that name.
fn has_thread(name: &str) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .map(|task| std::fs::read_to_string(task.path().join("comm")))
        .any(|comm| comm.is_ok_and(|c| c.trim() == name))
}

/// A number that no other test has threads of.
const SELDOM: u16 = 37;

#[test]
fn thread_is_made_with_its_first_lane() {
    let engine = null(None);
    let pool = pool(SELDOM + 2, SELDOM + 2);
    let (recorder, mut recorded) =
        recorder(SELDOM, RecorderConfig { origin: Instant::now(), hashes: false, entries: 64 });
    pool.set_recorder(SELDOM, Some(Box::new(recorder))).unwrap();
    // These calls do not need the thread: they must not pile up, either.
    for _ in 0..3 {
        pool.set_hint(SELDOM, None).unwrap();
        pool.set_limits(Limits::default());
        pool.hold([SELDOM]);
    }
    let (own, next) = (format!("lane-{SELDOM}"), format!("lane-{}", SELDOM + 1));
    assert!(!has_thread(&own) && pool.lost().is_empty());
    let mut guest = Guest::new(SELDOM, Format::Split, &engine, false);
    guest.start(&pool, None);
    // The system's list can miss a thread while others end.
    wait_for("its thread is not made", || has_thread(&own));
    assert!(!has_thread(&next) && pool.lost().is_empty());
    guest.submit(0, 1);
    guest.wait();
    pool.stop(SELDOM, &[]).unwrap();
    let mut entries = 0;
    recorded.drain(|_| entries += 1);
    assert!(entries > 0, "its lane has the recorder that it was given before");
}

#[test]
fn lane_stays_when_target_thread_is_gone() {
    let engine = null(None);
    let pool = pool(1, 2);
    let mut guest = Guest::new(0, Format::Split, &engine, false);
    guest.start(&pool, None);
    pool.make(1);
    pool.routes().end_one(1);
    wait_for("the thread does not end", || pool.lost() == [1]);
    pool.move_lane(0, 1);
    guest.submit(0, DEPTH);
    guest.wait();
    pool.set_sectors(0, 0, &[]).unwrap();
    assert!(is_at(&pool, 0, 0));
    guest.submit(0, 1);
    guest.wait();
    assert_eq!(guest.errors, 1);
}

#[test]
fn pool_ends_while_lanes_move() {
    for _ in 0..50 {
        let engine = files(true);
        let pool = pool(2, 2);
        let mut guests: Vec<_> =
            (0..2).map(|index| Guest::new(index, Format::Split, &engine, true)).collect();
        guests.iter().for_each(|guest| guest.start(&pool, None));
        guests.iter_mut().for_each(|guest| guest.submit(3, DEPTH));
        pool.move_lane(0, 1);
        pool.move_lane(1, 0);
        drop(pool);
        // Taken requests are answered; the rest is in the ring.
        for guest in &mut guests {
            guest.reap();
            assert_eq!(guest.answered, guest.counters.snapshot().requests());
        }
    }
}

/// Lanes of an adaptive pool also begin on one thread.
#[test]
fn idle_adaptive_lanes_share_a_thread() {
    let engine = null(None);
    let topology = Topology { queues: 2, threads: 2, cpus: Vec::new(), adapts: true };
    let pool = Pool::new(&PoolConfig {
        topology,
        poll: crate::PollMode::Balanced,
        poll_max: Duration::ZERO,
        hands_over: false,
    })
    .unwrap();
    let mut guests: Vec<_> =
        (0..2).map(|index| Guest::new(index, Format::Split, &engine, false)).collect();
    guests.iter().for_each(|guest| guest.start(&pool, None));
    assert_eq!(pool.places(), [(0, 0), (1, 0)]);
    guests.iter_mut().for_each(|guest| {
        guest.submit(0, 1);
        guest.wait();
    });
    // Put apart by hand, they come back together: they are idle.
    wait_for("the lane does not move", || {
        // It may be back before this thread has seen it there.
        pool.move_lane(1, 1);
        is_at(&pool, 1, 1)
    });
    guests.iter_mut().for_each(|guest| {
        guest.submit(0, 1);
        guest.wait();
    });
    wait_for("idle lanes stay apart", || pool.places() == [(0, 0), (1, 0)]);
}
