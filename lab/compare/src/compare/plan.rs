//! The order of the measurements, and their total time.
//!
//! A *round* is one load on every column, one after the other. The order of the columns alternates
//! from one round to the next (A B C, C B A), so that slow changes of the machine hit all alike. A
//! *pass* is every load once. Some loads *decide*: conclusions are about them (`summary.rs`), and
//! they are measured in more passes than the others.
//!
//! The rounds stand in order of importance: first a pass of everything, then the further turns of
//! the deciding loads, then the other loads again. A time limit leaves out rounds from the end.

use std::time::Duration;

use super::columns::Column;
use super::loads::Load;

/// A shorter measurement than this is meaningless.
pub const LEAST_RUNTIME: Duration = Duration::from_millis(250);

/// One load on every column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// The pass that it belongs to, from 0.
    pub pass: usize,
    /// The load.
    pub load: Load,
    /// The columns, in the order of measuring.
    pub order: Vec<Column>,
}

impl Round {
    /// Its name on the guest's console.
    pub fn id(&self) -> String {
        format!("p{}-{}", self.pass, self.load.id())
    }

    /// The columns that are measured inside the guest.
    pub fn in_guest(&self) -> impl Iterator<Item = Column> {
        self.order.iter().copied().filter(|column| *column != Column::Host)
    }
}

/// Times that loads are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Often {
    /// Passes of all loads.
    pub passes: usize,
    /// Turns of each load that decides; not fewer than there are passes.
    pub turns: usize,
}

/// One round of each of some loads in a pass.
pub fn pass(
    loads: &[Load],
    columns: &[Column],
    pass: usize,
    wanted: impl Fn(&Load) -> bool,
) -> Vec<Round> {
    let chosen = loads.iter().enumerate().filter(|(_, load)| wanted(load));
    let round = |(index, load): (usize, &Load)| {
        let mut order = columns.to_vec();
        // With an odd number of loads, too, a load's order turns round from pass to pass.
        if (pass + index) % 2 == 1 {
            order.reverse();
        }
        Round { pass, load: *load, order }
    };
    chosen.map(round).collect()
}

/// The rounds of some loads, the most important ones first.
pub fn rounds(loads: &[Load], columns: &[Column], deciding: &[Load], often: Often) -> Vec<Round> {
    let decides = |load: &Load| deciding.contains(load);
    let turns = (1..often.turns).flat_map(|turn| pass(loads, columns, turn, decides));
    let others =
        (1..often.passes).flat_map(|again| pass(loads, columns, again, |load| !decides(load)));
    pass(loads, columns, 0, |_| true).into_iter().chain(turns).chain(others).collect()
}

/// Measurements of some rounds.
pub fn steps(rounds: &[Round]) -> u32 {
    let steps: usize = rounds.iter().map(|round| round.order.len()).sum();
    u32::try_from(steps).unwrap_or(u32::MAX)
}

/// Makes the rounds fit into `limit`, and gives the time of a measurement. Each needs the time
/// `around` besides, and `more` of them come afterwards. The time is less than wanted if not even
/// the first `needed` rounds fit. Then the last rounds are left out.
pub fn fit(
    rounds: &mut Vec<Round>,
    needed: usize,
    more: u32,
    (wanted, around): (Duration, Duration),
    limit: Duration,
) -> Duration {
    let affordable = limit / (steps(&rounds[..needed.min(rounds.len())]) + more).max(1);
    let runtime = affordable.saturating_sub(around).max(LEAST_RUNTIME).min(wanted);
    while rounds.len() > needed && (runtime + around) * (steps(rounds) + more) > limit {
        rounds.pop();
    }
    runtime
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::loads::{all, fio_table};
    use super::*;

    const COLUMNS: [Column; 4] = [Column::Host, Column::Vlane, Column::Virtio, Column::Ide];

    fn plan(loads: &[Load], deciding: &[Load], passes: usize, turns: usize) -> Vec<Round> {
        super::rounds(loads, &COLUMNS, deciding, Often { passes, turns })
    }

    #[test]
    fn passes_cover_all_and_alternate_order() {
        for loads in [all(), fio_table()[..5].to_vec()] {
            let rounds = plan(&loads, &[], 2, 1);
            assert_eq!(rounds.len(), loads.len() * 2);
            for round in &rounds {
                let mut seen = round.order.clone();
                seen.sort_unstable();
                assert_eq!(seen, COLUMNS);
                assert_eq!(round.in_guest().count(), 3);
            }
            for pair in rounds[..loads.len()].windows(2) {
                let mut turned = pair[0].order.clone();
                turned.reverse();
                assert_eq!(turned, pair[1].order, "the next round turns round");
            }
            for (first, second) in rounds[..loads.len()].iter().zip(&rounds[loads.len()..]) {
                let mut turned = first.order.clone();
                turned.reverse();
                assert_eq!((turned, first.load), (second.order.clone(), second.load));
                assert!(first.id() != second.id());
            }
        }
    }

    proptest! {
        #[test]
        fn deciding_loads_come_first(passes in 1..4_usize, more in 0..6_usize, some in 0..6_usize) {
            let (loads, turns) = (all(), passes + more);
            let deciding = &fio_table()[..some];
            let rounds = plan(&loads, deciding, passes, turns);
            for load in &loads {
                let of: Vec<_> = rounds.iter().filter(|round| round.load == *load).collect();
                prop_assert_eq!(of.len(), if deciding.contains(load) { turns } else { passes });
                // Turn and turn about, each with a name of its own.
                for (turn, round) in of.iter().enumerate() {
                    prop_assert_eq!(round.pass, turn);
                    prop_assert_eq!(round.order == of[0].order, turn % 2 == 0);
                }
            }
            let first = &rounds[..loads.len() + some * (turns - 1)];
            prop_assert!(deciding.iter().all(|load| first.iter().filter(|round| round.load == *load).count() == turns));
            prop_assert!(loads.iter().all(|load| first.iter().any(|round| round.load == *load)));
        }
    }

    /// Before that it shortens each measurement.
    #[test]
    fn time_limit_drops_least_important_rounds() {
        let ms = Duration::from_millis;
        // Rounds of 4 measurements: 6 of all loads, 8 of those that decide, 4 of the others.
        let all = plan(&fio_table(), &fio_table()[..2], 2, 5);
        assert_eq!((all.len(), steps(&all)), (18, 72));
        let fit = |limit: u64, more| {
            let mut rounds = all.clone();
            let runtime = fit(&mut rounds, 14, more, (ms(700), ms(300)), ms(limit));
            assert_eq!(rounds, all[..rounds.len()], "the last ones are left out");
            (rounds.len(), runtime)
        };
        assert_eq!(fit(72_000, 0), (18, ms(700)));
        assert_eq!(fit(72_000, 8), (16, ms(700)));
        assert_eq!(fit(64_000, 0), (16, ms(700)));
        assert_eq!(fit(56_000, 0), (14, ms(700)));
        let (rounds, runtime) = fit(40_000, 0);
        assert!(rounds == 14 && runtime < ms(700) && runtime >= LEAST_RUNTIME, "{runtime:?}");
        assert_eq!(fit(1, 0), (14, LEAST_RUNTIME));
    }
}
