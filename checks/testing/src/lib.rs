//! A test's way to skip where this machine lacks what it needs ([`skip`]), and how it waits for a
//! server without being its client ([`listens`]). Another process's open files: [`descriptors`].
//!
//! On a machine that must have everything (`CI=true`) that is a failure. Elsewhere a line
//! `SKIPPED: test: reason` goes to standard error, past the test harness, which hides what a
//! passing test prints with `println!` or `eprintln!`. `./test` collects these lines and shows them
//! again at its end.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Beginning of a line that reports a skipped test.
pub const MARK: &str = "SKIPPED: ";

/// Says that the test of this thread cannot run here, and why; the caller returns.
///
/// # Panics
/// With `CI=true`: there, what can be had must be there.
#[track_caller]
pub fn skip(why: impl Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(!everything_is_required(), "{test} cannot run, and with CI=true it must: {why}");
    // Not eprintln: the test harness captures that.
    let _ = writeln!(std::io::stderr(), "{MARK}{test}: {why}");
}

/// True if this machine must run every test: continuous integration says so with `CI=true`.
pub fn everything_is_required() -> bool {
    std::env::var_os("CI").is_some_and(|ci| ci == "true")
}

/// Writes a program, by another process. No thread of this one has it open for writing then. A
/// program that another test starts at that moment would keep it open, and "Text file busy" would
/// be the answer to the first start.
///
/// # Panics
/// If it cannot be written.
#[track_caller]
pub fn write_program(path: &Path, text: &str) {
    let mut install = Command::new("install");
    let install = install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut child = install.spawn().expect("install(1)");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("the program's text");
    drop(input);
    assert!(child.wait().is_ok_and(|status| status.success()), "{}", path.display());
}

/// Copies a program, as [`write_program`] writes one.
///
/// # Panics
/// If it cannot be copied.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "{}", to.display());
}

/// True if a process listens at this path, found without connecting to it. A socket's file exists a
/// moment before that.
pub fn listens(path: &Path) -> bool {
    // proc_net(5): number, references, protocol, flags, type, state, inode, path. The flag is
    // `__SO_ACCEPTCON`.
    let sockets = std::fs::read("/proc/net/unix").unwrap_or_default();
    String::from_utf8_lossy(&sockets).lines().any(|line| {
        let mut fields = line.split_whitespace();
        fields.nth(3) == Some("00010000") && fields.nth(3).is_some_and(|at| Path::new(at) == path)
    })
}

/// An open descriptor of another process.
#[derive(Debug)]
pub struct Descriptor {
    /// Its number there.
    pub number: u32,
    /// Its file: a path, or a kind such as `anon_inode:[eventfd]`.
    pub file: String,
    /// It is closed when that process executes a program.
    pub closes_on_exec: bool,
}

/// The open descriptors of a process; none of one that is gone.
pub fn descriptors(pid: u32) -> Vec<Descriptor> {
    let process = Path::new("/proc").join(pid.to_string());
    let one = |name: &std::ffi::OsStr| {
        // One that is closed meanwhile counts no more.
        let file =
            std::fs::read_link(process.join("fd").join(name)).ok()?.to_string_lossy().into_owned();
        let info = std::fs::read_to_string(process.join("fdinfo").join(name)).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim();
        let closes_on_exec = u32::from_str_radix(flags, 8).ok()? & 0o2_000_000 != 0;
        Some(Descriptor { number: name.to_str()?.parse().ok()?, file, closes_on_exec })
    };
    let listed = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    listed.filter_map(|entry| one(&entry.file_name())).collect()
}

/// The files that a program would inherit if the process executed it, standard streams apart.
pub fn inherited(pid: u32) -> Vec<String> {
    let open = descriptors(pid).into_iter().filter(|one| one.number > 2 && !one.closes_on_exec);
    open.map(|one| one.file).collect()
}

#[cfg(test)]
#[test]
fn process_with_only_a_file_does_not_listen() {
    use std::os::unix::net::{UnixListener, UnixStream};
    let path = std::env::temp_dir().join(format!("vlane-testing-{}.sock", std::process::id()));
    assert!(!listens(&path));
    let listener = UnixListener::bind(&path).expect("a socket");
    assert!(listens(&path));
    let connection = UnixStream::connect(&path).expect("a connection");
    drop(listener);
    assert!(path.exists() && !listens(&path));
    drop(connection);
    std::fs::remove_file(&path).expect("its file");
}
