//! A front end cannot fill the log. The number of lines stays under a bound for all behaviour, and
//! the log gives the number of suppressed lines.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod served;
#[path = "../../../vlane/server/tests/common/mod.rs"]
mod wire;

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use served::{LIMIT, Place, draw, seed};
use wire::{IN, Memory, Ring, USUAL, Wire, code, halves};

/// Sessions of the hostile front end.
const SESSIONS: u64 = 200;
/// Messages that one place in the code may tell at once, and what it tells while this test runs
/// beside others.
const OF_A_PLACE: usize = 100 + 20;
/// Places in the code that the front end reaches, at most.
const PLACES: usize = 12;

/// One hostile session; says how many messages were refused, and how often a ring was stopped.
fn harass(socket: &Path, noise: &mut u64) -> (u64, u64) {
    let wire = Wire::new(UnixStream::connect(socket).unwrap());
    let mut below = |limit: u64| draw(noise) % limit;
    match below(4) {
        // It hangs up at once, or after nonsense.
        0 => (0, 0),
        1 => {
            let garbage: Vec<u8> = (0..20).map(|_| below(256) as u8).collect();
            let _ = wire.raw(&garbage, &[]);
            (0, 0)
        }
        // It is refused until it is hung up on.
        2 => {
            wire.negotiate(USUAL);
            let wrong = [
                (code::SET_VRING_NUM, halves(&[0, 0])),
                (code::SET_VRING_NUM, halves(&[77, 64])),
                (code::SET_VRING_NUM, halves(&[0, 40_000])),
                (code::SET_VRING_BASE, halves(&[200, 1])),
            ];
            let mut refused = 0;
            loop {
                let (code, body) = &wrong[below(4) as usize];
                match wire.try_set(*code, body, &[]) {
                    Some(false) => refused += 1,
                    Some(true) => panic!("{code} was taken"),
                    None => return (refused, 0),
                }
            }
        }
        // Its ring breaks the rules, again and again.
        _ => {
            wire.negotiate(USUAL);
            let memory = Memory::new(0x10_0000, 0x10_0000);
            assert!(wire.add_memory(&memory));
            let times = 1 + below(20);
            for _ in 0..times {
                let mut ring = Ring::new(&memory, 0);
                ring.build(0, IN, 0, 512);
                match below(3) {
                    // The index jumps, the chain leads nowhere, a buffer is nowhere.
                    0 => ring.next = 1000,
                    1 => ring.offer(500),
                    _ => {
                        ring.descriptor(2, u64::MAX - 0xfff, 1, 2, 0);
                        ring.offer(0);
                    }
                }
                ring.publish();
                assert!(wire.start(0, &ring));
                ring.kick();
                assert!(wire::signalled(&ring.err, LIMIT), "the ring goes on");
                assert!(wire.get_base(0).is_some());
                wire.vring(code::SET_VRING_ENABLE, 0, 0);
            }
            (0, times)
        }
    }
}

/// Lines that have `part`, and the logged number of similar suppressed lines.
fn told(log: &str, part: &str) -> (u64, u64) {
    let (mut lines, mut left_out) = (0, 0);
    for line in log.lines().filter(|line| line.contains(part)) {
        match line.split_once(" more message") {
            Some((before, _)) => {
                left_out += before.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
            }
            None => lines += 1,
        }
    }
    (lines, left_out)
}

fn serve(place: &Place, log: &Path) -> Child {
    let mut command = place.command(&["--queues", "1"]);
    command.stdout(Stdio::null()).stderr(File::create(log).unwrap());
    let child = command.spawn().unwrap();
    let begin = Instant::now();
    while !vlane_testing::listens(&place.socket) {
        assert!(begin.elapsed() < LIMIT, "it does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn hostile_front_end_cannot_fill_the_log() {
    let place = Place::new(1 << 20);
    let log = place.path("log");
    let mut server = serve(&place, &log);
    let mut noise = seed();
    let (mut refused, mut stopped) = (0, 0);
    for _ in 0..SESSIONS {
        let (refusals, stops) = harass(&place.socket, &mut noise);
        (refused, stopped) = (refused + refusals, stopped + stops);
    }
    // The number of suppressed lines is logged during service, too.
    let read = || std::fs::read_to_string(&log).unwrap();
    let begin = Instant::now();
    while told(&read(), "refused a message").1 == 0 {
        assert!(begin.elapsed() < LIMIT, "the number left out is not told:\n{}", read());
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success(), "{}", read());
    let log = read();
    assert!(refused > 1000 && stopped > 200, "{refused} {stopped}");
    let lines = log.lines().count();
    assert!(lines < PLACES * OF_A_PLACE, "{lines} lines:\n{log}");
    // Each message is logged or counted.
    for (part, caused) in [("refused a message", refused), ("queue 0 is stopped", stopped)] {
        let (told, left_out) = told(&log, part);
        assert!(
            told >= 100 && told + left_out == caused,
            "{part}: {told} told, {left_out} left out of {caused}"
        );
    }
}
