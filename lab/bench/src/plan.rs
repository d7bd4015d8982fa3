//! The order of the measurements: fair to all targets, under any other load of the machine.

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// Place of the load in the profile.
    pub load: usize,
    /// Which of its repetitions.
    pub round: usize,
    /// Place of the target in the profile.
    pub target: usize,
}

/// All measurements in order, load by load. Interleaved, a load's order is A B, B A, A B, .... So
/// drift hits all targets alike, and each target comes first as often as second. Not interleaved:
/// all rounds of A, then all of B.
pub fn order(loads: usize, targets: usize, repeats: usize, interleave: bool) -> Vec<Step> {
    let mut steps = Vec::with_capacity(loads * targets * repeats);
    for load in 0..loads {
        if interleave {
            for round in 0..repeats {
                let place = |i| if round % 2 == 0 { i } else { targets - 1 - i };
                steps.extend((0..targets).map(|i| Step { load, round, target: place(i) }));
            }
        } else {
            for target in 0..targets {
                steps.extend((0..repeats).map(|round| Step { load, round, target }));
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every load is measured on every target in every round exactly once, and loads do not
        /// mix.
        #[test]
        fn every_run_happens_once(
            loads in 1_usize..5, targets in 1_usize..5, repeats in 1_usize..8, interleave in any::<bool>(),
        ) {
            let steps = order(loads, targets, repeats, interleave);
            let mut sorted = steps.clone();
            sorted.sort_unstable();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), loads * targets * repeats);
            prop_assert_eq!(steps.len(), sorted.len());
            prop_assert!(steps.windows(2).all(|w| w[0].load <= w[1].load));
        }

        /// Interleaved, a round is over before the next begins. Over every two rounds all targets
        /// have the same mean place in time: a steady drift of the machine favours none.
        #[test]
        fn interleaving_favours_no_target(targets in 1_usize..6, pairs in 1_usize..6) {
            let steps = order(1, targets, 2 * pairs, true);
            prop_assert!(steps.windows(2).all(|w| w[0].round <= w[1].round));
            let mut places = vec![0; targets];
            for (place, step) in steps.iter().enumerate() {
                places[step.target] += place;
            }
            prop_assert!(places.iter().all(|sum| *sum == places[0]), "{:?}", places);
        }
    }
}
