//! What every measurement of the lab ends as: one [`Report`], which becomes JSON, HTML and text.
//!
//! The JSON is the model below, as serde writes it, and `docs/src/report-format.md` describes it; its version is [`SCHEMA`].
//! [`Report::write_to`] writes it in the form that a file's name asks for, [`html::page`] makes the page, [`text::render`] what a
//! terminal shows, [`markdown::table`] a table for a page of text, [`svg::svg_file`] one chart as a picture of its own. [`figure`] writes numbers for people, for all of them.

pub mod build;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod example;
pub mod figure;
pub mod html;
mod json;
pub mod markdown;
mod markup;
mod model;
mod scale;
pub mod svg;
mod table;
pub mod text;

pub use model::{
    Axis, Block, Cell, Chart, ChartKind, Column, Note, Point, Report, SCHEMA, Section, Series, Severity,
    Spread, Table,
};
pub use svg::{is_svg_file, svg_file};
