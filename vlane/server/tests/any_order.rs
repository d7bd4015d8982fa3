//! Messages may come in any order: once a ring has all its parts, it runs.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::os::fd::AsFd;

use common::*;

/// A message that a ring needs to start, besides the protocol features, which decide if messages
/// are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Features,
    Memory,
    Num,
    Addresses,
    Base,
    Kick,
    Call,
    Enable,
}

use Step::{Addresses, Base, Call, Enable, Features, Kick, Num};

const STEPS: [Step; 8] = [Features, Step::Memory, Num, Addresses, Base, Kick, Call, Enable];

/// The way in which memory comes.
#[derive(Debug, Clone, Copy)]
enum Way {
    Table,
    Region,
}

impl Step {
    /// Sends it; returns true if it was accepted, and `None` when the session ended.
    fn say(self, wire: &Wire, ring: &Ring<'_>, way: Way, features: u64) -> Option<bool> {
        let memory = ring.memory;
        let eventfd =
            |code, fd: &std::os::fd::OwnedFd| wire.try_set(code, &words(&[0]), &[fd.as_fd()]);
        match self {
            Features => wire.try_set(code::SET_FEATURES, &features.to_le_bytes(), &[]),
            Step::Memory => {
                let region = words(&[memory.guest, memory.size, memory.user, 0]);
                let (code, one) = match way {
                    Way::Table => (code::SET_MEM_TABLE, 1),
                    Way::Region => (code::ADD_MEM_REG, 0),
                };
                let body = [words(&[one]), region].concat();
                wire.try_set(code, &body, &[memory.file.as_fd()])
            }
            Num => wire.try_set(code::SET_VRING_NUM, &halves(&[0, SIZE.into()]), &[]),
            Addresses => {
                let user = memory.user + ring.at;
                let body = [halves(&[0, 0]), words(&[user, user + USED, user + AVAIL, 0])].concat();
                wire.try_set(code::SET_VRING_ADDR, &body, &[])
            }
            Base => wire.try_set(code::SET_VRING_BASE, &halves(&[0, 0]), &[]),
            Kick => eventfd(code::SET_VRING_KICK, &ring.kick),
            Call => eventfd(code::SET_VRING_CALL, &ring.call),
            Enable => wire.try_set(code::SET_VRING_ENABLE, &halves(&[0, 1]), &[]),
        }
    }
}

fn connect(server: &Server) -> Wire {
    let wire = server.connect();
    wire.tell(code::SET_OWNER, &[], &[]);
    wire.ask_word(code::GET_FEATURES);
    let protocol = wire.ask_word(code::GET_PROTOCOL_FEATURES);
    wire.tell(code::SET_PROTOCOL_FEATURES, &protocol.to_le_bytes(), &[]);
    wire
}

/// Sends all messages in this order. The ring must run then, unless a message was refused that may
/// be: ENABLE before the features that have it, which ends the session, and BASE for a ring that
/// runs.
fn starts(server: &Server, order: &[Step], way: Way, features: u64) {
    let wire = connect(server);
    let memory = Memory::new(0x10_0000, 0x20_0000);
    let mut ring = Ring::new(&memory, 0);
    // A request from before the start: no further kick comes for it.
    ring.submit(0, IN, 0, 512);
    let at = |step| order.iter().position(|s| *s == step).unwrap_or(usize::MAX);
    for (index, step) in order.iter().enumerate() {
        let rest = || format!("{step:?} in {order:?} ({way:?}, {features:#x})");
        match step.say(&wire, &ring, way, features) {
            Some(true) => {}
            Some(false) => assert!(
                // All but CALL was said before: the ring runs.
                *step == Base && order[index + 1..].iter().all(|later| *later == Call),
                "refused: {}",
                rest()
            ),
            None => {
                assert!(*step == Enable && at(Enable) < at(Features), "ended: {}", rest());
                return;
            }
        }
    }
    let has_enable = order.contains(&Enable);
    assert!(
        !has_enable || at(Enable) > at(Features),
        "{order:?}: accepted before it was negotiated"
    );
    assert_eq!(ring.wait(1), [0], "{order:?}");
    ring.submit(1, IN, 8, 4096);
    assert_eq!(ring.wait(1), [1], "{order:?}");
    assert_eq!(wire.get_base(0), Some(2), "{order:?}");
}

/// Every pair of last messages, the others before them in two orders.
#[test]
fn ring_runs_after_any_last_message() {
    let server = Server::new(null(None), 1, 1);
    for last in STEPS {
        for but_one in STEPS.into_iter().filter(|step| *step != last) {
            let mut order: Vec<Step> =
                STEPS.into_iter().filter(|step| *step != last && *step != but_one).collect();
            for way in [Way::Table, Way::Region] {
                let mut whole = order.clone();
                whole.extend([but_one, last]);
                starts(&server, &whole, way, USUAL);
                order.reverse();
            }
        }
    }
}

/// xorshift64*, for arbitrary orders; the same every time.
fn shuffled(steps: &[Step], seed: u64) -> Vec<Step> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut steps = steps.to_vec();
    for at in (1..steps.len()).rev() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let other = state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        steps.swap(at, (other % (at as u64 + 1)) as usize);
    }
    steps
}

#[test]
fn ring_runs_after_any_message_order() {
    let server = Server::new(null(None), 1, 1);
    for seed in 0..300 {
        let way = if seed % 2 == 0 { Way::Table } else { Way::Region };
        starts(&server, &shuffled(&STEPS, seed), way, USUAL);
    }
}

/// vhost-user, "Ring states": without the protocol features, a front end has no message to enable a
/// ring. With them, its rings start disabled.
#[test]
fn ring_runs_in_any_order_without_protocol_features() {
    let server = Server::new(null(None), 1, 1);
    let steps: Vec<Step> = STEPS.into_iter().filter(|step| *step != Enable).collect();
    for seed in 0..200 {
        starts(&server, &shuffled(&steps, seed), Way::Table, USUAL & !PROTOCOL);
    }
}

/// A ring's layout and its drivers' options are features: before they are known no request may be
/// taken from it. After a reset they are unknown again.
#[test]
fn ring_waits_for_its_features() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    ring.submit(0, IN, 0, 512);
    ring.wait(1);
    assert!(wire.set(code::RESET_DEVICE, &[], &[]));
    let mut ring = Ring::new(&memory, 0x2_0000);
    assert!(wire.start(0, &ring));
    ring.submit(0, IN, 0, 512);
    assert!(ring.is_quiet(), "served before the features were set");
    assert!(wire.set_features(USUAL), "features can be set: no queue runs");
    ring.wait(1);
}

/// The parts of a ring may lie in regions that come one after the other.
#[test]
fn ring_waits_for_all_its_regions() {
    let server = Server::new(null(None), 1, 1);
    let whole = Memory::new(0x10_0000, 0x20_0000);
    // Two halves of one file: descriptors and available ring in the first, the used ring in the
    // second.
    let half = |first: bool| {
        let (offset, size) = if first { (0, USED) } else { (USED, whole.size - USED) };
        words(&[0, whole.guest + offset, size, whole.user + offset, offset])
    };
    for first in [true, false] {
        let wire = server.connect();
        wire.negotiate(USUAL);
        let mut ring = Ring::new(&whole, 0);
        whole.put(0, &[0; USED as usize + 0x800]);
        assert!(wire.start(0, &ring));
        ring.submit(0, IN, 0, 512);
        for part in [first, !first] {
            assert!(wire.set(code::ADD_MEM_REG, &half(part), &[whole.file.as_fd()]), "{part}");
        }
        ring.wait(1);
    }
}
