//! Runs experiments and leaves their results.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use vlane_report::Report;
use vlane_report::judge::ENOUGH;
use vlane_testbed::Interrupt;
use vlane_testbed::rounds::settle;

use crate::experiment::Experiment;
use crate::page;

/// The exit status of vlane, and of this program, for a result of less than was asked for.
pub(crate) const PARTIAL: u8 = 3;

/// An experiment that broke off, and whose report is kept.
#[derive(Debug)]
pub(crate) struct Partial(String);

impl std::fmt::Display for Partial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Partial {}

/// Lists, runs, or only makes the pages again.
pub(crate) fn run(root: &Path, names: &[String], list: bool, pages: bool) -> Result<()> {
    let all = Experiment::all(root)?;
    if let Some(unknown) = names.iter().find(|name| all.iter().all(|one| one.name != **name)) {
        bail!("there is no experiment `{unknown}`; --list names them");
    }
    if list {
        for one in &all {
            let cost = match &one.about.uses {
                Some(used) => format!("with {used}"),
                None => format!("{:.0} min", one.about.minutes.max(1.0)),
            };
            println!("{:<34} {cost:<34} {}", one.name, one.about.title);
        }
        return Ok(());
    }
    let mut ended = Ok(());
    let chosen: Vec<_> =
        all.iter().filter(|one| names.is_empty() || names.contains(&one.name)).collect();
    if !pages {
        let mut folders: Vec<&Path> = chosen.iter().map(|one| one.source_of_result(&all)).collect();
        folders.sort();
        folders.dedup();
        let running: Vec<_> =
            all.iter().filter(|one| folders.contains(&one.folder.as_path())).collect();
        let minutes: f64 = running.iter().map(|one| one.about.minutes).sum();
        eprintln!("{} runs, about {minutes:.0} minutes", running.len());
        // Ctrl-C ends the experiment that runs; the pages of those before it are made all the same.
        let interrupt = Interrupt::listen()?;
        ended = running.iter().enumerate().try_for_each(|(index, one)| {
            interrupt.check()?;
            eprintln!("[{}/{}] {}", index + 1, running.len(), one.name);
            let vlane = build(root, &one.about.features)?;
            settle(ENOUGH, &interrupt)?;
            measure(one, &vlane)
        });
    }
    // A run serves every experiment that uses its report, also those that were not named.
    let folders: Vec<_> = chosen.iter().map(|one| one.source_of_result(&all)).collect();
    for one in all.iter().filter(|one| folders.contains(&one.source_of_result(&all))) {
        page::write(one, &all, one.report(&all)?.as_ref())?;
        println!("{}", one.folder.join("README.md").display());
    }
    page::write_index(root, &all)?;
    ended
}

/// The program under test, built as people have it.
fn build(root: &Path, features: &[String]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .env("VLANE_COMMIT", commit(root))
        .args([
            "build",
            "--release",
            "--package",
            "vlane-lab",
            "--package",
            "vlane-fg",
            "--features",
            &features.join(","),
        ])
        .current_dir(root)
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("vlane-lab cannot be built");
    }
    // This program stands beside it, wherever the target directory is.
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let vlane = own.with_file_name("vlane-lab");
    if !vlane.is_file() {
        bail!("{}: not there; call this through `cargo xtask`", vlane.display());
    }
    Ok(vlane)
}

/// The commit that is checked out, with `+` behind it if files were changed since; empty where this
/// is no repository.
fn commit(root: &Path) -> String {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).current_dir(root).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return String::new() };
    // Results are what a run changes: they are no part of the program.
    let changed = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ".",
        ":!experiments",
        ":!docs",
    ]);
    if changed.is_none_or(|files| files.is_empty()) { commit } else { commit + "+" }
}

/// The words of a command: apart by spaces, but for those between double quotes.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted, mut is_begun) =
        (Vec::new(), String::new(), false, false);
    for c in command.chars() {
        match c {
            '"' => (is_quoted, is_begun) = (!is_quoted, true),
            c if c.is_whitespace() && !is_quoted => {
                if std::mem::take(&mut is_begun) {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => {
                word.push(c);
                is_begun = true;
            }
        }
    }
    words.extend(is_begun.then_some(word));
    words
}

/// Runs the command of one experiment; its report replaces the last one only if it succeeds. A
/// partial report is kept beside it.
fn measure(one: &Experiment, vlane: &Path) -> Result<()> {
    let Some(command) = &one.about.command else { return Ok(()) };
    let new = one.folder.join("result.new.json");
    let all = words(command);
    let Some(("vlane-lab", words)) =
        all.split_first().map(|(first, words)| (first.as_str(), words))
    else {
        bail!("{}: the command must begin with `vlane-lab`", one.name);
    };
    let words: Vec<_> =
        words.iter().map(|word| word.replace("{result}", &new.display().to_string())).collect();
    // Standard output is the report as text, which the files say as well.
    let status = Command::new(vlane)
        .args(&words)
        .current_dir(&one.folder)
        .stdout(std::process::Stdio::null())
        .status()
        .with_context(|| format!("cannot start {}", vlane.display()))?;
    if status.code() == Some(PARTIAL.into()) && new.is_file() {
        let kept = one.folder.join("result.partial.json");
        std::fs::rename(&new, &kept).with_context(|| format!("{}", kept.display()))?;
        let kept = kept.display().to_string();
        return Err(
            Partial(format!("{}: broke off; what was measured is in {kept}", one.name)).into()
        );
    }
    if !status.success() {
        let _ = std::fs::remove_file(&new);
        bail!("{}: `{command}` ended with {status}", one.name);
    }
    let text = std::fs::read_to_string(&new)
        .with_context(|| format!("{}: `{command}` left no report", one.name))?;
    std::fs::write(&new, neutral(&text, vlane, &one.folder))
        .with_context(|| format!("{}", new.display()))?;
    Report::read(&new).with_context(|| format!("{}: `{command}` left no report", one.name))?;
    std::fs::rename(&new, one.folder.join("result.json"))
        .with_context(|| format!("{}: cannot replace the last result", one.name))
}

/// A report without the paths of this machine: results are kept, and read elsewhere.
fn neutral(text: &str, vlane: &Path, folder: &Path) -> String {
    let mut paths = vec![
        (vlane.display().to_string(), "vlane-lab"),
        (format!("{}/", folder.display()), ""),
        (format!("{}/", std::env::temp_dir().display()), ""),
    ];
    if let Some(home) = std::env::var_os("HOME") {
        paths.push((format!("{}/", Path::new(&home).display()), "~/"));
    }
    // In the file they stand as JSON strings do; these have nothing to escape, or are left as they
    // are.
    paths.into_iter().fold(text.replace("result.new.json", "result.json"), |text, (path, name)| {
        text.replace(&path, name)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn commit_is_named_with_local_changes() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(commit(dir.path()), "");
        let git = |words: &[&str]| {
            let mut command = Command::new("git");
            command.args([
                "-c",
                "user.name=x",
                "-c",
                "user.email=x@y",
                "-c",
                "commit.gpgsign=false",
            ]);
            assert!(command.args(words).current_dir(dir.path()).output().unwrap().status.success());
        };
        std::fs::write(dir.path().join("a"), "1").unwrap();
        for words in [&["init", "-q"][..], &["add", "a"], &["commit", "-q", "-m", "a"]] {
            git(words);
        }
        let clean = commit(dir.path());
        assert!(clean.len() >= 12 && clean.chars().all(|c| c.is_ascii_hexdigit()), "{clean}");
        std::fs::write(dir.path().join("a"), "2").unwrap();
        assert_eq!(commit(dir.path()), format!("{clean}+"));
    }

    #[test]
    fn partial_report_is_kept_beside_whole() {
        let dir = tempfile::tempdir().unwrap();
        let about = "title = \"\"\nsource = \"\"\nquestion = \"\"\nmethod = \"\"\ncommand = \
                     \"vlane-lab {result}\"";
        let about = toml::from_str(about).unwrap();
        let one = Experiment { name: "one".into(), folder: dir.path().into(), about };
        let vlane = dir.path().join("vlane");
        vlane_testing::write_program(&vlane, "#!/bin/sh\necho part > $1\nexit 3\n");
        std::fs::write(dir.path().join("result.json"), "whole").unwrap();
        let error = measure(&one, &vlane).unwrap_err();
        assert!(
            error.is::<Partial>() && error.to_string().contains("result.partial.json"),
            "{error}"
        );
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(
            (read("result.json"), read("result.partial.json")),
            ("whole".into(), "part\n".into())
        );
        assert!(!dir.path().join("result.new.json").exists());
    }

    #[test]
    fn quoted_words_are_one_argument() {
        assert_eq!(
            words("vlane-lab caches  --json {result}"),
            ["vlane-lab", "caches", "--json", "{result}"]
        );
        let quoted = words(r#"vlane --also "--cache pdc --journal direct" -x"#);
        assert_eq!(quoted, ["vlane", "--also", "--cache pdc --journal direct", "-x"]);
        assert_eq!(words(r#"--with="a b" "" "#), ["--with=a b", ""]);
    }

    #[test]
    fn kept_results_hide_local_paths() {
        let temp = std::env::temp_dir();
        let text = format!(
            "/build/vlane-lab serve {}/x.sock, /repo/experiments/one/result.new.json",
            temp.display()
        );
        let neutral =
            neutral(&text, Path::new("/build/vlane-lab"), Path::new("/repo/experiments/one"));
        assert_eq!(neutral, "vlane-lab serve x.sock, result.json");
    }
}
