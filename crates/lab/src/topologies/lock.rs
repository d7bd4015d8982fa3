//! The global mutex of the paper's QEMU, with the time that threads wait for it.
//!
//! QEMU 2.1, which the paper measured unchanged, serialises a data plane by a first-come-first-served lock (its `rfifolock`): a
//! thread takes a ticket, sleeps on a condition variable until its number is up, and whoever leaves wakes **all** that sleep, of
//! whom one goes on. That is fair, and it is why more waiting threads cost more context switches for the same work. This
//! is the same algorithm on the standard library's mutex and condition variable (both futexes), less the recursion, which nothing
//! here needs.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A first-come-first-served lock that wakes all waiting threads at each release.
#[derive(Debug, Default)]
pub struct FifoLock {
    tickets: Mutex<Tickets>,
    turn: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    /// The ticket whose turn it is.
    head: u64,
    /// The next one to be given out.
    tail: u64,
}

/// What one thread's use of a lock came to.
#[derive(Debug, Clone, Copy, Default)]
pub struct LockUse {
    /// Acquisitions.
    pub taken: u64,
    /// Acquisitions for which the thread had to wait.
    pub contended: u64,
    /// Time waited in all, in ns.
    pub waited_ns: u64,
}

impl LockUse {
    /// Adds what another thread did.
    pub fn add(&mut self, other: &Self) {
        self.taken += other.taken;
        self.contended += other.contended;
        self.waited_ns += other.waited_ns;
    }

    fn waited(&mut self, since: Instant) {
        let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.contended += 1;
        self.waited_ns = self.waited_ns.saturating_add(ns);
    }
}

/// Holds the lock until it is dropped.
#[derive(Debug)]
pub struct Held<'a>(&'a FifoLock);

impl FifoLock {
    /// Waits for its turn, and counts in `usage`.
    pub fn lock(&self, usage: &mut LockUse) -> Held<'_> {
        usage.taken += 1;
        let mut begin = None;
        let mut tickets = match self.tickets.try_lock() {
            Ok(tickets) => tickets,
            Err(_) => {
                begin = Some(Instant::now());
                self.tickets()
            }
        };
        let mine = tickets.tail;
        tickets.tail += 1;
        if tickets.head != mine {
            begin = begin.or_else(|| Some(Instant::now()));
            while tickets.head != mine {
                tickets = self.turn.wait(tickets).unwrap_or_else(PoisonError::into_inner);
            }
        }
        drop(tickets);
        if let Some(begin) = begin {
            usage.waited(begin);
        }
        Held(self)
    }

    /// Nothing in here can be left half done by a panic.
    fn tickets(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut tickets = self.0.tickets();
        tickets.head += 1;
        let waiting = tickets.tail > tickets.head;
        // To wake nobody would be a system call of its own.
        if waiting {
            self.0.turn.notify_all();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;

    #[test]
    fn one_thread_at_a_time_is_inside_and_everyone_is_counted() {
        let (lock, inside, entries) = (FifoLock::default(), AtomicBool::new(false), AtomicU64::new(0));
        let uses: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut usage = LockUse::default();
                        for _ in 0..2000 {
                            let held = lock.lock(&mut usage);
                            assert!(!inside.swap(true, Ordering::Relaxed), "two threads inside");
                            entries.fetch_add(1, Ordering::Relaxed);
                            inside.store(false, Ordering::Relaxed);
                            drop(held);
                        }
                        usage
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let mut all = LockUse::default();
        uses.iter().for_each(|usage| all.add(usage));
        assert_eq!((all.taken, entries.into_inner()), (8000, 8000));
        assert!(all.contended <= all.taken && (all.contended == 0) == (all.waited_ns == 0));
    }

    #[test]
    fn turns_are_taken_in_the_order_of_asking() {
        let lock = FifoLock::default();
        let order = Mutex::new(Vec::new());
        let mut usage = LockUse::default();
        std::thread::scope(|scope| {
            let held = lock.lock(&mut usage);
            for number in 0..5_u64 {
                let (lock, order) = (&lock, &order);
                scope.spawn(move || {
                    let mut usage = LockUse::default();
                    let _held = lock.lock(&mut usage);
                    order.lock().unwrap().push(number);
                    assert_eq!((usage.contended, usage.taken), (1, 1));
                });
                // The next one asks only when this one has its ticket (ours was number 0).
                while lock.tickets().tail < number + 2 {
                    std::thread::yield_now();
                }
            }
            drop(held);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3, 4]);
    }
}
