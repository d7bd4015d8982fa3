//! The page of an experiment, and the index of all.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use vlane_report::{Block, Report, Section, Severity, Spread, markdown, svg_file};

use crate::claim::{Claim, Outcome, Within};
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
    let _ =
        writeln!(text, "**Question.** {}\n\n**Method.** {}\n", about.question.trim(), about.method.trim());
    let (folder, from) = match &about.uses {
        Some(used) => (format!("../{used}/"), format!(" (shared with [{used}](../{used}/README.md))")),
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
    let machine = &report.machine;
    let versions: Vec<_> =
        machine.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let hypervisor = match machine.hypervisor.as_str() {
        "" => String::new(),
        name => format!(", itself a virtual machine ({name})"),
    };
    let _ = writeln!(
        text,
        "**Last result.** [{0}result.json]({0}result.json), {1}; {2} CPUs ({3}), {4} GiB, Linux {5}{hypervisor}; {6}.\n",
        folder,
        report.created.get(..10).unwrap_or(&report.created),
        machine.cpus,
        machine.cpu,
        machine.memory_mib.div_ceil(1024),
        machine.kernel,
        versions.join(", ")
    );
    for note in report.notes.iter().filter(|note| note.severity == Severity::Warning) {
        let _ = writeln!(text, "> {}\n", note.text);
    }
    if !about.tables.is_empty() {
        for sentence in &report.summary {
            let _ = writeln!(text, "- {sentence}");
        }
        text += "\n";
    }
    if !about.claims.is_empty() {
        text += "## Then and here\n\n\
                 Direction: whether a ratio is on the same side of 1 as the published one. Size: the figure here over the published one. Bounds are\n\
                 ours.\n\n\
                 | figure | published | here (min-max) | compared |\n|---|---|---|---|\n";
        for claim in &about.claims {
            let (here, verdict) = match claim.judge(report) {
                Some(outcome) => (shown(outcome.here), compared(claim, outcome)),
                None => ("not measured".into(), String::new()),
            };
            let then = claim.published.map_or("in words".into(), number);
            let _ = writeln!(text, "| {} | {then} | {here} | {verdict} |", claim.says);
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

/// `same direction, 0.54 of the size`; with bounds, whether they hold.
fn compared(claim: &Claim, outcome: Outcome) -> String {
    let mut words = Vec::new();
    words.extend(outcome.direction.map(|direction| match direction {
        Within::All => "same direction".to_owned(),
        Within::None => "**other direction**".to_owned(),
        Within::Part => "direction unclear: the spread is on both sides of 1".to_owned(),
    }));
    words.extend(outcome.size.map(|size| format!("{} of the size", number(size))));
    let bounds = match (claim.at_least, claim.at_most) {
        (Some(low), Some(high)) => format!("within {} to {}", plain(low), plain(high)),
        (Some(low), None) => format!("at least {}", plain(low)),
        (None, Some(high)) => format!("at most {}", plain(high)),
        (None, None) => String::new(),
    };
    words.extend(outcome.bounds.map(|within| match within {
        Within::All => bounds,
        Within::None => format!("**not** {bounds}"),
        Within::Part => format!("only a part of the spread {bounds}"),
    }));
    words.join(", ")
}

/// A bound as it was given.
fn plain(value: f64) -> String {
    format!("{value}")
}

/// `2.55 (2.40-2.61)`.
fn shown(spread: Spread) -> String {
    if spread.runs < 2 {
        return number(spread.median);
    }
    format!("{} ({}-{})", number(spread.median), number(spread.min), number(spread.max))
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

/// The cells of the index about an experiment: directions, sizes, bounds, what was not measured.
fn counted(outcomes: &[Option<Outcome>]) -> String {
    let measured = || outcomes.iter().flatten();
    let count = |of: fn(&Outcome) -> Option<Within>, names: [&str; 3]| {
        let all = [Within::All, Within::None, Within::Part];
        let words = all.into_iter().zip(names).filter_map(|(within, name)| {
            let n = measured().filter(|outcome| of(outcome) == Some(within)).count();
            (n > 0).then(|| format!("{n} {name}"))
        });
        words.collect::<Vec<_>>().join(", ")
    };
    let sizes: Vec<f64> = measured().filter_map(|outcome| outcome.size).collect();
    let size = match sizes.len() {
        0 => String::new(),
        1 => number(sizes[0]),
        _ => {
            let end =
                |pick: fn(f64, f64) -> f64| sizes.iter().copied().reduce(pick).map_or(String::new(), number);
            format!("{} to {}", end(f64::min), end(f64::max))
        }
    };
    let missing = outcomes.iter().filter(|outcome| outcome.is_none()).count();
    let missing = if missing == 0 { String::new() } else { missing.to_string() };
    [
        count(|outcome| outcome.direction, ["same", "other", "unclear"]),
        size,
        count(|outcome| outcome.bounds, ["within", "not", "in part"]),
        missing,
    ]
    .join(" | ")
}

/// Writes `experiments/README.md`.
pub(crate) fn write_index(root: &Path, all: &[Experiment]) -> Result<()> {
    let mut text = format!(
        "{GENERATED}# Experiments\n\n\
         The figures and tables of the publications that vlane builds on, repeated. Each folder says what it asks, how to run it, what came\n\
         out last and how that compares with the publication. `cargo xtask experiments` runs them all, `cargo xtask experiments NAME` one,\n\
         `--list` names them.\n\n\
         Direction: ratios on the same side of 1 as the published ones, on the other, on both within their spread. Size: the figures here over\n\
         the published ones, the smallest and the largest. Bounds: figures within bounds of ours, not within, in part.\n\n\
         | experiment | source | direction | size | bounds | not measured |\n|---|---|---|---|---|---|\n"
    );
    for one in all {
        let report = Report::read(&one.source_of_result(all).join("result.json"));
        let outcomes: Vec<_> = match &report {
            Ok(report) => one.about.claims.iter().map(|claim| claim.judge(report)).collect(),
            Err(_) => Vec::new(),
        };
        // What was not measured yet has no page.
        let page = if report.is_ok() { "README.md" } else { "experiment.toml" };
        let _ = writeln!(
            text,
            "| [{}]({}/{page}) | {} | {} |",
            one.about.title,
            one.name,
            one.about.source,
            counted(&outcomes)
        );
    }
    let file = root.join("experiments/README.md");
    std::fs::write(&file, text).with_context(|| format!("{}", file.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use vlane_report::{Cell, Column, Table};

    use super::*;

    fn outcome(direction: Within, size: f64, bounds: Option<Within>) -> Outcome {
        Outcome { here: Spread::of(&[1.0]).unwrap(), direction: Some(direction), size: Some(size), bounds }
    }

    #[test]
    fn direction_and_size_are_told_apart() {
        let claim = |more: &str| -> Claim {
            let text =
                format!("says = \"x\"\npublished = 2.55\n{more}\nof = {{ section = \"s\", column = \"c\" }}");
            toml::from_str(&text).unwrap()
        };
        let words = compared(&claim(""), outcome(Within::All, 1.37 / 2.55, None));
        assert_eq!(words, "same direction, 0.54 of the size");
        let words =
            compared(&claim("at_least = 2\nat_most = 3"), outcome(Within::None, 0.3, Some(Within::None)));
        assert_eq!(words, "**other direction**, 0.30 of the size, **not** within 2 to 3");
        let words = compared(&claim("at_least = 2"), outcome(Within::All, 1.0, Some(Within::All)));
        assert_eq!(words, "same direction, 1.00 of the size, at least 2");
    }

    #[test]
    fn a_sections_tables_stand_on_the_page_and_its_charts_do_not() {
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
            "## At the same load\n\nIn words.\n\nWhat it came to:\n\n| Load | CPU (us) |\n|---|---:|\n| null | 2.50 |\n\n"
        );
    }

    #[test]
    fn the_index_counts_what_there_is() {
        let all = [
            Some(outcome(Within::All, 0.5, None)),
            Some(outcome(Within::All, 1.5, Some(Within::All))),
            Some(outcome(Within::Part, 0.9, Some(Within::None))),
            None,
        ];
        assert_eq!(counted(&all), "2 same, 1 unclear | 0.50 to 1.50 | 1 within, 1 not | 1");
        assert_eq!(counted(&[]), " |  |  | ");
    }
}
