use proptest::prelude::*;

use super::*;
use crate::{Cell, Point, Spread, example};

#[test]
fn other_versions_and_files_are_refused() {
    let json = example::report().to_json().unwrap();
    for (text, words) in [
        (json.replace("vlane-report/1", "vlane-report/2"), "`vlane-report/2`"),
        ("{\"row\": 1}".to_string(), "names no schema"),
        ("[1, 2]".to_string(), "no JSON object"),
        ("nothing".to_string(), "no JSON object"),
        ("<!DOCTYPE html><html></html>".to_string(), "no JSON object"),
        (format!("{{\"schema\": \"{SCHEMA}\"}}"), "damaged"),
    ] {
        let error = Report::from_json(&text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Format);
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn missing_numbers_survive_as_null() {
    let spread = Spread { median: f64::NAN, min: f64::INFINITY, max: 1.0, runs: 2 };
    let point = Point { x: f64::NEG_INFINITY, y: spread };
    let json = serde_json::to_string(&point).unwrap();
    assert_eq!(json, r#"{"x":null,"y":{"median":null,"min":null,"max":1.0,"runs":2}}"#);
    let back: Point = serde_json::from_str(&json).unwrap();
    assert!(back.x.is_nan() && back.y.median.is_nan() && back.y.runs == 2);
    let cells: Vec<Cell> =
        serde_json::from_str("[null, 1, \"x\", {\"median\":1,\"min\":1,\"max\":1,\"runs\":1}]")
            .unwrap();
    assert!(matches!(cells[..], [Cell::Empty, Cell::Number(_), Cell::Text(_), Cell::Figure(_)]));
}

#[test]
fn file_name_decides_the_format() {
    let report = example::report();
    for (name, start) in [
        ("a.json", "{"),
        ("a.html", "<!DOCTYPE html>"),
        ("a.HTM", "<!DOCTYPE html>"),
        ("a.txt", "What"),
    ] {
        Report::check_name(name.as_ref()).unwrap();
        assert!(report.in_form_of(name.as_ref()).unwrap().starts_with(start), "{name}");
    }
    for name in ["a.pdf", "a"] {
        assert!(
            report.in_form_of(name.as_ref()).is_err() && Report::check_name(name.as_ref()).is_err(),
            "{name}"
        );
    }
}

/// Every key of the JSON, with the keys that lead to it.
fn keys(value: &serde_json::Value, found: &mut std::collections::BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                found.insert(key.clone());
                keys(value, found);
            }
        }
        serde_json::Value::Array(all) => all.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn documentation_names_exactly_the_fields() {
    let page = include_str!("../../../../docs/src/report-format.md");
    let value = serde_json::to_value(example::report()).unwrap();
    let mut written = std::collections::BTreeSet::new();
    keys(&value, &mut written);
    // A table row of the page begins with the field's name.
    let documented: std::collections::BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_string())
        .collect();
    assert_eq!(written, documented);
    assert!(page.contains(SCHEMA));
    // The example in the page is one that this program reads.
    let (_, after) = page.split_once("```json\n").unwrap();
    let (json, _) = after.split_once("```").unwrap();
    let example = Report::from_json(json).unwrap();
    assert!(!example.sections.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn report_survives_json_and_page(report in example::any_report()) {
        let back = Report::from_json(&report.to_json().unwrap()).unwrap();
        prop_assert_eq!(&back, &report);
        let back = Report::from_json(&html::page(&report).unwrap()).unwrap();
        prop_assert_eq!(&back, &report);
    }
}
