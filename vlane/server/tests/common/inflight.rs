//! The memory that a front end keeps of requests in flight: how it is asked for and given back.

use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::{Memory, Server, USUAL, Wire, code, words};

const GET_INFLIGHT_FD: u32 = 31;
const SET_INFLIGHT_FD: u32 = 32;

/// Protocol features.
pub const REPLY_ACK: u64 = 1 << 3;
pub const CONFIG: u64 = 1 << 9;
pub const INFLIGHT_SHMFD: u64 = 1 << 12;
pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

pub const USUAL_PROTOCOL: u64 = REPLY_ACK | CONFIG | CONFIGURE_MEM_SLOTS | INFLIGHT_SHMFD;

/// Bytes, offset, queues, size, as both messages have them.
pub fn shape(bytes: u64, queues: u16, size: u16) -> Vec<u8> {
    let mut body = words(&[bytes, 0]);
    body.extend(queues.to_le_bytes());
    body.extend(size.to_le_bytes());
    // The structure's own size is a multiple of eight.
    body.extend([0; 4]);
    body
}

/// The memory for so many queues of that size; `None` when the other side hung up.
pub fn get_inflight(wire: &Wire, queues: u16, size: u16) -> Option<(Vec<u8>, File)> {
    wire.tell(GET_INFLIGHT_FD, &shape(0, queues, size), &[]);
    let mut reply = [0; 12 + 24];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(
        &wire.stream,
        &mut [IoSliceMut::new(&mut reply)],
        &mut ancillary,
        flags,
    );
    if got.ok()?.bytes < reply.len() {
        return None;
    }
    let file = ancillary.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Some((reply[12..].to_vec(), File::from(file.unwrap())))
}

pub fn set_inflight(wire: &Wire, shape: &[u8], file: &File) -> bool {
    wire.set(SET_INFLIGHT_FD, shape, &[file.as_fd()])
}

/// A front end that agreed on these protocol features.
pub fn connect(server: &Server, memory: &Memory, protocol: u64) -> Wire {
    let wire = server.connect();
    wire.tell(code::SET_OWNER, &[], &[]);
    wire.ask_word(code::GET_FEATURES);
    assert_eq!(wire.ask_word(code::GET_PROTOCOL_FEATURES) & protocol, protocol);
    wire.tell(code::SET_PROTOCOL_FEATURES, &protocol.to_le_bytes(), &[]);
    assert!(wire.set_features(USUAL) && wire.add_memory(memory));
    wire
}
