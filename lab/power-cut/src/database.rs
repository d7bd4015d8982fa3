//! Checks of a SQLite database: it is sound, and has every transaction that its user knows is
//! committed, each as a whole.
//!
//! sqlite3 begins transaction n + 1 when the commit of n has returned. The text of a row names its
//! transaction. So a write with the text of n + 1 in it, to the database, its journal or its log,
//! proves that the user knows of n.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use vlane_testbed::Result;

use super::content::text;

/// As in `load.pl`.
const BALANCE: u64 = 1600;
/// How long sqlite3 may take for a small database.
const LIMIT: Duration = Duration::from_secs(60);

/// The text of a transaction's row, of which it begins with at least one.
fn mark(worker: u32, step: u64) -> String {
    format!("VTXN {worker:02} {step:08};")
}

fn content(worker: u32, step: u64) -> Vec<u8> {
    let size = 17 + (step * 7919 + u64::from(worker) * 104_729) % 6000;
    text(&mark(worker, step), usize::try_from(size).unwrap_or(0))
}

/// The transactions in written bytes: worker, and number of the last transaction known to be
/// committed.
pub(super) fn told_in(bytes: &[u8]) -> impl Iterator<Item = (u32, u64)> + '_ {
    let len = mark(0, 0).len();
    bytes.windows(len).filter(|window| window.starts_with(b"VTXN ")).filter_map(|window| {
        let words = std::str::from_utf8(window).ok()?;
        let (worker, step) = words.strip_prefix("VTXN ")?.strip_suffix(';')?.split_once(' ')?;
        let (worker, step) = (worker.parse().ok()?, step.parse::<u64>().ok()?);
        (mark(worker, step) == words).then(|| (worker, step.saturating_sub(1)))
    })
}

/// Faults of the database in `directory`, whose user knew last of transaction `told`.
///
/// # Errors
/// When sqlite3 cannot be started, or does not end.
pub(super) fn wrong(directory: &Path, worker: u32, told: u64) -> Result<Vec<String>> {
    let database = directory.join("db");
    if !database.is_file() {
        return Ok(if told == 0 { Vec::new() } else { vec!["there is no database".to_owned()] });
    }
    let ask = |question: &str| {
        let mut command = Command::new("sqlite3");
        command
            .args(["-bail", "-batch", "-noheader", "-separator", " "])
            .arg(&database)
            .arg(question);
        vlane_guest::run(&mut command, LIMIT)
    };
    // Rolls a journal back, or a log forward, as the next program that opens it does.
    let checked = ask("PRAGMA integrity_check;")?;
    if !checked.status.success() || checked.text.trim() != "ok" {
        return Ok(vec![format!("integrity_check: {}", checked.text.trim())]);
    }
    if told == 0 {
        // Its tables may be on their way.
        return Ok(Vec::new());
    }
    let answer = ask("SELECT value FROM counter; SELECT sum(balance) FROM accounts; SELECT \
                      content FROM log ORDER BY step;")?;
    Ok(missing(&answer.text, worker, told))
}

/// Transactions and checks that the answer lacks, compared with that of a sound database.
fn missing(answer: &str, worker: u32, told: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut lines = answer.lines();
    let counter = lines.next().and_then(|line| line.parse::<u64>().ok());
    let Some(counter) = counter else { return vec![format!("no counter: {}", answer.trim())] };
    if counter < told {
        wrong.push(format!("the last transaction is {counter}"));
    }
    if lines.next() != Some(&BALANCE.to_string()) {
        wrong.push("a transfer between accounts is there by half".to_owned());
    }
    for step in 1..=counter {
        if lines.next().map(str::as_bytes) != Some(&content(worker, step)) {
            wrong.push(format!("the row of transaction {step} of {counter} is not there"));
            break;
        }
    }
    if wrong.is_empty() && lines.next().is_some() {
        wrong.push(format!("there are rows of later transactions than {counter}"));
    }
    wrong
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The place of a transaction does not matter.
    #[test]
    fn next_write_commits_the_transaction() {
        let mut bytes = vec![0; 1000];
        bytes[301..301 + 17].copy_from_slice(mark(2, 7).as_bytes());
        bytes[900..910].copy_from_slice(&mark(1, 9).as_bytes()[..10]);
        assert_eq!(told_in(&bytes).collect::<Vec<_>>(), [(2, 6)]);
    }

    #[test]
    fn losses_are_seen_in_sound_database() {
        let answer = |counter: u64, sum: u64, steps: &[u64]| {
            let rows = steps.iter().map(|step| String::from_utf8(content(1, *step)).unwrap());
            let lines: Vec<String> =
                [counter.to_string(), sum.to_string()].into_iter().chain(rows).collect();
            lines.join("\n")
        };
        assert_eq!(missing(&answer(3, 1600, &[1, 2, 3]), 1, 3), Vec::<String>::new());
        assert_eq!(
            missing(&answer(4, 1600, &[1, 2, 3, 4]), 1, 3),
            Vec::<String>::new(),
            "one more is no loss"
        );
        for (bad, told) in [
            (answer(2, 1600, &[1, 2]), 3),
            (answer(3, 1599, &[1, 2, 3]), 3),
            (answer(3, 1600, &[1, 3]), 3),
            (answer(3, 1600, &[1, 2]), 3),
            (answer(3, 1600, &[1, 2, 3, 4]), 3),
            ("Error: no such table: counter".to_owned(), 1),
        ] {
            assert!(!missing(&bad, 1, told).is_empty(), "{}", &bad[..bad.len().min(40)]);
        }
    }
}
