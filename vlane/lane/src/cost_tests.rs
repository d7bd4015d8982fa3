//! One lane and its guest in one thread: `scripts/probe-cost` and `scripts/record-cost` count a
//! request's instructions here.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use vlane_driver::ring::{Arena, BlkOptions, BlkQueue, Format, Request, RequestKind};
use vlane_engine::Engine;
use vlane_engine::file::{Cache, FileEngine, FileOptions};
use vlane_engine::null::{NullConfig, NullEngine};
use vlane_hint::{Board, BoardReader, Classes, LaneHint, Mark};
use vlane_io::{Event, Uring};
use vlane_memory::{GuestMemory, Region, RegionSpec};
use vlane_policy::express::{Express, Mode};
use vlane_ring::{InflightRegion, Queue, QueueConfig, RingFormat};

use crate::lane::Lane;
use crate::{Counters, LaneConfig, RecorderConfig, event_channel, recorder};

const DEPTH: u16 = 32;

pub(crate) fn memory(arena: &Arena) -> Arc<GuestMemory> {
    let spec =
        RegionSpec { guest: arena.base(), size: arena.size(), user: arena.user_addr(), offset: 0 };
    let file = std::fs::File::from(arena.fd().unwrap().try_clone_to_owned().unwrap());
    Arc::new(GuestMemory::new(vec![Region::map(spec, &file).unwrap()]).unwrap())
}

pub(crate) fn device(arena: &Arena, driver: &BlkQueue, event_idx: bool) -> Queue {
    let at = driver.layout();
    // The base of a fresh ring.
    let (layout, base) = match at.format {
        Format::Split => (RingFormat::Split, 0),
        Format::Packed => (RingFormat::Packed, 0x8000_8000),
    };
    let config = QueueConfig {
        layout,
        size: at.size,
        event_idx,
        desc: arena.to_user(at.desc),
        driver: arena.to_user(at.driver),
        device: arena.to_user(at.device),
        base,
        log_addr: None,
    };
    Queue::new(config, memory(arena)).unwrap()
}

/// The null device; or the image that `VLANE_COST_IMAGE` names, of at least 1 GiB, in the cache
/// mode that `VLANE_COST_CACHE` says (`none`, otherwise writeback).
fn engine() -> Arc<dyn Engine> {
    let Some(image) = std::env::var_os("VLANE_COST_IMAGE") else {
        let config = NullConfig { size: 1 << 30, latency: None, parallelism: 1 };
        return Arc::new(NullEngine::new(config).unwrap());
    };
    let is_direct = std::env::var("VLANE_COST_CACHE").is_ok_and(|cache| cache == "none");
    let cache = if is_direct { Cache::None } else { Cache::Writeback };
    Arc::new(
        FileEngine::open(image.as_ref(), FileOptions { cache, ..FileOptions::default() }).unwrap(),
    )
}

/// Runs `VLANE_COST_BATCHES` batches of 32 reads (10 if it is not set), or of writes, if
/// `VLANE_COST_WRITES` is set. `VLANE_COST_PACKED` selects a packed ring, `VLANE_COST_INFLIGHT`
/// in-flight tracking, `VLANE_COST_RECORD` recording. `VLANE_COST_HINT` sets a hint that is `off`
/// or `armed`. `VLANE_COST_CLASSES` sets classes, `order` or `shortest`, and two of them if it is
/// `mixed`.
#[test]
fn every_request_is_answered_and_counted() {
    let batches: u64 = std::env::var("VLANE_COST_BATCHES")
        .map_or(10, |text| text.parse().expect("a number of batches"));
    let kind = if std::env::var_os("VLANE_COST_WRITES").is_some() {
        RequestKind::Write
    } else {
        RequestKind::Read
    };
    let is_packed = std::env::var_os("VLANE_COST_PACKED").is_some();
    let options = BlkOptions {
        format: if is_packed { Format::Packed } else { Format::Split },
        size: None,
        depth: DEPTH,
        data: 4096,
        segments: 1,
        indirect: true,
        event_idx: true,
    };
    let arena = Arena::new(0x8000_0000, options.arena_bytes().unwrap()).unwrap();
    let mut driver = BlkQueue::new(&arena, options).unwrap();
    let (events, _receiver) = event_channel().unwrap();
    let counters = Arc::new(Counters::default());
    let classes = std::env::var("VLANE_COST_CLASSES").unwrap_or_default();
    let mode = match classes.as_str() {
        "order" | "mixed" => Mode::Order,
        "shortest" => Mode::Shortest,
        _ => Mode::Off,
    };
    // Best effort 0 and 7, as Linux writes them.
    let is_mixed = classes == "mixed";
    let ioprio = |slot: u16| if is_mixed { (2 << 13) | (u32::from(slot % 2) * 7) } else { 0 };
    // As with storage that can hang.
    let watched = std::env::var_os("VLANE_COST_WATCH").is_some();
    let mut queue = device(&arena, &driver, true);
    if std::env::var_os("VLANE_COST_INFLIGHT").is_some() {
        let (size, bytes) =
            (driver.layout().size, InflightRegion::bytes(1, driver.layout().size).unwrap());
        let file = InflightRegion::create(1, size).unwrap();
        queue.track(InflightRegion::map(&file, 0, bytes, 1, size).unwrap().part(0).unwrap());
    }
    let config = LaneConfig {
        queue,
        engine: engine(),
        kick: None,
        call: None,
        serial: [0; 20],
        write_through: false,
        counters: Arc::clone(&counters),
        events,
        watch: watched.then(Arc::default),
        express: Express { mode, ..Express::default() },
        classes: None,
    };
    let mut uring = Uring::new(64).unwrap();
    let mut lane = Lane::new(0, 0, 2, config, &mut uring).unwrap();
    let (recorder, mut recorded) =
        recorder(0, RecorderConfig { origin: Instant::now(), hashes: false, entries: 1024 });
    let is_recorded = std::env::var_os("VLANE_COST_RECORD").is_some();
    lane.set_recorder(is_recorded.then(|| Box::new(recorder)));
    let hinted = std::env::var("VLANE_COST_HINT").unwrap_or_default();
    let (board, fd) = Board::create(1, false).unwrap();
    let mut watch = BoardReader::new(Board::open(fd.as_fd(), 1).unwrap());
    if hinted == "off" || hinted == "armed" {
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        lane.set_hint(LaneHint::new(board, 0, Arc::new(wake)).map(Box::new));
    }
    if hinted == "armed" {
        watch.arm(Classes::ALL);
    }
    let (mut entries, mut events) = (0, 0);
    let mut done = Vec::new();
    for batch in 0..batches {
        for slot in 0..DEPTH {
            let sector = (batch * u64::from(DEPTH) + u64::from(slot)) % (1 << 20) * 8 % (1 << 21);
            driver.submit(slot, Request { kind, sector, len: 4096, ioprio: ioprio(slot) }).unwrap();
        }
        driver.publish();
        assert!(lane.serve(&mut uring, false));
        driver.reap(&mut done).unwrap();
        while done.len() < usize::from(DEPTH) {
            uring.wait(None).unwrap();
            while let Some(event) = uring.next_event() {
                if let Event::Finished(finished) = event {
                    lane.finished(&mut uring, finished);
                }
            }
            lane.round_ends();
            if is_mixed {
                // Requests that waited for others may have room at the device now.
                lane.serve(&mut uring, false);
            }
            driver.reap(&mut done).unwrap();
        }
        assert_eq!(done.len(), usize::from(DEPTH));
        assert!(done.iter().all(|completion| completion.status == 0));
        done.clear();
        entries += recorded.drain(|entry| _ = std::hint::black_box(entry)) as u64;
    }
    for (_, mark) in watch.collect(u64::MAX) {
        let (Mark::Event { count, .. } | Mark::Served { count, .. }) = mark;
        events += u64::from(count);
    }
    assert_eq!(events, if hinted == "armed" { batches } else { 0 });
    // One more for the lane's start.
    assert_eq!(entries, if is_recorded { batches * u64::from(DEPTH) + 1 } else { 0 });
    lane.store_counters();
    let counted = counters.snapshot();
    let (requests, others) = match kind {
        RequestKind::Write => (counted.writes, counted.reads),
        _ => (counted.reads, counted.writes),
    };
    assert_eq!((requests, others), (batches * u64::from(DEPTH), 0));
}
