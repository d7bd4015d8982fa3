//! Opening images: refusals and their words, the guest's view of accepted images, and growth.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;

use common::places::{Mount, image, in_memory, on_disk, open, skip};
use common::{Op, Rig, bytes};
use vlane_engine::file::{Cache, FileEngine, FileOptions};
use vlane_engine::{Engine, ErrorKind, Status};

fn refusal(path: &Path) -> (ErrorKind, String) {
    let error = FileEngine::open(path, FileOptions::default()).expect_err("refused");
    assert!(error.to_string().starts_with(&format!("{}: ", path.display())), "{error}");
    (error.kind(), error.to_string())
}

fn resize(path: &Path, size: u64) {
    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(size)).expect("resize");
}

#[test]
fn refused_image_error_names_the_action() {
    let dir = on_disk();
    let (kind, text) = refusal(&dir.path().join("none"));
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(text.contains("truncate -s 10G"), "{text}");
    assert_eq!(refusal(dir.path()).0, ErrorKind::NotAFileOrDevice);
    assert_eq!(refusal(Path::new("/dev/null")).0, ErrorKind::NotAFileOrDevice);
    let path = image(dir.path(), 0);
    assert_eq!(refusal(&path).0, ErrorKind::Empty);
    resize(&path, 1000);
    let (kind, text) = refusal(&path);
    assert_eq!(kind, ErrorKind::OddSize);
    let advice =
        format!("is it a disk image? If so, round it up: `truncate -s 1024 {}`", path.display());
    assert!(text.ends_with(&advice), "{text}");
}

#[test]
fn image_file_has_512_byte_sectors() {
    let dir = on_disk();
    let memory = in_memory();
    for (dir, cache) in [
        (Some(&dir), Cache::Auto),
        (Some(&dir), Cache::Writeback),
        (Some(&dir), Cache::WriteThrough),
        (memory.as_ref(), Cache::Auto),
        (memory.as_ref(), Cache::WriteThrough),
    ] {
        let Some(dir) = dir else { continue };
        let geometry = open(&image(dir.path(), 1 << 20), cache).geometry();
        assert_eq!(
            (geometry.sectors, geometry.block_size, geometry.physical_exponent),
            (2048, 512, 3)
        );
        assert_eq!(geometry.write_cache, cache != Cache::WriteThrough);
        assert!(geometry.discard && geometry.write_zeroes && !geometry.read_only);
    }
}

#[test]
fn file_on_large_sectors_takes_small_requests() {
    let dir = on_disk();
    let mount = match Mount::ext4(&image(dir.path(), 32 << 20), 4096) {
        Ok(mount) => mount,
        Err(why) => return skip(why),
    };
    let path = image(mount.path(), 1 << 20);
    let mut rig = Rig::new(open(&path, Cache::Auto));
    assert_eq!(rig.engine.geometry().block_size, 512);
    let data = bytes(1, 65536);
    rig.ok(Op::write(0, data.clone()));
    assert!(rig.ok(Op::read(3, 512)) == data[1536..2048]);
    assert!(rig.ok(Op::Read { sector: 1, pieces: vec![(0, 512); 9] }) == data[512..512 * 10]);
    // Buffers of less than a block each: not for the device.
    assert!(rig.ok(Op::Read { sector: 8, pieces: vec![(512, 512); 16] }) == data[4096..12288]);
    assert_eq!((rig.stats().bounced, rig.stats().device_errors), (3, 0));
    rig.ok(Op::write(5, bytes(2, 512)));
    rig.ok(Op::write(16, bytes(3, 4096)));
    rig.ok(Op::WriteZeroes { ranges: vec![(33, 3)], unmap: false });
    let mut expected = data;
    expected[2560..3072].copy_from_slice(&bytes(2, 512));
    expected[8192..12288].copy_from_slice(&bytes(3, 4096));
    expected[33 * 512..36 * 512].fill(0);
    assert!(rig.ok(Op::read(0, 65536)) == expected);
    rig.ok(Op::Flush);
    drop(rig);
    assert!(std::fs::read(&path).expect("read")[..65536] == expected);
}

/// A write of the last block of direct I/O would make the file longer.
#[test]
fn file_with_partial_last_block_avoids_direct_writes() {
    let dir = on_disk();
    let mount = match Mount::ext4(&image(dir.path(), 32 << 20), 4096) {
        Ok(mount) => mount,
        Err(why) => return skip(why),
    };
    let path = image(mount.path(), (1 << 20) + 1024);
    let error = FileEngine::open(&path, common::places::options(Cache::None)).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::OddSize);
    assert!(
        error.to_string().contains("multiple of the 4096")
            && error.to_string().contains("--cache writeback"),
        "{error}"
    );
    let read_only = FileOptions { read_only: true, ..common::places::options(Cache::None) };
    let mut rig = Rig::new(common::places::open_with(&path, read_only));
    assert_eq!(rig.ok(Op::read(2048, 1024)).len(), 1024);
    drop(rig);
    let engine = open(&path, Cache::Auto);
    assert_eq!(engine.cache(), Cache::Writeback);
    let mut rig = Rig::new(Arc::clone(&engine) as Arc<dyn Engine>);
    rig.ok(Op::write(2049, bytes(1, 512)));
    rig.ok(Op::Flush);
    drop((rig, engine));
    assert_eq!(std::fs::metadata(&path).expect("metadata").len(), (1 << 20) + 1024);
    // Nor may it come to end there.
    resize(&path, 1 << 20);
    let engine = open(&path, Cache::Auto);
    assert_eq!(engine.cache(), Cache::None);
    resize(&path, (1 << 20) + 512);
    assert_eq!(engine.refresh().expect_err("refused").kind(), ErrorKind::OddSize);
    resize(&path, (1 << 20) + 8192);
    assert!(engine.refresh().expect("whole blocks"));
}

#[test]
fn large_misaligned_request_goes_in_pieces() {
    let dir = on_disk();
    let path = image(dir.path(), 4 << 20);
    let mut rig = Rig::new(open(&path, Cache::Auto));
    let data = bytes(1, common::DATA - 512);
    rig.ok(Op::Write { sector: 7, pieces: vec![(1, data.len())], data: data.clone() });
    for (gap, place) in [(1, 0), (77, 1), (0, 2)] {
        assert_eq!(rig.start(Op::Read { sector: 7, pieces: vec![(gap, data.len())] }), place);
    }
    for answer in rig.drain() {
        assert_eq!(answer.status, Status::Ok);
        assert!(answer.data == data);
    }
    drop(rig);
    assert!(std::fs::read(&path).expect("read")[7 * 512..7 * 512 + data.len()] == data);
}

fn grown(path: &Path, cache: Cache) {
    let engine = open(path, cache);
    let mut rig = Rig::new(Arc::clone(&engine) as Arc<dyn Engine>);
    rig.ok(Op::write(0, bytes(1, 4096)));
    assert!(!engine.refresh().expect("refresh"));
    resize(path, (2 << 20) + 512);
    assert!(engine.refresh().expect("refresh"));
    assert_eq!(engine.geometry().sectors, 4097);
    // Across the old end, and up to the new one.
    let data = bytes(2, 65536);
    rig.ok(Op::write(2048 - 64, data.clone()));
    rig.ok(Op::write(4096, bytes(3, 512)));
    assert!(rig.ok(Op::read(2048 - 64, 65536)) == data);
    assert!(rig.ok(Op::read(4096, 512)) == bytes(3, 512));
    rig.ok(Op::WriteZeroes { ranges: vec![(2048, 8)], unmap: true });
    rig.ok(Op::Flush);
    let mut expected = data;
    expected[32768..32768 + 4096].fill(0);
    assert!(rig.ok(Op::read(2048 - 64, 65536)) == expected);
    drop((rig, engine));
    let found = std::fs::read(path).expect("read");
    assert_eq!(found.len(), (2 << 20) + 512);
    assert!(found[(2048 - 64) * 512..][..65536] == expected);
}

#[test]
fn grown_image_is_served_to_its_end() {
    let dir = on_disk();
    for cache in [Cache::Auto, Cache::Writeback] {
        grown(&image(dir.path(), 1 << 20), cache);
    }
    match in_memory() {
        Some(dir) => grown(&image(dir.path(), 1 << 20), Cache::Auto),
        None => skip("no /dev/shm"),
    }
}

#[test]
fn discard_frees_space_and_zeroes_keep_it() {
    use std::os::unix::fs::MetadataExt;
    let dir = on_disk();
    let memory = in_memory();
    for dir in [Some(&dir), memory.as_ref()].into_iter().flatten() {
        let path = image(dir.path(), 1 << 20);
        let mut rig = Rig::new(open(&path, Cache::Auto));
        let blocks = |rig: &mut Rig| {
            rig.ok(Op::Flush);
            std::fs::metadata(&path).expect("metadata").blocks()
        };
        rig.ok(Op::write(0, bytes(1, 1 << 20)));
        let full = blocks(&mut rig);
        assert!(full >= 2048);
        rig.ok(Op::WriteZeroes { ranges: vec![(0, 1024)], unmap: false });
        assert!(blocks(&mut rig) >= 2048, "not deallocated");
        rig.ok(Op::WriteZeroes { ranges: vec![(0, 1024)], unmap: true });
        assert!(blocks(&mut rig) <= full - 1000);
        rig.ok(Op::Discard(vec![(1024, 512), (1536, 512)]));
        assert!(blocks(&mut rig) < 64, "{}", blocks(&mut rig));
        assert!(rig.ok(Op::read(0, 1 << 20)).iter().all(|byte| *byte == 0));
        assert!(blocks(&mut rig) < 64, "reading a hole allocates nothing");
    }
}

#[test]
fn keep_and_off_modes_keep_space() {
    use std::os::unix::fs::MetadataExt;
    use vlane_engine::file::Discard;
    let dir = on_disk();
    let memory = in_memory();
    for (dir, cache) in
        [(Some(&dir), Cache::Auto), (Some(&dir), Cache::Writeback), (memory.as_ref(), Cache::Auto)]
    {
        let Some(dir) = dir else { continue };
        for discard in [Discard::Keep, Discard::Off] {
            let path = image(dir.path(), 1 << 20);
            let options = FileOptions { discard, ..common::places::options(cache) };
            let mut rig = Rig::new(common::places::open_with(&path, options));
            assert_eq!(rig.engine.geometry().discard, discard == Discard::Keep);
            let blocks = |rig: &mut Rig| {
                rig.ok(Op::Flush);
                std::fs::metadata(&path).expect("metadata").blocks()
            };
            rig.ok(Op::write(0, bytes(1, 1 << 20)));
            let full = blocks(&mut rig);
            rig.ok(Op::Discard(vec![(1024, 512), (1536, 512)]));
            rig.ok(Op::WriteZeroes { ranges: vec![(0, 512)], unmap: true });
            assert!(
                blocks(&mut rig) >= full,
                "{discard:?}, {cache:?}: {} of {full}",
                blocks(&mut rig)
            );
            assert!(rig.ok(Op::read(0, 512 * 512)).iter().all(|byte| *byte == 0));
            let discarded = rig.ok(Op::read(1024, 1024 * 512));
            assert_eq!(
                discarded.iter().all(|byte| *byte == 0),
                discard == Discard::Keep,
                "{discard:?}, {cache:?}"
            );
        }
    }
}

#[test]
fn keep_and_off_modes_keep_device_bytes() {
    use vlane_engine::file::Discard;
    let dir = on_disk();
    let path = image(dir.path(), 8 << 20);
    let device = match common::places::Loop::new(&path, 512) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    for discard in [Discard::Keep, Discard::Off] {
        let options = FileOptions { discard, ..common::places::options(Cache::Auto) };
        let mut rig = Rig::new(common::places::open_with(&device.device, options));
        assert_eq!(rig.engine.geometry().discard, discard == Discard::Keep);
        let data = bytes(1, 65536);
        rig.ok(Op::write(0, data.clone()));
        rig.ok(Op::Discard(vec![(0, 128)]));
        assert!(rig.ok(Op::read(0, 65536)) == data, "{discard:?}");
    }
}
