//! An image behind the model of a device: its data, the model's times. No test looks at the clock:
//! times are compared with each other.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Op, Rig};
use vlane_engine::behind::Behind;
use vlane_engine::file::{Cache, FileEngine, FileOptions};
use vlane_engine::model::{DeviceQueues, ModelConfig};
use vlane_engine::{Engine, Status};

const LATENCY: Duration = Duration::from_secs(3600);

fn behind(dir: &tempfile::TempDir, queues: DeviceQueues) -> Rig {
    let path = dir.path().join("image");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let options = FileOptions { cache: Cache::Writeback, ..FileOptions::default() };
    let file = Arc::new(FileEngine::open(&path, options).unwrap());
    assert_eq!(file.geometry().sectors, 2048);
    Rig::new(Arc::new(Behind::new(file, ModelConfig { latency: LATENCY, parallelism: 1, queues })))
}

#[test]
fn request_has_image_data_and_model_time() {
    for queues in [DeviceQueues::Shared, DeviceQueues::RoundRobin] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = behind(&dir, queues);
        rig.start(Op::write(8, vec![9; 4096]));
        rig.start(Op::read(0, 4096));
        rig.begin();
        let first = rig.channel().deadline().expect("a deadline");
        rig.reap(Instant::now());
        assert!(rig.collect().is_empty() && first >= Instant::now() + LATENCY / 2);
        let image = || std::fs::read(dir.path().join("image")).unwrap();
        assert!(image().iter().all(|byte| *byte == 7), "nothing is written before its time");
        for (place, now) in [(0, first), (1, first + LATENCY)] {
            assert_eq!(rig.channel().deadline(), Some(now));
            rig.reap(now);
            let mut answers = rig.collect();
            // A request that is not answered at once is under way in the kernel.
            while answers.is_empty() {
                rig.reap(now);
                answers = rig.collect();
            }
            assert_eq!((answers[0].place, answers[0].status), (place, Status::Ok));
        }
        assert_eq!(image()[4096..8192], [9; 4096]);
        assert_eq!(rig.channel().deadline(), None);
        let place = rig.start(Op::read(8, 4096));
        rig.begin();
        let now = rig.channel().deadline().expect("a deadline");
        let mut answers = Vec::new();
        while answers.is_empty() {
            rig.reap(now);
            answers = rig.collect();
        }
        assert_eq!((answers[0].place, &answers[0].data), (place, &vec![9; 4096]), "{queues:?}");
    }
}

#[test]
fn flush_does_not_wait_in_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = behind(&dir, DeviceQueues::RoundRobin);
    rig.start(Op::read(0, 4096));
    let flush = rig.start(Op::Flush);
    rig.begin();
    let mut answers = Vec::new();
    while answers.is_empty() {
        rig.reap(Instant::now());
        answers = rig.collect();
    }
    assert_eq!(answers.iter().map(|answer| answer.place).collect::<Vec<_>>(), [flush]);
}
