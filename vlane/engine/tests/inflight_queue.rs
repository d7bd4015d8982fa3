//! Memory that the kernel works on stays where it is, in any order of safe calls.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::places::{image, on_disk, open};
use common::{DATA, Op, PLACES, Rig, bytes};
use vlane_engine::file::Cache;
use vlane_engine::{Memory, Operation, OperationKind};

#[test]
fn dropped_queue_keeps_its_operations_memory() {
    let dir = on_disk();
    let path = image(dir.path(), 16 << 20);
    let mut rig = Rig::new(open(&path, Cache::Writeback));
    // Workers copy them from guest memory, later.
    for place in 0..PLACES as u64 {
        rig.start(Op::write(place * 4096, bytes(place, DATA)));
    }
    rig.begin();
    assert!(rig.lane.queue.under_way() > 0, "all of it was done at once");
    let Rig { lane, .. } = rig;
    let common::lane::Lane { queue, uring, .. } = lane;
    drop(queue);
    drop(uring);
    let found = std::fs::read(path).expect("read");
    for place in 0..PLACES {
        assert!(found[place * DATA..][..DATA] == bytes(place as u64, DATA), "write {place}");
    }
}

#[test]
fn ambiguous_operations_are_refused() {
    let dir = on_disk();
    let mut rig = Rig::new(open(&image(dir.path(), 1 << 20), Cache::Writeback));
    rig.start(Op::read(0, 4096));
    let slot = rig.lane.take().expect("a request");
    let operation = |file| {
        let kind = OperationKind::Write(Memory::Zeroes);
        Operation { number: 3, kind, file, offset: 0, len: 512, durable: false, patient: false }
    };
    let lane = &mut rig.lane;
    let mut begin = |mut operation: Operation| {
        catch_unwind(AssertUnwindSafe(|| lane.queue.submit(&mut lane.uring, slot, &mut operation)))
    };
    assert!(begin(operation(1)).is_err(), "a file that it was not given");
    assert!(begin(operation(0)).is_ok());
    assert!(begin(operation(0)).is_err(), "the same number again");
    assert_eq!(lane.queue.under_way(), 1);
}
