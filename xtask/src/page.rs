//! The page of an experiment, and the index of all.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use vlane_lab::report::{Block, Report, Section, Severity, Spread, svg_file};

use crate::claim::Outcome;
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
    if !about.claims.is_empty() {
        text += "## What agrees and what does not\n\n| published | then | here (min-max) | |\n|---|---|---|---|\n";
        for claim in &about.claims {
            let (here, verdict) = match claim.judge(report) {
                Outcome::Agrees(s) => (shown(s), "agrees"),
                Outcome::Differs(s) => (shown(s), "**differs**"),
                Outcome::Unclear(s) => (shown(s), "unclear: the spread is on both sides"),
                Outcome::NotMeasured => ("not measured".into(), ""),
            };
            let then = claim.published.map_or("in words".into(), number);
            let _ = writeln!(text, "| {} | {then} | {here} | {verdict} |", claim.says);
        }
        text += "\n";
    }
    if !about.discussion.trim().is_empty() {
        let _ = writeln!(text, "{}\n", about.discussion.trim());
    }
    if !pictures.is_empty() {
        let _ = write!(text, "## Figures\n\n{pictures}");
    }
    text
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

/// Writes `experiments/README.md`.
pub(crate) fn write_index(root: &Path, all: &[Experiment]) -> Result<()> {
    let mut text = format!(
        "{GENERATED}# Experiments\n\n\
         The figures and tables of the publications that vlane builds on, repeated. Each folder says what it asks, how to run it, what came\n\
         out last and where that agrees with the publication. `cargo xtask experiments` runs them all, `cargo xtask experiments NAME` one,\n\
         `--list` names them.\n\n\
         | experiment | source | agrees | differs | unclear | not measured |\n|---|---|---|---|---|---|\n"
    );
    for one in all {
        let mut counts = [0; 4];
        if let Ok(report) = Report::read(&one.source_of_result(all).join("result.json")) {
            for claim in &one.about.claims {
                counts[match claim.judge(&report) {
                    Outcome::Agrees(_) => 0,
                    Outcome::Differs(_) => 1,
                    Outcome::Unclear(_) => 2,
                    Outcome::NotMeasured => 3,
                }] += 1;
            }
        }
        let counts = counts.map(|n| n.to_string()).join(" | ");
        let _ = writeln!(
            text,
            "| [{}]({}/README.md) | {} | {counts} |",
            one.about.title, one.name, one.about.source
        );
    }
    let file = root.join("experiments/README.md");
    std::fs::write(&file, text).with_context(|| format!("{}", file.display()))
}
