//! Figures of README.md are those of stored experiments, or of the table of `docs/src/bench.md`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use serde::Deserialize;
use vlane_report::Report;

use crate::claim::{Place, measured};

/// Beginning of a row, the cell of its ratio, the experiment, and the two figures.
const STORED: &[(&str, &str, &str, &str, &str)] = &[
    (
        "fsync in a guest, loans alone: p99",
        "2.00 (1.59-2.43)",
        "together",
        r#"section = "waits", row = ["loans"], column = "fsync, p99""#,
        r#"section = "waits", row = ["nothing"], column = "fsync, p99""#,
    ),
    (
        "reads of 48 readers, all mechanisms combined",
        "0.92 (0.91-0.94)",
        "together",
        r#"section = "lose", row = ["all"], column = "readers""#,
        r#"section = "lose", row = ["nothing"], column = "readers""#,
    ),
    (
        "CPU time of other guests, all mechanisms combined",
        "0.94 (0.93-0.96)",
        "together",
        r#"section = "lose", row = ["all"], column = "other guests""#,
        r#"section = "lose", row = ["nothing"], column = "other guests""#,
    ),
    (
        "fsync in a guest, all mechanisms combined: median",
        "0.26 (0.24-0.31)",
        "together",
        r#"section = "waits", row = ["all"], column = "fsync, median""#,
        r#"section = "waits", row = ["nothing"], column = "fsync, median""#,
    ),
    (
        "mean response to I/O of one of 12 busy QEMU guests, loans, device of 50 ms",
        "0.21 (0.18-0.23)",
        "loan-guests-qemu",
        r#"section = "latency-50000us", row = ["defaults"], column = "mean response""#,
        r#"section = "latency-50000us", row = ["EEVDF"], column = "mean response""#,
    ),
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

#[test]
fn readme_has_figures_of_measurements() {
    let bench = results("docs/src/bench.md");
    for row in results("README.md") {
        let [about, vlane, other, ratio, word] = &row[..] else { panic!("{row:?}") };
        let Some((_, _, name, of, over)) =
            STORED.iter().find(|(begin, cell, ..)| about.starts_with(begin) && cell == ratio)
        else {
            let is_same = |other_row: &Vec<String>| {
                [&other_row[1], &other_row[3], &other_row[4]] == [vlane, ratio, word]
                    && figure(&other_row[2]) == figure(other)
            };
            assert!(bench.iter().any(is_same), "no stored figure: {row:?}");
            continue;
        };
        let report = read(&format!("experiments/{name}/result.json"));
        let report = Report::from_json(&report).unwrap();
        let places: Ratio = toml::from_str(&format!("of = {{{of}}}\nover = {{{over}}}")).unwrap();
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
