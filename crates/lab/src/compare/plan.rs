//! What is measured when: the order of the measurements, and how long it takes.
//!
//! A *round* is one load on every column, one after the other; the order of the columns turns round from one round to the next (A B C, C B A),
//! so that what changes slowly on the machine hits all alike. A *pass* is every load once. The number of passes is what was asked for, or
//! what the time limit has room for.

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

/// The rounds of some passes.
pub fn rounds(loads: &[Load], columns: &[Column], passes: usize) -> Vec<Round> {
    let mut all = Vec::with_capacity(loads.len() * passes);
    for pass in 0..passes {
        for (index, load) in loads.iter().enumerate() {
            let mut order = columns.to_vec();
            // With an odd number of loads, too, a load's order turns round from pass to pass.
            if (pass + index) % 2 == 1 {
                order.reverse();
            }
            all.push(Round { pass, load: *load, order });
        }
    }
    all
}

/// What things take beside the measuring itself.
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
    /// What is to be expected; an emulated CPU needs more than a second to load fio's libraries.
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

    /// The most passes, up to `wanted`, that fit into `limit`, and the time of a measurement: less than wanted if
    /// not even one pass fits, but not less than [`LEAST_RUNTIME`].
    pub fn fit(
        &self,
        loads: &[Load],
        columns: &[Column],
        wanted: usize,
        runtime: Duration,
        limit: Option<Duration>,
    ) -> (usize, Duration) {
        let Some(limit) = limit else { return (wanted.max(1), runtime) };
        let one = self.total(&rounds(loads, columns, 1), runtime);
        if one > limit {
            let fixed = self.total(&rounds(loads, columns, 1), Duration::ZERO);
            let measurements = u32::try_from(loads.len() * columns.len()).unwrap_or(u32::MAX).max(1);
            let left = limit.saturating_sub(fixed) / measurements;
            return (1, left.max(LEAST_RUNTIME).min(runtime));
        }
        let fitting = (limit.as_secs_f64() / one.as_secs_f64().max(1e-3)).floor();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
        let fitting = fitting.clamp(1.0, 1000.0) as usize;
        (fitting.min(wanted.max(1)), runtime)
    }
}

/// A measurement that is shorter than this says nothing.
pub const LEAST_RUNTIME: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::super::loads::{all, fio_table};
    use super::*;

    const COLUMNS: [Column; 4] = [Column::Host, Column::Vlane, Column::Virtio, Column::Ide];

    #[test]
    fn every_load_meets_every_column_once_per_pass_and_the_order_turns_round() {
        for loads in [all(), fio_table()[..5].to_vec()] {
            let rounds = rounds(&loads, &COLUMNS, 2);
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

    #[test]
    fn time_is_the_sum_of_its_parts() {
        let ms = Duration::from_millis;
        let costs = Costs { host_start: ms(100), guest_start: ms(1000), guest_turn: ms(200) };
        let all = rounds(&fio_table(), &COLUMNS, 2);
        // Host: 700 + 100; guest: 1000 + 3 times (700 + 200).
        assert_eq!(costs.round(&all[0], ms(700)), ms(4500));
        assert_eq!(costs.total(&all, ms(700)), ms(4500 * 12));
        let alone = rounds(&fio_table(), &[Column::Host], 1);
        assert_eq!(costs.total(&alone, ms(700)), ms(800 * 6));
    }

    #[test]
    fn a_time_limit_takes_passes_first_and_then_the_time_of_each_measurement() {
        let ms = Duration::from_millis;
        let costs = Costs { host_start: ms(100), guest_start: ms(1000), guest_turn: ms(200) };
        let fit = |wanted, limit| costs.fit(&fio_table(), &COLUMNS, wanted, ms(700), limit);
        assert_eq!(fit(5, None), (5, ms(700)));
        assert_eq!(fit(5, Some(ms(27_000 * 2 + 1))), (2, ms(700)));
        assert_eq!(fit(1, Some(ms(1_000_000))), (1, ms(700)));
        let (passes, runtime) = fit(5, Some(ms(20_000)));
        assert!(passes == 1 && runtime < ms(700) && runtime >= LEAST_RUNTIME, "{runtime:?}");
        let total = costs.total(&rounds(&fio_table(), &COLUMNS, 1), runtime);
        assert!(total <= ms(20_000), "{total:?}");
        assert_eq!(fit(5, Some(ms(1))), (1, LEAST_RUNTIME));
    }
}
