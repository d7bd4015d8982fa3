//! A table made ready to be shown: figures written for people, one format for each column.

use crate::{Cell, Chart, Column, Series, Table, figure};

/// A column's heading, and whether figures stand in it.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) title: String,
    pub(super) unit: String,
    pub(super) numbers: bool,
}

/// A cell's text, and the spread in small print.
#[derive(Debug, Clone, Default)]
pub(super) struct Shown {
    pub(super) main: String,
    pub(super) range: String,
}

/// The whole.
#[derive(Debug, Clone)]
pub(super) struct Grid {
    pub(super) columns: Vec<Head>,
    pub(super) rows: Vec<Vec<Shown>>,
}

impl Grid {
    /// Every row gets as many cells as there are columns.
    pub(super) fn of(table: &Table) -> Self {
        let mut rows: Vec<Vec<Shown>> = vec![Vec::new(); table.rows.len()];
        let mut columns = Vec::new();
        for (i, column) in table.columns.iter().enumerate() {
            let cells = || table.rows.iter().filter_map(move |row| row.get(i));
            let values = || {
                cells().filter_map(|cell| match cell {
                    Cell::Figure(spread) => Some(spread.median),
                    Cell::Number(value) => Some(*value),
                    Cell::Text(_) | Cell::Empty => None,
                })
            };
            let words = cells().any(|cell| matches!(cell, Cell::Text(_)));
            let numbers =
                values().next().is_some() && !(words && values().count() * 2 < table.rows.len());
            let format = figure::Format::of_column(values(), &column.unit);
            let deepest = values().map(|value| format.decimals(value)).max().unwrap_or(0);
            for (row, shown) in table.rows.iter().zip(&mut rows) {
                shown.push(match row.get(i).unwrap_or(&Cell::Empty) {
                    Cell::Figure(spread) => Shown {
                        main: format.aligned(spread.median, deepest),
                        range: figure::range(spread, format).unwrap_or_default(),
                    },
                    Cell::Number(value) => {
                        Shown { main: format.aligned(*value, deepest), ..Shown::default() }
                    }
                    Cell::Text(text) => Shown { main: text.clone(), ..Shown::default() },
                    Cell::Empty => Shown { main: figure::NONE.into(), ..Shown::default() },
                });
            }
            columns.push(Head { title: column.title.clone(), unit: column.unit.clone(), numbers });
        }
        Self { columns, rows }
    }
}

/// A series' name, and what its figures are if they were not measured.
pub(super) fn full_name(series: &Series) -> String {
    match (series.predicted, series.published) {
        (false, false) => series.name.clone(),
        (true, false) => format!("{} (predicted)", series.name),
        (false, true) => format!("{} (published)", series.name),
        (true, true) => format!("{} (predicted, published)", series.name),
    }
}

/// The places of a chart's points that have any, and of its categories, by rising x, with names for
/// people.
pub(super) fn places(chart: &Chart) -> Vec<(f64, String)> {
    let format = figure::Format::of_unit(&chart.x.unit);
    let named = chart.categories.iter().enumerate().map(|(i, name)| (i as f64, name.clone()));
    let points = chart.series.iter().flat_map(|series| &series.points);
    let mut all: Vec<(f64, String)> = match chart.categories.is_empty() {
        true => points.map(|point| (point.x, format.show(point.x))).collect(),
        false => named.collect(),
    };
    all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    all.dedup_by(|(a, _), (b, _)| a.total_cmp(b).is_eq());
    all
}

/// A chart as a table: a row per place, a column per series.
pub(super) fn figures(chart: &Chart) -> Table {
    let unit = if chart.categories.is_empty() { chart.x.unit.as_str() } else { "" };
    let mut columns = vec![Column::new(&chart.x.title, unit)];
    columns.extend(chart.series.iter().map(|s| Column::new(&full_name(s), &chart.y.unit)));
    let row = |(x, name): (f64, String)| {
        let first = if chart.categories.is_empty() { Cell::Number(x) } else { Cell::Text(name) };
        let others = chart.series.iter().map(|series| {
            let point = series.points.iter().find(|point| point.x.total_cmp(&x).is_eq());
            point.map_or(Cell::Empty, |point| Cell::Figure(point.y))
        });
        std::iter::once(first).chain(others).collect()
    };
    Table::new("", columns, places(chart).into_iter().map(row).collect())
}
