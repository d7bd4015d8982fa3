//! The sched_ext vehicle in a guest whose kernel has it: faster, fair, decides as the policy does, leaves nothing behind.

#![allow(clippy::unwrap_used)]

use std::process::Command;

/// `vlane sched prove-sched-ext`, or why it cannot run here.
fn prove(arguments: &[&str]) -> Result<serde_json::Value, String> {
    if cfg!(not(feature = "sched-ext")) {
        return Err(
            "built without the feature sched-ext (needs make, pkg-config, libelf-dev, zlib1g-dev)".into()
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_vlane"))
        .args(["sched", "prove-sched-ext", "--install", "--limit", "170", "--json"])
        .arg(&json)
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let missing = ["is not on this machine", "was not downloaded", "apt-get", "only looked for on x86-64"];
    if !output.status.success() && missing.iter().any(|text| said.contains(text)) {
        return Err(said.lines().next().unwrap_or_default().to_string());
    }
    assert!(output.status.success(), "{}\n{said}", String::from_utf8_lossy(&output.stdout));
    Ok(serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap())
}

/// The rows of a section's table, by their first cell.
fn row<'a>(report: &'a serde_json::Value, section: &str, name: &str) -> &'a Vec<serde_json::Value> {
    let sections = report["sections"].as_array().unwrap();
    let section = sections.iter().find(|s| s["id"] == section).unwrap();
    let rows = section["blocks"][0]["rows"].as_array().unwrap();
    rows.iter().map(|row| row.as_array().unwrap()).find(|row| row[0] == name).unwrap()
}

#[test]
fn boosts_are_decided_as_the_policy_decides_and_a_killed_loader_leaves_no_scheduler() {
    let turns = ["--schedulers", "loan", "--repeats", "2", "--seconds", "4", "--kills", "10"];
    let report = match prove(&turns) {
        Ok(report) => report,
        Err(why) => {
            println!(
                "SKIPPED: boosts_are_decided_as_the_policy_decides_and_a_killed_loader_leaves_no_scheduler: {why}"
            );
            return;
        }
    };
    let decided = row(&report, "decisions", "loan");
    // How fast is for the experiment (loan-sched-ext) to say: the machine may be busy.
    assert!(decided[1]["max"].as_f64().unwrap() >= 1.0, "no boosts: {decided:?}");
    assert!(decided[6].as_f64().unwrap() > 1000.0, "nothing was recorded: {decided:?}");
    assert_eq!(decided[7].as_f64().unwrap(), 0.0, "the program and the policy part: {}", report["summary"]);
    let killed = row(&report, "kills", "kill -9");
    assert_eq!((killed[1].as_f64().unwrap(), killed[4].as_str().unwrap()), (10.0, "disabled"));
}
