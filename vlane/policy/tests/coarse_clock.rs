//! Shares on a host whose timers are coarse: a boost ends at a tick, long after its time is over.

#![allow(clippy::unwrap_used)]

use vlane_policy::loan::units::{MS, US};
use vlane_policy::loan::{Book, Claim, Decision, Doing, Goal, Params, Policy, VcpuId};

/// The time of one step.
const STEP: u64 = 100 * US;
/// The host's tick.
const TICK: u64 = 4 * MS;
/// A vCPU with a larger debt is held back (nice 19), until it owes no more than the second figure.
const HOLD: [i64; 2] = [-8_000_000, -2_000_000];

/// Three vCPUs that compute, on one CPU; one has an event whenever it is not boosted. As under the
/// real-time vehicle, which the fair scheduler below it does not charge for boosts. Timers come at
/// ticks.
struct Host {
    book: Book,
    ids: Vec<VcpuId>,
    now: u64,
    used: [u64; 3],
    /// The CPU time that the fair scheduler has charged.
    fair: [u64; 3],
    /// Used by boosts.
    boosted: u64,
    /// Used and not reported to the book yet.
    untold: [u64; 3],
    /// When the boost that is on has had its time.
    deadline: Option<u64>,
    held_back: bool,
}

impl Host {
    fn new(params: Params) -> Self {
        let mut book = Book::new(params, Goal::default());
        let ids = (0..3).map(|vm| book.open(Claim::of(vm))).collect();
        let zeros = [0; 3];
        let (used, fair, untold) = (zeros, zeros, zeros);
        Self { book, ids, now: 0, used, fair, boosted: 0, untold, deadline: None, held_back: false }
    }

    fn tell(&mut self, vcpu: usize) {
        let ns = std::mem::take(&mut self.untold[vcpu]);
        if vcpu == 0 && self.deadline.is_some() {
            self.book.ran_boosted(self.ids[vcpu], self.now, ns);
        } else {
            self.book.ran(self.ids[vcpu], self.now, ns);
        }
    }

    fn step(&mut self) {
        let fairest = (0..3).min_by_key(|&vcpu| self.fair[vcpu]).unwrap();
        let runs = if self.deadline.is_some() { 0 } else { fairest };
        if self.deadline.is_some() {
            self.boosted += STEP;
        } else {
            // Nice 19 has the weight 15 of 1024.
            self.fair[runs] += if runs == 0 && self.held_back { STEP * 1024 / 15 } else { STEP };
        }
        self.used[runs] += STEP;
        self.untold[runs] += STEP;
        self.now += STEP;
        if self.now.is_multiple_of(TICK)
            && self.deadline.is_some_and(|deadline| deadline <= self.now)
        {
            self.tell(0);
            self.book.end(self.ids[0]);
            self.deadline = None;
        }
        if self.now.is_multiple_of(self.book.params().period_ns) {
            (0..3).for_each(|vcpu| self.tell(vcpu));
            self.book.account_all(self.now, self.book.params().period_ns);
            let credit = self.book.account(self.ids[0]).unwrap().credit_ns;
            self.held_back = credit < HOLD[usize::from(self.held_back)];
        }
        // In no step with the ticks.
        if self.deadline.is_none() && self.now.is_multiple_of(7 * STEP) {
            self.tell(0);
            if let Some(Decision::Boost { ns }) =
                self.book.event(self.ids[0], self.now, Doing::Waiting)
            {
                self.deadline = Some(self.now + ns);
            }
        }
    }
}

#[test]
fn late_timer_time_is_charged() {
    for allowed in [MS, 2 * MS, 4 * MS] {
        let params = Params { boost_max_ns: allowed, ..Params::sound(Policy::Loan) };
        let mut host = Host::new(params);
        while host.now < 60_000 * MS {
            host.step();
        }
        let account = host.book.account(host.ids[0]).unwrap();
        let totals = account.totals;
        let length = host.boosted / totals.boosts;
        assert!(
            length > allowed * 5 / 4,
            "boosts of {length} ns are not late: {allowed} were allowed"
        );
        // But for one that is on.
        assert!(
            totals.lent_ns.abs_diff(host.boosted) <= allowed + TICK,
            "{} of {}",
            totals.lent_ns,
            host.boosted
        );
        let share = host.used[0] * 1000 / host.used.iter().sum::<u64>();
        assert!((323..=343).contains(&share), "{share} permille");
    }
}
