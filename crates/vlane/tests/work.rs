//! `vlane work`: the whole of it on the null device.

#![allow(clippy::unwrap_used, reason = "tests")]

mod served;

use std::process::Command;

use served::{Place, vlane};

#[test]
fn work_counts_every_request_and_cleans_up() {
    let place = Place::new(1 << 20);
    let (json, scratch) = (place.path("work.json"), place.path("scratch"));
    std::fs::create_dir(&scratch).unwrap();
    // Connecting takes milliseconds of CPU time, which differ and are taken off: the requests must take more.
    let output = Command::new(vlane())
        .args(["work", "--no-guest", "--media", "null", "--bytes", "256M", "--repeat", "1", "--json"])
        .arg(&json)
        .env("TMPDIR", &scratch)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["kind"], "work");
    let section = report["sections"].as_array().unwrap().iter().find(|s| s["id"] == "native-null").unwrap();
    for table in section["blocks"].as_array().unwrap() {
        let rows = table["rows"].as_array().unwrap();
        let row = |name: &str| rows.iter().find(|row| row[0] == name);
        // 10^6 bytes in requests of 4 KiB and of 512 KiB.
        let per_mb = row("Requests per MB").unwrap();
        assert_eq!((per_mb[1]["median"].as_f64().unwrap() * 4096.0).round(), 1e6);
        assert_eq!((per_mb[2]["median"].as_f64().unwrap() * 524_288.0).round(), 1e6);
        assert!(row("Signals per request").unwrap()[1]["median"].as_f64().unwrap() > 0.0);
        assert!(row("CPU time per request, us").unwrap()[1]["median"].as_f64().unwrap() > 0.0);
        match row("System calls per request") {
            Some(calls) => assert!(calls[1]["median"].as_f64().unwrap() > 0.0),
            None => {
                let notes = report["notes"].to_string();
                assert!(notes.contains("not counted"), "{notes}");
                vlane_testing::skip(format!("system calls per request: {notes}"));
            }
        }
    }
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0);
}

#[test]
fn invalid_sizes_are_refused_before_measuring() {
    let mut command = Command::new(vlane());
    let (code, words) = served::ends(command.args(["work", "--bytes", "700K", "--no-guest"]));
    assert_eq!(code, Some(2), "{words}");
    assert!(words.contains("--bytes") && words.contains("multiple of 512K"), "{words}");
}
