//! The gate's scripts, tried on a small repository of their own, in which `cargo` does the test's
//! bidding. `.ci/run` runs the commands of README.md, `./test` ends hung steps, and CI=true allows
//! no omission.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const BOOT: &str = "cargo run --release -- boot --install";
const GUEST: &str = "A guest with 2 vCPUs (emulated) booted Linux 6.1";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A repository with the scripts, a README and a `cargo`; removed when it is dropped.
struct Repository(PathBuf);

impl Repository {
    /// `first` is the README's first command, `cargo` what the program of that name does (a shell
    /// script; `$*` is what it is asked).
    fn new(first: &str, cargo: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let dir = dir.join(format!("gate-{}-{number}", std::process::id()));
        let repository = Self(dir);
        for name in ["test", ".ci/run", "scripts/common"] {
            let text = std::fs::read_to_string(root().join(name)).unwrap();
            // A minute in every case: on a busy machine that is enough for empty steps. A step that
            // has to be ended is ended after twice as long.
            let uniform = |line: &str| match line {
                _ if line.starts_with("formatting ") => "formatting 60".to_owned(),
                _ if line.starts_with("tests ") => "tests 60".to_owned(),
                _ if line.starts_with("budget=") => "budget=60".to_owned(),
                _ => line.to_owned(),
            };
            repository
                .write(name, &text.lines().map(|line| uniform(line) + "\n").collect::<String>());
        }
        repository.write(
            "README.md",
            &format!(
                "# x\n\n    no command\n\n## Try it\n\nSo:\n\n    {first}\n\nand\n\n    \
                 ./test\n\n## Use it\n\n    other\n"
            ),
        );
        for name in ["scripts/packages", "scripts/asan", "scripts/fuzz"] {
            repository.write(name, "#!/bin/sh\n");
        }
        for name in ["vlane/a/tests/one.rs", "lab/b/tests/guest_kvm.rs", "checks/c/tests/models.rs"]
        {
            repository.write(name, "");
        }
        // The features' headers are there.
        repository.write("bin/make", "#!/bin/sh\n");
        repository.write("bin/pkg-config", "#!/bin/sh\n");
        let work = repository.0.join("work");
        repository.write(
            "bin/cargo",
            &format!("#!/bin/sh\necho \"cargo $*\" >>'{}'\n{cargo}\n", work.display()),
        );
        repository.write(".gitignore", "work\n");
        for words in [
            &["init", "-q"][..],
            &["add", "-A"],
            &[
                "-c",
                "user.name=t",
                "-c",
                "user.email=t",
                "-c",
                "commit.gpgsign=false",
                "commit",
                "-qm",
                "x",
            ],
        ] {
            let output =
                Command::new("git").args(words).current_dir(&repository.0).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        repository
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        vlane_testing::write_program(&path, text);
    }

    /// Runs a script: whether it succeeded, and what it said.
    fn run(&self, script: &str, arguments: &[&str], ci: Option<&str>) -> (bool, String) {
        let mut command = Command::new(self.0.join(script));
        let path = format!("{}:{}", self.0.join("bin").display(), std::env::var("PATH").unwrap());
        command
            .args(arguments)
            .env("PATH", path)
            .env("TMPDIR", &self.0)
            .env_remove("CI")
            .env_remove("VLANE_GATE_BEFORE");
        if let Some(ci) = ci {
            command.env("CI", ci);
        }
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    /// The commands that `cargo` was asked to run.
    fn work(&self) -> String {
        std::fs::read_to_string(self.0.join("work")).unwrap_or_default()
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The names of the tests that `./test` runs beside others, by the command that runs them.
fn rows() -> Vec<Vec<String>> {
    let script = std::fs::read_to_string(root().join("test")).unwrap();
    let listed = |name: &str| {
        let (_, text) = script.split_once(&format!("\n{name}='")).unwrap();
        text.split_once('\'').unwrap().0.to_owned()
    };
    let rows = [listed("waiting"), listed("rows")].join("\n");
    rows.lines().map(|row| row.split_whitespace().map(str::to_owned).collect()).collect()
}

/// A program that is named twice would run twice.
#[test]
fn each_parallel_program_has_one_row() {
    let mut names: Vec<String> = rows().concat();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "{names:?}");
    let folders = ["vlane", "lab", "checks"].map(|house| std::fs::read_dir(root().join(house)));
    let crates: Vec<_> = folders.into_iter().flat_map(Result::unwrap).flatten().collect();
    for name in names {
        let file = format!("tests/{name}.rs");
        assert!(crates.iter().any(|one| one.path().join(&file).exists()), "there is no {file}");
    }
}

/// A `cargo` that boots a guest and has tests that pass.
fn good() -> String {
    format!(
        "case \"$*\" in run*) echo '{GUEST}';; *--lib*) echo 'test result: ok. 3 passed; 0 \
         failed; 0 ignored;';; esac"
    )
}

#[test]
fn gate_runs_readme_commands_and_counts_tests() {
    let repository = Repository::new(BOOT, &good());
    let (success, said) = repository.run(".ci/run", &[], None);
    assert!(success, "{said}");
    let work = repository.work();
    assert!(work.starts_with("cargo run --release -- boot --install\n"), "{work}");
    // All tests, the documentation's by themselves, and so is each row of programs that wait.
    let mut selected = vec!["--lib --bins --test one".to_owned(), "--doc".to_owned()];
    selected.extend(rows().iter().map(|row| format!("--test {}", row.join(" --test "))));
    for selected in selected {
        let command = format!("cargo test --workspace --no-fail-fast --all-features {selected}\n");
        assert!(work.contains(&command), "{command}: {work}");
    }
    assert_eq!(said.lines().last(), Some("3 passed, 0 failed, 0 skipped"), "{said}");
    // The table has the README's command and each step of ./test, with budgets.
    for step in ["README", "lints", "tests", "fuzzing", "together"] {
        let row = said
            .lines()
            .find(|line| line.starts_with(&format!("{step} ")))
            .unwrap_or_else(|| panic!("{step}: {said}"));
        assert!(
            row.split_whitespace().skip(1).take(2).all(|number| number.parse::<u32>().is_ok()),
            "{row}"
        );
    }
}

#[test]
fn changed_readme_changes_the_gate() {
    let repository = Repository::new("cargo run --bin vlane -- boot", &good());
    assert!(repository.run(".ci/run", &[], None).0);
    assert!(repository.work().starts_with("cargo run --bin vlane -- boot\n"));
    // A newcomer's error when there are two programs.
    let cargo = good()
        .replace("run*)", "'run -p vlane '*)")
        .replace("case", "[ \"$1 $2\" = 'run --release' ] && exit 101\ncase");
    let repository = Repository::new(BOOT, &cargo);
    let (success, said) = repository.run(".ci/run", &[], None);
    assert!(!success && said.contains("FAILED: README"), "{said}");
    assert_eq!(said.lines().last(), Some("3 passed, 1 failed, 0 skipped"), "{said}");
}

#[test]
fn first_command_without_guest_fails() {
    let repository = Repository::new(BOOT, &good().replace(GUEST, "No guest can be booted here"));
    let (success, said) = repository.run(".ci/run", &[], None);
    assert!(!success && said.contains("no guest has run"), "{said}");
}

#[test]
fn uncommitted_changes_are_not_tested() {
    let repository = Repository::new(BOOT, &good());
    repository.write("README.md", "## Try it\n\n    false\n\n    ./test\n");
    let (success, said) = repository.run(".ci/run", &[], None);
    assert!(success && said.contains("not committed"), "{said}");
    assert!(repository.work().starts_with("cargo run --release"));
}

#[test]
fn hung_step_is_ended_with_its_children() {
    // A sleep of a length that no other process uses.
    let sleep = format!("sleep 1000.{}", std::process::id());
    let repository =
        Repository::new(BOOT, &format!("case \"$*\" in *no-fail-fast*) {sleep} & wait;; esac"));
    let script = std::fs::read_to_string(repository.0.join("test")).unwrap();
    repository.write("test", &script.replace("\ntests 60\n", "\ntests 6\n"));
    let begin = Instant::now();
    let (success, said) = repository.run("test", &["--only", "tests,fuzzing"], None);
    assert!(!success && said.contains("ended after 12 s"), "{said}");
    assert!(said.contains("\n== fuzzing"), "{said}");
    assert!(begin.elapsed() < Duration::from_secs(500), "{:?}", begin.elapsed());
    // A process that was told to end does so when it has a CPU.
    let begin = Instant::now();
    while runs(&sleep) && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!runs(&sleep), "it left something behind");
}

/// True if a process has that command line.
fn runs(command: &str) -> bool {
    let line = format!("{}\0", command.replace(' ', "\0"));
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.into_iter().any(|process| {
        std::fs::read(process.path().join("cmdline")).is_ok_and(|found| found == line.as_bytes())
    })
}

#[test]
fn leftover_process_does_not_delay_gate() {
    let repository =
        Repository::new(BOOT, "case \"$*\" in *no-fail-fast*) setsid sleep 200 & ;; esac");
    let begin = Instant::now();
    assert!(repository.run("test", &["--only", "tests"], None).0);
    assert!(begin.elapsed() < Duration::from_secs(150), "{:?}", begin.elapsed());
}

#[test]
fn skipped_tests_are_listed_and_fail_ci() {
    let line = "SKIPPED: some_test: no disk";
    let cargo = format!(
        "case \"$*\" in *--lib*) echo 'test a ... {line}' >&2; echo 'test result: ok. 1 passed; 0 \
         failed; 0 ignored;';; esac"
    );
    let repository = Repository::new(BOOT, &cargo);
    let (success, said) = repository.run("test", &["--only", "tests"], None);
    assert!(success, "{said}");
    assert_eq!(said.lines().last(), Some("1 passed, 0 failed, 1 skipped"));
    assert!(said.lines().any(|l| l == line), "{said}");
    let (success, said) = repository.run("test", &["--only", "tests"], Some("true"));
    assert!(!success && said.ends_with("1 passed, 1 failed, 1 skipped\n"), "{said}");
    // An ignored test is one that was not run.
    let repository = Repository::new(
        BOOT,
        "case \"$*\" in *--lib*) echo 'test result: ok. 1 passed; 0 failed; 2 ignored;';; esac",
    );
    let (success, said) = repository.run("test", &["--only", "tests"], Some("true"));
    assert!(!success && said.ends_with("1 passed, 1 failed, 2 skipped\n"), "{said}");
}

#[test]
fn any_failed_test_run_fails_the_gate() {
    let rows = rows();
    let of_rows = rows.iter().map(|row| format!("--test {}", row.last().unwrap()));
    for run in ["--lib".to_owned(), "--doc".to_owned()].into_iter().chain(of_rows) {
        let cargo = format!(
            "case \"$*\" in *'{run}'*) echo 'test result: FAILED. 0 passed; 1 failed; 0 \
             ignored;'; exit 101;; esac"
        );
        let repository = Repository::new(BOOT, &cargo);
        let (success, said) = repository.run("test", &["--only", "tests"], None);
        assert!(!success && said.contains("FAILED: tests\n"), "{run}: {said}");
        assert!(said.ends_with("0 passed, 1 failed, 0 skipped\n"), "{run}: {said}");
    }
}

#[test]
fn missing_tool_is_skipped_and_fails_ci() {
    let cargo = "case \"$*\" in *--version) exit 1;; esac";
    let repository = Repository::new(BOOT, cargo);
    let steps = ["--only", "formatting,lints"];
    let (success, said) = repository.run("test", &steps, None);
    assert!(success && said.contains("SKIPPED: lints: clippy is not there"), "{said}");
    let (success, said) = repository.run("test", &steps, Some("true"));
    assert!(!success && said.contains("FAILED: formatting, lints\n"), "{said}");
}

#[test]
fn budgets_match_book_within_45_minutes() {
    let book = std::fs::read_to_string(root().join("docs/src/testing.md")).unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        Some((name.to_owned(), cells.get(2)?.parse::<u32>().ok()?))
    };
    let written: Vec<_> = book.lines().filter_map(row).collect();
    let run = std::fs::read_to_string(root().join(".ci/run")).unwrap();
    let first = run.lines().find_map(|line| line.strip_prefix("budget=")).unwrap();
    let list = Command::new(root().join("test")).arg("--list").output().unwrap();
    let list = format!("README {first}\n{}", String::from_utf8(list.stdout).unwrap());
    let split = |line: &str| {
        line.split_once(' ').map(|(name, seconds)| (name.to_owned(), seconds.parse().unwrap()))
    };
    assert_eq!(written, list.lines().map(|line| split(line).unwrap()).collect::<Vec<_>>());
    assert!(written.iter().map(|(_, seconds)| seconds).sum::<u32>() <= 45 * 60, "{written:?}");
}
