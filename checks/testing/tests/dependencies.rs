//! Licences and sources of everything that a build of this workspace uses, against deny.toml. A
//! part of what scripts/deny checks, which takes cargo-deny.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;

/// True if the allowed licences satisfy a licence expression. `/` is an old way to say OR.
fn is_met(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &tokens[..];
    let met = any(&mut rest, allowed);
    assert!(rest.is_empty(), "{expression}");
    met
}

fn any(tokens: &mut &[&str], allowed: &[&str]) -> bool {
    let mut met = all(tokens, allowed);
    while let Some(("OR", rest)) = tokens.split_first().map(|(first, rest)| (*first, rest)) {
        *tokens = rest;
        met |= all(tokens, allowed);
    }
    met
}

fn all(tokens: &mut &[&str], allowed: &[&str]) -> bool {
    let mut met = one(tokens, allowed);
    while let Some(("AND", rest)) = tokens.split_first().map(|(first, rest)| (*first, rest)) {
        *tokens = rest;
        met &= one(tokens, allowed);
    }
    met
}

fn one(tokens: &mut &[&str], allowed: &[&str]) -> bool {
    let (first, rest) = tokens.split_first().unwrap();
    *tokens = rest;
    if *first == "(" {
        let met = any(tokens, allowed);
        assert_eq!(tokens.first(), Some(&")"));
        *tokens = &tokens[1..];
        return met;
    }
    match tokens {
        // An exception to a licence makes it another one.
        ["WITH", exception, rest @ ..] => {
            let name = format!("{first} WITH {exception}");
            *tokens = rest;
            allowed.contains(&name.as_str())
        }
        _ => allowed.contains(first),
    }
}

#[test]
fn licence_expressions_are_parsed() {
    let allowed = ["MIT", "Unicode-3.0"];
    for (expression, met) in [
        ("MIT", true),
        ("GPL-2.0-only", false),
        ("Apache-2.0 OR MIT", true),
        ("Apache-2.0/MIT", true),
        ("MIT AND GPL-2.0-only", false),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("MIT WITH GPL-exception", false),
        ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
    ] {
        assert_eq!(is_met(expression, &allowed), met, "{expression}");
    }
}

#[test]
fn dependencies_have_allowed_licences_and_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let deny = std::fs::read_to_string(root.join("deny.toml")).unwrap();
    let allowed: Vec<&str> = deny
        .lines()
        .find(|line| line.starts_with("allow = ["))
        .unwrap()
        .split('"')
        .skip(1)
        .step_by(2)
        .collect();
    let tree = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--workspace",
            "--all-features",
            "--locked",
            "--prefix",
            "none",
            "--no-dedupe",
        ])
        .args(["--edges", "normal,build,dev", "--format", "{p}\t{l}"])
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let mut lines: Vec<&str> = tree.lines().filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    lines.dedup();
    assert!(lines.len() > 100, "these are not all: {}", lines.len());
    for line in lines {
        let (package, licence) = line.split_once('\t').unwrap();
        // A crate whose tests ask for a feature of its own depends on itself, which is reported
        // once.
        let licence = licence.trim_end_matches(" (*)");
        assert!(
            !licence.is_empty() && is_met(licence, &allowed),
            "{package}: {licence:?} is not in deny.toml"
        );
        // A package of crates.io is named without its source.
        let source = package.replace(" (proc-macro)", "");
        let ours = source.contains(&format!("({}", root.display()));
        assert!(ours || !source.contains('('), "{package}: from somewhere else than crates.io");
    }
}
