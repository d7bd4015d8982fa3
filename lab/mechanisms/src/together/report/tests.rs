//! The report, of made-up samples.

use std::path::PathBuf;
use std::time::Duration;

use super::super::job::Done;
use super::*;
use crate::express::Model;
use crate::express::root::Program;

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

pub(in super::super) fn options(rounds: usize) -> Options {
    Options {
        vlane: PathBuf::new(),
        fg: PathBuf::new(),
        command: "vlane-lab prove together".into(),
        program: Program::Sqlite3,
        readers: 48,
        others: 3,
        model: Model { latency: Duration::from_millis(2), parallel: 2 },
        journal: 16 << 20,
        rounds,
        ramp: Duration::from_secs(2),
        time: Duration::from_secs(20),
        disk_dir: PathBuf::new(),
    }
}

fn report(rounds: usize, impossible: Option<String>) -> Report {
    let measured = Condition::ALL.iter().filter(|one| !one.loans || impossible.is_none());
    let names: Vec<String> = measured.map(|one| one.name.to_owned()).collect();
    let mut arms = Arms::named(&names);
    for arm in &mut arms.0 {
        arm.rounds = (0..rounds as u64).map(|round| sample(&arm.arm, round)).collect();
    }
    let seen = Seen { guest: "QEMU".into(), root: Root::empty(), load: Some(100.0), impossible };
    make(&options(rounds), &arms, &seen, &Begun::now("vlane-lab prove together"))
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
    let panels: Vec<&str> =
        chart.categories.iter().map(|name| name.split_once(':').unwrap().0).collect();
    assert!(["waits", "others", "host"].iter().all(|panel| panels.contains(panel)), "{panels:?}");
}

#[test]
fn waits_are_median_and_99th_percentile() {
    let report = report(1, None);
    let table = table_of(&report, "waits");
    let cells: Vec<f64> = table.rows[0][1..]
        .iter()
        .map(|cell| if let Cell::Figure(spread) = cell { spread.median } else { f64::NAN })
        .collect();
    assert_eq!(cells, [20.0, 40.0, 4.0, 50.0, 99.0, 100.0]);
}

#[test]
fn difference_must_exceed_the_baselines_own() {
    let summary = report(3, None).summary.join("\n");
    let express = "express, of nothing's: launch, median 0.20 (0.20-0.20); no difference seen in \
                   fsync, median, readers";
    assert!(summary.contains(express), "{summary}");
    assert!(summary.contains("lanes: no difference seen from nothing."), "{summary}");
    assert!(!summary.contains("again"), "{summary}");
    let few = report(1, None).summary;
    assert!(few.len() == 1 && few[0].contains("no conclusions"), "{few:?}");
}

#[test]
fn impossible_measurement_has_a_row() {
    let report = report(3, Some("CAP_SYS_NICE is missing".into()));
    let names: Vec<_> = table_of(&report, "waits").rows.iter().map(|row| row[0].clone()).collect();
    let expected = [
        "nothing",
        "lanes",
        "pdc",
        "express",
        "nothing again",
        "loans: not possible here",
        "all: not possible here",
    ];
    assert_eq!(names, expected.map(Cell::from));
    assert!(report.notes.iter().any(|note| note.text.contains("CAP_SYS_NICE")));
    assert!(report.notes.iter().any(|note| note.text.contains("load average of 100")));
    // Where the system does not tell of pages there is no figure, and the report can be written all
    // the same.
    assert!(report.to_json().is_ok());
}
