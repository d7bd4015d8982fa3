//! Storage that fails: full, broken, cut short. The request that met it is answered with an error
//! and counted by its kind; the others are not affected, and the channel continues.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::OpenOptions;
use std::sync::Arc;

use common::places::{Loop, Mount, image, in_memory, on_disk, open, skip, try_open};
use common::{Op, Rig, bytes};
use vlane_engine::file::{Cache, FileEngine, FileOptions};
use vlane_engine::{Engine, Status};

/// A volume on a file system that has no room for all of it.
fn full_and_free_again(mount: &Mount, cache: Cache, size: u64, mapped: bool) {
    let path = image(mount.path(), size);
    let ballast = mount.path().join("ballast");
    let engine = open(&path, cache);
    assert_eq!(engine.is_mapped(), mapped);
    let mut rig = Rig::new(engine);
    let early = bytes(1, 65536);
    rig.ok(Op::write(0, early.clone()));
    // Fill what is left, then write to a hole until it fails.
    let _ = std::fs::write(&ballast, vec![1; usize::try_from(size).expect("small")]);
    let mut failed = None;
    for at in 1..size / 65536 {
        // Delayed allocation would find out in the flush only.
        let answer = rig.run(Op::write(at * 128, bytes(at, 65536)));
        if answer.status != Status::Ok {
            assert_eq!(answer.status, Status::IoErr);
            failed = Some(at);
            break;
        }
    }
    let at = failed.expect("the file system to be full");
    assert_eq!(rig.stats().no_space_errors, 1, "{:?}", rig.stats());
    // The data written before can be read, and written again; so can the queue's other requests.
    rig.start(Op::read(0, 65536));
    rig.start(Op::write(at * 128, bytes(at, 65536)));
    rig.start(Op::Flush);
    rig.start(Op::write(0, early.clone()));
    let mut answers = rig.drain();
    answers.sort_by_key(|answer| answer.place);
    assert_eq!((answers[0].status, &answers[0].data), (Status::Ok, &early));
    assert_eq!(answers[1].status, Status::IoErr);
    assert_eq!((answers[2].status, answers[3].status), (Status::Ok, Status::Ok));
    assert_eq!(rig.stats().no_space_errors, 2);
    std::fs::remove_file(&ballast).expect("remove");
    rig.ok(Op::Flush);
    rig.ok(Op::write(at * 128, bytes(at, 65536)));
    assert!(rig.ok(Op::read(at * 128, 65536)) == bytes(at, 65536));
    assert_eq!((rig.stats().device_errors, rig.stats().short_errors), (0, 0));
}

#[test]
fn full_memory_fails_only_the_write() {
    match Mount::tmpfs(2 << 20) {
        Ok(mount) => full_and_free_again(&mount, Cache::Auto, 8 << 20, true),
        Err(why) => skip(why),
    }
}

#[test]
fn full_disk_fails_only_the_write() {
    let dir = on_disk();
    match Mount::ext4(&image(dir.path(), 16 << 20), 512) {
        Ok(mount) => {
            full_and_free_again(&mount, Cache::None, 32 << 20, false);
            full_and_free_again(&mount, Cache::Writeback, 32 << 20, false);
            full_and_free_again(&mount, Cache::WriteThrough, 32 << 20, false);
        }
        Err(why) => skip(why),
    }
}

#[test]
fn allocated_zeroes_fail_in_full_memory() {
    let mount = match Mount::tmpfs(1 << 20) {
        Ok(mount) => mount,
        Err(why) => return skip(why),
    };
    let mut rig = Rig::new(open(&image(mount.path(), 4 << 20), Cache::Auto));
    let zeroes = |unmap| Op::WriteZeroes { ranges: vec![(0, 4096)], unmap };
    assert_eq!(rig.run(zeroes(false)).status, Status::IoErr);
    assert_eq!(rig.stats().no_space_errors, 1);
    rig.ok(zeroes(true));
    rig.ok(Op::write(0, bytes(1, 4096)));
}

#[test]
fn broken_device_fails_only_requests_touching_it() {
    let dir = on_disk();
    let backing = image(dir.path(), 1 << 20);
    let device = match Loop::new(&backing, 512) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    for cache in [Cache::None, Cache::Writeback] {
        OpenOptions::new()
            .write(true)
            .open(&backing)
            .and_then(|file| file.set_len(1 << 20))
            .expect("grow");
        let mut rig = Rig::new(open(&device.device, cache));
        rig.ok(Op::write(0, bytes(1, 65536)));
        rig.ok(Op::Flush);
        // The device's second half is gone: reading it is an I/O error.
        OpenOptions::new()
            .write(true)
            .open(&backing)
            .and_then(|file| file.set_len(512 << 10))
            .expect("truncate");
        rig.start(Op::read(0, 65536));
        rig.start(Op::read(1536, 65536));
        rig.start(Op::read(64, 4096));
        let mut answers = rig.drain();
        answers.sort_by_key(|answer| answer.place);
        let statuses: Vec<Status> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [Status::Ok, Status::IoErr, Status::Ok]);
        assert!(answers[0].data == bytes(1, 65536));
        assert_eq!(rig.stats().device_errors, 1, "{:?}", rig.stats());
        assert_eq!((rig.stats().no_space_errors, rig.stats().short_errors), (0, 0));
        rig.ok(Op::write(8, bytes(2, 4096)));
        assert!(rig.ok(Op::read(8, 4096)) == bytes(2, 4096));
    }
}

/// That also holds where writes are durable at once.
#[test]
fn failed_read_loses_no_write() {
    let dir = on_disk();
    let backing = image(dir.path(), 1 << 20);
    let device = match Loop::new(&backing, 4096) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let engine = open(&device.device, Cache::None);
    let mut rig = Rig::new(Arc::clone(&engine) as Arc<dyn Engine>);
    rig.set_write_through(true);
    rig.ok(Op::write(0, bytes(1, 65536)));
    let file = OpenOptions::new().write(true).open(&backing).expect("open");
    file.set_len(512 << 10).expect("truncate");
    // Of a part of a block: not as the guest asked for it.
    assert_eq!(rig.run(Op::read(1537, 512)).status, Status::IoErr);
    assert!(engine.lost_write().is_none(), "{:?}", engine.lost_write());
    rig.ok(Op::write(8, bytes(2, 4096)));
}

/// The image is truncated under the volume.
fn truncated(path: &std::path::Path, cache: Cache) {
    let mut rig = Rig::new(open(path, cache));
    let data = bytes(5, 1 << 20);
    rig.ok(Op::write(0, data.clone()));
    rig.ok(Op::Flush);
    OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|file| file.set_len(512 << 10))
        .expect("truncate");
    // Before the end, across it, beyond it; aligned and not.
    assert!(rig.ok(Op::read(0, 65536)) == data[..65536]);
    for (errors, op) in [
        Op::read(1016, 8192),
        Op::read(1536, 4096),
        Op::Read { sector: 1016, pieces: vec![(3, 8192)] },
        Op::Read { sector: 1536, pieces: vec![(3, 512)] },
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(rig.run(op.clone()).status, Status::IoErr, "{cache:?} {op:?}");
        assert_eq!(
            rig.stats().short_errors,
            errors as u64 + 1,
            "{cache:?} {op:?} {:?}",
            rig.stats()
        );
    }
    assert_eq!(rig.stats().device_errors, 0);
    assert!(rig.ok(Op::read(512, 65536)) == data[512 * 512..512 * 512 + 65536]);
    // A write beyond the end makes the file longer again.
    rig.ok(Op::write(2040, bytes(6, 4096)));
    assert!(rig.ok(Op::read(2040, 4096)) == bytes(6, 4096));
    assert!(rig.ok(Op::read(1536, 4096)) == [0; 4096]);
}

#[test]
fn truncated_image_fails_only_reads_beyond_end() {
    let dir = on_disk();
    truncated(&image(dir.path(), 1 << 20), Cache::Writeback);
    let path = image(dir.path(), 1 << 20);
    match try_open(&path, Cache::None).map(drop) {
        Ok(()) => truncated(&path, Cache::None),
        Err(why) => skip(why),
    }
}

#[test]
fn truncated_memory_image_keeps_process_alive() {
    match in_memory() {
        Some(dir) => truncated(&image(dir.path(), 1 << 20), Cache::Auto),
        None => skip("no /dev/shm"),
    }
}

#[test]
fn out_of_bounds_requests_are_refused() {
    let dir = on_disk();
    let path = image(dir.path(), 1 << 20);
    let memory = in_memory();
    let in_memory = memory.as_ref().map(|dir| image(dir.path(), 1 << 20));
    for (path, cache) in [
        (Some(&path), Cache::Writeback),
        (Some(&path), Cache::Auto),
        (in_memory.as_ref(), Cache::Auto),
    ] {
        let Some(path) = path else { continue };
        let mut rig = Rig::new(open(path, cache));
        // The lane would have refused them; the engine must not panic, nor write what it cannot.
        for sector in [u64::MAX, u64::MAX / 512, (1 << 63) / 512] {
            assert_eq!(rig.run(Op::read(sector, 512)).status, Status::IoErr);
            assert_eq!(rig.run(Op::write(sector, vec![1; 512])).status, Status::IoErr);
            assert_eq!(rig.run(Op::Discard(vec![(sector, 8)])).status, Status::IoErr);
            let zeroes = Op::WriteZeroes {
                ranges: vec![(sector, vlane_ring::limits::MAX_RANGE_SECTORS)],
                unmap: false,
            };
            assert_eq!(rig.run(zeroes).status, Status::IoErr);
        }
        rig.ok(Op::write(0, bytes(1, 512)));
        assert_eq!(std::fs::metadata(path).expect("metadata").len(), 1 << 20);
    }
}

#[test]
fn empty_requests_succeed_without_effect() {
    let memory = in_memory();
    let dir = on_disk();
    for dir in [Some(&dir), memory.as_ref()].into_iter().flatten() {
        let path = image(dir.path(), 1 << 20);
        let mut rig = Rig::new(open(&path, Cache::Auto));
        rig.ok(Op::Write { sector: 3, pieces: Vec::new(), data: Vec::new() });
        assert!(rig.ok(Op::Read { sector: 3, pieces: Vec::new() }).is_empty());
        rig.ok(Op::Discard(vec![(8, 0), (2048, 0)]));
        rig.ok(Op::WriteZeroes { ranges: vec![(5, 0)], unmap: true });
        rig.ok(Op::Flush);
        assert!(std::fs::read(&path).expect("read").iter().all(|byte| *byte == 0));
    }
}

#[test]
fn broken_range_fails_only_its_request() {
    let mount = match Mount::tmpfs(1 << 20) {
        Ok(mount) => mount,
        Err(why) => return skip(why),
    };
    let engine = open(&image(mount.path(), 4 << 20), Cache::Auto);
    let mut rig = Rig::new(Arc::clone(&engine) as Arc<dyn Engine>);
    rig.start(Op::WriteZeroes { ranges: vec![(0, 8), (0, 8192)], unmap: false });
    rig.start(Op::write(100, bytes(1, 512)));
    let mut answers = rig.drain();
    answers.sort_by_key(|answer| answer.place);
    assert_eq!((answers[0].status, answers[1].status), (Status::IoErr, Status::Ok));
}

/// Counts warnings, and remembers the last one's text.
#[derive(Default)]
struct Warnings(std::sync::Mutex<Vec<String>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Gives a loop device sectors of another size, while it is open.
fn set_sector_size(device: &Loop, size: libc::c_ulong) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    const LOOP_SET_BLOCK_SIZE: libc::Ioctl = 0x4c09;
    let file = OpenOptions::new().read(true).write(true).open(&device.device)?;
    // SAFETY: an open descriptor and a plain number.
    match unsafe { libc::ioctl(file.as_raw_fd(), LOOP_SET_BLOCK_SIZE, size) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Only the refused requests fail.
#[test]
fn late_direct_io_refusal_is_logged_once() {
    let dir = on_disk();
    let device = match Loop::new(&image(dir.path(), 1 << 20), 512) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    // One that is written to is claimed, and cannot be changed so.
    let options = FileOptions { cache: Cache::None, read_only: true, ..FileOptions::default() };
    let engine = Arc::new(FileEngine::open(&device.device, options).expect("open"));
    if let Err(error) = set_sector_size(&device, 4096) {
        return skip(format!("the loop device's sectors stay as they are: {error}"));
    }
    let warnings = Arc::new(Warnings::default());
    let _until_the_end = tracing::subscriber::set_default(Arc::clone(&warnings));
    let mut lanes = [0, 1].map(|_| Rig::new(Arc::clone(&engine) as Arc<dyn Engine>));
    for rig in &mut lanes {
        assert_eq!(rig.run(Op::read(1, 512)).status, Status::IoErr);
        assert_eq!(rig.run(Op::read(3, 1024)).status, Status::IoErr);
        // The others go on, and go no other way.
        assert_eq!(rig.ok(Op::read(8, 4096)), [0; 4096]);
        assert_eq!((rig.stats().device_errors, rig.stats().inline), (2, 0));
    }
    let warnings = warnings.0.lock().unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let says_it_all = |words: [&str; 3]| words.iter().all(|word| warnings[0].contains(word));
    assert!(says_it_all(["/dev/loop", "refuses direct I/O", "--cache writeback"]), "{warnings:?}");
}
