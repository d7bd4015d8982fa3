//! What /proc tells of a process and of its threads.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use nix::time::ClockId;
use nix::unistd::Pid;

/// The fields of a `stat` file that are wanted here; times in clock ticks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) comm: String,
    pub(super) state: char,
    pub(super) parent: i32,
    pub(super) user: u64,
    pub(super) system: u64,
    /// User and system time of children that have ended and were waited for.
    pub(super) reaped: u64,
    /// When it was started: tells a thread from a later one with the same number.
    pub(super) started: u64,
}

impl Stat {
    /// Reads `/proc/PID/stat` or `/proc/PID/task/TID/stat` (proc(5)). The name in parentheses may hold anything, parentheses,
    /// blanks and line ends included.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (head, tail) = text.rsplit_once(')')?;
        let comm = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = tail.split_whitespace().collect();
        // Field 3 of proc(5) is the first here.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            comm,
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            user: number(14)?,
            system: number(15)?,
            reaped: number(16)?.saturating_add(number(17)?),
            started: number(22)?,
        })
    }

    fn read(path: &Path) -> Option<Self> {
        // Names are bytes.
        Self::parse(&String::from_utf8_lossy(&fs::read(path).ok()?))
    }
}

/// Voluntary and involuntary context switches in a `status` file.
pub(super) fn switches(status: &str) -> (u64, u64) {
    let count = |key: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
        value.unwrap_or(0)
    };
    (count("voluntary_ctxt_switches:"), count("nonvoluntary_ctxt_switches:"))
}

/// One thread at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ThreadLook {
    pub(super) comm: String,
    pub(super) cpu_ns: u64,
    pub(super) user: u64,
    pub(super) system: u64,
    pub(super) voluntary: u64,
    pub(super) involuntary: u64,
}

/// A thread's number with the time of its start, so that a number that is used again is another thread.
pub(super) type ThreadKey = (i32, u64);

/// One process at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProcessLook {
    pub(super) started: u64,
    /// All its threads, those that have ended included.
    pub(super) cpu_ns: u64,
    pub(super) user: u64,
    pub(super) system: u64,
    pub(super) reaped: u64,
    pub(super) threads: HashMap<ThreadKey, ThreadLook>,
}

impl ProcessLook {
    /// Looks at a process; `None` if there is none, or it may not be looked at.
    pub(super) fn take(pid: i32) -> Option<Self> {
        let mut threads = HashMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
            let Some(tid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let path = entry.path();
            // One that ends between the reads is found in the process's own figures.
            let Some(stat) = Stat::read(&path.join("stat")) else { continue };
            let text = fs::read_to_string(path.join("schedstat"));
            let exact = text.ok().and_then(|text| text.split_whitespace().next()?.parse().ok());
            let (voluntary, involuntary) =
                fs::read_to_string(path.join("status")).map_or((0, 0), |text| switches(&text));
            let thread = ThreadLook {
                cpu_ns: exact.unwrap_or_else(|| ticks_to_ns(stat.user + stat.system)),
                user: stat.user,
                system: stat.system,
                comm: stat.comm,
                voluntary,
                involuntary,
            };
            threads.insert((tid, stat.started), thread);
        }
        let stat = Stat::read(Path::new(&format!("/proc/{pid}/stat")))?;
        let exact = process_clock(pid).unwrap_or_else(|| ticks_to_ns(stat.user + stat.system));
        Some(Self {
            started: stat.started,
            cpu_ns: exact,
            user: stat.user,
            system: stat.system,
            reaped: stat.reaped,
            threads,
        })
    }
}

/// The CPU time of a process in ns, by its CPU clock: exact, and with threads that have ended.
fn process_clock(pid: i32) -> Option<u64> {
    let time = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).ok()?.now().ok()?;
    let seconds = u64::try_from(time.tv_sec()).ok()?;
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec()).ok()?))
}

/// Length of a clock tick, the unit of `stat`, in ns.
pub(super) fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

pub(super) fn ticks_to_ns(ticks: u64) -> u64 {
    ticks.saturating_mul(tick_ns())
}

/// A process and everything that descends from it, as far as it lives.
pub(super) fn tree(root: i32) -> Vec<i32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if let Some(stat) = Stat::read(&entry.path().join("stat")) {
            parents.push((pid, stat.parent));
        }
    }
    descendants(root, &parents)
}

fn descendants(root: i32, parents: &[(i32, i32)]) -> Vec<i32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        // Two reads of a table that changes may show a cycle.
        let new = parents.iter().filter(|(_, p)| *p == parent).map(|(pid, _)| *pid);
        let new: Vec<_> = new.filter(|pid| !found.contains(pid)).collect();
        found.extend(new);
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_an_awkward_name() {
        let text = "4711 (a) R (b\n) c) S 17 2 3 4 5 6 7 8 9 10 77 23 5 6 20 0 3 0 98765 1 2 3";
        let stat = Stat::parse(text).unwrap();
        let expected = Stat {
            comm: "a) R (b\n) c".into(),
            state: 'S',
            parent: 17,
            user: 77,
            system: 23,
            reaped: 11,
            started: 98765,
        };
        assert_eq!(stat, expected);
        for text in ["", "12", "12 (a", "12 (a)", "12 (a) S 1 2 3", "12 a) S 17 2"] {
            assert_eq!(Stat::parse(text), None, "{text}");
        }
    }

    #[test]
    fn switches_of_both_kinds_are_told_apart() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(switches(status), (7, 3));
        // A kernel thread's name can be a line that looks like one, but not at the line's start.
        assert_eq!(switches("Name:\tvoluntary_ctxt_switches: 9\n"), (0, 0));
    }

    #[test]
    fn descendants_are_found_in_any_order_and_a_cycle_does_not_hang() {
        let parents = [(5, 4), (4, 2), (3, 2), (2, 1), (9, 8), (8, 9)];
        let mut found = descendants(2, &parents);
        found.sort_unstable();
        assert_eq!(found, [2, 3, 4, 5]);
        assert_eq!(descendants(8, &parents), [8, 9]);
        assert_eq!(descendants(77, &parents), [77]);
    }

    #[test]
    fn this_process_has_a_clock_that_runs_and_a_thread() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let before = ProcessLook::take(pid).unwrap();
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 30 {
            std::hint::spin_loop();
        }
        let after = ProcessLook::take(pid).unwrap();
        assert!(after.cpu_ns > before.cpu_ns && !after.threads.is_empty());
        assert_eq!(ProcessLook::take(i32::MAX), None);
    }
}
