//! The book names words, crates, files and functions that exist.

#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "another test's part of it")]
mod common;

use std::collections::BTreeSet;

const MAP: &str = "docs/src/architecture.md";
const GLOSSARY: &str = "docs/src/words.md";

/// The cells of each row of a page's tables, heads and rules left out.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = page.lines().collect();
    let is_rule = |at: usize| lines.get(at).is_some_and(|line| line.starts_with("|---"));
    let is_row = |at: &usize| lines[*at].starts_with('|') && !is_rule(*at) && !is_rule(*at + 1);
    let cells = |at: usize| lines[at].trim_matches('|').split('|').map(str::trim).collect();
    (0..lines.len()).filter(is_row).map(cells).collect()
}

/// The part of a page under a heading, up to the next one of the same depth.
fn part<'a>(page: &'a str, heading: &str) -> &'a str {
    let after = page.split_once(&format!("\n## {heading}\n")).unwrap().1;
    after.split("\n## ").next().unwrap()
}

/// The texts between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A page of the repository by its name, and the names and texts of all files.
fn read(page: &str) -> Option<(String, Vec<(String, String)>)> {
    match common::files() {
        Ok(files) => {
            let text = files.iter().find(|(name, _)| name == page).unwrap().1.clone();
            Some((text, files))
        }
        Err(error) => {
            vlane_testing::skip(error);
            None
        }
    }
}

/// A word as a pattern for its uses: lower case, without marks, singular.
fn stem(word: &str) -> String {
    let plain = word.trim_matches(['`', '*']).to_lowercase();
    plain.strip_suffix('y').unwrap_or(&plain).to_owned()
}

#[test]
fn glossary_words_are_used() {
    let Some((glossary, files)) = read(GLOSSARY) else { return };
    let is_page = |name: &str| name.starts_with("docs/") && name.ends_with(".md");
    let pages = files.iter().filter(|(name, _)| is_page(name) && name != GLOSSARY);
    // A line ends anywhere in a term of two words.
    let words = pages.flat_map(|(_, text)| text.split_whitespace()).collect::<Vec<_>>().join(" ");
    let book = words.to_lowercase();
    let terms: Vec<String> =
        rows(&glossary).iter().flat_map(|row| row[0].split(", ").map(stem)).collect();
    assert!(terms.len() >= 40, "only {} terms were found", terms.len());
    let unused: Vec<_> = terms.iter().filter(|term| !book.contains(&term[..])).collect();
    assert!(unused.is_empty(), "{GLOSSARY}: no other page uses {unused:?}");
    let different: BTreeSet<_> = terms.iter().collect();
    assert_eq!(different.len(), terms.len(), "{GLOSSARY}: a term has two meanings: {terms:?}");
}

#[test]
fn map_names_every_crate() {
    let Some((map, files)) = read(MAP) else { return };
    let of_crate = |name: &str| {
        let folder = name.strip_suffix("/Cargo.toml")?;
        let (house, name) = folder.split_once('/')?;
        (common::HOUSES.contains(&house) && !name.contains('/')).then(|| folder.to_owned())
    };
    let crates: BTreeSet<String> = files.iter().filter_map(|(name, _)| of_crate(name)).collect();
    let part = part(&map, "The crates");
    let table: BTreeSet<String> =
        rows(part).iter().map(|row| row[0].trim_matches('`').to_owned()).collect();
    let beside = part.split_once("Not in the picture:").unwrap().1;
    let beside: BTreeSet<String> = code(beside).map(str::to_owned).collect();
    let named = &table | &beside;
    let unknown: Vec<_> = table.difference(&crates).collect();
    let missing: Vec<_> = crates.difference(&named).collect();
    assert!(unknown.is_empty() && missing.is_empty(), "{MAP}: not there {unknown:?}, {missing:?}");
}

#[test]
fn map_names_existing_files_and_functions() {
    let Some((map, files)) = read(MAP) else { return };
    let now = map.split("\n### Former names\n").next().unwrap();
    let is_there = |path: &str| {
        files.iter().any(|(name, _)| match path.split_once('/') {
            Some((house, _)) if common::HOUSES.contains(&house) => name == path,
            Some((home, rest)) => *name == format!("vlane/{home}/src/{rest}"),
            None => name.ends_with(&format!("/{path}")),
        })
    };
    let sources = files.iter().filter(|(name, _)| common::is_of_a_crate(name));
    let functions: BTreeSet<&str> = sources
        .flat_map(|(_, text)| text.split("fn ").skip(1))
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
        .collect();
    let (mut paths, mut calls) = (0, 0);
    for name in code(now) {
        if name.ends_with(".rs") {
            assert!(is_there(name), "{MAP}: there is no {name}");
            paths += 1;
        } else if let Some((kind, function)) = name.split_once("::") {
            let is_variant = function.starts_with(|c: char| c.is_uppercase());
            assert!(is_variant || functions.contains(function), "{MAP}: {kind} has no {function}");
            calls += 1;
        }
    }
    assert!(paths >= 20 && calls >= 15, "only {paths} files and {calls} functions were found");
}
