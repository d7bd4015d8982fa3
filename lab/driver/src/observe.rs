//! Resources that a back end's process uses while it is driven: CPU time and context switches, from
//! /proc.
//!
//! Threads come and go (io_uring's workers are threads of the process too). Each thread's own
//! counters are exact but vanish with it; the process' own CPU time includes the dead but counts in
//! ticks of 10 ms. The difference of two [`Snapshot`]s takes the larger of the two, so the use of a
//! dead thread is lost by at most a tick.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use procfs::process::Process;

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

/// The use of a process between two snapshots.
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
    /// Reads the counters of process `pid`; `None` if there is no such process or it may not be
    /// looked at.
    pub fn take(pid: i32) -> Option<Self> {
        let process = Process::new(pid).ok()?;
        let threads = process.tasks().ok()?.flatten().map(|task| {
            // A thread that ends between the two reads counts with what was read.
            let cpu_ns = task.schedstat().map_or(0, |stat| stat.sum_exec_runtime);
            let switches = task.status().map_or(0, |status| {
                let kinds = [status.voluntary_ctxt_switches, status.nonvoluntary_ctxt_switches];
                kinds.into_iter().flatten().sum()
            });
            (task.tid, ThreadUse { cpu_ns, switches })
        });
        let threads = threads.collect();
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        let stat = process.stat().ok()?;
        let process_ns = (stat.utime + stat.stime).saturating_mul(1_000_000_000 / ticks_per_second);
        Some(Self { at: Instant::now(), threads, process_ns, ticks_per_second })
    }

    /// The use from `before` until this snapshot.
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::lanes::thread_cpu;

    /// Uses CPU time, which takes longer on a busy machine.
    fn burn(time: Duration) {
        let start = thread_cpu();
        while thread_cpu().saturating_sub(start) < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn thread_with_awkward_name_is_found() {
        let before = Snapshot::take(std::process::id().try_into().unwrap()).unwrap();
        let sleeper = std::thread::Builder::new().name("a) R (b".into()).spawn(move || {
            // A sleep that is over before the thread has given up its CPU is no switch.
            (0..9).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            let now = Snapshot::take(std::process::id().try_into().unwrap()).unwrap();
            (now.threads[&tid].switches, now.since(&before).switches)
        });
        let (own, all) = sleeper.unwrap().join().unwrap();
        assert!(own >= 5 && all >= own, "{own} of {all}");
    }

    #[test]
    fn ended_thread_still_counts() {
        let pid = std::process::id().try_into().unwrap();
        let before = Snapshot::take(pid).unwrap();
        std::thread::spawn(|| burn(Duration::from_millis(200))).join().unwrap();
        let used = Snapshot::take(pid).unwrap().since(&before);
        // Ticks are rounded, and the two clocks differ a little.
        assert!(
            used.cpu >= Duration::from_millis(100) && used.wall >= Duration::from_millis(150),
            "{used:?}"
        );
    }

    #[test]
    fn missing_process_has_no_counters() {
        assert!(Snapshot::take(i32::MAX).is_none());
    }
}
