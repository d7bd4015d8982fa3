//! A report for a terminal: headings, paragraphs, tables as wide as there is room, the figures of
//! charts where there is no table.

use crate::markup::wrap_by;
use crate::table::{Grid, Shown, figures};
use crate::{Block, Chart, ChartKind, Report, Section, Severity, Table, html};

/// Least width, for any terminal.
const LEAST: usize = 40;
/// Rows of a chart that is shown as a table.
const CHART_ROWS: usize = 24;
/// Letters of a column of words where there is little room.
const NARROW: usize = 20;

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
    wrap_by(text, |line| length(line) <= width)
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
    let all: Vec<usize> = (0..grid.columns.len()).collect();
    let fits = |text: &str| text.lines().all(|line| length(line) <= width);
    for (ranges, words) in
        [(true, usize::MAX), (true, 32), (true, NARROW), (false, 32), (false, NARROW)]
    {
        let text = columns(&grid, &all, ranges, words);
        if fits(&text) {
            *out += &text;
            if !ranges && grid.rows.iter().flatten().any(|cell| !cell.range.is_empty()) {
                *out += "(medians; the spread needs a wider terminal, or the page)\n";
            }
            return;
        }
    }
    // Some columns at a time, each time behind the first.
    let mut rest = all.get(1..).unwrap_or_default();
    while !rest.is_empty() {
        let text = |count: usize| {
            let group = all[..1].iter().chain(&rest[..count]).copied().collect::<Vec<_>>();
            columns(&grid, &group, true, NARROW)
        };
        let count = (2..=rest.len()).take_while(|count| fits(&text(*count))).last().unwrap_or(1);
        *out += &text(count);
        rest = &rest[count..];
        if !rest.is_empty() {
            *out += "\n";
        }
    }
}

/// Some columns of a table: the spreads with them or not, words in lines of at most so many letters
/// unless one is longer.
fn columns(grid: &Grid, columns: &[usize], ranges: bool, words: usize) -> String {
    let columns: Vec<_> = columns.iter().map(|at| column(grid, *at, ranges, words)).collect();
    let mut out = String::new();
    for row in 0..if columns.is_empty() { 0 } else { grid.rows.len() + 2 } {
        let height = columns.iter().map(|cells| cells[row].len()).max().unwrap_or(0).max(1);
        for line in 0..height {
            let mut text = String::new();
            for cells in &columns {
                // Headings stand on the line below them.
                let above = if row == 0 { height - cells[row].len() } else { 0 };
                let cell = line.checked_sub(above).and_then(|line| cells[row].get(line));
                let blank = " ".repeat(length(&cells[1][0]));
                text += cell.unwrap_or(&blank);
                text += "  ";
            }
            out += text.trim_end();
            out += "\n";
        }
    }
    out
}

/// The heading of a column, a line below it, and its cells, each in lines of the same width.
fn column(grid: &Grid, at: usize, ranges: bool, words: usize) -> Vec<Vec<String>> {
    let (head, numbers) = (head(grid, at), grid.columns[at].numbers);
    let shown = || grid.rows.iter().map(|row| &row[at]);
    let range = |cell: &Shown| match cell.range.as_str() {
        range if ranges && !range.is_empty() => format!(" ({range})"),
        _ => String::new(),
    };
    let main = shown().map(|cell| length(&cell.main)).max().unwrap_or(0);
    let behind = shown().map(|cell| length(&range(cell))).max().unwrap_or(0);
    let texts: Vec<String> = shown()
        .map(|cell| match numbers {
            true => format!("{:>main$}{:<behind$}", cell.main, range(cell)),
            false => format!("{}{}", cell.main, range(cell)),
        })
        .collect();
    let needs = |text: &String| match numbers {
        true => length(text),
        false => length(text).min(words.max(longest_word(text))),
    };
    let width = texts.iter().map(needs).max().unwrap_or(0).max(longest_word(&head));
    let justify = |line: String| match numbers {
        true => format!("{line:>width$}"),
        false => format!("{line:<width$}"),
    };
    let lines = |text: &str| wrap(text, width).into_iter().map(justify).collect();
    let cell = |text: &String| if numbers { vec![justify(text.clone())] } else { lines(text) };
    let above = [lines(&head), vec!["-".repeat(width)]];
    above.into_iter().chain(texts.iter().map(cell)).collect()
}

/// The figures of a chart; of a long line those of some places.
fn put_chart(out: &mut String, chart: &Chart, width: usize) {
    item(out, "", &chart.caption, width);
    let mut table = figures(chart);
    let every = match chart.kind {
        ChartKind::Bars => 1,
        _ => table.rows.len().div_ceil(CHART_ROWS).max(1),
    };
    let last = table.rows.len().saturating_sub(1);
    let mut place = 0..;
    table
        .rows
        .retain(|_| place.next().is_some_and(|i: usize| i.is_multiple_of(every) || i == last));
    put_table(out, &table, width);
    *out += "\n";
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "text/tests.rs"]
mod tests;
