//! The page that says what of the publications is repeated: every figure is there, with a state, a
//! command of vlane's and what it left.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::path::Path;

const PAGE: &str = include_str!("../../../docs/src/coverage.md");

/// Every figure and table with results, by the heading of its publication.
const FIGURES: [(&str, &[&str]); 5] = [
    (
        "Multi-queue I/O",
        &["Figure 1", "Section 2.1, lock wait", "Figure 3", "Figure 4", "Figure 5", "Figure 6"],
    ),
    ("The journal and the page cache", &["Figure 2", "Figure 3", "Figure 4a", "Figure 4b"]),
    (
        "The foreground first",
        &["Figure 4a", "Figure 4b", "Figure 4c", "Section 4, background", "Figure 5"],
    ),
    ("Loans", &["Table 6", "Figure 5", "Figure 6", "Figures 7-9", "Table 7"]),
    (
        "virtio, measured",
        &[
            "iozone, 4K",
            "iozone, 4096K",
            "iozone, 16384K",
            "iozone, hard disk",
            "fio 1",
            "fio 2",
            "Function calls",
        ],
    ),
];

const STATES: [&str; 6] =
    ["measured", "measured in part", "simulated", "model", "not possible", "not measured yet"];

struct Row {
    publication: String,
    figure: String,
    state: String,
    what: String,
    command: String,
    result: String,
}

/// The rows of the tables under headings; the table of the states stands above them.
fn rows() -> Vec<Row> {
    let mut publication = String::new();
    let mut all = Vec::new();
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            publication = heading.to_owned();
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if publication.is_empty()
            || !line.starts_with('|')
            || line.starts_with("|---")
            || cells[0] == "figure"
        {
            continue;
        }
        let [figure, state, what, command, result] = cells[..] else {
            panic!("five cells, not `{line}`")
        };
        all.push(Row {
            publication: publication.clone(),
            figure: figure.into(),
            state: state.into(),
            what: what.into(),
            command: command.into(),
            result: result.into(),
        });
    }
    all
}

#[test]
fn figures_have_rows_and_rows_have_states() {
    let rows = rows();
    for (publication, figures) in FIGURES {
        for figure in figures {
            let found = rows
                .iter()
                .filter(|row| row.publication == publication && row.figure == *figure)
                .count();
            assert_eq!(found, 1, "{publication}: {figure}");
        }
    }
    for Row { publication, figure, state, what, .. } in &rows {
        assert!(STATES.contains(&state.as_str()), "{publication}, {figure}: `{state}` is no state");
        assert!(PAGE.contains(&format!("\n| {state} | ")), "the page does not explain `{state}`");
        assert!(!what.is_empty(), "{publication}, {figure}: nothing is said");
        let is_known = FIGURES.iter().any(|(of, figures)| {
            of == publication
                && figures
                    .iter()
                    .any(|known| figure == known || *figure == format!("{known}, live"))
        });
        assert!(is_known, "{publication}, {figure}: in no publication");
    }
}

#[test]
fn each_row_names_a_valid_command() {
    for Row { figure, command, .. } in rows() {
        let words = command.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        let words: Vec<&str> =
            words.unwrap_or_else(|| panic!("{figure}: no command: {command}")).split(' ').collect();
        assert_eq!(words[0], "vlane-lab", "{figure}");
        if let Err(error) = vlane_lab::command().try_get_matches_from(&words) {
            panic!("{figure}: `{command}`: {error}");
        }
    }
}

#[test]
fn stored_results_can_be_read() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src");
    for Row { figure, state, result, .. } in rows() {
        let Some((_, link)) = result.split_once("](") else {
            let is_without = ["not possible", "not measured yet"].contains(&state.as_str());
            assert!(result == "none" && is_without, "{figure}");
            continue;
        };
        let file = pages.join(link.trim_end_matches(')'));
        let report =
            vlane_report::Report::read(&file).unwrap_or_else(|error| panic!("{figure}: {error}"));
        assert!(!report.sections.is_empty(), "{figure}: {} has nothing in it", file.display());
    }
}

#[test]
fn first_picture_matches_last_measurement() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read(root.join(path)).unwrap();
    let (book, measured) = ("docs/src/together.svg", "experiments/together/together-1.svg");
    assert!(read(book) == read(measured), "cp {measured} {book}");
}
