//! A lane thread that dies takes only its session with it: no front end gets an unreliable
//! position.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod common;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use vlane_engine::{
    Channel, ChannelStats, Engine, EngineError, Geometry, Operation, Outcome, Status, Taken,
};

/// The sector at which the storage's code is wrong.
const WRONG: u64 = 4096;

/// A null device with a fault.
#[derive(Debug)]
struct Faulty;

impl Engine for Faulty {
    fn geometry(&self) -> Geometry {
        null(None).geometry()
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn channel(&self, _: u16) -> Result<Box<dyn Channel>, EngineError> {
        Ok(Box::new(FaultyChannel))
    }
}

#[derive(Debug)]
struct FaultyChannel;

impl Channel for FaultyChannel {
    fn begin(&mut self, taken: Taken<'_>, _: &mut Vec<Operation>) -> Outcome {
        assert_ne!(taken.request.sector(), WRONG, "a fault, on purpose");
        Outcome::Done(Status::Ok)
    }

    fn set_write_through(&mut self, _: bool) {}

    fn stats(&self) -> ChannelStats {
        ChannelStats::default()
    }
}

/// Two queues on a thread each, of which the first has died.
fn with_a_dead_lane(then: impl FnOnce(&Server, Wire, [Ring<'_>; 2])) {
    let server = Server::new(Arc::new(Faulty), 2, 2);
    let (wire, memory) = server.guest(USUAL);
    let mut rings = [Ring::new(&memory, 0), Ring::new(&memory, 0x2_0000)];
    for index in [0, 1] {
        assert!(wire.start(index, &rings[index as usize]));
        rings[index as usize].submit(0, IN, 0, 512);
        rings[index as usize].wait(1);
    }
    rings[0].submit(1, IN, WRONG, 512);
    let begin = Instant::now();
    while server.volume.lost_threads() != [0] {
        assert!(begin.elapsed() < LIMIT, "{:?}", server.volume.lost_threads());
        std::thread::sleep(Duration::from_millis(5));
    }
    then(&server, wire, rings);
    // The other lane serves the next front end.
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(1, &ring));
    ring.submit(0, GET_ID, 0, 20);
    ring.wait(1);
    assert_eq!(ring.status(0), 0);
    // The dead one serves no ring, and that is an answer.
    assert!(!wire.start(0, &Ring::new(&memory, 0x2_0000)));
    drop(wire);
    server.stop();
}

#[test]
fn session_ends_when_a_lane_dies() {
    with_a_dead_lane(|_, wire, _| {
        assert!(wire.is_hung_up(LIMIT), "the guest waits for ever, and nobody says so");
    });
}

#[test]
fn dead_lane_gives_no_base() {
    with_a_dead_lane(|_, wire, _| {
        assert_eq!(wire.get_base(0), None, "the position of a start long ago");
    });
}

#[test]
fn other_lanes_answer_before_session_ends() {
    with_a_dead_lane(|_, wire, mut rings| {
        let [_, other] = &mut rings;
        assert!(wire.is_hung_up(LIMIT));
        assert_eq!(other.used(), [] as [u16; 0], "everything of it was answered");
    });
}
