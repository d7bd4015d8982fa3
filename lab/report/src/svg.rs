//! Charts as SVG: axes from zero with units, spread drawn, a legend that needs no colours to be
//! understood.
//!
//! A chart has one width in pixels, so that its text can be read. Colours are CSS variables
//! (`svg/style.css`): the same picture is light or dark as the reader has it. Series differ by
//! colour, marker and place. Predicted ones are hollow or dashed, published ones are pale, and both
//! are called so.

mod bars;
mod lines;

use std::fmt::Write;

use crate::markup::{Canvas, escape, num, shorten, text_width, wrap};
use crate::scale::{Scale, drawable};
use crate::table::full_name;
use crate::{Axis, Chart, ChartKind, Point, Series, Spread, figure};

/// Font size of everything but the caption, in pixels.
const FONT: f64 = 12.0;
/// Font size of the caption in a file.
const CAPTION: f64 = 15.0;
/// Colours before they repeat (then markers differ).
const COLOURS: usize = 8;
/// Width of a chart without its margins.
const WIDTH: f64 = 728.0;
/// Margin of a chart's own file.
const MARGIN: f64 = 16.0;

/// The colours of charts in the light and in the dark, and the look of their parts. The palette is
/// Okabe and Ito's ("Color Universal Design", 2008). Its colours are darkened or lightened to a
/// contrast of at least 3:1 with the page (WCAG 2, 1.4.11).
pub(super) const STYLE: &str = include_str!("svg/style.css");

/// How a chart's own file begins.
const FILE_BEGIN: &str = r#"<svg xmlns="http://www.w3.org/2000/svg" class="chart""#;

/// True if [`svg_file`] made a file's content.
pub fn is_svg_file(content: &[u8]) -> bool {
    content.starts_with(FILE_BEGIN.as_bytes())
}

/// A chart as a file of its own, with light and dark colours inside.
pub fn svg_file(chart: &Chart) -> String {
    let lines = wrap(&chart.caption, CAPTION, WIDTH);
    let top = if lines.is_empty() { 0.0 } else { 14.0 + 21.0 * lines.len() as f64 };
    let (body, height) = draw(chart);
    let (width, height) = (num(WIDTH + 2.0 * MARGIN), num(height + top + 24.0));
    let mut canvas = Canvas::default();
    canvas.raw(&format!(
        r#"{FILE_BEGIN} role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}">"#
    ));
    let (title, words) = (escape(&chart.caption), escape(&description(chart)));
    canvas.raw(&format!("<title>{title}</title><desc>{words}</desc><style>{STYLE}</style>"));
    canvas.raw(&format!(r#"<rect class="page" width="{width}" height="{height}"/>"#));
    for (line, y) in lines.iter().zip(0_u8..) {
        canvas.text("caption", "start", (MARGIN, 28.0 + 21.0 * f64::from(y)), line);
    }
    let (left, top) = (num(MARGIN), num(top + 12.0));
    canvas.raw(&format!("<g transform=\"translate({left} {top})\">{body}</g></svg>\n"));
    canvas.out
}

/// A chart as an element of a page.
pub(super) fn element(chart: &Chart) -> String {
    let (body, height) = draw(chart);
    let label = escape(&format!("{}. {}", chart.caption, description(chart)));
    let (width, height) = (num(WIDTH), num(height));
    format!(
        r#"<svg class="chart" role="img" aria-label="{label}" viewBox="0 0 {width} {height}" width="{width}" height="{height}">{body}</svg>"#
    )
}

/// The chart in words, for those who do not see it.
fn description(chart: &Chart) -> String {
    let kind = match chart.kind {
        ChartKind::Bars => "Bars",
        ChartKind::Lines => "Lines",
        ChartKind::Steps => "Steps of a cumulative distribution",
    };
    let names: Vec<_> = chart.series.iter().map(full_name).collect();
    let mut text = format!("{kind} of {} over {}", titled(&chart.y), titled(&chart.x));
    if !names.is_empty() {
        let _ = write!(text, ": {}", names.join(", "));
    }
    text
}

/// An axis' title with its unit.
fn titled(axis: &Axis) -> String {
    match (axis.title.as_str(), axis.unit.as_str()) {
        (title, "") => title.into(),
        ("", unit) => unit.into(),
        (title, unit) if title == unit => title.into(),
        (title, unit) => format!("{title} ({unit})"),
    }
}

/// Place of a series among the colours and markers. A series that continues another of its name (a
/// prediction) has that one's place.
fn look(chart: &Chart, index: usize) -> usize {
    let same =
        |series: &Series| chart.series.get(index).is_some_and(|this| this.name == series.name);
    chart.series.iter().position(same).unwrap_or(index)
}

/// Classes of a series' marks.
fn classes(chart: &Chart, index: usize) -> String {
    let Some(series) = chart.series.get(index) else { return String::new() };
    let index = look(chart, index);
    let mut classes = format!("c{}", index % COLOURS);
    if series.predicted {
        classes += " predicted";
    }
    if series.published {
        classes += " published";
    }
    classes
}

/// Text for a pointer on a point.
fn hint(chart: &Chart, series: &Series, place: &str, point: &Point) -> String {
    let format = figure::Format::of_unit(&chart.y.unit);
    let mut text = format!(
        "{}, {place}: {}",
        full_name(series),
        figure::with_unit(point.y.median, &chart.y.unit)
    );
    if let Some(range) = figure::range(&point.y, format) {
        let _ = write!(text, " ({range}, {} runs)", point.y.runs);
    }
    text
}

/// The points of a series that can be drawn, by rising x.
fn points(chart: &Chart, series: &Series) -> Vec<Point> {
    let x_log = chart.x.log && chart.kind != ChartKind::Bars;
    // A spread that cannot be drawn is none.
    let bounded = |Point { x, y }: Point| {
        let end = |end: f64| if drawable(end, chart.y.log) { end } else { y.median };
        let (min, max) = (end(y.min).min(y.median), end(y.max).max(y.median));
        Point { x, y: Spread { min, max, ..y } }
    };
    let is_drawn = |p: &&Point| drawable(p.x, x_log) && drawable(p.y.median, chart.y.log);
    let mut points: Vec<_> = series.points.iter().filter(is_drawn).copied().map(bounded).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

/// A chart's inside and its height.
fn draw(chart: &Chart) -> (String, f64) {
    let series: Vec<Vec<Point>> = chart.series.iter().map(|s| points(chart, s)).collect();
    let mut canvas = Canvas::default();
    let mut height = if series.iter().all(Vec::is_empty) {
        canvas.rect("nothing", (0.5, 0.5), (WIDTH - 1.0, 119.0), "");
        canvas.text("quiet", "middle", (WIDTH / 2.0, 64.0), "nothing was measured");
        120.0
    } else {
        match chart.kind {
            ChartKind::Bars => bars::draw(&mut canvas, chart, &series),
            ChartKind::Lines | ChartKind::Steps => lines::draw(&mut canvas, chart, &series),
        }
    };
    let all: usize = chart.series.iter().map(|s| s.points.len()).sum();
    let missing = all - series.iter().map(Vec::len).sum::<usize>();
    if missing > 0 && missing < all {
        let why = if chart.x.log || chart.y.log {
            "missing, or zero on a logarithmic axis"
        } else {
            "missing"
        };
        let text =
            shorten(&format!("{missing} of {all} figures are not drawn: {why}"), FONT, WIDTH);
        height += 18.0;
        canvas.text("quiet", "start", (0.0, height - 5.0), &text);
    }
    (canvas.out, height)
}

/// The legend in rows above the chart, if names are needed to distinguish the series; returns its
/// height.
fn legend(canvas: &mut Canvas, chart: &Chart) -> f64 {
    if chart.series.len() < 2 && chart.series.iter().all(|s| !s.predicted && !s.published) {
        return 0.0;
    }
    let (mut x, mut y) = (0.0, 12.0);
    for (i, series) in chart.series.iter().enumerate() {
        let name = shorten(&full_name(series), FONT, WIDTH - 28.0);
        let wide = 28.0 + text_width(&name, FONT) + 14.0;
        if x > 0.0 && x + wide - 14.0 > WIDTH {
            (x, y) = (0.0, y + 20.0);
        }
        let class = classes(chart, i);
        if chart.kind == ChartKind::Bars {
            canvas.rect(&format!("bar {class}"), (x + 4.0, y - 9.0), (14.0, 11.0), "");
        } else {
            canvas.line(&format!("curve {class}"), (x, y - 4.0), (x + 22.0, y - 4.0));
            canvas.path(&format!("mark {class}"), &marker(look(chart, i), x + 11.0, y - 4.0), "");
        }
        canvas.text("name", "start", (x + 28.0, y), &name);
        x += wide;
    }
    y + 14.0
}

/// Outlines of markers around a point: each of the first eight series has its own shape.
const MARKERS: [&str; 8] = [
    "m-4 0a4 4 0 1 1 8 0a4 4 0 1 1 -8 0z",
    "m-3.6 -3.6h7.2v7.2h-7.2z",
    "m0 -4.8l4.5 8.2h-9z",
    "m0 -5.2l5.2 5.2l-5.2 5.2l-5.2 -5.2z",
    "m0 4.8l4.5 -8.2h-9z",
    "m-1.6 -4.8h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2z",
    "m0 -5l4.8 3.5l-1.9 5.5h-5.8l-1.9 -5.5z",
    "m-5 -4l10 8v-8l-10 8z",
];

/// The outline of the marker of a series at a place.
fn marker(index: usize, x: f64, y: f64) -> String {
    format!("M{} {}{}", num(x), num(y), MARKERS[index % MARKERS.len()])
}

/// The part of the picture that the axes span, in pixels.
#[derive(Debug, Clone, Copy)]
struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Plot {
    fn x(&self, scale: &Scale, value: f64) -> f64 {
        self.left + scale.at(value) * (self.right - self.left)
    }

    fn y(&self, scale: &Scale, value: f64) -> f64 {
        self.bottom - scale.at(value) * (self.bottom - self.top)
    }
}

/// The space that the labels of an upright axis need.
fn label_width(scale: &Scale) -> f64 {
    scale.ticks.iter().map(|(_, label)| text_width(label, FONT)).fold(0.0, f64::max)
}

/// The upright axis: its title above, a line across for every tick.
fn upright(canvas: &mut Canvas, axis: &Axis, scale: &Scale, plot: Plot) {
    let title = shorten(&titled(axis), FONT, WIDTH);
    canvas.text("title", "start", (0.0, plot.top - 16.0), &title);
    for (value, label) in &scale.ticks {
        let y = plot.y(scale, *value);
        let class = if *value == 0.0 && !axis.log { "zero" } else { "grid" };
        canvas.line(class, (plot.left, y), (plot.right, y));
        canvas.text("tick", "end", (plot.left - 8.0, y + 4.0), label);
    }
    if axis.log {
        canvas.line("zero", (plot.left, plot.bottom), (plot.right, plot.bottom));
    }
}

/// The lying axis: labels below, those that would run into each other left out; its title in the
/// middle below.
fn lying(canvas: &mut Canvas, axis: &Axis, scale: &Scale, plot: Plot, lines_up: bool) {
    let mut free = f64::NEG_INFINITY;
    for (value, label) in &scale.ticks {
        let x = plot.x(scale, *value);
        let half = text_width(label, FONT) / 2.0;
        if lines_up {
            let class = if *value == 0.0 && !axis.log { "zero" } else { "grid" };
            canvas.line(class, (x, plot.top), (x, plot.bottom));
        } else {
            canvas.line("zero", (x, plot.bottom), (x, plot.bottom + 4.0));
        }
        // Labels stay within the picture.
        let at = x.min(WIDTH - half).max(half);
        if at - half > free {
            canvas.text("tick", "middle", (at, plot.bottom + 18.0), label);
            free = at + half + 6.0;
        }
    }
    let title = shorten(&titled(axis), FONT, WIDTH);
    let half = text_width(&title, FONT) / 2.0;
    let middle = f64::midpoint(plot.left, plot.right).min(WIDTH - half).max(half);
    canvas.text("title", "middle", (middle, plot.bottom + 38.0), &title);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "svg/tests.rs"]
mod tests;
