//! The promises of a flush and of write-through, seen from the device: a loop device counts the
//! flushes that it gets.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;

use common::places::{Loop, Mount, image, on_disk, open, skip};
use common::{Op, Rig, bytes};
use vlane_engine::file::Cache;
use vlane_engine::{Engine, Status};

/// Flushes that the device saw while `work` was done.
fn flushes(device: &Loop, work: impl FnOnce()) -> u64 {
    let before = device.flushes();
    work();
    device.flushes() - before
}

fn on_device(check: impl Fn(&Loop, Cache)) {
    for cache in [Cache::None, Cache::Writeback, Cache::WriteThrough, Cache::Pdc] {
        let dir = on_disk();
        match Loop::new(&image(dir.path(), 4 << 20), 512) {
            Ok(device) => check(&device, cache),
            Err(why) => return skip(why),
        }
    }
}

#[test]
fn only_flush_reaches_device_in_writeback() {
    on_device(|device, cache| {
        let mut rig = Rig::new(open(&device.device, cache));
        let mut write = |at| flushes(device, || drop(rig.ok(Op::write(at, bytes(at, 4096)))));
        match cache {
            Cache::WriteThrough => {
                assert!(write(0) >= 1 && write(64) >= 1, "each write is durable")
            }
            _ => assert_eq!((write(0), write(64)), (0, 0), "{cache:?}"),
        }
        assert!(flushes(device, || drop(rig.ok(Op::Flush))) >= 1, "{cache:?}");
    });
}

#[test]
//= virtio 5.2.6.2, test
//# If the device is backed by persistent storage, the device MUST ensure that stable writes are
//# committed to it, before reporting completion of the write (cases 1 and 2) or the flush (case 3).
fn flushed_data_is_on_the_device() {
    on_device(|device, cache| {
        let mut rig = Rig::new(open(&device.device, cache));
        let data = bytes(9, 65536);
        rig.ok(Op::write(128, data.clone()));
        // Not aligned: bounced, or through the second descriptor.
        rig.ok(Op::Write { sector: 301, pieces: vec![(5, 512)], data: bytes(10, 512) });
        rig.ok(Op::Flush);
        // The backing file is another file than the device: it has what the device was given.
        let backing = device.device.file_name().and_then(|name| name.to_str()).expect("name");
        let backing = std::fs::read_to_string(format!("/sys/block/{backing}/loop/backing_file"))
            .expect("backing");
        let found = std::fs::read(backing.trim()).expect("read");
        assert!(found[65536..131_072] == data, "{cache:?}");
        assert!(found[301 * 512..302 * 512] == bytes(10, 512), "{cache:?}");
    });
}

#[test]
//= virtio 5.2.6.2, test
//# If the device is backed by persistent storage, the device MUST ensure that stable writes are
//# committed to it, before reporting completion of the write (cases 1 and 2) or the flush (case 3).
/// Earlier writes become durable, too.
fn write_cache_off_makes_all_writes_durable() {
    on_device(|device, cache| {
        let mut rig = Rig::new(open(&device.device, cache));
        rig.ok(Op::write(0, bytes(1, 65536)));
        rig.set_write_through(true);
        assert!(flushes(device, || drop(rig.ok(Op::write(1024, bytes(2, 512))))) >= 1);
        // The write before the switch: the guest is never going to flush it.
        let name = device.device.file_name().and_then(|name| name.to_str()).expect("name");
        let backing = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"))
            .expect("backing");
        assert!(
            std::fs::read(backing.trim()).expect("read")[..65536] == bytes(1, 65536),
            "{cache:?}"
        );
        // Zeroes are writes.
        let zeroes = Op::WriteZeroes { ranges: vec![(0, 8)], unmap: false };
        assert!(flushes(device, || drop(rig.ok(zeroes))) >= 1, "{cache:?}");
        rig.set_write_through(false);
        let more = flushes(device, || drop(rig.ok(Op::write(64, bytes(3, 4096)))));
        assert_eq!(more > 0, cache == Cache::WriteThrough, "{cache:?}");
    });
}

#[test]
fn write_during_cache_switch_is_durable() {
    on_device(|device, cache| {
        let mut rig = Rig::new(open(&device.device, cache));
        // Too large to be done at once; aligned, and not.
        for pieces in [vec![(0, 1 << 20)], vec![(1, 1 << 20)]] {
            let seen = flushes(device, || {
                rig.start(Op::Write { sector: 8, pieces: pieces.clone(), data: bytes(4, 1 << 20) });
                rig.begin();
                rig.set_write_through(true);
                assert_eq!(rig.drain()[0].status, Status::Ok);
            });
            assert!(seen >= 1, "{cache:?} {pieces:?}");
            rig.set_write_through(false);
        }
    });
}

#[test]
fn file_flush_reaches_the_device_below() {
    let dir = on_disk();
    let mount = match Mount::ext4(&image(dir.path(), 16 << 20), 512) {
        Ok(mount) => mount,
        Err(why) => return skip(why),
    };
    let device = mount.device.as_ref().expect("a device");
    for cache in [Cache::None, Cache::Writeback] {
        let engine = open(&image(mount.path(), 1 << 20), cache);
        let mut rig = Rig::new(Arc::clone(&engine) as Arc<dyn Engine>);
        rig.ok(Op::write(0, bytes(1, 4096)));
        assert!(flushes(device, || drop(rig.ok(Op::Flush))) >= 1, "{cache:?}");
        rig.ok(Op::write(8, bytes(1, 4096)));
        assert!(flushes(device, || engine.sync().expect("sync")) >= 1, "{cache:?}");
        rig.set_write_through(true);
        assert!(flushes(device, || drop(rig.ok(Op::write(16, bytes(1, 4096))))) >= 1, "{cache:?}");
    }
}
