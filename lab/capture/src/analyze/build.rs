//! Tables and charts of figures.

use vlane_report::{Axis, Block, Cell, Chart, Point, Series, Spread, nearest_rank, table};

/// Points of a distribution's curve.
const CURVE: usize = 200;

pub(crate) fn number(value: u64) -> f64 {
    value as f64
}

pub(crate) fn count(value: u64) -> Cell {
    Cell::Number(number(value))
}

/// A part in percent; none of zero.
pub(crate) fn share(part: u64, all: u64) -> Cell {
    Cell::from(number(part) * 100.0 / number(all))
}

/// Nanoseconds as microseconds.
pub(crate) fn us(ns: u64) -> f64 {
    number(ns) / 1000.0
}

/// The columns that [`percentiles`] fills, after those for what they are of.
pub(crate) fn percentile_columns(first: &str, unit: &str) -> String {
    let each = ["mean", "p50", "p90", "p99", "p99.9", "max"].map(|title| match unit {
        "" => format!(" | {title}"),
        unit => format!(" | {title} [{unit}]"),
    });
    first.to_owned() + &each.concat()
}

/// The mean of values, and their percentiles.
pub(crate) fn percentiles(values: &[f64]) -> impl Iterator<Item = Cell> + use<> {
    let sorted = sorted(values);
    let mean = sorted.iter().sum::<f64>() / number(sorted.len() as u64);
    let tail = [500, 900, 990, 999, 1000].map(|part| nearest_rank(&sorted, part));
    std::iter::once(Some(mean)).chain(tail).map(Cell::from)
}

/// A table of [`percentiles`]: a row for each name that has values.
pub(crate) fn percentile_table(
    caption: &str,
    head: &str,
    unit: &str,
    of: &[(String, Vec<f64>)],
) -> Block {
    let rows = of.iter().filter(|(_, values)| !values.is_empty());
    let row = |(name, values): &(String, Vec<f64>)| {
        std::iter::once(name.as_str().into()).chain(percentiles(values)).collect()
    };
    table(caption, &percentile_columns(head, unit), rows.map(row).collect())
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// Heights of bars.
pub(crate) fn exact(values: impl IntoIterator<Item = f64>) -> Vec<Option<Spread>> {
    values.into_iter().map(|value| Some(Spread::exact(value))).collect()
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
    let series = of.into_iter().map(|(name, values)| Series::measured(name, points(values)));
    let (x, y) = (Axis::new(x.0, x.1), Axis::new(y.0, y.1));
    Block::Chart(Chart::lines(caption, x, y, series.collect()))
}

/// Cumulative distributions, on a logarithmic axis.
pub(crate) fn cdf(caption: &str, x: (&str, &str), of: &[(String, Vec<f64>)]) -> Block {
    let curve = |values: &[f64]| -> Vec<Point> {
        let (sorted, n) = (sorted(values), values.len());
        let steps = CURVE.min(n);
        let point = |step: usize| {
            let rank = (n * step).div_ceil(steps);
            // A logarithmic axis has no zero.
            Point::exact(sorted[rank - 1].max(0.001), rank as f64 * 100.0 / n as f64)
        };
        let mut points: Vec<Point> = (1..=steps).map(point).collect();
        points.dedup_by(|next, last| {
            let is_same = next.x <= last.x;
            last.y = if is_same { next.y } else { last.y };
            is_same
        });
        points
    };
    let of = of.iter().filter(|(_, values)| !values.is_empty());
    let series = of.map(|(name, values)| Series::measured(name, curve(values))).collect();
    Block::Chart(Chart::steps(caption, Axis::log(x.0, x.1), Axis::new("not longer", "%"), series))
}
