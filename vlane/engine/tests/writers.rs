//! Two writers of the same bytes, by any devices: the second one is refused. Writers of
//! neighbouring bytes are not.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may")]

mod common;

use std::path::{Path, PathBuf};

use common::places::{Loop, alone, command, image, on_disk};
use vlane_engine::file::{FileEngine, FileOptions};
use vlane_engine::{EngineError, ErrorKind};
use vlane_testing::skip;

const MIB: u64 = 1 << 20;

fn open(path: &Path) -> Result<FileEngine, EngineError> {
    FileEngine::open(path, FileOptions::default())
}

/// Each of the two keeps the other out, and readers go beside both.
fn conflict(one: &Path, other: &Path) {
    for (first, second) in [(one, other), (other, one)] {
        let served = open(first).unwrap_or_else(|error| panic!("{error}"));
        let error = open(second).expect_err("the same bytes are served");
        assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
        assert!(error.to_string().contains("--read-only"), "{error}");
        drop(served);
    }
}

fn go_together(one: &Path, other: &Path) {
    let served = open(one).unwrap_or_else(|error| panic!("{error}"));
    drop(open(other).unwrap_or_else(|error| panic!("{error}")));
    drop(served);
}

#[test]
fn loop_devices_conflict_where_they_overlap() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), 32 * MIB);
    let made = || {
        let parts = [(0, 32), (0, 8), (8, 8), (12, 8)]
            .map(|(at, len)| Loop::part(&path, at * MIB, len * MIB));
        parts.into_iter().collect::<Result<Vec<_>, _>>()
    };
    let loops = match made() {
        Ok(loops) => loops,
        Err(why) => return skip(why),
    };
    let [whole, first, second, across] = [0, 1, 2, 3].map(|at| loops[at].device.as_path());
    let again = Loop::new(&path, 512).unwrap();
    conflict(whole, &again.device);
    for part in [first, second, across] {
        conflict(whole, part);
        conflict(&path, part);
    }
    conflict(second, across);
    go_together(first, second);
    go_together(first, across);
    // Readers are served in parallel.
    let reader =
        || FileEngine::open(whole, FileOptions { read_only: true, ..FileOptions::default() });
    let served = open(first).unwrap();
    drop(reader().expect("a reader"));
    drop(served);
    let _reading = reader().expect("a reader");
    assert_eq!(open(first).expect_err("somebody reads it").kind(), ErrorKind::Locked);
}

#[test]
fn stacked_loop_device_conflicts_with_all_below() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), 32 * MIB);
    let made = || {
        let lower = Loop::part(&path, 4 * MIB, 16 * MIB)?;
        let upper = Loop::part(&lower.device, 8 * MIB, 4 * MIB)?;
        let inside = Loop::part(&path, 12 * MIB, MIB)?;
        let outside = Loop::part(&path, 0, 12 * MIB)?;
        Ok((upper, lower, inside, outside))
    };
    let (upper, lower, inside, outside) = match made() {
        Ok(made) => made,
        Err::<_, String>(why) => return skip(why),
    };
    for other in [&lower, &inside] {
        conflict(&upper.device, &other.device);
    }
    conflict(&upper.device, &path);
    conflict(&lower.device, &outside.device);
    go_together(&upper.device, &outside.device);
}

#[test]
fn loop_of_mounted_file_is_refused() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), 32 * MIB);
    let made = Loop::new(&path, 512).and_then(|one| Ok([one, Loop::new(&path, 512)?]));
    let [mounted, served] = match made {
        Ok(loops) => loops,
        Err(why) => return skip(why),
    };
    let node = mounted.device.to_str().unwrap();
    let place = tempfile::tempdir().unwrap();
    let at = place.path().to_str().unwrap();
    if let Err(why) =
        command("mkfs.ext4", &["-q", node]).and_then(|_| command("mount", &[node, at]))
    {
        return skip(why);
    }
    let opened = open(&served.device);
    command("umount", &[at]).unwrap();
    let error = opened.expect_err("its bytes are mounted").to_string();
    assert!(
        [node, at, "mounted at", "--read-only"].iter().all(|part| error.contains(part)),
        "{error}"
    );
    drop(open(&served.device).expect("free again"));
}

/// A partition of a disk, by a node of our own: none may be made in /dev here.
struct Partition {
    disk: String,
    number: String,
    node: PathBuf,
}

impl Partition {
    fn new(
        dir: &Path,
        disk: &Loop,
        number: u32,
        start: u64,
        len: u64,
    ) -> Result<Partition, String> {
        let disk = disk.device.to_str().unwrap().to_owned();
        let number = number.to_string();
        // A loop device keeps partitions that were made like this when it is detached, for its next
        // user.
        let _ = command("delpart", &[&disk, &number]);
        command("addpart", &[&disk, &number, &start.to_string(), &len.to_string()])?;
        let name = disk.trim_start_matches("/dev/");
        let node = dir.join(format!("partition{number}"));
        let made = Partition { disk: disk.clone(), number: number.clone(), node };
        let found = std::fs::read_to_string(format!("/sys/block/{name}/{name}p{number}/dev"));
        let found = found.map_err(|error| error.to_string())?;
        let (major, minor) = found.trim().split_once(':').unwrap();
        command("mknod", &[made.node.to_str().unwrap(), "b", major, minor])?;
        Ok(made)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let _ = command("delpart", &[&self.disk, &self.number]);
    }
}

#[test]
fn partitions_of_one_disk_are_served_together() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), 32 * MIB);
    let made = || {
        let disk = Loop::new(&path, 512)?;
        let first = Partition::new(dir.path(), &disk, 1, 2048, 16384)?;
        let second = Partition::new(dir.path(), &disk, 2, 18432, 16384)?;
        let beside = Loop::part(&path, 9 * MIB, 8 * MIB)?;
        Ok((first, second, beside, disk))
    };
    let (first, second, beside, disk) = match made() {
        Ok(made) => made,
        Err::<_, String>(why) => return skip(why),
    };
    go_together(&first.node, &second.node);
    go_together(&first.node, &beside.device);
    conflict(&second.node, &beside.device);
    conflict(&first.node, &disk.device);
    conflict(&first.node, &path);
}
