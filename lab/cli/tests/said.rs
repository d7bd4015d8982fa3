//! Messages of the server and its clients when a client waits, and when the image's size changes.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod served;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use served::{LIMIT, Place, stop, vlane};
use vlane_driver::SessionOptions;

const MIB: u64 = 1 << 20;

#[test]
fn waiting_client_says_so_and_connects() {
    let place = Place::new(MIB);
    let server = place.serve(&[]);
    let session = place.connect(&SessionOptions::default());
    let mut bench = Command::new(vlane())
        .arg("bench")
        .arg(&place.socket)
        .args(["--time", "100ms", "--ramp", "0s"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(bench.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("does not answer yet") && line.contains("another front end"), "{line}");
    drop(session);
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(bench.wait().unwrap().success(), "{rest}");
    let front_ends = [
        format!("front end pid {} (", std::process::id()),
        format!("front end pid {} (vlane-lab)", bench.id()),
    ];
    for front_end in front_ends {
        assert!(server.wait_log(&front_end, LIMIT), "{front_end}: {}", server.log());
    }
    stop(server);
}

#[test]
fn reload_reports_changed_and_unchanged_size() {
    let place = Place::new(MIB);
    let server = place.serve(&[]);
    let pid = rustix::process::Pid::from_raw(server.id().cast_signed()).unwrap();
    let image = std::fs::OpenOptions::new().write(true).open(&place.image).unwrap();
    for (size, what) in [
        (2 * MIB, "grew from 1048576 to 2097152 bytes"),
        (2 * MIB, "still has 2097152 bytes"),
        (MIB, "shrank from 2097152 to 1048576 bytes"),
    ] {
        image.set_len(size).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
        let begin = Instant::now();
        while !server.log().contains(what) {
            assert!(begin.elapsed() < LIMIT, "never: {what}: {}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    stop(server);
}
