//! The work that processes do for a load, counted from outside.
//!
//! A [`Sampler`] looks at a set of processes, whose threads are sorted into roles (guest vCPU, back
//! end, kernel worker). The difference of two looks, divided by the number of requests, is the cost
//! of a request.
//!
//! ```no_run
//! use vlane_cost::{Role, Sampler, ThreadFilter};
//!
//! # let (qemu, server) = (1, 2);
//! let mut roles = Role::qemu(qemu);
//! roles.push(Role::new("back end", server, ThreadFilter::All));
//! let mut sampler = Sampler::new(roles);
//! let before = sampler.take();
//! // ... the load ...
//! let used = sampler.take().since(&before);
//! println!("{:?} of CPU time", used.cpu());
//! ```
//!
//! | count | from | needs |
//! |---|---|---|
//! | CPU time, exact | the process's CPU clock, threads' `schedstat` | a process of one's own, or root |
//! | context switches | threads' `status` | the same |
//! | system calls | [`calls`]: the kernel's tracepoints, counted per thread | root |
//! | instructions | [`instructions`]: the processor's counters, per thread | a machine that shows them |
//! | KVM exits | [`kvm`]: debugfs | root, KVM |
//! | guest interrupts | [`interrupts`]: `/proc/interrupts` in the guest | a guest that prints it |
//! | QEMU's own functions | [`qemu`]: its trace log | a QEMU started for it |

#![forbid(unsafe_code)]

pub mod calls;
mod counters;
pub mod instructions;
pub mod interrupts;
pub mod kvm;
mod proc;
pub mod qemu;
mod roles;
mod tally;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use self::counters::Counters;
use self::proc::{ProcessLook, ticks_to_ns};
pub use self::roles::{Role, ThreadFilter};
pub use self::tally::Tally;

/// Counts, or the reason for their absence: in words, for a report.
pub type Counted<T> = Result<T, String>;

/// Looks at processes.
#[derive(Debug)]
pub struct Sampler {
    roles: Vec<Role>,
    calls: Option<Counted<Counters>>,
}

/// One look.
#[derive(Debug, Clone)]
pub struct Snapshot {
    at: Instant,
    roles: Vec<Role>,
    /// By role: its processes.
    pids: Vec<Vec<i32>>,
    processes: HashMap<i32, ProcessLook>,
    /// By role.
    calls: Option<Counted<Vec<u64>>>,
}

/// Resources used between two looks.
#[derive(Debug, Clone, PartialEq)]
pub struct Used {
    /// Time between the looks.
    pub wall: Duration,
    /// By role, in the order that they were given in. Threads that ended between the looks, and
    /// could belong to several roles, make one more role at the end, if they used any.
    pub roles: Vec<RoleUse>,
}

/// Resources used by the threads of one role.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleUse {
    /// The role's name.
    pub name: String,
    /// CPU time.
    pub cpu: Duration,
    /// Context switches, voluntary ones and others; of threads alive at the end.
    pub switches: u64,
    /// Threads alive at the end.
    pub threads: usize,
    /// System calls.
    pub calls: Counted<u64>,
    /// True if a process of the role could not be read at the end (it has ended, or is another
    /// user's): figures are too small then.
    pub lost: bool,
}

impl Sampler {
    /// A sampler of CPU time and context switches. A thread counts for the first role that it fits.
    pub fn new(roles: Vec<Role>) -> Self {
        Self { roles, calls: None }
    }

    /// Counts system calls as well, from now on, where that is possible.
    ///
    /// While they are counted, every system call of the machine takes the kernel's slow path (some
    /// 100 ns more). CPU time and system calls are better measured in two runs.
    pub fn count_calls(mut self) -> Self {
        self.calls = Some(calls::open(&self.roles));
        self
    }

    /// Looks.
    pub fn take(&mut self) -> Snapshot {
        let pids: Vec<Vec<i32>> = self.roles.iter().map(Role::processes).collect();
        let all: BTreeSet<i32> = pids.iter().flatten().copied().collect();
        let processes =
            all.into_iter().filter_map(|pid| Some((pid, ProcessLook::take(pid)?))).collect();
        let calls = self.calls.as_mut().map(|calls| match calls {
            Ok(counters) => Ok(counters.read(self.roles.len())),
            Err(reason) => Err(reason.clone()),
        });
        Snapshot { at: Instant::now(), roles: self.roles.clone(), pids, processes, calls }
    }
}

/// Sums over the threads of a role.
#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    cpu_ns: u64,
    switches: u64,
    threads: usize,
}

impl Snapshot {
    /// A look at all threads of one process; `None` if there is none, or it may not be looked at.
    pub fn of(pid: i32) -> Option<Self> {
        let look = Sampler::new(vec![Role::new("process", pid, ThreadFilter::All)]).take();
        look.processes.contains_key(&pid).then_some(look)
    }

    /// Resources used from `before`, an earlier look of the same sampler, until this one.
    pub fn since(&self, before: &Self) -> Used {
        let mut sums = vec![Sum::default(); self.roles.len()];
        let mut ended = Sum::default();
        for (pid, now) in &self.processes {
            // A number that was used again is a new process.
            let old = before.processes.get(pid).filter(|old| old.started == now.started);
            ended.cpu_ns += self.add_process(*pid, now, old, &mut sums);
        }
        self.add_reaped(before, &mut sums);
        let calls = |index: usize| match (&self.calls, &before.calls) {
            (Some(Ok(now)), Some(Ok(old))) => Ok(now[index].saturating_sub(old[index])),
            (Some(Err(reason)), _) | (_, Some(Err(reason))) => Err(reason.clone()),
            _ => Err("not counted: not asked for".into()),
        };
        let each = self.roles.iter().zip(&sums).enumerate();
        let mut roles: Vec<RoleUse> = each
            .map(|(index, (role, sum))| {
                let lost = !self.processes.contains_key(&role.pid);
                sum.of(role.name.clone(), calls(index), lost)
            })
            .collect();
        if ended.cpu_ns > 0 {
            let reason = "not counted: these threads have ended".into();
            roles.push(ended.of("threads that ended".into(), Err(reason), false));
        }
        Used { wall: self.at.saturating_duration_since(before.at), roles }
    }

    /// Adds the resources of a process to its roles. The part beyond its living threads was used by
    /// threads that have ended, or in the present time slice, which a thread's own figure does not
    /// have yet. Returns the part that belongs to no role for certain.
    fn add_process(
        &self,
        pid: i32,
        now: &ProcessLook,
        old: Option<&ProcessLook>,
        sums: &mut [Sum],
    ) -> u64 {
        let since = |now: u64, old: Option<u64>| now.saturating_sub(old.unwrap_or(0));
        let mut used_by_role = vec![0_u64; sums.len()];
        let mut covered = true;
        for (key, thread) in &now.threads {
            let begin = old.and_then(|old| old.threads.get(key));
            let Some(role) = self.role_of(pid, &thread.comm) else {
                covered = false;
                continue;
            };
            let cpu = since(thread.cpu_ns, begin.map(|t| t.cpu_ns));
            used_by_role[role] += cpu;
            sums[role].cpu_ns += cpu;
            sums[role].switches += since(thread.switches, begin.map(|t| t.switches));
            sums[role].threads += 1;
        }
        let roles = || (0..sums.len()).filter(|role| self.pids[*role].contains(&pid));
        // The busiest is the likeliest to be running.
        let busiest = roles().max_by_key(|role| used_by_role[*role]);
        // With roles for some of the threads only, the owner of the rest is unknown.
        let Some(busiest) = busiest.filter(|_| covered) else { return 0 };
        let living: u64 = used_by_role.iter().sum();
        let rest = since(now.cpu_ns, old.map(|old| old.cpu_ns)).saturating_sub(living);
        let vanished =
            old.is_some_and(|old| old.threads.keys().any(|key| !now.threads.contains_key(key)));
        // A running thread's figure is at most a tick old.
        let stale = now.threads.len() as u64 * proc::tick_ns();
        if roles().count() > 1 && (vanished || rest > stale) {
            return rest;
        }
        sums[busiest].cpu_ns += rest;
        0
    }

    /// Adds the resources of processes of a tree that have ended and were waited for.
    fn add_reaped(&self, before: &Self, sums: &mut [Sum]) {
        for (index, role) in self.roles.iter().enumerate() {
            if !matches!(role.threads, ThreadFilter::Tree) {
                continue;
            }
            let reaped = |snapshot: &Self| -> u64 {
                let processes = snapshot.pids[index].iter().map(|pid| snapshot.processes.get(pid));
                processes.flatten().map(|process| process.reaped).sum()
            };
            // Time that an ended one used before the first look is in its parent's figure, too.
            let gone = before.pids[index].iter().filter(|pid| !self.processes.contains_key(pid));
            let gone = gone.filter_map(|pid| before.processes.get(pid));
            let gone: u64 = gone.map(|process| process.ticks + process.reaped).sum();
            let ticks = reaped(self).saturating_sub(reaped(before)).saturating_sub(gone);
            sums[index].cpu_ns += ticks_to_ns(ticks);
        }
    }

    /// The role that a thread counts for: the first that it fits.
    fn role_of(&self, pid: i32, comm: &str) -> Option<usize> {
        let fits =
            |(pids, role): (&Vec<i32>, &Role)| pids.contains(&pid) && role.threads.fits(comm);
        self.pids.iter().zip(&self.roles).position(fits)
    }
}

impl Sum {
    fn of(self, name: String, calls: Counted<u64>, lost: bool) -> RoleUse {
        let Self { cpu_ns, switches, threads } = self;
        RoleUse { name, cpu: Duration::from_nanos(cpu_ns), switches, threads, calls, lost }
    }
}

impl Used {
    /// CPU time of all roles.
    pub fn cpu(&self) -> Duration {
        self.roles.iter().map(|role| role.cpu).sum()
    }

    /// Context switches of all roles.
    pub fn switches(&self) -> u64 {
        self.roles.iter().map(|role| role.switches).sum()
    }

    /// A role by its name.
    pub fn role(&self, name: &str) -> Option<&RoleUse> {
        self.roles.iter().find(|role| role.name == name)
    }
}

#[cfg(test)]
mod tests;
