//! A published figure, held against the measured one.

use serde::Deserialize;
use vlane_lab::report::{Block, Cell, Report, Section, Spread};

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
    /// Agrees if the measured one is at least this. Without bounds, a ratio agrees if it is on the published side of 1.
    pub(crate) at_least: Option<f64>,
    /// Agrees if the measured one is at most this.
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

/// What came of a claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Outcome {
    /// The same was seen here.
    Agrees(Spread),
    /// Something else was seen here.
    Differs(Spread),
    /// Both sides of the bound are within the spread.
    Unclear(Spread),
    /// The figure is not in the report.
    NotMeasured,
}

impl Claim {
    /// Holds it against a report.
    pub(crate) fn judge(&self, report: &Report) -> Outcome {
        let Some(here) = self.measured(report) else { return Outcome::NotMeasured };
        let (low, high) = match (self.at_least, self.at_most) {
            (None, None) if self.published.unwrap_or(1.0) >= 1.0 => (1.0, f64::INFINITY),
            (None, None) => (f64::NEG_INFINITY, 1.0),
            (low, high) => (low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY)),
        };
        let inside = |value: f64| (low..=high).contains(&value);
        match (inside(here.median), inside(here.min), inside(here.max)) {
            (true, true, true) => Outcome::Agrees(here),
            (false, false, false) => Outcome::Differs(here),
            _ => Outcome::Unclear(here),
        }
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
    use vlane_lab::machine::Machine;
    use vlane_lab::report::{Axis, Chart, ChartKind, Column, Point, SCHEMA, Series, Table};

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
    fn a_ratio_agrees_when_all_of_its_spread_is_on_the_published_side_of_one() {
        let Outcome::Agrees(spread) = claim(RATIO).judge(&report()) else { panic!() };
        assert!((spread.median - 2.5).abs() < 1e-9 && (spread.min - 200.0 / 110.0).abs() < 1e-9);
        let turned = RATIO.replace("2.55\n", "0.5\n");
        assert!(matches!(claim(&turned).judge(&report()), Outcome::Differs(_)));
    }

    #[test]
    fn bounds_decide_where_they_are_given_and_a_spread_across_one_is_unclear() {
        let judge = |bound: &str| claim(&format!("{bound}\n{RATIO}")).judge(&report());
        assert!(matches!(judge("at_least = 1.5"), Outcome::Agrees(_)));
        assert!(matches!(judge("at_least = 2.4"), Outcome::Unclear(_)));
        assert!(matches!(judge("at_most = 1.5"), Outcome::Differs(_)));
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
        assert!(matches!(on_chart.judge(&report()), Outcome::Agrees(s) if s.median < 8.0));
    }

    #[test]
    fn what_is_not_in_the_report_was_not_measured() {
        for (from, to) in
            [("\"MT\", \"8\"", "\"MT\", \"9\""), ("section = \"randread\"", "section = \"other\"")]
        {
            assert_eq!(claim(&RATIO.replace(from, to)).judge(&report()), Outcome::NotMeasured);
        }
    }
}
