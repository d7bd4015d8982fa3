//! CPU time and context switches of some threads of this process, from /proc.

use std::collections::HashMap;
use std::time::Duration;

use procfs::process::Process;

/// The counters of some threads at one moment.
#[derive(Debug, Clone, Default)]
pub struct Threads(HashMap<i32, (u64, u64)>);

/// What the threads used between two moments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// CPU time, exact to a tick of the scheduler.
    pub cpu: Duration,
    /// Context switches, voluntary and involuntary.
    pub switches: u64,
}

impl Threads {
    /// Reads the counters of threads of this process, by their kernel thread numbers; those that have ended are left out.
    pub fn take(tids: impl Iterator<Item = i32>) -> Self {
        let process = Process::myself().ok();
        let look = |tid: i32| {
            let task = process.as_ref()?.task_from_tid(tid).ok()?;
            let (cpu, status) = (task.schedstat().ok()?.sum_exec_runtime, task.status().ok()?);
            let switches = status.voluntary_ctxt_switches? + status.nonvoluntary_ctxt_switches?;
            Some((tid, (cpu, switches)))
        };
        Self(tids.filter(|tid| *tid > 0).filter_map(look).collect())
    }

    /// What those that are in both used from `before` until now.
    pub fn since(&self, before: &Self) -> Used {
        let mut used = Used::default();
        for (tid, (cpu, switches)) in &self.0 {
            if let Some((old_cpu, old_switches)) = before.0.get(tid) {
                used.cpu += Duration::from_nanos(cpu.saturating_sub(*old_cpu));
                used.switches += switches.saturating_sub(*old_switches);
            }
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    #[test]
    fn a_thread_that_works_uses_cpu_and_one_that_sleeps_switches() {
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        let before = Threads::take([me, 0, i32::MAX].into_iter());
        // By its own clock: on a machine with much to do, time passes that it does not have.
        let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a clock");
        let begin = used();
        while used() - begin < Duration::from_millis(60) {
            std::hint::spin_loop();
        }
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let used = Threads::take([me].into_iter()).since(&before);
        assert!(used.cpu > Duration::from_millis(5), "{used:?}");
        assert!(used.switches >= 5, "{used:?}");
    }
}
