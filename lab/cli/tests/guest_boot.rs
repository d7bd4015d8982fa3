//! `vlane boot` as people use it: the demonstration, the dry run, and the end by Ctrl-C.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{QemuBed, Volume, one_at_a_time, vlane};

#[test]
fn demonstration_boots_guest_and_verifies_data() {
    let _turn = one_at_a_time();
    if QemuBed::find().is_none() {
        return;
    }
    let output = Command::new(vlane()).args(["boot", "--demo"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    for words in [
        "all checksums are right",
        "over 2 queues",
        "wrote 24 files",
        "e2fsck finds the file system clean",
    ] {
        assert!(text.contains(words), "no \"{words}\" in:\n{text}");
    }
    let volume =
        text.lines().find_map(|l| l.strip_prefix("volume")?.split_whitespace().next()).unwrap();
    assert!(!std::path::Path::new(volume).exists(), "{volume} was left behind");
}

#[test]
fn dry_run_only_prints_both_commands() {
    let volume = Volume::new(1 << 20);
    let image = volume.image.to_str().unwrap();
    let output = Command::new(vlane())
        .args([
            "boot",
            image,
            "--dry-run",
            "--vcpus",
            "3",
            "--packed",
            "--read-only",
            "--accel",
            "tcg",
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].contains(&format!(" serve {image} --socket "))
            && lines[0].ends_with("--queues 3 --read-only"),
        "{text}"
    );
    for words in [
        "qemu-system-x86_64",
        "share=on",
        "-smp 3",
        "num-queues=3,packed=on,bootindex=1",
        "-accel tcg",
    ] {
        assert!(lines[1].contains(words), "no \"{words}\" in {}", lines[1]);
    }
}

#[test]
fn missing_image_is_named_before_guest_starts() {
    let _turn = one_at_a_time();
    if QemuBed::find().is_none() {
        return;
    }
    let output = Command::new(vlane())
        .args(["boot", "/nowhere/disk.raw", "--accel", "tcg"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("/nowhere/disk.raw"), "{text}");
}

#[test]
fn bootable_image_runs_on_console_until_signal() {
    let _turn = one_at_a_time();
    if QemuBed::find().is_none() {
        return;
    }
    let volume = Volume::new(8 << 20);
    common::make_bootable(&volume.image);
    let temporary = tempfile::tempdir().unwrap();
    let mut child = Command::new(vlane())
        .arg("boot")
        .arg(&volume.image)
        .args(["--accel", "tcg", "--memory", "128"])
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut console = BufReader::new(child.stdout.take().unwrap()).lines();
    // It resets the machine each time: the second boot shows that a reset is served too.
    for _ in 0..2 {
        let read =
            console.by_ref().map_while(Result::ok).any(|line| line.contains("second_sector=read"));
        assert!(read, "the console ended without the word");
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    drop(console);
    assert!(!child.wait().unwrap().success());
    let mark = temporary.path().to_str().unwrap();
    assert_eq!(with_argument(mark), Vec::<String>::new(), "processes were left behind");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "files were left behind");
}

#[test]
fn interrupted_demonstration_cleans_up() {
    let _turn = one_at_a_time();
    if QemuBed::find().is_none() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let mut child = Command::new(vlane())
        .args(["boot", "--demo"])
        .env("TMPDIR", temporary.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mark = temporary.path().to_str().unwrap().to_string();
    let begun = Instant::now();
    // The back end and QEMU name the temporary directory in their arguments.
    while with_argument(&mark).len() < 2 {
        assert!(begun.elapsed() < common::LIMIT, "QEMU and the back end did not come up");
        assert!(child.try_wait().unwrap().is_none(), "the demonstration ended early");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(500));
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("ended by a signal"), "{said}");
    assert_eq!(with_argument(&mark), Vec::<String>::new(), "processes were left behind");
    let left: Vec<_> =
        std::fs::read_dir(temporary.path()).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "files were left behind: {left:?}");
}

#[test]
fn killed_demonstration_ends_its_children() {
    let _turn = one_at_a_time();
    if QemuBed::find().is_none() || vlane_guest::find_program("setpriv").is_none() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let mut child = Command::new(vlane())
        .args(["boot", "--demo"])
        .env("TMPDIR", temporary.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mark = temporary.path().to_str().unwrap().to_string();
    let wait = |what: &str, done: &dyn Fn(usize) -> bool| {
        let begun = Instant::now();
        while !done(with_argument(&mark).len()) {
            assert!(begun.elapsed() < common::LIMIT, "{what}: {:?}", with_argument(&mark));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait("nothing came up", &|n| n >= 2);
    child.kill().unwrap();
    child.wait().unwrap();
    wait("something stayed", &|n| n == 0);
}

/// The command lines of running processes that mention `word`.
fn with_argument(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(word) {
            found.push(line);
        }
    }
    found
}
