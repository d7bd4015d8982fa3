//! All accounts of a host, and the accounting that gives credits to them.

use serde::{Deserialize, Serialize};

use super::account::{Account, Decision, Denial, Doing};
use super::goal::{Goal, Observations};
use super::params::{Params, Payment, Policy};
use super::trial::Trial;
use super::units::{DEFAULT_WEIGHT, PERMILLE, mul_div};

/// Which account: its place in the book. A place is given anew after [`Book::close`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VcpuId(pub u32);

impl VcpuId {
    /// Its index in [`Book::allotments`].
    pub const fn into_index(self) -> usize {
        self.0 as usize
    }
}

/// A virtual machine's claim on the host's CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The virtual machine: vCPUs with the same number share its weight and its cap.
    pub vm: u32,
    /// Its weight against other machines.
    pub weight: u32,
    /// The most that it may be given, parts per thousand of one CPU; 0: no limit.
    pub cap_permille: u32,
}

impl Claim {
    /// A machine with the usual weight and no cap.
    pub const fn of(vm: u32) -> Self {
        Self { vm, weight: DEFAULT_WEIGHT, cap_permille: 0 }
    }
}

/// A vCPU in the book.
#[derive(Debug, Clone)]
pub struct Vcpu {
    /// Its machine's claim.
    pub claim: Claim,
    /// Its credits and its loan.
    pub account: Account,
    watch: Observations,
    trial: Trial,
    /// CPU time that it had used at the last accounting.
    used_before_ns: u64,
}

impl Vcpu {
    /// True if it has used most of `due_ns` since the last accounting: it hardly sleeps.
    const fn contends(&self, due_ns: u64) -> bool {
        self.account.totals.used_ns.saturating_sub(self.used_before_ns) >= due_ns / 2
    }

    /// Finds the reason why a charge ended a boost; returns true if one has ended.
    const fn watch_end(&mut self, was_boosted: bool) -> bool {
        let has_ended = was_boosted && self.account.boosted.is_none();
        if has_ended {
            if self.account.loan.redeeming { self.watch.denied() } else { self.watch.too_short() }
        }
        has_ended
    }
}

/// The accounts of a host.
#[derive(Debug, Clone)]
pub struct Book {
    params: Params,
    goal: Goal,
    vcpus: Vec<Option<Vcpu>>,
    /// Kept from one accounting to the next, for its memory.
    plan: Plan,
}

impl Book {
    /// A book without accounts. `goal` counts with [`Policy::Adaptive`] only.
    pub fn new(params: Params, goal: Goal) -> Self {
        Self { params, goal, vcpus: Vec::new(), plan: Plan::default() }
    }

    /// Returns the parameters that it was made with.
    pub const fn params(&self) -> &Params {
        &self.params
    }

    /// Opens an account, without credits until the next accounting.
    pub fn open(&mut self, claim: Claim) -> VcpuId {
        let vcpu = Vcpu {
            claim,
            account: Account::new(&self.params),
            watch: Observations::default(),
            trial: Trial::default(),
            used_before_ns: 0,
        };
        let place = self.vcpus.iter().position(Option::is_none).unwrap_or_else(|| {
            self.vcpus.push(None);
            self.vcpus.len() - 1
        });
        self.vcpus[place] = Some(vcpu);
        VcpuId(u32::try_from(place).unwrap_or(u32::MAX))
    }

    /// Closes an account; its credits are gone, and its debts are forgiven.
    pub fn close(&mut self, id: VcpuId) -> Option<Vcpu> {
        self.vcpus.get_mut(id.0 as usize)?.take()
    }

    /// A vCPU, if there is one of that number.
    pub fn vcpu(&self, id: VcpuId) -> Option<&Vcpu> {
        self.vcpus.get(id.0 as usize)?.as_ref()
    }

    /// An account, if there is one of that number.
    pub fn account(&self, id: VcpuId) -> Option<&Account> {
        self.vcpu(id).map(|vcpu| &vcpu.account)
    }

    fn vcpu_mut(&mut self, id: VcpuId) -> Option<&mut Vcpu> {
        self.vcpus.get_mut(id.0 as usize)?.as_mut()
    }

    #[cfg(test)]
    pub(super) fn watch_mut(&mut self, id: VcpuId) -> Option<&mut Observations> {
        self.vcpu_mut(id).map(|vcpu| &mut vcpu.watch)
    }

    /// All vCPUs.
    pub fn vcpus(&self) -> impl Iterator<Item = (VcpuId, &Vcpu)> {
        let numbered = (0u32..).zip(&self.vcpus);
        numbered.filter_map(|(n, vcpu)| vcpu.as_ref().map(|vcpu| (VcpuId(n), vcpu)))
    }

    /// An I/O of a vCPU has completed. `None`: no such account.
    pub fn event(&mut self, id: VcpuId, now: u64, doing: Doing) -> Option<Decision> {
        let vcpu = self.vcpus.get_mut(id.0 as usize)?.as_mut()?;
        let decision = vcpu.account.event(now, doing, &self.params);
        if decision == Decision::Denied(Denial::Redeeming) {
            vcpu.watch.denied();
        }
        // One that owns credits is denied until the terms of its loan have adapted.
        let is_denied = matches!(decision, Decision::Denied(_)) && vcpu.account.credit_ns <= 0;
        vcpu.trial.event(is_denied);
        Some(decision)
    }

    /// A vCPU has used CPU time; whether the boost that it may have had is over now.
    pub fn ran(&mut self, id: VcpuId, now: u64, ns: u64) -> bool {
        self.used(id, ns, |account, params| account.ran(now, ns, params))
    }

    /// A vCPU has used CPU time before the others, for a boost that may have had its time before:
    /// timers are late.
    pub fn ran_boosted(&mut self, id: VcpuId, now: u64, ns: u64) {
        self.used(id, ns, |account, params| account.ran_boosted(now, ns, params));
    }

    /// A vCPU has used CPU time in its turn. A boost may be on by now.
    pub fn ran_plain(&mut self, id: VcpuId, ns: u64) {
        self.used(id, ns, |account, params| account.ran_plain(ns, params));
    }

    /// A vCPU has used CPU time before the others, for earlier boosts than the present one.
    pub fn ran_before(&mut self, id: VcpuId, now: u64, ns: u64) {
        self.used(id, ns, |account, params| account.ran_before(now, ns, params));
    }

    /// Charges and watches CPU time; returns true if a boost is over now.
    fn used(&mut self, id: VcpuId, ns: u64, charge: impl FnOnce(&mut Account, &Params)) -> bool {
        let Some(vcpu) = self.vcpus.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return false;
        };
        let before = vcpu.account.boosted.is_some();
        charge(&mut vcpu.account, &self.params);
        vcpu.watch.ran(ns);
        vcpu.watch_end(before)
    }

    /// As [`Account::foresees`].
    pub fn foresees(&self, id: VcpuId, unsettled_ns: u64) -> Option<bool> {
        self.account(id)?.foresees(unsettled_ns, &self.params)
    }

    /// The event for which a vCPU was boosted, or for which it was not, was served `response_ns`
    /// after it came.
    pub fn served(&mut self, id: VcpuId, response_ns: u64) {
        let goal = self.goal.response_ns;
        let Some(vcpu) = self.vcpu_mut(id) else { return };
        vcpu.account.served();
        if !vcpu.account.without_loans {
            vcpu.watch.served(response_ns, goal);
        }
        vcpu.trial.served(response_ns);
    }

    /// The boost of a vCPU is over without a served event: it went to sleep, or could not be given.
    pub fn end(&mut self, id: VcpuId) {
        if let Some(vcpu) = self.vcpu_mut(id) {
            vcpu.account.served();
        }
    }

    /// The boost of a vCPU has had its time, and its event is not served; for a caller that sees
    /// this otherwise than by the used time.
    pub fn time_is_up(&mut self, id: VcpuId) {
        if let Some(vcpu) = self.vcpu_mut(id).filter(|vcpu| vcpu.account.boosted.is_some()) {
            vcpu.account.served();
            vcpu.watch.too_short();
        }
    }

    /// The accounting: gives `pool_ns` of CPU time to the accounts by the weights of their
    /// machines.
    ///
    /// Credits that an account cannot take go to the others: they would expire, or no CPU could run
    /// them. So a sleeper does not keep the others from the credits that it leaves. Of an account
    /// that contends, a quarter of the expired credits is given to no account. The pool is the CPU
    /// time that the vCPUs have used together since the last accounting: the host may have other
    /// work, and shares are then shares of the rest. It is levelled ([`Params::level_permille`]),
    /// so that the contenders neither own nor owe much together.
    pub fn account_all(&mut self, now: u64, pool_ns: u64) {
        let pool_ns = self.levelled(pool_ns);
        self.plan.make(&self.vcpus, pool_ns, &self.params);
        let planned = self.plan.due.iter().zip(&self.plan.allotments);
        for (vcpu, (&due, &allotment)) in self.vcpus.iter_mut().zip(planned) {
            let Some(vcpu) = vcpu else { continue };
            vcpu.used_before_ns = vcpu.account.totals.used_ns;
            vcpu.watch.owes(vcpu.account.loan.debt_ns());
            vcpu.account.allot(now, due, allotment, &self.params);
            if self.params.policy == Policy::Adaptive {
                vcpu.watch.allotted(allotment);
                // Without loans it would find that less is enough.
                if !vcpu.account.without_loans {
                    vcpu.watch.adapt(now, &mut vcpu.account, &self.goal, &self.params);
                }
                vcpu.account.without_loans = vcpu.trial.ends(now);
            }
        }
    }

    /// The pool without the contenders' common credits, or with their common debts; half of it or
    /// one and a half at the most.
    fn levelled(&self, pool_ns: u64) -> u64 {
        let ceiling = i64::try_from(self.params.credit_max_ns).unwrap_or(i64::MAX);
        // An account with more than half of its ceiling sleeps more than it contends, or has more
        // weight than it can use yet.
        let credits = self.vcpus.iter().flatten().map(|vcpu| vcpu.account.credit_ns);
        let contend = credits.filter(|&credit| credit < ceiling / 2);
        let (number, sum) =
            contend.fold((0i128, 0i128), |(n, sum), credit| (n + 1, sum + i128::from(credit)));
        // Debts of a period each are left: they put heavier vCPUs before the others.
        let least = -number * i128::from(self.params.period_ns);
        let own = sum - sum.clamp(least, 0);
        let (pool, level) = (i128::from(pool_ns), i128::from(self.params.level_permille));
        let change = (own * level / i128::from(PERMILLE)).clamp(-pool / 2, pool / 2);
        u64::try_from(pool - change).unwrap_or(pool_ns)
    }

    /// Returns the accounts' allotments at the last accounting, by place.
    pub fn allotments(&self) -> &[u64] {
        &self.plan.allotments
    }
}

/// Plans the allotments of an accounting.
#[derive(Debug, Clone, Default)]
struct Plan {
    /// The allotment of each if no credits expired, by place; of a machine with inactive vCPUs,
    /// with their part.
    due: Vec<u64>,
    /// The allotment of each.
    allotments: Vec<u64>,
    /// The most that each can take.
    room: Vec<u64>,
    /// Places, those of one machine side by side.
    order: Vec<usize>,
    machines: Vec<Share>,
    members: Vec<Share>,
}

impl Plan {
    fn make(&mut self, vcpus: &[Option<Vcpu>], pool_ns: u64, params: &Params) {
        self.order.clear();
        self.order.extend((0..vcpus.len()).filter(|&place| vcpus[place].is_some()));
        let vm = |place: usize| vcpus[place].as_ref().map_or(0, |vcpu| vcpu.claim.vm);
        self.order.sort_by_key(|&place| (vm(place), place));
        // No CPU can run it for longer than a period.
        self.room.clear();
        self.room.resize(vcpus.len(), params.period_ns);
        self.share(vcpus, pool_ns, params);
        std::mem::swap(&mut self.due, &mut self.allotments);
        for (place, room) in self.room.iter_mut().enumerate() {
            *room = vcpus[place].as_ref().map_or(0, |vcpu| room_of(vcpu, self.due[place], params));
        }
        self.share(vcpus, pool_ns, params);
        // The part of inactive vCPUs is due to the others of their machine; the part that other
        // machines leave is due to no account.
        for places in self.order.chunk_by(|&a, &b| vm(a) == vm(b)) {
            let machine: u64 = places.iter().map(|&place| self.due[place]).sum();
            for &place in places {
                self.due[place] = self.due[place].max(self.allotments[place].min(machine));
            }
        }
    }

    /// Shares the pool between machines and then between the vCPUs of each, as far as there is
    /// room.
    fn share(&mut self, vcpus: &[Option<Vcpu>], pool_ns: u64, params: &Params) {
        self.allotments.clear();
        self.allotments.resize(vcpus.len(), 0);
        let vm = |place: usize| vcpus[place].as_ref().map_or(0, |vcpu| vcpu.claim.vm);
        self.machines.clear();
        for (group, places) in self.order.chunk_by(|&a, &b| vm(a) == vm(b)).enumerate() {
            let Some(claim) = vcpus[places[0]].as_ref().map(|vcpu| vcpu.claim) else { continue };
            let all: u64 = places.iter().map(|&place| self.room[place]).sum();
            let cap = match claim.cap_permille {
                0 => u64::MAX,
                cap => mul_div(params.period_ns, u64::from(cap), PERMILLE),
            };
            self.machines.push(Share {
                place: group,
                weight: u64::from(claim.weight.max(1)),
                limit: all.min(cap),
                gets: 0,
            });
        }
        fill(pool_ns, &mut self.machines);
        self.machines.sort_by_key(|machine| machine.place);
        let groups = self.order.chunk_by(|&a, &b| vm(a) == vm(b));
        for (machine, places) in self.machines.iter().zip(groups) {
            self.members.clear();
            let member =
                |&place: &usize| Share { place, weight: 1, limit: self.room[place], gets: 0 };
            self.members.extend(places.iter().map(member));
            fill(machine.gets, &mut self.members);
            for member in &self.members {
                self.allotments[member.place] = member.gets;
            }
        }
    }
}

/// Returns how much of `due_ns` a vCPU can take. That is up to the limit at which credits expire,
/// besides the part that redeems its loan, and a part of the expiring credits if it contends. It is
/// never more than a CPU can run in a period.
fn room_of(vcpu: &Vcpu, due_ns: u64, params: &Params) -> u64 {
    let account = &vcpu.account;
    let redeems = match params.payment {
        Payment::Loan => account.redeems_ns(due_ns, params),
        Payment::Share => 0,
    };
    let takes = account.to_ceiling_ns(params) + redeems;
    // A vCPU that owns so much although it contends is kept from its share. Given to the others,
    // what expires of it would let them do that for good; so they come to owe what it owns. More
    // than a part would be a debt to them also for a vCPU that only sleeps a little.
    let expires = if vcpu.contends(due_ns) { due_ns.saturating_sub(takes) / 4 } else { 0 };
    (takes + expires).min(params.period_ns)
}

/// One that shares in a pool.
#[derive(Debug, Clone, Copy)]
struct Share {
    place: usize,
    weight: u64,
    /// The most that it can take.
    limit: u64,
    gets: u64,
}

/// Shares `pool` by weight; the part over a limit goes to the others, by their weights. Gives out
/// all of the pool, unless all are at their limits. Leaves the shares in another order.
fn fill(pool: u64, shares: &mut [Share]) {
    // The first to be full comes first, so one pass is enough: none after it can be full with less.
    shares.sort_by(|a, b| {
        let left = u128::from(a.limit) * u128::from(b.weight);
        left.cmp(&(u128::from(b.limit) * u128::from(a.weight))).then(a.place.cmp(&b.place))
    });
    let mut left = pool;
    let mut weights: u64 = shares.iter().map(|share| share.weight).sum();
    for share in shares {
        share.gets = mul_div(left, share.weight, weights).min(share.limit);
        left -= share.gets;
        weights -= share.weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// All of it is given out, and no share is over its limit.
        #[test]
        fn pool_is_given_out_by_weight(
            pool in 0u64..100_000_000,
            parts in prop::collection::vec((1u64..1000, 0u64..50_000_000), 1..20),
        ) {
            let share = |(place, &(weight, limit)): (usize, &(u64, u64))| Share { place, weight, limit, gets: 0 };
            let mut shares: Vec<Share> = parts.iter().enumerate().map(share).collect();
            fill(pool, &mut shares);
            let given: u64 = shares.iter().map(|s| s.gets).sum();
            let room: u64 = shares.iter().map(|s| s.limit).sum();
            prop_assert_eq!(given, pool.min(room));
            for a in &shares {
                prop_assert!(a.gets <= a.limit);
                // A share that is not full has at least as much as any other, by weight (rounding
                // apart).
                for b in shares.iter().filter(|_| a.gets < a.limit) {
                    let (mine, theirs) = (u128::from(a.gets + 2) * u128::from(b.weight), u128::from(b.gets) * u128::from(a.weight));
                    prop_assert!(mine + u128::from(1000 * a.weight) >= theirs, "{:?} {:?}", a, b);
                }
            }
        }
    }
}
