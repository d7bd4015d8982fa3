//! A session moves from one process to the next, when the storage or the guest's memory has
//! changed. It continues there, or it stays where it is. The volume is served in any case.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use common::*;
use vlane_engine::null::NullEngine;
use vlane_engine::{Channel, Engine, EngineError, Geometry};
use vlane_server::Control;

const READ_ONLY: u64 = 1 << 5;
const DISCARD: u64 = 1 << 13;
const WRITE_ZEROES: u64 = 1 << 14;
const WRITE_ZEROES_REQUEST: u32 = 13;

/// A null device that tells another geometry.
#[derive(Debug)]
struct Changed(Arc<NullEngine>, fn(&mut Geometry));

impl Engine for Changed {
    fn geometry(&self) -> Geometry {
        let mut geometry = self.0.geometry();
        (self.1)(&mut geometry);
        geometry
    }

    fn sync(&self) -> std::io::Result<()> {
        self.0.sync()
    }

    fn channel(&self, slots: u16) -> Result<Box<dyn Channel>, EngineError> {
        self.0.channel(slots)
    }
}

fn changed(change: fn(&mut Geometry)) -> Arc<dyn Engine> {
    Arc::new(Changed(null(None), change))
}

fn takes_nothing_away(geometry: &mut Geometry) {
    (geometry.discard, geometry.write_zeroes) = (false, false);
}

fn becomes_read_only(geometry: &mut Geometry) {
    takes_nothing_away(geometry);
    geometry.read_only = true;
}

#[test]
fn guest_keeps_features_that_storage_lost() {
    let all = USUAL | DISCARD | WRITE_ZEROES;
    let (server, relief) = Server::relievable(null(None));
    let (wire, memory) = server.guest(all);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    ring.submit(0, IN, 0, 512);
    ring.wait(1);
    let next = server.hand_over(&relief, changed(takes_nothing_away));
    for (slot, kind) in [(1, IN), (2, OUT), (3, FLUSH_REQUEST)] {
        ring.submit(slot, kind, 0, if kind == FLUSH_REQUEST { 0 } else { 512 });
        ring.wait(1);
        assert_eq!(ring.status(slot), 0);
    }
    // The upgrade's messages repeat what was negotiated; a restart has the front end repeat it.
    assert!(wire.is_alive());
    drop(wire);
    let wire = next.connect();
    wire.negotiate(USUAL);
    assert_eq!(wire.ask_word(code::GET_FEATURES) & (DISCARD | WRITE_ZEROES), 0);
    assert!(wire.set_features(all));
    drop(wire);
    next.serves_the_next();
}

#[test]
fn read_only_guest_survives_writable_disk() {
    let server = Server::new(null(None), 1, 1);
    let (wire, _memory) = server.guest(USUAL);
    assert!(wire.set_features(USUAL & !CONFIG_WCE | READ_ONLY));
}

#[test]
fn read_only_disk_refuses_writing_guest() {
    for feature in [CONFIG_WCE, DISCARD, WRITE_ZEROES] {
        let server = Server::new(changed(becomes_read_only), 1, 1);
        let (wire, _memory) = server.guest(USUAL & !CONFIG_WCE | READ_ONLY);
        assert!(!wire.set_features(USUAL & !CONFIG_WCE | feature), "{feature:#x}");
    }
}

/// The guest never looks at what was cut off. The next process would have to map it.
#[test]
fn shortened_memory_prevents_handover() {
    let (server, relief) = Server::relievable(null(None));
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    let mut works = |slot| {
        ring.submit(slot, IN, 0, 512);
        ring.wait(1);
        assert_eq!(ring.status(slot), 0);
    };
    works(0);
    memory.file.set_len(memory.size - 0x1000).unwrap();
    for slot in 1..3 {
        let why = relief.refused();
        assert!(why.contains("memory region") && why.contains("could not continue"), "{why}");
        works(slot);
    }
    memory.file.set_len(memory.size).unwrap();
    let next = server.hand_over(&relief, null(None));
    works(3);
    drop(wire);
    next.serves_the_next();
}

/// A fault that could not be foreseen costs the session, and not the volume.
#[test]
fn failed_takeover_ends_session_next_is_served() {
    let (server, relief) = Server::relievable(null(None));
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    ring.submit(0, IN, 0, 512);
    ring.wait(1);
    let shorten = || memory.file.set_len(0x1000).unwrap();
    let next = server.hand_over_after(&relief, null(None), shorten);
    assert!(wire.is_hung_up(LIMIT));
    let path = next.path().with_file_name("control");
    let control = Control::start(&path, Arc::clone(&next.volume)).unwrap();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"GET /v1/volume HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.contains("200 OK") && !answer.contains("\"pid\""),
        "nobody is connected: {answer}"
    );
    drop(control);
    next.serves_the_next();
}

#[test]
fn known_write_zeroes_still_writes_zeroes() {
    let server = Server::new(changed(takes_nothing_away), 1, 1);
    let (wire, memory) = server.guest(USUAL | WRITE_ZEROES);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    // A range: 8 sectors from the first one on.
    ring.set_data(0, &[0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    ring.submit(0, WRITE_ZEROES_REQUEST, 0, 16);
    ring.wait(1);
    assert_eq!(ring.status(0), 0);
}
