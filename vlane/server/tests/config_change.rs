//! A volume changes its size while it is served: the front end is informed, and running lanes use
//! the new size.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};

use common::*;
use vhost::vhost_user::{FrontendReqHandler, HandlerResult, VhostUserFrontendReqHandlerMut};
use vlane_engine::file::{Cache, FileEngine, FileOptions};

/// Counts what the back end tells.
#[derive(Default)]
struct Told(u64);

impl VhostUserFrontendReqHandlerMut for Told {
    fn handle_config_change(&mut self) -> HandlerResult<u64> {
        self.0 += 1;
        Ok(0)
    }
}

const MIB: u64 = 1 << 20;

fn resize(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn sectors(wire: &Wire) -> u64 {
    word(&wire.config(0, 8), 0)
}

/// The status of a write of 4 KiB at an offset, by a lane that runs.
fn write(ring: &mut Ring<'_>, offset: u64) -> u8 {
    ring.submit(0, OUT, offset / 512, 4096);
    ring.wait(1);
    ring.status(0)
}

fn grows_and_shrinks(directory: &Path, cache: Cache) {
    let path = image(directory, 4 * MIB);
    let engine = match FileEngine::open(&path, FileOptions { cache, ..FileOptions::default() }) {
        Ok(engine) => Arc::new(engine),
        Err(error) => return vlane_testing::skip(error),
    };
    let server = Server::new(Arc::clone(&engine) as _, 2, 1);
    let (wire, memory) = server.guest(USUAL);
    let told = Arc::new(Mutex::new(Told::default()));
    let mut handler = FrontendReqHandler::new(Arc::clone(&told)).unwrap();
    // SAFETY: the handler owns the descriptor, and lives to the end of the test.
    let channel = unsafe { BorrowedFd::borrow_raw(handler.get_tx_raw_fd()) };
    assert!(wire.set(code::SET_BACKEND_REQ_FD, &[], &[channel]));
    let mut ring = Ring::new(&memory, 0);
    assert_eq!(sectors(&wire), 4 * MIB / 512);
    assert!(wire.start(0, &ring));

    assert_eq!((write(&mut ring, 4 * MIB - 4096), write(&mut ring, 4 * MIB)), (0, 1));
    assert!(!engine.refresh().unwrap(), "nothing changed");

    resize(&path, 8 * MIB);
    assert_eq!(write(&mut ring, 4 * MIB), 1, "a guest that was told nothing keeps to the old size");
    assert!(engine.refresh().unwrap());
    server.listener.size_changed();
    assert_eq!(handler.handle_request().unwrap(), 0);
    assert_eq!(told.lock().unwrap().0, 1);
    assert_eq!(sectors(&wire), 8 * MIB / 512);
    ring.set_data(0, &[9; 4096]);
    assert_eq!((write(&mut ring, 8 * MIB - 4096), write(&mut ring, 8 * MIB)), (0, 1));
    assert_eq!(std::fs::read(&path).unwrap()[8 * MIB as usize - 4096..], [9; 4096]);

    resize(&path, 2 * MIB);
    assert_eq!(write(&mut ring, 0), 0, "what is left can be written");
    // It is gone, whether the lane knows yet or not: an error, or a file that is longer again.
    ring.submit(1, IN, 7 * MIB / 512, 4096);
    ring.wait(1);
    assert!(engine.refresh().unwrap());
    server.listener.size_changed();
    handler.handle_request().unwrap();
    assert_eq!(sectors(&wire), 2 * MIB / 512);
    assert_eq!((write(&mut ring, 2 * MIB - 4096), write(&mut ring, 2 * MIB)), (0, 1));

    // A lane that starts later goes by the present size, too.
    let mut second = Ring::new(&memory, 0x2_0000);
    assert!(wire.start(1, &second));
    assert_eq!((write(&mut second, 2 * MIB - 4096), write(&mut second, 2 * MIB)), (0, 1));

    // To zero: refused, and the size stays.
    resize(&path, 0);
    assert!(engine.refresh().is_err());
    assert_eq!(sectors(&wire), 2 * MIB / 512);
}

/// A front end, and the messages to it.
struct Listening {
    wire: Wire,
    channel: UnixStream,
}

impl Listening {
    fn new(wire: Wire) -> Listening {
        let (channel, theirs) = UnixStream::pair().unwrap();
        channel.set_nonblocking(true).unwrap();
        assert!(wire.set(code::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]));
        Listening { wire, channel }
    }

    /// The number of configuration messages since the last look.
    fn told(&mut self) -> usize {
        // Messages from before this answer are there.
        assert!(self.wire.is_alive());
        let mut told = Vec::new();
        let end = self.channel.read_to_end(&mut told);
        assert!(end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
        // CONFIG_CHANGE_MSG, version 1, without a body.
        told.chunks(12).for_each(|message| assert_eq!(message, halves(&[2, 1, 0])));
        told.len() / 12
    }
}

/// A front end asks for the size once, and heeds no message while its machine is stopped, or before
/// it is connected.
#[test]
fn size_is_sent_when_first_ring_starts() {
    let directory = tempfile::tempdir().unwrap();
    let path = image(directory.path(), MIB);
    let options = FileOptions { cache: Cache::Writeback, ..FileOptions::default() };
    let engine = Arc::new(FileEngine::open(&path, options).unwrap());
    let server = Server::new(Arc::clone(&engine) as _, 2, 1);
    let (wire, memory) = server.guest(USUAL);
    let rings = [Ring::new(&memory, 0), Ring::new(&memory, 0x2_0000)];
    let mut front_end = Listening::new(wire);
    let start = |front_end: &Listening| {
        assert!((0..2).all(|index| front_end.wire.start(u32::from(index == 1), &rings[index])));
    };
    assert_eq!(sectors(&front_end.wire), MIB / 512);
    start(&front_end);
    assert_eq!(front_end.told(), 0, "it has asked");

    let stop = |front_end: &Listening| {
        assert!((0..2).all(|index| front_end.wire.get_base(index).is_some()))
    };
    stop(&front_end);
    resize(&path, 2 * MIB);
    assert!(engine.refresh().unwrap());
    server.listener.size_changed();
    front_end.told();
    start(&front_end);
    assert_eq!(front_end.told(), 1, "it has not asked since");
    assert_eq!(sectors(&front_end.wire), 2 * MIB / 512);
    stop(&front_end);
    start(&front_end);
    assert_eq!(front_end.told(), 0, "it knows");
    // The look at the same size, which a user asks for again.
    server.listener.size_changed();
    assert_eq!(front_end.told(), 1);

    // The next session is one of a front end that has asked another server, at another time.
    drop((front_end, memory));
    let (wire, memory) = server.guest(USUAL);
    let ring = Ring::new(&memory, 0);
    let mut front_end = Listening::new(wire);
    assert!(front_end.wire.start(0, &ring));
    assert_eq!(front_end.told(), 1);
}

#[test]
fn direct_volume_grows_and_shrinks() {
    grows_and_shrinks(tempfile::tempdir().unwrap().path(), Cache::None);
}

#[test]
fn buffered_volume_grows_and_shrinks() {
    grows_and_shrinks(tempfile::tempdir().unwrap().path(), Cache::Writeback);
}

#[test]
fn memory_volume_grows_and_shrinks() {
    if Path::new("/dev/shm").is_dir() {
        grows_and_shrinks(tempfile::tempdir_in("/dev/shm").unwrap().path(), Cache::Auto);
    }
}

#[test]
fn new_size_is_found_without_channel() {
    let directory = tempfile::tempdir().unwrap();
    let path = image(directory.path(), MIB);
    let options = FileOptions { cache: Cache::Writeback, ..FileOptions::default() };
    let engine = Arc::new(FileEngine::open(&path, options).unwrap());
    let server = Server::new(Arc::clone(&engine) as _, 1, 1);
    let change = |bytes| {
        resize(&path, bytes);
        assert!(engine.refresh().unwrap());
        server.listener.size_changed();
    };
    change(2 * MIB);
    let wire = server.connect();
    wire.negotiate(USUAL);
    assert_eq!(sectors(&wire), 2 * MIB / 512);
    change(3 * MIB);
    assert_eq!(sectors(&wire), 3 * MIB / 512);
    drop(wire);
    change(4 * MIB);
    let wire = server.connect();
    wire.negotiate(USUAL);
    assert_eq!(sectors(&wire), 4 * MIB / 512);
}
