//! `vlane-lab compare peers --fixed-load`: its smallest loads, for real.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod common;

use std::process::{Command, Stdio};

use common::{host, one_at_a_time, or_skip};
use vlane_guest::{BlkioFio, Host, Install, UmlProgram};
use vlane_report::Report;
use vlane_testing::skip;

#[test]
fn both_peers_are_measured_and_cleaned_up() {
    let _turn = one_at_a_time();
    for program in ["taskset", "fio", "qemu-storage-daemon"] {
        if or_skip(program, host().program(program)).is_none() {
            return;
        }
    }
    if or_skip("User-Mode Linux", UmlProgram::find(&host())).is_none() {
        return;
    }
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return skip("back end and client need a CPU each");
    }
    // A fio with libblkio takes minutes to build: it takes part where it is.
    let blkio = BlkioFio::find(&Host::new(Install::Never).unwrap()).is_ok();
    let names = if blkio { "uml-1k-d1,null-25us-1k-d1" } else { "uml-1k-d1" };
    let (dir, tmp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (single, report) = (dir.path().join("single.json"), dir.path().join("report.json"));
    let output = Command::new(common::vlane())
        .args([
            "compare",
            "peers",
            "--fixed-load",
            "--repeat",
            "2",
            "--also",
            "--poll-max 0",
            "--rows",
            names,
        ])
        .args(["--time", "500ms", "--ramp", "100ms", "--markdown"])
        .args(["--json".as_ref(), single.as_os_str(), "--html".as_ref(), report.as_os_str()])
        .env("TMPDIR", tmp.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: serde_json::Value = serde_json::from_slice(&std::fs::read(&single).unwrap()).unwrap();
    assert_eq!(told["schema"], "vlane-peers/1");
    let rows = told["rows"].as_array().unwrap();
    assert_eq!(rows.len(), if blkio { 2 } else { 1 });
    // Two vlanes are held against the other in each row. Other tests may disturb the measurement.
    let summary = format!("Of {} loads both back ends reach", 2 * rows.len());
    let disturbed = "No conclusion is drawn: other programs used";
    assert!(said.contains(&summary) || said.contains(disturbed), "{said}");
    assert!(
        said.contains("| User-Mode Linux guest, null, 1k IOPS, depth 1: vlane --poll-max 0 |"),
        "{said}"
    );
    for row in rows {
        assert_eq!(row["contenders"].as_array().unwrap().len(), 3);
        for figures in
            row["measured"]["rounds"].as_array().unwrap().iter().flat_map(|r| r.as_array().unwrap())
        {
            let figure = |name: &str| figures[name].as_f64().unwrap();
            let guest = figures["guest_cpu_us"].as_f64();
            assert!(figure("cpu_us") > 0.0 && figure("iops") > 0.0, "{figures}");
            assert!(figure("p50_us") > 0.0 && figure("p99_us") >= figure("p50_us"), "{figures}");
            // The null device of the other row takes 25 us itself.
            match row["row"] == "uml-1k-d1" {
                true => assert!(guest.unwrap() > 0.0, "{figures}"),
                false => assert!(guest.is_none() && figure("p50_us") >= 20.0, "{figures}"),
            }
        }
    }
    let report = Report::read(&report).unwrap();
    assert_eq!(report.kind, "fixed-load");
    let ids: Vec<_> = report.sections.iter().map(|section| section.id.as_str()).collect();
    assert_eq!(
        ids,
        if blkio { vec!["verdicts", "null-25us", "uml"] } else { vec!["verdicts", "uml"] }
    );
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 0);
}

#[test]
fn rows_of_other_kind_are_refused() {
    let ends = |words: &[&str]| {
        let output =
            Command::new(common::vlane()).args(words).stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for words in [
        &["compare", "peers", "--fixed-load", "--rows", "ram-write"][..],
        &["compare", "peers", "--rows", "null-1k-d1"],
        &["compare", "peers", "--also", "--poll-max 0"],
    ] {
        let (code, said) = ends(words);
        assert_eq!(code, Some(2), "{words:?}: {said}");
        assert!(said.contains("--rows") || said.contains("--fixed-load"), "{words:?}: {said}");
    }
}
