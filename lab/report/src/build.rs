//! Making reports: sections, tables, charts, and figures over rounds.

use std::time::Instant;

use crate::machine::{Busy, Machine};
use crate::{
    Axis, Block, Cell, Chart, ChartKind, Column, Note, Point, Report, SCHEMA, Samples, Section,
    Series, Spread, Table, date,
};

/// Kinds of reports whose figures no load changes.
const EXACT: [&str; 4] = ["analyze", "journal-detection", "power-cut", "simulate"];
/// Titles of columns of conclusions.
const VERDICTS: [&str; 3] = ["direction", "outcome", "verdict"];

/// Work that a report will be made of: by which command, and since when.
#[derive(Debug, Clone)]
pub struct Begun {
    /// The command.
    pub command: String,
    created: String,
    at: Instant,
    busy: Option<Busy>,
}

impl Begun {
    /// It begins now; the command makes the report again.
    pub fn now(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            created: date::now(),
            at: Instant::now(),
            busy: Busy::now(),
        }
    }

    /// An empty report of it. `programs` took part, and their versions matter.
    pub fn report(&self, kind: &str, title: impl Into<String>, programs: &[&str]) -> Report {
        Report {
            schema: SCHEMA.into(),
            kind: kind.into(),
            title: title.into(),
            command: self.command.clone(),
            created: self.created.clone(),
            seconds: self.at.elapsed().as_secs_f64(),
            machine: Machine {
                load: self.busy.and_then(Busy::until_now),
                ..Machine::describe(programs)
            },
            ..Report::default()
        }
    }
}

impl Report {
    /// Reason for no conclusion, if other programs disturbed the measurement.
    pub fn disturbance(&self) -> Option<String> {
        let is_exact = EXACT.contains(&self.kind.as_str());
        self.machine.load.filter(|_| !is_exact)?.disturbance()
    }

    /// Takes the conclusions away if other programs disturbed the measurement.
    pub fn guarded(mut self) -> Self {
        let Some(reason) = self.disturbance() else { return self };
        let (text, verdict) =
            (format!("No conclusion is drawn: {reason}."), format!("inconclusive: {reason}"));
        if self.partial.is_none() {
            self.summary = vec![text.clone()];
        }
        self.notes.insert(0, Note::warning(text));
        for block in self.sections.iter_mut().flat_map(|section| &mut section.blocks) {
            let Block::Table(table) = block else { continue };
            let is_verdict =
                |column: &Column| VERDICTS.contains(&column.title.to_lowercase().as_str());
            // The first column names its row.
            for at in (1..table.columns.len()).filter(|at| is_verdict(&table.columns[*at])) {
                table.rows.iter_mut().for_each(|row| row[at] = verdict.clone().into());
            }
        }
        self
    }

    /// Marks it as one of fewer measurements than were wanted; its first note says so.
    pub fn mark_partial(&mut self, missing: String) {
        self.notes.insert(0, Note::warning(&*missing));
        self.partial = Some(missing);
    }
}

impl Samples {
    /// Measurements of some columns.
    pub fn new(
        id: impl Into<String>,
        caption: impl Into<String>,
        columns: impl Columns,
        rows: Vec<Vec<Cell>>,
    ) -> Self {
        Self { id: id.into(), caption: caption.into(), columns: columns.columns(), rows }
    }

    /// As a file for a spreadsheet: RFC 4180, with the columns' titles and units first. Numbers are
    /// exact; what was not measured is empty.
    pub fn csv(&self) -> String {
        let quoted = |text: &str| match text.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.to_owned(),
        };
        let head = |column: &Column| match column.unit.as_str() {
            "" => quoted(&column.title),
            unit => quoted(&format!("{} [{unit}]", column.title)),
        };
        let cell = |cell: &Cell| match cell {
            Cell::Number(value) if value.is_finite() => value.to_string(),
            Cell::Figure(spread) if spread.median.is_finite() => spread.median.to_string(),
            Cell::Text(text) => quoted(text),
            _ => String::new(),
        };
        let mut lines = vec![self.columns.iter().map(head).collect::<Vec<_>>().join(",")];
        lines
            .extend(self.rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>().join(",")));
        lines.join("\r\n") + "\r\n"
    }
}

impl Section {
    /// A section without a command of its own.
    pub fn new(
        id: impl Into<String>,
        title: impl Into<String>,
        text: Vec<String>,
        blocks: Vec<Block>,
    ) -> Self {
        Self { id: id.into(), title: title.into(), text, command: None, blocks }
    }
}

/// The columns of a table: a line, as `load | throughput [MB/s] | p99 [us]`, or titles and units.
pub trait Columns {
    /// Each of them.
    fn columns(self) -> Vec<Column>;
}

impl Columns for &str {
    fn columns(self) -> Vec<Column> {
        let column =
            |part: &str| match part.trim().strip_suffix(']').and_then(|part| part.rsplit_once('['))
            {
                Some((title, unit)) => Column::new(title.trim(), unit),
                None => Column::new(part.trim(), ""),
            };
        self.split('|').map(column).collect()
    }
}

impl Columns for &String {
    fn columns(self) -> Vec<Column> {
        self.as_str().columns()
    }
}

impl Columns for &Vec<(&str, &str)> {
    fn columns(self) -> Vec<Column> {
        self.iter().map(|(title, unit)| Column::new(title, unit)).collect()
    }
}

impl<const N: usize> Columns for &[(&str, &str); N] {
    fn columns(self) -> Vec<Column> {
        self.iter().map(|(title, unit)| Column::new(title, unit)).collect()
    }
}

impl Columns for Vec<Column> {
    fn columns(self) -> Vec<Column> {
        self
    }
}

impl Table {
    /// A table.
    pub fn new(caption: impl Into<String>, columns: impl Columns, rows: Vec<Vec<Cell>>) -> Self {
        Self { caption: caption.into(), columns: columns.columns(), rows }
    }
}

/// A table of a section.
pub fn table(caption: impl Into<String>, columns: impl Columns, rows: Vec<Vec<Cell>>) -> Block {
    Block::Table(Table::new(caption, columns, rows))
}

impl Axis {
    /// An axis with equal steps; without a unit, of plain numbers.
    pub fn new(title: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { title: title.into(), unit: unit.into(), log: false }
    }

    /// A logarithmic axis.
    pub fn log(title: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { log: true, ..Self::new(title, unit) }
    }
}

impl Chart {
    /// Groups of bars, one for each category.
    pub fn bars(
        caption: impl Into<String>,
        x: Axis,
        y: Axis,
        categories: Vec<String>,
        series: Vec<Series>,
    ) -> Self {
        Self { caption: caption.into(), kind: ChartKind::Bars, x, y, categories, series }
    }

    /// Points joined by lines.
    pub fn lines(caption: impl Into<String>, x: Axis, y: Axis, series: Vec<Series>) -> Self {
        Self { kind: ChartKind::Lines, ..Self::bars(caption, x, y, Vec::new(), series) }
    }

    /// Cumulative distributions.
    pub fn steps(caption: impl Into<String>, x: Axis, y: Axis, series: Vec<Series>) -> Self {
        Self { kind: ChartKind::Steps, ..Self::bars(caption, x, y, Vec::new(), series) }
    }
}

impl Series {
    /// Measured, neither predicted nor published.
    pub fn measured(name: impl Into<String>, points: Vec<Point>) -> Self {
        Self { name: name.into(), predicted: false, published: false, points }
    }

    /// Taken from a publication.
    pub fn published(name: impl Into<String>, points: Vec<Point>) -> Self {
        Self { published: true, ..Self::measured(name, points) }
    }
}

impl Spread {
    /// One value, which has no spread.
    pub fn exact(value: f64) -> Self {
        Self { median: value, min: value, max: value, runs: 1 }
    }
}

impl Point {
    /// One value at a place.
    pub fn exact(x: f64, y: f64) -> Self {
        Self { x, y: Spread::exact(y) }
    }
}

impl From<f64> for Cell {
    /// `None` if it is not a number.
    fn from(value: f64) -> Self {
        if value.is_finite() { Self::Number(value) } else { Self::Empty }
    }
}

impl From<Option<f64>> for Cell {
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::Empty, Self::from)
    }
}

/// One figure of every round; `None` if a round does not have it.
pub fn spread<T>(rounds: &[T], of: impl Fn(&T) -> Option<f64>) -> Option<Spread> {
    let values: Option<Vec<f64>> = rounds.iter().map(of).collect();
    Spread::of(&values?)
}

/// Groups of bars: one group for each category, one bar in it for each named row, whose figures
/// stand in the categories' order.
pub fn bars(
    caption: &str,
    y: (&str, &str),
    categories: Vec<String>,
    of: Vec<(String, Vec<Option<Spread>>)>,
) -> Block {
    let points = |figures: Vec<Option<Spread>>| -> Vec<Point> {
        let placed = (0_u32..).zip(figures);
        placed.filter_map(|(x, y)| Some(Point { x: x.into(), y: y? })).collect()
    };
    let series =
        of.into_iter().map(|(name, figures)| Series::measured(name, points(figures))).collect();
    Block::Chart(Chart::bars(caption, Axis::new("", ""), Axis::new(y.0, y.1), categories, series))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Load;

    #[test]
    fn guard_keeps_names_of_rows() {
        let row = ["kill -9", "met"].map(Cell::from).to_vec();
        let block = table("", "outcome | Outcome", vec![row]);
        let sections = vec![Section::new("s", "S", Vec::new(), vec![block])];
        let mut report = Report { sections, ..Begun::now("").report("kind", "Title", &[]) };
        report.machine.load = report.machine.load.map(|load| Load { others: Some(1.0), ..load });
        let report = report.guarded();
        let Block::Table(table) = &report.sections[0].blocks[0] else { panic!("a table") };
        let expected = ["kill -9", "inconclusive: other programs used 1.00 CPUs"];
        assert_eq!(table.rows[0], expected.map(Cell::from));
    }

    #[test]
    fn columns_have_titles_and_some_have_units() {
        let all = " | IOPS [k] | published (16 on 8)".columns();
        let shown: Vec<_> = all.iter().map(|c| (c.title.as_str(), c.unit.as_str())).collect();
        assert_eq!(shown, [("", ""), ("IOPS", "k"), ("published (16 on 8)", "")]);
    }

    #[test]
    fn round_without_figure_spares_the_others() {
        assert_eq!(spread(&[Some(1.0), None], |v| *v), None);
        assert_eq!(
            spread(&[3.0, 1.0, 2.0], |v| Some(*v)).map(|s| (s.min, s.median, s.max)),
            Some((1.0, 2.0, 3.0))
        );
    }

    #[test]
    fn samples_have_exact_numbers_for_spreadsheets() {
        let rows = vec![
            vec!["a, \"b\"".into(), Cell::Number(0.1 + 0.2)],
            vec!["c".into(), Cell::from(f64::NAN)],
        ];
        let samples = Samples::new("runs", "Runs", "Disk | Throughput [IOPS]", rows);
        let expected = "Disk,Throughput [IOPS]\r\n\"a, \"\"b\"\"\",0.30000000000000004\r\nc,\r\n";
        assert_eq!(samples.csv(), expected);
    }

    #[test]
    fn missing_bar_leaves_its_place_free() {
        let one = Spread::of(&[1.0]);
        let Block::Chart(chart) =
            bars("c", ("y", ""), vec!["a".into(), "b".into()], vec![("s".into(), vec![None, one])])
        else {
            panic!("a chart")
        };
        let places: Vec<f64> = chart.series[0].points.iter().map(|point| point.x).collect();
        assert_eq!(places, [1.0]);
    }
}
