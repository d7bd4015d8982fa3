//! Groups of bars: upright where their names fit below, lying otherwise (long names, many
//! categories, phones).

use super::{
    Anchor, Canvas, Chart, FONT, Plot, Point, Scale, classes, figure, fill, hint, label_width,
    legend, lying, num, shorten, text_width, upright, wrap,
};

/// Font size of the values at the bars' ends.
const VALUE: f64 = 11.0;
/// Height of the part between the axes of upright bars.
const HEIGHT: f64 = 260.0;
/// A taller picture than this is not drawn lying if its bars can be seen upright.
const TALL: f64 = 1600.0;
/// A taller picture than this is not drawn lying at all: it would need too much scrolling.
const TALLEST: f64 = 8000.0;

/// The bars of one category: by series, those that there are.
struct Group {
    name: String,
    bars: Vec<(usize, Point)>,
}

/// The categories with their bars. Without names the points' own x are the names.
fn groups(chart: &Chart, series: &[Vec<Point>]) -> Vec<Group> {
    if chart.categories.is_empty() {
        let mut places: Vec<f64> = series.iter().flatten().map(|p| p.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let group = |x: &f64| Group {
            name: figure::Format::of_unit(&chart.x.unit).show(*x),
            bars: pick(series, |p| p.x.total_cmp(x).is_eq()),
        };
        return places.iter().map(group).collect();
    }
    let group = |(i, name): (usize, &String)| {
        let at = i as f64;
        Group { name: name.clone(), bars: pick(series, |p| (p.x - at).abs() < 1e-9) }
    };
    chart.categories.iter().enumerate().map(group).collect()
}

/// One point of each series.
fn pick(series: &[Vec<Point>], of: impl Fn(&Point) -> bool) -> Vec<(usize, Point)> {
    series
        .iter()
        .enumerate()
        .filter_map(|(i, points)| points.iter().find(|p| of(p)).map(|p| (i, *p)))
        .collect()
}

/// Draws them; returns the height.
pub(super) fn draw(
    canvas: &mut Canvas,
    chart: &Chart,
    series: &[Vec<Point>],
    width: f64,
    id: &str,
) -> f64 {
    let groups = groups(chart, series);
    let drawn = groups.iter().flat_map(|group| &group.bars);
    let values = drawn.flat_map(|(_, point)| [point.y.median, point.y.max, point.y.min]);
    let top = legend(canvas, chart, width, id);
    canvas.raw(r#"<g class="bars">"#);
    let picture = Picture { chart, groups: &groups, width, top, id };
    let scale = |ticks| Scale::of_lengths(&chart.y, values.clone(), ticks);
    let height = match picture.upright_names(&scale(5)) {
        Some(names) => picture.upright(canvas, &scale(5), &names),
        None => picture.lying(canvas, &scale(if width < 500.0 { 5 } else { 6 })),
    };
    canvas.raw("</g>");
    height
}

struct Picture<'a> {
    chart: &'a Chart,
    groups: &'a [Group],
    width: f64,
    /// Where the picture begins, below the legend.
    top: f64,
    id: &'a str,
}

impl Picture<'_> {
    fn slots(&self) -> usize {
        self.chart.series.len().max(1)
    }

    fn plot_left(scale: &Scale) -> f64 {
        label_width(scale) + 10.0
    }

    /// The names below upright bars in lines, if they fit and the bars are wide enough to be seen.
    fn upright_names(&self, scale: &Scale) -> Option<Vec<Vec<String>>> {
        let each = (self.width - Self::plot_left(scale)) / self.groups.len().max(1) as f64;
        let room = each - 8.0;
        let lines = |group: &Group| {
            let fits = group.name.split_whitespace().all(|word| text_width(word, FONT) <= room);
            Some(wrap(&group.name, FONT, room)).filter(|lines| fits && lines.len() <= 2)
        };
        let names: Option<Vec<_>> = self.groups.iter().map(lines).collect();
        let wide_enough = each / (self.slots() as f64 + 0.6) >= 9.0;
        match names {
            Some(names) if wide_enough => Some(names),
            // Too many to lie: every so many gets its name.
            _ if self.lying_height() > TALL && each >= 3.0 * self.slots() as f64
                || self.lying_height() > TALLEST =>
            {
                let longest =
                    self.groups.iter().map(|g| text_width(&g.name, FONT)).fold(0.0, f64::max);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "saturates; positive"
                )]
                let every =
                    ((longest.min(self.width / 3.0) + 10.0) / each).ceil().max(1.0) as usize;
                let name = |(i, group): (usize, &Group)| match i % every {
                    0 => vec![shorten(&group.name, FONT, self.width / 3.0)],
                    _ => Vec::new(),
                };
                Some(self.groups.iter().enumerate().map(name).collect())
            }
            _ => None,
        }
    }

    /// Upright bars.
    fn upright(&self, canvas: &mut Canvas, scale: &Scale, names: &[Vec<String>]) -> f64 {
        let plot = Plot {
            left: Self::plot_left(scale),
            right: self.width,
            top: self.top + 38.0,
            bottom: self.top + 38.0 + HEIGHT,
        };
        upright(canvas, &self.chart.y, scale, plot, self.width);
        let each = (plot.right - plot.left) / self.groups.len().max(1) as f64;
        // As wide as there is room, but no slabs.
        let thick = (each / (self.slots() as f64 + 0.6)).min(64.0);
        let base = plot.bottom - scale.base() * (plot.bottom - plot.top);
        for ((i, group), lines) in self.groups.iter().enumerate().zip(names) {
            let middle = plot.left + (i as f64 + 0.5) * each;
            for (slot, point) in &group.bars {
                let series = &self.chart.series[*slot];
                let x = middle + (*slot as f64 - self.slots() as f64 / 2.0) * thick;
                let y = plot.y(scale, point.y.median);
                let gap = (thick * 0.08).min(2.0);
                canvas.rect(
                    &format!("bar {}", classes(self.chart, *slot)),
                    &fill(series, *slot, self.id),
                    (x + gap, y.min(base)),
                    ((thick - 2.0 * gap).max(0.5), (y - base).abs()),
                    &hint(self.chart, series, &group.name, point),
                );
                let (low, high) = (plot.y(scale, point.y.min), plot.y(scale, point.y.max));
                let centre = x + thick / 2.0;
                if low - high > 0.5 {
                    let cap = (thick * 0.2).min(5.0);
                    let d = format!(
                        "M{l} {h}H{r}M{c} {h}V{b}M{l} {b}H{r}",
                        l = num(centre - cap),
                        r = num(centre + cap),
                        c = num(centre),
                        h = num(high),
                        b = num(low)
                    );
                    canvas.path("spread", &d, "");
                }
                let value = figure::Format::of_unit(&self.chart.y.unit).show(point.y.median);
                if text_width(&value, VALUE) <= thick - 2.0 {
                    let at = if y > base { low.max(y) + 13.0 } else { high.min(y) - 4.0 };
                    canvas.text("value", Anchor::Middle, (centre, at), &value);
                }
            }
            for (line, row) in lines.iter().zip(0_u8..) {
                let y = plot.bottom + 18.0 + 15.0 * f64::from(row);
                let half = text_width(line, FONT) / 2.0;
                let at = middle.min(self.width - half).max(half);
                canvas.text("place", Anchor::Middle, (at, y), line);
            }
        }
        let rows = names.iter().map(Vec::len).max().unwrap_or(0) as f64;
        let title = shorten(&super::titled(&self.chart.x), FONT, self.width);
        let below = plot.bottom + 24.0 + 15.0 * rows;
        if title.is_empty() {
            return below - 8.0;
        }
        let half = text_width(&title, FONT) / 2.0;
        let middle = f64::midpoint(plot.left, plot.right).min(self.width - half);
        canvas.text("title", Anchor::Middle, (middle, below), &title);
        below + 8.0
    }

    /// Thickness of a lying bar, and the space between groups.
    fn lying_sizes(&self) -> (f64, f64) {
        if self.slots() > 4 { (13.0, 14.0) } else { (16.0, 14.0) }
    }

    /// The width of the names beside lying bars; `None` if they stand above their bars.
    fn names_beside(&self) -> Option<f64> {
        let longest = self.groups.iter().map(|g| text_width(&g.name, FONT)).fold(0.0, f64::max);
        (self.width >= 500.0).then_some(longest.min(self.width * 0.3) + 12.0)
    }

    fn group_height(&self) -> f64 {
        let (thick, gap) = self.lying_sizes();
        let name = if self.names_beside().is_some() { 0.0 } else { 18.0 };
        self.slots() as f64 * thick + gap + name
    }

    fn lying_height(&self) -> f64 {
        self.groups.len() as f64 * self.group_height()
    }

    /// Draws a group's name beside its lying bars or above them; returns the top of the bars.
    fn lying_name(&self, canvas: &mut Canvas, group: &Group, beside: Option<f64>, y: f64) -> f64 {
        let Some(room) = beside else {
            let name = shorten(&group.name, FONT, self.width - 4.0);
            canvas.text("place", Anchor::Start, (2.0, y + 11.0), &name);
            return y + 18.0;
        };
        let (thick, _) = self.lying_sizes();
        let lines = wrap(&group.name, FONT, room - 12.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few lines")]
        let most = (self.slots() as f64 * thick / 14.0).max(1.0) as usize;
        let lines = &lines[..lines.len().min(most)];
        let middle = y + self.slots() as f64 * thick / 2.0 + 4.0 - (lines.len() as f64 - 1.0) * 7.0;
        for (row, line) in lines.iter().enumerate() {
            canvas.text("place", Anchor::End, (room - 10.0, middle + row as f64 * 14.0), line);
        }
        y
    }

    /// Lying bars.
    fn lying(&self, canvas: &mut Canvas, scale: &Scale) -> f64 {
        let (thick, gap) = self.lying_sizes();
        let beside = self.names_beside();
        let value_of =
            |point: &Point| figure::Format::of_unit(&self.chart.y.unit).show(point.y.median);
        let values =
            self.groups.iter().flat_map(|g| &g.bars).map(|(_, p)| text_width(&value_of(p), VALUE));
        let right = self.width - values.fold(0.0, f64::max) - 8.0;
        let plot = Plot {
            left: beside.unwrap_or(1.0),
            right,
            top: self.top + 4.0,
            bottom: self.top + 4.0 + self.lying_height(),
        };
        lying(canvas, &self.chart.y, scale, plot, self.width, true);
        let base = plot.left + scale.base() * (plot.right - plot.left);
        for (i, group) in self.groups.iter().enumerate() {
            let top = plot.top + i as f64 * self.group_height() + gap / 2.0;
            let y = self.lying_name(canvas, group, beside, top);
            for (slot, point) in &group.bars {
                let series = &self.chart.series[*slot];
                let (y, x) = (y + *slot as f64 * thick, plot.x(scale, point.y.median));
                canvas.rect(
                    &format!("bar {}", classes(self.chart, *slot)),
                    &fill(series, *slot, self.id),
                    (x.min(base), y + 1.0),
                    ((x - base).abs(), thick - 2.0),
                    &hint(self.chart, series, &group.name, point),
                );
                let (low, high) = (plot.x(scale, point.y.min), plot.x(scale, point.y.max));
                let centre = y + thick / 2.0;
                if high - low > 0.5 {
                    let d = format!(
                        "M{l} {t}V{b}M{l} {c}H{r}M{r} {t}V{b}",
                        l = num(low),
                        r = num(high),
                        c = num(centre),
                        t = num(centre - 3.0),
                        b = num(centre + 3.0)
                    );
                    canvas.path("spread", &d, "");
                }
                canvas.text(
                    "value",
                    Anchor::Start,
                    (high.max(x).max(base) + 5.0, centre + 4.0),
                    &value_of(point),
                );
            }
        }
        plot.bottom + 46.0
    }
}
