//! A front end cuts its guest's memory short while requests are under way: data that was in the
//! lost part is not written to the disk as zeroes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;

use common::apart::Apart;
use common::bytes;
use common::places::{image, in_memory, on_disk, try_open};
use vlane_engine::file::Cache;
use vlane_engine::{Engine, Status};
use vlane_ring::Broken;
use vlane_testing::skip;

const SIZE: usize = 4 << 20;

#[test]
fn write_with_lost_data_leaves_disk_unchanged() {
    let memory = in_memory();
    let disk = on_disk();
    let dirs = [
        (Some(&disk), Cache::Writeback),
        (Some(&disk), Cache::None),
        (memory.as_ref(), Cache::Auto),
    ];
    for (dir, cache) in dirs {
        let Some(dir) = dir else { return skip("no /dev/shm") };
        // Where the data lies: aligned, and as direct I/O cannot take it.
        for shift in [0, 1] {
            let path = image(dir.path(), SIZE as u64);
            let old = bytes(3, SIZE);
            std::fs::write(&path, &old).expect("write");
            let engine: Arc<dyn Engine> = match try_open(&path, cache) {
                Ok(engine) => engine,
                Err(why) => return skip(why),
            };
            let mut guest = Apart::new(&engine, 8, SIZE as u64);
            guest.put(0, &vec![0xff; SIZE]);
            // Taken: a small one, a large one, and one that makes the lane touch what is lost.
            let large = (2u64 << 20) - 8192;
            let numbers = [
                guest.offer(1, 0, &[(8192 + shift, 4096)]),
                guest.offer(1, 1024, &[(65536 + shift, u32::try_from(large).unwrap())]),
                guest.offer(8, 0, &[(0, 20)]),
            ];
            let slots = [guest.take(), guest.take(), guest.take()];
            guest.data.set_len(0).expect("cut short");
            guest.lane.queue.request(slots[2]).fill(b"serial");
            guest.lane.queue.answer(slots[2], Status::Ok);
            for slot in &slots[..2] {
                guest.begin(*slot);
            }
            guest.drain();
            for number in &numbers[..2] {
                assert_eq!(guest.status(*number), Some(Status::IoErr), "{cache:?} shift {shift}");
            }
            assert_eq!(guest.stats().errors(), 0, "the storage did not fail: {:?}", guest.stats());
            assert!(
                std::fs::read(&path).expect("read") == old,
                "{cache:?} shift {shift}: the disk was written to"
            );
            // The lane takes no more requests.
            guest.offer(8, 0, &[(0, 20)]);
            assert_eq!(guest.lane.queue.take(), Err(Broken::MemoryLost));
        }
    }
}
