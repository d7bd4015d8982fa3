//! Turns among classes: the class of the request that is begun next.
//!
//! The first class that waits goes first, but one of [`SHARE`] turns is each waiting lower class's.
//! So no class starves: while a class waits, at most [`MOST_PASSED`] requests of others are begun
//! before one of its own. Within a class, requests are begun in the order of their arrival; so a
//! request behind n others of its class is begun after at most (n + 1) x [`MOST_PASSED`] requests
//! of others.

use super::Class;

/// One of so many turns goes to each waiting lower class.
pub const SHARE: u8 = 16;
/// Requests of other classes that are begun while a class waits, at most: one more than a share's
/// others, because both lower classes can be due at once.
pub const MOST_PASSED: u32 = SHARE as u32;

/// Which of something there is one of for each class: which classes wait, or which may begin one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Each<T>(pub [T; 3]);

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
    passed: [u8; 3],
}

impl Turns {
    /// Returns the class whose turn it is among those that wait; none if none waits.
    #[inline]
    pub fn next(&self, waits: Each<bool>) -> Option<Class> {
        let is_due = |class: Class| waits.of(class) && self.passed[class as usize] >= SHARE - 1;
        if is_due(Class::Background) {
            return Some(Class::Background);
        }
        if is_due(Class::Normal) {
            return Some(Class::Normal);
        }
        Class::ALL.into_iter().find(|class| waits.of(*class))
    }

    /// True if it is that class's turn because it has waited for long enough, even while classes
    /// before it wait.
    #[inline]
    pub fn is_due(&self, class: Class) -> bool {
        self.passed[class as usize] >= SHARE - 1
    }

    /// One of that class is begun; `waits` are the classes that waited at that moment, itself
    /// included.
    #[inline]
    pub fn begun(&mut self, class: Class, waits: Each<bool>) {
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

    /// Each of the two other classes has one turn of sixteen.
    #[test]
    fn express_goes_first_in_fourteen_of_sixteen() {
        let mut turns = Turns::default();
        let all = Each([true; 3]);
        let mut begun = [0; 3];
        for _ in 0..160 {
            let class = turns.next(all).unwrap();
            turns.begun(class, all);
            begun[class as usize] += 1;
        }
        assert_eq!(begun, [141, 9, 10]);
        assert_eq!(turns.next(Each([false, true, true])), Some(Class::Normal));
        assert_eq!(turns.next(Each([false; 3])), None);
    }

    proptest! {
        /// In any schedule, a class that waits sees at most so many of the others begun before one
        /// of its own.
        #[test]
        fn no_class_starves_in_any_schedule(schedule in prop::collection::vec((any::<[bool; 3]>(), 1u8..40), 1..60)) {
            let mut turns = Turns::default();
            let mut passed = [0u32; 3];
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
        fn express_yields_at_most_two_of_sixteen(waits in prop::collection::vec(any::<[bool; 2]>(), 16..400)) {
            let mut turns = Turns::default();
            let mut lower = Vec::new();
            for [normal, background] in waits {
                let waits = Each([true, normal, background]);
                let class = turns.next(waits).unwrap();
                turns.begun(class, waits);
                lower.push(class != Class::Express);
            }
            for some in lower.windows(usize::from(SHARE)) {
                prop_assert!(some.iter().filter(|lower| **lower).count() <= 2);
            }
        }
    }
}
