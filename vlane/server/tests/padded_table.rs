//! A memory table with room for more regions than it has, as User-Mode Linux 6.1 sends it.

mod common;

use std::os::fd::AsFd;

use common::*;

/// One region, and room for another.
fn body(memory: &Memory) -> Vec<u8> {
    words(&[1, memory.guest, memory.size, memory.user, 0, 0, 0, 0, 0])
}

#[test]
fn padded_table_serves_requests() {
    let server = Server::new(null(None), 1, 1);
    let wire = server.connect();
    wire.negotiate(USUAL);
    let memory = Memory::new(0, 1 << 20);
    assert!(wire.set(code::SET_MEM_TABLE, &body(&memory), &[memory.file.as_fd()]));
    let mut ring = Ring::new(&memory, 0x1000);
    assert!(wire.start(0, &ring));
    ring.submit(0, IN, 0, 512);
    assert_eq!(ring.wait(1), [0]);
    assert_eq!(ring.status(0), 0);
    server.stop();
}

#[test]
//= vhost-user Front-end message types, test
//# If VHOST_USER_PROTOCOL_F_REPLY_ACK is negotiated, the back-end must respond with zero for
//# success, non-zero otherwise.
//= vhost-user VHOST_USER_PROTOCOL_F_REPLY_ACK, test
//# This indicates that the back-end MUST respond with a Payload VhostUserMsg indicating success or
//# failure.
fn bad_padded_table_is_refused() {
    let server = Server::new(null(None), 1, 1);
    let wire = server.connect();
    wire.negotiate(USUAL);
    let memory = Memory::new(0, 1 << 20);
    assert!(!wire.set(code::SET_MEM_TABLE, &body(&memory), &[]));
    let senseless = words(&[1, u64::MAX - 4096, 1 << 20, memory.user, 0, 0, 0, 0, 0]);
    assert!(!wire.set(code::SET_MEM_TABLE, &senseless, &[memory.file.as_fd()]));
    assert!(wire.set(code::SET_MEM_TABLE, &body(&memory), &[memory.file.as_fd()]));
    assert!(wire.is_alive());
    server.stop();
}
