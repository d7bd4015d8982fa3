//! An idle session uses no CPU time: its lane threads are not scheduled at all, also after a burst
//! of load, with and without polling.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::*;
use vlane_driver::{Limit, Session, SessionOptions, Want, Workload};

/// Lanes are recognized by the names of their threads, so only one volume may exist at a time.
static ONE: Mutex<()> = Mutex::new(());

/// The number of times that each lane thread of this process was scheduled away, for any reason. It
/// includes the thread that chooses their number, if there is one.
fn switches() -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let name = read("comm").trim().to_owned();
        if name.starts_with("lane-") || name == "governor" {
            let status = read("status");
            let counts = status.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
            all.insert(
                name,
                counts.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum(),
            );
        }
    }
    all
}

fn idles(server: &Server, packed: Want, event_idx: Want, threads: usize) {
    let quiet = |what: &str| quiet(what, threads);
    let options =
        SessionOptions { queues: 2, depth: 8, packed, event_idx, ..SessionOptions::default() };
    let mut session = Session::connect(&server.path(), &options).unwrap();
    let (queues, _waker) = session.start().unwrap();
    quiet("a session that has done nothing");
    drop(queues);
    drop(session);

    // A burst, by a front end that stays.
    let mut session = Session::connect(&server.path(), &options).unwrap();
    let (mut queues, _waker) = session.start().unwrap();
    let mut done = Vec::new();
    for _ in 0..300 {
        for queue in &mut queues {
            for slot in 0..8 {
                let request = vlane_driver::ring::Request {
                    kind: vlane_driver::ring::RequestKind::Read,
                    sector: 0,
                    len: 4096,
                    ioprio: 0,
                };
                queue.blk.submit(slot, request).unwrap();
            }
            if queue.blk.publish() {
                queue.kick().unwrap();
            }
            while queue.blk.held() > 0 {
                queue.blk.reap(&mut done).unwrap();
            }
        }
    }
    assert_eq!(done.len(), 300 * 2 * 8);
    // The polling window closes by itself.
    quiet("a session after a burst");
    drop(queues);
    drop(session);
    quiet("a volume that nobody is connected to");
}

/// A lane that sleeps is not woken for so long. A fault that wakes it comes more often.
const QUIET: Duration = Duration::from_millis(700);
/// A lane that is not asleep by then never will be.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until so many threads have slept for [`QUIET`]. A busy machine only makes them later.
fn quiet(what: &str, threads: usize) {
    let begin = Instant::now();
    let (mut last, mut since) = (switches(), begin);
    while since.elapsed() < QUIET || last.len() != threads {
        std::thread::sleep(Duration::from_millis(20));
        let now = switches();
        assert!(begin.elapsed() < PATIENCE, "{what}: lanes are woken: {last:?}, then {now:?}");
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

fn volume_idles(poll_max: Duration, packed: Want, event_idx: Want) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::polling(null(None), 2, 2, poll_max);
    idles(&server, packed, event_idx, 2);
}

#[test]
fn polling_lanes_sleep_when_idle() {
    volume_idles(Duration::from_micros(50), Want::No, Want::Must);
    volume_idles(Duration::from_micros(50), Want::Must, Want::Must);
}

#[test]
fn long_polling_lanes_sleep_when_idle() {
    volume_idles(Duration::from_millis(20), Want::No, Want::No);
}

#[test]
fn lanes_without_polling_sleep_when_idle() {
    volume_idles(Duration::ZERO, Want::Must, Want::No);
}

#[test]
fn adaptive_lanes_and_governor_sleep_when_idle() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::adapting(null(None), 2, 2);
    idles(&server, Want::No, Want::Must, 3);
}

/// The modelled device has deadlines, a file has completions: neither may leave a timer or a watch
/// behind that fires.
#[test]
fn lanes_sleep_after_requests_that_took_time() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server =
        Server::polling(null(Some(Duration::from_micros(500))), 2, 2, Duration::from_micros(50));
    let options = SessionOptions { queues: 2, depth: 8, ..SessionOptions::default() };
    let session = Session::connect(&server.path(), &options).unwrap();
    let load = Workload { limit: Limit::Count(200), ..Workload::default() };
    vlane_driver::run(session, &load, &mut |_| ControlFlow::Continue(())).unwrap();
    quiet("after a modelled device's load", 2);
}

/// Requests in a ring without a kick descriptor give no sign: its lane has to look. It looks seldom
/// while no request comes.
#[test]
fn ring_without_kicks_is_served_cheaply() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(
        wire.vring(code::SET_VRING_NUM, 0, SIZE.into()) && wire.vring(code::SET_VRING_BASE, 0, 0)
    );
    assert!(wire.addresses(0, &ring, None) && wire.fd(code::SET_VRING_CALL, 0, &ring.call));
    // "No descriptor": bit 8.
    assert!(wire.set(code::SET_VRING_KICK, &words(&[1 << 8]), &[]));
    assert!(wire.vring(code::SET_VRING_ENABLE, 0, 1));
    for slot in 0..3 {
        ring.submit(slot, IN, 0, 512);
        ring.wait(1);
        // The time first: it is at least as long as that in which looks are counted.
        let (begin, before): (_, u64) = (Instant::now(), switches().values().sum());
        std::thread::sleep(Duration::from_millis(500));
        let looks = switches().values().sum::<u64>() - before;
        assert!(
            u128::from(looks) < 1 + begin.elapsed().as_millis() * 2 / 5,
            "{looks} looks in half a second"
        );
    }
}
