//! Tests of requests in flight, in memory that the front end keeps. The front end asks for it and
//! gives it back, and queues stop with requests in flight.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::num::NonZeroU64;
use std::time::Duration;

use common::inflight::*;
use common::*;
use vlane_policy::throttle::Limits;

const GET_VRING_BASE_SKIP_DRAIN: u32 = 45;

/// Protocol features.
const GET_VRING_BASE_INFLIGHT: u64 = 1 << 20;
const SKIP_DRAIN: u64 = 1 << 23;

const REQUESTS: u16 = 8;

/// As good as none: the first request passes, and the others half a minute after each other.
fn hardly_any() -> Limits {
    let bandwidth = NonZeroU64::new(512);
    Limits { bandwidth, burst: Duration::from_millis(1), ..Limits::default() }
}

/// A read's bytes.
const LONG: u32 = 32 * 512;

fn memory() -> Memory {
    Memory::new(0x10_0000, 0x20_0000)
}

/// Makes all requests available at once: a lane that answers the first has seen the others.
fn submit_all(ring: &mut Ring<'_>) {
    for slot in 0..REQUESTS {
        ring.build(slot, IN, u64::from(slot) * 8, LONG);
        ring.offer(slot * 3);
    }
    ring.publish();
    ring.kick();
}

/// Requests in flight when `stop` has stopped the queue are answered by the next back end, once.
fn stays_in_flight(protocol: u64, stop: fn(&Wire) -> Option<u32>) {
    let server = Server::new(null(None), 2, 1);
    let memory = memory();
    let mut ring = Ring::new(&memory, 0);
    let wire = connect(&server, &memory, protocol);
    let (shape, file) = get_inflight(&wire, 2, SIZE).unwrap();
    server.volume.set_limits(hardly_any()).unwrap();
    assert!(set_inflight(&wire, &shape, &file) && wire.start(1, &ring));
    submit_all(&mut ring);
    // The first has its answer: the lane has seen them.
    let mut done = ring.wait(1);
    assert!(ring.is_quiet());
    let base = stop(&wire).unwrap() as usize;
    done.extend(ring.used());
    assert!(base > done.len(), "nothing was in flight: {base} taken, {done:?} answered");
    drop(wire);

    let wire = connect(&server, &memory, USUAL_PROTOCOL);
    server.volume.set_limits(Limits::default()).unwrap();
    // The used index, as QEMU would say; the marks know better.
    assert!(set_inflight(&wire, &shape, &file) && wire.start_at(1, &ring, done.len() as u32));
    done.extend(ring.wait(usize::from(REQUESTS) - done.len()));
    done.sort_unstable();
    assert_eq!(done, (0..REQUESTS).collect::<Vec<_>>(), "each is answered once");
    ring.submit(3, GET_ID, 0, 20);
    assert_eq!(ring.wait(1), [3]);
    assert_eq!(wire.get_base(1), Some(u32::from(REQUESTS) + 1));
}

/// The front end finds them in its in-flight memory.
#[test]
fn skipped_drain_leaves_waiting_requests_in_flight() {
    let protocol = USUAL_PROTOCOL | GET_VRING_BASE_INFLIGHT | SKIP_DRAIN;
    stays_in_flight(protocol, |wire| {
        wire.ask(GET_VRING_BASE_SKIP_DRAIN, &halves(&[1, 0])).map(|body| half(&body, 4))
    });
}

/// Before there was a message for it, the feature alone said so.
#[test]
fn suspending_base_leaves_requests_in_flight() {
    stays_in_flight(USUAL_PROTOCOL | GET_VRING_BASE_INFLIGHT, |wire| wire.get_base(1));
}

/// With both features, and without any, GET_VRING_BASE leaves no request in flight.
#[test]
fn other_base_leaves_no_request_in_flight() {
    for protocol in [USUAL_PROTOCOL, USUAL_PROTOCOL | GET_VRING_BASE_INFLIGHT | SKIP_DRAIN] {
        let server = Server::new(null(None), 1, 1);
        let memory = memory();
        let mut ring = Ring::new(&memory, 0);
        let wire = connect(&server, &memory, protocol);
        let (shape, file) = get_inflight(&wire, 1, SIZE).unwrap();
        server.volume.set_limits(hardly_any()).unwrap();
        assert!(set_inflight(&wire, &shape, &file) && wire.start(0, &ring));
        submit_all(&mut ring);
        let done = ring.wait(1).len() + ring.used().len();
        let base = wire.get_base(0).unwrap() as usize;
        // Unanswered requests are in the ring.
        assert_eq!(base, done + ring.used().len());
    }
}

/// A queue that is stopped before it has come to what the back end before it left does that first:
/// no base tells of it.
#[test]
fn left_requests_are_done_before_base() {
    let server = Server::new(null(None), 1, 1);
    let memory = memory();
    let mut ring = Ring::new(&memory, 0);
    let protocol = USUAL_PROTOCOL | GET_VRING_BASE_INFLIGHT | SKIP_DRAIN;
    let wire = connect(&server, &memory, protocol);
    let (shape, file) = get_inflight(&wire, 1, SIZE).unwrap();
    server.volume.set_limits(hardly_any()).unwrap();
    assert!(set_inflight(&wire, &shape, &file) && wire.start(0, &ring));
    submit_all(&mut ring);
    let first = ring.wait(1).len();
    assert!(ring.is_quiet());
    let base =
        wire.ask(GET_VRING_BASE_SKIP_DRAIN, &halves(&[0, 0])).map(|body| half(&body, 4)).unwrap();
    assert!(base as usize > first, "nothing was in flight");
    // The limits still hold, and no request is taken out of the ring.
    assert!(wire.start_at(0, &ring, 0));
    assert_eq!(wire.get_base(0), Some(base));
    assert_eq!(first + ring.used().len(), base as usize);
}

/// The firmware's driver, and then the system's, which wants a smaller queue, with the same memory.
#[test]
fn stopped_queue_may_change_size() {
    let server = Server::new(null(None), 1, 1);
    let memory = memory();
    let mut ring = Ring::new(&memory, 0);
    let wire = connect(&server, &memory, USUAL_PROTOCOL);
    let (shape, file) = get_inflight(&wire, 1, SIZE).unwrap();
    assert!(set_inflight(&wire, &shape, &file) && wire.start(0, &ring));
    ring.submit(0, IN, 0, 4096);
    ring.wait(1);
    assert_eq!(wire.get_base(0), Some(1));
    let again = Memory::new(0x10_0000, 0x20_0000);
    assert!(wire.set_memory(&[&again]) && set_inflight(&wire, &shape, &file));
    let mut ring = Ring::new(&again, 0);
    assert!(wire.vring(code::SET_VRING_NUM, 0, u32::from(SIZE) / 2));
    assert!(wire.vring(code::SET_VRING_BASE, 0, 0) && wire.addresses(0, &ring, None));
    assert!(
        wire.fd(code::SET_VRING_CALL, 0, &ring.call)
            && wire.fd(code::SET_VRING_KICK, 0, &ring.kick)
    );
    ring.submit(1, IN, 0, 4096);
    assert_eq!(ring.wait(1), [1]);
}

#[test]
fn features_need_the_ones_they_require() {
    let server = Server::new(null(None), 1, 1);
    for protocol in [
        GET_VRING_BASE_INFLIGHT,
        SKIP_DRAIN,
        SKIP_DRAIN | INFLIGHT_SHMFD,
        SKIP_DRAIN | GET_VRING_BASE_INFLIGHT,
    ] {
        let wire = server.connect();
        wire.negotiate(USUAL);
        assert!(!wire.set(code::SET_PROTOCOL_FEATURES, &(REPLY_ACK | protocol).to_le_bytes(), &[]));
    }
}

/// It does not change under a running queue.
#[test]
fn inflight_memory_is_checked_and_fixed() {
    let server = Server::new(null(None), 2, 1);
    let memory = memory();
    let ring = Ring::new(&memory, 0);
    let wire = connect(&server, &memory, USUAL_PROTOCOL);
    let (whole, file) = get_inflight(&wire, 2, SIZE).unwrap();
    let bytes = word(&whole, 0);
    assert_eq!(file.metadata().unwrap().len(), bytes);
    for wrong in [
        shape(bytes + 1, 2, SIZE),
        shape(bytes, 2, 32768),
        shape(64, 2, SIZE),
        shape(bytes, 200, SIZE),
    ] {
        assert!(!set_inflight(&wire, &wrong, &file), "{wrong:?}");
    }
    assert!(set_inflight(&wire, &whole, &file) && wire.start(0, &ring));
    assert!(!set_inflight(&wire, &whole, &file), "while a queue runs");
    assert!(wire.is_alive());
    // There is no answer that says no: the session ends.
    assert!(get_inflight(&wire, 3, SIZE).is_none());
    assert!(wire.is_hung_up(LIMIT));
}

/// A front end that shrinks the file harms itself only.
#[test]
fn truncated_inflight_file_ends_only_its_session() {
    let server = Server::new(null(None), 1, 1);
    let memory = memory();
    let mut ring = Ring::new(&memory, 0);
    let wire = connect(&server, &memory, USUAL_PROTOCOL);
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 16).unwrap();
    assert!(set_inflight(&wire, &shape(1 << 16, 1, SIZE), &file) && wire.start(0, &ring));
    ring.submit(0, IN, 0, 4096);
    ring.wait(1);
    file.set_len(0).unwrap();
    ring.submit(1, IN, 0, 4096);
    ring.wait(1);
    drop(wire);
    server.serves_the_next();
}
