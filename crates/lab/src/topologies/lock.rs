//! The global mutex of the paper's QEMU, with the time that threads wait for it.
//!
//! QEMU 2.1, which the paper measured unchanged, serialises a data plane by a first-come-first-served lock (its `rfifolock`): a
//! thread takes a ticket, sleeps on a condition variable until its number is up, and whoever leaves wakes **all** that sleep, of
//! whom one goes on. That is fair, and it is why more waiting threads cost more context switches for the same work. This
//! is the same algorithm on the standard library's mutex and condition variable (both futexes), less the recursion, which nothing
//! here needs.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hdrhistogram::Histogram;

use vlane_host::error::{Context, ErrorKind, Result};

/// Waits are told apart up to ten seconds.
const LONGEST_NS: u64 = 10_000_000_000;
/// The time that the lock is held is looked at once in so many acquisitions: to look costs two readings of the clock.
const SAMPLE: u64 = 16;

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
#[derive(Debug, Clone)]
pub struct LockUse {
    /// Acquisitions.
    pub taken: u64,
    /// Acquisitions for which the thread had to wait.
    pub contended: u64,
    /// Time waited in all, in ns.
    pub waited_ns: u64,
    /// The single waits, in ns.
    pub waits: Histogram<u64>,
    /// Time that the lock was held in the acquisitions that were looked at, in ns.
    pub held_ns: u64,
    /// How many were looked at.
    pub held_samples: u64,
}

impl LockUse {
    /// Nothing yet.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] without memory.
    pub fn new() -> Result<Self> {
        let waits = Histogram::new_with_bounds(1, LONGEST_NS, 2);
        let waits = waits.context(ErrorKind::Io, || "cannot make a histogram")?;
        Ok(Self { taken: 0, contended: 0, waited_ns: 0, waits, held_ns: 0, held_samples: 0 })
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        (self.taken, self.contended, self.waited_ns) = (0, 0, 0);
        (self.held_ns, self.held_samples) = (0, 0);
        self.waits.reset();
    }

    /// Adds what another thread did.
    pub fn add(&mut self, other: &Self) {
        self.taken += other.taken;
        self.contended += other.contended;
        self.waited_ns += other.waited_ns;
        self.held_ns += other.held_ns;
        self.held_samples += other.held_samples;
        // Both have the same bounds.
        let _ = self.waits.add(&other.waits);
    }

    fn waited(&mut self, since: Instant) {
        let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.contended += 1;
        self.waited_ns = self.waited_ns.saturating_add(ns);
        self.waits.saturating_record(ns);
    }
}

/// Holds the lock until it is dropped.
#[derive(Debug)]
pub struct Held<'a> {
    lock: &'a FifoLock,
    usage: &'a mut LockUse,
    since: Option<Instant>,
}

impl FifoLock {
    /// Waits for its turn, and counts in `usage`.
    pub fn lock<'a>(&'a self, usage: &'a mut LockUse) -> Held<'a> {
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
        let since = usage.taken.is_multiple_of(SAMPLE).then(Instant::now);
        Held { lock: self, usage, since }
    }

    /// Nothing in here can be left half done by a panic.
    fn tickets(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            self.usage.held_ns += u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.usage.held_samples += 1;
        }
        let mut tickets = self.lock.tickets();
        tickets.head += 1;
        let waiting = tickets.tail > tickets.head;
        // To wake nobody would be a system call of its own.
        if waiting {
            self.lock.turn.notify_all();
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
                        let mut usage = LockUse::new().unwrap();
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
        let mut all = LockUse::new().unwrap();
        uses.iter().for_each(|usage| all.add(usage));
        assert_eq!((all.taken, entries.into_inner()), (8000, 8000));
        assert!(all.contended <= all.taken && all.waits.len() == all.contended);
        assert_eq!(all.held_samples, 4 * 2000 / SAMPLE);
    }

    #[test]
    fn turns_are_taken_in_the_order_of_asking() {
        let lock = FifoLock::default();
        let order = Mutex::new(Vec::new());
        let mut usage = LockUse::new().unwrap();
        std::thread::scope(|scope| {
            let held = lock.lock(&mut usage);
            for number in 0..5_u64 {
                let (lock, order) = (&lock, &order);
                scope.spawn(move || {
                    let mut usage = LockUse::new().unwrap();
                    let _held = lock.lock(&mut usage);
                    order.lock().unwrap().push(number);
                    assert_eq!((usage_of(&_held).contended, usage_of(&_held).taken), (1, 1));
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

    fn usage_of<'a>(held: &'a Held<'_>) -> &'a LockUse {
        held.usage
    }
}
