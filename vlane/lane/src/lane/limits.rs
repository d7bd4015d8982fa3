//! In a lane whose volume has limits, all requests go through its waiting lists. The first of them
//! is begun when there is budget for it. Express requests that are exempt are begun whenever they
//! are seen; for their sake the lane takes requests ahead while it waits.

use std::sync::Arc;

use vlane_io::Instant;
use vlane_ring::Slot;

use super::Lane;
use crate::limits::{Budget, LaneLimits};

impl Lane {
    /// Other limits, or none.
    pub(crate) fn set_limits(&mut self, budget: Option<Arc<Budget>>) {
        self.leave_budget();
        self.limits = budget.map(|budget| Box::new(LaneLimits::new(budget)));
        self.update_is_plain();
    }

    /// Gives back what it has of the budget.
    pub(super) fn leave_budget(&mut self) {
        if let Some(limits) = &mut self.limits {
            limits.rests();
        }
    }

    /// Returns true if the volume's limits let a request begin now.
    pub(super) fn admits(&mut self, slot: Slot) -> bool {
        let is_ending = self.is_ending();
        let Some(limits) = &mut self.limits else { return true };
        let (request, class) =
            (self.queue.request(slot), self.decisions[usize::from(slot.0)].class);
        if is_ending {
            // A caller waits for the lane, and must not do so for its guest's sake.
            limits.charge(request, class);
            return true;
        }
        limits.admits(request, class)
    }

    /// No request is begun before the storage has answered one, however long that takes.
    #[cold]
    pub(super) fn waits_for_storage(&mut self) {
        if let Some(limits) = &mut self.limits {
            limits.turn_ends();
        }
    }

    /// Waits for its part of the volume's limits.
    pub(crate) fn is_held(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.is_held())
    }

    /// Express requests do not wait for the limits.
    pub(super) fn exempts_express(&self) -> bool {
        self.classes.is_some() && self.limits.as_ref().is_some_and(|limits| limits.exempts())
    }

    /// While it is held: whether there can be requests in the ring that are to overtake those that
    /// wait.
    pub(super) fn looks_further(&self) -> bool {
        self.exempts_express() && self.ahead.is_below(self.most_ahead())
    }

    #[cold]
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        let channel = self.channel_deadline();
        // Without room, it is the storage that the lane waits for.
        let budget =
            self.limits.as_ref().filter(|_| self.may_begin()).and_then(|limits| limits.deadline());
        channel.into_iter().chain(budget).chain(self.coalescing_ends()).min()
    }
}
