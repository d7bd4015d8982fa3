//! A report as one page: no network, no program in it, readable on a phone, on paper and in the
//! dark.
//!
//! Tables and charts that are wider than a phone scroll in their boxes: text that shrinks with its
//! chart cannot be read. The report's JSON is in the page too, so the page is also
//! the data (`vlane-lab report page.html` reads it back). The page is well-formed XML.

use crate::machine::{Load, Storage};
use crate::markup::escape;
use crate::svg;
use crate::table::{Grid, figures};
use crate::{Block, Chart, Report, Section, Severity, Table, figure};
use vlane_error::program::Result;

const PAGE: &str = include_str!("html/page.css");
/// Around the JSON inside a page.
pub(super) const DATA: (&str, &str) =
    (r#"<script type="application/json" id="report">"#, "</script>");
/// Charts with more points than this have no table of figures below: it would be longer than
/// anybody reads.
const LISTED: usize = 200;

/// The page.
///
/// # Errors
/// If the report cannot be written as JSON.
pub fn page(report: &Report) -> Result<String> {
    let mut out =
        String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\" />\n");
    out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n";
    out += &format!(
        "<title>{}</title>\n<style>\n{}{PAGE}</style>\n</head>\n<body>\n<main>\n",
        escape(&report.title),
        svg::STYLE
    );
    head(&mut out, report);
    for (section, number) in report.sections.iter().zip(1..) {
        self::section(&mut out, section, &anchor(section, number), &report.command);
    }
    out += "<footer>The figures of this page are in it as JSON: <code>vlane-lab report THIS-FILE \
            --json report.json</code> takes them out.";
    if !report.samples.is_empty() {
        out += " So is every single measurement: <code>vlane-lab report THIS-FILE --csv \
                DIRECTORY</code>.";
    }
    out += "</footer>\n";
    out += "</main>\n";
    out += DATA.0;
    out += &script_safe(&report.to_json()?);
    out += DATA.1;
    out += "\n</body>\n</html>\n";
    Ok(out)
}

/// JSON that neither HTML nor XML takes for something else; it stays the same JSON, since these
/// letters stand in strings only.
fn script_safe(json: &str) -> String {
    let marked = ['<', '>', '&', '\u{2028}', '\u{2029}', '\u{fffe}', '\u{ffff}'];
    let is_safe = |c: char| !marked.contains(&c) && !('\u{7f}'..='\u{9f}').contains(&c);
    let safe = |c: char| match is_safe(c) {
        true => c.to_string(),
        false => format!("\\u{:04x}", u32::from(c)),
    };
    json.chars().map(safe).collect()
}

/// A section's name for links: its id as far as that can be one, and its number, so that no two are
/// the same.
fn anchor(section: &Section, number: usize) -> String {
    let id: String = section
        .id
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        .collect();
    format!("s{number}-{id}")
}

fn head(out: &mut String, report: &Report) {
    *out += &format!(
        "<header>\n<p class=\"kind\">vlane {}</p>\n<h1>{}</h1>\n",
        escape(&report.kind),
        escape(&report.title)
    );
    if !report.summary.is_empty() {
        *out += "<ul class=\"summary\">\n";
        for sentence in &report.summary {
            *out += &format!("<li>{}</li>\n", escape(sentence));
        }
        *out += "</ul>\n";
    }
    if !report.notes.is_empty() {
        *out += "<ul class=\"notes\">\n";
        // Escapes that change the meaning come first.
        for severity in [Severity::Warning, Severity::Info] {
            for note in report.notes.iter().filter(|note| note.severity == severity) {
                let (class, word) = match severity {
                    Severity::Warning => ("note warning", "Warning: "),
                    Severity::Info => ("note", ""),
                };
                *out +=
                    &format!("<li class=\"{class}\"><b>{word}</b>{}</li>\n", escape(&note.text));
            }
        }
        *out += "</ul>\n";
    }
    *out += "<dl>\n";
    for (name, value) in facts(report) {
        *out += &format!("<dt>{name}</dt><dd>{}</dd>\n", escape(&value));
    }
    *out += "</dl>\n";
    command(out, "Made by", &report.command);
    if report.sections.len() > 2 {
        *out += "<nav aria-label=\"Contents\"><ul>\n";
        for (section, number) in report.sections.iter().zip(1..) {
            *out += &format!(
                "<li><a href=\"#{}\">{}</a></li>\n",
                anchor(section, number),
                escape(&section.title)
            );
        }
        *out += "</ul></nav>\n";
    }
    *out += "</header>\n";
}

/// When, how long, where: names and values, without those that are not known.
pub(super) fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let machine = &report.machine;
    let under = match machine.hypervisor.as_str() {
        "" => String::new(),
        "unknown" => ", itself a virtual machine".into(),
        name => format!(", itself a virtual machine ({name})"),
    };
    let cpus = if machine.cpus == 1 { "1 CPU".into() } else { format!("{} CPUs", machine.cpus) };
    let memory = vlane_units::show_size(machine.memory_mib << 20);
    let versions: Vec<_> =
        machine.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let date = report.created.replace('T', " ").replace('Z', " UTC");
    let took = (report.seconds > 0.0).then(|| figure::duration(report.seconds));
    let cpu = Some(&machine.cpu).filter(|cpu| !cpu.is_empty());
    let all = [
        ("Date", date),
        ("Took", took.unwrap_or_default()),
        ("Machine", cpu.map(|cpu| format!("{cpu}, {cpus}, {memory}{under}")).unwrap_or_default()),
        ("Kernel", machine.kernel.clone()),
        ("Versions", versions.join(", ")),
        ("Commit", machine.commit.clone()),
        ("Images on", machine.storage.iter().map(Storage::words).collect::<Vec<_>>().join("; ")),
        ("Load", machine.load.map(Load::words).unwrap_or_default()),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn command(out: &mut String, what: &str, command: &str) {
    if !command.is_empty() {
        *out += &format!(
            "<div class=\"command\"><span>{what}</span><pre><code>{}</code></pre></div>\n",
            escape(command)
        );
    }
}

fn section(out: &mut String, section: &Section, id: &str, made_by: &str) {
    *out += &format!(
        "<section id=\"{id}\">\n<h2><a href=\"#{id}\">{}</a></h2>\n",
        escape(&section.title)
    );
    for paragraph in &section.text {
        *out += &format!("<p>{}</p>\n", escape(paragraph));
    }
    for block in &section.blocks {
        match block {
            Block::Table(table) => self::table(out, table),
            Block::Chart(chart) => self::chart(out, chart),
        }
    }
    command(out, "These figures again", section.command.as_deref().unwrap_or(made_by));
    *out += "</section>\n";
}

fn chart(out: &mut String, chart: &Chart) {
    *out += &format!("<figure>\n<figcaption>{}</figcaption>\n", escape(&chart.caption));
    *out += "<div class=\"scroll\" tabindex=\"0\">\n";
    *out += &svg::element(chart);
    *out += "\n</div>\n";
    let points: usize = chart.series.iter().map(|s| s.points.len()).sum();
    if (1..=LISTED).contains(&points) {
        *out += "<details><summary>The figures of this chart</summary>\n";
        grid(out, &figures(chart), &chart.caption);
        *out += "</details>\n";
    }
    *out += "</figure>\n";
}

fn table(out: &mut String, table: &Table) {
    *out += "<figure>\n";
    if !table.caption.is_empty() {
        *out += &format!("<figcaption>{}</figcaption>\n", escape(&table.caption));
    }
    grid(out, table, &table.caption);
    *out += "</figure>\n";
}

fn grid(out: &mut String, table: &Table, label: &str) {
    let grid = Grid::of(table);
    let class = |column: usize| {
        let longest =
            grid.rows.iter().map(|row| row[column].main.chars().count()).max().unwrap_or(0);
        match grid.columns[column].numbers {
            true => " class=\"number\"",
            // A word or two stay on one line, a sentence does not stand on its head.
            false if longest <= 14 => " class=\"short\"",
            false if longest > 40 && column > 0 => " class=\"long\"",
            false => "",
        }
    };
    // The box can be scrolled by keyboard.
    *out += &format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" \
         aria-label=\"{}\">\n<table>\n<thead><tr>",
        escape(label)
    );
    for (i, column) in grid.columns.iter().enumerate() {
        let unit = match column.unit.as_str() {
            "" => String::new(),
            unit => format!("<span class=\"unit\">{}</span>", escape(unit)),
        };
        *out += &format!("<th scope=\"col\"{}>{}{unit}</th>", class(i), escape(&column.title));
    }
    *out += "</tr></thead>\n<tbody>\n";
    for row in &grid.rows {
        *out += "<tr>";
        for (i, cell) in row.iter().enumerate() {
            let range = match cell.range.as_str() {
                "" => String::new(),
                range => format!(" <span class=\"range\">({})</span>", escape(range)),
            };
            let text = match cell.main.as_str() {
                figure::NONE => "<span class=\"none\">-</span>".into(),
                main => escape(main),
            };
            *out += &match i {
                0 => format!("<th scope=\"row\"{}>{text}{range}</th>", class(i)),
                _ => format!("<td{}>{text}{range}</td>", class(i)),
            };
        }
        *out += "</tr>\n";
    }
    *out += "</tbody>\n</table>\n</div>\n";
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "html/tests.rs"]
mod tests;
