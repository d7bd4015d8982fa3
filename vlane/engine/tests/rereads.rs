//! Files whose blocks have checksums are not written to around the page cache unless that is asked.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may")]

mod common;

use std::path::Path;

use common::places::{Loop, alone, command, image, on_disk, open};
use vlane_engine::file::{Cache, FileEngine, FileOptions};
use vlane_testing::skip;

/// btrfs on a loop device, unmounted when it is dropped.
struct Btrfs {
    place: tempfile::TempDir,
    // Detached after the unmounting.
    _device: Loop,
}

impl Btrfs {
    fn new(backing: &Path, options: &str) -> Result<Btrfs, String> {
        let device = Loop::new(backing, 512)?;
        let node = device.device.to_str().unwrap().to_owned();
        let place = tempfile::tempdir().unwrap();
        command("mkfs.btrfs", &["-q", "-f", "-m", "single", &node])?;
        command("mount", &["-o", options, &node, place.path().to_str().unwrap()])?;
        Ok(Btrfs { place, _device: device })
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        let at = self.place.path().to_str().unwrap();
        for _ in 0..50 {
            if command("umount", &[at]).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// The mode that `auto` takes for a file there.
fn auto(path: &Path) -> Cache {
    open(path, Cache::Auto).cache()
}

#[test]
fn btrfs_with_checksums_takes_the_page_cache() {
    let _alone = alone();
    let dir = on_disk();
    let backing = image(dir.path(), 256 << 20);
    let btrfs = match Btrfs::new(&backing, "rw") {
        Ok(btrfs) => btrfs,
        Err(why) => return skip(why),
    };
    let summed = image(btrfs.place.path(), 1 << 20);
    assert_eq!(auto(&summed), Cache::Writeback);
    // Readers make no change, and `none` is taken at its word.
    let reader = FileOptions { read_only: true, ..FileOptions::default() };
    assert_eq!(FileEngine::open(&summed, reader).unwrap().cache(), Cache::None);
    assert_eq!(open(&summed, Cache::None).cache(), Cache::None);
    // Without checksums the two readings cannot differ.
    let plain = btrfs.place.path().join("plain");
    std::fs::create_dir(&plain).unwrap();
    command("chattr", &["+C", plain.to_str().unwrap()]).unwrap();
    assert_eq!(auto(&image(&plain, 1 << 20)), Cache::None);
}

#[test]
fn btrfs_without_checksums_takes_direct_io() {
    let _alone = alone();
    let dir = on_disk();
    let backing = image(dir.path(), 256 << 20);
    let btrfs = match Btrfs::new(&backing, "nodatasum") {
        Ok(btrfs) => btrfs,
        Err(why) => return skip(why),
    };
    assert_eq!(auto(&image(btrfs.place.path(), 1 << 20)), Cache::None);
}
