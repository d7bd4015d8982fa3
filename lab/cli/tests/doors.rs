//! The rights to connect to the sockets of `vlane serve`, and the answers there.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod served;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use served::{LIMIT, Place, ends, stop};
use vlane_driver::SessionOptions;

const MIB: u64 = 1 << 20;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().ino()
}

#[test]
fn sockets_have_requested_mode_and_group() {
    let place = Place::new(MIB);
    let [control, asked] = ["all.ctl", "asked.ctl"].map(|name| place.path(name));
    let words = [
        ("--control", control.to_str().unwrap()),
        ("--control-read-only", asked.to_str().unwrap()),
        ("--socket-mode", "606"),
        ("--control-mode", "640"),
        ("--control-read-only-mode", "664"),
    ];
    let mut options: Vec<&str> =
        words.iter().flat_map(|(option, value)| [*option, *value]).collect();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        options.extend([
            "--socket-group",
            "4242",
            "--control-group",
            "4243",
            "--control-read-only-group",
            "4244",
        ]);
    }
    let server = place.serve(&options);
    let sockets = [&place.socket, &control, &asked].map(|path| path.as_path());
    assert_eq!(sockets.map(mode), [0o606, 0o640, 0o664]);
    if is_root {
        assert_eq!(sockets.map(|path| std::fs::metadata(path).unwrap().gid()), [4242, 4243, 4244]);
    }
    drop(place.connect(&SessionOptions::default()));

    // The next program listens at the same ones.
    let before = sockets.map(inode);
    kill_process(Pid::from_raw(server.id().try_into().unwrap()).unwrap(), Signal::USR2).unwrap();
    assert!(server.wait_log("upgraded in place", LIMIT), "{}", server.log());
    assert_eq!(sockets.map(inode), before);
    for control in [&control, &asked] {
        let volume: serde_json::Value =
            vlane_testbed::control::Control::new(control).get("/v1/volume").unwrap();
        assert_eq!(volume["size"].as_u64(), Some(MIB), "{volume}");
    }
    stop(server);
    assert!(sockets.iter().all(|path| !path.exists()));
}

/// A group alone is meant to be able to connect.
#[test]
fn only_the_group_may_connect() {
    let place = Place::new(MIB);
    let control = place.path("disk.ctl");
    let own = rustix::process::getegid().as_raw().to_string();
    let options =
        ["--socket-group", &own, "--control", control.to_str().unwrap(), "--control-group", &own];
    let server = place.serve(&options);
    assert_eq!((mode(&place.socket), mode(&control)), (0o660, 0o660));
    stop(server);
    let server = place.serve(&["--control", control.to_str().unwrap()]);
    assert_eq!(mode(&control), 0o600, "nobody else without a word");
    stop(server);
}

#[test]
fn wrong_modes_and_groups_are_refused() {
    let place = Place::new(MIB);
    for (options, parts) in [
        (
            ["--socket-group", "no such group"],
            ["--socket-group", "no group is called", "getent group"],
        ),
        (["--socket-mode", "rw"], ["--socket-mode", "octal", "660"]),
        (["--control-mode", "660"], ["--control", "required", "PATH"]),
    ] {
        let (code, words) = ends(&mut place.command(&options));
        assert_eq!(code, Some(2), "{words}");
        assert!(parts.iter().all(|part| words.contains(part)), "{words}");
    }
}
