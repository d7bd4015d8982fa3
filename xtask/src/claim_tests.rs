#![allow(clippy::unwrap_used, reason = "tests")]

use crate::published::Direction;
use vlane_report::machine::{Load, Machine};
use vlane_report::{Axis, Chart, Column, Point, SCHEMA, Samples, Series, Table};

use super::*;

fn report() -> Report {
    let spread = |values: &[f64]| Spread::of(values).unwrap();
    let row = |name: &str, jobs: f64, figure: &[f64]| {
        vec![Cell::Text(name.into()), Cell::Number(jobs), Cell::Figure(spread(figure))]
    };
    let table = Table {
        caption: "IOPS".into(),
        columns: ["topology", "jobs", "IOPS"].map(|title| Column::new(title, "")).into(),
        rows: vec![
            row("Baseline", 8.0, &[90.0, 100.0, 110.0]),
            row("MT", 8.0, &[200.0, 250.0, 260.0]),
        ],
    };
    let points = |y: f64| vec![Point { x: 8.0, y: spread(&[y]) }];
    let series = vec![Series::published("MT", points(413e3)), Series::measured("MT", points(7.0))];
    let chart = Chart::lines("IOPS by jobs", Axis::new("jobs", ""), Axis::new("IOPS", ""), series);
    let blocks = vec![Block::Table(table), Block::Chart(chart)];
    Report {
        schema: SCHEMA.into(),
        kind: "test".into(),
        title: String::new(),
        summary: Vec::new(),
        command: String::new(),
        created: String::new(),
        seconds: 0.0,
        machine: Machine::default(),
        notes: Vec::new(),
        sections: vec![Section::new("randread", "", Vec::new(), blocks)],
        samples: Vec::new(),
        partial: None,
    }
}

fn figure(text: &str) -> Figure {
    toml::from_str(text).unwrap()
}

const MT_OVER_BASELINE: &str = r#"
    of = { section = "randread", row = ["MT", "8"], column = "IOPS" }
    over = { section = "randread", row = ["Baseline", "8"], column = "IOPS" }
"#;

fn ratio(published: &str) -> Figure {
    figure(&format!("says = \"MT is 2.55 times Baseline\"\n{published}\n{MT_OVER_BASELINE}"))
}

#[test]
fn ratio_without_rounds_is_unpaired() {
    let row = ratio("published = 2.55").row(&report());
    let here = row.here.clone().unwrap();
    assert!((here.middle - 2.5).abs() < 1e-9 && (here.low - 200.0 / 110.0).abs() < 1e-9);
    assert!(here.words().ends_with(", unpaired"));
    let found = row.comparison().unwrap();
    assert_eq!(found.direction, Some(Direction::Same));
    assert!((found.size.unwrap().ratio - 2.5 / 2.55).abs() < 1e-9);
    let other = ratio("published = 0.5").row(&report()).comparison().unwrap();
    assert_eq!(other.direction, Some(Direction::Opposite));
}

#[test]
fn ratio_of_rounds_is_paired() {
    let rounds = [("Baseline", [90.0, 100.0, 110.0]), ("MT", [200.0, 250.0, 260.0])];
    let rows = rounds.into_iter().flat_map(|(name, values)| {
        let row = |(round, value)| vec![name.into(), Cell::Number(round), Cell::Number(value)];
        [1.0, 2.0, 3.0].into_iter().zip(values).map(row)
    });
    let samples = Samples::new("rounds", "", "topology | Round | IOPS", rows.collect());
    let report = Report { samples: vec![samples], ..report() };
    let here = ratio("published = 2.55").row(&report).here.unwrap();
    assert!((here.low - 200.0 / 90.0).abs() < 1e-9 && (here.high - 2.5).abs() < 1e-9);
    assert!((here.middle - 260.0 / 110.0).abs() < 1e-9 && !here.is_unpaired);
}

#[test]
fn disturbed_measurement_has_no_direction() {
    let load = Load { before: 0.0, after: 0.0, stolen_percent: 0.0, others: Some(1.0) };
    let machine = Machine { load: Some(load), ..Machine::default() };
    let row = ratio("published = 2.55").row(&Report { machine, ..report() });
    let found = row.comparison().unwrap();
    assert_eq!((found.direction, found.size.is_some()), (Some(Direction::Unclear), true));
}

#[test]
fn words_have_direction_without_size() {
    let found = ratio("published_in_words = \"more\"").row(&report()).comparison().unwrap();
    assert_eq!((found.direction, found.size), (Some(Direction::Same), None));
    let found = ratio("published_in_words = \"less\"").row(&report()).comparison().unwrap();
    assert_eq!(found.direction, Some(Direction::Opposite));
}

#[test]
fn measured_points_differ_from_published_ones() {
    let level = figure(
        "says = \"x\"\npublished = 7\nof = { section = \"randread\", series = \"MT\", x = 8 }",
    );
    let row = level.row(&report());
    assert!(row.here.clone().unwrap().middle < 8.0);
    assert_eq!(row.comparison().unwrap().direction, None, "a level has no direction");
}

#[test]
fn missing_figure_is_called_unmeasured() {
    for (from, to) in
        [("\"MT\", \"8\"", "\"MT\", \"9\""), ("section = \"randread\"", "section = \"other\"")]
    {
        let text =
            format!("says = \"x\"\npublished = 2.55\n{}", MT_OVER_BASELINE.replace(from, to));
        assert_eq!(figure(&text).row(&report()).here, Err("not in the last result".into()));
    }
    let missing = figure("says = \"x\"\npublished = 0.26\nmissing = \"no NVMe drive\"");
    assert_eq!((missing.fault(), missing.row(&report()).here), (None, Err("no NVMe drive".into())));
}

#[test]
fn figure_names_publication_or_reason() {
    let fault = |text: &str| figure(&format!("says = \"x\"\n{text}")).fault();
    let of = "of = { section = \"randread\", row = [\"MT\"], column = \"IOPS\" }";
    assert_eq!(fault(&format!("published = 1\n{of}")), None);
    assert!(fault(of).unwrap().contains("published"));
    assert!(fault("published = 1").unwrap().contains("missing"));
    assert!(fault(&format!("published = 1\nmissing = \"why\"\n{of}")).unwrap().contains("missing"));
    assert!(fault(&format!("published_in_words = \"more\"\n{of}")).unwrap().contains("no_change"));
    assert_eq!(fault(&format!("published_in_words = \"more\"\nno_change = 100\n{of}")), None);
}

#[test]
fn goal_is_judged_by_median() {
    let judge = |bound: &str| {
        let goal: Goal =
            toml::from_str(&format!("says = \"x\"\n{bound}\n{MT_OVER_BASELINE}")).unwrap();
        assert_eq!(goal.fault().is_some(), bound.is_empty());
        goal.judge(&report()).unwrap().1
    };
    assert_eq!(judge("at_least = 1.5"), Within::All);
    assert_eq!(judge("at_least = 2.4"), Within::Part);
    assert_eq!(judge("at_least = 2.6"), Within::None, "one end is above");
    assert_eq!(judge("at_most = 1.5"), Within::None);
    judge("");
}
