//! Operations that threads hand to each other (`io/src/cross_thread.rs`).

use loom::thread;

use crate::cross_thread::{CrossThreadQueue, queues};
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
fn result(words: [u64; crate::cross_thread::WORDS]) -> i32 {
    i32::try_from(words.iter().sum::<u64>()).expect("a small one")
}

/// A thread of the data path: it looks, takes, gives back, looks again, and sleeps.
fn work(queue: &mut CrossThreadQueue, to: usize, plan: Plan) {
    let mut taken = 0;
    let mut guests = Vec::new();
    let mut sent = 0u64;
    for number in 1..=plan.hands_over {
        // One that is not sent is done by the thread itself.
        sent |= u64::from(queue.send(to, [number; crate::cross_thread::WORDS], number)) << number;
    }
    let mut answered = 0u64;
    loop {
        while let Some((mark, came)) = queue.next_result() {
            assert_eq!(came, result([mark; crate::cross_thread::WORDS]), "another one's result");
            assert!(
                sent >> mark & 1 == 1 && answered >> mark & 1 == 0,
                "a result that nobody waits for"
            );
            answered |= 1 << mark;
        }
        if queue.has_mail() {
            queue.open(|from, cell, words| guests.push((from, cell, words)));
            for (from, cell, words) in guests.drain(..) {
                queue.give_back(from, cell, result(words));
                taken += 1;
            }
            continue;
        }
        if answered == sent && taken >= plan.takes {
            break;
        }
        if queue.falls_asleep() {
            queue.waker().wait();
            queue.wakes();
        }
        queue.waker().take();
    }
    assert_eq!(queue.handed_out(), 0);
    queue.leave();
    queue.open(|from, cell, words| guests.push((from, cell, words)));
    guests.into_iter().for_each(|(from, cell, words)| queue.give_back(from, cell, result(words)));
}

/// Threads hand operations to each other and leave at any time. Each operation comes back once, and
/// no thread sleeps for ever.
pub fn every_operation_that_is_handed_over_comes_back_once(plans: &[Plan]) {
    let wakers = plans.iter().map(|_| Wake::new()).collect();
    let mut queues = queues(wakers, 2);
    let last = queues.pop().expect("a queue");
    let count = plans.len();
    let others: Vec<_> = queues
        .into_iter()
        .enumerate()
        .map(|(number, mut queue)| {
            let plan = plans[number];
            thread::spawn(move || {
                work(&mut queue, (number + 1) % count, plan);
                queue
            })
        })
        .collect();
    let mut last = last;
    work(&mut last, 0, plans[count - 1]);
    let ended: Vec<_> = others.into_iter().map(|thread| thread.join().expect("a thread")).collect();
    drop((ended, last));
}
