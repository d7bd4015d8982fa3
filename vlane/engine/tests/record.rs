//! The record of the storage's changes: no entry is missing in it, and it shows that each flush
//! kept its promise.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::places::{Loop, image, in_memory, on_disk, options, skip};
use common::{Op, Rig, bytes};
use tempfile::TempDir;
use vlane_engine::file::{Cache, FileEngine, FileOptions, JournalWay};
use vlane_engine::{Engine, Status, StorageRecorder};
use vlane_policy::journal::layout::JournalLayout;
use vlane_policy::journal::{Evidence, FileSystem, Journal, LogKind};
use vlane_trace::storage::{Action, Data, Effect, History, Purpose, Reader};

const SIZE: u64 = 4 << 20;
const SECTORS: u64 = SIZE / 512;
/// Sectors that one request may touch; several that are out together touch different ones.
const SHARE: u64 = SECTORS / 4;
const LIMIT: Duration = Duration::from_secs(20);

struct Place {
    path: PathBuf,
    cache: Cache,
    /// Its discards are a thread's, as on a kernel before 6.12.
    is_old: bool,
    _device: Option<Loop>,
    _dir: TempDir,
}

impl Place {
    fn file(dir: TempDir, cache: Cache) -> Place {
        Place { path: image(dir.path(), SIZE), cache, is_old: false, _device: None, _dir: dir }
    }

    /// Blocks of eight sectors: some requests change part of one.
    fn device(cache: Cache, is_old: bool) -> Option<Place> {
        let dir = on_disk();
        match Loop::new(&image(dir.path(), SIZE), 4096) {
            Ok(device) => Some(Place {
                path: device.device.clone(),
                cache,
                is_old,
                _device: Some(device),
                _dir: dir,
            }),
            Err(why) => {
                skip(why);
                None
            }
        }
    }

    fn all() -> Vec<Place> {
        let mut places: Vec<Place> = [Cache::None, Cache::Writeback, Cache::WriteThrough]
            .into_iter()
            .map(|cache| Place::file(on_disk(), cache))
            .collect();
        places.extend(Place::device(Cache::None, false));
        places.extend(Place::device(Cache::None, true));
        places.extend(Place::device(Cache::Writeback, true));
        places.push(Place::file(on_disk(), Cache::Pdc));
        places.extend(Place::device(Cache::Pdc, false));
        match in_memory() {
            Some(dir) => places.push(Place::file(dir, Cache::Auto)),
            None => skip("there is no /dev/shm"),
        }
        places
    }

    /// An engine that is recorded to a file.
    fn open(&self, to: &Path) -> (Arc<FileEngine>, Arc<StorageRecorder>) {
        let options = FileOptions { journal: JournalWay::Direct, ..options(self.cache) };
        let engine = FileEngine::open(&self.path, options).expect("open");
        if self.is_old {
            engine.pretend_old_kernel();
        }
        let engine = engine.recorded(std::fs::File::create(to).unwrap()).unwrap();
        let recorder = Arc::clone(engine.recorder().unwrap());
        (Arc::new(engine), recorder)
    }
}

/// With pdc, other parts are direct from now on, or none; said without waiting for it.
fn change_regions(engine: &FileEngine, round: u64) {
    const FOLIO: u64 = 2 << 20;
    let range = [FOLIO..SIZE, 0..FOLIO, 0..0, 0..SIZE][round as usize / 5 % 4].clone();
    let ranges = Vec::from_iter((!range.is_empty()).then_some(range));
    let journal = Journal {
        filesystem: FileSystem::Ext4,
        kind: LogKind::Journal,
        way: Evidence::Layout,
        ranges,
    };
    engine.pretend_layout(JournalLayout { journals: vec![journal], watched: Vec::new() });
}

/// Waits until the last change has come, also if the system has put it off.
fn settle_regions(engine: &FileEngine, rig: &mut Rig) {
    let begin = Instant::now();
    let is_settled =
        || engine.journal().is_none_or(|report| report.is_current && !report.direct.is_changing);
    while !is_settled() && begin.elapsed() < LIMIT {
        rig.reap(Instant::now());
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn read(path: &Path) -> History {
    let bytes = std::fs::read(path).unwrap();
    History::new(Reader::new(&bytes[..]).unwrap()).unwrap()
}

/// A request for a share of the volume.
fn any_op(seed: u64, share: u64) -> Op {
    let dice = bytes(seed, 16);
    let base = share * SHARE;
    // Some lie in blocks and pages, some across.
    let fine = u64::from(dice[1]) % 8 * u64::from(dice[0].is_multiple_of(3));
    let sector = base + u64::from(dice[2]) * 8 % (SHARE / 2) + fine;
    let sectors = match dice[0] % 3 {
        0 => 1 + u64::from(dice[3]) % 20,
        1 => 8 * (1 + u64::from(dice[3]) % 16),
        _ => SHARE / 4,
    };
    match dice[4] % 8 {
        0 => Op::Flush,
        1 => Op::Discard(vec![(sector, sectors as u32), (base + SHARE - 64, 64)]),
        2 | 3 => Op::WriteZeroes {
            ranges: vec![(sector, sectors as u32)],
            unmap: dice[5].is_multiple_of(2),
        },
        4 => Op::read(sector, sectors as usize * 512),
        _ => Op::write(sector, bytes(seed + 1, sectors as usize * 512)),
    }
}

/// Returns the image's content after all of it was done in its order.
fn replayed(history: &History) -> Vec<u8> {
    let mut image = vec![0; SIZE as usize];
    for (index, operation) in history.operations.iter().enumerate() {
        let (offset, end) = operation.what.range().unwrap();
        let done = match operation.effect() {
            Effect::Done(done) => done,
            // A discard, which reads as zeroes here.
            Effect::Open => end - offset,
        };
        let range = offset as usize..(offset + done) as usize;
        match history.data(index) {
            Some(Data::Bytes(bytes)) => image[range].copy_from_slice(&bytes[..done as usize]),
            Some(Data::Zeroes(_)) => image[range].fill(0),
            None => {}
        }
    }
    image
}

#[test]
fn replayed_record_equals_image_and_flushes_hold() {
    for place in Place::all() {
        let what = format!("{}, {:?}", place.path.display(), place.cache);
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("record");
        let (engine, recorder) = place.open(&path);
        let mut rig = Rig::new(Arc::clone(&engine) as Arc<dyn Engine>);
        let mut flushes = 1;
        for round in 0..60 {
            if round == 40 {
                rig.set_write_through(true);
            }
            if round % 5 == 0 {
                change_regions(&engine, round);
            }
            for share in 0..4 {
                let op = any_op(round * 4 + share, share);
                flushes += usize::from(op == Op::Flush);
                rig.start(op);
            }
            assert!(
                rig.drain().iter().all(|answer| answer.status == Status::Ok),
                "{what}: {:?}",
                rig.stats()
            );
            // A change that was put off comes now.
            if round % 5 == 4 {
                settle_regions(&engine, &mut rig);
            }
        }
        rig.ok(Op::Flush);
        let is_mapped = engine.is_mapped();
        let direct = engine.journal().map(|report| report.direct);
        drop(rig);
        engine.sync().unwrap();
        recorder.finish().unwrap();
        drop(engine);

        let history = read(&path);
        let found = std::fs::read(&place.path).unwrap();
        let expected = replayed(&history);
        let differs =
            (0..SECTORS as usize).find(|n| found[n * 512..][..512] != expected[n * 512..][..512]);
        assert_eq!(differs, None, "{what}: the first sector whose content is not in the record");
        assert!(history.operations.iter().all(|operation| operation.end.is_some()), "{what}");
        assert!(
            history.requests.iter().all(|request| matches!(request.answer, Some((_, 0)))),
            "{what}"
        );
        // Where parts of it are direct, writes have gone both ways.
        match direct {
            Some(direct) if direct.refusal.is_some() => {
                skip(format!("no direct regions: {direct:?}"))
            }
            Some(direct) => {
                let ways = [0, 1].map(|way| {
                    let is_it =
                        |what: &Action| matches!(what, Action::Write { file, .. } if *file == way);
                    history.operations.iter().filter(|operation| is_it(&operation.what)).count()
                });
                assert!(
                    direct.changes > 0 && ways.iter().all(|writes| *writes > 10),
                    "{what}: {ways:?}, {direct:?}"
                );
            }
            None => assert_ne!(place.cache, Cache::Pdc),
        }
        let findings = history.flushes();
        assert_eq!(findings.flushes, flushes, "{what}");
        assert!(findings.changes > 100, "{what}: {findings:?}");
        if !is_mapped {
            let told: Vec<String> =
                findings.violations.iter().map(|violation| history.tell(*violation)).collect();
            assert!(told.is_empty(), "{what}: {told:#?}");
            let broken = history.with_broken_syncs(|_| true).flushes();
            assert!(!broken.violations.is_empty(), "{what}: nothing would be found");
        }
    }
}

#[test]
fn several_lanes_share_one_ordered_record() {
    let place = Place::file(on_disk(), Cache::Writeback);
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("record");
    let (engine, recorder) = place.open(&path);
    std::thread::scope(|scope| {
        for lane in 0..4 {
            let engine = Arc::clone(&engine);
            scope.spawn(move || {
                let mut rig = Rig::new(engine as Arc<dyn Engine>);
                for round in 0..50 {
                    rig.ok(Op::write(lane * SHARE + round * 8, bytes(lane * 100 + round, 4096)));
                    if round % 3 == lane % 3 {
                        rig.ok(Op::Flush);
                    }
                }
            });
        }
    });
    recorder.finish().unwrap();
    let history = read(&path);
    assert!(replayed(&history) == std::fs::read(&place.path).unwrap());
    assert_eq!(history.flushes().violations, []);
    let writes = |lane| {
        let is_it = |request: &&_| {
            let request: &vlane_trace::storage::Request = request;
            request.lane == lane && request.kind == Purpose::Write
        };
        history.requests.iter().filter(is_it).count()
    };
    assert_eq!([0, 1, 2, 3].map(writes), [50; 4]);
    // Each operation belongs to a request that was not answered before it ended; but for those that
    // serve all lanes.
    for operation in &history.operations {
        let Some(request) = operation.request.map(|request| history.requests[request]) else {
            assert_eq!(operation.what, Action::Sync);
            continue;
        };
        let (end, answer) = (operation.end.unwrap().0, request.answer.unwrap().0);
        assert!(request.begin < operation.begin && end < answer, "{operation:?}");
    }
}

/// Requests after the record's end are still served.
#[test]
fn durable_write_is_recorded_as_durable() {
    let place = Place::file(on_disk(), Cache::Writeback);
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("record");
    let (engine, recorder) = place.open(&path);
    let mut rig = Rig::new(Arc::clone(&engine) as Arc<dyn Engine>);
    rig.ok(Op::Flush);
    rig.set_write_through(true);
    rig.ok(Op::write(8, bytes(1, 4096)));
    recorder.finish().unwrap();
    // Requests after the end are served all the same.
    rig.ok(Op::write(16, bytes(2, 4096)));
    let history = read(&path);
    assert!(history.requests.iter().any(|request| request.durable));
    let write = history.operations.iter().find(|operation| operation.what != Action::Sync).unwrap();
    assert!(write.durable.is_some(), "{write:?}");
    assert_eq!(history.flushes().violations, []);
}

/// Storage for records that is full after a while.
struct Full(Arc<Mutex<u64>>);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut left = self.0.lock().unwrap();
        *left = left.checked_sub(bytes.len() as u64).ok_or(std::io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Requests are served all the same.
#[test]
fn record_write_error_appears_at_end() {
    let place = Place::file(on_disk(), Cache::Writeback);
    let full = Full(Arc::new(Mutex::new(100_000)));
    let engine =
        FileEngine::open(&place.path, options(place.cache)).unwrap().recorded(full).unwrap();
    let recorder = Arc::clone(engine.recorder().unwrap());
    let mut rig = Rig::new(Arc::new(engine) as Arc<dyn Engine>);
    for round in 0..200 {
        rig.ok(Op::write(round * 8, bytes(round, 4096)));
    }
    assert!(recorder.finish().is_err());
    assert!(recorder.finish().is_ok(), "it has been said");
}

#[test]
fn record_without_its_end_is_incomplete() {
    let place = Place::file(on_disk(), Cache::Writeback);
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("record");
    let (engine, recorder) = place.open(&path);
    Rig::new(Arc::clone(&engine) as Arc<dyn Engine>).ok(Op::Flush);
    recorder.finish().unwrap();
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let len = file.seek(SeekFrom::End(0)).unwrap();
    file.set_len(len - 21).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert!(History::new(Reader::new(&bytes[..]).unwrap()).is_err());
}
