//! The page of an experiment, and the index of all.

use std::fmt::Write;
use std::path::Path;

use crate::published::{self, Direction, Interval, Row};
use anyhow::{Context, Result};
use vlane_report::machine::{Load, Storage};
use vlane_report::{Block, Report, Section, Severity, markdown, svg_file};

use crate::claim::Within;
use crate::experiment::Experiment;

const GENERATED: &str =
    "<!-- Made by `cargo xtask experiments`; what is written by hand is in experiment.toml. -->\n";

/// Writes the page and the charts of one experiment.
pub(crate) fn write(one: &Experiment, all: &[Experiment], report: &Report) -> Result<()> {
    remove_old_charts(&one.folder)?;
    let sections: Vec<_> = report
        .sections
        .iter()
        .filter(|s| one.about.sections.is_empty() || one.about.sections.contains(&s.id))
        .collect();
    let mut pictures = String::new();
    for section in sections {
        pictures += &charts_of(one, section)?;
    }
    let text = page(one, all, report, &pictures);
    let file = one.folder.join("README.md");
    std::fs::write(&file, text).with_context(|| format!("{}", file.display()))
}

fn remove_old_charts(folder: &Path) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        if path.extension().is_some_and(|extension| extension == "svg") {
            std::fs::remove_file(&path).with_context(|| format!("{}", path.display()))?;
        }
    }
    Ok(())
}

/// Writes a section's charts; returns the lines that show them.
fn charts_of(one: &Experiment, section: &Section) -> Result<String> {
    let mut text = String::new();
    let charts = section.blocks.iter().filter_map(|block| match block {
        Block::Chart(chart) => Some(chart),
        Block::Table(_) => None,
    });
    for (index, chart) in charts.enumerate() {
        let name = format!("{}-{}.svg", section.id, index + 1);
        let file = one.folder.join(&name);
        std::fs::write(&file, svg_file(chart)).with_context(|| format!("{}", file.display()))?;
        let _ = writeln!(text, "![{}]({name})\n", chart.caption.replace(['[', ']'], ""));
    }
    Ok(text)
}

fn page(one: &Experiment, all: &[Experiment], report: &Report, pictures: &str) -> String {
    let about = &one.about;
    let mut text = format!("{GENERATED}# {}\n\nSource: {}.\n\n", about.title, about.source);
    let _ = writeln!(
        text,
        "**Question.** {}\n\n**Method.** {}\n",
        about.question.trim(),
        about.method.trim()
    );
    let (folder, from) = match &about.uses {
        Some(used) => {
            (format!("../{used}/"), format!(" (shared with [{used}](../{used}/README.md))"))
        }
        None => (String::new(), String::new()),
    };
    let used = about.uses.as_ref().and_then(|used| all.iter().find(|other| other.name == *used));
    let command = used.unwrap_or(one).about.command.as_deref().unwrap_or_default();
    let _ = writeln!(
        text,
        "**Again.** `cargo xtask experiments {}`, which runs `{}`{from}.\n",
        one.name,
        command.replace("{result}", "result.json")
    );
    text += &last_result(report, &folder);
    for note in report.notes.iter().filter(|note| note.severity == Severity::Warning) {
        let _ = writeln!(text, "> {}\n", note.text);
    }
    if !about.tables.is_empty() {
        for sentence in &report.summary {
            let _ = writeln!(text, "- {sentence}");
        }
        text += "\n";
    }
    if !about.figures.is_empty() {
        let rows: Vec<_> = about.figures.iter().map(|figure| figure.row(report)).collect();
        let table = markdown::table(&published::table("", &rows));
        let _ = writeln!(text, "## Published and here\n\n{}\n\n{table}", published::LEGEND);
    }
    if !about.goals.is_empty() {
        text += "## Our own goals\n\nThese are vlane's wishes; no publication has them.\n\n\
                 | goal | wanted | here (min-max) | outcome |\n|---|---|---|---|\n";
        for goal in &about.goals {
            let (here, outcome) = match (goal.judge(report), report.disturbance()) {
                (Some((here, _)), Some(reason)) => {
                    (shown(&here), format!("inconclusive: {reason}"))
                }
                (Some((here, within)), None) => (shown(&here), within.word().into()),
                (None, _) => ("not measured".into(), String::new()),
            };
            let _ = writeln!(text, "| {} | {} | {here} | {outcome} |", goal.says, goal.bounds());
        }
        text += "\n";
    }
    if !about.discussion.trim().is_empty() {
        let _ = writeln!(text, "{}\n", about.discussion.trim());
    }
    for section in report.sections.iter().filter(|section| about.tables.contains(&section.id)) {
        text += &tables_of(section);
    }
    if !pictures.is_empty() {
        let _ = write!(text, "## Figures\n\n{pictures}");
    }
    text
}

/// The line on the last result, its date and its machine; `folder` is where it lies.
fn last_result(report: &Report, folder: &str) -> String {
    let machine = &report.machine;
    let mut known: Vec<_> =
        machine.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    known.extend((!machine.commit.is_empty()).then(|| format!("commit {}", machine.commit)));
    known.extend(machine.storage.iter().map(Storage::words));
    known.extend(machine.load.map(|load| format!("load {}", Load::words(load))));
    let hypervisor = match machine.hypervisor.as_str() {
        "" => String::new(),
        name => format!(", itself a virtual machine ({name})"),
    };
    format!(
        "**Last result.** [{0}result.json]({0}result.json), {1}; {2} CPUs ({3}), {4} GiB, Linux \
         {5}{hypervisor}; {6}.\n\n",
        folder,
        report.created.get(..10).unwrap_or(&report.created),
        machine.cpus,
        machine.cpu,
        machine.memory_mib.div_ceil(1024),
        machine.kernel,
        known.join(", ")
    )
}

/// A section's title, text and tables.
fn tables_of(section: &Section) -> String {
    let mut text = format!("## {}\n\n", section.title);
    for paragraph in &section.text {
        let _ = writeln!(text, "{paragraph}\n");
    }
    for block in &section.blocks {
        if let Block::Table(table) = block {
            let _ = writeln!(text, "{}:\n\n{}", table.caption, markdown::table(table));
        }
    }
    text
}

/// `2.55 (2.40-2.61)`.
fn shown(here: &Interval) -> String {
    if here.runs < 2 {
        return number(here.middle);
    }
    let [middle, low, high] = [here.middle, here.low, here.high].map(number);
    format!("{middle} ({low}-{high}){}", here.pairing())
}

/// Three significant digits or so.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// The cells of the index about an experiment: directions, sizes, what was not measured; goals.
fn counted(rows: &[Row], goals: &[Option<Within>]) -> String {
    let count = |of: &[(&str, usize)]| {
        let words = of.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{n} {name}"));
        words.collect::<Vec<_>>().join(", ")
    };
    let found: Vec<_> = rows.iter().filter_map(Row::comparison).collect();
    let directions = [Direction::Same, Direction::Opposite, Direction::Unclear]
        .map(|one| (one.word(), found.iter().filter(|found| found.direction == Some(one)).count()));
    let sizes: Vec<bool> = found.iter().filter_map(|found| Some(found.size?.is_within())).collect();
    let within = sizes.iter().filter(|within| **within).count();
    let missing = rows.len() - found.len();
    let goal = |one| goals.iter().filter(|within| **within == Some(one)).count();
    [
        count(&directions),
        count(&[("within", within), ("not", sizes.len() - within)]),
        if missing == 0 { String::new() } else { missing.to_string() },
        count(&[
            ("met", goal(Within::All)),
            ("not", goal(Within::None)),
            ("in part", goal(Within::Part)),
        ]),
    ]
    .join(" | ")
}

/// Writes `experiments/README.md`.
pub(crate) fn write_index(root: &Path, all: &[Experiment]) -> Result<()> {
    let mut text = format!(
        "{GENERATED}# Experiments\n\nThe figures and tables of the publications that vlane builds \
         on, repeated. Each folder says what it asks, how to run it, what came\nout last and how \
         that compares with the publication. `cargo xtask experiments` runs them all, `cargo \
         xtask experiments NAME` one,\n`--list` names them.\n\n{}\n\nGoals are vlane's own, and \
         no published figures.\n\n| experiment | source | direction | size | not measured | our \
         own goals |\n|---|---|---|---|---|---|\n",
        published::LEGEND
    );
    for one in all {
        let report = Report::read(&one.source_of_result(all).join("result.json"));
        let counts = match &report {
            Ok(report) if report.disturbance().is_some() => "inconclusive | | | ".into(),
            Ok(report) => {
                let rows: Vec<_> =
                    one.about.figures.iter().map(|figure| figure.row(report)).collect();
                let goals = one.about.goals.iter().map(|goal| Some(goal.judge(report)?.1));
                counted(&rows, &goals.collect::<Vec<_>>())
            }
            Err(_) => " | | | ".into(),
        };
        // An experiment without a measurement has no page yet.
        let page = if report.is_ok() { "README.md" } else { "experiment.toml" };
        let _ = writeln!(
            text,
            "| [{}]({}/{page}) | {} | {} |",
            one.about.title, one.name, one.about.source, counts
        );
    }
    let file = root.join("experiments/README.md");
    std::fs::write(&file, text).with_context(|| format!("{}", file.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use crate::published::Published;
    use vlane_report::{Cell, Column, Spread, Table};

    use super::*;

    #[test]
    fn page_has_tables_without_charts() {
        let table = Table {
            caption: "What it came to".into(),
            columns: vec![Column::new("Load", ""), Column::new("CPU", "us")],
            rows: vec![vec!["null".into(), Cell::Number(2.5)]],
        };
        let section = Section {
            id: "verdicts".into(),
            title: "At the same load".into(),
            text: vec!["In words.".into()],
            command: None,
            blocks: vec![Block::Table(table)],
        };
        assert_eq!(
            tables_of(&section),
            "## At the same load\n\nIn words.\n\nWhat it came to:\n\n| Load | CPU (us) \
             |\n|---|---:|\n| null | 2.50 |\n\n"
        );
    }

    #[test]
    fn index_counts_the_experiments() {
        let row = |published: f64, here: Option<f64>| {
            let spread =
                |value: f64| Spread::of(&[value, value, value, value, value * 1.01]).unwrap();
            let here = here.map(|value| Interval::of(&spread(value))).ok_or_else(String::new);
            Row { figure: String::new(), published: Published::ratio(published), here }
        };
        let rows = [
            row(2.0, Some(2.1)),
            row(2.0, Some(9.0)),
            row(2.0, Some(0.5)),
            row(2.0, Some(1.0)),
            row(2.0, None),
        ];
        let goals = [Some(Within::All), Some(Within::None), Some(Within::Part), None];
        assert_eq!(
            counted(&rows, &goals),
            "2 same, 1 opposite, 1 unclear | 1 within, 3 not | 1 | 1 met, 1 not, 1 in part"
        );
        assert_eq!(counted(&[], &[]), " |  |  | ");
    }
}
