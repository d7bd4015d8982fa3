//! Lines over an axis, and the steps of cumulative distributions.

use std::fmt::Write;

use super::{
    Canvas, Chart, ChartKind, Plot, Point, Scale, WIDTH, classes, figure, full_name, hint,
    label_width, legend, look, lying, marker, num, upright,
};

/// Height of the part between the axes.
const HEIGHT: f64 = 290.0;
/// More points than this are not marked one by one.
const MARKED: usize = 32;

/// The part between the axes.
struct Frame<'a> {
    chart: &'a Chart,
    plot: Plot,
    x: Scale,
    y: Scale,
}

/// Draws them; returns the height.
pub(super) fn draw(canvas: &mut Canvas, chart: &Chart, series: &[Vec<Point>]) -> f64 {
    let ys = series.iter().flatten().flat_map(|p| [p.y.median, p.y.min, p.y.max]);
    let y = Scale::of_lengths(&chart.y, ys, 5);
    let xs = series.iter().flatten().map(|p| p.x);
    let x = Scale::of_places(&chart.x, xs, 8, chart.kind == ChartKind::Steps);
    let top = legend(canvas, chart) + 38.0;
    let bottom = top + HEIGHT;
    let plot = Plot { left: label_width(&y) + 12.0, right: WIDTH - 8.0, top, bottom };
    upright(canvas, &chart.y, &y, plot);
    lying(canvas, &chart.x, &x, plot, false);
    let frame = Frame { chart, plot, x, y };
    for (i, points) in series.iter().enumerate() {
        frame.curve(canvas, i, points);
    }
    for (i, points) in series.iter().enumerate() {
        frame.marks(canvas, i, points);
    }
    bottom + 46.0
}

impl Frame<'_> {
    fn curve(&self, canvas: &mut Canvas, index: usize, points: &[Point]) {
        let (plot, kind) = (self.plot, self.chart.kind);
        let mut d = String::new();
        for (i, point) in points.iter().enumerate() {
            let px = num(plot.x(&self.x, point.x));
            let py = num(plot.y(&self.y, point.y.median));
            let _ = match (i, kind) {
                (0, ChartKind::Steps) => {
                    let base = plot.bottom - self.y.base() * (plot.bottom - plot.top);
                    write!(d, "M{px} {}V{py}", num(base))
                }
                (0, _) => write!(d, "M{px} {py}"),
                (_, ChartKind::Steps) => write!(d, "H{px}V{py}"),
                _ => write!(d, "L{px} {py}"),
            };
        }
        if points.len() > 1 || kind == ChartKind::Steps && !points.is_empty() {
            let (class, name) = (classes(self.chart, index), full_name(&self.chart.series[index]));
            canvas.path(&format!("curve {class}"), &d, &name);
        }
    }

    /// Markers, and whiskers at the points of lines.
    fn marks(&self, canvas: &mut Canvas, index: usize, points: &[Point]) {
        let (chart, plot) = (self.chart, self.plot);
        let (series, class) = (&chart.series[index], classes(chart, index));
        // Of many points only some are marked, elsewhere for each series, so that markers do not
        // hide each other.
        let every = points.len().div_ceil(if points.len() > MARKED { 8 } else { MARKED }).max(1);
        let first = if every > 1 { index * every / chart.series.len().max(1) } else { 0 };
        for point in points.iter().skip(first).step_by(every) {
            let px = plot.x(&self.x, point.x);
            let [py, low, high] =
                [point.y.median, point.y.min, point.y.max].map(|v| plot.y(&self.y, v));
            if chart.kind == ChartKind::Lines && low - high > 0.5 {
                let [l, c, r] = [px - 3.0, px, px + 3.0].map(num);
                let [h, b] = [high, low].map(num);
                let d = format!("M{l} {h}H{r}M{c} {h}V{b}M{l} {b}H{r}");
                canvas.path(&format!("spread {class}"), &d, "");
            }
            let place = figure::with_unit(point.x, &chart.x.unit);
            let (shape, hint) =
                (marker(look(chart, index), px, py), hint(chart, series, &place, point));
            canvas.path(&format!("mark {class}"), &shape, &hint);
        }
    }
}
