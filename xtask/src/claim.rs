//! Statements of a publication, and vlane's goals, each compared with a report.

use std::collections::BTreeMap;

use crate::published::{Interval, Published, Row, Said};
use serde::Deserialize;
use vlane_report::{Block, Cell, Report, Section, Spread, Table};

use crate::rounds;

/// Something that a publication says, as a figure or as a ratio of two.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    /// In words, with its unit.
    pub(crate) says: String,
    /// The published figure.
    published: Option<f64>,
    /// Statements published in words or in a graph without numbers.
    published_in_words: Option<Words>,
    /// The value that would mean no change; 1 without it if the figure is a ratio of two, else
    /// there is none.
    no_change: Option<f64>,
    /// Which measured figure it is about.
    of: Option<Place>,
    /// The figure that it is a ratio to.
    over: Option<Place>,
    /// Why it is not measured, if it is not.
    missing: Option<String>,
}

/// Which way.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Words {
    More,
    Less,
}

/// Something that vlane is to reach by its own wish.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Goal {
    /// In words, with its unit.
    pub(crate) says: String,
    /// Which measured figure it is about.
    of: Place,
    /// The figure that it is a ratio to.
    over: Option<Place>,
    /// The measured one should be at least this.
    at_least: Option<f64>,
    /// The measured one should be at most this.
    at_most: Option<f64>,
}

/// Where a figure stands in a report: in a table (`row` and `column`) or on a chart (`series` and
/// `x`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Place {
    section: String,
    /// Content of the row's first cells.
    #[serde(default)]
    row: Vec<String>,
    column: Option<String>,
    series: Option<String>,
    x: Option<f64>,
    /// A part of the table's or chart's caption, where a section has several.
    #[serde(default)]
    caption: String,
}

/// Several rows of a table, taken together.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rows {
    section: String,
    /// A part of the table's caption, where a section has several.
    #[serde(default)]
    caption: String,
    column: String,
    /// Contents of other columns, by their titles; other rows are left out.
    #[serde(default)]
    only: BTreeMap<String, String>,
    /// Rows with a figure up to this are left out.
    above: Option<f64>,
    take: Take,
}

/// Figure of several rows.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Take {
    /// How many have a figure.
    Count,
    /// The sum of their figures.
    Sum,
    /// The smallest median, with its spread.
    Least,
    /// The largest median, with its spread.
    Most,
}

/// Part of a spread within bounds. The median decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Within {
    /// All of it.
    All,
    /// The median is outside, so the goal is not met.
    None,
    /// The median and a part.
    Part,
}

impl Within {
    fn of(here: &Interval, low: f64, high: f64) -> Self {
        let inside = |value: f64| (low..=high).contains(&value);
        match (inside(here.middle), inside(here.low), inside(here.high)) {
            (false, ..) => Self::None,
            (true, true, true) => Self::All,
            _ => Self::Part,
        }
    }

    /// It as the outcome of a goal.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::All => "met",
            Self::None => "**not met**",
            Self::Part => "met by the median; the spread crosses a bound",
        }
    }
}

impl Figure {
    /// Its fault, if any.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if self.published.is_some() == self.published_in_words.is_some() {
            return Some("give either `published` or `published_in_words`");
        }
        if self.of.is_some() == self.missing.is_some() {
            return Some("give either `of`, or why it is `missing`");
        }
        let has_direction = self.no_change.is_some() || self.over.is_some();
        (self.published_in_words.is_some() && !has_direction)
            .then_some("words need `over` or `no_change`")
    }

    /// Holds it against a report.
    pub(crate) fn row(&self, report: &Report) -> Row {
        let said = match (self.published_in_words, self.published) {
            (Some(Words::More), _) => Said::More,
            (Some(Words::Less), _) => Said::Less,
            (None, value) => Said::Number(value.unwrap_or(f64::NAN)),
        };
        let no_change = self.no_change.or(self.over.as_ref().map(|_| 1.0));
        let mut here = match (&self.of, &self.missing) {
            (Some(of), None) => measured(of, self.over.as_ref(), report)
                .ok_or_else(|| "not in the last result".to_owned()),
            (_, missing) => Err(missing.clone().unwrap_or_default()),
        };
        if let (Ok(here), Some(_)) = (&mut here, report.disturbance()) {
            // No interval of a disturbed measurement decides a direction.
            here.confidence = 0.0;
        }
        Row { figure: self.says.clone(), published: Published { said, no_change }, here }
    }
}

impl Goal {
    /// Its fault, if any.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        (self.at_least.is_none() && self.at_most.is_none())
            .then_some("a goal needs `at_least` or `at_most`")
    }

    /// Holds it against a report; `None` if the figure is not in it.
    pub(crate) fn judge(&self, report: &Report) -> Option<(Interval, Within)> {
        let here = measured(&self.of, self.over.as_ref(), report)?;
        let (low, high) =
            (self.at_least.unwrap_or(f64::NEG_INFINITY), self.at_most.unwrap_or(f64::INFINITY));
        Some((here, Within::of(&here, low, high)))
    }

    /// `at least 0.95`, as it was given.
    pub(crate) fn bounds(&self) -> String {
        match (self.at_least, self.at_most) {
            (Some(low), Some(high)) => format!("{low} to {high}"),
            (Some(low), None) => format!("at least {low}"),
            (None, Some(high)) => format!("at most {high}"),
            (None, None) => String::new(),
        }
    }
}

/// The measured figure, or the ratio of two: round by round where the report has the rounds.
pub(crate) fn measured(of: &Place, over: Option<&Place>, report: &Report) -> Option<Interval> {
    let of = of.find(report)?;
    let Some(over) = over else { return Some(Interval::of(&of)) };
    let over = over.find(report)?;
    match rounds::ratio(report, &of, &over) {
        Some(ratios) => Some(Interval::of(&ratios)),
        None => Interval::unpaired(&of, &over),
    }
}

impl Place {
    fn find(&self, report: &Report) -> Option<Spread> {
        let section = report.sections.iter().find(|section| section.id == self.section)?;
        match (&self.column, &self.series) {
            (Some(column), _) => self.in_table(section, column),
            (None, Some(series)) => self.on_chart(section, series),
            (None, None) => None,
        }
    }

    fn in_table(&self, section: &Section, column: &str) -> Option<Spread> {
        section.blocks.iter().find_map(|block| {
            let Block::Table(table) = block else { return None };
            let index = table.columns.iter().position(|c| c.title == column)?;
            let says = |cell: &Cell, text: &str| {
                matches!(cell, Cell::Text(t) if t == text) || shown(cell) == text
            };
            let row = table.rows.iter().find(|row| {
                table.caption.contains(&self.caption)
                    && row.len() >= self.row.len()
                    && self.row.iter().zip(row.iter()).all(|(text, cell)| says(cell, text))
            })?;
            spread_of(row.get(index)?)
        })
    }

    fn on_chart(&self, section: &Section, name: &str) -> Option<Spread> {
        section.blocks.iter().find_map(|block| {
            let Block::Chart(chart) = block else { return None };
            let series = chart.series.iter().find(|s| s.name == name && !s.published)?;
            let x = self.x?;
            let point = series.points.iter().find(|p| (p.x - x).abs() < 1e-9)?;
            chart.caption.contains(&self.caption).then_some(point.y)
        })
    }
}

impl Rows {
    /// Their figure; `None` without such a table, and without a row unless rows are counted.
    pub(crate) fn find(&self, report: &Report) -> Option<Spread> {
        let section = report.sections.iter().find(|section| section.id == self.section)?;
        let spreads = section.blocks.iter().find_map(|block| match block {
            Block::Table(table) if table.caption.contains(&self.caption) => self.spreads(table),
            Block::Table(_) | Block::Chart(_) => None,
        })?;
        let by_median = |a: &Spread, b: &Spread| a.median.total_cmp(&b.median);
        match self.take {
            Take::Count => Spread::of(&[spreads.len() as f64]),
            Take::Sum => Spread::of(&[spreads.iter().map(|spread| spread.median).sum()]),
            Take::Least => spreads.into_iter().min_by(by_median),
            Take::Most => spreads.into_iter().max_by(by_median),
        }
    }

    /// Figures of the column in the rows that are not left out; `None` if a column is missing.
    fn spreads(&self, table: &Table) -> Option<Vec<Spread>> {
        let at = |title: &String| table.columns.iter().position(|column| column.title == *title);
        let only = self.only.iter().map(|(title, text)| Some((at(title)?, text)));
        let only: Vec<_> = only.collect::<Option<_>>()?;
        let index = at(&self.column)?;
        let rows = table.rows.iter().filter(|row| {
            only.iter().all(|(at, text)| row.get(*at).is_some_and(|cell| shown(cell) == **text))
        });
        let spreads = rows.filter_map(|row| spread_of(row.get(index)?));
        Some(
            spreads.filter(|spread| self.above.is_none_or(|least| spread.median > least)).collect(),
        )
    }
}

/// A cell's figure, if it has one.
fn spread_of(cell: &Cell) -> Option<Spread> {
    match cell {
        Cell::Figure(spread) => Some(*spread),
        Cell::Number(value) => Spread::of(&[*value]),
        Cell::Text(_) | Cell::Empty => None,
    }
}

/// A cell's number as a description would write it.
fn shown(cell: &Cell) -> String {
    match cell {
        Cell::Number(value) => format!("{value}"),
        Cell::Figure(spread) => format!("{}", spread.median),
        Cell::Text(text) => text.clone(),
        Cell::Empty => String::new(),
    }
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
