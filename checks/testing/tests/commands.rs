//! Commands that name a test, in pages, scripts and messages, run one.
//!
//! Cargo ends with success where a filter matches no test.

#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "another test's part of it")]
mod common;

use std::path::Path;

/// The names of functions in a file.
fn functions(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let rest = text.lines().filter_map(|line| line.trim_start().strip_prefix("fn "));
    rest.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())).collect()
}

/// `cargo test -p vlane-CRATE ... --test PROGRAM FILTER`: crate, program, filter.
fn filters(text: &str) -> Vec<(String, String, String)> {
    let word = |rest: &str| -> String {
        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "_-:".contains(*c)).collect()
    };
    let mut found = Vec::new();
    for line in text.lines() {
        for command in line.split("cargo test ").skip(1) {
            let after = |option: &str| command.split_once(option).map(|(_, rest)| rest);
            let named = after("-p vlane-").zip(after("--test "));
            let Some((package, rest)) = named else { continue };
            let program = word(rest);
            let filter = rest[program.len()..].strip_prefix(' ').map(word).unwrap_or_default();
            if !filter.is_empty() && !filter.starts_with('-') {
                found.push((word(package), program, filter));
            }
        }
    }
    found
}

#[test]
fn commands_name_existing_tests() {
    let root = common::root();
    let mut checked = 0;
    let texts = match common::files() {
        Ok(texts) => texts,
        Err(error) => return vlane_testing::skip(error),
    };
    for (name, text) in texts {
        if name.ends_with("/commands.rs") || name == "CHANGELOG.md" {
            continue;
        }
        for (package, program, filter) in filters(&text) {
            let file = common::home(&package).join(format!("tests/{program}.rs"));
            let known = functions(&file);
            assert!(
                known.iter().any(|function| function.contains(&filter)),
                "{name}: no test of {} has `{filter}` in its name",
                file.display()
            );
            checked += 1;
        }
        // Scripts that count the instructions of a unit test of vlane-lane.
        let is_script = name.starts_with("scripts");
        let tests = text.lines().filter_map(|line| line.strip_prefix("test="));
        for test in tests.filter(|_| is_script) {
            let (module, function) = test.split_once("::").unwrap();
            let known = functions(&root.join(format!("vlane/lane/src/{module}.rs")));
            assert!(known.iter().any(|known| known == function), "{name}: there is no test {test}");
            checked += 1;
        }
    }
    assert!(checked >= 9, "only {checked} commands were found");
}

#[test]
fn filter_is_read_from_a_command() {
    let command = "`cargo test -p vlane-lab --test crash no_loss -- -q`, `cargo test --test x`";
    let expected = ["lab", "crash", "no_loss"].map(str::to_owned);
    assert_eq!(filters(command), [expected.into()]);
}
