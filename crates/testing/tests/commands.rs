//! Commands that name a test, in pages, scripts and messages, run one: cargo ends with success where a filter matches none.

#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "another test's part of it")]
mod common;

use std::path::Path;

/// The names of functions in a file.
fn functions(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let name = |line: &str| Some(line.trim_start().strip_prefix("fn ")?.split('(').next()?.to_owned());
    text.lines().filter_map(name).collect()
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
            let (Some(package), Some(rest)) = (after("-p vlane-"), after("--test ")) else { continue };
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
    for (name, text) in
        texts.into_iter().filter(|(name, _)| !name.ends_with("/commands.rs") && name != "CHANGELOG.md")
    {
        for (package, program, filter) in filters(&text) {
            let directory = if package == "lab" { "vlane-lab" } else { &package };
            let file = root.join(format!("crates/{directory}/tests/{program}.rs"));
            let known = functions(&file);
            assert!(
                known.iter().any(|function| function.contains(&filter)),
                "{name}: no test of {} has `{filter}` in its name",
                file.display()
            );
            checked += 1;
        }
        // Scripts that count the instructions of a unit test of vlane-lane.
        for test in
            text.lines().filter(|_| name.starts_with("scripts")).filter_map(|l| l.strip_prefix("test="))
        {
            let (module, function) = test.split_once("::").unwrap();
            let known = functions(&root.join(format!("crates/lane/src/{module}.rs")));
            assert!(known.iter().any(|known| known == function), "{name}: there is no test {test}");
            checked += 1;
        }
    }
    assert!(checked >= 9, "only {checked} commands were found");
}

#[test]
fn filter_is_read_from_a_command() {
    let command = "`cargo test -p vlane-lab --test crash no_loss -- -q`, `cargo test -p vlane-dst --test x`";
    let expected = [("lab", "crash", "no_loss")].map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
    assert_eq!(filters(command), expected);
}
