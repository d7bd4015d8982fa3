//! An [`Experiment`]: arms that are measured in turns, at one place or several, and its report.
//!
//! The experiment says which figures its samples have, and which goals. [`report`] makes the rest:
//! the judgement, the tables, the charts and the summary.

use serde::Serialize;
use vlane_error::counted;

use crate::build::{bars, spread, table};
use crate::judge::{Arms, Bound, ENOUGH, Verdict, met, says};
use crate::{Block, Cell, Note, Report, Samples, Section};

/// Units of figures that are better small.
const COSTS: [&str; 7] = ["us", "ms", "s", "KiB", "pages", "ms of CPU/s", "% off"];

/// How a figure is taken from a sample.
type Of<'a, S> = Box<dyn Fn(&S) -> Option<f64> + 'a>;

/// A figure of a sample: a column of tables.
pub struct Figure<'a, S> {
    title: String,
    unit: &'static str,
    of: Of<'a, S>,
}

impl<S> std::fmt::Debug for Figure<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} [{}]", self.title, self.unit)
    }
}

impl<'a, S> Figure<'a, S> {
    /// A figure that each sample has.
    pub fn new(title: impl Into<String>, unit: &'static str, of: impl Fn(&S) -> f64 + 'a) -> Self {
        Self::maybe(title, unit, move |sample| Some(of(sample)))
    }

    /// A figure that a sample may lack.
    pub fn maybe(
        title: impl Into<String>,
        unit: &'static str,
        of: impl Fn(&S) -> Option<f64> + 'a,
    ) -> Self {
        Self { title: title.into(), unit, of: Box::new(of) }
    }

    /// True for a 99th percentile.
    fn is_tail(&self) -> bool {
        ["p99", "99th percentile"].iter().any(|tail| self.title.contains(tail))
    }

    /// True if a ratio to the first arm is a loss: more of a cost, or less of all else.
    fn is_loss(&self, ratio: f64) -> bool {
        if COSTS.contains(&self.unit) { ratio > 1.0 } else { ratio < 1.0 }
    }

    /// A figure in the form "how many times shorter than with the first arm".
    pub fn shorter(title: impl Into<String>, of: impl Fn(&S) -> f64 + 'a) -> Self {
        Self::maybe(title, "x", move |sample| {
            Some(of(sample)).filter(|time| *time > 0.0).map(f64::recip)
        })
    }
}

/// A goal for a figure of an arm, relative to the first arm.
#[derive(Debug)]
pub struct Goal<'a, S> {
    /// The arm.
    pub arm: String,
    /// The figure.
    pub figure: Figure<'a, S>,
    /// The wanted ratio.
    pub wanted: Bound,
}

/// A place of measurement: a guest, a load, a cell.
#[derive(Debug)]
pub struct Place<'a, S> {
    /// The id of its section.
    pub id: String,
    /// Its name in rows of tables.
    pub name: String,
    /// The heading of its section.
    pub title: String,
    /// Paragraphs of its section.
    pub text: Vec<String>,
    /// Its samples.
    pub arms: &'a Arms<S>,
}

/// An experiment's own description. The methods are in the order of the report.
pub trait Experiment {
    /// Result of one measurement.
    type Sample: Serialize;
    /// Titles of the columns for the place and for the arm.
    const HEADS: [&'static str; 2] = ["Where", "Variant"];
    /// The paragraph above the goals.
    const AIM: &'static str = "";

    /// Figures of the summary beside those of the charts, relative to the first arm.
    fn summary(&self) -> Vec<Figure<'_, Self::Sample>>;

    /// Notes for the reader.
    fn notes(&self, places: &[Place<'_, Self::Sample>]) -> Vec<Note>;

    /// The verdicts on the goals at a place.
    fn judge(&self, place: &Place<'_, Self::Sample>) -> Vec<Verdict> {
        let verdict = |goal: Goal<'_, Self::Sample>| {
            let says = format!("{} over the first arm's", goal.figure.title);
            place.arms.verdict(&place.name, &goal.arm, &says, goal.wanted, &goal.figure.of)
        };
        self.goals(place).into_iter().filter_map(verdict).collect()
    }

    /// The goals at a place.
    fn goals(&self, _place: &Place<'_, Self::Sample>) -> Vec<Goal<'_, Self::Sample>> {
        Vec::new()
    }

    /// Sections between the goals and the charts.
    fn sections(&self, _places: &[Place<'_, Self::Sample>]) -> Vec<Section> {
        Vec::new()
    }

    /// Charts over the places: the id of a section, its title, and the figure.
    fn charts(&self) -> Vec<(&'static str, &'static str, Figure<'_, Self::Sample>)> {
        Vec::new()
    }

    /// The id and the figures of the table of ratios to the first arm; no table without figures.
    fn ratios(&self) -> (&'static str, Vec<Figure<'_, Self::Sample>>) {
        ("over-first", self.summary())
    }

    /// Figures of a place's table.
    fn figures(&self, place: &Place<'_, Self::Sample>) -> Vec<Figure<'_, Self::Sample>>;

    /// Charts of a place, below its table.
    fn pictures(&self, _place: &Place<'_, Self::Sample>) -> Vec<Block> {
        Vec::new()
    }

    /// False for a place whose only arm is compared with none.
    fn is_compared(&self, _place: &Place<'_, Self::Sample>) -> bool {
        true
    }
}

/// Fills an empty report with an experiment's results.
pub fn report<E: Experiment>(
    experiment: &E,
    places: &[Place<'_, E::Sample>],
    empty: Report,
) -> Report {
    let verdicts: Vec<Verdict> = places.iter().flat_map(|place| experiment.judge(place)).collect();
    let compared: Vec<&Place<'_, E::Sample>> =
        places.iter().filter(|place| experiment.is_compared(place)).collect();
    let mut sections = Vec::new();
    if !verdicts.is_empty() {
        sections.push(goals(&verdicts, E::AIM));
    }
    sections.extend(experiment.sections(places));
    for (id, title, figure) in experiment.charts() {
        sections.extend(chart(id, title, &figure, &compared));
    }
    let (id, ratios) = experiment.ratios();
    if !ratios.is_empty() && !compared.is_empty() {
        sections.push(over_first(id, E::HEADS, &ratios, &compared));
    }
    sections.extend(places.iter().map(|place| {
        let mut section = of_place(E::HEADS[1], &experiment.figures(place), place);
        section.blocks.extend(experiment.pictures(place));
        section
    }));
    let mut summary = Vec::new();
    if !verdicts.is_empty() {
        summary.push(met(&verdicts));
    }
    let mut said = experiment.summary();
    for (_, _, figure) in experiment.charts() {
        if said.iter().all(|known| known.title != figure.title) {
            said.push(figure);
        }
    }
    said.sort_by_key(|figure| !figure.is_tail());
    summary.extend(compared.iter().flat_map(|place| sentences(&said, place)));
    let mut notes = experiment.notes(places);
    let arms = places.iter().flat_map(|place| &place.arms.0);
    notes.extend(few(arms.map(|arm| arm.rounds.len()).max().unwrap_or(0)));
    let records = places.iter().flat_map(|place| place.arms.records(&place.name));
    let labels = format!("{} | Round", E::HEADS.join(" | "));
    let samples = vec![Samples::of_records("rounds", "Every round of every arm", &labels, records)];
    Report { summary, notes, sections, samples, ..empty }.guarded()
}

/// A warning about too few rounds.
pub fn few(rounds: usize) -> Option<Note> {
    let text = format!(
        "{}: fewer than {ENOUGH}, so a difference may be chance.",
        counted(rounds, "round")
    );
    (rounds < ENOUGH).then(|| Note::warning(text))
}

/// The ratios of a place in a sentence for each arm, losses first. A figure without a difference is
/// only named.
fn sentences<S>(figures: &[Figure<'_, S>], place: &Place<'_, S>) -> Vec<String> {
    let others = place.arms.0.iter().skip(1).filter(|arm| !arm.is_again());
    let first = place.arms.0.first().map_or("", |arm| arm.arm.as_str());
    let each = others.map(|arm| {
        let (mut seen, mut same) = (Vec::new(), Vec::new());
        for figure in figures {
            match place.arms.is_noise(arm, &figure.of) {
                true => same.push(figure.title.as_str()),
                false => {
                    let ratio = place.arms.over_first(arm, &figure.of);
                    let is_loss = ratio.is_some_and(|ratio| figure.is_loss(ratio.median));
                    seen.push((!is_loss, format!("{} {}", figure.title, says(ratio))));
                }
            }
        }
        seen.sort_by_key(|(is_gain, _)| *is_gain);
        let mut seen: Vec<String> = seen.into_iter().map(|(_, words)| words).collect();
        if !same.is_empty() {
            seen.push(format!("no difference seen in {}", same.join(", ")));
        }
        format!("{}, {} relative to {first}: {}.", place.name, arm.arm, seen.join(", "))
    });
    each.collect()
}

/// The goals, and their outcomes.
fn goals(verdicts: &[Verdict], aim: &str) -> Section {
    let rows = verdicts.iter().map(|verdict| {
        vec![
            verdict.place.clone().into(),
            verdict.arm.clone().into(),
            verdict.goal.clone().into(),
            verdict.figure.into(),
            verdict.wanted.says().into(),
            verdict.noise.into(),
            verdict.says().into(),
        ]
    });
    let text = format!(
        "{aim} Ratios are to the first arm of the same round unless a goal names another: median \
         (smallest-largest). The median decides. A/A is the ratio of the first arm's repetition to \
         the first arm."
    );
    let columns = "Where | Arm | Goal | Figure | Wanted | A/A | Outcome";
    Section::new("goals", "Goals", vec![text], vec![table("Goals", columns, rows.collect())])
}

/// Bars: a group for each place, a bar for each arm.
fn chart<S>(
    id: &str,
    title: &str,
    figure: &Figure<'_, S>,
    places: &[&Place<'_, S>],
) -> Option<Section> {
    let first = &places.first()?.arms.0;
    let rows = first.iter().enumerate().map(|(index, arm)| {
        let figures =
            places.iter().map(|place| spread(&place.arms.0.get(index)?.rounds, &figure.of));
        (arm.arm.clone(), figures.collect())
    });
    let categories = places.iter().map(|place| place.title.clone()).collect();
    let caption = format!("{title}: medians, with the smallest and the largest of all rounds");
    let block = bars(&caption, (&figure.title, figure.unit), categories, rows.collect());
    Some(Section::new(id, title, Vec::new(), vec![block]))
}

/// Bars of ratios to the first arm: a group for each figure, a bar for each other arm.
pub fn ratio_bars<S>(caption: &str, figures: &[Figure<'_, S>], arms: &Arms<S>) -> Block {
    let rows = arms.0.iter().skip(1).map(|arm| {
        let ratios = figures.iter().map(|figure| arms.over_first(arm, &figure.of));
        (arm.arm.clone(), ratios.collect())
    });
    let first = arms.0.first().map_or("", |arm| arm.arm.as_str());
    let categories = figures.iter().map(|figure| figure.title.clone()).collect();
    bars(caption, (&format!("of {first}'s"), "x"), categories, rows.collect())
}

/// Each figure over that of the first arm.
fn over_first<S>(
    id: &str,
    heads: [&'static str; 2],
    figures: &[Figure<'_, S>],
    places: &[&Place<'_, S>],
) -> Section {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for place in places {
        for arm in place.arms.0.iter().skip(1) {
            let ratios = figures.iter().map(|figure| place.arms.over_first(arm, &figure.of).into());
            let names = [place.name.clone().into(), arm.arm.clone().into()];
            rows.push(names.into_iter().chain(ratios).collect());
        }
    }
    let columns = heads.into_iter().map(|head| (head, ""));
    let columns: Vec<(&str, &str)> =
        columns.chain(figures.iter().map(|figure| (figure.title.as_str(), "x"))).collect();
    let text =
        "Each figure over that of the first arm in the same round: median, smallest and largest.";
    let block = table("Over the first arm", &columns, rows);
    Section::new(id, "Over the first arm", vec![text.into()], vec![block])
}

/// All figures of a place.
fn of_place<S>(head: &str, figures: &[Figure<'_, S>], place: &Place<'_, S>) -> Section {
    let block =
        arms_table("Each arm: median of its rounds (smallest-largest)", head, figures, place.arms);
    let mut text = place.text.clone();
    if let (Some(first), Some(figure)) = (place.arms.0.first(), figures.first())
        && let Some(noise) = place.arms.noise(&figure.of)
    {
        text.push(format!("{} over itself: {} in {}.", first.arm, says(Some(noise)), figure.title));
    }
    Section::new(place.id.clone(), place.title.clone(), text, vec![block])
}

/// A table with a row for each arm and a column for each figure.
pub fn arms_table<S>(
    caption: impl Into<String>,
    head: &str,
    figures: &[Figure<'_, S>],
    arms: &Arms<S>,
) -> Block {
    let columns: Vec<(&str, &str)> = std::iter::once((head, ""))
        .chain(figures.iter().map(|figure| (figure.title.as_str(), figure.unit)))
        .collect();
    let rows = arms.0.iter().map(|arm| {
        let cells = figures.iter().map(|figure| spread(&arm.rounds, &figure.of).into());
        std::iter::once(arm.arm.clone().into()).chain(cells).collect()
    });
    table(caption, &columns, rows.collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::build::Begun;
    use crate::machine::Load;

    #[derive(Serialize)]
    struct Sample {
        time: f64,
        reads: Option<f64>,
    }

    struct Readers;

    impl Experiment for Readers {
        type Sample = Sample;
        const HEADS: [&'static str; 2] = ["Where", "Arm"];
        const AIM: &'static str = "Half of the time.";

        fn summary(&self) -> Vec<Figure<'_, Sample>> {
            vec![Figure::new("time", "s", |s: &Sample| s.time)]
        }

        fn notes(&self, _places: &[Place<'_, Sample>]) -> Vec<Note> {
            Vec::new()
        }

        fn goals(&self, _place: &Place<'_, Sample>) -> Vec<Goal<'_, Sample>> {
            let figure = Figure::new("time", "s", |s: &Sample| s.time);
            vec![Goal { arm: "on".into(), figure, wanted: Bound::AtMost(0.5) }]
        }

        fn charts(&self) -> Vec<(&'static str, &'static str, Figure<'_, Sample>)> {
            let p99 = Figure::new("p99", "s", |s: &Sample| s.time);
            vec![
                ("times", "Times", Figure::new("time", "s", |s: &Sample| s.time)),
                ("p99", "", p99),
            ]
        }

        fn ratios(&self) -> (&'static str, Vec<Figure<'_, Sample>>) {
            ("over-first", vec![Figure::shorter("times shorter", |s: &Sample| s.time)])
        }

        fn figures(&self, _place: &Place<'_, Sample>) -> Vec<Figure<'_, Sample>> {
            vec![
                Figure::new("time", "s", |s: &Sample| s.time),
                Figure::maybe("reads", "/s", |s: &Sample| s.reads),
            ]
        }

        fn pictures(&self, _place: &Place<'_, Sample>) -> Vec<Block> {
            vec![bars("Times", ("time", "s"), vec!["here".into()], Vec::new())]
        }
    }

    fn here(arms: &Arms<Sample>) -> Place<'_, Sample> {
        let [id, name, title] = ["here", "here", "Here"].map(str::to_owned);
        Place { id, name, title, text: Vec::new(), arms }
    }

    #[test]
    fn losses_come_before_gains_and_tails() {
        let mut arms = Arms::once(["off", "on"].map(str::to_owned));
        for (arm, time) in arms.0.iter_mut().zip([4.0, 1.0]) {
            arm.rounds = (0..5).map(|_| Sample { time, reads: Some(time) }).collect();
        }
        let place = here(&arms);
        let figures = [
            Figure::new("p99", "s", |s: &Sample| s.time),
            Figure::new("mean", "s", |s: &Sample| s.time),
            Figure::maybe("reads", "/s", |s: &Sample| s.reads),
        ];
        let expected = "here, on relative to off: reads 0.25 (0.25-0.25), p99 0.25 (0.25-0.25), \
                        mean 0.25 (0.25-0.25).";
        assert_eq!(sentences(&figures, &place), [expected]);
    }

    #[test]
    fn report_has_goals_charts_ratios_and_figures() {
        let mut arms = Arms::named(&["off".to_owned(), "on".to_owned()]);
        for (arm, time) in arms.0.iter_mut().zip([4.0, 1.0, 4.0]) {
            let sample = |round: u32| Sample { time: time + f64::from(round), reads: None };
            arm.rounds = (0..3).map(sample).collect();
        }
        let place = here(&arms);
        let report = report(&Readers, &[place], Begun::now("").report("kind", "Title", &[]));
        let Block::Chart(ratios) = ratio_bars("", &Readers.summary(), &arms) else {
            panic!("a chart")
        };
        assert_eq!(
            (ratios.series[0].name.as_str(), ratios.series[0].points[0].y.median),
            ("on", 0.4)
        );
        let ids: Vec<&str> = report.sections.iter().map(|section| section.id.as_str()).collect();
        assert_eq!(ids, ["goals", "times", "p99", "over-first", "here"]);
        assert_eq!(report.summary[0], "Of 1 goals 1 are met, 0 are not; of 0 nothing can be said.");
        let expected = "here, on relative to off: p99 0.40 (0.25-0.50), time 0.40 (0.25-0.50).";
        assert_eq!(report.summary[1], expected);
        assert_eq!(report.notes.len(), 1, "three rounds are few");
        let mut disturbed = report.clone();
        disturbed.machine.load =
            disturbed.machine.load.map(|load| Load { others: Some(1.3), ..load });
        let disturbed = disturbed.guarded();
        assert_eq!(disturbed.summary, ["No conclusion is drawn: other programs used 1.30 CPUs."]);
        let Block::Table(goals) = &disturbed.sections[0].blocks[0] else { panic!("a table") };
        let outcome = "inconclusive: other programs used 1.30 CPUs";
        assert_eq!(goals.rows[0].last(), Some(&outcome.into()));
        let exact = Report { kind: "simulate".into(), ..disturbed };
        assert_eq!(exact.disturbance(), None);
        arms.0[2].rounds[0].time = 1.0;
        let place = here(&arms);
        let noisy = sentences(&Readers.summary(), &place);
        assert_eq!(noisy, ["here, on relative to off: no difference seen in time."]);
        assert_eq!(report.samples[0].rows.len(), 9);
        let Block::Table(figures) = &report.sections[4].blocks[0] else { panic!("a table") };
        assert_eq!((figures.rows.len(), &figures.rows[0][2]), (3, &Cell::Empty));
        assert!(matches!(report.sections[4].blocks[1..], [Block::Chart(_)]), "its own chart");
        let Block::Table(ratios) = &report.sections[3].blocks[0] else { panic!("a table") };
        let Cell::Figure(shorter) = &ratios.rows[0][2] else { panic!("a figure") };
        assert_eq!(shorter.median, 2.5);
    }
}
