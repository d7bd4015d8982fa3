//! `vlane-lab compare caches`: the whole of it, small and without a limit.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
mod served;

use std::path::Path;
use std::process::Command;

use served::{Place, vlane};

#[test]
fn modes_run_beside_neighbour_and_clean_up() {
    let place = Place::new(1 << 20);
    let (scratch, images) = (place.path("scratch"), place.path("images"));
    std::fs::create_dir(&scratch).unwrap();
    std::fs::create_dir(&images).unwrap();
    let mut of_16k = 0;
    // A disk may stall for all of a short time.
    for time in ["300ms", "6s"] {
        let json = place.path(&format!("caches-{time}.json"));
        let Some(of_this) = commits_of_16k(time, &json, &scratch, &images) else { return };
        of_16k = of_this;
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(&images).unwrap().count(), 0);
        if of_16k > 0 {
            break;
        }
    }
    assert!(of_16k > 0, "a commit writes 16K");
}

/// Compares, with so much time for each measurement. Returns in how many of these a commit wrote
/// about 16K; none, said loudly, if this machine lacks a program.
fn commits_of_16k(time: &str, json: &Path, scratch: &Path, images: &Path) -> Option<u32> {
    let output = Command::new(vlane())
        .args([
            "compare",
            "caches",
            "--no-limit",
            "--modes",
            "writeback,none",
            "--hot",
            "2M",
            "--journals",
            "4M",
            "--repeat",
            "1",
        ])
        .args(["--also", "--cache pdc --danger-flush-journal-only", "--delays", "1ms"])
        .args(["--rates", "unbounded,500", "--ramp", "100ms", "--time", time, "--disk-dir"])
        .arg(images)
        .arg("--json")
        .arg(json)
        .env("TMPDIR", scratch)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("mkfs.ext4") || said.contains("give another directory") {
        vlane_testing::skip(said);
        return None;
    }
    assert!(output.status.success(), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(report["kind"], "caches");
    assert!(
        report["notes"].to_string().contains("The page cache has no limit"),
        "{}",
        report["notes"]
    );
    let mut of_16k = 0;
    for rate in ["unbounded", "500"] {
        let id = format!("commits-4m-{rate}-delay-1000us");
        let section =
            report["sections"].as_array().unwrap().iter().find(|s| s["id"] == *id).unwrap();
        let table = &section["blocks"][0];
        let column = |title: &str| {
            table["columns"]
                .as_array()
                .unwrap()
                .iter()
                .position(|column| column["title"] == title)
                .unwrap()
        };
        let rows = table["rows"].as_array().unwrap();
        let arms: Vec<&str> = rows.iter().map(|row| row[0].as_str().unwrap()).collect();
        assert_eq!(
            arms,
            ["writeback", "none", "pdc --danger-flush-journal-only", "writeback again"]
        );
        for row in rows {
            let figure = |title: &str| row[column(title)]["median"].as_f64();
            assert!(figure("Operations").is_some() && figure("Reads").is_some(), "{row}");
            // Other processes that drop caches on this machine keep the share below 100 %.
            assert!((0.0..=100.0).contains(&figure("Hits").unwrap()), "{row}");
            // Bytes and operations are counted over windows that are not the same to the
            // millisecond, and a disk may stall for all of one.
            let per_commit =
                figure("Written").zip(figure("Operations")).map(|(mb, n)| mb * 1e6 / n);
            of_16k += u32::from(per_commit.is_some_and(|bytes| (8e3..32e3).contains(&bytes)));
            let pages = figure("Journal's pages in the cache");
            match row[0].as_str().unwrap() {
                arm if arm.starts_with("pdc") => {}
                "none" => assert!(pages.is_none_or(|pages| pages == 0.0), "{row}"),
                _ => assert!(pages.is_none_or(|pages| pages > 0.0), "{row}"),
            }
        }
    }
    let ids: Vec<&str> = report["sections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|section| section["id"].as_str().unwrap())
        .collect();
    assert!(
        !ids.contains(&"goals"),
        "what is dangerous has no goals, and what it is held against neither: {ids:?}"
    );
    if of_16k == 0 {
        println!("within {time} no commit wrote 16K: {report}");
    }
    Some(of_16k)
}

/// Records a real guest and replays it on a file system; no other test does both.
#[test]
fn driver_replays_requests_of_a_guest() {
    let _turn = common::one_at_a_time();
    // It names a missing program.
    if common::UmlBed::find().is_none() {
        return;
    }
    let place = Place::new(1 << 20);
    let images = place.path("images");
    std::fs::create_dir(&images).unwrap();
    // A busy machine may do nothing in a short time.
    for time in ["1s", "8s"] {
        let json = place.path(&format!("caches-{time}.json"));
        let Some(section) = replayed(time, &json, &images) else { return };
        let table = &section["blocks"][0];
        let columns = table["columns"].as_array().unwrap();
        let is_done = |row: usize, title: &str| {
            let column = columns.iter().position(|column| column["title"] == title).unwrap();
            table["rows"][row][column]["median"].as_f64().is_some_and(|figure| figure > 0.0)
        };
        if (0..2).all(|row| is_done(row, "Operations") && is_done(row, "Written")) {
            return;
        }
        println!("within {time}: {section}");
    }
    panic!("a row has no operations, or none that writes");
}

/// Replays a guest's requests for so long. Returns the section of it; none, said loudly, if this
/// machine lacks a program.
fn replayed(time: &str, json: &Path, images: &Path) -> Option<serde_json::Value> {
    let mut command = Command::new(vlane());
    command.args([
        "compare",
        "caches",
        "--no-limit",
        "--modes",
        "pdc",
        "--jobs",
        "mail-replay",
        "--hot",
        "2M",
    ]);
    command.args([
        "--journals",
        "4M",
        "--rates",
        "500",
        "--repeat",
        "1",
        "--ramp",
        "0",
        "--time",
        time,
        "--install",
    ]);
    let output = command.arg("--disk-dir").arg(images).arg("--json").arg(json).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("give another directory") {
        vlane_testing::skip(said);
        return None;
    }
    assert!(output.status.success(), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let notes = report["notes"].to_string();
    assert!(notes.contains("requests of a guest with the mail job"), "{notes}");
    let sections = report["sections"].as_array().unwrap();
    Some(sections.iter().find(|s| s["id"] == "mail-replay-4m-500").unwrap().clone())
}

#[test]
fn journal_only_flush_warns_once() {
    let place = Place::new(16 << 20);
    for (options, count) in
        [(&["--cache", "pdc"][..], 0), (&["--cache", "pdc", "--danger-flush-journal-only"], 1)]
    {
        // Standard error is read by a thread: it has all lines once the server has ended.
        let log = place.serve(options).stop(served::LIMIT).unwrap().log;
        let warnings = log
            .lines()
            .filter(|line| line.contains("WARN") && line.contains("flushed can be lost"));
        assert_eq!(warnings.count(), count, "{log}");
    }
}

#[test]
fn invalid_sizes_and_names_list_valid_ones() {
    for (words, says) in [
        (["compare", "caches", "--journals=64M,1M"], "from 4M"),
        (["compare", "caches", "--modes=writeback,fast"], "there are auto, none, writeback"),
        (["compare", "caches", "--jobs=games"], "mail"),
        (["compare", "caches", "--cache=1M"], "at least 32M"),
        (["compare", "caches", "--rates=0"], "unbounded"),
        (["compare", "caches", "--also=--nonsense"], "no options of `vlane serve`"),
    ] {
        let (code, said) = served::ends(Command::new(vlane()).args(words));
        assert!(code == Some(2) && said.contains(says), "{words:?}: {code:?} {said}");
    }
}
