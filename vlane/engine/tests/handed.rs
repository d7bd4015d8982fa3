//! An image goes from one engine to the next by its open files: its locks stay, and no check is
//! repeated.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::os::unix::fs::FileExt;

use common::places::{image, on_disk};
use vlane_engine::file::{Cache, FileEngine, FileOptions, HandedFiles};
use vlane_engine::{Engine, ErrorKind};

fn options(cache: Cache) -> FileOptions {
    FileOptions { cache, ..FileOptions::default() }
}

/// The guest's writes in between do not matter.
#[test]
fn handed_image_keeps_locks_size_and_cache() {
    for cache in [Cache::Auto, Cache::None, Cache::Writeback, Cache::WriteThrough, Cache::Pdc] {
        let place = on_disk();
        let path = image(place.path(), 1 << 20);
        let first = FileEngine::open(&path, options(cache)).unwrap();
        let (mode, geometry) = (first.cache(), first.geometry());
        // A format's mark, and a size that is none.
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"QFI\xfb\0\0\0\x03", 0).unwrap();
        file.set_len((1 << 20) + 3).unwrap();
        let locked = || {
            FileEngine::open(&path, options(cache)).expect_err("locked").kind() == ErrorKind::Locked
        };
        let mut files = first.hand_over().unwrap();
        drop(first);
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[0; 8], 0).unwrap();
        assert!(locked(), "{cache:?}: between the two");
        file.write_all_at(b"QFI\xfb\0\0\0\x03", 0).unwrap();
        file.set_len((1 << 20) + 3).unwrap();
        for _ in 0..2 {
            let next = FileEngine::take_over(&path, options(cache), files).unwrap();
            assert_eq!((next.cache(), next.geometry()), (mode, geometry.clone()), "{cache:?}");
            assert!(next.sync().is_ok() && next.lost_write().is_none());
            files = next.hand_over().unwrap();
        }
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[0; 8], 0).unwrap();
        assert!(locked(), "{cache:?}");
        drop(files);
        assert!(
            !FileEngine::open(&path, options(cache))
                .is_err_and(|error| error.kind() == ErrorKind::Locked)
        );
    }
}

#[test]
fn replaced_image_is_not_taken_over() {
    let place = on_disk();
    let path = image(place.path(), 1 << 20);
    let first = FileEngine::open(&path, options(Cache::Writeback)).unwrap();
    let HandedFiles { image: open, cached, witness, sectors } = first.hand_over().unwrap();
    std::fs::rename(&path, place.path().join("other")).unwrap();
    assert!(first.hand_over().expect_err("it is gone").to_string().contains("move it back"));
    image(place.path(), 1 << 20);
    assert!(first.hand_over().expect_err("another one").to_string().contains("replaced"));
    let files = HandedFiles { image: open, cached, witness, sectors };
    let error =
        FileEngine::take_over(&path, options(Cache::Writeback), files).expect_err("another one");
    assert!(error.to_string().contains("replaced"), "{error}");
}
