//! Finds out if the thread has its CPU to itself.
//!
//! Two things make a lane faster on its own CPU and slower on one that it shares with the guest's
//! vCPU. To look for work instead of sleeping takes the vCPU's time. To signal the guest in the
//! middle of a batch makes the vCPU take the lane's place at once. That means a cold cache and a
//! switch for every few requests (measured: 10 million requests a second fall to 3). A thread
//! cannot see which others run on its CPU, but the kernel counts how often it was taken off while
//! it had work. On a CPU of its own that is nearly never.
//!
//! A thread that the vCPU scheduler has made real-time is not taken off for others. It would keep a
//! vCPU from the CPU by looking for work, so it counts as one that shares its CPU.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

/// Rounds of work between two looks at the count, which cost a system call.
const ROUNDS: u32 = 32;
/// The involuntary switches, in that many rounds, that mean that the CPU is shared.
const SHARED: i64 = 4;
/// For how long that is believed at first, and at most.
const BELIEVED: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(640));
/// From one look at the thread's scheduling to the next. Each is a system call.
const SCHEDULING: Duration = Duration::from_millis(100);
/// `SCHED_RR` and the priority of what the vCPU scheduler puts before vCPUs.
const RAISED: (u32, u32) = (2, 1);

#[derive(Debug)]
pub(crate) struct Contention {
    rounds: u32,
    switches: i64,
    believed: Duration,
    until: Option<Instant>,
    /// The thread's file in `/proc`, from the first look on.
    stat: Option<File>,
    /// When that was last read.
    looked: Option<Instant>,
    is_raised: bool,
}

impl Contention {
    pub(crate) fn new() -> Contention {
        Contention {
            rounds: 0,
            switches: involuntary_switches(),
            believed: BELIEVED.0,
            until: None,
            stat: None,
            looked: None,
            is_raised: false,
        }
    }

    /// Returns true if the CPU is shared, as far as is known.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.until.is_some() || self.is_raised
    }

    /// After every round of work.
    #[inline]
    pub(crate) fn worked(&mut self) {
        self.rounds += 1;
        if self.rounds >= ROUNDS {
            self.look(Instant::now(), involuntary_switches());
        }
    }

    /// This thread's policy and real-time priority; none if the system does not tell.
    fn scheduling(&mut self) -> Option<(u32, u32)> {
        if self.stat.is_none() {
            self.stat = File::open("/proc/thread-self/stat").ok();
        }
        let mut text = [0; 1024];
        let len = self.stat.as_ref()?.read_at(&mut text, 0).ok()?;
        parse_scheduling(&text[..len])
    }

    #[cold]
    fn look(&mut self, now: Instant, switches: i64) {
        let new = switches - std::mem::replace(&mut self.switches, switches);
        self.rounds = 0;
        if self.looked.is_none_or(|looked| now >= looked + SCHEDULING) {
            self.looked = Some(now);
            self.is_raised = self.scheduling() == Some(RAISED);
        }
        match self.until {
            // While the CPU counts as shared, the thread keeps out of the way, and the count has no
            // meaning.
            Some(until) if now < until => {}
            // Time is up: try again.
            Some(_) => self.until = None,
            None if new >= SHARED => {
                self.until = Some(now + self.believed);
                self.believed = (self.believed * 2).min(BELIEVED.1);
            }
            None => self.believed = self.believed.mul_f32(0.9).max(BELIEVED.0),
        }
    }
}

/// A thread's policy and real-time priority, out of `/proc/PID/task/TID/stat`: fields 41 and 40,
/// counted after the name, which may hold any bytes.
fn parse_scheduling(text: &[u8]) -> Option<(u32, u32)> {
    let after = text.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = std::str::from_utf8(text.get(after..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(37);
    let priority = fields.next()?.parse().ok()?;
    Some((fields.next()?.parse().ok()?, priority))
}

/// Number of times that the kernel took this thread off its CPU while it had work.
fn involuntary_switches() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_cpu_is_retried_ever_later() {
        let mut contention = Contention { switches: 0, ..Contention::new() };
        let mut now = Instant::now();
        contention.look(now, SHARED - 1);
        assert!(!contention.is_shared());
        let mut switches = SHARED - 1;
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            switches += SHARED;
            contention.look(now, switches);
            let until = contention.until.expect("shared");
            assert!(until - now >= last, "believed for a shorter time");
            last = until - now;
            contention.look(now, switches);
            assert!(contention.is_shared(), "given up too early");
            now = until;
            contention.look(now, switches);
            assert!(!contention.is_shared(), "not tried again");
        }
        assert_eq!(last, BELIEVED.1);
    }

    #[test]
    fn scheduling_is_found_behind_any_name() {
        let mut contention = Contention::new();
        // SCHED_OTHER, or what an administrator has set for the tests.
        let (policy, priority) = contention.scheduling().expect("the kernel tells");
        assert!(policy == 0 && priority == 0 || policy != RAISED.0, "{policy}");
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let line = format!("7 (a) R (b) c) S {}", fields.join(" "));
        assert_eq!(parse_scheduling(line.as_bytes()), Some((41, 40)));
        assert_eq!(parse_scheduling(b"7 (x) S 1 2"), None);
    }

    /// It is asked again after a while, and not at each look.
    #[test]
    fn raised_thread_counts_as_sharing() {
        let now = Instant::now();
        let looked = Some(now);
        let mut contention =
            Contention { switches: 0, is_raised: true, looked, ..Contention::new() };
        contention.look(now, 0);
        assert!(contention.is_shared());
        // The test's thread is an ordinary one.
        contention.look(now + SCHEDULING, 0);
        assert!(!contention.is_shared());
    }
}
