//! `vlane-lab compare caches`: the whole of it, small and without a limit.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
mod served;

use std::process::Command;

use served::{Place, vlane};

#[test]
fn modes_run_beside_neighbour_and_clean_up() {
    let place = Place::new(1 << 20);
    let (json, scratch, images) =
        (place.path("caches.json"), place.path("scratch"), place.path("images"));
    std::fs::create_dir(&scratch).unwrap();
    std::fs::create_dir(&images).unwrap();
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
        .args(["--also", "--cache pdc --danger-flush-journal-only", "--with", "--delay-flush 1ms"])
        .args(["--rates", "unbounded,500", "--ramp", "100ms", "--time", "300ms", "--disk-dir"])
        .arg(&images)
        .arg("--json")
        .arg(&json)
        .env("TMPDIR", &scratch)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("mkfs.ext4") || said.contains("give another directory") {
        return vlane_testing::skip(said);
    }
    assert!(output.status.success(), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["kind"], "caches");
    assert!(
        report["notes"].to_string().contains("The page cache has no limit"),
        "{}",
        report["notes"]
    );
    let mut of_16k = 0;
    for rate in ["unbounded", "500"] {
        let id = format!("commits-4m-{rate}");
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
    assert!(of_16k > 0, "a commit writes 16K: {report}");
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(&images).unwrap().count(), 0);
}

/// Records a real guest and replays it on a file system; no other test does both.
#[test]
fn driver_replays_requests_of_a_guest() {
    let _turn = common::one_at_a_time();
    // Says what is missing.
    if common::UmlBed::find().is_none() {
        return;
    }
    let place = Place::new(1 << 20);
    let (json, images) = (place.path("caches.json"), place.path("images"));
    std::fs::create_dir(&images).unwrap();
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
        "1s",
        "--install",
    ]);
    let output = command.arg("--disk-dir").arg(&images).arg("--json").arg(&json).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("give another directory") {
        return vlane_testing::skip(said);
    }
    assert!(output.status.success(), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let notes = report["notes"].to_string();
    assert!(notes.contains("requests of a guest with the mail job"), "{notes}");
    let sections = report["sections"].as_array().unwrap();
    let section = sections.iter().find(|section| section["id"] == "mail-replay-4m-500").unwrap();
    let table = &section["blocks"][0];
    let columns = table["columns"].as_array().unwrap();
    let figure = |row: usize, title: &str| {
        let column = columns.iter().position(|column| column["title"] == title).unwrap();
        table["rows"][row][column]["median"].as_f64()
    };
    for row in 0..2 {
        assert!(figure(row, "Operations").is_some_and(|operations| operations > 0.0), "{section}");
        assert!(figure(row, "Written").is_some_and(|written| written > 0.0), "{section}");
    }
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
        (["compare", "caches", "--with=--nonsense"], "no options of `vlane serve`"),
    ] {
        let (code, said) = served::ends(Command::new(vlane()).args(words));
        assert!(code == Some(2) && said.contains(says), "{words:?}: {code:?} {said}");
    }
}
