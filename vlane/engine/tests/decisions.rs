//! A decision for a request holds for it alone: which way its data goes, and whether it is durable
//! when it is answered.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;

use common::places::{Loop, cached, drop_cache, image, on_disk, open, skip, try_open};
use common::{Op, Rig, bytes};
use vlane_engine::file::Cache;
use vlane_engine::{Decisions, Engine, Placement};

#[test]
fn channel_states_its_default_decisions() {
    let dir = on_disk();
    let path = image(dir.path(), 1 << 20);
    for (cache, placement, durable) in [
        (Cache::None, Placement::Direct, false),
        (Cache::Writeback, Placement::Cached, false),
        (Cache::WriteThrough, Placement::Cached, true),
        (Cache::Pdc, Placement::Cached, false),
    ] {
        let engine = match try_open(&path, cache) {
            Ok(engine) => engine,
            Err(why) => return skip(why),
        };
        let mut channel = engine.channel(8).expect("a channel");
        let decisions = |durable| Decisions { placement, durable, ..Decisions::default() };
        assert_eq!(channel.defaults(), decisions(durable));
        channel.set_write_through(true);
        assert_eq!(channel.defaults(), decisions(true));
        channel.set_write_through(false);
        assert_eq!(channel.defaults(), decisions(durable));
    }
}

#[test]
fn each_request_takes_its_decided_way() {
    let dir = on_disk();
    let path = image(dir.path(), 1 << 20);
    let engine = match try_open(&path, Cache::None) {
        Ok(engine) => engine,
        Err(why) => return skip(why),
    };
    let mut rig = Rig::new(Arc::clone(&engine) as Arc<dyn Engine>);
    drop_cache(&path);
    let way = |placement| Some(Decisions { placement, ..Decisions::default() });
    rig.lane.policy = way(Placement::Direct);
    // Aligned, and not.
    rig.ok(Op::write(0, bytes(1, 65536)));
    rig.ok(Op::Write { sector: 301, pieces: vec![(5, 1536)], data: bytes(2, 1536) });
    rig.ok(Op::read(0, 65536));
    assert_eq!((cached(&path), rig.stats().inline), (0, 0), "around the page cache");
    rig.lane.policy = way(Placement::Cached);
    rig.ok(Op::write(1024, bytes(3, 65536)));
    rig.ok(Op::Write { sector: 1501, pieces: vec![(5, 1536)], data: bytes(4, 1536) });
    assert!(cached(&path) >= 16, "through the page cache");
    // A slow first write lets the second one go to a worker.
    assert!(rig.stats().inline > 0 && rig.stats().bounced == 1, "{:?}", rig.stats());
    assert!(rig.ok(Op::read(1024, 65536)) == bytes(3, 65536));
    rig.ok(Op::Flush);
    drop((rig, engine));
    let content = std::fs::read(&path).expect("read");
    for (sector, seed, len) in [(0, 1, 65536), (301, 2, 1536), (1024, 3, 65536), (1501, 4, 1536)] {
        assert!(content[sector * 512..][..len] == bytes(seed, len), "sector {sector}");
    }
}

/// The next write, without that decision, need not be.
#[test]
fn answered_durable_write_is_on_the_device() {
    for cache in [Cache::None, Cache::Writeback] {
        let dir = on_disk();
        let device = match Loop::new(&image(dir.path(), 4 << 20), 512) {
            Ok(device) => device,
            Err(why) => return skip(why),
        };
        let mut rig = Rig::new(open(&device.device, cache));
        let usual = rig.channel().defaults();
        for durable in [true, false, true] {
            rig.lane.policy = Some(Decisions { durable, ..usual });
            for op in [
                Op::write(8, bytes(1, 4096)),
                Op::Write { sector: 301, pieces: vec![(5, 1536)], data: bytes(2, 1536) },
                Op::WriteZeroes { ranges: vec![(64, 8)], unmap: false },
            ] {
                let before = device.flushes();
                rig.ok(op.clone());
                assert_eq!(device.flushes() > before, durable, "{cache:?} {op:?}");
            }
        }
    }
}
