//! The report, of made-up samples.

use vlane_report::{Block, Cell};

use super::super::Condition;
use super::super::job::Done;
use super::super::tests::options;
use super::*;

/// Of `express` launches take a fifth. All else is as in the baseline, apart from the round's
/// addition.
fn sample(name: &str, round: u64) -> Sample {
    let part = if name == "express" { 200 } else { 1000 };
    Sample {
        done: Done {
            launches_us: (1..=4).map(|n| n * part * (10 + round)).collect(),
            fsyncs_us: (1..=100).map(|n| n * 1000).collect(),
            read: READ * 900.0,
            computed: 50.0 + if name.ends_with("again") { round as f64 } else { 0.0 },
        },
        guest_cpus: 0.8,
        others_cpus: 1.2,
        back_end_us: 30_000.0,
        requests: 1000.0,
        pages: Some(9000),
        journal_pages: None,
        ..Sample::default()
    }
}

fn report(rounds: usize, impossible: Option<String>) -> Report {
    let measured = Condition::ALL.iter().filter(|one| !one.loans || impossible.is_none());
    let names: Vec<String> = measured.map(|one| one.name.to_owned()).collect();
    let mut arms = Arms::named(&names);
    for arm in &mut arms.0 {
        arm.rounds = (0..rounds as u64).map(|round| sample(&arm.arm, round)).collect();
    }
    let options = options(&["--others", "3", "--repeat", &rounds.to_string()]);
    let (guest, root) = ("QEMU".into(), Root::empty());
    let shown = Shown { options, guest, root, impossible };
    shown.report(&arms, &Begun::now("vlane-lab prove together"))
}

fn table_of<'a>(report: &'a Report, id: &str) -> &'a vlane_report::Table {
    let section = report.sections.iter().find(|section| section.id == id).unwrap();
    section
        .blocks
        .iter()
        .find_map(|block| if let Block::Table(table) = block { Some(table) } else { None })
        .unwrap()
}

/// Each is relative to the baseline, which has a second bar.
#[test]
fn picture_has_a_bar_per_condition() {
    let report = report(3, None);
    let Block::Chart(chart) = &report.sections[0].blocks[0] else {
        panic!("the picture comes first")
    };
    let names: Vec<_> = chart.series.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["lanes", "pdc", "express", "loans", "all", "nothing again"]);
    for (series, expected) in [("express", 0.2), ("lanes", 1.0)] {
        let series = chart.series.iter().find(|one| one.name == series).unwrap();
        assert!((series.points[0].y.median - expected).abs() < 1e-9, "{series:?}");
    }
    assert_eq!(
        report.samples[0].rows.len(),
        3 * (names.len() + 1),
        "every round of each, and of nothing"
    );
    let figures = ["launch, median", "readers", "back end"];
    assert!(figures.iter().all(|figure| chart.categories.iter().any(|name| name == figure)));
}

#[test]
fn waits_are_median_and_99th_percentile() {
    let report = report(1, None);
    let table = table_of(&report, "waits");
    let cells: Vec<f64> = table.rows[0][1..]
        .iter()
        .map(|cell| if let Cell::Figure(spread) = cell { spread.median } else { f64::NAN })
        .collect();
    assert_eq!(cells, [20.0, 40.0, 50.0, 99.0, 4.0, 100.0]);
}

#[test]
fn few_rounds_allow_no_conclusions() {
    let whole = report(3, None);
    let summary = whole.summary.join("\n");
    assert!(summary.contains("launch, median 0.20 (0.20-0.20), "), "{summary}");
    let Block::Chart(chart) = &whole.sections[0].blocks[0] else { panic!("a picture") };
    let express = summary.lines().find(|arm| arm.contains(", express relative to")).unwrap();
    assert!(chart.categories.iter().all(|title| express.contains(title)), "{express}");
    assert!(!summary.contains("again"), "{summary}");
    let few = report(2, None);
    assert!(few.summary.is_empty(), "{few:?}");
    assert!(few.notes.iter().any(|note| note.text.contains("may be chance")), "{few:?}");
}

#[test]
fn impossible_measurement_is_left_out() {
    let report = report(3, Some("CAP_SYS_NICE is missing".into()));
    let names: Vec<_> = table_of(&report, "waits").rows.iter().map(|row| row[0].clone()).collect();
    let expected = ["nothing", "lanes", "pdc", "express", "nothing again"];
    assert_eq!(names, expected.map(Cell::from));
    assert!(report.notes.iter().any(|note| note.text.contains("CAP_SYS_NICE")));
    // Where the system does not tell of pages there is no figure, and the report can be written all
    // the same.
    assert!(report.to_json().is_ok());
}
