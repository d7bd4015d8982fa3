//! Turns among classes: the class of the request that is begun next.
//!
//! The first class that waits goes first, but one of [`SHARE`] turns is each waiting lower class's.
//! One of [`PROMOTED_SHARE`] turns goes to promoted requests that wait. So no class starves: while a
//! class waits, at most [`MOST_PASSED`] requests of others are begun before one of its own. Within a
//! class, requests are begun in the order of their arrival. So a request behind n others of its
//! class is begun after at most (n + 1) x [`MOST_PASSED`] requests of others.
//!
//! While a lower class waits, no two promoted requests are begun one after the other: the requests
//! of a background's fsyncs are among them.

use super::Class;

/// One of so many turns goes to each waiting lower class.
pub const SHARE: u8 = 16;
/// One of so many turns goes to promoted requests that wait.
pub const PROMOTED_SHARE: u8 = 4;
/// Requests of other classes that are begun while a class waits, at most: one more than a share's
/// others, because both lower classes can be due at once.
pub const MOST_PASSED: u32 = SHARE as u32;

/// Which of something there is one of for each class: which classes wait, or which may begin one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Each<T>(pub [T; 4]);

impl Each<bool> {
    /// That class, if it is one of them, and no other.
    pub fn only(self, class: Class) -> Each<bool> {
        Each(Class::ALL.map(|other| other == class && self.of(other)))
    }
}

impl<T: Copy> Each<T> {
    /// Returns a class's value.
    #[inline]
    pub fn of(self, class: Class) -> T {
        self.0[class as usize]
    }
}

/// Gives the classes their turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Turns {
    /// Requests of others that were begun while the class waited; its own ended the count.
    passed: [u8; 4],
    /// The last turn was that of a promoted request.
    was_promoted: bool,
}

impl Turns {
    /// Returns the class whose turn it is among those that wait; none if none waits.
    #[inline]
    pub fn next(&self, waits: Each<bool>) -> Option<Class> {
        let is_due = |class: Class| waits.of(class) && self.is_due(class);
        // The lowest that is due goes first: it has waited for longest.
        if is_due(Class::Background) {
            return Some(Class::Background);
        }
        if is_due(Class::Normal) {
            return Some(Class::Normal);
        }
        let [express, promoted, normal, background] = waits.0;
        if promoted && !(self.was_promoted && (normal || background)) {
            let is_next = !express || self.is_due(Class::Promoted);
            return Some(if is_next { Class::Promoted } else { Class::Express });
        }
        match (express, normal, background) {
            (true, ..) => Some(Class::Express),
            (_, true, _) => Some(Class::Normal),
            (.., true) => Some(Class::Background),
            _ => None,
        }
    }

    /// True if it is that class's turn because it has waited for long enough, even while classes
    /// before it wait.
    #[inline]
    pub fn is_due(&self, class: Class) -> bool {
        let share = if class == Class::Promoted { PROMOTED_SHARE } else { SHARE };
        self.passed[class as usize] >= share - 1
    }

    /// One of that class is begun; `waits` are the classes that waited at that moment, itself
    /// included.
    #[inline]
    pub fn begun(&mut self, class: Class, waits: Each<bool>) {
        self.was_promoted = class == Class::Promoted;
        for other in Class::ALL {
            let passed = &mut self.passed[other as usize];
            *passed = if other == class || !waits.of(other) { 0 } else { passed.saturating_add(1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    /// The turns of each class while all of `waits` wait.
    fn begun(waits: [bool; 4]) -> [u32; 4] {
        let (mut turns, mut begun) = (Turns::default(), [0; 4]);
        for _ in 0..160 {
            let class = turns.next(Each(waits)).unwrap();
            turns.begun(class, Each(waits));
            begun[class as usize] += 1;
        }
        begun
    }

    #[test]
    fn waiting_classes_share_turns() {
        // Each of the two lower classes has one turn of sixteen, and promoted requests one of four.
        assert_eq!(begun([true, false, true, true]), [141, 0, 9, 10]);
        assert_eq!(begun([true, true, false, false]), [120, 40, 0, 0]);
        // At most every second turn, while a lower class waits.
        assert_eq!(begun([false, true, true, false]), [0, 80, 80, 0]);
        assert_eq!(begun([false, true, false, true]), [0, 80, 0, 80]);
        let turns = Turns::default();
        assert_eq!(turns.next(Each([false, false, true, true])), Some(Class::Normal));
        assert_eq!(turns.next(Each([false; 4])), None);
    }

    proptest! {
        /// In any schedule, a class that waits sees at most so many of the others begun before one
        /// of its own.
        #[test]
        fn no_class_starves_in_any_schedule(
            schedule in prop::collection::vec((any::<[bool; 4]>(), 1u8..40), 1..60)
        ) {
            let mut turns = Turns::default();
            let mut passed = [0u32; 4];
            for (waits, times) in schedule {
                let waits = Each(waits);
                for _ in 0..times {
                    let Some(class) = turns.next(waits) else { break };
                    prop_assert!(waits.of(class), "a class that does not wait has the turn");
                    turns.begun(class, waits);
                    for other in Class::ALL {
                        let passed = &mut passed[other as usize];
                        *passed = if other == class || !waits.of(other) { 0 } else { *passed + 1 };
                        prop_assert!(*passed <= MOST_PASSED, "{other} waited for {passed}");
                    }
                }
            }
        }

        /// Requests of a lower class are begun only when that class is due.
        #[test]
        fn express_yields_at_most_two_of_sixteen(
            waits in prop::collection::vec(any::<[bool; 2]>(), 16..400)
        ) {
            let mut turns = Turns::default();
            let mut lower = Vec::new();
            for [normal, background] in waits {
                let waits = Each([true, false, normal, background]);
                let class = turns.next(waits).unwrap();
                turns.begun(class, waits);
                lower.push(class != Class::Express);
            }
            for some in lower.windows(usize::from(SHARE)) {
                prop_assert!(some.iter().filter(|lower| **lower).count() <= 2);
            }
        }

        /// However many promoted requests wait: a lower class that waits has as many turns.
        #[test]
        fn promoted_requests_alternate_with_lower_ones(
            schedule in prop::collection::vec(any::<[bool; 3]>(), 1..400)
        ) {
            let mut turns = Turns::default();
            let mut was_promoted = false;
            for [express, normal, background] in schedule {
                let waits = Each([express, true, normal, background]);
                let class = turns.next(waits).unwrap();
                turns.begun(class, waits);
                let is_promoted = class == Class::Promoted;
                prop_assert!(!(was_promoted && is_promoted && (normal || background)));
                was_promoted = is_promoted;
            }
        }
    }
}
