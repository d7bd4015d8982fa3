//! Vehicles carry out the policy's decisions on a live host: sched_ext, or real-time slices.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use vlane_policy::loan::{Account, Claim, Decision, VcpuId};

use crate::Result;
use crate::live::state::BudgetState;
use crate::thread::Thread;

/// The most threads of one vCPU that are scheduled. Each boost takes some system calls for each of
/// them, and a User-Mode Linux has as many children as its owner likes.
pub const MAX_THREADS: usize = 32;

/// The host's threads that make up one vCPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuThreads {
    /// The process of the virtual machine.
    pub pid: u32,
    /// Index of the vCPU in its machine, from 0.
    pub index: u32,
    /// Its threads: one with QEMU and its relatives; with User-Mode Linux the kernel's and those
    /// that run its processes.
    pub tids: Vec<u32>,
    /// Its name for people: machine and vCPU.
    pub name: String,
}

/// One way to put a vCPU before the others and to keep it fair. Owned by one thread; times are
/// `CLOCK_MONOTONIC`, ns.
pub trait Vehicle: Send {
    /// Its name: `sched_ext` or `realtime`.
    fn name(&self) -> &'static str;

    /// Threads that the next [`Vehicle::add`] or [`Vehicle::change`] is about, opened already: by a
    /// thread that may wait.
    fn bring(&mut self, threads: &[Arc<Thread>]) {
        let _ = threads;
    }

    /// Takes a vCPU under its wing.
    ///
    /// # Errors
    ///
    /// A thread is gone, or the system refuses.
    fn add(&mut self, vcpu: &VcpuThreads, claim: Claim) -> Result<VcpuId>;

    /// The vCPU's threads are others now (User-Mode Linux makes one per program).
    ///
    /// # Errors
    ///
    /// As [`Vehicle::add`].
    fn change(&mut self, id: VcpuId, vcpu: &VcpuThreads) -> Result<()> {
        let _ = (id, vcpu);
        Ok(())
    }

    /// Lets a vCPU go: its threads are scheduled as they were before. Threads that are gone are no
    /// error.
    ///
    /// # Errors
    ///
    /// The system refuses.
    fn remove(&mut self, id: VcpuId) -> Result<()>;

    /// A back end has these storage threads, and no others: they carry the completions of the
    /// machine `vm`, which pays for them. A vehicle may put them before vCPUs.
    ///
    /// # Errors
    ///
    /// The system refuses; the others of them are taken all the same.
    fn storage(&mut self, back_end: &VcpuThreads, vm: u32) -> Result<()> {
        let _ = (back_end, vm);
        Ok(())
    }

    /// An I/O of the vCPU has completed at `now`: boosts it, if the policy says so.
    ///
    /// # Errors
    ///
    /// The vCPU is gone, or the system refuses.
    fn event(&mut self, id: VcpuId, now: u64) -> Result<Decision>;

    /// The event was served, `response_ns` after it came: the boost ends.
    ///
    /// # Errors
    ///
    /// The vCPU is gone, or the system refuses.
    fn served(&mut self, id: VcpuId, now: u64, response_ns: u64) -> Result<()>;

    /// Does what is due: ends boosts that have had their time, and the accounting. Returns the time
    /// of the next call.
    ///
    /// # Errors
    ///
    /// The system refuses.
    fn tick(&mut self, now: u64) -> Result<u64>;

    /// A vCPU's account as it is now, for people to look at.
    fn account(&self, id: VcpuId) -> Option<Account>;

    /// The time until which an event of the vCPU changes nothing, if that is known: the next
    /// accounting.
    fn denied_until(&self, id: VcpuId) -> Option<u64> {
        let _ = id;
        None
    }

    /// Readable when [`Vehicle::alarmed`] has to be called before anything else.
    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The alarm is readable.
    fn alarmed(&mut self, now: u64) {
        let _ = now;
    }

    /// Returns true if a vCPU is kept after the others until it has paid its debt.
    fn is_held_back(&self, id: VcpuId) -> bool {
        let _ = id;
        false
    }

    /// Returns true if all threads of a vCPU have ended.
    fn is_gone(&self, id: VcpuId) -> bool {
        let _ = id;
        false
    }

    /// Accounts time for which the caller itself kept a CPU, ns.
    fn spend(&mut self, ns: u64) {
        let _ = ns;
    }

    /// Its remaining budgets, for people to look at.
    fn budgets(&self) -> Vec<BudgetState> {
        Vec::new()
    }

    /// Its counters, for people to look at.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
}

/// A number that a vehicle has counted since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// Its name, in `snake_case`, with its unit if it has one.
    pub name: &'static str,
    /// The count.
    pub value: u64,
}
