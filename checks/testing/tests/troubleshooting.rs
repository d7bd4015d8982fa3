//! The manual's page on messages quotes what the program says: each quoted text stands in the
//! source.

#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "another test's part of it")]
mod common;

use common::{files, root};

/// The quoted texts of the first cells of the page's tables.
fn quoted(page: &str) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| message"));
    let cells = rows.map(|row| row.split(" | ").next().unwrap().to_owned());
    // Every second part lies between backquotes. The words of another program are in a cell that
    // begins with a bracket.
    let ours = cells.filter(|cell| !cell.starts_with("| ("));
    ours.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// The program's source, with string literals over several lines in one.
fn source() -> String {
    let files = files().unwrap();
    let code = files.into_iter().filter(|(name, _)| {
        common::is_of_a_crate(name) && name.contains("/src/") && name.ends_with(".rs")
    });
    let mut all = String::new();
    for (_, text) in code {
        for line in text.lines() {
            match line.strip_suffix('\\') {
                // The next line continues without its indentation.
                Some(begun) => all.push_str(begun.trim_start()),
                None => {
                    all.push_str(line.trim_start());
                    all.push('\n');
                }
            }
        }
    }
    all
}

#[test]
fn quoted_messages_stand_in_the_source() {
    let page = std::fs::read_to_string(root().join("docs/src/troubleshooting.md")).unwrap();
    let (quoted, source) = (quoted(&page), source());
    assert!(quoted.len() > 30, "{quoted:?}");
    let missing: Vec<_> = quoted.iter().filter(|text| !source.contains(text.as_str())).collect();
    assert!(missing.is_empty(), "no message of the program's has these words: {missing:#?}");
}
