//! Features of a volume, and the front end's choice among them.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use vhost::VhostBackend;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vlane_engine::file::{Cache, FileEngine, FileOptions};

/// SIZE_MAX, SEG_MAX, BLK_SIZE, FLUSH, TOPOLOGY, MQ.
const BLOCK: u64 = 1 << 1 | 1 << 2 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 12;
/// LOG_ALL, INDIRECT_DESC, EVENT_IDX, PROTOCOL_FEATURES, VERSION_1, RING_PACKED.
const TRANSPORT: u64 = 1 << 26 | 1 << 28 | 1 << 29 | 1 << 30 | 1 << 32 | 1 << 34;
/// DISCARD, WRITE_ZEROES.
const ZEROING: u64 = 1 << 13 | 1 << 14;
const READ_ONLY: u64 = 1 << 5;

fn file_server(read_only: bool, directory: &tempfile::TempDir) -> Server {
    let path = image(directory.path(), 1 << 20);
    let options = FileOptions { cache: Cache::Writeback, read_only, ..FileOptions::default() };
    Server::new(Arc::new(FileEngine::open(&path, options).unwrap()), 2, 1)
}

#[test]
//= virtio 5.2.5.2, test
//# Devices SHOULD always offer VIRTIO_BLK_F_FLUSH, and MUST offer it if they offer
//# VIRTIO_BLK_F_CONFIG_WCE.
//= virtio 5.2.6.2, test
//# The flag MUST NOT be offered if the device is backed by storage for which the lifetime metrics
//# described in this document cannot be obtained or for which such metrics have no useful meaning.
//= vhost-user Front-end message types, test
//# Back-ends that report VHOST_USER_F_PROTOCOL_FEATURES must support this message even before
//# VHOST_USER_SET_FEATURES was called.
fn a_writable_volume_offers_exactly_what_it_can_do() {
    let server = Server::new(null(None), 3, 1);
    let wire = server.connect();
    assert_eq!(wire.ask_word(code::GET_FEATURES), BLOCK | TRANSPORT | ZEROING | CONFIG_WCE);
    // MQ, LOG_SHMFD, REPLY_ACK, BACKEND_REQ, CONFIG, INFLIGHT_SHMFD, RESET_DEVICE,
    // CONFIGURE_MEM_SLOTS; GET_VRING_BASE_INFLIGHT and GET_VRING_BASE_SKIP_DRAIN.
    let usual = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 15;
    let protocol = usual | 1 << 20 | 1 << 23;
    assert_eq!(wire.ask_word(code::GET_PROTOCOL_FEATURES), protocol);
}

#[test]
//= virtio 5.2.6.2, test
//# A device MUST set the status byte to VIRTIO_BLK_S_IOERR for a write request if the
//# VIRTIO_BLK_F_RO feature if offered, and MUST NOT write any data.
fn read_only_volume_refuses_writes() {
    let directory = tempfile::tempdir().unwrap();
    let server = file_server(true, &directory);
    let (wire, memory) = server.guest(USUAL & !CONFIG_WCE | READ_ONLY);
    assert_eq!(wire.ask_word(code::GET_FEATURES), BLOCK | TRANSPORT | READ_ONLY);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    for (slot, kind, len) in
        [(0, IN, 4096), (1, OUT, 4096), (2, FLUSH_REQUEST, 0), (3, 11, 16), (4, 13, 16)]
    {
        ring.submit(slot, kind, 0, len);
        ring.wait(1);
    }
    let answers: Vec<u8> = (0..5).map(|slot| ring.status(slot)).collect();
    assert_eq!(answers, [0, 1, 0, 1, 1], "reads and flushes go, the rest is refused");
}

#[test]
fn vhost_crate_front_end_is_served() {
    let server = Server::new(null(None), 3, 2);
    let mut frontend = Frontend::from_stream(UnixStream::connect(server.path()).unwrap(), 8);
    frontend.set_owner().unwrap();
    assert_ne!(frontend.get_features().unwrap() & VERSION_1, 0);
    let protocol = frontend.get_protocol_features().unwrap();
    assert!(protocol.contains(
        VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    ));
    frontend.set_protocol_features(protocol).unwrap();
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    frontend.set_features(USUAL).unwrap();
    assert_eq!(frontend.get_queue_num().unwrap(), 3);
    assert_eq!(frontend.get_max_mem_slots().unwrap(), 509);
    let (_, config) = frontend.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]).unwrap();
    assert_eq!(word(&config, 0), (1 << 30) / 512);
    frontend.set_config(32, VhostUserConfigFlags::WRITABLE, &[0]).unwrap();
    let (_, config) = frontend.get_config(32, 1, VhostUserConfigFlags::empty(), &[0]).unwrap();
    assert_eq!(config, [0]);
    frontend.reset_device().unwrap();
}

#[test]
//= virtio 5.2.5.2, test
//# The device MUST initialize padding bytes unused0 and unused1 to 0.
//= vhost-user Front-end message types, test
//# vhost-user back-end's payload size MUST match the front-end's request
fn configuration_space_describes_the_volume() {
    let directory = tempfile::tempdir().unwrap();
    let server = file_server(false, &directory);
    let wire = server.connect();
    wire.negotiate(USUAL);
    let config = wire.config(0, 60);
    assert_eq!(word(&config, 0), (1 << 20) / 512, "sectors");
    assert_eq!(
        (half(&config, 8), half(&config, 12)),
        (4 << 20, 126),
        "largest buffer, most buffers"
    );
    assert_eq!(half(&config, 20), 512, "block");
    assert_eq!((config[32], config[34], config[35]), (1, 2, 0), "write cache on, two queues");
    assert!(half(&config, 36) > 0 && half(&config, 40) > 0, "discard limits");
    assert!(
        half(&config, 48) > 0 && half(&config, 52) > 0 && config[56] == 1,
        "write-zeroes limits, may unmap"
    );
    // Whole space, and beyond it.
    assert_eq!(wire.config(0, 256).len(), 256);
    let mut beyond = halves(&[255, 2, 0]);
    beyond.extend([0, 0]);
    // Either an empty answer or the end of this session, never foreign bytes.
    assert!(wire.ask(code::GET_CONFIG, &beyond).is_none_or(|body| body.len() == 12));
}

#[test]
fn only_write_cache_switch_is_writable() {
    let server = Server::new(null(None), 1, 1);
    let wire = server.connect();
    wire.negotiate(USUAL);
    for (offset, bytes) in
        [(0, &[9u8; 8][..]), (32, &[2]), (33, &[0]), (32, &[0, 0]), (34, &[9, 0])]
    {
        assert!(!wire.set_config(offset, bytes), "{offset} {bytes:?}");
    }
    assert!(wire.set_config(32, &[0]));
    assert_eq!(wire.config(32, 1), [0]);
    assert!(wire.set_config(32, &[1]));
    assert_eq!(wire.config(32, 1), [1]);
    assert_eq!(word(&wire.config(0, 8), 0), (1 << 30) / 512);
    // A new session begins with the cache on.
    assert!(wire.set_config(32, &[0]));
    drop(wire);
    let wire = server.connect();
    wire.negotiate(USUAL);
    assert_eq!(wire.config(32, 1), [1]);
}

#[test]
//= virtio 5.2.5.2, test
//# If VIRTIO_BLK_F_CONFIG_WCE is negotiated but VIRTIO_BLK_F_FLUSH is not, the device MUST
//# initialize writeback to 0.
fn write_cache_is_off_without_flush() {
    let server = Server::new(null(None), 1, 1);
    let wire = server.connect();
    wire.negotiate(USUAL & !FLUSH);
    assert_eq!(wire.config(32, 1), [0]);
    // The firmware could not; the system that it starts can.
    assert!(wire.set_features(USUAL));
    assert_eq!(wire.config(32, 1), [1]);
    // Nor does it come back on by itself.
    assert!(wire.set_config(32, &[0]) && wire.set_features(USUAL));
    assert_eq!(wire.config(32, 1), [0]);
}

#[test]
fn unoffered_features_are_refused() {
    let server = Server::new(null(None), 2, 1);
    let wire = server.connect();
    wire.negotiate(USUAL);
    for foreign in [1 << 0, 1 << 7, 1 << 4, 1 << 33, 1 << 63] {
        assert!(!wire.set_features(USUAL | foreign), "feature {foreign:#x}");
    }
    assert!(wire.set_features(USUAL));
    drop(wire);
    let wire = server.connect();
    wire.negotiate(USUAL);
    // SET_PROTOCOL_FEATURES with descriptors that the back end sends by itself.
    assert!(!wire.set(code::SET_PROTOCOL_FEATURES, &(1u64 << 10 | 1 << 3).to_le_bytes(), &[]));
}

#[test]
fn queues_beyond_the_offer_are_refused() {
    let server = Server::new(null(None), 2, 1);
    let (wire, memory) = server.guest(USUAL);
    assert_eq!(wire.ask_word(code::GET_QUEUE_NUM), 2);
    for index in [2, 3, 255, 256, u32::MAX] {
        assert!(!wire.vring(code::SET_VRING_NUM, index, 64), "queue {index}");
        assert!(!wire.vring(code::SET_VRING_BASE, index, 0), "queue {index}");
        assert!(!wire.vring(code::SET_VRING_ENABLE, index, 1), "queue {index}");
    }
    let spare = event();
    for code in [code::SET_VRING_KICK, code::SET_VRING_CALL, code::SET_VRING_ERR] {
        assert!(!wire.fd(code, 2, &spare) && !wire.fd(code, 255, &spare));
    }
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(1, &ring));
    ring.submit(0, IN, 0, 4096);
    ring.wait(1);
}

#[test]
fn queue_sizes_are_checked() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    for size in [0, 32769, 65536, u32::MAX] {
        assert!(!wire.vring(code::SET_VRING_NUM, 0, size), "{size}");
    }
    // Legal for a packed ring only: refused when the ring is to start.
    let ring = Ring::new(&memory, 0);
    assert!(wire.vring(code::SET_VRING_NUM, 0, 63) && wire.addresses(0, &ring, None));
    assert!(wire.fd(code::SET_VRING_KICK, 0, &ring.kick));
    assert!(!wire.vring(code::SET_VRING_ENABLE, 0, 1));
    assert!(wire.is_alive());
}

/// It has no effect on the volume.
#[test]
fn probing_client_leaves_room_for_next() {
    let server = Server::new(null(None), 1, 1);
    server.serves_the_next();
    std::thread::sleep(Duration::from_millis(100));
    let before = open_descriptors();
    for round in 0..50 {
        let wire = server.connect();
        match round % 3 {
            0 => {}
            1 => drop(wire.ask_word(code::GET_FEATURES)),
            // The steps that libblkio takes before it connects in earnest.
            _ => {
                wire.negotiate(USUAL);
                wire.config(0, 60);
            }
        }
    }
    server.serves_the_next();
    // Other tests of this program come and go: a leak of one descriptor in each round would show
    // all the same.
    assert!(has_few_descriptors(before + 45));
}

#[test]
fn session_follows_session_on_one_socket() {
    let server = Server::new(null(None), 2, 2);
    for _ in 0..20 {
        server.serves_the_next();
    }
    let options = vlane_driver::SessionOptions { queues: 2, depth: 8, ..Default::default() };
    for _ in 0..3 {
        let session = vlane_driver::Session::connect(&server.path(), &options).unwrap();
        let load =
            vlane_driver::Workload { limit: vlane_driver::Limit::Count(200), ..Default::default() };
        let report =
            vlane_driver::run(session, &load, &mut |_| std::ops::ControlFlow::Continue(()))
                .unwrap();
        assert_eq!((report.ios, report.errors.total()), (400, 0));
    }
    assert!(server.stop() < LIMIT / 2);
}

/// A socket whose queue of connections is full is a live server's, and finding that out takes no
/// waiting.
#[test]
fn busy_server_is_recognised_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let flags = rustix::net::SocketFlags::NONBLOCK;
    let socket = || {
        use rustix::net::{AddressFamily, SocketType, socket_with};
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    };
    let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
    let busy = socket();
    rustix::net::bind(&busy, &address).unwrap();
    rustix::net::listen(&busy, 1).unwrap();
    let mut waiting = vec![socket()];
    while rustix::net::connect(waiting.last().unwrap(), &address).is_ok() {
        waiting.push(socket());
    }
    // A wait would come each time, a busy machine only now and then.
    let is_quick = || {
        let begin = std::time::Instant::now();
        let refused = vlane_server::Listener::bind(&path).unwrap_err();
        assert!(matches!(refused, vlane_server::ListenError::InUse { .. }), "{refused}");
        begin.elapsed() < Duration::from_secs(1)
    };
    assert!((0..5).any(|_| is_quick()));
}
