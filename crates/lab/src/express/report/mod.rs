//! The reports: what they share, and one file for each.

pub(super) mod guests;
pub(super) mod launch;
pub(super) mod native;

use super::judge::{Arms, Measured, Verdict};
use super::machine::Beside;
use super::{ENOUGH, Variant};
use crate::report::build::{bars, section, spread, table};
use crate::report::{Block, Cell, Note, Section, Spread};

/// A figure of all rounds of an arm.
fn cell<S>(arm: &Measured<S>, of: impl Fn(&S) -> Option<f64>) -> Cell {
    spread(&arm.rounds, of).into()
}

/// Goals, and what became of them.
fn goals(verdicts: &[Verdict], text: &str) -> Section {
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
    let columns = [
        ("Where", ""),
        ("Arm", ""),
        ("Goal", ""),
        ("Figure", ""),
        ("Wanted", ""),
        ("A/A", ""),
        ("Outcome", ""),
    ];
    let text = format!(
        "{text} Figures are ratios to the first arm of the same round: median (smallest-largest). A goal is met by its median. \
         A/A is the same figure of the first arm, measured twice in each round, over itself."
    );
    section("goals", "Goals", vec![text], vec![table("Goals", &columns, rows.collect())])
}

/// The goals in a sentence.
fn met(verdicts: &[Verdict]) -> String {
    let count = |is: Option<bool>| verdicts.iter().filter(|verdict| verdict.is_met() == is).count();
    format!(
        "Of {} goals {} are met, {} are not; of {} nothing can be said.",
        verdicts.len(),
        count(Some(true)),
        count(Some(false)),
        count(None)
    )
}

/// A remark on too few rounds.
fn few(rounds: usize) -> Option<Note> {
    let text = format!("{rounds} rounds: fewer than {ENOUGH}, so a difference may be chance.");
    (rounds < ENOUGH).then(|| Note::warning(text))
}

/// Above this the guest's CPU scheduler decides who is served.
const BUSY: f64 = 0.8;

/// What is to be said of a guest's CPUs: by the first arm, in which the crowd is nearly all that there is. Where the foreground is quick, its shell and its
/// own start are much of the time.
fn busy<S>(place: &str, arms: &Arms<S>, of: impl Fn(&S) -> &Beside) -> Option<Note> {
    let first = arms.0.first()?;
    let busy = spread(&first.rounds, |sample| Some(of(sample).busy))?;
    let text = format!(
        "{place}: the guest's CPUs were {:.0} % busy with {} ({:.0}-{:.0} %)",
        busy.median * 100.0,
        first.arm,
        busy.min * 100.0,
        busy.max * 100.0
    );
    Some(match busy.median > BUSY {
        true => Note::warning(format!(
            "{text}: above {:.0} % the guest's CPU scheduler decides who is served.",
            BUSY * 100.0
        )),
        false => Note::info(format!(
            "{text}. Where the foreground is quicker they are busier: its shell and its own start are more of the time."
        )),
    })
}

/// The variants that were measured, in the paper's order.
fn variants<'a, S: 'a>(all: impl Iterator<Item = &'a Arms<S>>) -> Vec<Variant> {
    let first = all.take(1).next();
    Variant::ALL.into_iter().filter(|v| first.is_some_and(|arms| arms.arm(v.title()).is_some())).collect()
}

/// A ratio for people: `0.21 (0.20-0.23)`.
fn says(ratio: Option<Spread>) -> String {
    ratio.map_or("-".into(), |r| format!("{:.2} ({:.2}-{:.2})", r.median, r.min, r.max))
}

/// Bars: a group for each place, a bar for each arm.
fn picture<S>(
    id: &str,
    title: &str,
    y: (&str, &str),
    places: &[(String, &Arms<S>)],
    of: impl Fn(&S) -> Option<f64>,
) -> Option<Section> {
    let first = &places.first()?.1.0;
    let rows = first.iter().enumerate().map(|(place, arm)| {
        let figures = places.iter().map(|(_, arms)| spread(&arms.0[place].rounds, &of)).collect();
        (arm.arm.clone(), figures)
    });
    let categories = places.iter().map(|(name, _)| name.clone()).collect();
    let caption = format!("{title}: medians, with the smallest and the largest of all rounds");
    let block: Block = bars(&caption, y, categories, rows.collect());
    Some(section(id, title, Vec::new(), vec![block]))
}
