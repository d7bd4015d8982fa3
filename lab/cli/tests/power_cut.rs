//! Possible states after a power cut, with a real guest and every cache mode: a sample of the
//! command `vlane-lab prove power-cut`.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{UmlBed, one_at_a_time};

/// The words and numbers of a table of a report, by row.
fn rows(report: &serde_json::Value, section: &str) -> Vec<Vec<serde_json::Value>> {
    let sections = report["sections"].as_array().unwrap();
    let section = sections.iter().find(|one| one["id"] == section).unwrap();
    let rows = section["blocks"][0]["rows"].as_array().unwrap();
    rows.iter().map(|row| row.as_array().unwrap().clone()).collect()
}

/// Runs the command, which has to find no fault. Returns its report, and its output.
fn power_cut(words: &[&str]) -> (serde_json::Value, String) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let result = dir.path().join("result.json");
    let mut command = Command::new(common::vlane());
    command.args(["prove", "power-cut", "--install"]).args(words);
    command.arg("--disk-dir").arg(dir.path()).arg("--json").arg(&result);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    (serde_json::from_slice(&std::fs::read(&result).unwrap()).unwrap(), said)
}

#[test]
fn power_cut_keeps_file_system_and_durable_data() {
    let _turn = one_at_a_time();
    // Says what is missing.
    if UmlBed::find().is_none() {
        return;
    }
    let (report, said) = power_cut(&["--steps", "25", "--states", "28", "--broken-states", "49"]);
    // Every mode that `vlane serve` has, whichever those are.
    let serve = vlane_lab::command();
    let serve = serve.find_subcommand("serve").unwrap();
    let cache = serve.get_arguments().find(|arg| arg.get_id() == "cache").unwrap();
    let values = cache.get_possible_values();
    let mut modes: Vec<&str> =
        values.iter().map(|value| value.get_name()).filter(|mode| *mode != "auto").collect();
    modes.push("pdc-direct");
    let recorded = rows(&report, "record");
    let tested: Vec<&str> = recorded.iter().map(|row| row[1].as_str().unwrap()).collect();
    assert_eq!(tested, modes);
    for row in &recorded {
        // The guest's steps are all there: two programs, twenty-five each. And no promise was
        // broken.
        assert_eq!((row[2].as_f64(), row[9].as_f64()), (Some(50.0), Some(0.0)), "{said}");
        // And where the journal is to be direct, it was.
        let is_direct = row[1].as_str() == Some("pdc-direct");
        assert_eq!(row[5].as_f64() > Some(0.0), is_direct, "{said}");
    }
    let mut seen = 0.0;
    for row in rows(&report, "states") {
        let (states, unsound, lost) = (row[3].as_f64(), row[5].as_f64(), row[6].as_f64());
        assert!(states >= Some(20.0), "{said}");
        match row[2].as_str().unwrap() {
            "as it is" => assert_eq!((unsound, lost), (Some(0.0), Some(0.0)), "{said}"),
            _ => {
                assert!(lost > Some(0.0), "{said}");
                seen += unsound.unwrap();
            }
        }
    }
    // Both ways see that something is wrong. A volume may have no unsound state among so few.
    assert!(seen > 0.0, "{said}");
}

#[test]
fn power_cut_keeps_mails_and_transactions() {
    let _turn = one_at_a_time();
    if UmlBed::find().is_none() {
        return;
    }
    let words = [
        "--load",
        "mail,sqlite",
        "--cache",
        "pdc",
        "--steps",
        "10",
        "--states",
        "14",
        "--broken-states",
        "42",
    ];
    let (report, said) = power_cut(&words);
    let recorded = rows(&report, "record");
    let names: Vec<[&str; 2]> =
        recorded.iter().map(|row| [row[0].as_str().unwrap(), row[1].as_str().unwrap()]).collect();
    let [mail, sqlite] = ["ext4, mail", "ext4, sqlite"];
    assert_eq!(
        names,
        [[mail, "pdc"], [mail, "pdc-direct"], [sqlite, "pdc"], [sqlite, "pdc-direct"]]
    );
    for row in &recorded {
        assert_eq!((row[2].as_f64(), row[9].as_f64()), (Some(20.0), Some(0.0)), "{said}");
    }
    for row in rows(&report, "states") {
        let (states, unsound, lost) = (row[3].as_f64(), row[5].as_f64(), row[6].as_f64());
        assert!(states >= Some(13.0), "{said}");
        match row[2].as_str().unwrap() {
            "as it is" => assert_eq!((unsound, lost), (Some(0.0), Some(0.0)), "{said}"),
            _ => assert!(lost > Some(0.0), "{said}"),
        }
    }
}

fn refusal(image: &Path, record: &Path) -> String {
    let mut command = Command::new(common::vlane());
    command.arg("serve").arg(image).arg("--socket").arg(image.with_extension("sock"));
    let output = command.arg("--danger-record-storage").arg(record).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn record_never_replaces_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.raw");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    for there in [image.clone(), dir.path().join("other")] {
        if there != image {
            std::fs::write(&there, "mine").unwrap();
        }
        let before = std::fs::read(&there).unwrap();
        let words = refusal(&image, &there);
        let why = if there == image { "is the path of the image" } else { "is there already" };
        assert!(words.contains(why) && words.contains("--danger-record-storage"), "{words}");
        assert!(std::fs::read(&there).unwrap() == before);
    }
    let words = refusal(&image, &dir.path().join("no/such/directory"));
    assert!(words.contains("cannot be created") && words.contains("No such file"), "{words}");
}
