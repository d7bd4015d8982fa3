//! A report for a terminal: headings, paragraphs, tables as wide as there is room, bars of letters
//! where there is no table.

use crate::svg::full_name;
use crate::table::{Grid, Shown};
use crate::{Block, Chart, ChartKind, Report, Section, Severity, Table, figure, html};

/// Least width, for any terminal.
const LEAST: usize = 40;
/// Rows of a chart that is shown as a table.
const CHART_ROWS: usize = 24;

/// True if [`render`] made a text: the title underlined, and the command that made it.
pub(super) fn is_rendered(text: &str) -> bool {
    let underline = text.lines().find(|line| line.starts_with('='));
    underline.is_some_and(|line| line.bytes().all(|byte| byte == b'='))
        && text.contains("\nMade by   vlane ")
}

/// The whole report in lines of at most `width` columns (words and commands that are longer stay
/// whole).
pub fn render(report: &Report, width: usize) -> String {
    let width = width.max(LEAST);
    let mut out = String::new();
    heading(&mut out, &report.title, '=', width);
    for sentence in &report.summary {
        item(&mut out, "- ", sentence, width);
    }
    if !report.summary.is_empty() {
        out += "\n";
    }
    for severity in [Severity::Warning, Severity::Info] {
        for note in report.notes.iter().filter(|note| note.severity == severity) {
            let word = if severity == Severity::Warning { "WARNING: " } else { "Note: " };
            item(&mut out, word, &note.text, width);
        }
    }
    if !report.notes.is_empty() {
        out += "\n";
    }
    for (name, value) in html::facts(report) {
        item(&mut out, &format!("{name:<10}"), &value, width);
    }
    if !report.command.is_empty() {
        out += &format!("Made by   {}\n", report.command);
    }
    for section in &report.sections {
        self::section(&mut out, section, width);
    }
    printable(&out)
}

/// A table alone, for a command that prints only this.
pub fn table(table: &Table, width: usize) -> String {
    let mut out = String::new();
    put_table(&mut out, table, width.max(LEAST));
    printable(&out)
}

/// Texts of a report must not drive the terminal; the blanks of print are plain ones.
fn printable(text: &str) -> String {
    let plain = |c: char| match c {
        '\u{2007}' | '\u{2008}' | '\u{202f}' => ' ',
        '\n' => '\n',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let line: String = line.chars().map(plain).collect();
        out += line.trim_end();
        out.push('\n');
    }
    out
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Words in lines of at most `width`.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if length(line) + 1 + length(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

/// A paragraph that hangs behind its first word.
fn item(out: &mut String, first: &str, text: &str, width: usize) {
    let indent = " ".repeat(length(first));
    for (i, line) in wrap(text, width.saturating_sub(indent.len()).max(20)).iter().enumerate() {
        *out += if i == 0 { first } else { &indent };
        *out += line;
        *out += "\n";
    }
}

fn heading(out: &mut String, text: &str, under: char, width: usize) {
    let lines = wrap(text, width);
    let longest = lines.iter().map(|line| length(line)).max().unwrap_or(0);
    for line in lines {
        *out += &line;
        *out += "\n";
    }
    out.extend(std::iter::repeat_n(under, longest));
    *out += "\n\n";
}

fn section(out: &mut String, section: &Section, width: usize) {
    *out += "\n";
    heading(out, &section.title, '-', width);
    for paragraph in &section.text {
        item(out, "", paragraph, width);
        *out += "\n";
    }
    let told = section
        .blocks
        .iter()
        .any(|block| matches!(block, Block::Table(table) if !table.rows.is_empty()));
    for block in &section.blocks {
        match block {
            Block::Table(table) => {
                if !table.caption.is_empty() {
                    item(out, "", &table.caption, width);
                }
                put_table(out, table, width);
                *out += "\n";
            }
            Block::Chart(chart) if told => {
                item(out, "(chart in the page: ", &format!("{})", chart.caption), width)
            }
            Block::Chart(chart) => put_chart(out, chart, width),
        }
    }
    if let Some(command) = &section.command {
        *out += &format!("Again: {command}\n");
    }
}

/// How a table is made to fit.
#[derive(Clone, Copy)]
struct Fit {
    ranges: bool,
    /// Most columns of a cell of words.
    words: usize,
}

impl Fit {
    fn cell(self, cell: &Shown) -> String {
        match self.ranges && !cell.range.is_empty() {
            true => format!("{} ({})", cell.main, cell.range),
            false => cell.main.clone(),
        }
    }

    /// The width of a column's cells.
    fn width(self, grid: &Grid, column: usize) -> usize {
        let cells = grid.rows.iter().map(|row| match grid.columns[column].numbers {
            true => length(&row[column].main),
            false => length(&self.cell(&row[column]))
                .min(self.words.max(longest_word(&row[column].main))),
        });
        let ranges = grid.rows.iter().map(|row| match (self.ranges, row[column].range.as_str()) {
            (false, _) | (_, "") => 0,
            (true, range) => length(range) + 3,
        });
        let ranges = if grid.columns[column].numbers { ranges.max().unwrap_or(0) } else { 0 };
        let head = longest_word(&head(grid, column));
        (cells.max().unwrap_or(0) + ranges).max(head)
    }
}

fn longest_word(text: &str) -> usize {
    text.split_whitespace().map(length).max().unwrap_or(0)
}

pub(super) fn head(grid: &Grid, column: usize) -> String {
    let Some(head) = grid.columns.get(column) else { return String::new() };
    match head.unit.as_str() {
        "" => head.title.clone(),
        unit if unit == head.title => unit.to_string(),
        unit => format!("{} ({unit})", head.title),
    }
}

fn put_table(out: &mut String, table: &Table, width: usize) {
    let grid = Grid::of(table);
    let columns: Vec<usize> = (0..grid.columns.len()).collect();
    if columns.is_empty() {
        return;
    }
    let fits = [(true, usize::MAX), (true, 32), (true, 20), (false, 32), (false, 20)];
    let needed = |fit: Fit, columns: &[usize]| {
        columns.iter().map(|c| fit.width(&grid, *c)).sum::<usize>() + 2 * (columns.len() - 1)
    };
    let fits = fits.map(|(ranges, words)| Fit { ranges, words });
    if let Some(fit) = fits.into_iter().find(|fit| needed(*fit, &columns) <= width) {
        put_columns(out, &grid, &columns, fit);
        if !fit.ranges && grid.rows.iter().flatten().any(|cell| !cell.range.is_empty()) {
            *out += "(medians; the spread needs a wider terminal, or the page)\n";
        }
        return;
    }
    // Some columns at a time, each time behind the first.
    let fit = Fit { ranges: true, words: 20 };
    let mut rest = &columns[1..];
    while !rest.is_empty() {
        let mut group = vec![columns[0]];
        while let Some((next, after)) = rest.split_first() {
            group.push(*next);
            if group.len() > 2 && needed(fit, &group) > width {
                group.pop();
                break;
            }
            rest = after;
        }
        put_columns(out, &grid, &group, fit);
        if !rest.is_empty() {
            *out += "\n";
        }
    }
}

fn put_columns(out: &mut String, grid: &Grid, columns: &[usize], fit: Fit) {
    let widths: Vec<usize> = columns.iter().map(|c| fit.width(grid, *c)).collect();
    // Behind the figures of a column stand their spreads.
    let ranges = |column: usize| {
        let own = |row: &Vec<Shown>| {
            if row[column].range.is_empty() { 0 } else { length(&row[column].range) + 3 }
        };
        if fit.ranges { grid.rows.iter().map(own).max().unwrap_or(0) } else { 0 }
    };
    let cell = |row: &[Shown], column: usize, width: usize| -> Vec<String> {
        if !grid.columns[column].numbers {
            return wrap(&fit.cell(&row[column]), width);
        }
        let room = ranges(column);
        let range = match (fit.ranges, row[column].range.as_str()) {
            (false, _) | (_, "") => String::new(),
            (true, range) => format!(" ({range})"),
        };
        vec![format!("{:>1$}{range:<room$}", row[column].main, width - room)]
    };
    let mut put = |cells: Vec<Vec<String>>, right: &dyn Fn(usize) -> bool| {
        let height = cells.iter().map(Vec::len).max().unwrap_or(0).max(1);
        for i in 0..height {
            let mut line = String::new();
            for ((cell, width), column) in cells.iter().zip(&widths).zip(columns) {
                let text = cell.get(i).map_or("", String::as_str);
                line += &if right(*column) {
                    format!("{text:>width$}")
                } else {
                    format!("{text:<width$}")
                };
                line += "  ";
            }
            *out += line.trim_end();
            *out += "\n";
        }
    };
    let heads: Vec<_> =
        columns.iter().zip(&widths).map(|(c, width)| wrap(&head(grid, *c), *width)).collect();
    // Headings stand on the line, as the last line of each does.
    let tallest = heads.iter().map(Vec::len).max().unwrap_or(0);
    let heads = heads.into_iter().map(|lines| {
        let mut padded = vec![String::new(); tallest - lines.len()];
        padded.extend(lines);
        padded
    });
    put(heads.collect(), &|column| grid.columns[column].numbers);
    let rule = widths.iter().map(|width| vec!["-".repeat(*width)]).collect();
    put(rule, &|_| false);
    for row in &grid.rows {
        let cells = columns.iter().zip(&widths).map(|(c, width)| cell(row, *c, *width)).collect();
        put(cells, &|_| false);
    }
}

fn put_chart(out: &mut String, chart: &Chart, width: usize) {
    item(out, "", &chart.caption, width);
    let mut table = html::figures(chart);
    if chart.kind != ChartKind::Bars || table.rows.is_empty() {
        let every = table.rows.len().div_ceil(CHART_ROWS).max(1);
        let last = table.rows.len().saturating_sub(1);
        let mut place = 0..;
        table
            .rows
            .retain(|_| place.next().is_some_and(|i: usize| i.is_multiple_of(every) || i == last));
        put_table(out, &table, width);
        *out += "\n";
        return;
    }
    bars(out, chart, width);
    *out += "\n";
}

/// Bars of block letters, with their figures behind.
fn bars(out: &mut String, chart: &Chart, width: usize) {
    let unit = &chart.y.unit;
    let format = figure::Format::of_unit(unit);
    let points = || chart.series.iter().flat_map(|s| &s.points);
    let most = points().map(|p| p.y.median).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let names: Vec<String> = chart.series.iter().map(full_name).collect();
    let name_width = names.iter().map(|name| length(name)).max().unwrap_or(0).min(width / 3);
    let figures = points().map(|p| length(&figure::with_range(&p.y, format))).max().unwrap_or(0);
    let room = width.saturating_sub(name_width + figures + length(unit) + 6).clamp(5, 50);
    let mut places: Vec<f64> = points().map(|p| p.x).collect();
    places.sort_by(f64::total_cmp);
    places.dedup_by(|a, b| a.total_cmp(b).is_eq());
    for x in places {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates; a wrong index has no name"
        )]
        let name = chart.categories.get(x.round() as usize).filter(|_| x >= 0.0);
        *out += &name.cloned().unwrap_or_else(|| figure::with_unit(x, &chart.x.unit));
        *out += "\n";
        for (series, name) in chart.series.iter().zip(&names) {
            let Some(point) = series.points.iter().find(|p| p.x.total_cmp(&x).is_eq()) else {
                continue;
            };
            let letter = match (series.predicted, series.published) {
                (true, _) => '\u{2591}',
                (_, true) => '\u{2592}',
                _ => '\u{2588}',
            };
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 0 and the width of a terminal"
            )]
            let long = if most > 0.0 {
                (point.y.median / most * room as f64).round().max(0.0) as usize
            } else {
                0
            };
            let bar: String = std::iter::repeat_n(letter, long.min(room)).collect();
            let name: String = name.chars().take(name_width).collect();
            let value = figure::with_range(&point.y, format);
            *out += &format!("  {name:<name_width$}  {bar:<room$} {value} {unit}\n");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "text/tests.rs"]
mod tests;
