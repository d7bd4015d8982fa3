//! Groups of lying bars, with the name of each group beside its bars.

use super::{
    Canvas, Chart, FONT, Plot, Point, Scale, WIDTH, classes, figure, hint, legend, lying, num,
    text_width, wrap,
};
use crate::table::places;

/// Font size of the values at the bars' ends.
const VALUE: f64 = 11.0;
/// Space between two groups.
const GAP: f64 = 14.0;

/// Draws them; returns the height.
pub(super) fn draw(canvas: &mut Canvas, chart: &Chart, series: &[Vec<Point>]) -> f64 {
    let names = places(chart);
    let longest = names.iter().map(|(_, name)| text_width(name, FONT)).fold(0.0, f64::max);
    let left = longest.min(WIDTH * 0.3) + 12.0;
    let thick = if series.len() > 4 { 13.0 } else { 16.0 };
    let bars = series.len().max(1) as f64 * thick;
    let each = bars + GAP;
    let values = series.iter().flatten().flat_map(|p| [p.y.median, p.y.max, p.y.min]);
    let scale = Scale::of_lengths(&chart.y, values, 6);
    let format = figure::Format::of_unit(&chart.y.unit);
    let shown = series.iter().flatten().map(|p| text_width(&format.show(p.y.median), VALUE));
    let top = legend(canvas, chart) + 4.0;
    let plot = Plot {
        left,
        right: WIDTH - shown.fold(0.0, f64::max) - 8.0,
        top,
        bottom: top + names.len() as f64 * each,
    };
    canvas.raw(r#"<g class="bars">"#);
    lying(canvas, &chart.y, &scale, plot, true);
    for (i, (at, name)) in names.iter().enumerate() {
        let y = plot.top + i as f64 * each + GAP / 2.0;
        name_beside(canvas, name, left - 12.0, (y, bars));
        for (slot, points) in series.iter().enumerate() {
            let Some(point) = points.iter().find(|p| p.x.total_cmp(at).is_eq()) else { continue };
            let class = classes(chart, slot);
            let hint = hint(chart, &chart.series[slot], name, point);
            let y = (y + slot as f64 * thick, thick);
            let end = bar(canvas, &class, &hint, point, y, (&scale, plot));
            let value = format.show(point.y.median);
            canvas.text("value", "start", (end + 5.0, y.0 + thick / 2.0 + 4.0), &value);
        }
    }
    canvas.raw("</g>");
    plot.bottom + 46.0
}

/// A group's name in lines beside its bars, as many as there is room for.
fn name_beside(canvas: &mut Canvas, name: &str, room: f64, (y, height): (f64, f64)) {
    let mut lines = wrap(name, FONT, room);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few lines")]
    lines.truncate((height / 14.0).max(1.0) as usize);
    let first = y + height / 2.0 + 4.0 - (lines.len() as f64 - 1.0) * 7.0;
    for (row, line) in lines.iter().enumerate() {
        canvas.text("place", "end", (room + 2.0, first + row as f64 * 14.0), line);
    }
}

/// A bar of some thickness with its spread; returns the end of both.
fn bar(
    canvas: &mut Canvas,
    class: &str,
    hint: &str,
    point: &Point,
    (y, thick): (f64, f64),
    (scale, plot): (&Scale, Plot),
) -> f64 {
    let base = plot.left + scale.base() * (plot.right - plot.left);
    let [x, low, high] = [point.y.median, point.y.min, point.y.max].map(|v| plot.x(scale, v));
    let size = ((x - base).abs(), thick - 2.0);
    canvas.rect(&format!("bar {class}"), (x.min(base), y + 1.0), size, hint);
    if high - low > 0.5 {
        let [l, r, c] = [low, high, y + thick / 2.0].map(num);
        let [t, b] = [-3.0, 3.0].map(|off| num(y + thick / 2.0 + off));
        canvas.path("spread", &format!("M{l} {t}V{b}M{l} {c}H{r}M{r} {t}V{b}"), "");
    }
    high.max(x).max(base)
}
