//! The picture that stands first on an experiment's page.
//!
//! It is a chart of the result, or bars of the figures that the page's first sentences name. Bars
//! are as narrow as a phone, so that their text can be read there.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use vlane_report::{Block, Chart, Report, svg_file};

use crate::published::Interval;
use crate::texts::{Named, shown};

/// Width of a picture of bars, in pixels, and the margin on each side.
const WIDTH: f64 = 360.0;
const MARGIN: f64 = 12.0;
/// Characters in a line of the caption, and in a bar's name with its figure.
const CAPTION: usize = 38;
const LINE: usize = 56;
/// Height of a bar with its name, and of a line of the caption.
const EACH: f64 = 36.0;
const LEADING: f64 = 19.0;

const STYLE: &str = "\
    .p{fill:#fff}.b{fill:#0072b2}text{fill:#1c2128;font:12px system-ui,sans-serif}\
    .c{font-size:14px;font-weight:600}.s{stroke:#1c2128}.m{stroke:#c8500a;stroke-dasharray:4 3}\
    @media (prefers-color-scheme:dark){.p{fill:#14171c}.b{fill:#4ba3e3}text{fill:#e4e8ee}\
    .s{stroke:#e4e8ee}.m{stroke:#f0824a}}";

/// A picture, as `experiment.toml` names it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Picture {
    /// A chart of the result: the section's name and the chart's number in it, `waits-1`.
    Chart(String),
    /// Bars of named figures.
    Bars(Bars),
}

/// Bars of named figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bars {
    caption: String,
    /// A line across all bars.
    mark: Option<Mark>,
    bars: Vec<Bar>,
}

/// A line across all bars: the baseline, or a goal.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    at: f64,
    says: String,
}

/// A figure, and its name in the picture.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bar {
    says: String,
    /// Its placeholder without braces: `goal 2`, `value fsync`.
    figure: String,
}

/// Charts of a report: the section's name, the file's name without its ending, and the chart.
pub(crate) fn charts(report: &Report) -> impl Iterator<Item = (&str, String, &Chart)> {
    report.sections.iter().flat_map(|section| {
        let charts = section.blocks.iter().filter_map(|block| match block {
            Block::Chart(chart) => Some(chart),
            Block::Table(_) => None,
        });
        let id = section.id.as_str();
        (1..).zip(charts).map(move |(number, chart)| (id, format!("{id}-{number}"), chart))
    })
}

impl Picture {
    /// The name of its file without its ending, its caption, and its SVG.
    pub(crate) fn drawn(&self, named: &Named<'_>) -> Result<(String, String, String)> {
        let report = named.report;
        match self {
            Self::Chart(name) => {
                let found = charts(report).find(|(_, other, _)| other == name);
                let (.., chart) = found.with_context(|| {
                    let names: Vec<_> = charts(report).map(|(_, name, _)| name).collect();
                    let names = names.join(", ");
                    format!("chart `{name}` is not in the result; name one of: {names}")
                })?;
                Ok((name.clone(), chart.caption.clone(), svg_file(chart)))
            }
            Self::Bars(bars) => Ok(("answer".into(), bars.caption.clone(), bars.drawn(named)?)),
        }
    }
}

impl Bars {
    fn drawn(&self, named: &Named<'_>) -> Result<String> {
        let figures = self.bars.iter().map(|bar| {
            let (here, digits) = named.figure(&bar.figure)?;
            let value = shown(&here, digits);
            let length = bar.says.chars().count() + value.chars().count();
            ensure!(length < LINE, "bar `{}` does not fit beside {value}; shorten it", bar.says);
            Ok((here, bar.says.as_str(), value))
        });
        let figures: Vec<_> = figures.collect::<Result<_>>()?;
        let marked = self.mark.as_ref().map(|mark| mark.at);
        let ends = figures.iter().flat_map(|(here, ..)| [here.low, here.high]).chain(marked);
        let (low, high) =
            ends.fold((0.0_f64, 0.0_f64), |(low, high), end| (low.min(end), high.max(end)));
        let scale = (WIDTH - 2.0 * MARGIN) / (high - low).max(f64::MIN_POSITIVE);
        let x = |value: f64| MARGIN + (value - low) * scale;

        let caption = lines(&self.caption);
        let top = 8.0 + LEADING * caption.len() as f64;
        let bottom = top + EACH * figures.len() as f64;
        let height = bottom + if self.mark.is_some() { 24.0 } else { 10.0 };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {WIDTH} \
             {height}\" width=\"{WIDTH}\" height=\"{height}\"><title>{}</title><style>{STYLE}\
             </style><rect class=\"p\" width=\"{WIDTH}\" height=\"{height}\"/>",
            escape(&self.caption)
        );
        for (line, number) in caption.iter().zip(1_u8..) {
            let y = LEADING * f64::from(number) + 2.0;
            let line = escape(line);
            let _ = write!(svg, "<text class=\"c\" x=\"{MARGIN}\" y=\"{y}\">{line}</text>");
        }
        let rows = || std::iter::successors(Some(top), |y| Some(y + EACH));
        for (y, (here, name, value)) in rows().zip(&figures) {
            svg += &bar(here, name, value, y, x);
        }
        if let Some(mark) = &self.mark {
            let (x, y, says) = (x(mark.at), bottom + 14.0, escape(&mark.says));
            let end = if x > WIDTH / 2.0 { "end" } else { "start" };
            let across = |y: f64| format!("M{x:.1} {}V{}", y + 16.0, y + 32.0);
            let _ = write!(
                svg,
                "<path class=\"m\" d=\"{}\"/><text x=\"{x:.1}\" y=\"{y}\" \
                 text-anchor=\"{end}\">{says}</text>",
                rows().take(figures.len()).map(across).collect::<String>()
            );
        }
        Ok(svg + "</svg>\n")
    }
}

/// A bar below its name and its figure, with the ends of its interval.
fn bar(here: &Interval, name: &str, value: &str, y: f64, x: impl Fn(f64) -> f64) -> String {
    let [zero, low, middle, high] = [0.0, here.low, here.middle, here.high].map(x);
    let (left, wide) = (zero.min(middle), (zero - middle).abs().max(1.0));
    let (text, right, top, line) = (y + 13.0, WIDTH - MARGIN, y + 18.0, y + 24.0);
    let (name, value) = (escape(name), escape(value));
    let mut svg = format!(
        "<text x=\"{MARGIN}\" y=\"{text}\">{name}</text><text x=\"{right}\" y=\"{text}\" \
         text-anchor=\"end\">{value}</text><rect class=\"b\" x=\"{left:.1}\" y=\"{top}\" \
         width=\"{wide:.1}\" height=\"12\"/>"
    );
    if high - low > 0.5 {
        let (above, below) = (line - 3.0, line + 3.0);
        let _ = write!(
            svg,
            "<path class=\"s\" d=\"M{low:.1} {above}V{below}M{low:.1} {line}H{high:.1}M{high:.1} \
             {above}V{below}\"/>"
        );
    }
    svg
}

/// Words in lines of at most [`CAPTION`] characters.
fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < CAPTION => {
                *line += " ";
                *line += word;
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
#[path = "picture_tests.rs"]
mod tests;
