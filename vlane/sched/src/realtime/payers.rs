//! Budgets within the budget: no user and no machine can use up the whole common budget for boosts.
//!
//! A machine's owner decides how often its vCPUs have I/O, and a user how many machines there are.
//! Loans keep the CPUs' shares fair over time; this bounds what one can take from the others at
//! once.

use std::collections::HashMap;

use super::budget::Budget;
use crate::live::state::BudgetState;

/// Percent of what all boosts may use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// The machines of one user. Root and the scheduler's own user have no limit but that of all.
    pub user: u8,
    /// The limit of one machine.
    pub machine: u8,
}

impl Default for Shares {
    fn default() -> Self {
        Self { user: 75, machine: 50 }
    }
}

/// The payer of a vCPU's boosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Payer {
    pub(super) user: u32,
    pub(super) machine: u32,
}

/// The budget that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    User,
    Machine,
}

/// All of them, made when they are first needed.
#[derive(Debug)]
pub(super) struct Payers {
    /// Parts per million of one CPU.
    user_ppm: u64,
    machine_ppm: u64,
    own_user: u32,
    users: HashMap<u32, Budget>,
    machines: HashMap<u32, Budget>,
}

impl Payers {
    /// `all_ppm`: what all boosts may use together.
    pub(super) fn new(all_ppm: u64, shares: Shares) -> Self {
        let part = |percent: u8| all_ppm * u64::from(percent) / 100;
        Self {
            user_ppm: part(shares.user),
            machine_ppm: part(shares.machine),
            own_user: rustix::process::geteuid().as_raw(),
            users: HashMap::new(),
            machines: HashMap::new(),
        }
    }

    const fn is_limited(&self, user: u32) -> bool {
        user != 0 && user != self.own_user
    }

    /// Returns the budget that is used up at `now`.
    pub(super) fn lack(&mut self, payer: Payer, now: u64) -> Option<Lack> {
        let machine =
            self.machines.entry(payer.machine).or_insert_with(|| Budget::new(self.machine_ppm));
        if !machine.has_some(now) {
            return Some(Lack::Machine);
        }
        if !self.is_limited(payer.user) {
            return None;
        }
        let user = self.users.entry(payer.user).or_insert_with(|| Budget::new(self.user_ppm));
        (!user.has_some(now)).then_some(Lack::User)
    }

    /// Charges real-time CPU time that was used.
    pub(super) fn used(&mut self, payer: Payer, ns: u64) {
        self.each(payer, |budget| budget.used(ns));
    }

    /// Takes back a charge of time that was not used.
    pub(super) fn unused(&mut self, payer: Payer, ns: u64) {
        self.each(payer, |budget| budget.unused(ns));
    }

    fn each(&mut self, payer: Payer, change: impl Fn(&mut Budget)) {
        // It may have been tidied away since the boost began.
        change(self.machines.entry(payer.machine).or_insert_with(|| Budget::new(self.machine_ppm)));
        if self.is_limited(payer.user) {
            change(self.users.entry(payer.user).or_insert_with(|| Budget::new(self.user_ppm)));
        }
    }

    /// Forgets those that are as good as new. Not those of machines that have left: they would have
    /// a new budget with each return.
    pub(super) fn tidy(&mut self, now: u64) {
        self.machines.retain(|_, budget| !budget.is_whole(now));
        self.users.retain(|_, budget| !budget.is_whole(now));
    }

    /// For people: those of which more was used than the accounting of a few threads.
    pub(super) fn states(&self) -> impl Iterator<Item = BudgetState> + '_ {
        let users = self.users.iter().map(|entry| ("user", entry));
        let used = users.chain(self.machines.iter().map(|entry| ("machine", entry)));
        let used = used.filter(|(_, (_, budget))| !budget.is_hardly_used());
        let mut all: Vec<_> = used
            .map(|(what, (id, budget))| BudgetState::of(format!("{what} {id}"), budget))
            .collect();
        all.sort_by(|a, b| a.of.cmp(&b.of));
        all.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Uses all that it may for a second, 1 ms at a time on so many machines of one user; how much
    /// that was, ms.
    fn taken(payers: &mut Payers, user: u32, machines: u32) -> u64 {
        let mut taken = 0;
        for step in 1..=1000 {
            for machine in 0..machines {
                let payer = Payer { user, machine: user * 1000 + machine };
                if payers.lack(payer, step * MS).is_none() {
                    payers.used(payer, MS);
                    taken += 1;
                }
            }
        }
        taken
    }

    #[test]
    fn one_payer_never_gets_whole_budget() {
        // All: 1000 ms per second.
        let mut payers =
            Payers { own_user: 7, ..Payers::new(1_000_000, Shares { user: 75, machine: 50 }) };
        // Savings of 100 ms are on top, and the last amount that was let through.
        let one = taken(&mut payers, 1000, 1);
        assert!((500..=560).contains(&one), "{one}");
        let many = taken(&mut payers, 1001, 8);
        assert!((750..=840).contains(&many), "{many}");
        // Root, and the scheduler's own user.
        for user in [0, 7] {
            let free = taken(&mut payers, user, 8);
            assert!(free > 3000, "{free}");
        }
    }

    proptest::proptest! {
        /// One machine's events may cost any time to handle: others' budgets stay whole, and it
        /// never gets more than its own.
        #[test]
        fn handling_time_is_charged_to_its_machine(costs in proptest::collection::vec(0_u64..5_000_000, 1..300)) {
            let mut payers = Payers::new(1_000_000, Shares { user: 75, machine: 50 });
            let user = payers.own_user + 1;
            let (greedy, honest) = (Payer { user, machine: 1 }, Payer { user: user + 1, machine: 2 });
            let (mut now, mut used) = (MS, 0_u64);
            for cost in costs {
                now += MS / 10;
                if payers.lack(greedy, now).is_none() {
                    payers.used(greedy, cost);
                    used += cost;
                }
                proptest::prop_assert_eq!(payers.lack(honest, now), None);
            }
            // Half of the time, what is kept for 100 ms, and what was let through last.
            proptest::prop_assert!(used <= (now + 100 * MS) / 2 + 5 * MS, "{} in {}", used, now);
        }
    }

    #[test]
    fn use_after_a_forgotten_budget_counts() {
        let mut payers = Payers::new(1_000_000, Shares { user: 75, machine: 50 });
        let payer = Payer { user: payers.own_user + 1, machine: 1 };
        assert_eq!(payers.lack(payer, MS), None);
        payers.tidy(2 * MS);
        payers.used(payer, 1000 * MS);
        assert_eq!(payers.lack(payer, 3 * MS), Some(Lack::Machine));
        let other = Payer { machine: 2, ..payer };
        assert_eq!(payers.lack(other, 3 * MS), Some(Lack::User));
    }

    #[test]
    fn rejoining_machine_gains_no_budget() {
        let mut payers = Payers::new(1_000_000, Shares { user: 100, machine: 50 });
        let payer = Payer { user: 1000, machine: 1 };
        assert_eq!(payers.lack(payer, MS), None);
        payers.used(payer, 1000 * MS);
        payers.tidy(2 * MS);
        assert_eq!(payers.lack(payer, 3 * MS), Some(Lack::Machine));
        payers.tidy(10_000 * MS);
        assert_eq!(payers.lack(payer, 10_000 * MS), None);
    }
}
