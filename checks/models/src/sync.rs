//! Loom's, in the place of `sync` in the lane's crate, the hints', the engine's and io's.

use std::cell::Cell;

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub(crate) use loom::sync::mpsc::{Receiver, Sender, channel};
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

/// An eventfd: a count that can be waited for.
#[derive(Debug)]
pub(crate) struct Wake {
    count: Mutex<u64>,
    raised: Condvar,
}

pub(crate) type Waker = Wake;

pub(crate) fn wake(waker: &Waker) {
    waker.raise();
}

impl Wake {
    pub(crate) fn new() -> Wake {
        Wake { count: Mutex::new(0), raised: Condvar::new() }
    }

    pub(crate) fn raise(&self) {
        *self.count.lock().expect("no panic") += 1;
        self.raised.notify_all();
    }

    /// As by read(2).
    pub(crate) fn clear(&self) {
        *self.count.lock().expect("no panic") = 0;
    }

    /// As by poll(2), and as io_uring waits for completions.
    pub(crate) fn wait(&self) {
        let mut count = self.count.lock().expect("no panic");
        while *count == 0 {
            count = self.raised.wait(count).expect("no panic");
        }
    }

    /// As a completion of io_uring is taken: whether there was one.
    pub(crate) fn take(&self) -> bool {
        std::mem::take(&mut *self.count.lock().expect("no panic")) != 0
    }
}

loom::thread_local! {
    static CLOCK: Cell<u64> = Cell::new(0);
}

/// The lane's clock: 1, 4, 9, 16 ..., so that each difference of two readings occurs once.
pub(crate) fn now() -> u64 {
    CLOCK.with(|clock| {
        clock.set(clock.get() + 1);
        clock.get() * clock.get()
    })
}
