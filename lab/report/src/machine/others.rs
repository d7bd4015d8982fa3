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

use procfs::process::{Stat, all_processes};

/// CPUs of other programs, above which a measurement says nothing.
pub const MOST: f64 = 0.25;
/// Time between two looks, and the least time of a figure.
pub const WINDOW: Duration = Duration::from_secs(5);

/// The flag `PF_KTHREAD`.
const KERNEL_THREAD: u32 = 0x20_0000;

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

fn processes() -> Option<HashMap<i32, Stat>> {
    let stats = all_processes().ok()?.filter_map(|process| process.ok()?.stat().ok());
    Some(stats.map(|stat| (stat.pid, stat)).collect())
}

/// Ticks of a process's own threads, and of children that it waited for.
fn ticks(of: &Stat) -> [u64; 2] {
    [of.utime + of.stime, u64::try_from(of.cutime + of.cstime).unwrap_or(0)]
}

/// Looks at all processes.
#[derive(Debug, Default)]
struct Looks {
    /// Own processes by number.
    own: HashMap<i32, Stat>,
    last: HashMap<i32, Stat>,
    /// Ticks of others so far.
    used: u64,
}

impl Looks {
    fn add(&mut self, me: i32, all: HashMap<i32, Stat>) {
        let is_first = self.last.is_empty();
        let last = std::mem::replace(&mut self.last, all);
        let all = &self.last;
        let is_there = |of: &Stat| all.get(&of.pid).is_some_and(|p| p.starttime == of.starttime);
        // A number stays own as long as a group or session has it.
        let is_led = |pid: i32| all.values().any(|p| p.pgrp == pid || p.session == pid);
        self.own.retain(|pid, of| is_there(of) || !all.contains_key(pid) && is_led(*pid));
        self.own.extend(all.get(&me).map(|of| (me, of.clone())));
        while let Some(new) = all.values().find(|of| {
            !self.own.contains_key(&of.pid)
                && [of.ppid, of.pgrp, of.session].iter().any(|pid| self.own.contains_key(pid))
        }) {
            self.own.insert(new.pid, new.clone());
        }
        // A parent's time has that of its ended children, of which a part was seen before.
        let mut ended: HashMap<i32, u64> = HashMap::new();
        for gone in last.values().filter(|of| !is_there(of)) {
            let mut parent = gone.ppid;
            while let Some(of) = last.get(&parent).filter(|of| !is_there(of)) {
                parent = of.ppid;
            }
            *ended.entry(parent).or_default() += ticks(gone).iter().sum::<u64>();
        }
        // Ancestors wait for own processes that detached.
        let parent = |pid: &i32| Some(all.get(pid)?.ppid);
        let ancestors: Vec<i32> = std::iter::successors(Some(me), parent).take(99).collect();
        let is_other = |of: &&Stat| {
            !is_first && !self.own.contains_key(&of.pid) && of.flags & KERNEL_THREAD == 0
        };
        for of in all.values().filter(is_other) {
            let before = last.get(&of.pid).filter(|last| last.starttime == of.starttime);
            let ([alone, reaped], [seen, known]) = (ticks(of), before.map_or([0; 2], ticks));
            self.used += alone.saturating_sub(seen);
            if !ancestors.contains(&of.pid) {
                let known = known + ended.get(&of.pid).unwrap_or(&0);
                self.used += reaped.saturating_sub(known);
            }
        }
    }
}

#[cfg(test)]
#[path = "others/tests.rs"]
mod tests;
