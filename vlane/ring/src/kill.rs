//! For tests: kills a device between any two stores that its successor can see.
//!
//! A kill is a panic, which the test catches; the device that it met must not be used again. The
//! data that it had stored is in shared memory, and no later store is. Each thread counts for
//! itself.

use std::cell::Cell;

thread_local! {
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The panic value of a killed device.
#[derive(Debug)]
pub struct Killed;

/// Kills this thread's device after so many more stores; `None`: never.
pub fn after(stores: Option<u64>) {
    LEFT.set(stores);
}

/// Runs `what`, and kills the device in it after so many stores. Returns its result if it came to
/// its end before.
pub fn run<T>(stores: u64, what: impl FnOnce() -> T) -> Option<T> {
    after(Some(stores));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what));
    after(None);
    match result {
        Ok(result) => Some(result),
        Err(why) if why.is::<Killed>() => None,
        Err(why) => std::panic::resume_unwind(why),
    }
}

pub(crate) fn point() {
    let Some(left) = LEFT.get() else { return };
    if left == 0 {
        LEFT.set(None);
        // Without the message of a panic that is a fault.
        std::panic::resume_unwind(Box::new(Killed));
    }
    LEFT.set(Some(left - 1));
}
