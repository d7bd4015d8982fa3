//! Tables and charts of figures.

use vlane_report::stats::nearest_rank;
use vlane_report::{Axis, Block, Cell, Chart, Point, Series};

/// Points of a distribution's curve.
const CURVE: usize = 200;

pub(crate) fn number(value: u64) -> f64 {
    value as f64
}

/// Nanoseconds as microseconds.
pub(crate) fn us(ns: f64) -> f64 {
    ns / 1000.0
}

pub(crate) fn text(words: impl Into<String>) -> Cell {
    Cell::Text(words.into())
}

/// A part in percent; none of zero.
pub(crate) fn share(part: u64, all: u64) -> Cell {
    if all == 0 { Cell::Empty } else { Cell::Number(number(part) * 100.0 / number(all)) }
}

/// The columns that [`percentiles`] fills, after one for what they are of.
pub(crate) fn percentile_columns<'a>(first: &'a str, unit: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut columns = vec![(first, "")];
    columns.extend(["mean", "p50", "p90", "p99", "p99.9", "max"].map(|title| (title, unit)));
    columns
}

/// Sorts values; their mean and percentiles.
pub(crate) fn percentiles(values: &mut [u64], scale: impl Fn(f64) -> f64) -> Vec<Cell> {
    values.sort_unstable();
    let sum: u128 = values.iter().map(|value| u128::from(*value)).sum();
    let mean = sum / (values.len().max(1) as u128);
    let mean = u64::try_from(mean).unwrap_or(u64::MAX);
    let tail = [500, 900, 990, 999, 1000].map(|part| nearest_rank(values, part).unwrap_or(0));
    std::iter::once(mean).chain(tail).map(|value| Cell::Number(scale(number(value)))).collect()
}

/// Bars: a group for each category.
pub(crate) fn bars(
    caption: &str,
    categories: Vec<String>,
    y: (&str, &str),
    of: Vec<(&str, Vec<f64>)>,
) -> Block {
    let points =
        |values: Vec<f64>| (0_u32..).zip(values).map(|(x, y)| Point::exact(x.into(), y)).collect();
    Block::Chart(Chart::bars(
        caption,
        Axis::new("", ""),
        Axis::new(y.0, y.1),
        categories,
        of.into_iter().map(|(name, values)| Series::measured(name, points(values))).collect(),
    ))
}

/// Lines.
pub(crate) fn lines(
    caption: &str,
    x: (&str, &str),
    y: (&str, &str),
    of: Vec<(String, Vec<(f64, f64)>)>,
) -> Block {
    let points =
        |values: Vec<(f64, f64)>| values.into_iter().map(|(x, y)| Point::exact(x, y)).collect();
    Block::Chart(Chart::lines(
        caption,
        Axis::new(x.0, x.1),
        Axis::new(y.0, y.1),
        of.into_iter().map(|(name, values)| Series::measured(name, points(values))).collect(),
    ))
}

/// Cumulative distributions of sorted values, on a logarithmic axis.
pub(crate) fn cdf(
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
                Some(last) if last.x >= x => *last = Point::exact(last.x, y),
                _ => points.push(Point::exact(x, y)),
            }
        }
        points
    };
    Block::Chart(Chart::steps(
        caption,
        Axis::log(x.0, x.1),
        Axis::new("not longer", "%"),
        of.iter().map(|(name, sorted)| Series::measured(name.clone(), curve(sorted))).collect(),
    ))
}
