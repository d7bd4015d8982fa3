//! A study of live schedulers: loads and schedulers in turns, and its report.

use std::time::Duration;

use serde::{Serialize, Serializer};
use vlane_error::counted;

use super::figures::{FURTHEST, FURTHEST_IN_ALL, Named, Seen, ms};
use vlane_report::experiment::report;
use vlane_report::{
    Arms, Axis, Begun, Block, Bound, Chart, Experiment, Figure, Measured, Note, Place, Point,
    Report, Section, Series, Spread, Verdict, bars, nearest_rank, spread,
};
use vlane_testbed::{Progress, Result, Rounds, in_turns};

/// Permitted deviation of a share from its weight, percent.
// The paragraph above the goals names it, too.
const OFF: f64 = 3.0;

/// A measurement, and the words of its report.
pub(crate) struct Study {
    /// When it began, by which command.
    pub(crate) begun: Begun,
    /// The kind of the report, and its title.
    pub(crate) titles: [&'static str; 2],
    /// Kind of the guests, if they are real ones.
    pub(crate) guests: Option<String>,
    /// The figures; the first one is that which loans are for.
    pub(crate) figures: &'static [Named],
    /// The goal of that with loans, over EEVDF's, if there is one.
    pub(crate) at_most: Option<f64>,
    /// The loads: the ids of their sections, and their names.
    pub(crate) loads: Vec<(String, String)>,
    /// The schedulers.
    pub(crate) arms: Vec<String>,
    /// Rounds.
    pub(crate) rounds: usize,
    /// Time of each measurement.
    pub(crate) time: Duration,
    /// Description of the method.
    pub(crate) about: String,
    /// Caveats that a reader must know before believing the figures.
    pub(crate) warnings: Vec<String>,
    /// More sections of the report.
    pub(crate) sections: Vec<Section>,
}

/// A measurement, and which figures of it are told.
pub(crate) struct Sample(Seen, &'static [Named]);

impl Serialize for Sample {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Self(seen, figures) = self;
        let name = |title: &str, unit: &str| format!("{title}_{unit}");
        serializer
            .collect_map(figures.iter().map(|(title, unit, of)| (name(title, unit), of(seen))))
    }
}

impl Study {
    /// Measures all schedulers under all loads, in turns, and makes the report. `one` gets the
    /// round, and the numbers of load and scheduler.
    pub(crate) fn in_turns(
        self,
        mut progress: Progress,
        mut one: impl FnMut(usize, usize, usize) -> Result<Seen>,
    ) -> Result<Report> {
        let (loads, rounds) = self.measure(|round, loads| {
            for (load, arms) in loads.iter_mut().enumerate() {
                in_turns(arms, round, |at, arm| {
                    progress.step(format!("{}, {arm}", self.loads[load].1));
                    one(round, load, at)
                })?;
            }
            Ok(())
        })?;
        drop(progress);
        Ok(self.report(loads, &rounds))
    }

    /// Measures rounds.
    pub(crate) fn measure(
        &self,
        mut one: impl FnMut(usize, &mut [Arms<Seen>]) -> Result<()>,
    ) -> Result<(Vec<Arms<Seen>>, Rounds)> {
        let empty = || Arms::once(self.arms.iter().cloned());
        let mut loads: Vec<_> = self.loads.iter().map(|_| empty()).collect();
        let rounds = Rounds::measure(self.rounds, |round| one(round, &mut loads))?;
        Ok((loads, rounds))
    }

    /// Makes the report.
    pub(crate) fn report(mut self, loads: Vec<Arms<Seen>>, rounds: &Rounds) -> Report {
        self.rounds = rounds.whole();
        let of_arm = |mut arm: Measured<Seen>| {
            let all = sums(&arm.rounds);
            arm.rounds.iter_mut().for_each(|seen| seen.used_in_all.clone_from(&all));
            let sample = |seen| Sample(seen, self.figures);
            Measured { arm: arm.arm, rounds: arm.rounds.into_iter().map(sample).collect() }
        };
        let of_load = |mut arms: Arms<Seen>| {
            arms.keep(self.rounds);
            Arms(arms.0.into_iter().map(of_arm).collect())
        };
        let arms: Vec<Arms<Sample>> = loads.into_iter().map(of_load).collect();
        let place = |((id, name), arms): (&(String, String), _)| Place {
            id: id.clone(),
            name: name.clone(),
            title: format!("Response and fairness: {name}"),
            text: Vec::new(),
            arms,
        };
        let places: Vec<_> = self.loads.iter().zip(&arms).map(place).collect();
        let [kind, title] = self.titles;
        let mut report = report(&self, &places, self.begun.report(kind, title, &[]));
        report.machine.versions.extend(self.guests.map(|guests| ("guests".into(), guests)));
        rounds.marked(report)
    }

    fn figure(&self, (title, unit, of): Named) -> Figure<'_, Sample> {
        Figure::maybe(title, unit, move |sample: &Sample| finite(of(&sample.0)))
    }

    fn first(&self, figures: usize) -> Vec<Figure<'_, Sample>> {
        self.figures.iter().take(figures).map(|figure| self.figure(*figure)).collect()
    }
}

fn finite(figure: f64) -> Option<f64> {
    Some(figure).filter(|figure| figure.is_finite())
}

/// CPU time of each guest over all rounds.
fn sums(rounds: &[Seen]) -> Vec<u64> {
    let guests = rounds.first().map_or(0, |seen| seen.used.len());
    (0..guests).map(|guest| rounds.iter().filter_map(|seen| seen.used.get(guest)).sum()).collect()
}

impl Experiment for Study {
    type Sample = Sample;
    const HEADS: [&'static str; 2] = ["load", "scheduler"];
    const AIM: &'static str =
        "They are for schedulers that lend. No share is to be 3 % off its weight.";

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        let shorter = |(title, _, of): &Named| {
            let of = *of;
            Figure::shorter(format!("{title}: times shorter"), move |sample: &Sample| of(&sample.0))
        };
        let times = self.figures.iter().take(3).filter(|(_, unit, _)| *unit != "%").map(shorter);
        // The charts are of responses and of shares.
        let (title, _, of) = FURTHEST;
        times.chain([self.figure((title, "% off", of))]).collect()
    }

    fn notes(&self, _places: &[Place<'_, Sample>]) -> Vec<Note> {
        let facts = format!(
            "{} of {:?} each, the schedulers in turns; figures are medians over rounds, with the \
             smallest and the largest. \"All rounds\" adds up the CPU time of all guests over \
             them.",
            counted(self.rounds, "round"),
            self.time
        );
        let warnings = self.warnings.iter().map(Note::warning);
        warnings.chain([Note::info(&self.about), Note::info(facts)]).collect()
    }

    fn judge(&self, place: &Place<'_, Sample>) -> Vec<Verdict> {
        let is_eevdf = |arm: &Measured<Sample>| arm.arm.eq_ignore_ascii_case("eevdf");
        let lends = |name: &str| ["loan", "adaptive", "defaults"].contains(&name);
        let (Some(at_most), true) = (self.at_most, place.arms.0.first().is_some_and(is_eevdf))
        else {
            return Vec::new();
        };
        let (title, _, of) = self.figures[0];
        let goal = format!("{title} over EEVDF's");
        let (off, unit, furthest) = FURTHEST_IN_ALL;
        let each = place.arms.0.iter().filter(|arm| lends(&arm.arm)).flat_map(|arm| {
            let wanted = Bound::AtMost(at_most);
            let figure = |sample: &Sample| finite(of(&sample.0));
            let sooner = place.arms.verdict(&place.name, &arm.arm, &goal, wanted, figure);
            let fair = Verdict {
                place: place.name.clone(),
                arm: arm.arm.clone(),
                goal: format!("{off} [{unit}]"),
                figure: spread(&arm.rounds, |sample| Some(furthest(&sample.0))),
                wanted: Bound::AtMost(OFF),
                noise: None,
                void: "",
            };
            sooner.into_iter().chain([fair])
        });
        each.collect()
    }

    fn sections(&self, _places: &[Place<'_, Sample>]) -> Vec<Section> {
        self.sections.clone()
    }

    fn ratios(&self) -> (&'static str, Vec<Figure<'_, Sample>>) {
        ("over-first", self.first(3))
    }

    fn figures(&self, _place: &Place<'_, Sample>) -> Vec<Figure<'_, Sample>> {
        self.first(self.figures.len())
    }

    fn pictures(&self, place: &Place<'_, Sample>) -> Vec<Block> {
        let arms = &place.arms.0;
        let weights = arms.first().and_then(|arm| arm.rounds.first());
        let guests = weights.map_or(0, |sample| sample.0.weights.len());
        let of = |arm: &Measured<Sample>| {
            let off = |guest: usize| {
                move |sample: &Sample| Some(100.0 + sample.0.off(&sample.0.used).get(guest)?)
            };
            let shares = (0..guests).map(|guest| spread(&arm.rounds, off(guest)));
            (arm.arm.clone(), shares.collect())
        };
        let shares = bars(
            "CPU time, of what the weight entitles to",
            ("of the entitlement", "%"),
            (1..=guests).map(|guest| guest.to_string()).collect(),
            arms.iter().map(of).collect(),
        );
        vec![Block::Chart(distribution(arms)), shares]
    }

    fn is_compared(&self, place: &Place<'_, Sample>) -> bool {
        place.arms.0.len() > 1
    }
}

/// Cumulative distribution of all rounds' responses.
fn distribution(arms: &[Measured<Sample>]) -> Chart {
    let series = arms.iter().map(|arm| {
        let mut all: Vec<u64> =
            arm.rounds.iter().flat_map(|sample| &sample.0.responses).copied().collect();
        all.sort_unstable();
        let points = (1..=100_u32).filter_map(|percent| {
            let x = ms(nearest_rank(&all, percent as usize * 10)?);
            Some(Point { x, y: Spread::exact(percent.into()) })
        });
        Series::measured(arm.arm.clone(), points.collect())
    });
    Chart::steps(
        "Responses of guest 1",
        Axis::log("response", "ms"),
        Axis::new("of all responses", "%"),
        series.collect(),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::loans::figures::{EXPRESS, LIVE, SCHED_EXT};
    use vlane_report::Cell;

    /// Two guests; the first one has two events, and used so much CPU time.
    fn seen(response_ms: u64, used: u64) -> Seen {
        Seen {
            responses: vec![response_ms * 1_000_000; 2],
            used: vec![used, 200 - used],
            weights: vec![256; 2],
            time: Duration::from_secs(1),
            ..Seen::default()
        }
    }

    fn report_of(figures: &'static [Named]) -> Report {
        let study = Study {
            begun: Begun::now(""),
            titles: ["loans", "Loans"],
            guests: Some("some".into()),
            figures,
            at_most: Some(0.1),
            loads: vec![("here".into(), "a load".into())],
            arms: vec!["EEVDF".into(), "loan".into()],
            rounds: 2,
            time: Duration::from_secs(1),
            about: "About.".into(),
            warnings: vec!["Beware.".into()],
            sections: Vec::new(),
        };
        let (loads, rounds) = study
            .measure(|round, loads| {
                let more = 10 * round as u64;
                loads[0].0[0].rounds.push(seen(20, 100));
                loads[0].0[1].rounds.push(seen(1, 95 + more));
                Ok(())
            })
            .unwrap();
        study.report(loads, &rounds)
    }

    #[test]
    fn responses_and_shares_are_judged() {
        let report = report_of(LIVE);
        assert_eq!(report.summary[0], "Of 2 goals 2 are met, 0 are not; of 0 nothing can be said.");
        let ids: Vec<&str> = report.sections.iter().map(|section| section.id.as_str()).collect();
        assert_eq!(ids, ["goals", "over-first", "here"]);
        let [Block::Table(table), Block::Chart(_), Block::Chart(_)] =
            &report.sections[2].blocks[..]
        else {
            panic!("a table and two charts")
        };
        let figure = |title: &str| {
            let place = table.columns.iter().position(|column| column.title == title).unwrap();
            let Cell::Figure(spread) = &table.rows[1][place] else { panic!("a figure") };
            spread.median
        };
        assert_eq!((figure("mean response"), figure("I/O")), (1.0, 2.0));
        // One round had 5 % more, and the other one 5 % less.
        assert!((figure("furthest off") - 5.0).abs() < 1e-9);
        assert!(figure("furthest, all rounds").abs() < 1e-9);
        assert_eq!(report.samples[0].rows.len(), 4);
    }

    #[test]
    fn figures_of_stored_experiments_exist() {
        for (figures, titles) in [
            (LIVE, &["median", "99th percentile", "furthest off", "guest 1 off its share"][..]),
            (EXPRESS, &["execution time", "mean service", "furthest, all rounds"]),
            (SCHED_EXT, &["p50", "farthest share"]),
        ] {
            let report = report_of(figures);
            let Block::Table(table) = &report.sections[2].blocks[0] else { panic!("a table") };
            for title in titles {
                assert!(table.columns.iter().any(|column| column.title == *title), "{title}");
            }
        }
    }
}
