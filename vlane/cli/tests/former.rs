//! Commands by their former names, in the program that people have.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::{Command, Output};

/// Runs a copy of the program in a directory of its own, with this `vlane-lab` beside it, if any.
fn run(lab: Option<&str>, words: &[&str]) -> (Option<i32>, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("vlane");
    let linked = std::fs::hard_link(env!("CARGO_BIN_EXE_vlane"), &program);
    if linked.is_err() {
        vlane_testing::copy_program(env!("CARGO_BIN_EXE_vlane").as_ref(), &program);
    }
    if let Some(script) = lab {
        vlane_testing::write_program(&directory.path().join("vlane-lab"), script);
    }
    let output = Command::new(program).args(words).env("PATH", "/usr/bin:/bin").output().unwrap();
    let Output { status, stdout, stderr } = output;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn former_command_starts_the_lab() {
    let lab = "#!/bin/sh\necho \"$@\"\nexit 3\n";
    let (status, out, err) = run(Some(lab), &["-q", "peers", "--rows", "null"]);
    assert_eq!((status, out.as_str()), (Some(3), "-q compare peers --rows null\n"), "{err}");
    assert!(err.contains("`vlane peers` is now `vlane-lab compare peers`"), "{err}");
}

#[test]
fn missing_lab_is_an_error_with_a_remedy() {
    let (status, _, err) = run(None, &["bench", "disk.sock"]);
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("vlane-lab bench") && err.contains("cargo install"), "{err}");
}

#[test]
fn former_volume_command_names_the_present_one() {
    let (status, _, err) = run(None, &["limit", "/nowhere.ctl", "--iops", "5"]);
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("`vlane limit` is now `vlane volume /nowhere.ctl limit`"), "{err}");
}

#[test]
fn experiment_option_names_the_lab() {
    let (status, _, err) =
        run(None, &["serve", "--null", "1G", "--socket", "s", "--latency", "1ms"]);
    assert_eq!(status, Some(2), "{err}");
    assert!(err.contains("--latency") && err.contains("vlane-lab serve"), "{err}");
}
