//! The server is killed at random moments under a verified load and started again, and the front
//! end stays connected to its successor. Each request is answered once, and the acknowledged data
//! are there exactly.
//!
//! Unlike in `crash.rs` the front end stays. Its rings are as the dead server left them, and
//! requests in flight are marked in memory that the front end keeps. The driver reports a request
//! that is answered twice, or never. Each block holds the last acknowledged write and no older one,
//! though requests are repeated.
//!
//! `VLANE_SURVIVE_KILLS=1000` kills so often in all; `VLANE_CRASH_SEED` repeats the moments.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod served;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use served::{Place, draw, going_on, seed, stop};
use vlane_driver::{
    Limit, SessionOptions, VerifyReport, VerifyState, Want, Workload, verify_check, verify_load,
};
use vlane_guest::Backend;
use vlane_testing::skip;

const MIB: u64 = 1 << 20;
/// In the gate.
const KILLS: u64 = 20;

/// The server's options and place.
struct Case {
    place: Place,
    serve: &'static [&'static str],
}

fn cases() -> Vec<Case> {
    let on_disk = |serve| Case { place: Place::new(16 * MIB), serve };
    let mut cases = vec![
        on_disk(&["--queues", "2", "--cache", "none"]),
        on_disk(&["--queues", "2", "--cache", "writeback"]),
        on_disk(&["--queues", "2", "--cache", "pdc", "--classes", "on"]),
    ];
    cases.extend(Place::in_memory(16 * MIB).map(|place| Case { place, serve: &["--queues", "2"] }));
    cases
}

/// Kills the server `times` times under load that does not end in between.
fn survives(case: &Case, queues: u16, packed: Want, times: u64, chance: &mut u64) -> VerifyReport {
    let Case { place, serve } = case;
    let options = SessionOptions {
        queues,
        depth: 16,
        packed,
        // Any server that is killed early in its life is followed by another one.
        reconnect: Some(served::LIMIT),
        inflight: Want::Must,
        ..SessionOptions::default()
    };
    let load = Workload {
        size: Some(8 * MIB),
        // Longer than the kills take.
        limit: Limit::Time(Duration::from_secs(60 + 5 * times)),
        flush_every: Some([4, 32, 256][usize::try_from(draw(chance) % 3).unwrap()]),
        seed: draw(chance),
        ..Workload::verified()
    };
    let pauses: Vec<Duration> =
        (0..times).map(|_| Duration::from_micros(500 + draw(chance) % 200_000)).collect();
    let mut server = place.serve(serve);
    let front_end = place.connect(&options);
    let mut state = VerifyState::new(&front_end, &load).unwrap();
    let over = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let next = |server: Backend, (kill, pause): (usize, Duration)| {
                std::thread::sleep(pause);
                server.kill();
                let server = place.serve(serve);
                // A front end that is off the CPU for a while would notice few of the servers. Two
                // of three live until it has found them.
                if kill % 3 != 2 {
                    server.wait_log(" connected", served::LIMIT);
                }
                server
            };
            server = pauses.into_iter().enumerate().fold(server, next);
            std::thread::sleep(Duration::from_millis(50));
            over.store(true, Ordering::Relaxed);
            server
        });
        let report = verify_load(front_end, &mut state, &load, &mut |now| {
            // A slow disk ends few requests between the kills: the load continues until it is
            // enough.
            if over.load(Ordering::Relaxed) && now.done >= 200 * times {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        (report, killer.join().unwrap())
    });
    let (report, server) = report;
    let report = report
        .unwrap_or_else(|error| panic!("{serve:?} {queues} queues, packed {packed:?}: {error}"));
    assert!(report.is_clean() && !report.backend_gone, "{serve:?}: {report:?}");
    assert_eq!(report.unflushed_lost, 0, "acknowledged and not there: {report:?}");
    // A server that was killed before it was noticed is not counted.
    assert!(report.reconnects > times / 2, "{report:?}");
    let front_end = place.connect(&SessionOptions { queues, ..SessionOptions::default() });
    let checked = verify_check(front_end, &mut state, going_on()).unwrap();
    assert!(checked.is_clean() && checked.unflushed_lost == 0, "{checked:?}");
    stop(server);
    report
}

#[test]
fn kills_neither_lose_nor_repeat_answers() {
    let kills = std::env::var("VLANE_SURVIVE_KILLS").map_or(KILLS, |given| given.parse().unwrap());
    let mut chance = seed();
    let cases = cases();
    if cases.len() < 4 {
        skip("images in memory: there is no /dev/shm");
    }
    let shapes = [(1, Want::No), (2, Want::Must), (2, Want::No), (1, Want::Must)];
    // Each ring on each kind of storage, or as many as there are kills for.
    let turns: Vec<_> = (0..shapes.len() * cases.len())
        .map(|turn| {
            (&cases[(turn + turn / cases.len()) % cases.len()], shapes[turn % shapes.len()])
        })
        .collect();
    let each = kills.div_ceil(turns.len() as u64).max(5);
    let (mut left, begin) = (kills, Instant::now());
    let (mut reads, mut writes, mut reconnects) = (0, 0, 0);
    for (case, (queues, packed)) in turns {
        let times = each.min(left);
        if times == 0 {
            break;
        }
        left -= times;
        let report = survives(case, queues, packed, times, &mut chance);
        (reads, writes) = (reads + report.reads, writes + report.writes);
        reconnects += report.reconnects;
    }
    println!(
        "{kills} kills, {reconnects} reconnections, {reads} reads and {writes} writes in {:?}",
        begin.elapsed()
    );
    assert!(writes > 50 * kills, "hardly any load: {writes} writes");
}
