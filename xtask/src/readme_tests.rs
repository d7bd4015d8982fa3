//! Figures of README.md, and of the table of `docs/src/bench.md`, are those of stored experiments.
//!
//! Its text may have other numbers only where they are no measurements.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use serde::Deserialize;
use vlane_report::{Block, Cell, Report};

use crate::claim::{Place, measured};

/// Beginning of a row, the cell of its ratio, the experiment, and the two figures.
const STORED: &[(&str, &str, &str, &str, &str)] = &[
    (
        "back end's CPU time per request, all mechanisms combined",
        "1.50 (1.26-1.77)",
        "together-rate",
        r#"section = "pays", row = ["all"], column = "back end, each request""#,
        r#"section = "pays", row = ["nothing"], column = "back end, each request""#,
    ),
    (
        "CPU time of other guests, all mechanisms combined",
        "0.95 (0.93-0.99)",
        "together-rate",
        r#"section = "lose", row = ["all"], column = "other guests""#,
        r#"section = "lose", row = ["nothing"], column = "other guests""#,
    ),
    (
        "fsync in a guest, all mechanisms combined: median",
        "0.37 (0.28-0.75)",
        "together-rate",
        r#"section = "waits", row = ["all"], column = "fsync, median""#,
        r#"section = "waits", row = ["nothing"], column = "fsync, median""#,
    ),
    (
        "mean response to I/O of one of 12 busy QEMU guests, loans, device of 50 ms",
        "0.12 (0.10-0.14)",
        "loan-guests-qemu",
        r#"section = "latency-50000us", row = ["defaults"], column = "mean response""#,
        r#"section = "latency-50000us", row = ["EEVDF"], column = "mean response""#,
    ),
];

/// Sentences of the text with a ratio in the place of `{}`, the experiment, and the two figures.
const STORED_IN_TEXT: &[(&str, &str, &str, &str)] = &[
    (
        "With all mechanisms, an fsync takes {} of the time",
        "together-rate",
        r#"section = "waits", row = ["all"], column = "fsync, median""#,
        r#"section = "waits", row = ["nothing"], column = "fsync, median""#,
    ),
    (
        "a program starts in {} of it",
        "together-rate",
        r#"section = "waits", row = ["all"], column = "launch, median""#,
        r#"section = "waits", row = ["nothing"], column = "launch, median""#,
    ),
    (
        "The back end pays {} of the CPU time for a request",
        "together-rate",
        r#"section = "pays", row = ["all"], column = "back end, each request""#,
        r#"section = "pays", row = ["nothing"], column = "back end, each request""#,
    ),
    (
        "the other guests have {} of theirs",
        "together-rate",
        r#"section = "lose", row = ["all"], column = "other guests""#,
        r#"section = "lose", row = ["nothing"], column = "other guests""#,
    ),
];

/// Numbers of the text that are no measurements, with their words.
const CONDITIONS: &[&str] = &[
    "You need Linux 6.1 or later and a Rust toolchain (1.88 or later,",
    "Debian 12's qemu-storage-daemon 7.2 with",
    "Apache-2.0 or MIT",
];

#[derive(Deserialize)]
struct Ratio {
    of: Place,
    over: Place,
}

fn read(file: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(file)).unwrap()
}

/// Cells of the rows of the first table below `## Results`.
fn results(file: &str) -> Vec<Vec<String>> {
    let text = read(file);
    let (_, text) = text.split_once("\n## Results\n").unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with("|--"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

/// Numbers and letters of a cell without words in brackets.
fn figure(cell: &str) -> &str {
    cell.split(" (").next().unwrap()
}

/// A stored report, and two places in it.
fn stored(name: &str, of: &str, over: &str) -> (Report, Ratio) {
    let report = read(&format!("experiments/{name}/result.json"));
    let places = toml::from_str(&format!("of = {{{of}}}\nover = {{{over}}}")).unwrap();
    (Report::from_json(&report).unwrap(), places)
}

/// A page's text in one line, without tables, code and the targets of links.
fn text_of(page: &str) -> String {
    let is_text = |line: &&str| !line.starts_with('|') && !line.starts_with("    ");
    let text = page.lines().filter(is_text).collect::<Vec<_>>().join(" ");
    let text = text.split('`').step_by(2).collect::<Vec<_>>().join("`");
    let mut parts = text.split("](");
    let first = parts.next().unwrap().to_owned();
    let rests = parts.map(|part| part.split_once(')').map_or("", |(_, rest)| rest));
    rests.fold(first, |text, rest| text + "]" + rest)
}

/// Faults of a page's text: sentences that are not in it, and a number that no sentence has.
fn faults(page: &str) -> Vec<String> {
    let measured_sentences = STORED_IN_TEXT.iter().map(|(sentence, name, of, over)| {
        let (report, places) = stored(name, of, over);
        let interval = measured(&places.of, Some(&places.over), &report).unwrap();
        assert!(!interval.is_unpaired && interval.is_decisive(), "{sentence}");
        sentence.replace("{}", &format!("{:.2}", interval.middle))
    });
    let conditions = CONDITIONS.iter().map(|&sentence| sentence.to_owned());
    let mut text = text_of(page);
    let mut faults = Vec::new();
    for sentence in measured_sentences.chain(conditions) {
        match text.split_once(&sentence) {
            Some((before, after)) => text = before.to_owned() + after,
            None => faults.push(sentence),
        }
    }
    let is_number = |word: &&str| word.contains(|c: char| c.is_ascii_digit());
    faults.extend(text.split_whitespace().filter(is_number).map(str::to_owned));
    faults
}

#[test]
fn readme_text_has_figures_of_measurements() {
    let readme = read("README.md");
    assert_eq!(faults(&readme), [""; 0]);
    let (_, rest) = readme.split_once("an fsync takes ").unwrap();
    let sentence = format!("an fsync takes {} of the time", rest.split(' ').next().unwrap());
    let changed = readme.replace(&sentence, "an fsync takes 0.999 of the time");
    assert_eq!(faults(&changed), [format!("With all mechanisms, {sentence}").as_str(), "0.999"]);
    let added = readme.replace("## Licence", "It is 3 times as fast.\n\n## Licence");
    assert_eq!(faults(&added), ["3"]);
}

/// The verdicts of the stored comparison with peers, as text.
fn verdicts() -> Vec<Vec<String>> {
    let report = Report::from_json(&read("experiments/peers/result.json")).unwrap();
    let section = report.sections.iter().find(|section| section.id == "verdicts").unwrap();
    let Block::Table(table) = &section.blocks[0] else { panic!("a table") };
    let text = |cell: &Cell| if let Cell::Text(text) = cell { text.clone() } else { panic!() };
    table.rows.iter().map(|row| row.iter().map(text).collect()).collect()
}

/// True if a row of a page has the figures and the verdict of a stored comparison.
fn is_stored(row: &[String], verdicts: &[Vec<String>]) -> bool {
    let [_, vlane, other, ratio, word] = row else { panic!("{row:?}") };
    verdicts.iter().any(|verdict| {
        [&verdict[2], &verdict[4]] == [vlane, ratio]
            && figure(&verdict[3]) == figure(other)
            && verdict[5].starts_with(word)
    })
}

#[test]
fn bench_table_has_stored_figures() {
    let verdicts = verdicts();
    let rows = results("docs/src/bench.md");
    assert!(rows.len() >= 10);
    for mut row in rows {
        assert!(is_stored(&row, &verdicts), "no stored figure: {row:?}");
        row[1].insert(0, '1');
        assert!(!is_stored(&row, &verdicts), "{row:?}");
    }
}

#[test]
fn readme_has_figures_of_measurements() {
    let verdicts = verdicts();
    for row in results("README.md") {
        let [about, vlane, other, ratio, _] = &row[..] else { panic!("{row:?}") };
        let Some((_, _, name, of, over)) =
            STORED.iter().find(|(begin, cell, ..)| about.starts_with(begin) && cell == ratio)
        else {
            assert!(is_stored(&row, &verdicts), "no stored figure: {row:?}");
            continue;
        };
        let (report, places) = stored(name, of, over);
        let interval = measured(&places.of, Some(&places.over), &report).unwrap();
        assert!(!interval.is_unpaired && interval.is_decisive(), "{about}");
        let [middle, low, high] = [interval.middle, interval.low, interval.high];
        assert_eq!(*ratio, format!("{middle:.2} ({low:.2}-{high:.2})"), "{about}");
        for (cell, place) in [(vlane, &places.of), (other, &places.over)] {
            let value = measured(place, None, &report).unwrap().middle;
            let is_named = !cell.contains(|c: char| c.is_ascii_digit());
            assert!(is_named || figure(cell) == format!("{value:.1} ms"), "{about}: {cell}");
        }
    }
}
