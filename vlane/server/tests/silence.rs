//! A front end that connects and sends no message keeps the VM's own from its disk for a bounded
//! time only. A front end that has sent a message is never put out. A VM in its firmware is silent,
//! too, and so is an idle one.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod common;

use std::io::Read;
use std::time::{Duration, Instant};

use common::*;

/// The patience with a silent one.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longer than that.
const LONG: Duration = Duration::from_secs(7);

/// Returns true if an answer comes within that time.
fn is_answered(wire: &Wire, within: Duration) -> bool {
    wire.raw(&Wire::message(code::GET_FEATURES, 0, &[]), &[]).unwrap();
    wire.stream.set_read_timeout(Some(within)).unwrap();
    let mut answer = [0; 20];
    let read = (&wire.stream).read_exact(&mut answer).is_ok();
    wire.stream.set_read_timeout(Some(LIMIT)).unwrap();
    read
}

#[test]
fn silent_front_end_gives_way() {
    let server = Server::new(null(None), 1, 1);
    let silent = server.connect();
    let waiting = server.connect();
    assert!(is_answered(&waiting, LIMIT), "kept out by one that says nothing");
    assert!(silent.is_hung_up(LIMIT));
    drop(waiting);
    server.serves_the_next();
}

#[test]
fn unfinished_first_message_gives_way() {
    let gives_way = |len: usize| {
        let server = Server::new(null(None), 1, 1);
        let silent = server.connect();
        silent.raw(&Wire::message(code::SET_FEATURES, 0, &[0; 8])[..len], &[]).unwrap();
        let waiting = server.connect();
        assert!(is_answered(&waiting, LIMIT), "kept out by {len} bytes");
        assert!(silent.is_hung_up(LIMIT));
    };
    // All at once: each waits for seconds.
    std::thread::scope(|scope| {
        for len in [1, 11, 12, 15] {
            scope.spawn(move || gives_way(len));
        }
    });
}

#[test]
fn front_end_that_spoke_stays() {
    let server = Server::new(null(None), 1, 1);
    let first = server.connect();
    assert!(first.is_alive());
    let waiting = server.connect();
    assert!(!is_answered(&waiting, LONG));
    assert!(first.is_alive(), "put out");
    drop(first);
    // Its question waits in its connection.
    assert!(waiting.reply(code::GET_FEATURES).is_some());
}

#[test]
fn idle_started_queue_stays() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    let waiting = server.connect();
    assert!(!is_answered(&waiting, LONG));
    ring.submit(0, IN, 0, 512);
    ring.wait(1);
    assert!(wire.is_alive());
}

#[test]
fn silence_does_not_count_without_waiter() {
    let server = Server::new(null(None), 1, 1);
    let silent = server.connect();
    std::thread::sleep(LONG);
    assert!(silent.is_alive(), "put out for nobody");
}

#[test]
fn silence_does_not_count_after_waiter_left() {
    let server = Server::new(null(None), 1, 1);
    let silent = loop {
        let silent = server.connect();
        let begin = Instant::now();
        let looked_in = server.connect();
        std::thread::sleep(Duration::from_millis(500));
        drop(looked_in);
        // On a busy machine it may have waited longer than the patience is: then again.
        if begin.elapsed() < PATIENCE {
            break silent;
        }
    };
    std::thread::sleep(LONG);
    assert!(silent.is_alive(), "put out for one that is gone");
}

#[test]
fn stopping_server_hangs_up_on_both() {
    let takes = || {
        let server = Server::new(null(None), 1, 1);
        let (silent, waiting) = (server.connect(), server.connect());
        std::thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        server.stop();
        assert!(silent.is_hung_up(LIMIT) && waiting.is_hung_up(LIMIT));
        begin.elapsed()
    };
    // A stop that waits for the end of the patience does so each time, a busy machine does not.
    let mut times: Vec<Duration> = Vec::new();
    while times.last().is_none_or(|time| *time >= PATIENCE - Duration::from_secs(1)) {
        assert!(times.len() < 5, "{times:?}");
        times.push(takes());
    }
}
