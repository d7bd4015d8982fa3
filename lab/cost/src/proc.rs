//! Facts in /proc about a process and its threads.

use std::collections::HashMap;

use nix::time::ClockId;
use nix::unistd::Pid;
use procfs::process::{Process, Stat, Task, all_processes};

/// One thread at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ThreadLook {
    pub(super) comm: String,
    pub(super) cpu_ns: u64,
    /// Times that it gave up its CPU, or was taken off it.
    pub(super) switches: u64,
}

/// A thread's number with the time of its start, so that a number that is used again is another
/// thread.
pub(super) type ThreadKey = (i32, u64);

/// One process at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProcessLook {
    pub(super) started: u64,
    /// All its threads, those that have ended included.
    pub(super) cpu_ns: u64,
    /// CPU time in ticks: its own, and that of children that it waited for.
    pub(super) ticks: u64,
    pub(super) reaped: u64,
    pub(super) threads: HashMap<ThreadKey, ThreadLook>,
}

impl ProcessLook {
    /// Looks at a process; `None` if there is none, or it may not be looked at.
    pub(super) fn take(pid: i32) -> Option<Self> {
        let process = Process::new(pid).ok()?;
        // A thread that ends between the reads is found in the process's own figures.
        let threads = process.tasks().ok()?.flatten().filter_map(|task| look(&task)).collect();
        let stat = process.stat().ok()?;
        Some(Self {
            started: stat.starttime,
            cpu_ns: process_clock(pid).unwrap_or_else(|| in_ticks(&stat)),
            ticks: stat.utime + stat.stime,
            reaped: u64::try_from(stat.cutime.saturating_add(stat.cstime)).unwrap_or(0),
            threads,
        })
    }
}

fn look(task: &Task) -> Option<(ThreadKey, ThreadLook)> {
    let stat = task.stat().ok()?;
    let of_status = |status: procfs::process::Status| {
        let both = [status.voluntary_ctxt_switches, status.nonvoluntary_ctxt_switches];
        both.into_iter().flatten().sum()
    };
    let thread = ThreadLook {
        cpu_ns: task.schedstat().map_or_else(|_| in_ticks(&stat), |exact| exact.sum_exec_runtime),
        comm: stat.comm,
        switches: task.status().map_or(0, of_status),
    };
    Some(((task.tid, stat.starttime), thread))
}

/// CPU time in ns, as exact as ticks are.
fn in_ticks(stat: &Stat) -> u64 {
    ticks_to_ns(stat.utime + stat.stime)
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

/// A process and all that descend from it, as far as they live.
pub(super) fn tree(root: i32) -> Vec<i32> {
    let stats =
        all_processes().into_iter().flatten().filter_map(|process| process.ok()?.stat().ok());
    descendants(root, &stats.map(|stat| (stat.pid, stat.ppid)).collect::<Vec<_>>())
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
    fn awkward_thread_name_is_parsed() {
        let name = "a) R (b\n) c";
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::Builder::new().name(name.into()).spawn(move || {
            // A sleep that is over before the thread has given up its CPU is no switch.
            (0..9).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
            let me = rustix::thread::gettid().as_raw_nonzero().get();
            let look = ProcessLook::take(i32::try_from(std::process::id()).unwrap()).unwrap();
            drop(done);
            look.threads.into_iter().find(|((tid, _), _)| *tid == me).unwrap().1
        });
        is_done.recv().unwrap_err();
        let thread = sleeper.unwrap().join().unwrap();
        assert_eq!(thread.comm, name);
        assert!(thread.switches >= 5 && thread.cpu_ns > 0, "{thread:?}");
    }

    #[test]
    fn descendants_are_found_without_endless_cycle() {
        let parents = [(5, 4), (4, 2), (3, 2), (2, 1), (9, 8), (8, 9)];
        let mut found = descendants(2, &parents);
        found.sort_unstable();
        assert_eq!(found, [2, 3, 4, 5]);
        assert_eq!(descendants(8, &parents), [8, 9]);
        assert_eq!(descendants(77, &parents), [77]);
    }

    #[test]
    fn own_process_has_clock_and_thread() {
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
