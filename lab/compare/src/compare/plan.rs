//! The order of the measurements, and their total time.
//!
//! A *round* is one load on every column, one after the other. The order of the columns alternates
//! from one round to the next (A B C, C B A), so that slow changes of the machine hit all alike. A
//! *pass* is every load once. Some loads *decide*: conclusions are about them (`summary.rs`), and
//! they are measured in more passes than the others.
//!
//! *Parts* of the plan stand in order of importance: first a pass of everything, then the further
//! turns of the deciding loads, then the other loads again. A time limit leaves out parts from the
//! end.

use std::time::Duration;

use super::columns::Column;
use super::loads::Load;

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

/// How often what is measured.
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

/// The parts of the plan, what matters most first.
pub fn parts(
    loads: &[Load],
    columns: &[Column],
    deciding: &[Load],
    often: Often,
) -> Vec<Vec<Round>> {
    let decides = |load: &Load| deciding.contains(load);
    let mut parts = vec![pass(loads, columns, 0, |_| true)];
    parts.extend((1..often.turns).map(|turn| pass(loads, columns, turn, decides)));
    // One by one: the time that is left is used, however little it is.
    let others =
        (1..often.passes).flat_map(|again| pass(loads, columns, again, |load| !decides(load)));
    parts.extend(others.map(|round| vec![round]));
    parts.retain(|part| !part.is_empty());
    parts
}

/// Times of steps beside the measuring itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// To start fio on the host.
    pub host_start: Duration,
    /// To start fio in the guest: once per round.
    pub guest_start: Duration,
    /// To begin and end one measurement in the guest.
    pub guest_turn: Duration,
}

impl Costs {
    /// Expected times; an emulated CPU needs more than a second to load fio's libraries.
    pub fn guess(emulated: bool) -> Self {
        let ms = Duration::from_millis;
        match emulated {
            true => Self { host_start: ms(300), guest_start: ms(1800), guest_turn: ms(250) },
            false => Self { host_start: ms(300), guest_start: ms(300), guest_turn: ms(60) },
        }
    }

    /// How long a round takes.
    pub fn round(&self, round: &Round, runtime: Duration) -> Duration {
        let in_guest = u32::try_from(round.in_guest().count()).unwrap_or(u32::MAX);
        let on_host = u32::try_from(round.order.len()).unwrap_or(u32::MAX) - in_guest;
        (runtime + self.host_start) * on_host
            + if in_guest > 0 {
                self.guest_start + (runtime + self.guest_turn) * in_guest
            } else {
                Duration::ZERO
            }
    }

    /// How long rounds take.
    pub fn total(&self, rounds: &[Round], runtime: Duration) -> Duration {
        rounds.iter().map(|round| self.round(round, runtime)).sum()
    }

    /// Number of parts that fit into `limit`, and the time of a measurement. That time is less than
    /// wanted if not even the first `needed` parts fit, but not less than [`LEAST_RUNTIME`].
    pub fn fit(
        &self,
        parts: &[Vec<Round>],
        needed: usize,
        runtime: Duration,
        limit: Option<Duration>,
    ) -> (usize, Duration) {
        let Some(limit) = limit else { return (parts.len(), runtime) };
        let of = |parts: &[Vec<Round>], runtime| {
            parts.iter().map(|part| self.total(part, runtime)).sum::<Duration>()
        };
        let needed = &parts[..needed.min(parts.len())];
        let measurements: usize = needed.iter().flatten().map(|round| round.order.len()).sum();
        let left = limit.saturating_sub(of(needed, Duration::ZERO));
        let affordable = left / u32::try_from(measurements.max(1)).unwrap_or(u32::MAX);
        let runtime = affordable.max(LEAST_RUNTIME).min(runtime);
        let fits = (1..=parts.len()).take_while(|n| of(&parts[..*n], runtime) <= limit).count();
        (fits.max(1), runtime)
    }
}

/// A shorter measurement than this is meaningless.
pub const LEAST_RUNTIME: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::loads::{all, fio_table};
    use super::*;

    const COLUMNS: [Column; 4] = [Column::Host, Column::Vlane, Column::Virtio, Column::Ide];

    fn plan(loads: &[Load], deciding: &[Load], passes: usize, turns: usize) -> Vec<Vec<Round>> {
        parts(loads, &COLUMNS, deciding, Often { passes, turns })
    }

    #[test]
    fn passes_cover_all_and_alternate_order() {
        for loads in [all(), fio_table()[..5].to_vec()] {
            let rounds: Vec<Round> = plan(&loads, &[], 2, 1).concat();
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
            let parts = plan(&loads, deciding, passes, turns);
            let rounds = parts.concat();
            for load in &loads {
                let of: Vec<_> = rounds.iter().filter(|round| round.load == *load).collect();
                prop_assert_eq!(of.len(), if deciding.contains(load) { turns } else { passes });
                // Turn and turn about, each with a name of its own.
                for (turn, round) in of.iter().enumerate() {
                    prop_assert_eq!(round.pass, turn);
                    prop_assert_eq!(round.order == of[0].order, turn % 2 == 0);
                }
            }
            let needed = if some > 0 { turns } else { 1 };
            let first = parts[..needed].concat();
            prop_assert!(deciding.iter().all(|load| first.iter().filter(|round| round.load == *load).count() == turns));
            prop_assert!(loads.iter().all(|load| first.iter().any(|round| round.load == *load)));
        }
    }

    #[test]
    fn total_time_sums_its_parts() {
        let ms = Duration::from_millis;
        let costs = Costs { host_start: ms(100), guest_start: ms(1000), guest_turn: ms(200) };
        let all = plan(&fio_table(), &[], 2, 1).concat();
        // Host: 700 + 100; guest: 1000 + 3 times (700 + 200).
        assert_eq!(costs.round(&all[0], ms(700)), ms(4500));
        assert_eq!(costs.total(&all, ms(700)), ms(4500 * 12));
        let alone = pass(&fio_table(), &[Column::Host], 0, |_| true);
        assert_eq!(costs.total(&alone, ms(700)), ms(800 * 6));
    }

    /// After that it shortens each measurement.
    #[test]
    fn time_limit_drops_least_important_parts() {
        let ms = Duration::from_millis;
        let costs = Costs { host_start: ms(100), guest_start: ms(1000), guest_turn: ms(200) };
        // A part of 6 rounds of 4.5 s, four of 2 rounds, four of 1 round.
        let parts = plan(&fio_table(), &fio_table()[..2], 2, 5);
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [6, 2, 2, 2, 2, 1, 1, 1, 1]);
        let fit = |limit| costs.fit(&parts, 5, ms(700), limit);
        assert_eq!(fit(None), (9, ms(700)));
        assert_eq!(fit(Some(ms(4500 * 18))), (9, ms(700)));
        assert_eq!(fit(Some(ms(4500 * 16))), (7, ms(700)));
        assert_eq!(fit(Some(ms(4500 * 14))), (5, ms(700)));
        let (fits, runtime) = fit(Some(ms(4000 * 14)));
        assert!(fits == 5 && runtime < ms(700) && runtime >= LEAST_RUNTIME, "{runtime:?}");
        assert_eq!(fit(Some(ms(1))), (1, LEAST_RUNTIME));
    }
}
