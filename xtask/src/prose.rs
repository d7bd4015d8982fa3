//! `cargo xtask prose`: counts how plain the English of comments and documents is, crate by crate.
//!
//! `xtask/prose.toml` holds the highest figures that each crate may have. They only fall.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::tidy::source;

/// The highest figures of each crate.
pub(crate) const FIGURES: &str = "xtask/prose.toml";
const OPENERS: &[&str] =
    &["what", "who", "whose", "whoever", "whatever", "whether", "nobody", "somebody", "everybody"];
/// Words that name no thing, in comments and documents.
const VAGUE: &[&str] = &[
    "what",
    "who",
    "whose",
    "whoever",
    "whatever",
    "somebody",
    "someone",
    "something",
    "anybody",
    "anyone",
    "anything",
    "nobody",
    "everybody",
    "everyone",
    "everything",
];
/// Words of a sentence, and columns of a line, at most.
const WORDS: usize = 25;
const COLUMNS: usize = 100;

/// The figures of a crate.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    sentences: usize,
    /// Sentences that begin with what, who, whose and the like.
    openers: usize,
    /// Sentences over 25 words.
    long: usize,
    /// Lines over 100 columns.
    wide: usize,
    /// Words like what, who and something, of 1,000.
    #[serde(default)]
    vague: f64,
    /// Words of a test's name, on the average.
    #[serde(default)]
    names: f64,
}

/// A quotient with one decimal, rounded up: so the kept figure is never below the true one.
fn tenths(part: usize, of: usize, per: f64) -> f64 {
    if of == 0 { 0.0 } else { (part as f64 / of as f64 * per * 10.0).ceil() / 10.0 }
}

/// Prints the table; `lower` writes the figures that fell.
///
/// # Errors
/// If the files cannot be read or written.
pub(crate) fn run(root: &Path, lower: bool) -> Result<()> {
    let files = source::files(root)?;
    let found = figures(&files);
    println!(
        "{:<20} {:>9} {:>7} {:>6} {:>6} {:>6} {:>6}",
        "crate", "sentences", "openers", "long", "wide", "vague", "names"
    );
    for (name, all) in &found {
        println!(
            "{name:<20} {:>9} {:>7} {:>6} {:>6} {:>6.1} {:>6.1}",
            all.sentences, all.openers, all.long, all.wide, all.vague, all.names
        );
    }
    if lower {
        std::fs::write(root.join(FIGURES), toml::to_string(&found)?).context(FIGURES)?;
    }
    Ok(())
}

/// The crates whose figures rose above the ones that are kept.
pub(crate) fn faults(files: &BTreeMap<String, String>) -> Vec<(String, usize, String)> {
    let kept: BTreeMap<String, Figures> =
        files.get(FIGURES).and_then(|text| toml::from_str(text).ok()).unwrap_or_default();
    let mut faults = Vec::new();
    for (name, now) in figures(files) {
        let Some(most) = kept.get(&name) else { continue };
        for (figure, now, most) in [
            ("openers", now.openers as f64, most.openers as f64),
            ("long", now.long as f64, most.long as f64),
            ("wide", now.wide as f64, most.wide as f64),
            ("vague words of 1,000", now.vague, most.vague),
            ("words of a test's name", now.names, most.names),
        ] {
            if now > most {
                faults.push((
                    FIGURES.to_owned(),
                    1,
                    format!("{name}: {now} {figure}, more than {most}: cargo xtask prose"),
                ));
            }
        }
    }
    faults
}

/// The figures by crate name; Markdown files count as `docs`.
fn figures(files: &BTreeMap<String, String>) -> BTreeMap<String, Figures> {
    let mut found: BTreeMap<String, Figures> = BTreeMap::new();
    // Vague words and all words; words of tests' names and tests.
    let mut counted: BTreeMap<String, [usize; 4]> = BTreeMap::new();
    for (name, text) in files {
        let is_page = name.ends_with(".md") && (name.starts_with("docs/") || !name.contains('/'));
        let of = match (is_page, name.ends_with(".rs")) {
            (true, _) => "docs".to_owned(),
            (_, true) => crate_of(files, name),
            _ => continue,
        };
        let all = found.entry(of.clone()).or_default();
        let [vague, words, in_names, tests] = counted.entry(of).or_default();
        for name in tests_of(text).filter(|_| !is_page) {
            *in_names += name.split('_').count();
            *tests += 1;
        }
        for line in text.lines().filter(|line| !is_row(line)) {
            all.wide += usize::from(line.chars().count() > COLUMNS);
        }
        for sentence in paragraphs(text, is_page).iter().flat_map(|text| sentences(text)) {
            let first = sentence.split_whitespace().next().unwrap_or_default().to_lowercase();
            all.sentences += 1;
            all.openers +=
                usize::from(OPENERS.contains(&first.trim_matches(|c: char| !c.is_alphabetic())));
            all.long += usize::from(sentence.split_whitespace().count() > WORDS);
            for word in sentence.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()) {
                *words += 1;
                *vague += usize::from(VAGUE.contains(&word.to_lowercase().as_str()));
            }
        }
    }
    for (of, [vague, words, in_names, tests]) in counted {
        let all = found.entry(of).or_default();
        all.vague = tenths(vague, words, 1000.0);
        all.names = tenths(in_names, tests, 1.0);
    }
    found
}

/// Names of the tests in a file: the functions after `#[test]`.
fn tests_of(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[test]\n").skip(1).filter_map(|rest| {
        let (_, name) = rest.split_once("fn ")?;
        name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    })
}

/// A row of a table cannot be broken, in a page or in a comment.
fn is_row(line: &str) -> bool {
    line.trim_start().trim_start_matches(['/', '!']).trim_start().starts_with('|')
}

/// The name of a file's crate, wherever its folder is.
fn crate_of(files: &BTreeMap<String, String>, name: &str) -> String {
    let home = name.match_indices('/').rev().map(|(at, _)| &name[..at]);
    let manifest = home.filter_map(|home| files.get(&format!("{home}/Cargo.toml"))).next();
    let line = manifest.and_then(|text| text.lines().find_map(|line| line.strip_prefix("name = ")));
    line.map_or("none", |name| name.trim_matches('"')).to_owned()
}

/// Paragraphs of a page, or of the comments in code; code, tables and headings are left out.
fn paragraphs(text: &str, is_page: bool) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut is_code = false;
    for line in text.lines() {
        let trimmed = line.trim_start();
        let prose = match is_page {
            true => (!line.starts_with("    ")).then_some(trimmed),
            false => {
                trimmed.strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']).trim())
            }
        };
        is_code ^= prose.is_some_and(|text| text.starts_with("```"));
        let prose = prose
            .filter(|text| !is_code && !text.is_empty() && !text.starts_with(['|', '#', '=', '`']));
        match prose {
            Some(text) if text.starts_with("- ") => all.push(text[2..].to_owned()),
            Some(text) => {
                if let Some(last) = all.last_mut() {
                    *last += " ";
                    *last += text;
                }
            }
            None => all.push(String::new()),
        }
    }
    all
}

fn sentences(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let words: Vec<&str> = text.split_whitespace().collect();
    for (at, word) in words.iter().enumerate() {
        let last = all.len() - 1;
        all[last] += &format!("{word} ");
        let ends = word.ends_with(['.', '!', '?', ':']);
        if ends
            && words
                .get(at + 1)
                .is_some_and(|next| next.starts_with(|c: char| c.is_uppercase() || c == '`'))
        {
            all.push(String::new());
        }
    }
    all.retain(|text| !text.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_counted_by_crate() {
        let long = "word ".repeat(30);
        let files: BTreeMap<String, String> = [
            ("a/b/Cargo.toml", "name = \"b\"".to_owned()),
            (
                "a/b/src/lib.rs",
                format!(
                    "//! What it is. It is\n//! plain: Whether or not.\n\n/// {long}\nfn f() {{}}\n\
                     #[test]\nfn f_returns() {{}}\n"
                ),
            ),
        ]
        .map(|(name, text)| (name.to_owned(), text))
        .into();
        let found = figures(&files);
        let figures =
            Figures { sentences: 4, openers: 2, long: 1, wide: 1, vague: 25.7, names: 2.0 };
        assert_eq!(found["b"], figures);
        let faults_over = |kept: Figures| {
            let kept = toml::to_string(&BTreeMap::from([("b", kept)])).expect("TOML");
            faults(&files.clone().into_iter().chain([(FIGURES.to_owned(), kept)]).collect()).len()
        };
        assert_eq!(faults_over(figures), 0);
        for risen in [
            Figures { openers: 1, ..figures },
            Figures { long: 0, ..figures },
            Figures { wide: 0, ..figures },
            Figures { vague: 25.6, ..figures },
            Figures { names: 1.9, ..figures },
        ] {
            assert_eq!(faults_over(risen), 1, "{risen:?}");
        }
    }
}
