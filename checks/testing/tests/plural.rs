//! Messages for people say "1 thread" and not "1 threads": a number before a noun goes through
//! `counted`.

#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "another test's part of it")]
mod common;

use std::path::{Path, PathBuf};

/// Crates whose words a user reads: messages, reports, help.
const CRATES: [&str; 26] = [
    "vlane",
    "vlane-lab",
    "client",
    "units",
    "driver",
    "capture",
    "server",
    "engine",
    "compare",
    "bench",
    "mechanisms",
    "power-cut",
    "testbed",
    "guest",
    "fg",
    "sched",
    "report",
    "simulate",
    "socket",
    "hint",
    "lane",
    "ring",
    "policy",
    "trace",
    "watch",
    "cost",
];
/// Nouns of which there is often one.
const NOUNS: [&str; 26] = [
    "threads",
    "requests",
    "queues",
    "vCPUs",
    "sessions",
    "machines",
    "lists",
    "jobs",
    "guests",
    "gaps",
    "files",
    "times",
    "readers",
    "lanes",
    "rounds",
    "reads",
    "images",
    "volumes",
    "states",
    "rows",
    "measurements",
    "runs",
    "flushes",
    "others",
    "processes",
    "CPUs",
];
/// Places where the number is never one, or stands for a unit.
const NEVER_ONE: [&str; 41] = [
    // It wants more than are offered, which is one at least.
    "wants {wanted} queues, and vlane offers {offered}",
    // One queue with one thread is always possible.
    "{queues} queues need up to",
    "in-flight tracking is asked for {queues} queues",
    "requests of {left} queues within",
    // With one of them there is no such message.
    "{} readers on a queue of {} requests",
    "the trace has {} queues, the session {}",
    "{} requests are more than can be replayed",
    "{} blocks are too few for {queues} jobs",
    "{STREAMS} requests of the same lane",
    "loops of the journal, {} requests",
    // Rates and numbers with a unit or with many digits.
    "at {speed} times the recorded speed",
    "{} requests per second asked for",
    "{per_second} requests per second",
    "({} requests)",
    "{done} of {all} requests",
    "{} of {} queues idle",
    "the trace has {what} requests",
    "{all} requests in {:.1} s",
    "{n} requests",
    "{limit} requests/s",
    "{} blocks read, {} written, {} flushes in",
    // There are two at least: one alone has another branch, or is refused.
    "if self.jobs > 1",
    "by {jobs} jobs on {jobs} queues",
    "others up to {most} times",
    "{} guests boot",
    "{} guests ({guests}), each with a process",
    "{PARALLEL} requests at a time",
    "{VCPUS} vCPUs",
    "on all {queues} queues",
    "on {some} of {queues} queues",
    "{MAX_THREADS_PER_USER} threads of vCPUs",
    "of each {} threads, are scheduled",
    "this machine can have {cpus} CPUs",
    "({range}, {} runs)",
    "if machine.cpus == 1",
    "{untold} times since this was last said",
    // None, or more than there may be.
    "{0} queues: a volume has between 1 and",
    "in-flight tracking for {queues} queues of",
    "the in-flight tracking of {queues} queues of",
    "{number} requests in flight",
    "in a trace of {} lanes",
];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|end| end == "rs") => found.push(path),
            false => {}
        }
    }
}

/// True for a line with a number in braces right before one of the nouns.
fn is_plural(line: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    line.match_indices("} ").any(|(at, _)| {
        let rest = &line[at + 2..];
        let word = rest.split(|c| !is_word(c)).next().unwrap_or_default();
        let open = line[..at].rfind('{').map(|open| &line[open + 1..at]);
        // A number with digits behind the point is none of things.
        NOUNS.contains(&word) && open.is_some_and(|inside| !inside.contains(':'))
    })
}

#[test]
fn number_of_one_has_a_singular_noun() {
    let mut files = Vec::new();
    for name in CRATES {
        sources(&common::home(name).join("src"), &mut files);
    }
    let (mut wrong, mut used) = (Vec::new(), Vec::new());
    for path in files.iter().filter(|path| !path.to_string_lossy().ends_with("tests.rs")) {
        let text = std::fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for (at, line) in code.lines().enumerate() {
            let comment = line.trim_start().starts_with("//");
            if comment || !is_plural(line) {
                continue;
            }
            let known: Vec<_> = NEVER_ONE.iter().filter(|known| line.contains(**known)).collect();
            used.extend(&known);
            if known.is_empty() {
                wrong.push(format!("{}:{}: {}", path.display(), at + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "use vlane_error::counted:\n{}", wrong.join("\n"));
    let stale: Vec<_> = NEVER_ONE.iter().filter(|known| !used.contains(known)).collect();
    assert!(stale.is_empty(), "no line is like this any more: {stale:#?}");
}

#[test]
fn plural_after_a_number_is_seen() {
    assert!(is_plural(r#"println!("{held} threads wait")"#));
    assert!(is_plural(r#"format!("{}: {} queues", name, n)"#));
    assert!(!is_plural(r#"format!("{} of them", counted(n, "queue"))"#));
}
