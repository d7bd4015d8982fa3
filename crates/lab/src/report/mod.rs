//! What every measurement of the lab ends as: one [`Report`], which becomes JSON, HTML and text.
//!
//! The JSON is the model below, as serde writes it, and `docs/src/report-format.md` describes it; its version is [`SCHEMA`].

pub mod figure;
mod model;

pub use model::{
    Axis, Block, Cell, Chart, ChartKind, Column, Note, Point, Report, SCHEMA, Section, Series, Severity,
    Spread, Table,
};
