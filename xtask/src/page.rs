//! The page of an experiment, and the index of all.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use vlane_report::machine::{Load, Storage};
use vlane_report::{Block, Report, Section, Severity, markdown, svg_file};

use crate::claim::Within;
use crate::experiment::Experiment;
use crate::picture;
use crate::published::{self, Direction, Row};
use crate::texts::shown;

const GENERATED: &str =
    "<!-- Made by `cargo xtask experiments`; what is written by hand is in experiment.toml. -->\n";

/// A page of an experiment, and its pictures.
pub(crate) struct Page {
    pub(crate) text: String,
    /// Names of files, and their contents.
    pub(crate) pictures: BTreeMap<String, String>,
}

/// Writes the page and the charts of one experiment.
pub(crate) fn write(one: &Experiment, all: &[Experiment], report: Option<&Report>) -> Result<()> {
    let page = Page::of(one, all, report)?;
    remove_old_charts(&one.folder)?;
    let page_file = [("README.md".to_owned(), page.text)];
    for (name, content) in page.pictures.into_iter().chain(page_file) {
        let file = one.folder.join(name);
        std::fs::write(&file, content).with_context(|| format!("{}", file.display()))?;
    }
    Ok(())
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

impl Page {
    /// The page of an experiment: answer, picture and figures first, then how it was measured.
    pub(crate) fn of(
        one: &Experiment,
        all: &[Experiment],
        report: Option<&Report>,
    ) -> Result<Self> {
        let about = &one.about;
        let mut page = Self { text: GENERATED.into(), pictures: BTreeMap::new() };
        let Some(report) = report else {
            let _ = writeln!(page.text, "# {}: not measured yet\n", about.title);
            page.text += &method(one, all, None);
            return Ok(page);
        };
        let first = page.add_answer(one, report)?;
        page.text += &figures(one, report);
        let discussion = one.filled("discussion", &about.discussion, report)?;
        if !discussion.is_empty() {
            let _ = writeln!(page.text, "## Discussion\n\n{discussion}\n");
        }
        for section in report.sections.iter().filter(|section| about.tables.contains(&section.id)) {
            page.text += &tables_of(section);
        }
        page.text += &method(one, all, Some(report));
        page.add_charts(one, report, &first);
        Ok(page)
    }

    /// Adds the answer, the first picture and the warnings; returns the picture's name.
    fn add_answer(&mut self, one: &Experiment, report: &Report) -> Result<String> {
        let about = &one.about;
        let text = &mut self.text;
        match one.filled("answer", &about.answer, report)? {
            answer if answer.is_empty() => {
                let _ = writeln!(text, "# {}\n", about.title);
            }
            answer => {
                let lead = one.filled("lead", &about.lead, report)?;
                let _ = writeln!(text, "# {answer}\n\n{lead}\n");
            }
        }
        if let Some(reason) = report.disturbance() {
            let _ = writeln!(text, "**Inconclusive:** {reason}.\n");
        }
        let mut first = String::new();
        if let Some(picture) = &about.picture {
            let drawn = picture.drawn(&about.named(report));
            let (name, caption, svg) = drawn.with_context(|| one.place("picture"))?;
            let _ = writeln!(text, "{}", shown_picture(&name, &caption));
            self.pictures.insert(format!("{name}.svg"), svg);
            first = name;
        }
        for note in report.notes.iter().filter(|note| note.severity == Severity::Warning) {
            let _ = writeln!(text, "> {}\n", note.text);
        }
        Ok(first)
    }

    /// Adds the other charts of the experiment's sections.
    fn add_charts(&mut self, one: &Experiment, report: &Report, first: &str) {
        let ids = &one.about.sections;
        let is_own = |section: &str| ids.is_empty() || ids.iter().any(|id| id == section);
        let others = picture::charts(report)
            .filter(|(section, name, _)| is_own(section) && name != first)
            .collect::<Vec<_>>();
        if !others.is_empty() {
            self.text += "## Figures\n\n";
        }
        for (_, name, chart) in others {
            let _ = writeln!(self.text, "{}", shown_picture(&name, &chart.caption));
            self.pictures.insert(format!("{name}.svg"), svg_file(chart));
        }
    }
}

/// The line that shows a picture.
fn shown_picture(name: &str, caption: &str) -> String {
    format!("![{}]({name}.svg)\n", caption.replace(['[', ']'], ""))
}

/// The figures of an experiment: published ones, goals, and the report's summary.
fn figures(one: &Experiment, report: &Report) -> String {
    let about = &one.about;
    let mut text = String::new();
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
                    (shown(&here, None), format!("inconclusive: {reason}"))
                }
                (Some((here, within)), None) => (shown(&here, None), within.word().into()),
                (None, _) => ("not measured".into(), String::new()),
            };
            let _ = writeln!(text, "| {} | {} | {here} | {outcome} |", goal.says, goal.bounds());
        }
        text += "\n";
    }
    if !about.tables.is_empty() && !report.summary.is_empty() {
        text += "## Summary\n\n";
        for sentence in &report.summary {
            let _ = writeln!(text, "- {sentence}");
        }
        text += "\n";
    }
    text
}

/// The question, the method, the command and the last result.
fn method(one: &Experiment, all: &[Experiment], report: Option<&Report>) -> String {
    let about = &one.about;
    let mut text = format!(
        "## The experiment\n\n**{}.** Source: {}.\n\n**Question.** {}\n\n**Method.** {}\n\n",
        about.title,
        about.source,
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
    text + &report.map(|report| last_result(report, &folder)).unwrap_or_default()
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
    let file = root.join("experiments/README.md");
    std::fs::write(&file, index(all)?).with_context(|| format!("{}", file.display()))
}

/// The index: all answers, then all counts.
fn index(all: &[Experiment]) -> Result<String> {
    let mut answers = String::new();
    let mut table = String::new();
    for one in all {
        let report = one.report(all)?;
        let about = &one.about;
        let (answer, counts) = match &report {
            Some(report) => {
                let answer = one.filled("answer", &about.answer, report)?;
                let rows: Vec<_> = about.figures.iter().map(|figure| figure.row(report)).collect();
                let goals = about.goals.iter().map(|goal| Some(goal.judge(report)?.1));
                match report.disturbance() {
                    Some(_) => (answer, "inconclusive | | | ".into()),
                    None => (answer, counted(&rows, &goals.collect::<Vec<_>>())),
                }
            }
            None => ("not measured yet".into(), " | | | ".into()),
        };
        let link = format!("[{}]({}/README.md)", about.title, one.name);
        let _ = writeln!(answers, "- {link}: {answer}");
        let _ = writeln!(table, "| {link} | {} | {counts} |", about.source);
    }
    Ok(format!(
        "{GENERATED}# Experiments\n\nThe figures and tables of the publications that vlane builds \
         on, repeated. Each page begins with the answer.\n`cargo xtask experiments` runs them \
         all, `cargo xtask experiments NAME` one, `--list` names them.\n\n## Answers\n\n{answers}\n\
         ## Comparison with the publications\n\n{}\n\nGoals are vlane's own, and no published \
         figures.\n\n| experiment | source | direction | size | not measured | our own goals \
         |\n|---|---|---|---|---|---|\n{table}",
        published::LEGEND
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use crate::published::{Interval, Published};
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
