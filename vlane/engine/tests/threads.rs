//! Threads that serve a volume run on all CPUs of the process, whichever thread starts them. A
//! lane's thread may be pinned to one.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;

use common::places::{Loop, image, on_disk, open, skip};
use common::{Op, Rig, bytes};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use vlane_engine::Engine;
use vlane_engine::file::Cache;

/// CPUs, by number.
fn cpus(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Threads of this process with a name that begins so, each with its CPUs.
fn threads(name: &str) -> Vec<(String, Vec<usize>)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of = |task: std::fs::DirEntry| {
        let comm = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let number: i32 = task.file_name().to_str()?.parse().ok()?;
        let cpus = cpus(&sched_getaffinity(Pid::from_raw(number)).ok()?);
        comm.starts_with(name).then(|| (comm.trim().to_owned(), cpus))
    };
    tasks.filter_map(of).collect()
}

/// One test: the threads are those of the process.
#[test]
fn threads_of_pinned_lane_are_unpinned() {
    let all = cpus(&sched_getaffinity(Some(rustix::process::getpid())).unwrap());
    if all.len() < 2 {
        return skip("there is one CPU, so none is pinned");
    }
    let mut one = CpuSet::new();
    one.set(all[0]);
    sched_setaffinity(None, &one).unwrap();
    assert_eq!(cpus(&sched_getaffinity(Some(gettid())).unwrap()), all[..1]);

    let dir = on_disk();
    let path = image(dir.path(), 4 << 20);
    let engine: Arc<dyn Engine> = open(&path, Cache::Writeback);
    let mut rig = Rig::new(engine);
    rig.ok(Op::write(0, bytes(1, 4096)));
    rig.ok(Op::Flush);
    let found = threads("flush");
    assert!(!found.is_empty(), "no thread of the flushes");
    assert!(found.iter().all(|(_, on)| *on == all), "{found:?}, of {all:?}");
    drop(rig);

    let device = match Loop::new(&path, 512) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let engine = open(&device.device, Cache::None);
    engine.pretend_old_kernel();
    let mut rig = Rig::new(engine as Arc<dyn Engine>);
    // A thread stays for a while after its discard.
    let found = std::iter::repeat_with(|| {
        rig.ok(Op::Discard(vec![(0, 64)]));
        threads("discard")
    });
    let found = found.take(100).find(|found| !found.is_empty()).expect("a thread of a discard");
    assert!(found.iter().all(|(_, on)| *on == all), "{found:?}, of {all:?}");
}
