//! What every measurement ends as: one [`Report`], which becomes JSON, HTML and text.
//!
//! The JSON is the model below, as serde writes it, and `docs/src/report-format.md` describes it; its version is [`SCHEMA`].
//! [`Report::in_form_of`] makes the form that a file's name asks for, [`html::page`] makes the page, [`text::render`] what a
//! terminal shows, [`markdown::table`] a table for a page of text, [`svg::svg_file`] one chart as a picture of its own. [`figure`] writes numbers for people, for all of them.
//!
//! Beside it: what a report is made of. [`stats`] tells whether two arms differ, [`published`] how a figure lies to a published one, [`machine`] where they were measured, [`date`] when, and
//! [`progress`] how far a measurement is.

#![forbid(unsafe_code)]

pub mod build;
pub mod date;
mod error;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod example;
pub mod figure;
pub mod html;
mod json;
mod lines;
pub mod machine;
pub mod markdown;
mod markup;
mod model;
pub mod progress;
pub mod published;
mod records;
mod scale;
pub mod stats;
pub mod svg;
mod table;
pub mod text;

pub use error::{Error, ErrorKind, Result};
pub use json::is_json_of;
pub use machine::Machine;
pub use model::{
    Axis, Block, Cell, Chart, ChartKind, Column, Note, Point, Report, SCHEMA, Samples, Section, Series,
    Severity, Spread, Table,
};
pub use progress::Progress;
pub use svg::{is_svg_file, svg_file};
