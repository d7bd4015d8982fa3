//! State that a back end leaves for the next one of the same guest, and takes over from the last.
//! It is the image, the size, the write cache, and all answered requests.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use common::inflight::*;
use common::*;
use vlane_engine::file::{Cache, FileEngine, FileOptions};
use vlane_engine::{
    Channel, ChannelStats, Engine, EngineError, Geometry, Operation, Outcome, Status, Taken,
};

const MIB: u64 = 1 << 20;

fn memory() -> Memory {
    Memory::new(0x10_0000, 0x20_0000)
}

fn file(path: &Path) -> Arc<FileEngine> {
    let options = FileOptions { cache: Cache::Writeback, ..FileOptions::default() };
    Arc::new(FileEngine::open(path, options).unwrap())
}

fn make(path: &Path, bytes: u64) {
    File::create(path).unwrap().set_len(bytes).unwrap();
}

/// State that a front end keeps while back ends come and go.
struct Kept {
    memory: Memory,
    shape: Vec<u8>,
    file: File,
    base: u32,
}

impl Kept {
    /// A guest of the volume that has written data.
    fn after(engine: Arc<dyn Engine>) -> Kept {
        let server = Server::new(engine, 1, 1);
        let memory = memory();
        let wire = connect(&server, &memory, USUAL_PROTOCOL);
        let (shape, file) = get_inflight(&wire, 1, SIZE).unwrap();
        let base = {
            let mut ring = Ring::new(&memory, 0);
            assert!(set_inflight(&wire, &shape, &file) && wire.start(0, &ring));
            ring.submit(0, OUT, 0, 4096);
            ring.wait(1);
            ring.next.into()
        };
        Kept { memory, shape, file, base }
    }

    /// True if a volume's server takes the guest over, and then serves it.
    fn goes_on(&self, server: &Server) -> bool {
        let wire = connect(server, &self.memory, USUAL_PROTOCOL);
        let is_taken = set_inflight(&wire, &self.shape, &self.file);
        let mut ring =
            Ring { next: self.base as u16, seen: self.base as u16, ..Ring::new(&self.memory, 0) };
        assert!(wire.start_at(0, &ring, self.base), "the front end is told nothing else");
        ring.set_data(0, &[7; 4096]);
        ring.submit(0, OUT, 8, 4096);
        match is_taken {
            true => assert_eq!(ring.wait(1), [0]),
            false => assert!(ring.is_quiet(), "a refused guest is not served"),
        }
        is_taken
    }

    fn bytes(&self) -> u64 {
        word(&self.shape, 0)
    }
}

fn is_empty(path: &Path) -> bool {
    std::fs::read(path).unwrap().iter().all(|byte| *byte == 0)
}

#[test]
fn another_image_is_refused_unchanged() {
    let place = tempfile::tempdir().unwrap();
    let [p, q] = ["p.raw", "q.raw"].map(|name| place.path().join(name));
    make(&p, MIB);
    make(&q, MIB);
    let kept = Kept::after(file(&p));
    assert!(!kept.goes_on(&Server::new(file(&q), 1, 1)));
    assert!(is_empty(&q));
    // The right one, under another name.
    let renamed = place.path().join("renamed.raw");
    std::fs::rename(&p, &renamed).unwrap();
    assert!(kept.goes_on(&Server::new(file(&renamed), 1, 1)));
    assert!(!is_empty(&renamed));
}

#[test]
fn insisting_front_end_gets_another_image() {
    let place = tempfile::tempdir().unwrap();
    let [p, q] = ["p.raw", "q.raw"].map(|name| place.path().join(name));
    make(&p, MIB);
    make(&q, MIB);
    let kept = Kept::after(file(&p));
    assert!(kept.goes_on(&Server::insisting(file(&q))));
    assert!(!is_empty(&q));
    // From then on it is the new image.
    let kept = Kept { base: kept.base + 1, ..kept };
    assert!(!kept.goes_on(&Server::new(file(&p), 1, 1)));
}

#[test]
fn only_shorter_image_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let p = place.path().join("p.raw");
    make(&p, MIB);
    let kept = Kept::after(file(&p));
    let resize = |bytes| File::options().write(true).open(&p).unwrap().set_len(bytes).unwrap();
    resize(MIB / 2);
    assert!(!kept.goes_on(&Server::new(file(&p), 1, 1)));
    resize(2 * MIB);
    assert!(kept.goes_on(&Server::new(file(&p), 1, 1)));
}

/// Notes from a back end without them, or overwritten ones: they count as missing.
#[test]
fn guest_without_readable_notes_is_served() {
    let place = tempfile::tempdir().unwrap();
    let [p, q] = ["p.raw", "q.raw"].map(|name| place.path().join(name));
    make(&p, MIB);
    make(&q, MIB);
    let kept = Kept::after(file(&p));
    let notes = kept.bytes() - 120;
    let others = Kept { shape: shape(notes, 1, SIZE), ..kept };
    assert!(others.goes_on(&Server::new(file(&q), 1, 1)));
    let kept = Kept { shape: shape(notes + 120, 1, SIZE), base: others.base + 1, ..others };
    kept.file.write_all_at(&[0x5a; 120 - 16], notes).unwrap();
    assert!(kept.goes_on(&Server::new(file(&q), 1, 1)));
    // It is noted now.
    let kept = Kept { base: kept.base + 1, ..kept };
    assert!(!kept.goes_on(&Server::new(file(&p), 1, 1)));
}

/// A refused guest stays refused after a takeover: no part of it is handed over.
#[test]
fn refused_guest_resets_its_device_and_is_served() {
    let place = tempfile::tempdir().unwrap();
    let [p, q] = ["p.raw", "q.raw"].map(|name| place.path().join(name));
    make(&p, MIB);
    make(&q, MIB);
    let kept = Kept::after(file(&p));
    let server = Server::new(file(&q), 1, 1);
    let wire = connect(&server, &kept.memory, USUAL_PROTOCOL);
    assert!(!set_inflight(&wire, &kept.shape, &kept.file));
    // It boots again, from this image: the front end has no marks to keep, and asks for new memory.
    let (shape, file) = get_inflight(&wire, 1, SIZE).unwrap();
    assert!(set_inflight(&wire, &shape, &file));
    let fresh = Memory::new(0x10_0000, 0x20_0000);
    assert!(wire.set_memory(&[&fresh]));
    let mut ring = Ring::new(&fresh, 0);
    assert!(wire.start(0, &ring));
    ring.submit(0, GET_ID, 0, 20);
    ring.wait(1);
}

/// Storage that answers at once, and writes down how it is used.
#[derive(Debug, Default)]
struct Noting {
    is_write_through: Arc<AtomicBool>,
    syncs: AtomicU32,
}

#[derive(Debug)]
struct NotingChannel(Arc<AtomicBool>);

impl Engine for Noting {
    fn geometry(&self) -> Geometry {
        Geometry {
            sectors: MIB / 512,
            block_size: 512,
            physical_exponent: 3,
            optimal_blocks: 0,
            read_only: false,
            discard: false,
            write_zeroes: false,
            write_cache: true,
        }
    }

    fn sync(&self) -> std::io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn channel(&self, _slots: u16) -> Result<Box<dyn Channel>, EngineError> {
        Ok(Box::new(NotingChannel(Arc::clone(&self.is_write_through))))
    }
}

impl Channel for NotingChannel {
    fn begin(&mut self, _: Taken<'_>, _: &mut Vec<Operation>) -> Outcome {
        Outcome::Done(Status::Ok)
    }

    fn set_write_through(&mut self, on: bool) {
        self.0.store(on, Ordering::SeqCst);
    }

    fn stats(&self) -> ChannelStats {
        ChannelStats::default()
    }
}

impl Noting {
    /// Returns true if a lane that has answered since writes through.
    fn is_write_through(&self, ring: &mut Ring<'_>) -> bool {
        ring.submit(0, OUT, 0, 4096);
        ring.wait(1);
        self.is_write_through.load(Ordering::SeqCst)
    }
}

const CACHE: u32 = 32;

#[test]
fn write_cache_stays_off_in_next_back_end() {
    let memory = memory();
    let mut kept: Option<(Vec<u8>, File)> = None;
    let mut at = 0;
    // The guest says it once, and only the third back end hears otherwise.
    for (round, says) in [Some(0u8), None, Some(1), None, None].into_iter().enumerate() {
        let engine = Arc::new(Noting::default());
        let server = Server::new(Arc::clone(&engine) as _, 1, 1);
        let wire = connect(&server, &memory, USUAL_PROTOCOL);
        let (shape, file) = kept.take().unwrap_or_else(|| get_inflight(&wire, 1, SIZE).unwrap());
        assert!(set_inflight(&wire, &shape, &file));
        let mut ring = Ring { next: at, seen: at, ..Ring::new(&memory, 0) };
        assert!(wire.start_at(0, &ring, at.into()));
        let was_off = round == 1 || round == 2;
        assert_eq!(engine.is_write_through(&mut ring), was_off, "round {round}");
        assert_eq!(wire.config(CACHE, 1), [u8::from(!was_off)]);
        if let Some(says) = says {
            assert!(wire.set_config(CACHE, &[says]));
            assert_eq!(engine.is_write_through(&mut ring), says == 0);
        }
        at = ring.next;
        kept = Some((shape, file));
    }
}

/// Without a word of what the driver has said, what is answered may have to be durable.
#[test]
fn continued_ring_writes_through() {
    for base in [0, 1, 500] {
        let engine = Arc::new(Noting::default());
        let server = Server::new(Arc::clone(&engine) as _, 2, 1);
        let (wire, memory) = server.guest(USUAL);
        let mut first = Ring::new(&memory, 0);
        // A ring that has served no request yet.
        assert!(wire.start(0, &first));
        assert!(!engine.is_write_through(&mut first));
        let at = base as u16;
        let mut ring = Ring { next: at, seen: at, ..Ring::new(&memory, 0x2_0000) };
        memory.put(0x2_0000 + USED + 2, &at.to_le_bytes());
        ring.publish();
        assert!(wire.start_at(1, &ring, base));
        let goes_on = base != 0;
        assert_eq!(engine.is_write_through(&mut ring), goes_on, "{base}");
        assert_eq!(engine.is_write_through(&mut first), goes_on, "all lanes alike");
        assert_eq!(wire.config(CACHE, 1), [u8::from(!goes_on)]);
        // A machine that is stopped and continues in the same session does not count as new.
        assert!(wire.set_config(CACHE, &[1]));
        let base = wire.get_base(1).unwrap();
        assert!(wire.start_at(1, &ring, base));
        assert!(!engine.is_write_through(&mut ring));
    }
}

/// A change of other features keeps it off, too.
#[test]
fn disabled_write_cache_survives_a_reset() {
    let engine = Arc::new(Noting::default());
    let server = Server::new(Arc::clone(&engine) as _, 1, 1);
    let (wire, memory) = server.guest(USUAL);
    assert!(wire.set_config(CACHE, &[0]));
    // A front end that keeps the configuration for itself tells its next driver that the cache is
    // off.
    assert!(wire.set_features(VERSION_1 | PROTOCOL) && wire.set_features(USUAL));
    assert_eq!(wire.config(CACHE, 1), [0]);
    assert!(wire.set(code::RESET_DEVICE, &[], &[]) && wire.set_features(USUAL));
    assert_eq!(wire.config(CACHE, 1), [0]);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    assert!(engine.is_write_through(&mut ring));
}

#[test]
fn sync_precedes_the_last_base() {
    let engine = Arc::new(Noting::default());
    let server = Server::new(Arc::clone(&engine) as _, 2, 1);
    let (wire, memory) = server.guest(USUAL);
    let rings = [Ring::new(&memory, 0), Ring::new(&memory, 0x2_0000)];
    let syncs = || engine.syncs.load(Ordering::SeqCst);
    for round in 1..=2 {
        for (index, ring) in (0..).zip(&rings) {
            assert!(wire.start(index, ring));
        }
        assert!(wire.get_base(0).is_some());
        assert_eq!(syncs(), 2 * round - 2, "the other one runs");
        assert!(wire.get_base(1).is_some());
        assert_eq!(syncs(), 2 * round - 1);
        assert!(wire.get_base(0).is_some() && wire.get_base(1).is_some());
        assert_eq!(syncs(), 2 * round - 1, "nothing was written since");
        // As QEMU does it.
        for (index, ring) in (0..).zip(&rings) {
            assert!(wire.start(index, ring));
        }
        assert!((0..2).all(|index| wire.vring(code::SET_VRING_ENABLE, index, 0)));
        assert!(wire.get_base(0).is_some());
        assert_eq!(syncs(), 2 * round);
    }
}

/// QEMU disables the rings first, and asks for their bases then. An upgrade may come in between.
#[test]
fn upgrade_before_last_base_still_syncs() {
    let (server, relief) = Server::relievable(Arc::new(Noting::default()));
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    ring.submit(0, OUT, 0, 4096);
    ring.wait(1);
    assert!(wire.vring(code::SET_VRING_ENABLE, 0, 0));
    let engine = Arc::new(Noting::default());
    let _next = server.hand_over(&relief, Arc::clone(&engine) as _);
    assert_eq!(wire.get_base(0), Some(1));
    assert_eq!(engine.syncs.load(Ordering::SeqCst), 1);
}

/// QEMU does not take its memory away when a device goes, and brings it again for the next one at
/// the same connection.
#[test]
fn repeated_memory_replaces_the_old() {
    let server = Server::new(null(None), 1, 1);
    let (wire, old) = server.guest(USUAL);
    let ring = Ring::new(&old, 0);
    assert!(wire.start(0, &ring));
    let again = Memory::new(0x10_0000, 0x20_0000);
    assert!(!wire.add_memory(&again), "it is in use");
    assert!(wire.get_base(0).is_some());
    assert!(wire.add_memory(&again));
    let mut ring = Ring::new(&again, 0);
    assert!(wire.start(0, &ring));
    ring.submit(0, GET_ID, 0, 20);
    ring.wait(1);
    assert_eq!(&ring.data(0, 9), b"serial-42");
    assert!(wire.get_base(0).is_some());
    // Of another shape, and in addition to others.
    let part = Memory::new(0x20_0000, 0x20_0000);
    let beside = Memory::new(0x80_0000, 0x1000);
    assert!(wire.add_memory(&beside) && wire.add_memory(&part));
    let mut ring = Ring::new(&part, 0);
    assert!(wire.start(0, &ring));
    ring.submit(0, GET_ID, 0, 20);
    ring.wait(1);
    assert!(!wire.add_memory(&beside), "memory beside it is still there");
}
