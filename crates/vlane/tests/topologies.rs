//! `vlane topologies` as people call it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn topologies(tmp: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vlane"));
    command.arg("topologies").args(words).env("TMPDIR", tmp).stdin(Stdio::null());
    command
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn short_run_measures_every_topology() {
    let (dir, tmp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (json, html) = (dir.path().join("t.json"), dir.path().join("t.html"));
    let words = ["--quick", "--jobs", "1", "--patterns", "randread", "--time", "60ms", "--repeat", "1"];
    let output = topologies(tmp.path(), &words)
        .args(["--predict", "8", "--json", json.to_str().unwrap(), "--html", html.to_str().unwrap()])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["kind"], "topologies");
    let ids: Vec<_> =
        report["sections"].as_array().unwrap().iter().map(|s| s["id"].as_str().unwrap()).collect();
    let expected = [
        "paper-randread",
        "paper-ratios",
        "overcommit",
        "bare-randread",
        "scaling-paper",
        "scaling-vlane",
        "validation",
        "costs",
    ];
    assert_eq!(ids, expected);
    // Every topology of both devices has points, all above zero; what was calculated is called so.
    for (id, names, predicted) in [
        ("paper-randread", &["Baseline", "Baseline, no mutex", "MQ", "MT"][..], false),
        ("bare-randread", &["Baseline", "MQ", "MT", "vlane MQ", "vlane MT"][..], false),
        ("scaling-paper", &["MT"][..], true),
    ] {
        let section = report["sections"].as_array().unwrap().iter().find(|s| s["id"] == id).unwrap();
        let chart = section["blocks"].as_array().unwrap().iter().rfind(|b| b["block"] == "chart").unwrap();
        let series = chart["series"].as_array().unwrap();
        for name in names {
            let one = series.iter().find(|s| s["name"] == *name).unwrap_or_else(|| panic!("{id}: no {name}"));
            assert_eq!(one["predicted"], predicted, "{id}: {name}");
            let points = one["points"].as_array().unwrap();
            assert!(points.len() >= 2, "{id}: {name}");
            assert!(points.iter().all(|p| p["y"]["median"].as_f64().unwrap() > 0.0), "{id}: {name}");
        }
    }
    // Each cell of the one round is kept, also those that the model is made of.
    let cells = report["samples"][0]["rows"].as_array().unwrap();
    for what in ["1 job", "1 lane on one CPU", "2 lanes"] {
        assert!(cells.iter().any(|row| row[3] == what && row[5].as_f64().unwrap() > 0.0), "no {what}");
    }
    // Topologies that the model gets wrong have no prediction.
    let scaling = report["sections"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|s| s["id"].as_str().unwrap().starts_with("scaling"));
    let series = scaling
        .flat_map(|s| s["blocks"].as_array().unwrap())
        .filter_map(|block| block["series"].as_array())
        .flatten();
    let predicted: Vec<_> =
        series.filter(|one| one["predicted"] == true).map(|one| one["name"].as_str().unwrap()).collect();
    assert!(!predicted.is_empty() && predicted.iter().all(|name| name.ends_with("MT")), "{predicted:?}");
    assert!(std::fs::read_to_string(&html).unwrap().contains("<svg"));
    assert!(String::from_utf8_lossy(&output.stdout).contains("As in the paper"));
    assert!(is_empty(tmp.path()), "something was left in the scratch directory");
}

#[test]
fn interrupted_run_ends_soon_and_cleans_up() {
    let tmp = tempfile::tempdir().unwrap();
    let mut command = topologies(tmp.path(), &["--patterns", "randread", "--time", "20s"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Once its scratch directory is there it measures.
    let begin = Instant::now();
    while is_empty(tmp.path()) {
        assert!(begin.elapsed() < Duration::from_secs(20), "it never began");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let asked = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if asked.elapsed() > Duration::from_secs(15) {
            child.kill().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!child.wait().unwrap().success());
    assert!(is_empty(tmp.path()), "something was left in the scratch directory");
}

#[test]
fn senseless_options_are_refused_before_measuring() {
    let tmp = tempfile::tempdir().unwrap();
    for (words, said) in [
        (&["--patterns", "reed"][..], "reed"),
        (&["--jobs", "0"][..], "--jobs"),
        (&["--time", "1ms"][..], "--time"),
        (&["--html", "x.pdf"][..], "x.pdf"),
    ] {
        let begin = Instant::now();
        let output = topologies(tmp.path(), words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(said), "{words:?}: {errors}");
        assert!(begin.elapsed() < Duration::from_secs(20), "{words:?}");
    }
}
