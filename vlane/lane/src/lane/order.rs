//! The next request to begin, where that is not simply the next of the ring: requests wait, classes
//! are mixed, or the volume has limits.
//!
//! Classes decide which of the waiting requests is next, and if there is room for it at the device.
//! Limits decide if it may be begun already.

use vlane_engine::Class;
use vlane_ring::Slot;

use super::Lane;

impl Lane {
    /// Notes if the next request is simply that of the ring.
    pub(super) fn update_is_plain(&mut self) {
        self.is_plain = self.ahead.requests == 0 && self.limits.is_none() && !self.orders();
    }

    /// Requests are begun in the order of their classes.
    pub(super) fn orders(&self) -> bool {
        self.classes.as_ref().is_some_and(|classes| classes.orders())
    }

    /// The list in which a request waits: that of its class where it can overtake those of others,
    /// otherwise one for all.
    pub(super) fn list_of(&self, slot: Slot) -> Class {
        match self.decisions[usize::from(slot.0)].class {
            class if self.orders() => class,
            Class::Express if self.exempts_express() => Class::Express,
            _ => Class::Normal,
        }
    }

    /// The next request.
    #[cold]
    pub(super) fn next_in_order(&mut self) -> Option<Slot> {
        if self.orders() {
            // A request of a better class may have come.
            self.take_ahead();
            if self.is_moving() {
                return None;
            }
        }
        if self.limits.is_some() {
            return self.next_within_limits();
        }
        let class = self.next_list()?;
        self.leaves_waiting(class)
    }

    /// The list whose first request is next; `None` if no request waits, or none with room at the
    /// device.
    fn next_list(&self) -> Option<Class> {
        let waits = self.waiting.waits();
        match &self.classes {
            Some(classes) if classes.orders() => classes.next(waits),
            // The rest of a time with an order goes before lists that others add to: it would wait
            // for ever.
            _ => [Class::Express, Class::Promoted, Class::Background, Class::Normal]
                .into_iter()
                .find(|list| waits.of(*list)),
        }
    }

    fn leaves_waiting(&mut self, list: Class) -> Option<Slot> {
        let waits = self.waiting.waits();
        let slot = self.waiting.pop_of(&self.links, list)?;
        self.ahead.remove(self.queue.request(slot));
        self.update_is_plain();
        self.begins_waited(slot, list, waits);
        Some(slot)
    }

    fn next_within_limits(&mut self) -> Option<Slot> {
        loop {
            let Some(list) = self.next_list() else {
                if self.ahead.requests > 0 {
                    self.waits_for_storage();
                    return None;
                }
                if !self.take_one_ahead() {
                    // No request waits, so no budget is to be kept.
                    self.leave_budget();
                    return None;
                }
                continue;
            };
            if self.waiting.first_of(list).is_some_and(|slot| self.admits(slot)) {
                return self.leaves_waiting(list);
            }
            if !self.exempts_express() {
                return None;
            }
            // Exempt requests do not wait behind it.
            let express = self.waiting.first_of(Class::Express).filter(|_| list != Class::Express);
            if express.is_some() && self.has_room_for_express() {
                return self.leaves_waiting(Class::Express);
            }
            if !self.looks_further() || !self.take_one_ahead() {
                return None;
            }
        }
    }

    fn has_room_for_express(&self) -> bool {
        let only = self.waiting.waits().only(Class::Express);
        self.classes
            .as_ref()
            .is_none_or(|classes| !classes.orders() || classes.next(only).is_some())
    }

    /// Returns true if a waiting request may be begun, as far as the device goes.
    pub(super) fn may_begin(&self) -> bool {
        self.has_room() && !(self.orders() && self.is_moving()) && self.next_list().is_some()
    }

    /// Returns true if a waiting one may be begun, or there is one to be taken.
    #[cold]
    pub(super) fn has_next_in_order(&mut self) -> bool {
        let is_held = self.is_held();
        if !is_held && self.may_begin() {
            return true;
        }
        let looks = match is_held {
            true => self.looks_further(),
            false if self.orders() => self.takes_ahead(),
            false => self.ahead.requests == 0 && self.has_room(),
        };
        looks && !self.takes_no_more() && self.queue.has_available()
    }
}
