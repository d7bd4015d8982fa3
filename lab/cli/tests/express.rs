//! `vlane-lab prove express native`: the whole of it, small. The experiments measure; here it is
//! only seen that it does.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
mod served;

use std::process::Command;

use serde_json::Value;
use served::{Place, vlane};

/// The rows of a table, by the first cell, and the place of a column.
fn table<'a>(report: &'a Value, section: &str, column: &str) -> (Vec<&'a Value>, usize) {
    let section =
        report["sections"].as_array().unwrap().iter().find(|s| s["id"] == section).unwrap();
    let table =
        section["blocks"].as_array().unwrap().iter().find(|b| b["block"] == "table").unwrap();
    let titles = table["columns"].as_array().unwrap();
    let place =
        titles.iter().position(|c| c["title"] == column).unwrap_or_else(|| panic!("no {column}"));
    (table["rows"].as_array().unwrap().iter().collect(), place)
}

#[test]
fn modes_take_turns_with_baseline_twice() {
    let place = Place::new(1 << 20);
    // A busy machine may finish no read in a short time, which is an error.
    for time in ["300ms", "10s"] {
        if takes_turns(&place, time) {
            return;
        }
    }
    panic!("the foreground finishes no read");
}

/// Measures so long each. False if the foreground finished no read within that time.
fn takes_turns(place: &Place, time: &str) -> bool {
    let json = place.path(&format!("express-{time}.json"));
    let mut command = Command::new(vlane());
    command.args([
        "prove",
        "express",
        "native",
        "--queues",
        "3",
        "--readers",
        "24",
        "--latency",
        "1ms",
        "--parallel",
        "2",
    ]);
    command.args([
        "--loads", "uneven", "--repeat", "1", "--ramp", "50ms", "--time", time, "--think", "0",
    ]);
    let output = command.arg("--json").arg(&json).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("the foreground finished no read") {
        return false;
    }
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["kind"], "express");
    assert!(report["notes"].to_string().contains("fewer than 5"), "{}", report["notes"]);
    let (rows, reads) = table(&report, "uneven", "Reads");
    let arms: Vec<&str> = rows.iter().map(|row| row[0].as_str().unwrap()).collect();
    assert_eq!(arms, ["off", "order", "shortest", "on", "off again"]);
    assert!(rows.iter().all(|row| row[reads]["median"].as_f64().unwrap() > 0.0), "{rows:?}");
    // The drive's capability is known, and no arm can exceed it. (Requests in flight at both ends
    // count for much in so short a time.)
    let (rows, all) = table(&report, "uneven", "All");
    assert!(rows.iter().all(|row| row[all]["median"].as_f64().unwrap() < 2200.0), "{rows:?}");
    let (rows, outcome) = table(&report, "goals", "Outcome");
    assert_eq!(rows.len(), 3, "{rows:?}");
    // Other tests may disturb the measurement.
    let is_judged =
        |outcome: &str| outcome.contains("met") || outcome.starts_with("inconclusive: other");
    assert!(rows.iter().all(|row| is_judged(row[outcome].as_str().unwrap())), "{rows:?}");
    true
}

#[test]
fn missing_vlane_fg_is_reported_before_start() {
    let mut command = Command::new(vlane());
    command.args(["prove", "express", "guests", "--where", "uml", "--fg", "/nowhere/vlane-fg"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/nowhere/vlane-fg") && said.contains("--fg"), "{said}");
}
