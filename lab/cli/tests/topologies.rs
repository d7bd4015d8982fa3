//! `vlane-lab compare topologies` as people call it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn topologies(tmp: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vlane-lab"));
    command.args(["compare", "topologies"]).args(words).env("TMPDIR", tmp).stdin(Stdio::null());
    command
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn short_run_measures_every_topology() {
    let (dir, tmp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (json, html) = (dir.path().join("t.json"), dir.path().join("t.html"));
    let words =
        ["--quick", "--jobs", "1,2", "--patterns", "randread", "--time", "60ms", "--repeat", "1"];
    let measured = || {
        let output = topologies(tmp.path(), &words)
            .args(["--json", json.to_str().unwrap(), "--html", html.to_str().unwrap()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(report["kind"], "topologies");
        (output, report["samples"][0]["rows"].as_array().unwrap().clone())
    };
    // A client that is off the CPU for the short time measures nothing: then there is another turn.
    let begin = Instant::now();
    let (output, runs) = loop {
        let (output, runs) = measured();
        let is_whole = runs.iter().all(|row| row[3].as_f64().unwrap() > 0.0);
        if is_whole || begin.elapsed() > Duration::from_secs(60) {
            break (output, runs);
        }
    };
    for load in ["4K random read, 1 job", "4K random read, 2 jobs"] {
        for topology in ["MT", "MQ", "Baseline"] {
            let mut of_both = runs.iter().filter(|row| row[0] == load && row[1] == topology);
            assert!(of_both.all(|row| row[3].as_f64().unwrap() > 0.0), "{load}: {topology}");
        }
    }
    assert_eq!(runs.len(), 6);
    assert!(std::fs::read_to_string(&html).unwrap().contains("<svg"));
    // The queues and threads of each are what its name says.
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("--threads 1"), "{text}");
    assert!(is_empty(tmp.path()), "something was left in the scratch directory");
}

#[test]
fn interrupted_run_ends_soon_and_cleans_up() {
    let tmp = tempfile::tempdir().unwrap();
    let mut command = topologies(tmp.path(), &["--patterns", "randread", "--time", "120s"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Once its scratch directory is there it measures.
    let begin = Instant::now();
    while is_empty(tmp.path()) {
        assert!(begin.elapsed() < Duration::from_secs(60), "it never began");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let asked = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if asked.elapsed() > Duration::from_secs(60) {
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
        assert!(begin.elapsed() < Duration::from_secs(60), "{words:?}");
    }
}
