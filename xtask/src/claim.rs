//! A published figure, held against the measured one.

use serde::Deserialize;
use vlane_report::{Block, Cell, Report, Section, Spread};

/// Something that a publication says, as a figure or as a ratio of two.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    /// In words.
    pub(crate) says: String,
    /// The published figure; none where the publication says it in words or in a graph only. Bounds must be given then.
    pub(crate) published: Option<f64>,
    /// Which measured figure it is about.
    pub(crate) of: Place,
    /// The figure that it is a ratio to.
    pub(crate) over: Option<Place>,
    /// The measured one should be at least this.
    pub(crate) at_least: Option<f64>,
    /// The measured one should be at most this.
    pub(crate) at_most: Option<f64>,
}

/// Where a figure stands in a report: in a table (`row` and `column`) or on a chart (`series` and `x`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Place {
    section: String,
    /// What the first cells of the row say.
    #[serde(default)]
    row: Vec<String>,
    column: Option<String>,
    series: Option<String>,
    x: Option<f64>,
    /// A part of the table's or chart's caption, where a section has several.
    #[serde(default)]
    caption: String,
}

/// Whether all of a spread, none of it or a part is within something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Within {
    /// All of it.
    All,
    /// Nothing of it.
    None,
    /// A part.
    Part,
}

/// What came of a claim: direction, size and bounds, each by itself. Two ratios on the same side of 1 may be far apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    /// The measured figure.
    pub(crate) here: Spread,
    /// Of a ratio: whether it is on the published side of 1. None for other figures, and where the published ratio is 1.
    pub(crate) direction: Option<Within>,
    /// The measured figure over the published one.
    pub(crate) size: Option<f64>,
    /// Whether it is within the bounds, if there are any.
    pub(crate) bounds: Option<Within>,
}

impl Within {
    fn of(here: Spread, low: f64, high: f64) -> Self {
        let inside = |value: f64| (low..=high).contains(&value);
        match (inside(here.median), inside(here.min), inside(here.max)) {
            (true, true, true) => Self::All,
            (false, false, false) => Self::None,
            _ => Self::Part,
        }
    }
}

impl Claim {
    /// Holds it against a report; `None` if the figure is not in it.
    pub(crate) fn judge(&self, report: &Report) -> Option<Outcome> {
        let here = self.measured(report)?;
        let bounded = self.at_least.is_some() || self.at_most.is_some();
        // A ratio of two figures, or a figure that is a ratio itself: a figure of any other kind has bounds.
        let ratio =
            self.published.filter(|then| (self.over.is_some() || !bounded) && (then - 1.0).abs() > 1e-9);
        let direction = ratio.map(|then| match then > 1.0 {
            true => Within::of(here, 1.0, f64::INFINITY),
            false => Within::of(here, f64::NEG_INFINITY, 1.0),
        });
        let (low, high) = (self.at_least.unwrap_or(f64::NEG_INFINITY), self.at_most.unwrap_or(f64::INFINITY));
        let size = self.published.map(|then| here.median / then).filter(|size| size.is_finite());
        Some(Outcome { here, direction, size, bounds: bounded.then(|| Within::of(here, low, high)) })
    }

    /// The measured figure; of a ratio the median, and what the extremes of both sides make of it at worst.
    fn measured(&self, report: &Report) -> Option<Spread> {
        let of = self.of.find(report)?;
        let Some(over) = &self.over else { return Some(of) };
        let over = over.find(report)?;
        let spread = Spread {
            median: of.median / over.median,
            min: of.min / over.max,
            max: of.max / over.min,
            runs: of.runs.min(over.runs),
        };
        [spread.median, spread.min, spread.max].iter().all(|v| v.is_finite()).then_some(spread)
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
            let says =
                |cell: &Cell, text: &str| matches!(cell, Cell::Text(t) if t == text) || shown(cell) == text;
            let row = table.rows.iter().find(|row| {
                table.caption.contains(&self.caption)
                    && row.len() >= self.row.len()
                    && self.row.iter().zip(row.iter()).all(|(text, cell)| says(cell, text))
            })?;
            match row.get(index)? {
                Cell::Figure(spread) => Some(*spread),
                Cell::Number(value) => Spread::of(&[*value]),
                Cell::Text(_) | Cell::Empty => None,
            }
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
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use vlane_report::machine::Machine;
    use vlane_report::{Axis, Chart, ChartKind, Column, Point, SCHEMA, Series, Table};

    use super::*;

    fn report() -> Report {
        let spread = |values: &[f64]| Spread::of(values).unwrap();
        let column = |title: &str| Column { title: title.into(), unit: String::new() };
        let row = |name: &str, jobs: f64, figure: &[f64]| {
            vec![Cell::Text(name.into()), Cell::Number(jobs), Cell::Figure(spread(figure))]
        };
        let table = Table {
            caption: "IOPS".into(),
            columns: vec![column("topology"), column("jobs"), column("IOPS")],
            rows: vec![row("Baseline", 8.0, &[90.0, 100.0, 110.0]), row("MT", 8.0, &[200.0, 250.0, 260.0])],
        };
        let axis = |title: &str| Axis { title: title.into(), unit: String::new(), log: false };
        let points = |y: f64| vec![Point { x: 8.0, y: spread(&[y]) }];
        let series = |name: &str, published, y| Series {
            name: name.into(),
            predicted: false,
            published,
            points: points(y),
        };
        let chart = Chart {
            caption: "IOPS by jobs".into(),
            kind: ChartKind::Lines,
            x: axis("jobs"),
            y: axis("IOPS"),
            categories: Vec::new(),
            series: vec![series("MT", true, 413e3), series("MT", false, 7.0)],
        };
        Report {
            schema: SCHEMA.into(),
            kind: "test".into(),
            title: String::new(),
            summary: Vec::new(),
            command: String::new(),
            created: String::new(),
            seconds: 0.0,
            machine: Machine::default(),
            notes: Vec::new(),
            sections: vec![Section {
                id: "randread".into(),
                title: String::new(),
                text: Vec::new(),
                command: None,
                blocks: vec![Block::Table(table), Block::Chart(chart)],
            }],
            samples: Vec::new(),
        }
    }

    fn claim(text: &str) -> Claim {
        toml::from_str(text).unwrap()
    }

    const RATIO: &str = r#"
        says = "MT is 2.55 times Baseline"
        published = 2.55
        of = { section = "randread", row = ["MT", "8"], column = "IOPS" }
        over = { section = "randread", row = ["Baseline", "8"], column = "IOPS" }
    "#;

    #[test]
    fn direction_is_the_side_of_one_and_size_is_apart_from_it() {
        let outcome = claim(RATIO).judge(&report()).unwrap();
        let spread = outcome.here;
        assert!((spread.median - 2.5).abs() < 1e-9 && (spread.min - 200.0 / 110.0).abs() < 1e-9);
        assert_eq!((outcome.direction, outcome.bounds), (Some(Within::All), None));
        assert!((outcome.size.unwrap() - 2.5 / 2.55).abs() < 1e-9);
        // Ten times as much was published: the same direction still, and a tenth of the size.
        let far = claim(&RATIO.replace("2.55\n", "25.5\n")).judge(&report()).unwrap();
        assert!(far.direction == Some(Within::All) && far.size.unwrap() < 0.1);
        let turned = claim(&RATIO.replace("2.55\n", "0.5\n")).judge(&report()).unwrap();
        assert!(turned.direction == Some(Within::None) && (turned.size.unwrap() - 5.0).abs() < 1e-9);
        // "As fast as the other" has no direction.
        assert_eq!(claim(&RATIO.replace("2.55\n", "1\n")).judge(&report()).unwrap().direction, None);
    }

    #[test]
    fn bounds_are_told_where_they_are_given_and_a_spread_across_one_is_a_part() {
        let judge = |bound: &str| claim(&format!("{bound}\n{RATIO}")).judge(&report()).unwrap().bounds;
        assert_eq!(judge("at_least = 1.5"), Some(Within::All));
        assert_eq!(judge("at_least = 2.4"), Some(Within::Part));
        assert_eq!(judge("at_most = 1.5"), Some(Within::None));
    }

    #[test]
    fn measured_points_are_found_and_published_ones_are_not_taken_for_them() {
        let on_chart = claim(
            r#"
            says = "x"
            published = 7
            at_most = 8
            of = { section = "randread", series = "MT", x = 8 }
        "#,
        );
        let outcome = on_chart.judge(&report()).unwrap();
        assert!(outcome.here.median < 8.0 && outcome.bounds == Some(Within::All));
        assert_eq!(outcome.direction, None, "a figure with bounds is no ratio");
    }

    #[test]
    fn what_is_not_in_the_report_was_not_measured() {
        for (from, to) in
            [("\"MT\", \"8\"", "\"MT\", \"9\""), ("section = \"randread\"", "section = \"other\"")]
        {
            assert_eq!(claim(&RATIO.replace(from, to)).judge(&report()), None);
        }
    }
}
