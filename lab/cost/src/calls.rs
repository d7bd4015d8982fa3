//! System calls, counted by the kernel: `raw_syscalls:sys_enter` for all, `syscalls:sys_enter_NAME`
//! for those that I/O is made of.
//!
//! Counting, unlike tracing, writes no record: each thread has a counter per tracepoint
//! (perf_event_open(2)), which threads that it starts inherit. Tracepoints show what other users'
//! programs do, so only root, or CAP_PERFMON with a readable tracefs, may count them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};

use super::{Counted, Role, Tally, proc};

/// Where the kernel describes its tracepoints.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The calls that are counted by name: waiting, signalling, data, and a vCPU's own (`ioctl`).
const NAMED: [&str; 17] = [
    "futex",
    "io_uring_enter",
    "io_submit",
    "io_getevents",
    "read",
    "write",
    "pread64",
    "pwrite64",
    "preadv",
    "pwritev",
    "pwritev2",
    "fdatasync",
    "ppoll",
    "epoll_wait",
    "epoll_pwait",
    "ioctl",
    "sendmsg",
];

/// System calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calls {
    /// All of them.
    pub total: u64,
    /// Some, by name; those that were never called are left out.
    pub by_name: Tally,
}

impl Calls {
    /// How often one was called.
    pub fn of(&self, name: &str) -> u64 {
        self.by_name.of(name)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.total += other.total;
        for (name, count) in &other.by_name.0 {
            self.by_name.add(name, *count);
        }
    }

    /// The calls between the look `before` and this one.
    pub fn since(&self, before: &Self) -> Self {
        let total = self.total.saturating_sub(before.total);
        Self { total, by_name: self.by_name.since(&before.by_name) }
    }
}

/// One counter of one thread.
struct One {
    role: usize,
    name: &'static str,
    counter: Counter,
    last: u64,
}

/// Counters on all threads that the roles had when they were opened; what these threads start
/// counts with them.
pub(super) struct CallCounters {
    roles: usize,
    counters: Vec<One>,
}

impl std::fmt::Debug for CallCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallCounters")
            .field("counters", &self.counters.len())
            .finish_non_exhaustive()
    }
}

/// The number of a tracepoint.
fn tracepoint(name: &str) -> io::Result<u64> {
    let read =
        |root: &str| fs::read_to_string(Path::new(root).join("events").join(name).join("id"));
    let text = read(TRACEFS[0]).or_else(|_| read(TRACEFS[1]))?;
    text.trim()
        .parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("`{}`", text.trim())))
}

/// Counters of system calls, or the reason for their absence.
pub fn available() -> Counted<()> {
    let reason = |error: &io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => "not counted: system calls are counted by tracepoints, \
                                            which show other users' programs: needs root"
            .to_owned(),
        io::ErrorKind::NotFound => "not counted: no tracepoint raw_syscalls:sys_enter in tracefs; \
                                    as root: mount -t tracefs none /sys/kernel/tracing"
            .to_owned(),
        _ => format!("not counted: the tracepoint of system calls cannot be used: {error}"),
    };
    // The directory itself is closed to others, which looks like a file that is not there to some
    // calls and not to others.
    let counter = tracepoint("raw_syscalls/sys_enter")
        .and_then(|id| Builder::new(Tracepoint::with_id(id)).observe_self().build());
    match counter {
        Ok(_) => Counted::Is(()),
        Err(error) => Counted::Not(reason(&error)),
    }
}

impl CallCounters {
    pub(super) fn open(roles: &[Role]) -> Counted<Self> {
        if let Counted::Not(reason) = available() {
            return Counted::Not(reason);
        }
        let mut points: Vec<(&'static str, u64)> = Vec::new();
        for (name, path) in std::iter::once(("", "raw_syscalls/sys_enter".to_owned()))
            .chain(NAMED.iter().map(|name| (*name, format!("syscalls/sys_enter_{name}"))))
        {
            // Some kernels have no tracepoints by name, and an architecture may lack a call.
            points.extend(tracepoint(&path).ok().map(|id| (name, id)));
        }
        let mut counters = Vec::new();
        for (tid, role) in threads(roles) {
            for (name, id) in &points {
                let mut builder = Builder::new(Tracepoint::with_id(*id));
                builder.observe_pid(tid).any_cpu().inherit(true).enabled(true).include_kernel();
                match builder.build() {
                    Ok(counter) => counters.push(One { role, name, counter, last: 0 }),
                    // It has ended.
                    Err(error) if error.raw_os_error() == Some(3) => break,
                    Err(error) => {
                        return Counted::Not(format!(
                            "not counted: no counter for the system calls of thread {tid}: {error}"
                        ));
                    }
                }
            }
        }
        Counted::Is(Self { roles: roles.len(), counters })
    }

    /// The counts now, by role.
    pub(super) fn read(&mut self) -> Vec<Calls> {
        let mut all = vec![Calls::default(); self.roles];
        for one in &mut self.counters {
            one.last = one.counter.read().unwrap_or(one.last);
            let calls = &mut all[one.role];
            match one.name {
                "" => calls.total += one.last,
                name => calls.by_name.add(name, one.last),
            }
        }
        all
    }
}

/// All threads of the roles, each with the role that it counts for.
pub(super) fn threads(roles: &[Role]) -> Vec<(i32, usize)> {
    let mut found: BTreeMap<i32, usize> = BTreeMap::new();
    for (index, role) in roles.iter().enumerate() {
        for pid in role.processes() {
            let Some(process) = proc::ProcessLook::take(pid) else { continue };
            for ((tid, _), thread) in process.threads {
                if role.threads.fits(&thread.comm) {
                    found.entry(tid).or_insert(index);
                }
            }
        }
    }
    found.into_iter().collect()
}
