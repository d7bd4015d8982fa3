//! Arms held against the first one, and goals against what came of it.

use serde::Serialize;

use super::AGAIN;
use vlane_report::build::spread;
use vlane_report::{Cell, Spread};

/// What was measured of one arm, by round.
#[derive(Debug, Clone, Serialize)]
pub struct Measured<S> {
    /// The arm's name.
    pub arm: String,
    /// Its rounds.
    pub rounds: Vec<S>,
}

/// Arms that were measured in turns; the first one is what others are held against, the last one it again.
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

/// A goal, held against what was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Where it was measured.
    pub place: String,
    /// The arm.
    pub arm: String,
    /// What is aimed at.
    pub goal: String,
    /// How much there is: of ratios the median, the smallest and the largest.
    pub figure: Option<Spread>,
    /// How much there should be.
    pub wanted: Bound,
    /// The same figure of the first arm over itself: what no smaller difference can be seen beside.
    pub noise: Option<Spread>,
}

impl Bound {
    /// Whether a figure is on its good side.
    pub fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(bound) => figure >= bound,
            Self::AtMost(bound) => figure <= bound,
        }
    }

    /// In words.
    pub fn says(self) -> String {
        match self {
            Self::AtLeast(bound) => format!("at least {bound}"),
            Self::AtMost(bound) => format!("at most {bound}"),
        }
    }
}

impl Verdict {
    /// Whether it is met; nothing where nothing was measured.
    pub fn is_met(&self) -> Option<bool> {
        self.figure.map(|figure| self.wanted.holds(figure.median))
    }

    /// What became of it, in words.
    pub fn says(&self) -> &'static str {
        let clear = |figure: Spread| self.wanted.holds(figure.min) == self.wanted.holds(figure.max);
        match (self.is_met(), self.figure.is_some_and(clear)) {
            (Some(true), true) => "met, in every round",
            (Some(true), false) => "met, not in every round",
            (Some(false), true) => "NOT met, in no round",
            (Some(false), false) => "NOT met, in some rounds",
            (None, _) => "nothing to say",
        }
    }
}

impl<S> Arms<S> {
    /// Empty ones of these names; the first one again at the end.
    pub fn named(names: &[String]) -> Self {
        let again = names.first().map(|first| format!("{first}{AGAIN}"));
        let all = names.iter().cloned().chain(again);
        Self(all.map(|arm| Measured { arm, rounds: Vec::new() }).collect())
    }

    /// An arm.
    pub fn arm(&self, name: &str) -> Option<&Measured<S>> {
        self.0.iter().find(|arm| arm.arm == name)
    }

    /// A figure of an arm over that of the first one in the same round.
    pub fn over_first(&self, arm: &Measured<S>, of: impl Fn(&S) -> Option<f64>) -> Option<Spread> {
        let pairs: Vec<(&S, &S)> = arm.rounds.iter().zip(&self.0.first()?.rounds).collect();
        spread(&pairs, |(a, b)| Some(of(a)? / of(b)?).filter(|ratio| ratio.is_finite()))
    }

    /// The first arm over itself.
    pub fn noise(&self, of: impl Fn(&S) -> Option<f64>) -> Option<Spread> {
        let again = self.0.last().filter(|arm| arm.arm.ends_with(AGAIN))?;
        self.over_first(again, of)
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
        Some(Verdict { place, arm, goal, figure, wanted, noise: self.noise(&of) })
    }
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
    fn each_round_is_held_against_the_first_arm_of_the_same_round() {
        let verdict = verdict(&[1.0, 2.0, 5.0], Bound::AtMost(0.1));
        let figure = verdict.figure.unwrap();
        assert_eq!((figure.median, figure.min, figure.max), (0.1, 0.1, 0.5));
        let noise = verdict.noise.unwrap();
        assert_eq!((noise.median, noise.min, noise.max), (1.0, 0.95, 1.1));
        assert_eq!(verdict.is_met(), Some(true));
        assert_eq!(verdict.says(), "met, not in every round");
    }

    #[test]
    fn a_goal_can_be_missed_from_either_side() {
        assert_eq!(verdict(&[5.0; 3], Bound::AtMost(0.1)).says(), "NOT met, in no round");
        assert_eq!(verdict(&[1.0, 4.0, 4.0], Bound::AtMost(0.1)).says(), "NOT met, in some rounds");
        assert_eq!(verdict(&[9.0, 19.0, 9.0], Bound::AtLeast(0.97)).is_met(), Some(false));
        assert_eq!(verdict(&[10.0, 20.0, 10.0], Bound::AtLeast(0.97)).says(), "met, in every round");
    }

    #[test]
    fn where_a_round_has_no_figure_nothing_is_said() {
        let verdict =
            arms(&[1.0; 3]).verdict("here", "on", "less", Bound::AtMost(1.0), |f| (*f > 1.0).then_some(*f));
        assert_eq!(verdict.unwrap().says(), "nothing to say");
        assert!(arms(&[]).verdict("here", "none", "less", Bound::AtMost(1.0), |_| None).is_none());
    }

    #[test]
    fn the_first_arm_comes_again_at_the_end() {
        let names: Vec<_> = arms(&[]).0.into_iter().map(|arm| arm.arm).collect();
        assert_eq!(names, ["off", "on", "off again"]);
    }
}
