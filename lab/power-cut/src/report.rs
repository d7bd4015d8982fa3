//! The results, as a report.

use vlane_error::counted;
use vlane_report::{Begun, Cell, Note, Report, Section, table};

use super::{Checked, Options, Outcome, STRATEGIES};

/// A report on all volumes.
pub fn report(options: &Options, outcomes: &[Outcome], begun: &Begun) -> Report {
    let sum = |count: fn(&Outcome) -> usize| outcomes.iter().map(count).sum::<usize>();
    let states = sum(|outcome| outcome.states.states);
    let (unsound, lost) = (sum(|o| o.states.unsound), sum(|o| o.states.lost));
    let violations = sum(|outcome| outcome.flushes.violations.len());
    let flushes = sum(|outcome| outcome.flushes.flushes);
    let mut summary = vec![
        format!(
            "{} after a power cut, of {}: the file system was not sound in {unsound}, and \
             something that was durable was missing in {lost}.",
            counted(states, "state"),
            counted(outcomes.len(), "volume")
        ),
        format!(
            "Flushes that were answered: {flushes}. Promises that were not kept, by the record: \
             {violations}."
        ),
    ];
    let broken = || outcomes.iter().filter_map(|outcome| outcome.broken.as_ref());
    if broken().count() > 0 {
        let sum = |count: fn(&Checked) -> usize| broken().map(count).sum::<usize>();
        let (states, unsound, lost) = (sum(|b| b.states), sum(|b| b.unsound), sum(|b| b.lost));
        let seen = if unsound + lost > 0 { " So it would have been seen." } else { "" };
        summary.push(format!(
            "As if nothing were ever durable, {}: not sound {unsound}, with losses {lost}.{seen}",
            counted(states, "state")
        ));
    }
    let mut notes: Vec<Note> = Vec::new();
    for outcome in outcomes {
        let wrong = outcome.states.told.iter().chain(&outcome.broken_promises);
        notes.extend(wrong.map(|what| {
            Note::warning(format!("{}, {}: {what}", outcome.what(), outcome.arm.name()))
        }));
    }
    notes.push(Note::info(format!(
        "The seed of the states is {}. The record, and so the states, differ from run to run.",
        options.seed
    )));
    Report {
        summary,
        notes,
        sections: vec![states_of(outcomes), recorded(outcomes), by_strategy(outcomes)],
        ..begun.report("power-cut", "A guest's file system after a power cut", &[])
    }
}

fn section(id: &str, title: &str, text: &str, columns: &str, rows: Vec<Vec<Cell>>) -> Section {
    Section::new(id, title, vec![text.to_owned()], vec![table(title, columns, rows)])
}

/// A row: words, and then numbers.
fn row(words: &[&str], numbers: impl IntoIterator<Item = usize>) -> Vec<Cell> {
    let words = words.iter().map(|word| Cell::from(*word));
    words.chain(numbers.into_iter().map(|number| Cell::Number(number as f64))).collect()
}

fn states_of(outcomes: &[Outcome]) -> Section {
    let mut rows = Vec::new();
    for outcome in outcomes {
        let kinds =
            [("as it is", Some(&outcome.states)), ("nothing durable", outcome.broken.as_ref())];
        for (storage, checked) in
            kinds.into_iter().filter_map(|(name, checked)| Some((name, checked?)))
        {
            let numbers = [checked.states, checked.open, checked.unsound, checked.lost];
            rows.push(row(&[&outcome.what(), &outcome.arm.name(), storage], numbers));
            let each = checked.took.as_secs_f64() * 1e3 / checked.states.max(1) as f64;
            rows.last_mut().into_iter().for_each(|row| row.push(Cell::Number(each)));
        }
    }
    let columns = "file system | cache | storage | states | with a choice | not sound | \
                   with losses | time each [ms]";
    let text = "States in which a power cut could have left each volume: the file system's own \
                check after its own repair, and the guest's files against the data that it knew \
                as durable. With nothing durable, the same record is taken as if no fdatasync had \
                done anything, and no durable write had been one.";
    section("states", "States after a power cut", text, columns, rows)
}

fn recorded(outcomes: &[Outcome]) -> Section {
    let each = |outcome: &Outcome| {
        let steps = usize::try_from(outcome.steps).unwrap_or(usize::MAX);
        let [durable, plain] = outcome.writes;
        let mut cells = row(&[&outcome.what(), &outcome.arm.name()], [steps, plain, durable]);
        cells.push(outcome.direct_writes.map(|count| count as f64).into());
        let flushes = &outcome.flushes;
        let violations = flushes.violations.len();
        let numbers = [flushes.flushes, flushes.syncs, flushes.without_sync, violations];
        cells.extend(row(&[], numbers));
        cells
    };
    let columns = "file system | cache | the guest's steps | writes | durable writes | \
                   around the cache | flushes | fdatasyncs | flushes without one | \
                   promises not kept";
    let text = "Operations that reached the storage. A flush keeps its promise when each \
                operation that was answered before it is durable by itself, or an fdatasync that \
                went well began after it and ended before the flush was answered.";
    section("record", "Recorded operations", text, columns, outcomes.iter().map(each).collect())
}

fn by_strategy(outcomes: &[Outcome]) -> Section {
    let each = |(at, (_, name)): (usize, &(_, &str))| {
        let sum = |pick: fn(&Outcome) -> Option<&Checked>| {
            let all = outcomes.iter().filter_map(pick).map(|checked| checked.by[at]);
            all.fold([0; 3], |sum, counts| [0, 1, 2].map(|n| sum[n] + counts[n]))
        };
        let (good, broken) = (sum(|o| Some(&o.states)), sum(|o| o.broken.as_ref()));
        row(&[name], good.into_iter().chain(broken))
    };
    let columns = "there is, of data that are not durable | states | not sound | with losses | \
                   nothing durable: states | not sound | with losses";
    let rows = STRATEGIES.iter().enumerate().map(each).collect();
    section("strategies", "How the states were chosen", "All volumes together.", columns, rows)
}
