//! A server that takes a connection and never answers, as one that is stopped: each client says so,
//! and no error of the system's.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

/// Words of the system's that mean little to people.
const SYSTEMS_WORDS: [&str; 4] =
    ["os error 11", "temporarily unavailable", "os error 110", "partial message"];

/// The commands that talk to a server at a socket, by their definitions: their words, with the
/// socket in its place.
fn clients(command: &clap::Command, path: &[String], socket: &str, found: &mut Vec<Vec<String>>) {
    let is_socket = |arg: &clap::Arg| {
        let shown =
            arg.get_value_names().unwrap_or_default().iter().any(|name| name.contains("SOCKET"));
        shown || arg.get_id().as_str() == "socket"
    };
    let positionals: Vec<_> = command.get_positionals().collect();
    let takes_socket = matches!(positionals[..], [only] if is_socket(only));
    // A command with commands below it takes the socket before them.
    let path = match takes_socket && command.has_subcommands() {
        true => &[path, &[socket.to_owned()]].concat(),
        false => path,
    };
    if command.get_name() == "status" && path.first().is_some_and(|word| word == "volume") {
        found.push(path.to_vec());
    }
    if takes_socket && !command.has_subcommands() {
        let output = command
            .get_arguments()
            .find(|arg| arg.is_required_set() && arg.get_long() == Some("output"));
        let more =
            output.map(|_| ["--output".to_owned(), format!("{socket}.out")]).into_iter().flatten();
        found.push([path, &[socket.to_owned()]].concat().into_iter().chain(more).collect());
    }
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        clients(below, &[path, &[below.get_name().to_owned()]].concat(), socket, found);
    }
}

#[test]
fn silent_server_is_reported() {
    let directory = tempfile::TempDir::with_prefix("vlane-silence-").unwrap();
    let socket = directory.path().join("silent.sock");
    // Connections wait in its queue.
    let _listener = UnixListener::bind(&socket).unwrap();
    let socket = socket.display().to_string();
    let mut found = Vec::new();
    clients(&vlane_lab::command(), &[], &socket, &mut found);
    found.push(["sched", "status", "--socket", &socket].map(str::to_owned).to_vec());
    for name in ["classes", "limit", "record", "bench"] {
        assert!(found.iter().any(|words| words[0] == name), "{name} is not among {found:?}");
    }
    let start = |words: Vec<String>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vlane-lab"));
        command.args(&words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        (words, command.spawn().unwrap())
    };
    let started: Vec<_> = found.into_iter().map(start).collect();
    let mine = format!("(pid {})", std::process::id());
    for (words, child) in started {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!output.status.success(), "{words:?}: {said}");
        assert!(!SYSTEMS_WORDS.iter().any(|bad| said.contains(bad)), "{words:?}: {said}");
        let is_told =
            said.contains(&mine) && said.contains("has not answered for 10 s: is it stopped");
        assert!(is_told, "{words:?}: {said}");
    }
}
