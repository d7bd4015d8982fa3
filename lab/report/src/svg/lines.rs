//! Lines over an axis, and the steps of cumulative distributions.

use std::fmt::Write;

use super::{
    Anchor, Canvas, Chart, ChartKind, FONT, Plot, Point, Scale, classes, figure, full_name, hint,
    label_width, legend, look, lying, marker, needs_legend, num, shorten, text_width, upright,
};

/// Height of the part between the axes, for a desk.
const HEIGHT: f64 = 290.0;
/// The same for a phone.
const LOW: f64 = 220.0;
/// Distance between two names at the lines' ends.
const LINE: f64 = 15.0;
/// More points than this are not marked one by one.
const MARKED: usize = 32;

/// Draws them; returns the height.
pub(super) fn draw(canvas: &mut Canvas, chart: &Chart, series: &[Vec<Point>], width: f64) -> f64 {
    let wide = width >= 500.0;
    let steps = chart.kind == ChartKind::Steps;
    let ys = series.iter().flatten().flat_map(|p| [p.y.median, p.y.min, p.y.max]);
    let y = Scale::of_lengths(&chart.y, ys, 5);
    let xs = series.iter().flatten().map(|p| p.x);
    let x = Scale::of_places(&chart.x, xs, if wide { 8 } else { 4 }, steps);
    let height = if wide { HEIGHT } else { LOW };
    let plot = |top: f64, right: f64| Plot {
        left: label_width(&y) + 12.0,
        right,
        top,
        bottom: top + height,
    };

    // Names at the lines' ends where there is room, else above.
    let longest = chart.series.iter().map(|s| text_width(&full_name(s), FONT)).fold(0.0, f64::max);
    let beside = wide && needs_legend(chart) && longest <= width * 0.3 && chart.series.len() <= 8;
    let names = match beside {
        true => ends(chart, series, &x, &y, plot(36.0, width - longest - 26.0)),
        false => None,
    };
    let plot = match names {
        Some(_) => plot(36.0, width - longest - 26.0),
        None => plot(legend(canvas, chart, width, "") + 38.0, width - 8.0),
    };
    upright(canvas, &chart.y, &y, plot, width);
    lying(canvas, &chart.x, &x, plot, width, false);
    for (i, points) in series.iter().enumerate() {
        if !steps {
            band(canvas, points, &classes(chart, i), &x, &y, plot);
        }
    }
    for (i, points) in series.iter().enumerate() {
        curve(canvas, chart, i, points, &x, &y, plot);
    }
    for (i, points) in series.iter().enumerate() {
        marks(canvas, chart, i, points, &x, &y, plot);
    }
    for name in names.into_iter().flatten() {
        if (name.y - name.end.1).abs() > 1.0 {
            canvas.line("lead", (name.end.0 + 6.0, name.end.1), (plot.right + 10.0, name.y));
        }
        canvas.path(
            &format!("mark {}", classes(chart, name.index)),
            &marker(look(chart, name.index), plot.right + 14.0, name.y),
            "",
        );
        let text = shorten(&full_name(&chart.series[name.index]), FONT, longest + 1.0);
        canvas.text("name", Anchor::Start, (plot.right + 22.0, name.y + 4.0), &text);
    }
    plot.bottom + 46.0
}

/// A name at the end of its line.
struct Name {
    index: usize,
    end: (f64, f64),
    y: f64,
}

/// The names at the lines' ends, moved apart; `None` if they do not fit.
fn ends(
    chart: &Chart,
    series: &[Vec<Point>],
    x: &Scale,
    y: &Scale,
    plot: Plot,
) -> Option<Vec<Name>> {
    let mut names = Vec::new();
    for (index, points) in series.iter().enumerate() {
        // An empty series still has its place in a legend above.
        let last = points.last()?;
        let end = (plot.x(x, last.x), plot.y(y, last.y.median));
        // A name far from its line's end would seem to be another line's.
        if plot.right - end.0 > 1.0 {
            return None;
        }
        names.push(Name { index, end, y: end.1 });
    }
    // Distributions all end at the top: there a legend above is clearer.
    if chart.kind == ChartKind::Steps {
        return None;
    }
    let need = names.len() as f64 * LINE;
    if need > plot.bottom - plot.top {
        return None;
    }
    names.sort_by(|a, b| a.y.total_cmp(&b.y));
    let mut least = plot.top;
    for name in &mut names {
        name.y = name.y.max(least);
        least = name.y + LINE;
    }
    let mut most = plot.bottom;
    for name in names.iter_mut().rev() {
        name.y = name.y.min(most);
        most = name.y - LINE;
    }
    Some(names)
}

/// From the smallest to the largest of the repeated measurements.
fn band(canvas: &mut Canvas, points: &[Point], class: &str, x: &Scale, y: &Scale, plot: Plot) {
    if points.len() < 2 || points.iter().all(|p| p.y.max <= p.y.min) {
        return;
    }
    let mut d = String::new();
    let upper = points.iter().map(|p| (p.x, p.y.max));
    let lower = points.iter().rev().map(|p| (p.x, p.y.min));
    for (i, (px, py)) in upper.chain(lower).enumerate() {
        let _ = write!(
            d,
            "{}{} {}",
            if i == 0 { 'M' } else { 'L' },
            num(plot.x(x, px)),
            num(plot.y(y, py))
        );
    }
    canvas.path(&format!("band {class}"), &(d + "Z"), "");
}

fn curve(
    canvas: &mut Canvas,
    chart: &Chart,
    index: usize,
    points: &[Point],
    x: &Scale,
    y: &Scale,
    plot: Plot,
) {
    let mut d = String::new();
    for (i, point) in points.iter().enumerate() {
        let (px, py) = (num(plot.x(x, point.x)), num(plot.y(y, point.y.median)));
        let _ = match (i, chart.kind) {
            (0, ChartKind::Steps) => {
                let base = plot.bottom - y.base() * (plot.bottom - plot.top);
                write!(d, "M{px} {}V{py}", num(base))
            }
            (0, _) => write!(d, "M{px} {py}"),
            (_, ChartKind::Steps) => write!(d, "H{px}V{py}"),
            _ => write!(d, "L{px} {py}"),
        };
    }
    if points.len() > 1 || chart.kind == ChartKind::Steps && !points.is_empty() {
        let series = &chart.series[index];
        canvas.path(&format!("curve {}", classes(chart, index)), &d, &full_name(series));
    }
}

/// Markers, and whiskers at the points of lines.
fn marks(
    canvas: &mut Canvas,
    chart: &Chart,
    index: usize,
    points: &[Point],
    x: &Scale,
    y: &Scale,
    plot: Plot,
) {
    let series = &chart.series[index];
    let class = classes(chart, index);
    // Of many points only some are marked, elsewhere for each series, so that markers do not hide
    // each other.
    let every = points.len().div_ceil(if points.len() > MARKED { 8 } else { MARKED }).max(1);
    let first = if every > 1 { index * every / chart.series.len().max(1) } else { 0 };
    for point in points.iter().skip(first).step_by(every) {
        let (px, py) = (plot.x(x, point.x), plot.y(y, point.y.median));
        let (low, high) = (plot.y(y, point.y.min), plot.y(y, point.y.max));
        if chart.kind == ChartKind::Lines && low - high > 0.5 {
            let d = format!(
                "M{l} {h}H{r}M{c} {h}V{b}M{l} {b}H{r}",
                l = num(px - 3.0),
                r = num(px + 3.0),
                c = num(px),
                h = num(high),
                b = num(low)
            );
            canvas.path(&format!("spread {class}"), &d, "");
        }
        let place = figure::with_unit(point.x, &chart.x.unit);
        canvas.path(
            &format!("mark {class}"),
            &marker(look(chart, index), px, py),
            &hint(chart, series, &place, point),
        );
    }
}
