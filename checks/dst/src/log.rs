//! The steps of a run: a sum that distinguishes two runs, and on request the words.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Shared by all parts of a run.
#[derive(Debug, Clone)]
pub(crate) struct Log(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    sum: Cell<u64>,
    clock: Cell<u64>,
    steps: Option<RefCell<Vec<String>>>,
    failure: RefCell<Option<String>>,
}

impl Log {
    pub(crate) fn new(keeps_steps: bool) -> Log {
        Log(Rc::new(Inner {
            sum: Cell::new(0),
            clock: Cell::new(0),
            steps: keeps_steps.then(RefCell::default),
            failure: RefCell::new(None),
        }))
    }

    /// An event: in numbers, and in words.
    pub(crate) fn say(&self, numbers: &[u64], words: impl FnOnce() -> String) {
        let mix = |sum: u64, number: &u64| {
            (sum.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95)
        };
        self.0.sum.set(numbers.iter().fold(self.0.sum.get(), mix));
        if let Some(steps) = &self.0.steps {
            steps.borrow_mut().push(format!("{:>6} {}", self.0.clock.get(), words()));
        }
    }

    /// The next moment: no two events have the same.
    pub(crate) fn tick(&self) -> u64 {
        self.0.clock.set(self.0.clock.get() + 1);
        self.0.clock.get()
    }

    /// Notes a violated property. The first one counts.
    pub(crate) fn fail(&self, what: impl FnOnce() -> String) {
        let mut failure = self.0.failure.borrow_mut();
        if failure.is_none() {
            let what = what();
            self.say(&[99], || format!("FAILED: {what}"));
            *failure = Some(what);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.0.failure.borrow().is_some()
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.0.failure.borrow().clone()
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0.sum.get()
    }

    pub(crate) fn steps(&self) -> Vec<String> {
        self.0.steps.as_ref().map(|steps| steps.borrow().clone()).unwrap_or_default()
    }
}
