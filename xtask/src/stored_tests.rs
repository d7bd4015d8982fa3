//! Pages and texts of the stored experiments agree with their results.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;

use crate::experiment::Experiment;
use crate::page::Page;

/// Longest answer and lead, in characters: on a phone (390 by 844 pixels) both leave room for the
/// picture.
const ANSWER: usize = 125;
const LEAD: usize = 300;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A text without its placeholders and tables.
fn own_words(text: &str) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('|')).collect();
    let text = lines.join(" ");
    let mut parts = text.split('{');
    let first = parts.next().unwrap().to_owned();
    first + &parts.map(|part| part.split_once('}').unwrap().1).collect::<String>()
}

/// Numbers with a decimal point.
fn decimals(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    words.map(|word| word.trim_matches('.')).filter(|word| word.contains('.')).collect()
}

#[test]
fn pages_show_stored_results() {
    let all = Experiment::all(root()).unwrap();
    let read = |file: &Path| std::fs::read_to_string(file).unwrap_or_default();
    for one in &all {
        let page = Page::of(one, &all, one.report(&all).unwrap().as_ref()).unwrap();
        let again = format!("remake it with `cargo xtask experiments --pages {}`", one.name);
        assert!(read(&one.folder.join("README.md")) == page.text, "README.md is old; {again}");
        for (name, content) in &page.pictures {
            assert!(read(&one.folder.join(name)) == *content, "{name} is old; {again}");
        }
    }
}

/// Pages on disk are up to date by the test above.
#[test]
fn results_have_short_answers() {
    let all = Experiment::all(root()).unwrap();
    let index = std::fs::read_to_string(root().join("experiments/README.md")).unwrap();
    for one in &all {
        let name = &one.name;
        let page = std::fs::read_to_string(one.folder.join("README.md")).unwrap();
        let mut parts = page.split("\n\n");
        let (_, answer) = parts.next().unwrap().split_once("\n# ").unwrap();
        if !one.source_of_result(&all).join("result.json").is_file() {
            assert!(answer.ends_with(": not measured yet"), "{name}");
            continue;
        }
        assert!(index.contains(&format!("]({name}/README.md): {answer}\n")), "{name}: old index");
        let (lead, picture) = (parts.next().unwrap().replace('\n', " "), parts.next().unwrap());
        let is_answered = !one.about.answer.is_empty() && picture.starts_with("![");
        assert!(is_answered, "{name}: give answer, lead and picture");
        let lengths = (answer.chars().count(), lead.chars().count());
        assert!(lengths.0 <= ANSWER && lengths.1 <= LEAD, "{name}: {lengths:?}");
        let sentences = lead.matches(". ").count() + usize::from(lead.ends_with('.'));
        assert!((1..=2).contains(&sentences), "{name}: {sentences} sentences in the lead");
    }
}

/// A decimal in a text is a placeholder's, or a condition or published figure of the description.
#[test]
fn texts_have_no_figures_of_their_own() {
    let mut own = Vec::new();
    for one in Experiment::all(root()).unwrap() {
        let about = &one.about;
        let file = std::fs::read_to_string(one.folder.join("experiment.toml")).unwrap();
        let (_, published) = file.split_once("\n[[").unwrap_or_default();
        let known = [about.method.as_str(), about.question.as_str(), published].join(" ");
        for (key, text) in
            [("answer", &about.answer), ("lead", &about.lead), ("discussion", &about.discussion)]
        {
            let words = own_words(text);
            let new = decimals(&words)
                .difference(&decimals(&known))
                .map(ToString::to_string)
                .collect::<Vec<_>>();
            own.extend(new.iter().map(|decimal| format!("{}: {key}: {decimal}", one.name)));
        }
    }
    assert_eq!(own, [""; 0]);
}

#[test]
fn decimals_of_own_words_are_found() {
    let text = "It has {value a} and 2.5 times.\n| 1.5 |\nVersion 3, {goal 1} of 0.25.";
    assert_eq!(decimals(&own_words(text)), BTreeSet::from(["2.5", "0.25"]));
}
