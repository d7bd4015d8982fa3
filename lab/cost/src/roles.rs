//! Threads sorted by their role in the work.

use super::proc;

/// Threads that do one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// Name in tables.
    pub name: String,
    /// Their process; a kernel thread is a process of its own.
    pub pid: i32,
    /// Which of its threads.
    pub threads: ThreadFilter,
}

/// Which threads of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThreadFilter {
    /// All that no role before it has.
    All,
    /// Those whose name begins with one of these.
    Named(Vec<String>),
    /// All of them, and of all processes that descend from it: programs that fork, like fio.
    Tree,
}

/// Names of threads that the kernel makes inside a process that asked for work: io_uring's workers
/// and pollers, vhost's.
const KERNEL_WORKERS: [&str; 3] = ["iou-wrk-", "iou-sqp-", "vhost-"];

impl ThreadFilter {
    /// Those whose name begins with one of `names`.
    pub fn named(names: &[&str]) -> Self {
        Self::Named(names.iter().map(ToString::to_string).collect())
    }

    /// True if a thread of the process with this name is one of them.
    pub fn fits(&self, comm: &str) -> bool {
        match self {
            Self::All | Self::Tree => true,
            Self::Named(names) => names.iter().any(|name| comm.starts_with(name)),
        }
    }
}

impl Role {
    /// A role.
    pub fn new(name: impl Into<String>, pid: i32, threads: ThreadFilter) -> Self {
        Self { name: name.into(), pid, threads }
    }

    /// Its processes, as far as they live.
    pub(super) fn processes(&self) -> Vec<i32> {
        match self.threads {
            ThreadFilter::Tree => proc::tree(self.pid),
            _ => vec![self.pid],
        }
    }

    /// A QEMU with a guest: its vCPUs, the kernel's workers, its I/O threads, and the rest (the
    /// main loop). The vCPUs and I/O threads can be distinguished only in a QEMU that was started
    /// with `-name guest,debug-threads=on`.
    pub fn qemu(pid: i32) -> Vec<Self> {
        vec![
            Self::new("guest vCPU", pid, ThreadFilter::named(&["CPU "])),
            Self::new("QEMU kernel worker", pid, ThreadFilter::named(&KERNEL_WORKERS)),
            Self::new("QEMU I/O thread", pid, ThreadFilter::named(&["IO "])),
            Self::new("QEMU main loop", pid, ThreadFilter::All),
        ]
    }

    /// A program with all that it starts, for example fio.
    pub fn program(name: impl Into<String>, pid: i32) -> Vec<Self> {
        vec![Self::new(name, pid, ThreadFilter::Tree)]
    }
}
