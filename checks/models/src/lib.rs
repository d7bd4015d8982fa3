//! Code that crosses threads, tried in every interleaving and with every reordering that the memory
//! model allows.
//!
//! [loom](https://docs.rs/loom) runs a small program again and again, until it has seen all its
//! executions. Six files are compiled here a second time, as they are. They hold the lane's
//! mailbox, both ends of the scheduler's board, and the exclusion of writes by changes of part of a
//! block. The others hold the flushes that lanes share, the placement of requests, and the
//! operations that threads hand to each other. `sync.rs` and `board.rs` replace their usual
//! surroundings: loom's atomics, and a wake-up that loom knows of instead of an eventfd. A lost
//! wake-up is a deadlock that loom reports.
//!
//! Two parts are missing here. Rings in guest memory have mapped words and not loom's
//! (vlane/ring/tests/driver_device.rs has both sides in two threads); the recorder's ring is
//! rtrb's.

#![forbid(unsafe_code)]

mod board;
mod changes;
#[path = "../../../vlane/io/src/cross_thread.rs"]
#[allow(dead_code, reason = "only what the models need")]
mod cross_thread;
#[path = "../../../vlane/engine/src/file/exclusion.rs"]
#[allow(dead_code, reason = "only what the models need")]
mod exclusion;
#[path = "../../../vlane/engine/src/file/flushes.rs"]
#[allow(dead_code, reason = "only what the models need")]
mod flushes;
mod handing;
#[path = "../../../vlane/hint/src/lane.rs"]
#[allow(dead_code, reason = "only what the models need")]
mod lane;
#[path = "../../../vlane/engine/src/lost.rs"]
#[allow(dead_code, reason = "only what the models need")]
mod lost;
#[path = "../../../vlane/lane/src/mail.rs"]
mod mail;
#[path = "../../../vlane/engine/src/file/placements.rs"]
#[allow(dead_code, reason = "only what the models need")]
mod placements;
mod placing;
#[path = "../../../vlane/hint/src/reader.rs"]
#[allow(dead_code, reason = "only what the models need")]
mod reader;
mod sharing;
mod sync;

use std::mem::ManuallyDrop;

use loom::thread;

use crate::board::{Board, Classes};
pub use crate::changes::{Task, no_change_undoes_a_write};
pub use crate::handing::{Plan, every_operation_that_is_handed_over_comes_back_once};
use crate::lane::LaneHint;
use crate::lost::Writeback;
use crate::mail::{mailbox, news};
pub use crate::placing::{Step as PlacedStep, Turn, no_byte_goes_both_ways};
use crate::reader::{BoardReader, Mark};
pub use crate::sharing::{Work, no_answered_write_is_missed};
use crate::sync::{Arc, Wake, now};

/// A lane's thread reads its mail as `Thread::run` does: it looks, works, looks again and sleeps;
/// each wake-up is sent once. Two others send.
pub fn sleeping_lane_loses_no_message() {
    let (outbox, inbox) = mailbox(Wake::new());
    let senders: Vec<_> = (0..2)
        .map(|number| {
            let outbox = outbox.clone();
            thread::spawn(move || assert!(outbox.send(number).is_ok()))
        })
        .collect();
    let mut read = Vec::new();
    while read.len() < 2 {
        if inbox.has_mail() {
            while let Some(message) = inbox.next() {
                read.push(message);
            }
        }
        if read.len() == 2 || inbox.wake().take() {
            continue;
        }
        if !inbox.has_mail() {
            inbox.wake().wait();
        }
    }
    read.sort_unstable();
    assert_eq!(read, [0, 1]);
    senders.into_iter().for_each(|sender| sender.join().expect("a sender"));
}

/// A session waits for the descriptor of its lanes' events, and then takes all there are.
pub fn lane_loses_no_event() {
    let (teller, listener) = news(Wake::new());
    let lanes: Vec<_> = (0..2)
        .map(|lane| {
            let teller = teller.clone();
            thread::spawn(move || teller.send(lane))
        })
        .collect();
    let mut heard = Vec::new();
    while heard.len() < 2 {
        listener.wake().wait();
        while let Some(event) = listener.next() {
            heard.push(event);
        }
    }
    heard.sort_unstable();
    assert_eq!(heard, [0, 1]);
    lanes.into_iter().for_each(|lane| lane.join().expect("a lane"));
}

/// A lane's use of the board between start and end of a model: signals, and the guest's answers to
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The guest is signalled.
    Signal,
    /// The guest submits an express request.
    Answer,
    /// The guest is signalled that a request of its background is complete.
    OtherSignal,
    /// The guest's background submits.
    OtherAnswer,
}

impl Step {
    /// The class: an express read, or a request without a priority.
    fn classes(self) -> Classes {
        match self {
            Step::Signal | Step::Answer => Classes::EXPRESS,
            Step::OtherSignal | Step::OtherAnswer => Classes::NORMAL,
        }
    }

    fn is_signal(self) -> bool {
        matches!(self, Step::Signal | Step::OtherSignal)
    }
}

/// The scheduler looks at the board and sleeps; a lane takes `steps`. In the end every signal that
/// counts was counted once, an unanswered one is known, and a response time is the one of an
/// answer. `express_only`: the guest's background does not count.
pub fn no_mark_of_a_lane_is_lost(express_only: bool, steps: &'static [Step]) {
    let armed = if express_only { Classes::EXPRESS } else { Classes::ALL };
    let board = Board::new(1);
    let wake = Arc::new(Wake::new());
    let mut watch = BoardReader::new(Arc::new(board.clone()));
    watch.arm(armed);
    let waker = Arc::clone(&wake);
    let lane = thread::spawn(move || {
        let mut hint = LaneHint::new(Arc::new(board), 0, waker).expect("a lane");
        for step in steps {
            if step.is_signal() {
                hint.answered_of(step.classes());
                hint.shown(true);
            } else {
                // As a lane does it: once for all that has come, then for each where it matters
                // what comes.
                hint.some_taken();
                hint.taken_of(step.classes());
            }
        }
        // Dropped below: in a model that fails, loom is over when this would be.
        ManuallyDrop::new(hint)
    });
    let counting = || steps.iter().filter(|step| armed.meets(step.classes()));
    let signals = counting().filter(|step| step.is_signal()).count();
    let unanswered = counting().next_back().is_some_and(|step| step.is_signal());
    let (mut counted, mut pending) = (0, false);
    loop {
        for (_, mark) in watch.collect(u64::MAX) {
            let (Mark::Event { count, .. } | Mark::Served { count, .. }) = mark;
            counted += count as usize;
            pending = matches!(mark, Mark::Event { .. });
        }
        assert!(counted <= signals, "{counted} signals were told of {signals}");
        if counted == signals && pending == unanswered {
            break;
        }
        wake.wait();
        wake.clear();
    }
    drop(ManuallyDrop::into_inner(lane.join().expect("a lane")));
}
