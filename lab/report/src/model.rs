//! The report as data.

use serde::{Deserialize, Deserializer, Serialize};

use crate::machine::Machine;

/// Name and version of the JSON format. The number rises when a reader of the older one would
/// misunderstand the newer.
pub const SCHEMA: &str = "vlane-report/1";

/// A whole report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// The command that made it: `compare`, `topologies`, `bench`, `peers`, `replay`.
    pub kind: String,
    /// Its title.
    pub title: String,
    /// The result, in a few sentences of plain text.
    pub summary: Vec<String>,
    /// The command that makes it again.
    pub command: String,
    /// When it was begun, RFC 3339 in UTC.
    pub created: String,
    /// How long it took, in seconds.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
    /// Where it was made.
    pub machine: Machine,
    /// The measurements that are missing, in a sentence, if it is of fewer than were wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    /// Facts that a reader must know before believing the figures.
    pub notes: Vec<Note>,
    /// The results.
    pub sections: Vec<Section>,
    /// Every single measurement that the figures were made from, where the command keeps them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Samples>,
}

/// Single measurements of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// Short name for files: letters, digits, dashes.
    pub id: String,
    /// The measured subject.
    pub caption: String,
    /// The columns: first what a measurement is of, then its figures.
    pub columns: Vec<Column>,
    /// A measurement each, in the order of measuring: words and single numbers.
    pub rows: Vec<Vec<Cell>>,
}

/// A remark on the whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// How much it changes what the figures mean.
    pub severity: Severity,
    /// The remark.
    pub text: String,
}

/// Weight of a [`Note`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Figures do not mean what one would think (emulated CPU, throttled disk, noise).
    Warning,
}

/// A part with a heading.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Short name for links: letters, digits, dashes.
    pub id: String,
    /// The heading.
    pub title: String,
    /// Plain text under it, by paragraph.
    #[serde(default)]
    pub text: Vec<String>,
    /// The command that makes these figures again, if it is not the report's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Tables and charts.
    pub blocks: Vec<Block>,
}

/// A table or a chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "block", rename_all = "lowercase")]
pub enum Block {
    /// Figures to read.
    Table(Table),
    /// Figures to look at.
    Chart(Chart),
}

/// Rows and columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Subject of the table.
    pub caption: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows; each has as many cells as there are columns.
    pub rows: Vec<Vec<Cell>>,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// The heading.
    pub title: String,
    /// Unit of its figures; empty for text and for plain numbers.
    #[serde(default)]
    pub unit: String,
}

impl Column {
    /// A column of figures of a unit; without one, of words or plain numbers.
    pub fn new(title: &str, unit: &str) -> Self {
        Self { title: title.into(), unit: unit.into() }
    }
}

impl Note {
    /// Good to know.
    pub fn info(text: impl Into<String>) -> Self {
        Self { severity: Severity::Info, text: text.into() }
    }

    /// Figures do not mean what one would think.
    pub fn warning(text: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, text: text.into() }
    }
}

impl From<Option<Spread>> for Cell {
    fn from(spread: Option<Spread>) -> Self {
        spread.map_or(Self::Empty, Self::Figure)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Content of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// Measured, with its spread.
    Figure(Spread),
    /// A single number.
    Number(f64),
    /// Words.
    Text(String),
    /// No measurement.
    Empty,
}

/// Repeated measurements of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one.
    #[serde(deserialize_with = "number")]
    pub median: f64,
    /// The smallest.
    #[serde(deserialize_with = "number")]
    pub min: f64,
    /// The largest.
    #[serde(deserialize_with = "number")]
    pub max: f64,
    /// How many there were.
    pub runs: usize,
}

impl Spread {
    /// Of some values; `None` without any, or when one is not a number.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { median: crate::stats::median(values), min, max, runs: values.len() })
    }
}

/// A picture of figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Subject of the chart.
    pub caption: String,
    /// How it is drawn.
    pub kind: ChartKind,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis; it begins at zero unless it is logarithmic.
    pub y: Axis,
    /// Names of the places on the horizontal axis, for bars; point x of a series is then the
    /// place's index.
    #[serde(default)]
    pub categories: Vec<String>,
    /// Lines or bars.
    pub series: Vec<Series>,
}

/// How a chart is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChartKind {
    /// Groups of bars, one group per category, one bar per series.
    Bars,
    /// Points joined by lines.
    Lines,
    /// A cumulative distribution: steps.
    Steps,
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// The measured quantity.
    pub title: String,
    /// In which unit; empty for plain numbers.
    #[serde(default)]
    pub unit: String,
    /// True if it is logarithmic.
    #[serde(default)]
    pub log: bool,
}

/// One line, or the bars of one colour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Drawn dashed or hatched and called a prediction: these were calculated, not measured.
    #[serde(default)]
    pub predicted: bool,
    /// Taken from a publication: drawn pale, and called so.
    #[serde(default)]
    pub published: bool,
    /// The points, by rising x.
    pub points: Vec<Point>,
}

/// A point.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Where.
    #[serde(deserialize_with = "number")]
    pub x: f64,
    /// How much.
    pub y: Spread,
}

/// A number; JSON has no word for what is not one, and `null` stands for it.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
