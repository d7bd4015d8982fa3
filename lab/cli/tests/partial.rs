//! A run that is ended, or whose server dies, or whose result cannot be written, keeps what it has
//! and says so.

#![allow(clippy::unwrap_used, reason = "tests")]

mod served;

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use served::{LIMIT, Place, ends, start, vlane};
use vlane_guest::{Backend, Host, Install, UmlProgram};
use vlane_testbed::Control;

/// A device without media, with a control socket.
fn serve(place: &Place) -> Backend {
    let mut command = Command::new(vlane());
    command.args(["serve", "--null", "1G", "--socket"]).arg(&place.socket);
    command.arg("--control").arg(place.path("disk.ctl"));
    start(&command, &place.socket).unwrap()
}

fn bench(place: &Place, time: &str) -> Command {
    let mut command = Command::new(vlane());
    command.arg("bench").arg(&place.socket).args(["--ramp", "0", "--time", time]);
    command
}

fn begin(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < 3 * LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn recording_of_a_killed_server_is_partial() {
    let place = Place::new(1 << 20);
    let server = serve(&place);
    let file = place.path("disk.trc");
    let recorder =
        begin(Command::new(vlane()).arg("record").arg(place.path("disk.ctl")).arg("-o").arg(&file));
    until("it records", || file.exists());
    // The recorder writes in large pieces: a slow machine makes enough requests in several turns.
    let begun = Instant::now();
    while std::fs::metadata(&file).unwrap().len() <= 1 << 16 {
        assert!(begun.elapsed() < 3 * LIMIT, "nothing is written");
        let (status, words) = ends(&mut bench(&place, "300ms"));
        assert_eq!(status, Some(0), "{words}");
    }
    server.kill();
    let output = recorder.wait_with_output().unwrap();
    let (out, err) = said(&output);
    assert_eq!(output.status.code(), Some(3), "{out}{err}");
    assert!(err.contains("PARTIAL") && err.contains("the server broke off"), "{err}");
    assert!(out.contains("cut off") && !out.contains("none lost"), "{out}");
    // The trace until then can be used, and is known to be a part.
    let analyzed = begin(Command::new(vlane()).args(["trace", "analyze"]).arg(&file))
        .wait_with_output()
        .unwrap();
    assert_eq!(analyzed.status.code(), Some(3), "{analyzed:?}");
    assert!(said(&analyzed).0.contains("reads"), "{analyzed:?}");
}

/// Interrupts a command once `line` has been logged, and checks that it keeps what it has. The
/// text, the page and the JSON are marked as partial, and the status is 3.
fn is_kept(place: &Place, words: &[&str], line: &str) {
    let name = words
        .iter()
        .take_while(|word| !word.starts_with('-'))
        .copied()
        .collect::<Vec<_>>()
        .join("-");
    let name = name.replace('/', "_");
    let (html, json) = (place.path(&format!("{name}.html")), place.path(&format!("{name}.json")));
    let mut command = Command::new(vlane());
    command.arg("-v").args(words).arg("--html").arg(&html).arg("--json").arg(&json);
    let mut child = begin(command.current_dir(place.path(".")));
    let mut log = String::new();
    let mut errors = child.stderr.take().unwrap();
    while !log.contains(line) {
        let mut bytes = [0; 4096];
        let length = errors.read(&mut bytes).unwrap();
        assert!(length > 0, "{name} ended: {log}");
        log += &String::from_utf8_lossy(&bytes[..length]);
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    errors.read_to_string(&mut log).unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, _) = said(&output);
    assert_eq!(output.status.code(), Some(3), "{name}: {out}{log}");
    assert!(out.contains("PARTIAL: ") && out.contains("interrupted"), "{name}: {out}");
    assert!(std::fs::read_to_string(html).unwrap().contains("PARTIAL: "), "{name}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert!(
        json["partial"].as_str().is_some_and(|words| words.contains("interrupted")),
        "{name}: {json}"
    );
}

/// Commands that measure and write a report, each with its shortest part: tried without guests.
const NATIVE: [(&[&str], &str); 3] = [
    (
        &[
            "prove",
            "express",
            "native",
            "--queues",
            "2",
            "--readers",
            "8",
            "--loads",
            "uneven",
            "--modes",
            "off,order",
            "--repeat",
            "4",
            "--ramp",
            "10ms",
            "--time",
            "2s",
            "--think",
            "0",
        ],
        "round 1 of 4 is whole",
    ),
    (&["prove", "limits", "--time", "1"], "row 1 of "),
    (&["simulate", "--time", "100", "--seeds", "20"], "was simulated"),
];

/// Those that need a guest, or more than a test has the time for. Their parts are kept by the same
/// code, `vlane_testbed::Rounds`.
const OTHERS: [&str; 14] = [
    "compare caches",
    "compare host",
    "prove express fsync",
    "prove express guests",
    "prove express launch",
    "prove journal",
    "compare peers",
    "prove power-cut",
    "prove loans",
    "prove sched-ext",
    "prove bypass",
    "prove lanes",
    "prove together",
    "compare topologies",
];

/// Commands whose interruption has a test of its own, or that do not measure.
const NO_REPORT: [&str; 8] = [
    "trace analyze",
    "bench",
    "inspect",
    "trace replay",
    "report",
    "sched run",
    "sched status",
    "sched top",
];

#[test]
fn interrupted_measurement_keeps_whole_parts() {
    let place = Place::new(1 << 20);
    for (words, line) in NATIVE {
        is_kept(&place, words, line);
    }
}

#[test]
fn interrupted_guests_keep_whole_parts() {
    let found = Host::new(Install::Never).and_then(|host| UmlProgram::find(&host));
    if let Err(error) = found {
        return vlane_testing::skip(error);
    }
    let place = Place::new(1 << 20);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path().to_str().unwrap();
    let steps = ["--steps", "5", "--states", "100000", "--cache", "none", "--disk-dir", dir];
    is_kept(&place, &[&["prove", "power-cut"], &steps[..]].concat(), "a state was looked at");
    let guests = "ordered-4,xfs-64";
    is_kept(&place, &["prove", "journal", "--only", guests], "guest 1 of 2 is whole");
}

#[test]
fn all_commands_with_reports_are_listed() {
    fn with_reports(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            let name = format!("{path} {}", below.get_name()).trim().to_owned();
            let has = |option| below.get_arguments().any(|arg| arg.get_long() == Some(option));
            if ["html", "json", "save"].into_iter().any(has) {
                found.push(name.clone());
            }
            with_reports(below, &name, found);
        }
    }
    let mut found = Vec::new();
    with_reports(&vlane_lab::command(), "", &mut found);
    let native =
        NATIVE.iter().map(|(words, _)| words.iter().take_while(|word| !word.starts_with('-')));
    let native = native.map(|words| words.copied().collect::<Vec<_>>().join(" "));
    let others = OTHERS.iter().chain(&NO_REPORT).map(ToString::to_string);
    let mut known: Vec<String> = native.chain(others).collect();
    known.sort();
    found.sort();
    assert_eq!(found, known, "a new command belongs into one of the lists above");
}

/// Starts a measurement at the socket, interrupts it, and gives what it printed, with its status 3.
fn interrupted(mut child: Child, until: impl FnMut(&mut Child) -> bool) -> String {
    let mut until = until;
    let begun = Instant::now();
    while !until(&mut child) {
        assert!(begun.elapsed() < 3 * LIMIT, "it does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) = said(&output);
    assert_eq!(output.status.code(), Some(3), "{out}{err}");
    out
}

#[test]
fn interrupted_replay_keeps_finished_part() {
    let place = Place::new(1 << 20);
    let server = serve(&place);
    let (file, json) = (place.path("disk.trc"), place.path("replay.json"));
    let recorder =
        begin(Command::new(vlane()).arg("record").arg(place.path("disk.ctl")).arg("-o").arg(&file));
    until("it records", || file.exists());
    // Few enough that a slow machine keeps up, and long enough that the test need not wait for the
    // end.
    let (status, words) = ends(bench(&place, "3s").args(["--rate", "500", "--depth", "1"]));
    assert_eq!(status, Some(0), "{words}");
    kill_process(Pid::from_child(&recorder), Signal::INT).unwrap();
    let output = recorder.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "an end that was asked for is a whole recording: {output:?}"
    );
    let mut command = Command::new(vlane());
    command
        .args(["trace", "replay"])
        .arg(&file)
        .arg(&place.socket)
        .args(["--speed", "0.01", "--json"])
        .arg(&json);
    let control = Control::new(place.path("disk.ctl"));
    let reads = || control.counters().unwrap().sum["reads"];
    let before = reads();
    let child = begin(&mut command);
    // Five in a second. The count of the last one of the load may come late.
    let out = interrupted(child, |_| reads() > before + 2);
    assert!(out.contains("PARTIAL: ") && out.contains("were replayed: interrupted"), "{out}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert!(json["partial"].is_string(), "{json}");
    server.stop(LIMIT).unwrap();
}

#[test]
fn unwritable_file_falls_back_to_text() {
    let place = Place::new(1 << 20);
    let server = serve(&place);
    let directory = place.path("results");
    let several = ["--json", "--html", "--save"].map(|option| ["--repeat", "2", option]);
    let control = Control::new(place.path("disk.ctl"));
    let sessions = || control.volume().unwrap().sessions;
    for words in [&["--json"][..]].into_iter().chain(several.iter().map(|words| &words[..])) {
        let name = directory.join("result.json");
        let begun = Instant::now();
        let output = loop {
            std::fs::create_dir(&directory).unwrap();
            let before = sessions();
            let child = begin(bench(&place, "700ms").args(words).arg(&name));
            // It has tried the place of the file by then.
            until("it measures", || sessions() > before);
            let is_in_time = std::fs::remove_dir(&directory).is_ok();
            let output = child.wait_with_output().unwrap();
            if is_in_time {
                break output;
            }
            // The result was there already: this test was off the CPU, and tries again.
            assert!(begun.elapsed() < 3 * LIMIT, "{words:?}: always too late: {output:?}");
            std::fs::remove_dir_all(&directory).unwrap();
        };
        let (out, err) = said(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {out}{err}");
        assert!(err.contains(&directory.display().to_string()), "{words:?}: {err}");
        assert!(out.contains("IOPS"), "{words:?}: the measurement is lost: {out}{err}");
    }
    server.stop(LIMIT).unwrap();
}

#[test]
fn result_path_is_checked_before_work() {
    let place = Place::new(1 << 20);
    // No user may make a file there, root included.
    let name = "/proc/self/task/result.json";
    for words in [
        &["bench", "no.sock", "--json", name][..],
        &["prove", "express", "native", "--json", name],
        &["prove", "together", "--json", name],
        &["compare", "host", "--work", "--html", "/proc/self/task/result.html"],
        &["compare", "host", "--json", name],
        &["record", "no.ctl", "-o", name],
    ] {
        let (status, words) = ends(Command::new(vlane()).args(words).current_dir(place.path(".")));
        assert_eq!(status, Some(1), "{words}");
        assert!(
            words.contains("/proc/self/task/result") && words.contains("cannot be written"),
            "{words}"
        );
    }
}
