//! Operations that threads hand to each other (`io/src/seats.rs`).

use loom::thread;

use crate::seats::{Seat, seats};
use crate::sync::Wake;

/// One thread's work, before it leaves for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Operations that it hands over, each to the next thread.
    pub hands_over: u64,
    /// The thread stays until it has taken so many, and has all its results. Then it leaves, as it
    /// does when its last lane has ended.
    pub takes: u64,
}

/// The result of an operation.
fn result(words: [u64; crate::seats::WORDS]) -> i32 {
    i32::try_from(words.iter().sum::<u64>()).expect("a small one")
}

/// A thread of the data path: it looks, takes, gives back, looks again, and sleeps.
fn work(seat: &mut Seat, to: usize, plan: Plan) {
    let mut taken = 0;
    let mut guests = Vec::new();
    let mut sent = 0u64;
    for number in 1..=plan.hands_over {
        // An operation that is not sent is done by the thread itself.
        sent |= u64::from(seat.send(to, [number; crate::seats::WORDS], number)) << number;
    }
    let mut answered = 0u64;
    loop {
        while let Some((mark, came)) = seat.next_result() {
            assert_eq!(came, result([mark; crate::seats::WORDS]), "another one's result");
            assert!(sent >> mark & 1 == 1 && answered >> mark & 1 == 0, "a result that nobody waits for");
            answered |= 1 << mark;
        }
        if seat.has_mail() {
            seat.open(|from, cell, words| guests.push((from, cell, words)));
            for (from, cell, words) in guests.drain(..) {
                seat.give_back(from, cell, result(words));
                taken += 1;
            }
            continue;
        }
        if answered == sent && taken >= plan.takes {
            break;
        }
        if seat.falls_asleep() {
            seat.bell().wait();
            seat.wakes();
        }
        seat.bell().take();
    }
    assert_eq!(seat.handed_out(), 0);
    seat.leave();
    seat.open(|from, cell, words| guests.push((from, cell, words)));
    guests.into_iter().for_each(|(from, cell, words)| seat.give_back(from, cell, result(words)));
}

/// Threads hand operations to each other and leave at any time. Each operation comes back once, and
/// no thread sleeps for ever.
pub fn every_operation_that_is_handed_over_comes_back_once(plans: &[Plan]) {
    let bells = plans.iter().map(|_| Wake::new()).collect();
    let mut seats = seats(bells, 2);
    let last = seats.pop().expect("a seat");
    let count = plans.len();
    let others: Vec<_> = seats
        .into_iter()
        .enumerate()
        .map(|(number, mut seat)| {
            let plan = plans[number];
            thread::spawn(move || {
                work(&mut seat, (number + 1) % count, plan);
                seat
            })
        })
        .collect();
    let mut last = last;
    work(&mut last, 0, plans[count - 1]);
    let ended: Vec<_> = others.into_iter().map(|thread| thread.join().expect("a thread")).collect();
    drop((ended, last));
}
