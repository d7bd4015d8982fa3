//! What was aimed at, and whether it was reached: per cell and arm.

use serde::Serialize;
use vlane_report::stats::median;

use super::measure::Sample;
use super::plan::{Cell, Expected};

/// The arm that others are held against.
pub const BASE: &str = "writeback";
/// The other one that has to be reached.
pub const DIRECT: &str = "none";
/// What a name gets that stands for the same arm again (A/A).
pub const AGAIN: &str = " again";

/// Misses of the neighbour, of those with the base: where the journal is what does not fit.
const MISSES: f64 = 0.25;
/// Its reads, over those with the base, where misses bound them.
const READS: f64 = 1.8;
/// Operations and reads are at least this, over those of the better of base and direct.
const NOT_WORSE: f64 = 0.95;
/// Pages of the journal that may be in the page cache in the end.
const PAGES: u64 = 2048;
/// Where fewer of the base's reads miss there is nothing to be won.
const FEW_MISSES: f64 = 0.005;

/// What was measured of one arm, by round.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// The arm's name.
    pub arm: String,
    /// Whether the goals are for it.
    pub has_goals: bool,
    /// Its rounds.
    pub rounds: Vec<Sample>,
}

/// A cell, with all arms.
#[derive(Debug, Clone, Serialize)]
pub struct CellResult {
    /// The cell.
    pub cell: Cell,
    /// What its sizes let one expect.
    pub expected: Expected,
    /// The arms, the base first.
    pub arms: Vec<Measured>,
}

/// A goal, held against what was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The arm.
    pub arm: String,
    /// What is aimed at.
    pub goal: &'static str,
    /// How much there is.
    pub figure: f64,
    /// How much there should be, in words.
    pub wanted: String,
    /// Whether there is; nothing where it says nothing.
    pub is_met: Option<bool>,
    /// What is to be said of it.
    pub why: &'static str,
}

impl CellResult {
    /// An arm's rounds.
    pub fn arm(&self, name: &str) -> Option<&Measured> {
        self.arms.iter().find(|arm| arm.arm == name)
    }

    /// The base and itself again, pair by pair: the smallest and the largest ratio of a figure.
    pub fn same(&self, of: impl Fn(&Sample) -> f64) -> Option<(f64, f64)> {
        let base = self.arms.first()?;
        let again = self.arm(&format!("{}{AGAIN}", base.arm))?;
        let ratios = ratios(again, base, of);
        let finite = ratios.iter().copied().filter(|ratio| ratio.is_finite());
        let ends =
            finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), r| (low.min(r), high.max(r)));
        (ends.0 <= ends.1).then_some(ends)
    }

    /// The goals of the arms that are meant to reach them; none for the base and its second self.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let Some(base) = self.arms.first().filter(|_| self.cell.job.is_some()) else { return Vec::new() };
        let others = self.arms.iter().skip(1).filter(|arm| arm.has_goals && !arm.arm.ends_with(AGAIN));
        others.flat_map(|arm| self.judge(base, arm)).collect()
    }

    fn judge(&self, base: &Measured, arm: &Measured) -> Vec<Verdict> {
        let verdict = |goal, figure: f64, wanted: String, is_met, why| Verdict {
            arm: arm.arm.clone(),
            goal,
            figure,
            wanted,
            is_met,
            why,
        };
        let mut verdicts = Vec::new();
        let base_misses = middle(base, |s| s.misses);
        let helps = self.expected == Expected::Helps;
        if helps {
            let misses = middle(arm, |s| s.misses);
            let is_seen = base_misses >= FEW_MISSES;
            let why = if is_seen { "" } else { "nothing to be won: the base misses next to nothing" };
            let is_met = is_seen.then_some(misses <= base_misses * MISSES);
            let wanted = format!("at most {MISSES} of the base's");
            verdicts.push(verdict("misses over the base's", misses / base_misses, wanted, is_met, why));
            if self.cell.rate.is_none() {
                let reads = median(&ratios(arm, base, |s| s.reads));
                let is_met = is_seen.then_some(reads >= READS);
                verdicts.push(verdict(
                    "reads over the base's",
                    reads,
                    format!("at least {READS}"),
                    is_met,
                    why,
                ));
            }
        } else {
            verdicts.push(self.not_worse("reads over the better one's", arm, |s| s.reads));
        }
        verdicts.push(self.not_worse("operations over the better one's", arm, |s| s.operations));
        if let Some(pages) = arm.rounds.iter().map(|s| s.journal_pages).collect::<Option<Vec<_>>>() {
            let most = pages.iter().copied().max().unwrap_or(0);
            let figure = most as f64;
            verdicts.push(verdict(
                "the journal's pages in the cache, the most",
                figure,
                format!("at most {PAGES}"),
                Some(most <= PAGES),
                "",
            ));
        }
        verdicts
    }

    /// A figure, of which more is better, over that of the better of base and direct: at least 0.95, and not below what the base has over itself.
    fn not_worse(&self, goal: &'static str, arm: &Measured, of: impl Fn(&Sample) -> f64 + Copy) -> Verdict {
        let rivals = self.arms.iter().enumerate().filter(|(place, rival)| {
            (*place == 0 || rival.arm == BASE || rival.arm == DIRECT) && rival.arm != arm.arm
        });
        let better = rivals.map(|(_, rival)| rival).max_by(|a, b| middle(a, of).total_cmp(&middle(b, of)));
        let figure = better.map_or(f64::NAN, |better| median(&ratios(arm, better, of)));
        let (wanted, is_met) = match self.same(of) {
            Some((low, _)) => {
                let least = NOT_WORSE.max(low.min(1.0));
                (format!("at least {least:.3} (A/A: {low:.3})"), Some(figure >= least))
            }
            None => (format!("at least {NOT_WORSE}, and not below A/A"), None),
        };
        let is_met = is_met.filter(|_| figure.is_finite());
        Verdict { arm: arm.arm.clone(), goal, figure, wanted, is_met, why: "" }
    }
}

/// The middle of a figure over the rounds.
pub fn middle(arm: &Measured, of: impl Fn(&Sample) -> f64) -> f64 {
    median(&arm.rounds.iter().map(of).collect::<Vec<_>>())
}

/// A figure over another arm's of the same round.
fn ratios(arm: &Measured, other: &Measured, of: impl Fn(&Sample) -> f64) -> Vec<f64> {
    arm.rounds.iter().zip(&other.rounds).map(|(a, b)| of(a) / of(b)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::Duration;

    use super::super::plan::Job;
    use super::*;

    fn arm(name: &str, operations: [f64; 3], reads: f64, misses: f64, pages: u64) -> Measured {
        let rounds = operations.map(|operations| Sample {
            operations,
            reads,
            misses,
            journal_pages: Some(pages),
            ..Sample::default()
        });
        Measured { arm: name.into(), has_goals: name == "pdc", rounds: rounds.into() }
    }

    fn result(expected: Expected, rate: Option<f64>, arms: Vec<Measured>) -> CellResult {
        let cell = Cell {
            job: Some(Job::Commits),
            journal: 256 << 20,
            rate,
            throttled: true,
            delay: Duration::ZERO,
        };
        CellResult { cell, expected, arms }
    }

    fn met(result: &CellResult, arm: &str, goal: &str) -> Option<bool> {
        let verdicts = result.verdicts();
        let found = verdicts.iter().find(|v| v.arm == arm && v.goal.starts_with(goal));
        found.unwrap_or_else(|| panic!("no {goal} of {arm} in {verdicts:?}")).is_met
    }

    fn usual(drop: Measured) -> Vec<Measured> {
        vec![
            arm("writeback", [100.0, 110.0, 105.0], 25e3, 0.24, 60_000),
            arm("writeback again", [98.0, 111.0, 106.0], 25e3, 0.25, 60_000),
            arm("none", [80.0, 80.0, 80.0], 50e3, 0.002, 0),
            drop,
        ]
    }

    #[test]
    fn what_reaches_every_goal_has_met_every_goal() {
        let result =
            result(Expected::Helps, None, usual(arm("pdc", [101.0, 109.0, 105.0], 52e3, 0.002, 900)));
        for goal in ["misses", "reads", "operations", "the journal's pages"] {
            assert_eq!(met(&result, "pdc", goal), Some(true), "{goal}");
        }
        assert!(result.verdicts().iter().all(|v| v.arm == "pdc"), "the others are what it is held against");
    }

    #[test]
    fn each_goal_can_be_missed() {
        let result = result(Expected::Helps, None, usual(arm("pdc", [94.0, 104.0, 99.0], 40e3, 0.07, 2049)));
        for goal in ["misses", "reads", "operations", "the journal's pages"] {
            assert_eq!(met(&result, "pdc", goal), Some(false), "{goal}");
        }
    }

    #[test]
    fn a_base_without_misses_leaves_nothing_to_be_won_and_nothing_is_claimed() {
        let mut arms = usual(arm("pdc", [101.0, 109.0, 105.0], 25e3, 0.001, 0));
        for round in &mut arms[0].rounds {
            round.misses = 0.001;
        }
        let result = result(Expected::Helps, None, arms);
        assert_eq!(met(&result, "pdc", "misses"), None);
        assert_eq!(met(&result, "pdc", "reads"), None);
    }

    #[test]
    fn where_no_difference_is_expected_the_better_one_has_to_be_reached() {
        let of = |reads| result(Expected::Fits, Some(5e3), usual(arm("pdc", [105.0; 3], reads, 0.0, 0)));
        // `none` has 50,000 reads per second here, and the base has what it has in each round.
        assert_eq!(met(&of(49e3), "pdc", "reads"), Some(false));
        assert_eq!(met(&of(50e3), "pdc", "reads"), Some(true));
    }

    #[test]
    fn at_a_given_rate_reads_are_not_what_can_rise() {
        let result = result(Expected::Helps, Some(5e3), usual(arm("pdc", [105.0; 3], 5e3, 0.002, 0)));
        assert!(result.verdicts().iter().all(|v| !v.goal.starts_with("reads")));
    }

    #[test]
    fn without_a_second_base_nothing_is_said_of_what_is_not_worse() {
        let mut arms = usual(arm("pdc", [105.0; 3], 52e3, 0.002, 0));
        arms.remove(1);
        assert_eq!(met(&result(Expected::Helps, None, arms), "pdc", "operations"), None);
    }

    #[test]
    fn nobody_is_judged_where_nobody_writes() {
        let mut alone = result(Expected::Fits, None, usual(arm("pdc", [1.0; 3], 1.0, 0.0, 0)));
        alone.cell.job = None;
        assert_eq!(alone.verdicts(), []);
    }
}
