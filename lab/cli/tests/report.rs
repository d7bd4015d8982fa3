//! `vlane-lab report`: a saved report comes back in every form, and what is no report is refused
//! with words that help.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::path::Path;
use std::process::{Command, Output};

/// The example of the documentation.
fn example() -> String {
    let page = include_str!("../../../docs/src/report-format.md");
    let (_, after) = page.split_once("```json\n").unwrap();
    after.split_once("```").unwrap().0.to_string()
}

fn report(dir: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vlane-lab"))
        .arg("report")
        .args(words)
        .current_dir(dir)
        .output()
        .unwrap()
}

#[test]
fn report_survives_every_format() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.json"), example()).unwrap();
    let text = report(dir.path(), &["a.json"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("4K random read") && text.contains("WARNING: The machine was busy"),
        "{text}"
    );
    assert!(text.contains("1.09M (1.06M-1.11M)"), "{text}");

    let written = report(dir.path(), &["a.json", "--html", "b.html", "--svg", "charts"]);
    assert!(written.status.success() && written.stdout.is_empty(), "{written:?}");
    let chart = std::fs::read_to_string(dir.path().join("charts/throughput-1.svg")).unwrap();
    assert!(chart.starts_with("<svg xmlns="));

    let samples = report(dir.path(), &["b.html", "--csv", "samples"]);
    assert!(samples.status.success() && samples.stdout.is_empty(), "{samples:?}");
    let runs = std::fs::read_to_string(dir.path().join("samples/runs.csv")).unwrap();
    assert!(
        runs.starts_with("Depth,Turn,Throughput [IOPS]\r\n32,0,1060000\r\n")
            && runs.lines().count() == 6,
        "{runs}"
    );

    // Out of the page, and to the same page again.
    assert!(
        report(dir.path(), &["b.html", "--json", "c.json", "--html", "d.html"]).status.success()
    );
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(value(&read("c.json")), value(&example()));
    assert_eq!(read("b.html"), read("d.html"));
}

#[test]
fn unreadable_and_unwritable_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.json"), example()).unwrap();
    std::fs::write(dir.path().join("newer.json"), example().replace("report/1", "report/9"))
        .unwrap();
    for (words, said) in [
        (&["nowhere.json"][..], "nowhere.json"),
        (&["newer.json"], "`vlane-report/9`"),
        (&["a.json", "--html", "a.pdf"], ".html"),
    ] {
        let output = report(dir.path(), words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(said), "{words:?}: {error}");
    }
}
