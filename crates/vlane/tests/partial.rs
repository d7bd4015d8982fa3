//! A run that is ended, or whose server dies, or whose result cannot be written, keeps what it has
//! and says so.

#![allow(clippy::unwrap_used, reason = "tests")]

mod served;

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use served::{LIMIT, Place, ends, start, vlane};
use vlane_boot::Backend;

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
    let (status, words) = ends(&mut bench(&place, "300ms"));
    assert_eq!(status, Some(0), "{words}");
    until("something is written", || std::fs::metadata(&file).unwrap().len() > 1 << 16);
    server.kill();
    let output = recorder.wait_with_output().unwrap();
    let (out, err) = said(&output);
    assert_eq!(output.status.code(), Some(3), "{out}{err}");
    assert!(err.contains("PARTIAL") && err.contains("the server broke off"), "{err}");
    assert!(out.contains("cut off") && !out.contains("none lost"), "{out}");
    // The trace until then can be used, and is known to be a part.
    let analyzed = begin(Command::new(vlane()).arg("analyze").arg(&file)).wait_with_output().unwrap();
    assert_eq!(analyzed.status.code(), Some(3), "{analyzed:?}");
    assert!(said(&analyzed).0.contains("reads"), "{analyzed:?}");
}

#[test]
fn interrupted_measurement_keeps_complete_rounds() {
    let place = Place::new(1 << 20);
    let html = place.path("express.html");
    let mut command = Command::new(vlane());
    command.args(["-v", "express", "native", "--queues", "2", "--readers", "8", "--loads", "uneven"]);
    command.args([
        "--modes",
        "off,order",
        "--repeat",
        "1000",
        "--ramp",
        "10ms",
        "--time",
        "400ms",
        "--think",
        "0",
    ]);
    let mut child = begin(command.arg("--html").arg(&html));
    // Three arms are a round.
    let mut log = String::new();
    let mut errors = child.stderr.take().unwrap();
    while log.matches("measured").count() < 5 {
        let mut bytes = [0; 4096];
        let length = errors.read(&mut bytes).unwrap();
        assert!(length > 0, "it ended: {log}");
        log += &String::from_utf8_lossy(&bytes[..length]);
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    errors.read_to_string(&mut log).unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, _) = said(&output);
    assert_eq!(output.status.code(), Some(3), "{out}{log}");
    assert!(out.contains("PARTIAL: ") && out.contains("interrupted") && out.contains("order"), "{out}");
    assert!(std::fs::read_to_string(html).unwrap().contains("PARTIAL: "));
}

#[test]
fn text_is_given_when_the_file_cannot_be_written() {
    let place = Place::new(1 << 20);
    let server = serve(&place);
    let directory = place.path("results");
    for words in [&["--json"][..], &["--repeat", "2", "--json"], &["--repeat", "2", "--html"]] {
        std::fs::create_dir(&directory).unwrap();
        let name = directory.join("result.json");
        let connected = || server.log().matches(" connected").count();
        let before = connected();
        let child = begin(bench(&place, "700ms").args(words).arg(&name));
        // It has tried the place of the file by then.
        until("it measures", || connected() > before);
        let output = child.wait_with_output().unwrap();
        let (out, err) = said(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {out}{err}");
        assert!(err.contains(&directory.display().to_string()), "{words:?}: {err}");
        assert!(out.contains("IOPS"), "{words:?}: the measurement is lost: {out}{err}");
    }
    server.stop(LIMIT).unwrap();
}

#[test]
fn place_of_a_result_is_tried_before_the_work() {
    let place = Place::new(1 << 20);
    // No user may make a file there, root included.
    let name = "/proc/self/task/result.json";
    for words in [
        &["bench", "no.sock", "--json", name][..],
        &["express", "native", "--json", name],
        &["together", "--json", name],
        &["work", "--html", "/proc/self/task/result.html"],
        &["compare", "--json", name],
        &["record", "no.ctl", "-o", name],
    ] {
        let (status, words) = ends(Command::new(vlane()).args(words).current_dir(place.path(".")));
        assert_eq!(status, Some(1), "{words}");
        assert!(words.contains("/proc/self/task/result") && words.contains("cannot be written"), "{words}");
    }
}
