//! Every kind of image against a model in memory: random requests, cut into random buffers, several
//! at a time. Each read returns the written data, and at the end the image holds it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::places::{Loop, image, in_memory, on_disk, open, skip};
use common::{Op, PLACES, Pieces, Rig, bytes};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use vlane_engine::file::{Cache, FileEngine, FileOptions};
use vlane_engine::{Engine, Status};

/// Not a multiple of 4096, so that the image ends within a page and a large block.
const SECTORS: u64 = 2048 + 5;

#[derive(Debug, Clone, Copy)]
enum Cut {
    /// One buffer at the start of a page.
    Whole,
    /// Pages.
    Pages,
    /// Sectors, each somewhere.
    Sectors,
    /// Requests of any kind, at any address.
    Odd,
}

fn cut(how: Cut, len: usize, seed: u64) -> Pieces {
    let mut left = len;
    let mut pieces = Vec::new();
    for byte in bytes(seed, len / 16 + 64) {
        let (gap, piece) = match how {
            Cut::Whole => (0, left),
            Cut::Pages => (0, 4096),
            Cut::Sectors => (usize::from(byte % 3) * 512, 512 * (1 + usize::from(byte >> 4))),
            Cut::Odd => (usize::from(byte % 7), 1 + usize::from(byte) * 37),
        };
        if left > 0 {
            pieces.push((gap, piece.min(left)));
            left -= piece.min(left);
        }
    }
    if left > 0 {
        pieces.push((0, left));
    }
    pieces
}

#[derive(Debug, Clone)]
enum Step {
    Read { sector: u64, sectors: u64, cut: Cut },
    Write { sector: u64, sectors: u64, cut: Cut },
    Flush,
    Discard { ranges: Vec<(u64, u32)> },
    WriteZeroes { ranges: Vec<(u64, u32)>, unmap: bool },
    WriteThrough(bool),
}

fn extent(granule: u64, longest: u64) -> impl Strategy<Value = (u64, u64)> {
    (0..SECTORS / granule, 1..=longest / granule).prop_map(move |(at, count)| {
        let at = at * granule;
        (at, (count * granule).min(SECTORS - at))
    })
}

fn any_extent(longest: u64) -> BoxedStrategy<(u64, u64)> {
    prop_oneof![3 => extent(8, longest), 1 => extent(1, longest), 1 => extent(1, 8)].boxed()
}

fn step() -> impl Strategy<Value = Step> {
    let cut =
        || prop_oneof![Just(Cut::Whole), Just(Cut::Pages), Just(Cut::Sectors), Just(Cut::Odd)];
    let ranges = || {
        let range = any_extent(400).prop_map(|(sector, sectors)| (sector, sectors as u32));
        proptest::collection::vec(range, 1..4)
    };
    prop_oneof![
        8 => (any_extent(1200), cut()).prop_map(|((sector, sectors), cut)| Step::Read { sector, sectors, cut }),
        8 => (any_extent(1200), cut()).prop_map(|((sector, sectors), cut)| Step::Write { sector, sectors, cut }),
        2 => Just(Step::Flush),
        2 => ranges().prop_map(|ranges| Step::Discard { ranges }),
        2 => (ranges(), any::<bool>()).prop_map(|(ranges, unmap)| Step::WriteZeroes { ranges, unmap }),
        1 => any::<bool>().prop_map(Step::WriteThrough),
    ]
}

impl Step {
    /// Returns the sectors that it touches, and whether it changes them.
    fn touches(&self) -> (Vec<(u64, u64)>, bool) {
        let wide = |ranges: &[(u64, u32)]| ranges.iter().map(|r| (r.0, u64::from(r.1))).collect();
        match self {
            Step::Read { sector, sectors, .. } => (vec![(*sector, *sectors)], false),
            Step::Write { sector, sectors, .. } => (vec![(*sector, *sectors)], true),
            Step::Discard { ranges } | Step::WriteZeroes { ranges, .. } => (wide(ranges), true),
            Step::Flush | Step::WriteThrough(_) => (Vec::new(), false),
        }
    }
}

struct Model {
    data: Vec<u8>,
    /// The content after a discard depends on the device.
    discards_vaguely: bool,
    writable: bool,
}

fn span(sector: u64, sectors: u64) -> std::ops::Range<usize> {
    let at = sector as usize * 512;
    at..at + sectors as usize * 512
}

impl Model {
    /// Runs the steps, several at a time as long as they do not touch another one's changes.
    fn check(&mut self, rig: &mut Rig, steps: &[Step]) {
        let mut out: Vec<(usize, Step, Vec<u8>)> = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            let (touched, changes) = step.touches();
            let collides = out.iter().any(|(_, other, _)| {
                let (theirs, they_change) = other.touches();
                let overlap = |a: &(u64, u64), b: &(u64, u64)| a.0 < b.0 + b.1 && b.0 < a.0 + a.1;
                (changes || they_change)
                    && touched.iter().any(|a| theirs.iter().any(|b| overlap(a, b)))
            });
            if collides || out.len() == PLACES {
                self.settle(rig, &mut out);
            }
            let seed = number as u64;
            let (op, expected) = match step {
                Step::WriteThrough(on) => {
                    rig.set_write_through(*on);
                    continue;
                }
                Step::Read { sector, sectors, cut: how } => {
                    let expected = self.data[span(*sector, *sectors)].to_vec();
                    (
                        Op::Read { sector: *sector, pieces: cut(*how, expected.len(), seed) },
                        expected,
                    )
                }
                Step::Write { sector, sectors, cut: how } => {
                    let data = bytes(seed + 1, *sectors as usize * 512);
                    let pieces = cut(*how, data.len(), seed);
                    if self.writable {
                        self.data[span(*sector, *sectors)].copy_from_slice(&data);
                    }
                    (Op::Write { sector: *sector, pieces, data }, Vec::new())
                }
                Step::Flush => (Op::Flush, Vec::new()),
                Step::Discard { ranges } => (Op::Discard(ranges.clone()), Vec::new()),
                Step::WriteZeroes { ranges, unmap } => {
                    (Op::WriteZeroes { ranges: ranges.clone(), unmap: *unmap }, Vec::new())
                }
            };
            if let Step::Discard { ranges } | Step::WriteZeroes { ranges, .. } = step
                && self.writable
                && !(self.discards_vaguely && matches!(step, Step::Discard { .. }))
            {
                ranges.iter().for_each(|r| self.data[span(r.0, u64::from(r.1))].fill(0));
            }
            // The lane refuses these before the engine sees them.
            if !self.writable && changes {
                continue;
            }
            let place = rig.start(op);
            out.push((place, step.clone(), expected));
            // Some at once, some together.
            if number % 3 == 0 {
                rig.begin();
            }
        }
        self.settle(rig, &mut out);
    }

    fn settle(&mut self, rig: &mut Rig, out: &mut Vec<(usize, Step, Vec<u8>)>) {
        for answer in rig.drain() {
            let at = out.iter().position(|(place, ..)| *place == answer.place).expect("known");
            let (_, step, expected) = out.swap_remove(at);
            assert_eq!(answer.status, Status::Ok, "{step:?}; {:?}", rig.stats());
            assert!(answer.data == expected, "{step:?}: wrong data; {:?}", rig.stats());
            if let Step::Discard { ranges } = &step
                && self.discards_vaguely
            {
                ranges.iter().for_each(|r| self.adopt(rig, r.0, u64::from(r.1)));
            }
        }
        assert!(out.is_empty());
    }

    /// Discarded sectors hold their old data, or zeroes; from now on, their present data.
    fn adopt(&mut self, rig: &mut Rig, sector: u64, sectors: u64) {
        for at in sector..sector + sectors {
            let found = rig.ok(Op::read(at, 512));
            let known = &mut self.data[span(at, 1)];
            assert!(found == known || found == [0; 512], "sector {at} after a discard");
            known.copy_from_slice(&found);
        }
    }
}

/// Random requests to an image that `path` names, opened in the way given, and its contents at the
/// end.
fn model(path: &Path, cache: Cache, cases: u32, mapped: bool) {
    model_of(path, || open(path, cache), cases, mapped);
}

/// The same, with an engine for each case.
fn model_of(path: &Path, open: impl Fn() -> Arc<FileEngine>, cases: u32, mapped: bool) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let steps = proptest::collection::vec(step(), 1..50);
    let result = TestRunner::new(config).run(&steps, |steps| {
        let engine = open();
        assert_eq!(engine.is_mapped(), mapped);
        let is_device = !path.is_file();
        let data = std::fs::read(path).expect("read");
        let mut rig = Rig::new(engine as Arc<dyn Engine>);
        let mut model = Model { data, discards_vaguely: is_device, writable: true };
        model.check(&mut rig, &steps);
        rig.ok(Op::Flush);
        assert_eq!((rig.stats().device_errors, rig.stats().short_errors), (0, 0));
        drop(rig);
        assert!(std::fs::read(path).expect("read") == model.data, "the image is not as the model");
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn memory_image_matches_model() {
    let Some(dir) = in_memory() else { return skip("no /dev/shm") };
    model(&image(dir.path(), SECTORS * 512), Cache::Auto, 40, true);
}

#[test]
//= virtio 5.2.6.2, test
//# After a write zeroes command is completed, reads of the specified ranges of sectors MUST return
//# zeroes.
fn direct_image_matches_model() {
    let dir = on_disk();
    let path = image(dir.path(), SECTORS * 512);
    if let Err(error) = common::places::try_open(&path, Cache::None) {
        return skip(error);
    }
    model(&path, Cache::None, 30, false);
}

#[test]
fn write_back_image_matches_model() {
    let dir = on_disk();
    model(&image(dir.path(), SECTORS * 512), Cache::Writeback, 30, false);
}

#[test]
fn write_through_image_matches_model() {
    let dir = on_disk();
    model(&image(dir.path(), SECTORS * 512), Cache::WriteThrough, 15, false);
}

#[test]
fn pdc_image_matches_model() {
    let dir = on_disk();
    model(&image(dir.path(), SECTORS * 512), Cache::Pdc, 15, false);
}

/// On a device; with an old kernel, a thread does its discards.
fn on_loop_device(sector: u32, cache: Cache, is_old: bool) {
    let dir = on_disk();
    // A device ends with a whole sector.
    let device = match Loop::new(&image(dir.path(), SECTORS.next_multiple_of(8) * 512), sector) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let engine = open(&device.device, cache);
    assert_eq!(engine.geometry().block_size, sector);
    drop(engine);
    let open = || {
        let engine = open(&device.device, cache);
        if is_old {
            engine.pretend_old_kernel();
        }
        engine
    };
    model_of(&device.device, open, 15, false);
}

#[test]
fn small_sector_device_matches_model() {
    on_loop_device(512, Cache::None, false);
}

#[test]
fn large_sector_device_matches_model() {
    on_loop_device(4096, Cache::None, false);
}

#[test]
fn cached_large_sector_device_matches_model() {
    on_loop_device(4096, Cache::Writeback, false);
}

#[test]
fn device_on_old_kernel_matches_model() {
    on_loop_device(512, Cache::None, true);
    on_loop_device(4096, Cache::Writeback, true);
}

#[test]
fn read_only_image_never_changes() {
    let dir = on_disk();
    let path = image(dir.path(), SECTORS * 512);
    let data = bytes(77, SECTORS as usize * 512);
    std::fs::write(&path, &data).expect("write");
    for cache in [Cache::Auto, Cache::Writeback] {
        let engine = FileEngine::open(
            &path,
            FileOptions { cache, read_only: true, ..FileOptions::default() },
        )
        .expect("open");
        let geometry = engine.geometry();
        assert!(geometry.read_only && !geometry.discard && !geometry.write_zeroes);
        let engine: Arc<dyn Engine> = Arc::new(engine);
        let config = Config { cases: 10, failure_persistence: None, ..Config::default() };
        let result =
            TestRunner::new(config).run(&proptest::collection::vec(step(), 1..40), |steps| {
                let mut model =
                    Model { data: data.clone(), discards_vaguely: false, writable: false };
                model.check(&mut Rig::new(Arc::clone(&engine)), &steps);
                Ok(())
            });
        if let Err(error) = result {
            panic!("{error}");
        }
        let mut rig = Rig::new(engine);
        // Even if a write got this far, the file is not open for it.
        assert_eq!(rig.run(Op::write(0, vec![1; 512])).status, Status::IoErr);
    }
    assert!(std::fs::read(&path).expect("read") == data);
}
