//! A table made ready to be shown: figures written for people, one format for each column.

use crate::{Cell, Table, figure};

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
