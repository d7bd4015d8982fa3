//! The goals of a cell's arms, for the common judge.

use vlane_report::{Arms, Bound, Measured, Spread, Verdict, median};

use super::measure::Sample;
use super::plan::{Cell, Expected, has_goals};

/// The arm that others are held against.
const BASE: &str = "writeback";
/// The other one that has to be reached.
const DIRECT: &str = "none";
/// Misses of the neighbour, of those with the base: where the journal is what does not fit.
const MISSES: f64 = 0.25;
/// Its reads, over those with the base, where misses bound them.
const READS: f64 = 1.8;
/// Operations and reads are at least this, over those of the better of base and direct.
const NOT_WORSE: f64 = 0.95;
/// Pages of the journal that may be in the page cache in the end.
const PAGES: f64 = 2048.0;
/// Where fewer of the base's reads miss, no gain is possible.
const FEW_MISSES: f64 = 0.005;

/// A cell, with all arms.
#[derive(Debug, Clone)]
pub struct CellResult {
    /// The cell.
    pub cell: Cell,
    /// Effect that its sizes predict.
    pub expected: Expected,
    /// The arms, the base first.
    pub arms: Arms<Sample>,
}

impl CellResult {
    /// The goals of the arms that are meant to reach them; none for the base and its repetition.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let Some(base) = self.arms.0.first() else { return Vec::new() };
        let has_goals = |arm: &&Measured<Sample>| !arm.is_again() && has_goals(&arm.arm);
        self.arms.0.iter().skip(1).filter(has_goals).flat_map(|arm| self.judge(base, arm)).collect()
    }

    fn judge(&self, base: &Measured<Sample>, arm: &Measured<Sample>) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        if self.expected == Expected::Helps {
            let void = match middle(base, |s| s.misses) {
                misses if misses.is_some_and(|misses| misses < FEW_MISSES) => {
                    "the base misses next to nothing"
                }
                _ => Self::moving(&[base, arm]),
            };
            let over = |goal, wanted, of: fn(&Sample) -> f64| {
                let of = |s: &Sample| steady(s, of);
                let verdict = self.arms.verdict(&self.cell.id(), &arm.arm, goal, wanted, of)?;
                Some(Verdict { void, ..verdict })
            };
            verdicts.extend(over("misses over the base's", Bound::AtMost(MISSES), |s| s.misses));
            if self.cell.rate.is_none() {
                verdicts.extend(over("reads over the base's", Bound::AtLeast(READS), |s| s.reads));
            }
        } else {
            verdicts.push(self.not_worse("reads", arm, |s| s.reads));
        }
        verdicts.push(self.not_worse("operations", arm, |s| s.operations));
        let pages = arm.rounds.iter().map(|s| s.journal_pages).collect::<Option<Vec<_>>>();
        if let Some(most) = pages.and_then(|pages| pages.into_iter().max()) {
            verdicts.push(Verdict {
                place: self.cell.id(),
                arm: arm.arm.clone(),
                goal: "the journal's pages in the cache, the most".into(),
                figure: Some(Spread::exact(most as f64)),
                wanted: Bound::AtMost(PAGES),
                noise: None,
                void: "",
            });
        }
        verdicts
    }

    /// A figure, of which more is better, over that of the better of base and direct: at least
    /// 0.95, and not below what the base has over itself.
    fn not_worse(&self, name: &str, arm: &Measured<Sample>, of: fn(&Sample) -> f64) -> Verdict {
        let rivals = self.arms.0.iter().enumerate().filter(|(place, rival)| {
            (*place == 0 || rival.arm == BASE || rival.arm == DIRECT) && rival.arm != arm.arm
        });
        let better = rivals.filter_map(|(_, rival)| Some((middle(rival, of)?, rival)));
        let better = better.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, rival)| rival);
        let noise = self.arms.noise(|s| steady(s, of));
        let least = noise.map_or(NOT_WORSE, |noise| NOT_WORSE.max(noise.min.min(1.0)));
        let figure = better.and_then(|better| arm.over(better, |s| steady(s, of)));
        let wanted = Bound::AtLeast(least);
        let is_missed = figure.is_some_and(|figure| !wanted.holds(figure.median));
        let moving = Self::moving(&[better.unwrap_or(arm), arm]);
        Verdict {
            place: self.cell.id(),
            arm: arm.arm.clone(),
            goal: format!("{name} over the better one's"),
            figure,
            wanted,
            noise,
            void: match moving {
                "" if noise.is_none() && !is_missed => "there is no A/A",
                void => void,
            },
        }
    }

    /// The reason why figures of these arms are inconclusive, if hits moved in a round.
    fn moving(arms: &[&Measured<Sample>]) -> &'static str {
        let mut rounds = arms.iter().flat_map(|arm| &arm.rounds);
        if !rounds.all(Sample::is_steady) { "hits still moved in the windows" } else { "" }
    }
}

/// A figure of a round, if hits did not move in it.
pub(super) fn steady(sample: &Sample, of: impl Fn(&Sample) -> f64) -> Option<f64> {
    sample.is_steady().then(|| of(sample))
}

/// The middle of a figure over the steady rounds; none without such a round.
fn middle(arm: &Measured<Sample>, of: impl Fn(&Sample) -> f64) -> Option<f64> {
    let figures: Vec<f64> = arm.rounds.iter().filter_map(|sample| steady(sample, &of)).collect();
    (!figures.is_empty()).then(|| median(&figures))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::Duration;

    use super::super::plan::Job;
    use super::*;

    fn arm(
        name: &str,
        operations: [f64; 3],
        reads: f64,
        misses: f64,
        pages: u64,
    ) -> Measured<Sample> {
        let rounds = operations.map(|operations| Sample {
            operations,
            reads,
            misses,
            journal_pages: Some(pages),
            ..Sample::default()
        });
        Measured { arm: name.into(), rounds: rounds.into() }
    }

    fn result(expected: Expected, rate: Option<f64>, arms: Vec<Measured<Sample>>) -> CellResult {
        let cell = Cell { job: Job::Commits, journal: 256 << 20, rate, delay: Duration::ZERO };
        CellResult { cell, expected, arms: Arms(arms) }
    }

    fn met(result: &CellResult, arm: &str, goal: &str) -> Option<bool> {
        let verdicts = result.verdicts();
        let found = verdicts.iter().find(|v| v.arm == arm && v.goal.starts_with(goal));
        found.unwrap_or_else(|| panic!("no {goal} of {arm} in {verdicts:?}")).is_met()
    }

    fn usual(drop: Measured<Sample>) -> Vec<Measured<Sample>> {
        vec![
            arm("writeback", [100.0, 110.0, 105.0], 25e3, 0.24, 60_000),
            arm("writeback again", [98.0, 111.0, 106.0], 25e3, 0.25, 60_000),
            arm("none", [80.0, 80.0, 80.0], 50e3, 0.002, 0),
            drop,
        ]
    }

    #[test]
    fn reached_goals_are_met() {
        let result = result(
            Expected::Helps,
            None,
            usual(arm("pdc", [101.0, 109.0, 105.0], 52e3, 0.002, 900)),
        );
        for goal in ["misses", "reads", "operations", "the journal's pages"] {
            assert_eq!(met(&result, "pdc", goal), Some(true), "{goal}");
        }
        assert!(
            result.verdicts().iter().all(|v| v.arm == "pdc"),
            "the others are what it is held against"
        );
    }

    #[test]
    fn each_goal_can_be_missed() {
        let result =
            result(Expected::Helps, None, usual(arm("pdc", [94.0, 104.0, 99.0], 40e3, 0.07, 2049)));
        for goal in ["misses", "reads", "operations", "the journal's pages"] {
            assert_eq!(met(&result, "pdc", goal), Some(false), "{goal}");
        }
    }

    #[test]
    fn base_without_misses_is_inconclusive() {
        let mut arms = usual(arm("pdc", [101.0, 109.0, 105.0], 25e3, 0.001, 0));
        for round in &mut arms[0].rounds {
            round.misses = 0.001;
        }
        let result = result(Expected::Helps, None, arms);
        assert_eq!(met(&result, "pdc", "misses"), None);
        assert_eq!(met(&result, "pdc", "reads"), None);
    }

    #[test]
    fn moving_hits_are_inconclusive() {
        let mut arms = usual(arm("pdc", [94.0, 104.0, 99.0], 40e3, 0.07, 0));
        arms[3].rounds[1].moved = 0.02;
        for goal in ["misses", "reads", "operations"] {
            assert_eq!(met(&result(Expected::Helps, None, arms.clone()), "pdc", goal), None);
        }
    }

    #[test]
    fn better_arm_is_goal_without_expected_difference() {
        let of =
            |reads| result(Expected::Fits, Some(5e3), usual(arm("pdc", [105.0; 3], reads, 0.0, 0)));
        // `none` has 50,000 reads per second here, and the base has what it has in each round.
        assert_eq!(met(&of(49e3), "pdc", "reads"), Some(false));
        assert_eq!(met(&of(50e3), "pdc", "reads"), Some(true));
    }

    #[test]
    fn fixed_rate_excludes_goal_for_reads() {
        let result =
            result(Expected::Helps, Some(5e3), usual(arm("pdc", [105.0; 3], 5e3, 0.002, 0)));
        assert!(result.verdicts().iter().all(|v| !v.goal.starts_with("reads")));
    }

    #[test]
    fn missing_second_base_is_inconclusive() {
        for (operations, outcome) in [(105.0, None), (90.0, Some(false))] {
            let mut arms = usual(arm("pdc", [operations; 3], 52e3, 0.002, 0));
            arms.remove(1);
            assert_eq!(met(&result(Expected::Helps, None, arms), "pdc", "operations"), outcome);
        }
    }
}
