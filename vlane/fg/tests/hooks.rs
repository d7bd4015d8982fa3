//! Code that a shell evaluates: it wakes the daemon, and has no other visible effect.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::process::Command;

use common::{Daemon, PROGRAM, Shell, may_raise, until, until_it_has, values};

const RAISED: &str = "-10 be/0";
const OWN: &str = "0 none";
/// Looking comes late, but soon enough for a test that waits on a busy machine.
const DEAF: [&str; 3] = ["--no-events", "--every", "20s"];

fn hook(shell: &str, dir: &Path) -> String {
    format!("eval \"$({PROGRAM} hook {shell} --state-dir {})\"", dir.display())
}

fn raised_by_the_hook(mut shell: Shell, name: &str) {
    let daemon = Daemon::new(&shell, &DEAF);
    let line = hook(name, &daemon.dir);
    shell.line(&line);
    until_it_has(shell.pid(), RAISED);
    let job = shell.job("JOB");
    until_it_has(shell.pid(), OWN);
    until_it_has(job, RAISED);
    shell.stop();
    until_it_has(job, OWN);
    until_it_has(shell.pid(), RAISED);
    shell.line("fg");
    until_it_has(job, RAISED);
    daemon.until_status_has("; hook");
}

#[test]
fn bash_hook_wakes_daemon_around_commands() {
    if may_raise() {
        raised_by_the_hook(Shell::bash(), "bash");
    }
}

fn zsh() -> Option<Shell> {
    if Command::new("zsh").arg("--version").output().is_err() {
        vlane_testing::skip("zsh is not there");
        return None;
    }
    Some(Shell::start("zsh", &["-f", "-i", "+Z", "+o", "PROMPT_SP"]))
}

#[test]
fn zsh_hook_wakes_daemon_around_commands() {
    if !may_raise() {
        return;
    }
    if let Some(shell) = zsh() {
        raised_by_the_hook(shell, "zsh");
    }
}

#[test]
fn hook_without_daemon_has_no_effect() {
    let temporary = tempfile::tempdir().unwrap();
    let mut shells = vec![("bash", Shell::bash())];
    shells.extend(zsh().map(|shell| ("zsh", shell)));
    for (name, mut shell) in shells {
        for there in [false, true] {
            // Once without its directory, once with what a killed one has left.
            let dir = temporary.path().join(format!("{name}{there}"));
            if there {
                std::fs::create_dir(&dir).unwrap();
                std::fs::write(dir.join("bell"), "").unwrap();
            }
            shell.line("unset __vlane_fg_dirs");
            shell.line(&hook(name, &dir));
            shell.answer("true");
            for command in ["(exit 7)", "false"] {
                shell.line(command);
                shell.line("before=$?");
                let wanted = if command == "false" { "1" } else { "7" };
                assert_eq!(shell.answer("echo $before"), wanted, "{name}");
            }
        }
        let said = shell.said();
        assert!(!said.contains("No such file") && !said.contains("no such file"), "{said}");
    }
}

/// The lines that a shell prints for a trap: not those in which it was typed.
fn lines(said: &str, line: &str) -> usize {
    said.lines().filter(|said| said.trim_end() == line).count()
}

#[test]
fn hook_keeps_traps_and_last_status() {
    let temporary = tempfile::tempdir().unwrap();
    std::fs::write(temporary.path().join("bell"), "").unwrap();
    let mut shell = Shell::bash();
    shell.line("PROMPT_COMMAND=('echo before=$?')");
    shell.line("trap 'echo error=$?' ERR; trap 'last=$?' DEBUG");
    shell.line(&hook("bash", temporary.path()));
    shell.line("PROMPT_COMMAND+=('echo after=$?')");
    shell.answer("true");
    shell.line("(exit 9)");
    until("the prompt after it", || (lines(&shell.said(), "after=9") == 1).then_some(()));
    shell.line("echo last=$last");
    let said = until("its answer", || {
        let said = shell.said();
        (lines(&said, "last=9") == 1).then_some(said)
    });
    assert_eq!(lines(&said, "error=9"), 1, "{said}");
    assert_eq!(lines(&said, "before=9"), 1, "{said}");
    assert_eq!(lines(&said, "after=9"), 1, "{said}");
    assert_eq!(
        shell.answer("echo \"${PROMPT_COMMAND[*]}\""),
        "__vlane_fg_prompt echo before=$? echo after=$?",
        "the user's take their time"
    );
    assert_eq!(shell.answer("trap -p DEBUG"), "trap -- 'last=$?' DEBUG");
}

/// The shells end at any error, or have read-only variables.
#[test]
fn hook_survives_strict_shells() {
    let temporary = tempfile::tempdir().unwrap();
    let mut shell = Shell::bash();
    shell.line("set -eu; readonly PROMPT_COMMAND PS0");
    shell.line(&hook("bash", temporary.path()));
    assert_eq!(shell.answer("echo $((6 * 7))"), "42");
    assert!(!shell.said().contains("readonly variable"), "{}", shell.said());
    let mut shell = Shell::bash();
    // The bell is gone between a prompt and the next command, too.
    std::fs::write(temporary.path().join("bell"), "").unwrap();
    shell.line("set -eu -o pipefail; set -o noclobber");
    shell.line(&hook("bash", temporary.path()));
    assert_eq!(shell.answer("echo $((6 * 7))"), "42");
    std::fs::remove_file(temporary.path().join("bell")).unwrap();
    assert_eq!(shell.answer("echo $((6 * 7))"), "42");
    assert_eq!(shell.answer("echo $((7 * 7))"), "49");
}

#[test]
fn non_interactive_shell_gets_no_hook() {
    let temporary = tempfile::tempdir().unwrap();
    let script = format!(
        "set -eu\n{}\ndeclare -p PROMPT_COMMAND PS0 || echo none",
        hook("bash", temporary.path())
    );
    let output =
        Command::new("bash").args(["--norc", "-c", &script]).env_remove("PS0").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "none\n");
}

#[test]
fn process_events_raise_job_then_shell() {
    if !may_raise() {
        return;
    }
    let mut shell = Shell::bash();
    let daemon = Daemon::new(&shell, &["--every", "20s"]);
    if !daemon.status().contains("by process events") {
        return vlane_testing::skip(format!("no process events: {}", daemon.status()));
    }
    let job = shell.job("JOB");
    until_it_has(job, RAISED);
    shell.keys("\x03");
    until_it_has(shell.pid(), RAISED);
    assert!(values(job).is_none_or(|values| values == RAISED || values == OWN));
}
