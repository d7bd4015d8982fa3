//! The result of every measurement: one [`Report`], which becomes JSON, HTML and text.
//!
//! The JSON is the model below, as serde writes it. `docs/src/report-format.md` describes it, and
//! its version is [`SCHEMA`]. [`Report::in_form_of`] makes the form that a file's name asks for.
//! [`html::page`] makes the page, [`text::render`] the text of a terminal, [`markdown::table`] a
//! table for a page of text, [`svg::svg_file`] one chart as a picture of its own. [`figure`] writes
//! numbers for people, for all of them.
//!
//! Other modules supply the parts of a report. [`experiment`] makes the report of arms that were
//! measured in turns, and [`judge`] its verdicts. [`stats`] decides if two arms differ. [`machine`]
//! describes the place of measurement, and [`date`] its time.

#![forbid(unsafe_code)]

pub mod build;
pub mod date;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod example;
pub mod experiment;
pub mod figure;
pub mod html;
mod json;
pub mod judge;
mod lines;
pub mod machine;
pub mod markdown;
mod markup;
mod model;
mod records;
mod scale;
pub mod stats;
pub mod svg;
mod table;
pub mod text;

pub use build::{Begun, bars, spread, table};
pub use experiment::{Experiment, Figure, Goal, Place, arms_table, few, ratio_bars};
pub use json::is_json_of;
pub use judge::{AGAIN, Arms, Bound, ENOUGH, Measured, Met, Verdict, met, says};
pub use machine::{Busy, Load, Machine, Storage, built_from, images_in, usable_cpus, version_of};
pub use model::{
    Axis, Block, Cell, Chart, ChartKind, Column, Note, Point, Report, SCHEMA, Samples, Section,
    Series, Severity, Spread, Table,
};
pub use stats::{median, nearest_rank};
pub use svg::{is_svg_file, svg_file};
pub use vlane_error::program::{Error, ErrorKind, Result};
