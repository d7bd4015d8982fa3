//! What a test does when this machine lacks what it needs: [`skip`], and nothing else.
//!
//! On a machine that must have everything (`CI=true`) that is a failure. Elsewhere a line `SKIPPED: test: reason` goes to standard
//! error, past the test harness, which hides what a passing test prints with `println!` or `eprintln!`. `./test` collects these
//! lines and shows them again at its end.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::Write;

/// What a line begins with that says that a test was not run.
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

/// Whether this machine must have everything: continuous integration says so with `CI=true`.
pub fn everything_is_required() -> bool {
    std::env::var_os("CI").is_some_and(|ci| ci == "true")
}
