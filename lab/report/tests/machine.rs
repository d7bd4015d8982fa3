//! Facts in reports about the build and the machine, seen from outside.

#![allow(clippy::unwrap_used, reason = "tests may")]

use vlane_report::{Begun, Machine, Report, machine};

#[test]
fn reports_have_the_builds_first_commit() {
    machine::built_from(None);
    machine::built_from(Some("0123456789ab+\n"));
    machine::built_from(Some("another"));
    assert_eq!(Machine::describe(&[]).commit, "0123456789ab+");
}

#[test]
fn earlier_reports_lack_commit_and_load() {
    let report = Begun::now("vlane").report("test", "A test", &[]);
    assert!(report.machine.load.is_some(), "the kernel tells how busy it is");
    let mut json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
    let machine = json["machine"].as_object_mut().unwrap();
    for added in ["commit", "storage", "load"] {
        assert!(machine.remove(added).is_some(), "{added}");
    }
    let old = Report::from_json(&json.to_string()).unwrap();
    assert_eq!(
        old.machine,
        Machine { commit: String::new(), storage: Vec::new(), load: None, ..report.machine }
    );
}
