//! Rounds behind figures of a report's tables, for ratios of figures that were measured in turns.
//!
//! A table has a median, a smallest and a largest value, and the samples have all values. The three
//! values of the table find the samples, apart from a unit. Rounds count as unknown if two samples
//! fit that differ.

use std::collections::BTreeMap;

use vlane_report::stats::nearest_rank;
use vlane_report::{Cell, Report, Samples, Spread};

/// Titles of columns that number rounds.
const ROUND: [&str; 3] = ["round", "turn", "pass"];
/// Largest relative error of sums of the same values.
const ERROR: f64 = 1e-9;

/// Numbers of rounds as bits, each with its value.
type Rounds = Vec<(u64, f64)>;

/// Samples of one arm: its labels, and its columns.
struct Arm {
    labels: Vec<String>,
    columns: Vec<Rounds>,
}

/// The ratio of two figures in each round; `None` if the report lacks the rounds of one.
pub(crate) fn ratio(report: &Report, of: &Spread, over: &Spread) -> Option<Spread> {
    report.samples.iter().find_map(|samples| {
        let arms = arms(samples)?;
        let (of, over) = (find(&arms, of)?, find(&arms, over)?);
        Spread::of(&values(&divide(&of, &over)?))
    })
}

/// Each round of one divided by the same round of the other; `None` if they have other rounds.
fn divide(of: &Rounds, over: &Rounds) -> Option<Rounds> {
    let pairs = || of.iter().zip(over);
    let is_same = of.len() == over.len() && pairs().all(|(of, over)| of.0 == over.0);
    is_same.then(|| pairs().map(|(of, over)| (of.0, of.1 / over.1)).collect())
}

fn values(rounds: &Rounds) -> Vec<f64> {
    rounds.iter().map(|(_, value)| *value).collect()
}

/// Values of a figure's rounds: a column of an arm or its reciprocal, else a quotient of columns.
fn find(arms: &[Arm], figure: &Spread) -> Option<Rounds> {
    let alone = arms.iter().flat_map(|arm| &arm.columns).flat_map(|all| {
        let reciprocal = all.iter().map(|(round, value)| (*round, value.recip())).collect();
        [all.clone(), reciprocal]
    });
    only(alone, figure).or_else(|| only(quotients(arms), figure))
}

/// Quotients of any two columns of an arm, and of one column of two arms that differ in one label.
fn quotients(arms: &[Arm]) -> impl Iterator<Item = Rounds> {
    let of_one = arms.iter().flat_map(|arm| {
        let pairs = arm.columns.iter().flat_map(|a| arm.columns.iter().map(move |b| (a, b)));
        pairs.filter_map(|(a, b)| divide(a, b))
    });
    let is_near = |a: &Arm, b: &Arm| {
        a.labels.len() == b.labels.len()
            && a.labels.iter().zip(&b.labels).filter(|(a, b)| a != b).count() == 1
    };
    let pairs = arms.iter().flat_map(|a| arms.iter().map(move |b| (a, b)));
    let pairs = pairs.filter(move |(a, b)| is_near(a, b));
    let of_two = pairs.flat_map(|(a, b)| a.columns.iter().zip(&b.columns));
    of_one.chain(of_two.filter_map(|(a, b)| divide(a, b)))
}

/// The rounds that fit a figure; `None` if several fit that differ.
fn only(candidates: impl Iterator<Item = Rounds>, figure: &Spread) -> Option<Rounds> {
    let mut found = candidates.filter_map(|rounds| in_unit_of(figure, rounds));
    let first = found.next().filter(|_| figure.runs > 1)?;
    let is_one = |ratio: f64| (ratio - 1.0).abs() < ERROR;
    let is_same = |other: Rounds| {
        divide(&first, &other).is_some_and(|all| values(&all).into_iter().all(is_one))
    };
    found.all(is_same).then_some(first)
}

/// Rounds in a figure's unit, if they are the figure's.
fn in_unit_of(figure: &Spread, mut rounds: Rounds) -> Option<Rounds> {
    let all = Spread::of(&values(&rounds))?;
    let unit = figure.median / all.median;
    let is_near = |a: f64, b: f64| (a * unit - b).abs() <= ERROR * b.abs();
    let is_same = all.runs == figure.runs
        && unit.is_finite()
        && unit > 0.0
        && is_near(all.min, figure.min)
        && is_near(all.max, figure.max);
    rounds.iter_mut().for_each(|(_, value)| *value *= unit);
    is_same.then_some(rounds)
}

/// Arms of some samples. Labels are the columns of words. A list of numbers is two columns: its
/// median and its 99th percentile.
fn arms(samples: &Samples) -> Option<Vec<Arm>> {
    let is_round = |title: &str| ROUND.contains(&title.to_lowercase().as_str());
    let round = samples.columns.iter().position(|column| is_round(&column.title))?;
    let is_label = |at: usize| {
        let is_word = |cell: &Cell| matches!(cell, Cell::Text(_)) && numbers(cell).is_none();
        at != round && samples.rows.iter().any(|row| is_word(&row[at]))
    };
    let labels: Vec<usize> = (0..samples.columns.len()).filter(|at| is_label(*at)).collect();
    let mut arms: BTreeMap<Vec<String>, Vec<Rounds>> = BTreeMap::new();
    for row in &samples.rows {
        let Cell::Number(number) = row[round] else { return None };
        let names = labels.iter().map(|at| match &row[*at] {
            Cell::Text(text) => text.clone(),
            _ => String::new(),
        });
        let columns = arms.entry(names.collect()).or_default();
        columns.resize_with(2 * row.len(), Rounds::new);
        for (at, cell) in row.iter().enumerate().filter(|(at, _)| *at != round) {
            let list = numbers(cell).unwrap_or_default();
            let ranks = [500, 990].into_iter().take(list.len());
            for (column, permille) in columns[2 * at..].iter_mut().zip(ranks) {
                let value = nearest_rank(&list, permille);
                column.extend(value.map(|value| (number.to_bits(), value)));
            }
        }
    }
    let arms = arms.into_iter().map(|(labels, columns)| Arm { labels, columns });
    Some(arms.collect())
}

/// Numbers of a cell in rising order; `None` for words.
fn numbers(cell: &Cell) -> Option<Vec<f64>> {
    let mut all: Vec<f64> = match cell {
        Cell::Text(text) => {
            text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?
        }
        Cell::Number(value) => vec![*value],
        Cell::Figure(_) | Cell::Empty => Vec::new(),
    };
    all.sort_by(f64::total_cmp);
    Some(all)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use vlane_report::build::Begun;

    use super::*;

    const TIMES: [[f64; 5]; 2] = [[10.0, 20.0, 50.0, 20.0, 30.0], [9.0, 21.0, 45.0, 18.0, 33.0]];

    /// A report of two arms in turns, on a machine whose speed varies.
    fn report() -> Report {
        let mut rows = Vec::new();
        for (arm, times) in ["off", "on"].into_iter().zip(TIMES) {
            for (round, time) in (1_u32..).zip(times) {
                let list = format!("{} 0 {}", time * 2.0, time * 3.0);
                let numbers = [f64::from(round), time, time * time].map(Cell::Number);
                let words = ["here", arm].map(Cell::from).into_iter();
                rows.push(words.chain(numbers).chain([list.into()]).collect());
            }
        }
        let columns = "Where | Arm | Round | time [us] | area | times [us]";
        let samples = vec![Samples::new("rounds", "", columns, rows)];
        Report { samples, ..Begun::now("").report("kind", "", &[]) }
    }

    fn spread(times: [f64; 5], of: impl Fn(f64) -> f64) -> Spread {
        Spread::of(&times.map(of)).unwrap()
    }

    fn shown(ratio: Option<Spread>) -> Option<[f64; 3]> {
        ratio.map(|r| [r.median, r.min, r.max].map(|value| (value * 100.0).round() / 100.0))
    }

    #[test]
    fn rounds_are_divided_one_by_one() {
        let [off, on] = TIMES;
        let report = report();
        let over = |of: fn(f64) -> f64| shown(ratio(&report, &spread(on, of), &spread(off, of)));
        assert_eq!(over(|time| time / 1e3), Some([0.9, 0.9, 1.1]), "in another unit");
        assert_eq!(over(|time| 5.0 / time), Some([1.11, 0.91, 1.11]), "a rate");
        assert_eq!(over(|time| 2.0 * time), Some([0.9, 0.9, 1.1]), "the median of a list");
        let of_one = spread(on, |time| time * time);
        assert_eq!(shown(ratio(&report, &of_one, &of_one)), Some([1.0; 3]));
        // Per cent of the other arm, over the time.
        let percent = Spread::of(&[90.0, 105.0, 90.0, 90.0, 110.0]).unwrap();
        let none = ratio(&report, &percent, &spread(off, |time| time));
        assert_eq!(shown(none), Some([4.5, 1.8, 9.0]));
    }

    #[test]
    fn unknown_rounds_have_no_ratio() {
        let [off, on] = TIMES;
        let mut report = report();
        let [off, on] = [off, on].map(|times| spread(times, |time| time));
        let other = Spread { max: 34.0, ..on };
        assert_eq!(ratio(&report, &other, &off), None, "another value");
        assert_eq!(ratio(&report, &Spread::exact(20.0), &off), None, "one run");
        assert_eq!(ratio(&report, &Spread::of(&[9.0, 21.0]).unwrap(), &off), None, "ambiguous");
        report.samples[0].rows[2][2] = Cell::Number(9.0);
        assert_eq!(ratio(&report, &on, &off), None, "another round");
        report.samples.clear();
        assert_eq!(ratio(&report, &on, &off), None, "no samples");
    }
}
