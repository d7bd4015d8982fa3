//! A lane's own queues: lists of slots without a node to allocate, because a slot is in one list at
//! a time.

use vlane_engine::{Class, Slot};

/// No slot. A ring has at most 32768, so this is none.
const NONE: u16 = u16::MAX;

/// For each slot, which one comes after it in its list.
#[derive(Debug)]
pub(crate) struct Links(Box<[u16]>);

impl Links {
    pub(crate) fn new(slots: u16) -> Links {
        Links(vec![NONE; usize::from(slots)].into_boxed_slice())
    }
}

/// Slots, first in, first out.
#[derive(Debug)]
pub(crate) struct List {
    first: u16,
    last: u16,
}

impl List {
    pub(crate) const EMPTY: List = List { first: NONE, last: NONE };

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    #[inline]
    pub(crate) fn push(&mut self, links: &mut Links, Slot(slot): Slot) {
        links.0[usize::from(slot)] = NONE;
        match self.last {
            NONE => self.first = slot,
            last => links.0[usize::from(last)] = slot,
        }
        self.last = slot;
    }

    #[inline]
    pub(crate) fn pop(&mut self, links: &Links) -> Option<Slot> {
        let slot = self.first;
        if slot == NONE {
            return None;
        }
        self.first = links.0[usize::from(slot)];
        if self.first == NONE {
            self.last = NONE;
        }
        Some(Slot(slot))
    }
}

/// Requests that were taken and are not begun: a list for each class.
#[derive(Debug)]
pub(crate) struct Waiting([List; 4]);

impl Waiting {
    pub(crate) const EMPTY: Waiting = Waiting([List::EMPTY; 4]);

    pub(crate) fn push(&mut self, links: &mut Links, class: Class, slot: Slot) {
        self.0[class as usize].push(links, slot);
    }

    /// The request that [`Waiting::pop_of`] takes next.
    pub(crate) fn first_of(&self, class: Class) -> Option<Slot> {
        let list = &self.0[class as usize];
        (!list.is_empty()).then_some(Slot(list.first))
    }

    /// The first of the first class that has one.
    pub(crate) fn pop(&mut self, links: &Links) -> Option<Slot> {
        self.0.iter_mut().find_map(|list| list.pop(links))
    }

    /// The first of a class.
    pub(crate) fn pop_of(&mut self, links: &Links, class: Class) -> Option<Slot> {
        self.0[class as usize].pop(links)
    }

    /// Returns true if a request of a class waits.
    pub(crate) fn has(&self, class: Class) -> bool {
        !self.0[class as usize].is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_class_goes_first_in_order() {
        let mut links = Links::new(8);
        let mut waiting = Waiting::EMPTY;
        let classes =
            [Class::Background, Class::Normal, Class::Express, Class::Normal, Class::Express];
        for (slot, class) in (0..).zip(classes) {
            waiting.push(&mut links, class, Slot(slot));
        }
        assert_eq!(waiting.first_of(Class::Normal), Some(Slot(1)));
        let mut next = || waiting.pop(&links);
        let order: Vec<u16> = std::iter::from_fn(&mut next).map(|slot| slot.0).collect();
        assert_eq!(order, [2, 4, 1, 3, 0]);
    }

    #[test]
    fn emptied_list_is_reusable() {
        let mut links = Links::new(4);
        let mut list = List::EMPTY;
        for round in 0..3u16 {
            assert!(list.is_empty() && list.pop(&links).is_none());
            (0..4).for_each(|slot| list.push(&mut links, Slot((slot + round) % 4)));
            let order: Vec<u16> =
                std::iter::from_fn(|| list.pop(&links)).map(|slot| slot.0).collect();
            assert_eq!(order, (0..4).map(|slot| (slot + round) % 4).collect::<Vec<_>>());
        }
    }
}
