//! Tables and charts of figures.

use crate::report::{Axis, Block, Cell, Chart, ChartKind, Column, Point, Series, Spread, Table};

/// Points of a distribution's curve.
const CURVE: usize = 200;

#[expect(clippy::cast_precision_loss, reason = "figures for people: 53 bits are enough")]
pub(in crate::trace) fn number(value: u64) -> f64 {
    value as f64
}

/// Nanoseconds as microseconds.
pub(in crate::trace) fn us(ns: f64) -> f64 {
    ns / 1000.0
}

pub(in crate::trace) fn text(words: impl Into<String>) -> Cell {
    Cell::Text(words.into())
}

/// A part in percent; nothing of nothing.
pub(in crate::trace) fn share(part: u64, all: u64) -> Cell {
    if all == 0 { Cell::Empty } else { Cell::Number(number(part) * 100.0 / number(all)) }
}

pub(in crate::trace) fn table(caption: &str, columns: &[(&str, &str)], rows: Vec<Vec<Cell>>) -> Block {
    let column = |(title, unit): &(&str, &str)| Column { title: (*title).into(), unit: (*unit).into() };
    Block::Table(Table { caption: caption.into(), columns: columns.iter().map(column).collect(), rows })
}

/// The columns that [`percentiles`] fills, after one for what they are of.
pub(in crate::trace) fn percentile_columns<'a>(first: &'a str, unit: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut columns = vec![(first, "")];
    columns.extend(["mean", "p50", "p90", "p99", "p99.9", "max"].map(|title| (title, unit)));
    columns
}

/// The value that `part` of 1000 of the sorted values are not above.
pub(in crate::trace) fn permille(sorted: &[u64], part: usize) -> u64 {
    let rank = (sorted.len() * part).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

/// Sorts values; their mean and percentiles.
pub(in crate::trace) fn percentiles(values: &mut [u64], scale: impl Fn(f64) -> f64) -> Vec<Cell> {
    values.sort_unstable();
    let sum: u128 = values.iter().map(|value| u128::from(*value)).sum();
    let mean = sum / (values.len().max(1) as u128);
    let mean = u64::try_from(mean).unwrap_or(u64::MAX);
    let tail = [500, 900, 990, 999, 1000].map(|part| permille(values, part));
    std::iter::once(mean).chain(tail).map(|value| Cell::Number(scale(number(value)))).collect()
}

fn exact(x: f64, y: f64) -> Point {
    Point { x, y: Spread { median: y, min: y, max: y, runs: 1 } }
}

fn axis((title, unit): (&str, &str), log: bool) -> Axis {
    Axis { title: title.into(), unit: unit.into(), log }
}

fn series(name: &str, points: Vec<Point>) -> Series {
    Series { name: name.into(), predicted: false, published: false, points }
}

/// Bars: a group for each category.
pub(in crate::trace) fn bars(
    caption: &str,
    categories: Vec<String>,
    y: (&str, &str),
    of: Vec<(&str, Vec<f64>)>,
) -> Block {
    let points = |values: Vec<f64>| (0_u32..).zip(values).map(|(x, y)| exact(x.into(), y)).collect();
    Block::Chart(Chart {
        caption: caption.into(),
        kind: ChartKind::Bars,
        x: axis(("", ""), false),
        y: axis(y, false),
        categories,
        series: of.into_iter().map(|(name, values)| series(name, points(values))).collect(),
    })
}

/// Lines.
pub(in crate::trace) fn lines(
    caption: &str,
    x: (&str, &str),
    y: (&str, &str),
    of: Vec<(String, Vec<(f64, f64)>)>,
) -> Block {
    let points = |values: Vec<(f64, f64)>| values.into_iter().map(|(x, y)| exact(x, y)).collect();
    Block::Chart(Chart {
        caption: caption.into(),
        kind: ChartKind::Lines,
        x: axis(x, false),
        y: axis(y, false),
        categories: Vec::new(),
        series: of.into_iter().map(|(name, values)| series(&name, points(values))).collect(),
    })
}

/// Cumulative distributions of sorted values, on a logarithmic axis.
pub(in crate::trace) fn cdf(
    caption: &str,
    x: (&str, &str),
    of: Vec<(String, Vec<u64>)>,
    scale: impl Fn(f64) -> f64,
) -> Block {
    let curve = |sorted: &[u64]| -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        let n = sorted.len();
        for step in 1..=CURVE.min(n) {
            let rank = (n * step).div_ceil(CURVE.min(n)).max(1);
            // A logarithmic axis has no zero.
            let value = sorted[rank - 1].max(1);
            let (x, y) = (scale(number(value)), number(rank as u64) * 100.0 / number(n as u64));
            match points.last_mut() {
                Some(last) if last.x >= x => *last = exact(last.x, y),
                _ => points.push(exact(x, y)),
            }
        }
        points
    };
    Block::Chart(Chart {
        caption: caption.into(),
        kind: ChartKind::Steps,
        x: axis(x, true),
        y: axis(("not longer", "%"), false),
        categories: Vec::new(),
        series: of.iter().map(|(name, sorted)| series(name, curve(sorted))).collect(),
    })
}
