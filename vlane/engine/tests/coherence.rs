//! Direct I/O where a block of the storage is larger than a sector. A part of a block is read,
//! changed and written back; no other write of any lane is undone by that, and no data goes through
//! the page cache.
//!
//! With `--cache pdc` the same lanes go through the page cache, while the supposed journal changes
//! at random and its pages are dropped.
//!
//! The model tests make more requests with `VLANE_COHERENCE=1000000`, and others with
//! `VLANE_COHERENCE_SEED=N`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::places::{
    Loop, Mount, cached, drop_cache, image, in_memory, on_disk, open, open_with, skip,
};
use common::{Answer, DATA, Op, PLACES, Rig, bytes};
use tempfile::TempDir;
use vlane_engine::file::{Cache, FileEngine, FileOptions, JournalWay};
use vlane_engine::{Engine, Status};
use vlane_policy::journal::layout::JournalLayout;
use vlane_policy::journal::{Evidence, FileSystem, Journal, LogKind};

const BLOCK: u64 = 4096;
const SIZE: u64 = 1 << 20;
/// The largest one that there can be.
const FOLIO: u64 = 2 << 20;

/// A volume on storage with blocks of 4096 bytes: a device, or a file on one.
struct Place {
    path: PathBuf,
    cache: Cache,
    /// Its discards are a thread's, as on a kernel before 6.12.
    is_old: bool,
    /// With pdc: its size, if parts of it are direct.
    direct: Option<u64>,
    // In this order: the file system's device is detached after its unmounting.
    _mount: Option<Mount>,
    _device: Option<Loop>,
    _dir: TempDir,
}

impl Place {
    /// Where the device's content lies: it is about the order of things, and memory is faster.
    fn backing() -> TempDir {
        in_memory().unwrap_or_else(on_disk)
    }

    fn device() -> Option<Place> {
        Place::device_of(SIZE)
    }

    fn device_of(size: u64) -> Option<Place> {
        let dir = Place::backing();
        match Loop::new(&image(dir.path(), size), 4096) {
            Ok(device) => {
                let path = device.device.clone();
                Some(Place {
                    path,
                    cache: Cache::None,
                    is_old: false,
                    direct: None,
                    _mount: None,
                    _device: Some(device),
                    _dir: dir,
                })
            }
            Err(why) => {
                skip(why);
                None
            }
        }
    }

    /// The same with an old kernel.
    fn old_device() -> Option<Place> {
        Place::device().map(|place| Place { is_old: true, ..place })
    }

    fn file() -> Option<Place> {
        Place::file_of(SIZE)
    }

    fn file_of(size: u64) -> Option<Place> {
        let dir = Place::backing();
        match Mount::ext4(&image(dir.path(), 32 << 20), 4096) {
            Ok(mount) => {
                let path = image(mount.path(), size);
                Some(Place {
                    path,
                    cache: Cache::None,
                    is_old: false,
                    direct: None,
                    _mount: Some(mount),
                    _device: None,
                    _dir: dir,
                })
            }
            Err(why) => {
                skip(why);
                None
            }
        }
    }

    fn size(&self) -> u64 {
        self.direct.unwrap_or(SIZE)
    }

    fn open(&self) -> Arc<FileEngine> {
        if self.direct.is_some() {
            return open_with(
                &self.path,
                FileOptions {
                    cache: self.cache,
                    journal: JournalWay::Direct,
                    ..FileOptions::default()
                },
            );
        }
        let engine =
            open(&self.path, if self.cache == Cache::None { Cache::Auto } else { self.cache });
        assert_eq!(engine.cache(), self.cache);
        if self.is_old {
            engine.pretend_old_kernel();
        }
        engine
    }
}

fn places() -> impl Iterator<Item = Place> {
    [Place::device(), Place::old_device(), Place::file()].into_iter().flatten()
}

fn lane(engine: &Arc<FileEngine>) -> Rig {
    Rig::new(Arc::clone(engine) as Arc<dyn Engine>)
}

#[test]
fn direct_volume_leaves_page_cache_empty() {
    for place in places() {
        let engine = place.open();
        let mut rig = lane(&engine);
        let mut model = bytes(1, SIZE as usize);
        rig.ok(Op::write(0, model.clone()));
        drop_cache(&place.path);
        assert_eq!(cached(&place.path), 0, "before");
        let mut write = |rig: &mut Rig, sector: u64, pieces: Vec<(usize, usize)>| {
            let len = pieces.iter().map(|(_, len)| len).sum();
            let data = bytes(sector + 7, len);
            model[sector as usize * 512..][..len].copy_from_slice(&data);
            rig.ok(Op::Write { sector, pieces, data });
        };
        // Part of a block; over its end; several, with parts at both ends, in one buffer and in
        // crooked ones; the last sector.
        write(&mut rig, 3, vec![(0, 512)]);
        write(&mut rig, 15, vec![(0, 1024)]);
        write(&mut rig, 33, vec![(0, 100 * 512)]);
        write(&mut rig, 201, vec![(3, 5000), (1, 512 * 90 - 5000)]);
        write(&mut rig, 401, vec![(0, 600 * 512)]);
        write(&mut rig, SIZE / 512 - 1, vec![(0, 512)]);
        for ranges in [vec![(1100, 3)], vec![(1129, 30), (1200, 8)], vec![(1303, 1), (1311, 2)]] {
            for unmap in [false, true] {
                let ranges: Vec<(u64, u32)> =
                    ranges.iter().map(|&(at, n)| (at + u64::from(unmap) * 400, n)).collect();
                for &(at, n) in &ranges {
                    model[at as usize * 512..][..n as usize * 512].fill(0);
                }
                rig.ok(Op::WriteZeroes { ranges, unmap });
            }
        }
        // Advice that is not for whole blocks is not taken.
        rig.ok(Op::Discard(vec![(1, 3), (1900, 6), (1912, 1)]));
        assert!(rig.ok(Op::read(0, SIZE as usize)) == model, "{}", place.path.display());
        rig.ok(Op::Flush);
        assert_eq!(cached(&place.path), 0, "{}: pages in the page cache", place.path.display());
        drop(rig);
        assert!(std::fs::read(&place.path).expect("read") == model);
    }
}

/// A change of part of a block has read the block when `other` is made by the same or another lane.
/// Returns the block's content when both are answered; bytes from 512 to 1024 are the change's.
fn beside_a_change(place: &Place, is_one_lane: bool, other: Op) -> Vec<u8> {
    let engine = place.open();
    let mut lanes = [lane(&engine), lane(&engine)];
    lanes[0].ok(Op::write(0, vec![0x0d; BLOCK as usize]));
    lanes[0].start(Op::write(1, vec![0xcc; 512]));
    lanes[0].begin();
    // It has read the block and does not know it yet.
    let begin = Instant::now();
    while !lanes[0].lane.uring.has_work() {
        lanes[0].lane.wait(Duration::from_secs(10));
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
    let mut answered = Vec::new();
    let which = usize::from(!is_one_lane);
    lanes[which].start(other);
    lanes[which].begin();
    if !is_one_lane {
        // It may not be answered yet; if it is, it holds.
        for _ in 0..20 {
            lanes[1].lane.wait(Duration::from_millis(5));
            lanes[1].reap(Instant::now());
        }
        answered = lanes[1].collect();
    }
    // A lane that waits for the other one is woken by it.
    let begin = Instant::now();
    while answered.len() < 2 {
        for rig in &mut lanes {
            rig.lane.wait(Duration::from_millis(1));
            rig.reap(Instant::now());
            answered.extend(rig.collect());
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "it hangs");
    }
    assert!(answered.iter().all(|answer| answer.status == Status::Ok));
    lanes[0].ok(Op::read(0, BLOCK as usize))
}

#[test]
fn partial_block_change_undoes_no_write() {
    for place in places() {
        for is_one_lane in [false, true] {
            let whole =
                beside_a_change(&place, is_one_lane, Op::write(0, vec![0xee; 2 * BLOCK as usize]));
            assert!(
                whole[..512].iter().chain(&whole[1024..]).all(|byte| *byte == 0xee),
                "an aligned write"
            );
            let crooked = Op::Write {
                sector: 0,
                pieces: vec![(1, BLOCK as usize)],
                data: vec![0xee; BLOCK as usize],
            };
            let whole = beside_a_change(&place, is_one_lane, crooked);
            assert!(
                whole[..512].iter().chain(&whole[1024..]).all(|byte| *byte == 0xee),
                "a bounced write"
            );
            for unmap in [false, true] {
                let zeroes = Op::WriteZeroes { ranges: vec![(0, 16)], unmap };
                let zeroed = beside_a_change(&place, is_one_lane, zeroes);
                assert!(
                    zeroed[..512].iter().chain(&zeroed[1024..]).all(|byte| *byte == 0),
                    "zeroes"
                );
            }
            let both = beside_a_change(&place, is_one_lane, Op::write(2, vec![0xaa; 512]));
            assert!(both[512..1024].iter().all(|byte| *byte == 0xcc), "the first of two changes");
            assert!(both[1024..1536].iter().all(|byte| *byte == 0xaa), "the second of two changes");
            assert!(
                both[..512].iter().chain(&both[1536..]).all(|byte| *byte == 0x0d),
                "their neighbours"
            );
            let zeroes = Op::WriteZeroes { ranges: vec![(3, 2)], unmap: true };
            let both = beside_a_change(&place, is_one_lane, zeroes);
            assert!(both[512..1024].iter().all(|byte| *byte == 0xcc), "a change beside zeroes");
            assert!(both[1536..2560].iter().all(|byte| *byte == 0), "zeroes beside a change");
            assert!(both[2560..].iter().all(|byte| *byte == 0x0d), "their neighbours");
        }
    }
}

/// A lane that stops puts half-done requests back: none of them blocks another request, and none
/// waits.
#[test]
fn returned_request_holds_no_block_or_buffer() {
    for place in places() {
        let engine = place.open();
        let mut lanes = [lane(&engine), lane(&engine)];
        let change = || Op::write(1, vec![0xcc; 512]);
        let whole = || Op::write(0, vec![0xee; BLOCK as usize]);
        // More than there are buffers: each takes the one that the last one had.
        for round in 0..3000 {
            // The request is offered once, and taken again and again.
            if round == 0 {
                lanes[0].start(change());
            }
            let slot = lanes[0].lane.take().expect("the request");
            lanes[0].lane.begin(slot);
            // Half done: the block was read. Or no step was done.
            lanes[0].lane.submit();
            lanes[0].lane.put_back_after_an_operation();
            if round % 1000 == 0 {
                lanes[1].ok(whole());
            }
        }
        // It waits for the block that the other one is changing.
        lanes[1].start(change());
        lanes[1].begin();
        let slot = lanes[0].lane.take().expect("the request");
        lanes[0].lane.begin(slot);
        lanes[0].lane.put_back(slot);
        assert_eq!(lanes[1].drain().len(), 1);
        lanes[1].ok(whole());
        assert_eq!(lanes[0].drain().len(), 1);
        let expected = [vec![0xee; 512], vec![0xcc; 512], vec![0xee; 3072]].concat();
        assert!(lanes[1].ok(Op::read(0, BLOCK as usize)) == expected);
    }
}

/// A sector's possible content: a write's data, or zeroes.
#[derive(Debug, Clone, Copy)]
struct Written {
    /// 0: zeroes.
    id: u64,
    begun: u64,
    /// Not yet: `u64::MAX`.
    answered: u64,
    /// A discard need not have done it.
    certain: bool,
}

/// All writes of all lanes, as far as they can still be read.
struct Model {
    clock: u64,
    sectors: Vec<Vec<Written>>,
    /// When each read that is under way began.
    reads: HashMap<u64, u64>,
    /// The blocks under way, and a mark for changes: by a read's number, by when a change began.
    /// Only if none may overlap.
    busy: Option<HashMap<u64, (Range<u64>, bool)>>,
    /// Reads and writes may share a block, but no sector.
    is_fine: bool,
}

impl Model {
    /// Returns true if a request may be made now. Through the page cache a disk's rules do not hold
    /// for requests that overlap while they are under way. A read sees a write in part, and a
    /// zeroing of a device drops data that a write put there meanwhile. No guest does that.
    fn may(&self, extents: &[(u64, u64)], changes: bool, clears: bool) -> bool {
        self.busy.iter().flat_map(HashMap::values).all(|(range, they_change)| {
            let meets = |extent: &(u64, u64)| {
                let own = self.place(*extent, clears);
                own.start < range.end && range.start < own.end
            };
            !(changes || *they_change) || !extents.iter().any(meets)
        })
    }

    fn begin(&mut self, key: u64, extent: (u64, u64), changes: bool, clears: bool) {
        let place = self.place(extent, clears);
        if let Some(busy) = &mut self.busy {
            busy.insert(key, (place, changes));
        }
    }

    /// Returns the sectors that no other request may use.
    fn place(&self, extent: (u64, u64), clears: bool) -> Range<u64> {
        match self.is_fine && !clears {
            true => extent.0..extent.0 + extent.1,
            false => blocks(extent),
        }
    }

    fn end(&mut self, key: u64) {
        if let Some(busy) = &mut self.busy {
            busy.remove(&key);
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin_write(&mut self, id: u64, extent: (u64, u64), value: u64, certain: bool) {
        let begun = self.tick();
        let _ = id;
        self.begin(begun, extent, true, value == 0);
        for sector in extent.0..extent.0 + extent.1 {
            let written = Written { id: value, begun, answered: u64::MAX, certain };
            self.sectors[sector as usize].push(written);
        }
    }

    /// The write that began last with this value is answered.
    fn end_write(&mut self, begun: u64, extent: (u64, u64)) {
        self.end(begun);
        let now = self.tick();
        let oldest = self.reads.values().copied().min().unwrap_or(now);
        for sector in extent.0..extent.0 + extent.1 {
            let history = &mut self.sectors[sector as usize];
            history.iter_mut().filter(|w| w.begun == begun).for_each(|w| w.answered = now);
            // Removes content that no read can find any more.
            let all = history.clone();
            history.retain(|w| !all.iter().any(|later| w.is_gone(later, oldest)));
        }
    }

    /// Checks the content that a read found which began at `since`.
    fn check(&self, since: u64, sector: u64, found: &[u8], context: &dyn Fn() -> String) {
        for (sector, found) in (sector..).zip(found.chunks(512)) {
            let id = u64::from_le_bytes(found[..8].try_into().unwrap());
            let history = &self.sectors[sector as usize];
            let is_possible = history
                .iter()
                .any(|w| w.id == id && !history.iter().any(|later| w.is_gone(later, since)));
            assert!(
                is_possible,
                "sector {sector} has what write {id} wrote; {}\n{history:?}",
                context()
            );
            assert!(found == content(id, sector), "sector {sector} is torn; {}", context());
        }
    }
}

impl Written {
    /// Returns true if a read that began at `since` finds `later` in its place.
    fn is_gone(&self, later: &Written, since: u64) -> bool {
        later.certain && later.begun > self.answered && later.answered < since
    }
}

fn blocks((sector, count): (u64, u64)) -> Range<u64> {
    sector / 8 * 8..(sector + count).next_multiple_of(8)
}

/// Returns the content that a write puts into a sector.
fn content(id: u64, sector: u64) -> [u8; 512] {
    let mut content = [0; 512];
    if id > 0 {
        let mut word = id;
        for bytes in content.chunks_mut(8) {
            bytes.copy_from_slice(&word.to_le_bytes());
            word = (word ^ sector).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
    content
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }

    /// Sectors that often meet others': mostly few, mostly in few blocks. Of a volume with folios,
    /// near the borders of those.
    fn extent(&mut self, volume: u64) -> (u64, u64) {
        let (room, longest) = match self.below(20) {
            0 => (volume, 700),
            1..4 => (volume, 40),
            _ => (64, 20),
        };
        let (mut at, mut count) = (self.below(room), 1 + self.below(longest));
        let folio = FOLIO / 512;
        if volume > folio && room < volume {
            at += folio * (1 + self.below(volume / folio - 1)) - room / 2;
        }
        if self.below(3) == 0 {
            at = at / 8 * 8;
            count = count.next_multiple_of(8);
        }
        (at, count.min(volume - at))
    }

    /// Buffers for so many bytes: as direct I/O likes them, or not.
    fn pieces(&mut self, len: usize) -> Vec<(usize, usize)> {
        match self.below(4) {
            0 => vec![(1 + self.below(100) as usize, len)],
            1 if len > 4096 => vec![(0, 4096), (self.below(2) as usize * 512, len - 4096)],
            _ => vec![(0, len)],
        }
    }
}

/// A request that is out.
enum Out {
    Read {
        number: u64,
        since: u64,
        sector: u64,
    },
    /// When it began.
    Write {
        changes: Vec<(u64, (u64, u64))>,
    },
    Flush,
}

/// One lane's guest: makes requests as long as there are some to be made, and looks at every
/// answer.
fn guest(
    engine: &Arc<FileEngine>,
    model: &Mutex<Model>,
    left: &AtomicU64,
    ids: &AtomicU64,
    seed: u64,
) {
    let mut rig = lane(engine);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut out: HashMap<usize, Out> = HashMap::new();
    let mut last = Instant::now();
    loop {
        // The guest has no write cache any more, or has one again: what was begun meanwhile is as
        // it was.
        if random.below(64) == 0 {
            rig.set_write_through(random.below(2) == 0);
        }
        let depth = 1 + random.below(PLACES as u64) as usize;
        while out.len() < depth
            && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
        {
            let (op, noted) = request(&mut random, model, ids);
            out.insert(rig.start(op), noted);
        }
        if out.is_empty() {
            return;
        }
        rig.begin();
        // A request through the page cache may be answered already.
        if rig.in_flight() > 0 {
            rig.lane.wait(Duration::from_secs(10));
        }
        rig.reap(Instant::now());
        for Answer { place, status, data } in rig.collect() {
            last = Instant::now();
            assert_eq!(status, Status::Ok, "{:?}", rig.stats());
            let mut model = model.lock().unwrap();
            match out.remove(&place).expect("out") {
                Out::Read { number, since, sector } => {
                    model.reads.remove(&number);
                    model.end(READS + number);
                    model
                        .check(since, sector, &data, &|| format!("seed {seed}, {:?}", rig.stats()));
                }
                Out::Write { changes } => {
                    changes.into_iter().for_each(|(begun, extent)| model.end_write(begun, extent));
                }
                Out::Flush => {}
            }
        }
        assert!(last.elapsed() < Duration::from_secs(60), "it hangs: {} out", out.len());
    }
}

/// Keys of reads, beyond those of changes.
const READS: u64 = 1 << 63;

/// A request, noted in the model before it is made.
fn request(random: &mut Random, model: &Mutex<Model>, ids: &AtomicU64) -> (Op, Out) {
    let kind = random.below(100);
    for _ in 0..50 {
        let volume = model.lock().unwrap().sectors.len() as u64;
        let (sector, count) = random.extent(volume);
        let extents = match kind {
            80..97 if random.below(3) == 0 => vec![(sector, count), random.extent(volume)],
            _ => vec![(sector, count)],
        };
        let (number, pieces) =
            (ids.fetch_add(1, Ordering::Relaxed), random.pieces(count as usize * 512));
        let mut model = model.lock().unwrap();
        if kind < 97 && !model.may(&extents, kind >= 40, kind >= 80) {
            continue;
        }
        match kind {
            0..40 => {
                let since = model.tick();
                model.reads.insert(number, since);
                model.begin(READS + number, (sector, count), false, false);
                return (Op::Read { sector, pieces }, Out::Read { number, since, sector });
            }
            40..80 => {
                model.begin_write(number, (sector, count), number, true);
                let changes = vec![(model.clock, (sector, count))];
                drop(model);
                let data =
                    (sector..sector + count).flat_map(|sector| content(number, sector)).collect();
                return (Op::Write { sector, pieces, data }, Out::Write { changes });
            }
            80..97 => {
                let certain = kind < 92;
                let mut changes = Vec::new();
                for extent in &extents {
                    model.begin_write(0, *extent, 0, certain);
                    changes.push((model.clock, *extent));
                }
                let ranges = extents.into_iter().map(|(at, count)| (at, count as u32)).collect();
                let op = match certain {
                    true => Op::WriteZeroes { ranges, unmap: kind.is_multiple_of(2) },
                    false => Op::Discard(ranges),
                };
                return (op, Out::Write { changes });
            }
            _ => break,
        }
    }
    (Op::Flush, Out::Flush)
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |value| value.parse().expect("a number"))
}

/// Lanes of one volume, each a thread, with requests of any size and alignment that overlap. Each
/// read finds data that a disk could give it, each sector is whole, and the volume holds the data
/// of the last reads at the end.
fn model(place: &Place) {
    let first = Written { id: 0, begun: 0, answered: 0, certain: true };
    let sectors = vec![vec![first]; place.size() as usize / 512];
    let busy = (place.cache != Cache::None).then(HashMap::new);
    let model = Mutex::new(Model {
        clock: 0,
        sectors,
        reads: HashMap::new(),
        busy,
        is_fine: place.direct.is_some(),
    });
    let requests = from_environment("VLANE_COHERENCE", 600);
    let (seed, ids) = (from_environment("VLANE_COHERENCE_SEED", 1), AtomicU64::new(1));
    let mut changes = 0;
    let mut round = 0;
    // The content is the same after each reopening. On a busy machine the thread that changes
    // regions may not run while lanes do: then there are more rounds.
    while round < 3 || (place.direct.is_some() && changes == 0 && round < 60) {
        let engine = place.open();
        let left = AtomicU64::new(requests / 3);
        if place.cache == Cache::Pdc && place.direct.is_none() {
            // Also what counts as dirty for ever (the journal thread says why).
            drop_cache(&place.path);
            drops(&engine);
        }
        changes += lanes(&engine, &model, &left, &ids, (seed * 3 + round, place.size()));
        round += 1;
    }
    // Shown with --nocapture.
    println!(
        "{}, {:?}, seed {seed}: {requests} requests, {changes} changes of regions",
        place.path.display(),
        place.cache
    );
    assert!(place.direct.is_none() || changes > 0, "the regions have never changed");
    let engine = place.open();
    let mut rig = lane(&engine);
    let parts = (0..place.size()).step_by(DATA);
    let found: Vec<u8> = parts
        .flat_map(|at| rig.ok(Op::read(at / 512, DATA.min((place.size() - at) as usize))))
        .collect();
    let mut model = model.into_inner().expect("nobody failed");
    let now = model.tick();
    model.check(now, 0, &found, &|| "at the end".to_owned());
    rig.ok(Op::Flush);
    drop((rig, engine));
    assert!(std::fs::read(&place.path).expect("read") == found, "the image is not as it was read");
}

/// Declares the whole image a journal, so that its pages are dropped.
fn drops(engine: &Arc<FileEngine>) {
    let all = Range { start: 0, end: SIZE };
    let (filesystem, kind, way) = (FileSystem::Ext4, LogKind::Journal, Evidence::Layout);
    let journal = Journal { filesystem, kind, way, ranges: vec![all] };
    engine.pretend_layout(JournalLayout { journals: vec![journal], watched: Vec::new() });
    let mut rig = lane(engine);
    let data = rig.ok(Op::read(0, BLOCK as usize));
    rig.ok(Op::write(0, data));
    // The thread that ends a page's write-back holds the page for a moment longer, in which the
    // system drops no part of it: the drop is retried at the next.
    let has_dropped = (0..1000).any(|_| {
        engine.sync().expect("sync");
        engine.journal().is_some_and(|report| report.dropped.layout > 0)
    });
    assert!(has_dropped, "{:?}", engine.journal());
}

/// Lanes at work, each a thread. With pdc, one more thread names the journal, another one each
/// time, and has it dropped. Returns how often the regions have changed.
fn lanes(
    engine: &Arc<FileEngine>,
    model: &Mutex<Model>,
    left: &AtomicU64,
    ids: &AtomicU64,
    (seed, size): (u64, u64),
) -> u64 {
    const LANES: u64 = 4;
    let is_done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let guests: Vec<_> = (0..LANES)
            .map(|lane| threads.spawn(move || guest(engine, model, left, ids, seed * LANES + lane)))
            .collect();
        if engine.cache() == Cache::Pdc {
            let (mut random, is_done) =
                (Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1), &is_done);
            threads.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    engine.pretend_layout(verdict(&mut random, size));
                    if random.below(2) == 0 {
                        engine.sync().expect("sync");
                    }
                    std::thread::sleep(Duration::from_micros(random.below(3000)));
                }
            });
        }
        let results: Vec<_> = guests.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_done.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok), "a lane failed");
    });
    engine.journal().map_or(0, |report| report.direct.changes)
}

/// Any journals: parts of blocks, overlapping, all of the volume and more, none.
fn verdict(random: &mut Random, size: u64) -> JournalLayout {
    let journals = (0..random.below(4)).map(|_| {
        let (filesystem, kind) =
            (FileSystem::Unknown, [LogKind::Journal, LogKind::Log][random.below(2) as usize]);
        let way = [Evidence::Layout, Evidence::Content, Evidence::Layout, Evidence::Pattern]
            [random.below(4) as usize];
        let ranges = (0..1 + random.below(5)).map(|_| {
            let begin = random.below(size + 4096);
            begin..begin + 1 + random.below(size)
        });
        Journal { filesystem, kind, way, ranges: ranges.collect() }
    });
    JournalLayout { journals: journals.collect(), watched: Vec::new() }
}

#[test]
fn cached_lanes_sharing_blocks_match_model() {
    for cache in [Cache::Writeback, Cache::WriteThrough] {
        for place in places() {
            model(&Place { cache, ..place });
        }
    }
}

#[test]
fn lanes_on_device_with_dropped_journal_match_model() {
    if let Some(place) = Place::device() {
        model(&Place { cache: Cache::Pdc, ..place });
    }
}

#[test]
fn lanes_on_file_with_dropped_journal_match_model() {
    if let Some(place) = Place::file() {
        model(&Place { cache: Cache::Pdc, ..place });
    }
}

/// The regions around the page cache change while lanes read, write, discard and zero: everywhere,
/// but mostly across the borders.
#[test]
fn lanes_on_device_with_changing_regions_match_model() {
    let size = 4 * FOLIO + BLOCK;
    if let Some(place) = Place::device_of(size) {
        model(&Place { cache: Cache::Pdc, direct: Some(size), ..place });
    }
}

#[test]
fn lanes_on_file_with_changing_regions_match_model() {
    let size = 4 * FOLIO + BLOCK;
    if let Some(place) = Place::file_of(size) {
        model(&Place { cache: Cache::Pdc, direct: Some(size), ..place });
    }
}

#[test]
fn partial_block_changes_on_device_match_model() {
    for place in [Place::device(), Place::old_device()].into_iter().flatten() {
        model(&place);
    }
}

#[test]
fn partial_block_changes_on_file_match_model() {
    if let Some(place) = Place::file() {
        model(&place);
    }
}
