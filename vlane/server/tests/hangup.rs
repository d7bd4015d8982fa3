//! A front end goes away in the middle of its load. The requests in flight end before the session
//! does, and only then is the next front end served.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use vlane_engine::file::{Cache, FileEngine, FileOptions};

const LATENCY: Duration = Duration::from_millis(250);

#[test]
fn hang_up_waits_for_requests_in_flight() {
    let server = Server::new(null(Some(LATENCY)), 2, 2);
    let (wire, memory) = server.guest(USUAL);
    let mut rings = [Ring::new(&memory, 0), Ring::new(&memory, 0x2_0000)];
    assert!(wire.start(0, &rings[0]) && wire.start(1, &rings[1]));
    // From the submission, not from the hang-up: on a busy machine that may come as late as the
    // answers.
    let begin = Instant::now();
    rings.iter_mut().for_each(|ring| (0..8).for_each(|slot| ring.submit(slot, IN, 0, 512)));
    server.begins_reads(16);
    drop(wire);
    // The next one is taken up only when the last request is answered.
    let next = server.connect();
    assert!(next.is_alive());
    assert!(begin.elapsed() >= LATENCY, "the session ended after {:?}", begin.elapsed());
    for ring in &mut rings {
        assert_eq!(ring.used().len(), 8);
        assert!((0..8).all(|slot| ring.status(slot) == 0));
    }
}

#[test]
fn stop_waits_for_requests_in_flight() {
    let server = Server::new(null(Some(LATENCY)), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    let begin = Instant::now();
    (0..8).for_each(|slot| ring.submit(slot, IN, 0, 512));
    server.begins_reads(8);
    server.stop();
    assert!(begin.elapsed() >= LATENCY);
    assert_eq!(ring.used().len(), 8);
}

/// A front end that sees a hang-up does not ask for its rings' positions any more: QEMU reads the
/// used index, once, when it sees the hang-up, and lets the next back end begin there. Answers
/// after that moment are given twice.
#[test]
fn stop_hangs_up_after_last_answer() {
    for in_a_message in [false, true] {
        let server = Server::new(null(Some(LATENCY)), 2, 2);
        let (wire, memory) = server.guest(USUAL);
        let mut rings = [Ring::new(&memory, 0), Ring::new(&memory, 0x2_0000)];
        assert!(wire.start(0, &rings[0]) && wire.start(1, &rings[1]));
        rings.iter_mut().for_each(|ring| (0..8).for_each(|slot| ring.submit(slot, IN, 0, 512)));
        if in_a_message {
            // The session waits for the rest, and reads no other message.
            wire.raw(&[1, 0, 0], &[]).unwrap();
        }
        server.begins_reads(16);
        let stopper = server.listener.stopper();
        let stopping = std::thread::spawn(move || stopper.stop());
        assert!(wire.is_hung_up(LIMIT));
        let used = rings.each_mut().map(|ring| ring.used().len());
        assert_eq!(used, [8, 8], "answered when the front end saw the hang-up");
        stopping.join().unwrap();
        server.stop();
        assert!(rings.iter_mut().all(Ring::is_quiet), "answered after the hang-up");
    }
}

/// Between the last session and the process's end lies a flush, which may take long.
#[test]
fn stopped_server_delays_no_front_end() {
    let server = Server::new(null(None), 1, 1);
    let (_wire, _memory) = server.guest(USUAL);
    let waiting = server.connect();
    server.stop();
    assert!(waiting.is_hung_up(LIMIT));
    let refused = std::os::unix::net::UnixStream::connect(server.path()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// The load runs over files.
#[test]
fn hang_up_keeps_every_answered_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = image(directory.path(), 1 << 20);
    for cache in [Cache::Writeback, Cache::None] {
        let Ok(engine) = FileEngine::open(&path, FileOptions { cache, ..FileOptions::default() })
        else {
            continue;
        };
        let server = Server::new(Arc::new(engine), 1, 1);
        for round in 0..20u8 {
            let (wire, memory) = server.guest(USUAL);
            let mut ring = Ring::new(&memory, 0);
            assert!(wire.start(0, &ring));
            for slot in 0..SLOTS {
                ring.set_data(slot, &[round.wrapping_mul(13) ^ slot as u8; 4096]);
                ring.submit(slot, OUT, u64::from(slot) * 8, 4096);
            }
            std::thread::sleep(Duration::from_micros(u64::from(round) * 20));
            drop(wire);
            assert!(server.connect().is_alive());
            let file = std::fs::File::open(&path).unwrap();
            for slot in ring.used() {
                assert_eq!(ring.status(slot), 0);
                let mut bytes = [0; 4096];
                file.read_exact_at(&mut bytes, u64::from(slot) * 4096).unwrap();
                assert_eq!(
                    bytes,
                    [round.wrapping_mul(13) ^ slot as u8; 4096],
                    "round {round}, slot {slot}"
                );
            }
        }
    }
}

/// The driver hangs up with its queues full, again and again; every next session works.
#[test]
fn repeated_hang_ups_under_load_are_survived() {
    use vlane_driver::{Session, SessionOptions, Want};
    let server =
        Server::polling(null(Some(Duration::from_millis(1))), 2, 1, Duration::from_micros(50));
    for round in 0..30 {
        let packed = if round % 2 == 0 { Want::No } else { Want::Must };
        let options = SessionOptions { queues: 2, depth: 32, packed, ..SessionOptions::default() };
        let mut session = Session::connect(&server.path(), &options).unwrap();
        let (mut queues, _waker) = session.start().unwrap();
        for queue in &mut queues {
            for slot in 0..32 {
                let kind = vlane_driver::ring::RequestKind::Read;
                let request = vlane_driver::ring::Request { kind, sector: 0, len: 4096, ioprio: 0 };
                queue.blk.submit(slot, request).unwrap();
            }
            queue.blk.publish();
            queue.kick().unwrap();
        }
        std::thread::sleep(Duration::from_micros(round * 100));
        drop(session);
    }
    server.serves_the_next();
}
