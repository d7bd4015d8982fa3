//! The repository's own rules that no compiler checks: how a test says that it was not run.

#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "another test's part of it")]
mod common;

use common::files;

/// The part of a Rust file that is tests, with the number of lines before it.
fn tests_of<'a>(name: &str, text: &'a str) -> Option<(usize, &'a str)> {
    if name.contains("/tests/") || name.ends_with("/tests.rs") {
        return Some((0, text));
    }
    let at = text.find("#[cfg(test)]")?;
    Some((text[..at].lines().count(), &text[at..]))
}

/// Faults of a file: the line, and the reason.
fn faults(name: &str, text: &str) -> Vec<(usize, &'static str)> {
    let mut faults = Vec::new();
    let rust = name.ends_with(".rs");
    // The two that define the mark, and this file, which has to name what it looks for.
    let defines = name.starts_with("checks/testing/") || name == "scripts/common";
    let prose = name.ends_with(".md");
    for (at, line) in text.lines().enumerate().filter(|_| !defines && !prose) {
        // ./test looks for what others print.
        let says = rust || ["echo", "printf"].iter().any(|command| line.contains(command));
        if says && (line.contains("SKIPPED") || line.contains("NOT TESTED")) {
            faults.push((
                at,
                "says by itself that it skips: call vlane_testing::skip (scripts: skip of \
                 scripts/common)",
            ));
        }
        if line.contains("VLANE_REQUIRE") {
            faults.push((at, "another switch than CI=true"));
        }
        let ignore = line.trim_start();
        if rust && ignore.starts_with("#[ignore") && !ignore.starts_with("#[ignore = \"") {
            faults.push((at, "ignored without a reason that the test harness prints"));
        }
    }
    let Some((before, tests)) = tests_of(name, text).filter(|_| rust && !defines) else {
        return faults;
    };
    let lines: Vec<&str> = tests.lines().map(str::trim).collect();
    for (at, line) in lines.iter().enumerate() {
        let prints = ["println!(", "eprintln!("].iter().any(|print| line.starts_with(print));
        let next = lines[at + 1..].iter().find(|line| !line.is_empty());
        if (prints && line.ends_with(");") && next.is_some_and(|next| next.starts_with("return")))
            || line.contains("return println!(")
            || line.contains("return eprintln!(")
        {
            faults.push((
                before + at,
                "prints and returns: the test harness swallows that of a test that passes",
            ));
        }
        if line.contains("writeln!(std::io::stderr()") || line.contains("writeln!(io::stderr()") {
            faults
                .push((before + at, "prints past the test harness: vlane_testing::skip does that"));
        }
    }
    faults
}

#[test]
fn tests_skip_in_one_way() {
    let files = match files() {
        Ok(files) => files,
        Err(why) => return vlane_testing::skip(why),
    };
    assert!(files.len() > 100, "these are not all files: {}", files.len());
    let mut all = String::new();
    for (name, text) in &files {
        for (line, why) in faults(name, text) {
            all += &format!("\n{name}:{}: {why}", line + 1);
        }
    }
    assert!(all.is_empty(), "{all}");
}

#[test]
fn other_ways_to_skip_are_found() {
    let test = "vlane/x/tests/y.rs";
    for (name, text) in [
        (test, "eprintln!(\"SKIPPED: no disk\");"),
        ("vlane/x/src/lib.rs", "fn f() { println!(\"SKIPPED {why}\"); }"),
        ("scripts/x", "echo \"SKIPPED: no compiler\""),
        (test, "eprintln!(\"NOT TESTED: no daemon\");"),
        (test, "if std::env::var_os(\"VLANE_REQUIRE_GUESTS\").is_some() {}"),
        (test, "#[ignore]\nfn f() {}"),
        (test, "    println!(\"no disk: {error}\");\n\n    return;"),
        (test, "Err(error) => return eprintln!(\"{error}\"),"),
        (
            "vlane/x/src/y.rs",
            "fn f() {}\n#[cfg(test)]\nmod tests {\n    eprintln!(\"no disk\");\n    return;\n}",
        ),
        (test, "let _ = writeln!(std::io::stderr(), \"no disk\");"),
    ] {
        assert_eq!(faults(name, text).len(), 1, "{text}");
    }
    for (name, text) in [
        (test, "vlane_testing::skip(error);"),
        (test, "#[ignore = \"takes an hour\"]"),
        (test, "println!(\"{rounds} kills\");\nassert!(rounds > 0);"),
        // A program may say something and return.
        ("vlane/x/src/y.rs", "println!(\"nothing to do\");\nreturn;\n#[cfg(test)]\nmod tests {}"),
        ("test", "grep '^SKIPPED: ' log"),
        ("docs/src/testing.md", "a line that begins with `SKIPPED:`"),
    ] {
        assert_eq!(faults(name, text), [], "{text}");
    }
}
