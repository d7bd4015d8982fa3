//! What a back end's process uses while it is driven: CPU time and context switches, from /proc.
//!
//! Threads come and go (io_uring's workers are threads of the process too). Each thread's own counters are exact but vanish with it; the
//! process' own CPU time includes the dead but counts in ticks of 10 ms. The difference of two [`Snapshot`]s takes the larger of
//! the two, so what a dead thread used is lost by at most a tick.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// The counters of one thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ThreadUse {
    cpu_ns: u64,
    switches: u64,
}

/// The counters of a process at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    at: Instant,
    threads: HashMap<i32, ThreadUse>,
    process_ns: u64,
    ticks_per_second: u64,
}

/// What a process used between two snapshots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Time between the snapshots.
    pub wall: Duration,
    /// CPU time of all its threads, the kernel's workers on its behalf included.
    pub cpu: Duration,
    /// Context switches, voluntary and involuntary, of the threads alive at the end.
    pub switches: u64,
    /// Threads alive at the end.
    pub threads: usize,
}

impl Snapshot {
    /// Reads the counters of process `pid`; `None` if there is no such process or it may not be looked at.
    pub fn take(pid: i32) -> Option<Self> {
        let mut threads = HashMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
            let Some(tid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let path = entry.path();
            // A thread that ends between the two reads counts with what was read.
            let cpu_ns = fs::read_to_string(path.join("schedstat"))
                .ok()
                .and_then(|text| text.split_whitespace().next()?.parse().ok())
                .unwrap_or(0);
            let switches = fs::read_to_string(path.join("status")).map_or(0, |text| switches(&text));
            threads.insert(tid, ThreadUse { cpu_ns, switches });
        }
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let process_ns = process_ticks(&stat)?.saturating_mul(1_000_000_000 / ticks_per_second);
        Some(Self { at: Instant::now(), threads, process_ns, ticks_per_second })
    }

    /// What was used from `before` until this snapshot.
    pub fn since(&self, before: &Self) -> Usage {
        let (mut cpu, mut switches) = (0, 0);
        for (tid, now) in &self.threads {
            let old = before.threads.get(tid).copied().unwrap_or_default();
            cpu += now.cpu_ns.saturating_sub(old.cpu_ns);
            switches += now.switches.saturating_sub(old.switches);
        }
        // utime and stime are rounded down each, at both ends: two ticks of doubt.
        let doubt = 2 * 1_000_000_000 / self.ticks_per_second;
        let process = self.process_ns.saturating_sub(before.process_ns).saturating_sub(doubt);
        Usage {
            wall: self.at - before.at,
            cpu: Duration::from_nanos(cpu.max(process)),
            switches,
            threads: self.threads.len(),
        }
    }
}

/// Voluntary and involuntary context switches in a `status` file.
fn switches(status: &str) -> u64 {
    status
        .lines()
        .filter(|line| line.contains("voluntary_ctxt_switches:"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum()
}

/// utime + stime in a `stat` file, in ticks. The name in parentheses may hold anything.
fn process_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let utime: u64 = fields.next()?.parse().ok()?;
    let stime: u64 = fields.next()?.parse().ok()?;
    Some(utime + stime)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn burn(time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn fields_are_found_behind_an_awkward_name() {
        let stat = "12 (a) R (b) S 1 2 3 4 5 6 7 8 9 10 77 23 0 0 20 0";
        assert_eq!(process_ticks(stat), Some(100));
        assert_eq!(process_ticks("12 (a"), None);
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(switches(status), 10);
    }

    #[test]
    fn a_thread_that_has_ended_is_not_lost() {
        let pid = std::process::id().try_into().unwrap();
        let before = Snapshot::take(pid).unwrap();
        std::thread::spawn(|| burn(Duration::from_millis(200))).join().unwrap();
        let used = Snapshot::take(pid).unwrap().since(&before);
        // The machine may be busy: the thread spun for 200 ms of wall time, and got some part of it.
        assert!(used.cpu >= Duration::from_millis(30) && used.wall >= Duration::from_millis(200), "{used:?}");
    }

    #[test]
    fn a_process_that_does_not_exist_has_no_counters() {
        assert!(Snapshot::take(i32::MAX).is_none());
    }
}
