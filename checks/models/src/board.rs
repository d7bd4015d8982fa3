//! The scheduler's board with loom's words instead of mapped ones.

use vlane_ring::Request;

use crate::sync::{Arc, AtomicU64, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Classes(pub(crate) u64);

impl Classes {
    pub(crate) const NONE: Classes = Classes(0);
    pub(crate) const ALL: Classes = Classes(u64::MAX);
    pub(crate) const EXPRESS: Classes = Classes(3 << 10);
    /// Reads without a priority.
    pub(crate) const NORMAL: Classes = Classes(1);

    pub(crate) fn of(_: &Request, _: bool) -> Classes {
        Classes::ALL
    }

    pub(crate) fn meets(self, other: Classes) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_express_only(self) -> bool {
        self.0 != 0 && self.0 & !Classes::EXPRESS.0 == 0
    }
}

pub(crate) struct Slot<'a> {
    pub(crate) events: &'a AtomicU64,
    pub(crate) since: &'a AtomicU64,
    pub(crate) served: &'a AtomicU64,
    pub(crate) served_at: &'a AtomicU64,
    pub(crate) response: &'a AtomicU64,
}

#[derive(Debug, Default)]
struct Words {
    armed: AtomicU64,
    wake: AtomicU64,
    slots: Vec<[AtomicU64; 5]>,
}

/// Both ends have one of these, as both processes have a mapping.
#[derive(Debug, Clone)]
pub(crate) struct Board(Arc<Words>);

impl Board {
    pub(crate) fn new(lanes: usize) -> Board {
        let slots = (0..lanes).map(|_| Default::default()).collect();
        Board(Arc::new(Words { slots, ..Words::default() }))
    }

    pub(crate) fn lanes(&self) -> u16 {
        u16::try_from(self.0.slots.len()).expect("few lanes")
    }

    pub(crate) fn has_express(&self) -> bool {
        true
    }

    pub(crate) fn arm(&self, classes: Classes) {
        self.0.armed.store(classes.0, Ordering::SeqCst);
    }

    pub(crate) fn armed(&self) -> Classes {
        Classes(self.0.armed.load(Ordering::Relaxed))
    }

    pub(crate) fn note_express(&self) {}

    pub(crate) fn wake(&self) -> &AtomicU64 {
        &self.0.wake
    }

    pub(crate) fn slot(&self, lane: u16) -> Option<Slot<'_>> {
        let [events, since, served, served_at, response] = self.0.slots.get(usize::from(lane))?;
        Some(Slot { events, since, served, served_at, response })
    }
}
