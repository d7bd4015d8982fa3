//! CPU time of programs that have no part in a measurement.
//!
//! A measurement's own processes descend from this one. A process that detaches has another parent,
//! so it counts as own by its group or session, which an own process began. A subreaper would keep
//! it as a child, and leave zombies to tests for processes that ended. Threads of the kernel count
//! for no program.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use procfs::process::{Stat, StatFlags, all_processes};

/// CPUs of other programs, above which a measurement says nothing.
pub const MOST: f64 = 0.25;
/// Time between two looks, and the least time of a figure.
pub const WINDOW: Duration = Duration::from_secs(5);

static LOOKS: Mutex<Option<Looks>> = Mutex::new(None);

/// CPU time of other programs so far, in seconds, and the time of the look; `None` without `/proc`.
///
/// The first call begins to look now and then. So short processes are seen, and own ones before
/// they detach.
pub fn look() -> Option<(f64, Instant)> {
    let mut looks = LOOKS.lock().unwrap_or_else(PoisonError::into_inner);
    if looks.is_none() {
        thread::Builder::new()
            .name("other load".into())
            .spawn(|| {
                while look().is_some() {
                    thread::sleep(WINDOW);
                }
            })
            .ok()?;
    }
    let looks = looks.get_or_insert_default();
    looks.add(std::process::id().cast_signed(), processes()?);
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    Some((looks.used as f64 / ticks as f64, Instant::now()))
}

/// CPUs of other programs between two looks; `None` if they are too near to tell.
pub fn between(((before, begin), (after, end)): ((f64, Instant), (f64, Instant))) -> Option<f64> {
    let time = end.duration_since(begin);
    (time >= WINDOW).then(|| (after - before) / time.as_secs_f64())
}

/// A process at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Process {
    parent: i32,
    group: i32,
    session: i32,
    start: u64,
    is_kernel: bool,
    /// Ticks of its own threads, and of children that it waited for.
    ticks: u64,
    reaped: u64,
}

fn processes() -> Option<HashMap<i32, Process>> {
    let of = |stat: Stat| Process {
        parent: stat.ppid,
        group: stat.pgrp,
        session: stat.session,
        start: stat.starttime,
        is_kernel: StatFlags::from_bits_truncate(stat.flags).contains(StatFlags::PF_KTHREAD),
        ticks: stat.utime + stat.stime,
        reaped: u64::try_from(stat.cutime + stat.cstime).unwrap_or(0),
    };
    let stats = all_processes().ok()?.filter_map(|process| process.ok()?.stat().ok());
    Some(stats.map(|stat| (stat.pid, of(stat))).collect())
}

/// Looks at all processes.
#[derive(Debug, Default)]
struct Looks {
    /// Own processes by number, with their starts. A number stays as long as its group does.
    own: HashMap<i32, u64>,
    last: HashMap<i32, Process>,
    /// Ticks of others so far.
    used: u64,
}

impl Looks {
    fn add(&mut self, me: i32, all: HashMap<i32, Process>) {
        self.find_own(me, &all);
        // A parent's time has that of its ended children, of which a part was seen before.
        let mut ended: HashMap<i32, u64> = HashMap::new();
        let is_there = |pid: i32, of: &Process| all.get(&pid).is_some_and(|p| p.start == of.start);
        for (_, gone) in self.last.iter().filter(|(pid, process)| !is_there(**pid, process)) {
            let mut parent = gone.parent;
            while let Some(process) = self.last.get(&parent).filter(|p| !is_there(parent, p)) {
                parent = process.parent;
            }
            *ended.entry(parent).or_default() += gone.ticks + gone.reaped;
        }
        let ancestors: Vec<i32> =
            std::iter::successors(Some(me), |pid| Some(all.get(pid)?.parent)).take(99).collect();
        for (pid, now) in
            all.iter().filter(|(pid, now)| !self.own.contains_key(pid) && !now.is_kernel)
        {
            let before = self.last.get(pid).filter(|last| last.start == now.start);
            let [ticks, reaped] = before.map_or([0; 2], |last| [last.ticks, last.reaped]);
            // On the first look, all time is of before.
            if !self.last.is_empty() {
                self.used += now.ticks.saturating_sub(ticks);
                // The ancestors wait for own processes that detached.
                if !ancestors.contains(pid) {
                    let seen = reaped + ended.get(pid).copied().unwrap_or(0);
                    self.used += now.reaped.saturating_sub(seen);
                }
            }
        }
        self.last = all;
    }

    /// Adds all that descend from own processes, or are in a group or session that one began.
    fn find_own(&mut self, me: i32, all: &HashMap<i32, Process>) {
        let is_led = |pid: i32| all.values().any(|p| p.group == pid || p.session == pid);
        self.own.retain(|pid, start| match all.get(pid) {
            Some(process) => process.start == *start,
            None => is_led(*pid),
        });
        self.own.extend(all.get(&me).map(|process| (me, process.start)));
        loop {
            let is_own = |p: &Process| {
                [p.parent, p.group, p.session].iter().any(|pid| self.own.contains_key(pid))
            };
            let new: Vec<_> = all
                .iter()
                .filter(|(pid, process)| !self.own.contains_key(pid) && is_own(process))
                .map(|(pid, process)| (*pid, process.start))
                .collect();
            if new.is_empty() {
                return;
            }
            self.own.extend(new);
        }
    }
}

#[cfg(test)]
#[path = "others/tests.rs"]
mod tests;
