//! The device in this process and the guest's side of it: whatever the topology, every request comes back once, to the job that made
//! it, and everything ends.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use vlane_driver::ring::{Arena, BlkOptions, Format};
use vlane_driver::{GuestQueue, Region, Workload};

use super::device::{Device, DeviceConfig};
use super::guest::{Job, JobStats, Shared};
use super::lock::FifoLock;
use super::shared::SharedQueue;
use super::{Topology, guest};

#[derive(Debug, Clone, Copy)]
struct Case {
    topology: Topology,
    jobs: u16,
    depth: u16,
    batch: u16,
    packed: bool,
    event_idx: bool,
    write: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    (0..Topology::MEASURED.len(), 1_u16..6, 1_u16..40, 0_u16..4, any::<bool>(), any::<bool>(), any::<bool>())
        .prop_map(|(topology, jobs, depth, batch, packed, event_idx, write)| Case {
            topology: Topology::MEASURED[topology],
            jobs,
            depth,
            batch,
            packed,
            event_idx,
            write,
        })
}

/// Runs the jobs until they have done something, ends them, and returns what they did and what the device says it did.
fn run(case: Case) -> (Vec<JobStats>, u64) {
    let Case { topology, jobs, depth, batch, packed, event_idx, write } = case;
    let slots = topology.slots(jobs, depth);
    let format = if packed { Format::Packed } else { Format::Split };
    let options =
        BlkOptions { format, size: None, depth: slots, data: 4096, segments: 1, indirect: true, event_idx };
    let queues = topology.queues(jobs);
    let arena = Arena::new(1 << 32, options.arena_bytes().unwrap() * usize::from(queues)).unwrap();
    let mut queues: Vec<_> = (0..queues).map(|_| GuestQueue::new(&arena, options).unwrap()).collect();
    let lock = topology.has_mutex().then(|| Arc::new(FifoLock::default()));
    let config = DeviceConfig {
        threads: topology.threads(jobs).into(),
        cpus: Vec::new(),
        lock: lock.clone(),
        bytes: 1 << 30,
        work: Duration::ZERO,
    };
    let device = Device::start(&arena, &queues, event_idx, &config).unwrap();
    let workload = Workload {
        pattern: if write { "randwrite" } else { "randread" }.parse().unwrap(),
        batch,
        ..Workload::default()
    };
    let region = Region { offset: 0, blocks: (1 << 30) / 4096 };
    let shared = Shared::new();
    let job = |index| Job {
        index,
        jobs,
        workload: &workload,
        region,
        depth,
        shared: &shared,
        window: (0, u64::MAX),
        tid: Arc::new(AtomicI32::new(0)),
        work: Duration::ZERO,
    };
    // Without the device's mutex the guest's own lock on its ring is left, as in a measurement.
    let share = |queue| SharedQueue::new(queue, jobs, depth, lock.clone().unwrap_or_default()).unwrap();
    let one = if topology.shares_queue() { queues.pop().map(share) } else { None };
    let counters = device.counters().to_vec();
    let requests = || counters.iter().map(|c| c.requests.load(Ordering::Relaxed)).sum::<u64>();
    let stats = std::thread::scope(|scope| {
        let threads = super::cell::start(scope, jobs, one.as_ref(), &mut queues, lock.as_deref(), job);
        // Some rounds for everybody; a hang shows as the test's own.
        let wanted = u64::from(jobs) * u64::from(depth) * 5;
        let begin = std::time::Instant::now();
        while requests() < wanted && begin.elapsed() < guest::DRAIN {
            std::thread::sleep(Duration::from_millis(1));
        }
        shared.stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect::<Vec<_>>()
    });
    // An I/O thread counts after it has answered.
    device.stop().unwrap();
    (stats, requests())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_request_comes_back_once_to_its_job_and_everything_ends(case in cases()) {
        let (stats, answered) = run(case);
        prop_assert_eq!(stats.len(), usize::from(case.jobs));
        prop_assert_eq!(stats.iter().map(|s| s.completed).sum::<u64>(), answered);
        for job in &stats {
            prop_assert!(job.completed >= u64::from(case.depth), "a job was left out: {:?}", job.completed);
            prop_assert_eq!(job.errors, 0);
            prop_assert_eq!(job.latency.len(), job.completed);
        }
        let taken: u64 = stats.iter().map(|s| s.counts.lock.taken).sum();
        prop_assert!(case.topology != Topology::Baseline || taken > 0);
        prop_assert!(case.topology != Topology::Mt || taken == 0);
    }
}
