//! The null device: at once, or as a device of a given latency and parallelism. No test looks at
//! the clock: times are compared with each other.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Op, Rig};
use vlane_engine::null::{NullConfig, NullEngine};
use vlane_engine::{Engine, ErrorKind, Status};

const LATENCY: Duration = Duration::from_secs(3600);

fn null(latency: Option<Duration>, parallelism: usize) -> Arc<NullEngine> {
    Arc::new(
        NullEngine::new(NullConfig { size: 1 << 30, latency, parallelism }).expect("a null device"),
    )
}

/// Collects the answers due at `now`: the places, in order.
fn due(rig: &mut Rig, now: Instant) -> Vec<usize> {
    rig.reap(now);
    rig.collect()
        .into_iter()
        .inspect(|a| assert_eq!(a.status, Status::Ok))
        .map(|a| a.place)
        .collect()
}

#[test]
fn null_device_answers_without_touching_memory() {
    let mut rig = Rig::new(null(None, 1));
    assert!(
        rig.ok(Op::read(0, 4096)).iter().all(|byte| *byte == 0xa5),
        "the guest's buffer is as it was"
    );
    for op in [
        Op::write(8, vec![1; 512]),
        Op::Flush,
        Op::Discard(vec![(0, 8)]),
        Op::WriteZeroes { ranges: vec![(0, 8)], unmap: true },
    ] {
        rig.start(op);
        rig.begin();
        assert_eq!(rig.in_flight(), 0);
        assert_eq!(rig.collect().len(), 1);
    }
    assert!(rig.channel().deadline().is_none());
}

#[test]
fn one_server_serves_one_at_a_time() {
    let mut rig = Rig::new(null(Some(LATENCY), 1));
    let begin = Instant::now();
    for _ in 0..4 {
        rig.start(Op::read(0, 4096));
    }
    rig.begin();
    assert_eq!(due(&mut rig, Instant::now()), [] as [usize; 0]);
    let first = rig.channel().deadline().expect("a deadline");
    assert!(first >= begin + LATENCY);
    assert_eq!(due(&mut rig, first - Duration::from_nanos(1)), [] as [usize; 0]);
    for place in 0..4u32 {
        let at = rig.channel().deadline().expect("a deadline");
        assert_eq!(at, first + LATENCY * place, "one latency after the other, without a gap");
        assert_eq!(due(&mut rig, at), [place as usize]);
    }
    assert!(rig.channel().deadline().is_none());
}

#[test]
fn several_servers_work_in_parallel() {
    let mut rig = Rig::new(null(Some(LATENCY), 4));
    for _ in 0..8 {
        rig.start(Op::write(0, vec![1; 512]));
    }
    rig.begin();
    let first = rig.channel().deadline().expect("a deadline");
    // The requests came within much less than a latency, so four are done, and then four more.
    assert_eq!(due(&mut rig, first + LATENCY / 2), [0, 1, 2, 3]);
    let second = rig.channel().deadline().expect("a deadline");
    assert_eq!(second, first + LATENCY);
    assert_eq!(due(&mut rig, first + LATENCY / 2 * 3), [4, 5, 6, 7]);
}

#[test]
fn lanes_share_the_servers() {
    let engine = null(Some(LATENCY), 1);
    let (mut one, mut other) = (Rig::new(engine.clone()), Rig::new(engine));
    one.start(Op::read(0, 512));
    one.begin();
    other.start(Op::read(0, 512));
    other.begin();
    let first = one.channel().deadline().expect("a deadline");
    assert_eq!(other.channel().deadline(), Some(first + LATENCY));
    assert_eq!(due(&mut other, first), [] as [usize; 0]);
    assert_eq!(due(&mut one, first), [0]);
    assert_eq!(due(&mut other, first + LATENCY), [0]);
}

#[test]
fn flush_is_answered_without_waiting() {
    let mut rig = Rig::new(null(Some(LATENCY), 1));
    rig.start(Op::write(0, vec![1; 512]));
    rig.start(Op::Flush);
    rig.begin();
    let answers = rig.collect();
    assert_eq!(
        answers.iter().map(|a| a.place).collect::<Vec<usize>>(),
        [1],
        "it covers what was answered before it"
    );
}

#[test]
fn impossible_disk_sizes_are_refused() {
    let kind = |size| {
        NullEngine::new(NullConfig { size, latency: None, parallelism: 1 })
            .map(|_| ())
            .map_err(|error| error.kind())
    };
    assert_eq!(kind(0), Err(ErrorKind::Empty));
    assert_eq!(kind(513), Err(ErrorKind::OddSize));
    assert_eq!(kind(512), Ok(()));
    assert_eq!(null(None, 0).geometry().sectors, 1 << 21);
}
