//! Lanes and their thread, with a guest in the same process.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use vlane_driver::ring::{Arena, BlkOptions, BlkQueue, Format, Request, RequestKind};
use vlane_engine::null::{NullConfig, NullEngine};
use vlane_engine::{
    Channel, ChannelStats, Decisions, Engine, EngineError, Geometry, Operation, Outcome, Slot,
    Status, Taken,
};
use vlane_io::Uring;
use vlane_memory::{GuestMemory, Region, RegionSpec};
use vlane_policy::express::Express;
use vlane_ring::{Broken, InflightRegion, Queue, QueueConfig, RingFormat};
use vlane_trace::{Entry, Magic};

use crate::cancellable_request::CancellableRequest;
use crate::cost_tests::device;
use crate::inbox::pair;
use crate::lane::{Lane, Settled};
use crate::polling::Polling;
use crate::thread::Thread;
use crate::{
    Counters, LaneConfig, LaneEvent, PollMode, Pool, PoolConfig, RecorderConfig, Topology,
    event_channel, recorder,
};

/// A guest's queue, and what makes a lane of it.
pub(crate) struct Guest {
    pub(crate) driver: BlkQueue,
    counters: Arc<Counters>,
    arena: Arena,
}

pub(crate) fn null(latency: Option<Duration>) -> Arc<dyn Engine> {
    Arc::new(NullEngine::new(NullConfig { size: 1 << 20, latency, parallelism: 8 }).unwrap())
}

pub(crate) fn guest(engine: Arc<dyn Engine>) -> (Guest, LaneConfig) {
    guest_of(Format::Split, engine)
}

fn guest_of(format: Format, engine: Arc<dyn Engine>) -> (Guest, LaneConfig) {
    guest_of_segments(format, engine, 1)
}

fn guest_of_segments(
    format: Format,
    engine: Arc<dyn Engine>,
    segments: u16,
) -> (Guest, LaneConfig) {
    guest_with(BlkOptions { format, segments, ..OPTIONS }, engine)
}

const OPTIONS: BlkOptions = BlkOptions {
    format: Format::Split,
    size: None,
    depth: 8,
    data: 4096,
    segments: 1,
    indirect: true,
    event_idx: false,
};

fn guest_with(options: BlkOptions, engine: Arc<dyn Engine>) -> (Guest, LaneConfig) {
    let arena = Arena::new(0x8000_0000, options.arena_bytes().unwrap()).unwrap();
    let driver = BlkQueue::new(&arena, options).unwrap();
    let counters = Arc::new(Counters::default());
    let config = LaneConfig {
        queue: device(&arena, &driver, false),
        engine,
        kick: None,
        call: None,
        serial: [0; 20],
        write_through: false,
        counters: Arc::clone(&counters),
        events: event_channel().unwrap().0,
        watch: None,
        express: Express::default(),
        classes: None,
    };
    (Guest { driver, counters, arena }, config)
}

impl Guest {
    pub(crate) fn submit(&mut self, slot: u16, kind: RequestKind, sector: u64) {
        self.driver.submit(slot, Request { kind, sector, len: 4096, ioprio: 0 }).unwrap();
    }

    /// Zeroes a range that keeps its place.
    pub(crate) fn zeroes(&mut self, slot: u16, sectors: u32) {
        self.range(slot, RequestKind::WriteZeroes, sectors);
    }

    /// Discards a range.
    pub(crate) fn discard(&mut self, slot: u16, sectors: u32) {
        self.range(slot, RequestKind::Discard, sectors);
    }

    fn range(&mut self, slot: u16, kind: RequestKind, sectors: u32) {
        let mut range = [0; 16];
        range[8..12].copy_from_slice(&sectors.to_le_bytes());
        self.driver.data_mut(slot).unwrap().copy_in(0, &range).unwrap();
        self.driver.submit(slot, Request { kind, sector: 0, len: 16, ioprio: 0 }).unwrap();
    }
}

#[test]
fn refused_request_is_counted_once() {
    let (mut guest, config) = guest(null(None));
    let mut uring = Uring::new(64).unwrap();
    let mut lane = Lane::new(0, 0, 2, config, &mut uring).unwrap();
    // The volume has 2048 sectors.
    guest.submit(0, RequestKind::Write, 2048);
    guest.submit(1, RequestKind::Read, 2041);
    guest.submit(2, RequestKind::Other(99), 0);
    guest.submit(3, RequestKind::Read, 2040);
    guest.driver.publish();
    assert!(lane.serve(&mut uring, false));
    lane.store_counters();
    let counted = guest.counters.snapshot();
    assert_eq!((counted.refused, counted.requests()), (3, 4));
    assert_eq!((counted.reads, counted.read_bytes), (1, 4096));
    assert_eq!((counted.writes, counted.written_bytes, counted.others), (0, 0, 0));
}

/// A head stands before its write, independent of the rest of the write, and of the cuts of its
/// buffers.
#[test]
fn recording_names_journal_blocks() {
    for segments in [1, 3] {
        let (mut guest, config) = guest_of_segments(Format::Split, null(None), segments);
        let mut uring = Uring::new(64).unwrap();
        let mut lane = Lane::new(0, 0, 2, config, &mut uring).unwrap();
        let (recorder, mut recorded) =
            recorder(0, RecorderConfig { origin: Instant::now(), hashes: false, entries: 64 });
        lane.set_recorder(Some(Box::new(recorder)));
        for (at, byte) in [(0, 1), (2048, 2), (100, 3)] {
            let mut block = [byte; 32];
            block[..4].copy_from_slice(&Magic::Jbd2.bytes());
            guest.driver.data_mut(1).unwrap().copy_in(at, &block).unwrap();
        }
        guest.submit(0, RequestKind::Write, 64);
        guest.submit(1, RequestKind::Write, 8);
        // Read data are not looked at.
        guest.submit(2, RequestKind::Read, 8);
        guest.driver.publish();
        assert!(lane.serve(&mut uring, false));
        lane.set_recorder(None);
        let (mut heads, mut records) = (Vec::new(), 0);
        recorded.drain(|entry| match entry {
            Entry::Head(head) => {
                heads.push((head.lane, head.seq, head.sector, head.magic, head.rest))
            }
            Entry::Record(_) => records += 1,
            _ => {}
        });
        let want = [(0, 1, 8, Magic::Jbd2, [1; 28]), (0, 1, 12, Magic::Jbd2, [2; 28])];
        assert_eq!((heads.as_slice(), records), (&want[..], 3), "{segments} segments");
    }
}

#[test]
fn dropped_pool_answers_requests_in_flight() {
    let topology = Topology { queues: 1, threads: 1, cpus: Vec::new(), adapts: false };
    let pool = Pool::new(&PoolConfig {
        topology,
        poll: PollMode::Off,
        poll_max: Duration::ZERO,
        hands_over: false,
    })
    .unwrap();
    let (mut guest, mut config) = guest(null(Some(Duration::from_millis(300))));
    let kick = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    config.kick = Some(kick.try_clone().unwrap());
    pool.start(0, config, &[]).unwrap();
    (0..4).for_each(|slot| guest.submit(slot, RequestKind::Read, 0));
    guest.driver.publish();
    rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
    let begin = Instant::now();
    while guest.counters.snapshot().reads < 4 {
        assert!(begin.elapsed() < Duration::from_secs(10), "the lane does not take them");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(pool);
    let mut done = Vec::new();
    guest.driver.reap(&mut done).unwrap();
    assert_eq!(done.len(), 4);
    assert!(done.iter().all(|completion| completion.status == 0));
}

#[test]
fn awake_thread_asks_for_no_kicks() {
    let (_outbox, inbox) = pair().unwrap();
    let mut thread =
        Thread::new(0, Uring::new(64).unwrap(), inbox, Polling::new(PollMode::Off, Duration::ZERO));
    let mut guests = Vec::new();
    for index in 0..3 {
        let (guest, config) = guest(null(None));
        thread.start(index, config, None).unwrap();
        guests.push(guest);
    }
    // One of them makes a request at the last moment.
    guests[1].submit(0, RequestKind::Read, 0);
    assert!(!guests[1].driver.publish(), "a thread that is awake was kicked");
    assert!(!thread.ask_for_kicks(), "the request was overlooked");
    for (index, guest) in guests.iter_mut().enumerate() {
        guest.submit(1, RequestKind::Read, 0);
        assert!(!guest.driver.publish(), "the guest of queue {index} is asked for a kick");
    }
}

/// It does so each time that its thread wakes.
#[test]
fn held_lane_leaves_packed_ring_position() {
    let (mut guest, config) = guest_of(Format::Packed, null(None));
    let mut uring = Uring::new(64).unwrap();
    let mut lane = Lane::new(0, 0, 2, config, &mut uring).unwrap();
    guest.submit(0, RequestKind::Read, 0);
    guest.driver.publish();
    assert!(lane.serve(&mut uring, false));
    assert!(!lane.before_sleep());
    lane.after_sleep();
    lane.hold();
    for _ in 0..2 {
        assert_eq!(lane.settle(), Settled::Stays, "it is held");
        assert!(!lane.before_sleep());
        lane.after_sleep();
    }
    // The process ends here; the next one begins without knowing where.
    assert!(device(&guest.arena, &guest.driver, false).went_on());
}

/// Slots, and what was decided for them.
pub(crate) type Submitted = Arc<Mutex<Vec<(u16, Decisions)>>>;

/// Storage that never answers, or never ends; its requests are written down.
#[derive(Debug, Default)]
pub(crate) struct Stuck {
    pub(crate) submitted: Submitted,
    /// Wants to continue again and again.
    pub(crate) is_busy: bool,
    /// Its requests wait for each other, without an operation in progress.
    pub(crate) waits: bool,
}

#[derive(Debug)]
struct StuckChannel {
    submitted: Submitted,
    is_busy: bool,
    waits: bool,
    write_through: bool,
}

impl Engine for Stuck {
    fn geometry(&self) -> Geometry {
        Geometry { sectors: 1 << 32, ..null(None).geometry() }
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn channel(&self, _: u16) -> Result<Box<dyn Channel>, EngineError> {
        let submitted = Arc::clone(&self.submitted);
        let Stuck { is_busy, waits, .. } = *self;
        Ok(Box::new(StuckChannel { submitted, is_busy, waits, write_through: false }))
    }
}

impl StuckChannel {
    fn outcome(&self) -> Outcome {
        if self.is_busy { Outcome::Continue } else { Outcome::Pending }
    }
}

impl Channel for StuckChannel {
    fn defaults(&self) -> Decisions {
        Decisions { durable: self.write_through, ..Decisions::default() }
    }

    fn begin(&mut self, taken: Taken<'_>, _: &mut Vec<Operation>) -> Outcome {
        self.submitted.lock().unwrap().push((taken.slot.0, taken.decisions));
        self.outcome()
    }

    fn go_on(&mut self, taken: Taken<'_>, _: &mut Vec<Operation>) -> Outcome {
        self.submitted.lock().unwrap().push((taken.slot.0, taken.decisions));
        match self.is_busy {
            true => Outcome::Continue,
            false => Outcome::Done(Status::Ok),
        }
    }

    fn waiting(&self, slots: &mut Vec<Slot>) {
        let submitted = self.submitted.lock().unwrap();
        slots.extend(submitted.iter().filter(|_| self.waits).map(|(slot, _)| Slot(*slot)));
    }

    fn set_write_through(&mut self, on: bool) {
        self.write_through = on;
    }

    fn stats(&self) -> ChannelStats {
        ChannelStats::default()
    }
}

fn first(submitted: &Submitted) -> Slot {
    Slot(submitted.lock().unwrap()[0].0)
}

/// A lane with such storage, and what that was asked for.
pub(crate) fn lane_of(engine: Stuck, format: Format) -> (Guest, Lane, Uring, Submitted) {
    stuck_lane(engine, BlkOptions { format, ..OPTIONS }, false)
}

/// The same with a ring like that; which `is_tracked`, or not.
fn stuck_lane(
    engine: Stuck,
    options: BlkOptions,
    is_tracked: bool,
) -> (Guest, Lane, Uring, Submitted) {
    let submitted = Arc::clone(&engine.submitted);
    let (guest, mut config) = guest_with(options, Arc::new(engine));
    if is_tracked {
        let size = guest.driver.layout().size;
        let (bytes, file) =
            (InflightRegion::bytes(1, size).unwrap(), InflightRegion::create(1, size).unwrap());
        let marks = InflightRegion::map(&file, 0, bytes, 1, size).unwrap();
        config.queue.track(marks.part(0).unwrap());
    }
    let mut uring = Uring::new(64).unwrap();
    let lane = Lane::new(0, 0, 2, config, &mut uring).unwrap();
    (guest, lane, uring, submitted)
}

/// They wait until the queue stops.
#[test]
fn requests_without_room_return_to_ring() {
    for format in [Format::Split, Format::Packed] {
        let options = BlkOptions { format, depth: 21, data: 4 << 20, ..OPTIONS };
        let (mut guest, mut lane, mut uring, submitted) =
            stuck_lane(Stuck::default(), options, false);
        // 64 MiB fill a lane; the small ones come behind it.
        for slot in 0..16 {
            let read = Request { kind: RequestKind::Read, sector: 0, len: 4 << 20, ioprio: 0 };
            guest.driver.submit(slot, read).unwrap();
        }
        (16..21).for_each(|slot| guest.submit(slot, RequestKind::Read, 0));
        guest.driver.publish();
        assert!(lane.serve(&mut uring, false));
        assert!(!lane.serve(&mut uring, false), "there is room for none of them");
        assert!(!lane.has_work() && !lane.before_sleep(), "it would never sleep");
        let begun: Vec<Slot> =
            submitted.lock().unwrap().iter().map(|(slot, _)| Slot(*slot)).collect();
        assert_eq!(begun.len(), 16, "{format:?}");
        let (reply, stopped) = channel();
        lane.stop(reply);
        assert!(matches!(lane.settle(), Settled::Stays), "some are still under way");
        begun.into_iter().for_each(|slot| lane.go_on(&mut uring, slot));
        assert!(matches!(lane.settle(), Settled::Ends), "{format:?}");
        let stopped = stopped.recv().unwrap().unwrap();
        assert_eq!(stopped.base & 0x7fff, 16, "{format:?}: the five that wait are the next ones");
    }
}

#[test]
fn large_requests_leave_room_for_others() {
    for format in [Format::Split, Format::Packed] {
        let options = BlkOptions { format, data: 64 << 20, ..OPTIONS };
        let (mut guest, mut lane, mut uring, submitted) =
            stuck_lane(Stuck::default(), options, false);
        for slot in [0, 1, 2, 5, 6] {
            let large = Request { kind: RequestKind::Read, sector: 0, len: 64 << 20, ioprio: 0 };
            guest.driver.submit(slot, large).unwrap();
            if slot == 2 {
                [3, 4].into_iter().for_each(|slot| guest.submit(slot, RequestKind::Read, 0));
            }
        }
        guest.driver.publish();
        assert!(lane.serve(&mut uring, false));
        let begun: Vec<u16> = submitted.lock().unwrap().iter().map(|(slot, _)| *slot).collect();
        assert_eq!(
            begun,
            [0, 1, 2, 3, 4, 5],
            "{format:?}: three leave room, and a fifth is not begun"
        );
    }
}

#[test]
fn stopped_queue_puts_large_request_back() {
    for (format, is_tracked) in
        [(Format::Split, false), (Format::Packed, false), (Format::Split, true)]
    {
        let options = BlkOptions { format, data: 64 << 20, ..OPTIONS };
        let engine = Stuck { is_busy: true, ..Stuck::default() };
        let (mut guest, mut lane, mut uring, submitted) = stuck_lane(engine, options, is_tracked);
        let large = Request { kind: RequestKind::Write, sector: 0, len: 64 << 20, ioprio: 0 };
        guest.driver.submit(0, large).unwrap();
        guest.driver.publish();
        (0..3).for_each(|_| assert!(lane.serve(&mut uring, false)));
        assert_eq!(submitted.lock().unwrap().len(), 3, "{format:?}: it goes on in parts");
        let (reply, stopped) = channel();
        lane.stop(reply);
        lane.serve(&mut uring, false);
        assert!(matches!(lane.settle(), Settled::Ends), "{format:?}");
        assert_eq!(
            stopped.recv().unwrap().unwrap().base & 0x7fff,
            0,
            "{format:?}: it is the next again"
        );
        let mut done = Vec::new();
        guest.driver.reap(&mut done).unwrap();
        assert!(done.is_empty(), "{format:?}: it was answered");
    }
}

#[test]
fn stopped_queue_puts_endless_request_back() {
    for format in [Format::Split, Format::Packed] {
        let engine = Stuck { is_busy: true, ..Stuck::default() };
        let (mut guest, mut lane, mut uring, submitted) = lane_of(engine, format);
        guest.zeroes(0, 4 << 20);
        guest.zeroes(1, 8);
        guest.driver.publish();
        for _ in 0..5 {
            assert!(lane.serve(&mut uring, false) && lane.has_work() && lane.before_sleep());
        }
        assert_eq!(submitted.lock().unwrap().len(), 6, "both, and then a part each turn");
        let (reply, stopped) = channel();
        lane.stop(reply);
        lane.serve(&mut uring, false);
        assert!(matches!(lane.settle(), Settled::Ends), "{format:?}");
        let base = stopped.recv().unwrap().unwrap().base;
        assert_eq!(base & 0x7fff, 0, "{format:?}: it is the next one again");
        let mut done = Vec::new();
        guest.driver.reap(&mut done).unwrap();
        assert!(done.is_empty(), "{format:?}: it was answered");
    }
}

#[test]
fn discards_and_zeroings_leave_room() {
    for format in [Format::Split, Format::Packed] {
        let (mut guest, mut lane, mut uring, submitted) = lane_of(Stuck::default(), format);
        (0..4).for_each(|slot| guest.zeroes(slot, 4 << 20));
        (4..8).for_each(|slot| guest.submit(slot, RequestKind::Read, 0));
        guest.driver.publish();
        assert!(lane.serve(&mut uring, false));
        assert_eq!(
            submitted.lock().unwrap().len(),
            8,
            "{format:?}: 8 GiB are named before the reads"
        );
    }
}

#[test]
fn waiting_zeroings_return_last_first() {
    for format in [Format::Split, Format::Packed] {
        let engine = Stuck { waits: true, ..Stuck::default() };
        let (mut guest, mut lane, mut uring, _) = lane_of(engine, format);
        (0..8).for_each(|slot| guest.zeroes(slot, 4 << 20));
        guest.driver.publish();
        lane.serve(&mut uring, false);
        let (reply, stopped) = channel();
        lane.stop(reply);
        assert!(matches!(lane.settle(), Settled::Ends), "{format:?}");
        assert_eq!(
            stopped.recv().unwrap().unwrap().base & 0x7fff,
            0,
            "{format:?}: all are next again"
        );
    }
}

/// They stay in flight for an upgrade, and continue if that is cancelled.
#[test]
fn zeroings_survive_a_cancelled_upgrade() {
    for is_called_off in [false, true] {
        let engine = Stuck { waits: true, ..Stuck::default() };
        let (mut guest, mut lane, mut uring, submitted) = stuck_lane(engine, OPTIONS, true);
        guest.zeroes(0, 4 << 20);
        guest.submit(1, RequestKind::Read, 0);
        guest.driver.publish();
        lane.serve(&mut uring, false);
        let (reply, stopped) = channel();
        let stop = Arc::new(CancellableRequest::default());
        lane.try_stop(Arc::clone(&stop), reply);
        assert!(matches!(lane.settle(), Settled::Stays), "the read is under way");
        if is_called_off {
            assert!(stop.cancel());
            lane.carry_on();
            submitted.lock().unwrap().clear();
            assert!(lane.has_work() && lane.serve(&mut uring, false));
            assert_eq!(submitted.lock().unwrap().len(), 1, "the zeroing begins again");
        } else {
            let read = Slot(submitted.lock().unwrap()[1].0);
            lane.go_on(&mut uring, read);
            assert!(matches!(lane.settle(), Settled::Ends), "nothing is under way");
            stopped.recv().unwrap().unwrap();
            let mut done = Vec::new();
            guest.driver.reap(&mut done).unwrap();
            assert_eq!(done.iter().map(|done| done.slot).collect::<Vec<_>>(), [1]);
        }
    }
}

/// A lane's last write before it sleeps is that it wants kicks. By then memory can be gone that was
/// there when it looked, and a kick that came meanwhile wakes no thread.
#[test]
fn lane_stays_awake_on_lost_ring() {
    for (layout, base, event_idx) in [
        (RingFormat::Split, 0, false),
        (RingFormat::Split, 0, true),
        (RingFormat::Packed, 0x8000_8000, false),
    ] {
        let file = std::fs::File::from(
            rustix::fs::memfd_create("vlane-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
        );
        file.set_len(0x1_0000).unwrap();
        let spec = RegionSpec { guest: 0, size: 0x1_0000, user: 0, offset: 0 };
        let memory = Arc::new(GuestMemory::new(vec![Region::map(spec, &file).unwrap()]).unwrap());
        // The device's writes are in the third page.
        let [desc, driver, device] = [0, 0x1000, 0x2000];
        let queue =
            QueueConfig { layout, size: 8, event_idx, desc, driver, device, base, log_addr: None };
        let (events, told) = event_channel().unwrap();
        let config =
            LaneConfig { queue: Queue::new(queue, memory).unwrap(), events, ..guest(null(None)).1 };
        let mut uring = Uring::new(64).unwrap();
        let mut lane = Lane::new(0, 0, 2, config, &mut uring).unwrap();
        assert!(!lane.before_sleep() && told.next().is_none());
        lane.after_sleep();
        file.set_len(0x2000).unwrap();
        lane.before_sleep();
        let event = told.next();
        let is_broken =
            matches!(event, Some(LaneEvent::Broken { index: 0, reason: Broken::MemoryLost }));
        assert!(is_broken, "{layout:?}, event index {event_idx}: {event:?}");
        assert!(!lane.before_sleep() && told.next().is_none(), "it is told once");
    }
}

/// Writes in progress become durable when the guest switches its write cache off.
#[test]
fn write_cache_off_makes_writes_durable() {
    let (mut guest, mut lane, mut uring, submitted) = lane_of(Stuck::default(), Format::Split);
    guest.submit(0, RequestKind::Write, 0);
    guest.driver.publish();
    lane.serve(&mut uring, false);
    lane.set_write_through(true);
    lane.go_on(&mut uring, first(&submitted));
    guest.submit(1, RequestKind::Write, 0);
    guest.driver.publish();
    lane.serve(&mut uring, false);
    let durable: Vec<bool> =
        submitted.lock().unwrap().iter().map(|(_, decisions)| decisions.durable).collect();
    assert_eq!(durable, [false, true, true], "at its beginning, when it goes on, and the next one");
}
