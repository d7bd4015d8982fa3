//! The one judge of all experiments: arms relative to the first one, and goals.
//!
//! The first arm is measured twice in each round (A/A). Its ratio to itself is the noise: smaller
//! differences are not seen. [`crate::stats`] has the interval of a ratio. A goal is not met
//! if the median fails, in spite of the interval.

use serde::Serialize;

use crate::build::spread;
use crate::{Cell, Spread};

/// The end of the name of an arm that is measured a second time (A/A).
pub const AGAIN: &str = " again";
/// Fewer rounds than this say little.
pub const ENOUGH: usize = 5;

/// One arm's samples, by round.
#[derive(Debug, Clone, Serialize)]
pub struct Measured<S> {
    /// The arm's name.
    pub arm: String,
    /// Its rounds.
    pub rounds: Vec<S>,
}

/// Arms that were measured in turns. The first one is the baseline, and one is its repetition.
#[derive(Debug, Clone, Serialize)]
pub struct Arms<S>(pub Vec<Measured<S>>);

impl<S> Arms<S> {
    /// Drops what was measured after these rounds.
    pub fn keep(&mut self, rounds: usize) {
        self.0.iter_mut().for_each(|arm| arm.rounds.truncate(rounds));
    }
}

impl<S: Serialize> Arms<S> {
    /// Every round, with the words that tell what it is of: where, the arm, the round.
    pub fn records<'a>(&'a self, place: &'a str) -> impl Iterator<Item = (Vec<Cell>, &'a S)> {
        let of_arm = move |arm: &'a Measured<S>| {
            let labels = move |round: u32| {
                vec![place.to_owned().into(), arm.arm.clone().into(), Cell::Number(round.into())]
            };
            (1..).zip(&arm.rounds).map(move |(round, sample)| (labels(round), sample))
        };
        self.0.iter().flat_map(of_arm)
    }
}

/// Which side of a bound is good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// This much, or more.
    AtLeast(f64),
    /// This much, or less.
    AtMost(f64),
}

/// The outcome of a goal that is judged by a median and an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Met {
    /// The median and the whole interval are on the good side.
    Yes,
    /// The median is on the bad side.
    No,
    /// The median is on the good side, and an end is not, or there is no interval.
    Unclear,
}

/// A goal, and its outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Place of the measurement.
    pub place: String,
    /// The arm.
    pub arm: String,
    /// The goal.
    pub goal: String,
    /// The measured figure: median, smallest and largest of the ratios.
    pub figure: Option<Spread>,
    /// The wanted figure.
    pub wanted: Bound,
    /// The same figure of the first arm relative to itself. Smaller differences are not seen.
    pub noise: Option<Spread>,
    /// The reason why the figure is inconclusive; empty if it is not.
    pub void: &'static str,
}

impl Bound {
    /// True if a figure is on its good side.
    pub fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(bound) => figure >= bound,
            Self::AtMost(bound) => figure <= bound,
        }
    }

    /// Judges a median, and both ends of an interval.
    pub fn met(self, median: f64, ends: Option<(f64, f64)>) -> Met {
        let are_good = ends.is_some_and(|(low, high)| self.holds(low) && self.holds(high));
        match (self.holds(median), are_good) {
            (true, true) => Met::Yes,
            (false, _) if !median.is_nan() => Met::No,
            _ => Met::Unclear,
        }
    }

    /// In words.
    pub fn says(self) -> String {
        let round = |bound: f64| (bound * 1000.0).round() / 1000.0;
        match self {
            Self::AtLeast(bound) => format!("at least {}", round(bound)),
            Self::AtMost(bound) => format!("at most {}", round(bound)),
        }
    }
}

impl Verdict {
    /// True if the goal is met by the median; none without a figure that says something.
    pub fn is_met(&self) -> Option<bool> {
        self.figure.filter(|_| self.void.is_empty()).map(|figure| self.wanted.holds(figure.median))
    }

    /// The outcome in words.
    pub fn says(&self) -> String {
        let clear = |figure: Spread| self.wanted.holds(figure.min) == self.wanted.holds(figure.max);
        let words = match (self.is_met(), self.figure.is_some_and(clear)) {
            (Some(true), true) => "met, in every round",
            (Some(true), false) => "met, not in every round",
            (Some(false), true) => "NOT met, in no round",
            (Some(false), false) => "NOT met, in some rounds",
            (None, _) if !self.void.is_empty() => return format!("inconclusive: {}", self.void),
            (None, _) => "inconclusive",
        };
        words.to_owned()
    }
}

impl<S> Arms<S> {
    /// Empty ones of these names; the first one again at the end.
    pub fn named(names: &[String]) -> Self {
        let again = names.first().map(|first| format!("{first}{AGAIN}"));
        Self::once(names.iter().cloned().chain(again))
    }

    /// Empty ones of these names, without a repetition.
    pub fn once(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|arm| Measured { arm, rounds: Vec::new() }).collect())
    }

    /// An arm.
    pub fn arm(&self, name: &str) -> Option<&Measured<S>> {
        self.0.iter().find(|arm| arm.arm == name)
    }

    /// The names without the repetition: indices of [`Arms::named`]'s names modulo this are arms.
    pub fn distinct(&self) -> usize {
        self.0.iter().filter(|arm| !arm.is_again()).count()
    }

    /// A figure of an arm over that of the first one in the same round.
    pub fn over_first(&self, arm: &Measured<S>, of: impl Fn(&S) -> Option<f64>) -> Option<Spread> {
        arm.over(self.0.first()?, of)
    }

    /// The first arm over itself.
    pub fn noise(&self, of: impl Fn(&S) -> Option<f64>) -> Option<Spread> {
        self.over_first(self.0.iter().find(|arm| arm.is_again())?, of)
    }

    /// True if a figure's ratio to the first arm is no difference: it covers 1, or overlaps the
    /// ratio of the first arm to itself. False without that repetition.
    pub fn is_noise(&self, arm: &Measured<S>, of: impl Fn(&S) -> Option<f64>) -> bool {
        self.over_first(arm, &of).zip(self.noise(&of)).is_some_and(|(ratio, noise)| {
            let covers_one = ratio.min <= 1.0 && ratio.max >= 1.0;
            covers_one || ratio.min <= noise.max && noise.min <= ratio.max
        })
    }

    /// A goal for a figure of an arm over the first one's.
    pub fn verdict(
        &self,
        place: &str,
        arm: &str,
        goal: &str,
        wanted: Bound,
        of: impl Fn(&S) -> Option<f64>,
    ) -> Option<Verdict> {
        let figure = self.over_first(self.arm(arm)?, &of);
        let (place, arm, goal) = (place.to_owned(), arm.to_owned(), goal.to_owned());
        Some(Verdict { place, arm, goal, figure, wanted, noise: self.noise(&of), void: "" })
    }
}

impl<S> Measured<S> {
    /// True for the repetition of the first arm.
    pub fn is_again(&self) -> bool {
        self.arm.ends_with(AGAIN)
    }

    /// A figure over that of another arm in the same round.
    pub fn over(&self, other: &Self, of: impl Fn(&S) -> Option<f64>) -> Option<Spread> {
        let pairs: Vec<(&S, &S)> = self.rounds.iter().zip(&other.rounds).collect();
        spread(&pairs, |(a, b)| Some(of(a)? / of(b)?).filter(|ratio| ratio.is_finite()))
    }
}

/// The goals in a sentence.
pub fn met(verdicts: &[Verdict]) -> String {
    let count = |is: Option<bool>| verdicts.iter().filter(|verdict| verdict.is_met() == is).count();
    format!(
        "Of {} goals {} are met, {} are not; of {} nothing can be said.",
        verdicts.len(),
        count(Some(true)),
        count(Some(false)),
        count(None)
    )
}

/// A ratio for people: `0.21 (0.20-0.23)`.
pub fn says(ratio: Option<Spread>) -> String {
    ratio.map_or("-".into(), |r| format!("{:.2} ({:.2}-{:.2})", r.median, r.min, r.max))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn arms(on: &[f64]) -> Arms<f64> {
        let mut arms = Arms::named(&["off".to_owned(), "on".to_owned()]);
        arms.0[0].rounds = vec![10.0, 20.0, 10.0];
        arms.0[1].rounds = on.to_vec();
        arms.0[2].rounds = vec![11.0, 19.0, 10.0];
        arms
    }

    fn verdict(on: &[f64], wanted: Bound) -> Verdict {
        arms(on).verdict("here", "on", "less", wanted, |figure| Some(*figure)).unwrap()
    }

    #[test]
    fn rounds_are_compared_with_their_first_arm() {
        let verdict = verdict(&[1.0, 2.0, 5.0], Bound::AtMost(0.1));
        let figure = verdict.figure.unwrap();
        assert_eq!((figure.median, figure.min, figure.max), (0.1, 0.1, 0.5));
        let noise = verdict.noise.unwrap();
        assert_eq!((noise.median, noise.min, noise.max), (1.0, 0.95, 1.1));
        assert_eq!(verdict.is_met(), Some(true));
        assert_eq!(verdict.says(), "met, not in every round");
    }

    #[test]
    fn goal_can_be_missed_either_way() {
        assert_eq!(verdict(&[5.0; 3], Bound::AtMost(0.1)).says(), "NOT met, in no round");
        assert_eq!(verdict(&[1.0, 4.0, 4.0], Bound::AtMost(0.1)).says(), "NOT met, in some rounds");
        assert_eq!(verdict(&[9.0, 19.0, 9.0], Bound::AtLeast(0.97)).is_met(), Some(false));
        assert_eq!(
            verdict(&[10.0, 20.0, 10.0], Bound::AtLeast(0.97)).says(),
            "met, in every round"
        );
    }

    #[test]
    fn failing_median_is_never_inconclusive() {
        let met = |median, ends| Bound::AtMost(1.0).met(median, ends);
        assert_eq!(met(0.9, Some((0.8, 1.0))), Met::Yes);
        assert_eq!(met(0.9, Some((0.8, 1.1))), Met::Unclear);
        assert_eq!([met(1.1, Some((0.8, 1.2))), met(1.1, None)], [Met::No; 2]);
        assert_eq!([met(0.9, None), met(f64::NAN, None)], [Met::Unclear; 2]);
    }

    #[test]
    fn missing_figure_is_inconclusive() {
        let verdict = arms(&[1.0; 3])
            .verdict("here", "on", "less", Bound::AtMost(1.0), |f| (*f > 1.0).then_some(*f));
        assert_eq!(verdict.unwrap().says(), "inconclusive");
        assert!(arms(&[]).verdict("here", "none", "less", Bound::AtMost(1.0), |_| None).is_none());
    }

    #[test]
    fn first_arm_is_repeated_at_end() {
        let names: Vec<_> = arms(&[]).0.into_iter().map(|arm| arm.arm).collect();
        assert_eq!(names, ["off", "on", "off again"]);
    }
}
