//! Interface of the simulated machine to a host scheduler.

use std::ops::AddAssign;

use vlane_policy::loan::Doing;

/// A host scheduler: who waits, who is next, when the CPU comes back. Times are simulated
/// nanoseconds, `vcpu` and `cpu` are indexes. The machine tells it of all CPU time before it asks
/// anything.
pub(super) trait Scheduler: std::fmt::Debug {
    /// An I/O of the vCPU completed. True: it is put before the others now (and was moved, if it
    /// waited).
    fn event(&mut self, _vcpu: usize, _now: u64, _doing: Doing) -> bool {
        false
    }
    /// The CPU at which a vCPU that waits, or is about to, should look: idle, or the one that it
    /// would preempt.
    fn target(&self, vcpu: usize, last: usize) -> usize;
    /// A vCPU that slept waits from now on; `cpu` is what [`Scheduler::target`] said.
    fn wake(&mut self, vcpu: usize, cpu: usize);
    /// True if a waiting vCPU takes the CPU from the running one.
    fn preempts(&mut self, vcpu: usize, cpu: usize) -> bool;
    /// The next vCPU to run, which waits no more. `None`: no waiting vCPU could run on this CPU.
    fn pick(&mut self, cpu: usize) -> Option<usize>;
    /// The vCPU that ran waits again.
    fn put_back(&mut self, vcpu: usize, cpu: usize);
    /// The vCPU that ran sleeps.
    fn sleep(&mut self, vcpu: usize, cpu: usize);
    /// The running vCPU has used so much.
    fn ran(&mut self, vcpu: usize, cpu: usize, now: u64, ns: u64);
    /// True if the running vCPU has to go back to the queue (its turn or its boost is over).
    fn yields(&mut self, vcpu: usize, cpu: usize, now: u64) -> bool;
    /// Latest time to look at the CPU again, if the running vCPU continues from `from`.
    fn until(&self, vcpu: usize, cpu: usize, from: u64) -> u64;
    /// An event was served; whether it was the last that the vCPU knew of.
    fn served(&mut self, _vcpu: usize, _response_ns: u64, _last: bool) {}
    /// When [`Scheduler::periodic`] is to be called next.
    fn next_periodic(&self) -> u64;
    /// Accounting, ticks, balancing. True: the unserved events of vCPUs that wait are announced
    /// again.
    fn periodic(&mut self, now: u64) -> bool;
    /// Figures of the vCPU's boosts and loans, if it has any.
    fn loans(&self, _vcpu: usize) -> Loans {
        Loans::default()
    }
    /// From now on is measured.
    fn measure(&mut self) {}
}

/// Figures of a vCPU's boosts and loans.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loans {
    /// Events seen.
    pub events: u64,
    /// Boosts granted from a loan, or without a charge.
    pub boosts: u64,
    /// Boosts granted from the vCPU's own credits.
    pub wake_boosts: u64,
    /// Boosts denied.
    pub denied: u64,
    /// Accountings at which cm was known.
    pub samples: u64,
    /// Sum of cm over them, parts per million of a CPU.
    pub cm_ppm: u64,
    /// Sum of the next loan over them, nanoseconds.
    pub next_ns: u64,
    /// Loans redeemed from the end of their line to the last credit.
    pub redemptions: u64,
    /// How long these took, nanoseconds.
    pub redeeming_ns: u64,
    /// Time during which a spent loan kept the vCPU from boosts, ended or not, nanoseconds.
    pub barred_ns: u64,
}

impl AddAssign for Loans {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.boosts += other.boosts;
        self.wake_boosts += other.wake_boosts;
        self.denied += other.denied;
        self.samples += other.samples;
        self.cm_ppm += other.cm_ppm;
        self.next_ns += other.next_ns;
        self.redemptions += other.redemptions;
        self.redeeming_ns += other.redeeming_ns;
        self.barred_ns += other.barred_ns;
    }
}
