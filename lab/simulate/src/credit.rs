//! Queues as in Xen's Credit scheduler; every decision is [`vlane_policy::loan`]'s.
//!
//! BOOST before UNDER before OVER, in turn within each; a turn is 30 ms, only a boost or a wake-up
//! of higher class cuts it. There is one queue for all CPUs. Xen has one per CPU, but takes vCPUs
//! of a higher class from the other CPUs before it runs a lower one. So classes hold for the whole
//! host, and a global queue has the same effect with less noise.
//!
//! A vCPU has a place in the queue (its ticket) and what is left of its turn. A boost changes
//! neither: when it is over the vCPU has the place that it had, and so has who was preempted. A
//! turn that is used up, or sleep, gives a new place at the end. Classes are looked at where Xen
//! looks at them: when a vCPU is queued, and at the accounting.

use std::collections::BTreeSet;

use vlane_policy::loan::units::MS;
use vlane_policy::loan::{
    Account, Book, Boosted, Claim, Decision, Doing, Goal, Priority, Redemption, Totals, VcpuId,
};

use super::host::{Loans, Scheduler};
use super::setup::{self, Ends, Pool};

/// Classes are priorities' numbers, the highest first.
const BOOST: u8 = Priority::Boost as u8;
/// Below all classes of running vCPUs.
const IDLE: u8 = 255;

/// The goal of the adaptive policy.
const GOAL: Goal = Goal { response_ns: 2 * MS, tolerance_permille: 20 };
/// A turn in Xen's Credit scheduler.
const SLICE_NS: u64 = 30 * MS;

#[derive(Debug, Clone, Default)]
struct Seat {
    id: u32,
    ticket: u64,
    slice_ns: u64,
    /// The class that it is queued with.
    queued: Option<u8>,
    /// Responses of the boost that is on: the policy hears of them when it ends.
    responses: Vec<u64>,
    redeeming_since: Option<u64>,
    /// Its account's when the warm-up ended.
    before: Totals,
    /// Figures that the account lacks.
    loans: Loans,
}

#[derive(Debug)]
pub(super) struct CreditQueues {
    setup: setup::Credit,
    book: Book,
    seats: Vec<Seat>,
    queue: BTreeSet<(u8, u64, usize)>,
    /// Class of the running vCPU, by CPU.
    running: Vec<u8>,
    tickets: u64,
    next_accounting: u64,
    next_tick: u64,
    /// CPU time of all CPUs in a period.
    whole_ns: u64,
    /// Used since the last accounting.
    used_ns: u64,
}

impl CreditQueues {
    pub(super) fn new(setup: &setup::Credit, cpus: usize, claims: &[Claim]) -> Self {
        let mut book = Book::new(setup.params.clone(), GOAL);
        let seat = |claim: &Claim| Seat { id: book.open(*claim).0, ..Seat::default() };
        let seats = claims.iter().map(seat).collect();
        let tick = match setup.ends {
            Ends::Served => u64::MAX,
            Ends::Tick(ns) => ns,
        };
        Self {
            setup: setup.clone(),
            book,
            seats,
            queue: BTreeSet::new(),
            running: vec![IDLE; cpus],
            tickets: 0,
            next_accounting: 0,
            next_tick: tick,
            whole_ns: setup.params.period_ns * cpus as u64,
            used_ns: 0,
        }
    }

    fn id(&self, vcpu: usize) -> VcpuId {
        VcpuId(self.seats[vcpu].id)
    }

    #[expect(
        clippy::expect_used,
        reason = "every vCPU has an account from the beginning to the end"
    )]
    fn own(&self, vcpu: usize) -> &Account {
        self.book.account(self.id(vcpu)).expect("an account")
    }

    fn class(&self, vcpu: usize) -> u8 {
        self.own(vcpu).priority() as u8
    }

    fn queue(&mut self, vcpu: usize) {
        let class = self.class(vcpu);
        let seat = &mut self.seats[vcpu];
        seat.queued = Some(class);
        self.queue.insert((class, seat.ticket, vcpu));
    }

    fn unqueue(&mut self, vcpu: usize) {
        if let Some(class) = self.seats[vcpu].queued.take() {
            self.queue.remove(&(class, self.seats[vcpu].ticket, vcpu));
        }
    }

    fn queue_last(&mut self, vcpu: usize) {
        self.tickets += 1;
        let seat = &mut self.seats[vcpu];
        seat.ticket = self.tickets;
        seat.slice_ns = SLICE_NS;
    }

    fn end_boost(&mut self, vcpu: usize) {
        if self.own(vcpu).boosted.is_some() {
            let id = self.id(vcpu);
            self.book.served(id, 0);
        }
    }

    /// Keeps the times at which the loan is barred.
    fn watch_loan(&mut self, vcpu: usize, now: u64) {
        let redeeming = self.own(vcpu).loan.redeeming;
        let seat = &mut self.seats[vcpu];
        match (redeeming, seat.redeeming_since) {
            (true, None) => seat.redeeming_since = Some(now),
            (false, Some(since)) => {
                seat.redeeming_since = None;
                seat.loans.redemptions += 1;
                seat.loans.redeeming_ns += now - since;
            }
            _ => {}
        }
    }

    fn account_all(&mut self, now: u64) {
        let used = std::mem::take(&mut self.used_ns);
        let pool = match self.setup.pool {
            Pool::Whole => self.whole_ns,
            Pool::Used => used,
        };
        self.book.account_all(now, pool);
        let period = self.setup.params.period_ns;
        for vcpu in 0..self.seats.len() {
            let loan = self.own(vcpu).loan;
            self.watch_loan(vcpu, now);
            let loans = &mut self.seats[vcpu].loans;
            loans.barred_ns += if loan.redeeming { period } else { 0 };
            if loan.cm_ppm > 0 {
                loans.samples += 1;
                loans.cm_ppm += loan.cm_ppm;
                loans.next_ns += loan.next_line_ns;
            }
        }
        // Waiting vCPUs, by their new class.
        let waiting: Vec<usize> = self.queue.iter().map(|&(_, _, vcpu)| vcpu).collect();
        for vcpu in waiting {
            if self.seats[vcpu].queued != Some(self.class(vcpu)) {
                self.unqueue(vcpu);
                self.queue(vcpu);
            }
        }
    }
}

impl Scheduler for CreditQueues {
    fn event(&mut self, vcpu: usize, now: u64, doing: Doing) -> bool {
        let decision = self.book.event(self.id(vcpu), now, doing);
        let boosts = matches!(decision, Some(Decision::Boost { .. }));
        if boosts && doing == Doing::Waiting {
            self.unqueue(vcpu);
            self.queue(vcpu);
        }
        boosts
    }

    fn target(&self, _vcpu: usize, last: usize) -> usize {
        // The lowest class, its own last CPU first; a boost goes to an idle CPU, or to the one with
        // the lowest class.
        let (before, after) = self.running.split_at(last);
        let mut best = last;
        let order = after.iter().enumerate().map(|(n, class)| (n + last, class));
        for (cpu, &class) in order.chain(before.iter().enumerate()) {
            if class > self.running[best] {
                best = cpu;
                if class == IDLE {
                    break;
                }
            }
        }
        best
    }

    fn wake(&mut self, vcpu: usize, _cpu: usize) {
        self.queue_last(vcpu);
        self.queue(vcpu);
    }

    fn preempts(&mut self, vcpu: usize, cpu: usize) -> bool {
        self.seats[vcpu].queued.is_some_and(|class| class < self.running[cpu])
    }

    fn pick(&mut self, cpu: usize) -> Option<usize> {
        let next = self.queue.pop_first();
        self.running[cpu] = next.map_or(IDLE, |(class, ..)| class);
        let (.., vcpu) = next?;
        self.seats[vcpu].queued = None;
        Some(vcpu)
    }

    fn put_back(&mut self, vcpu: usize, _cpu: usize) {
        self.queue(vcpu);
    }

    fn sleep(&mut self, vcpu: usize, _cpu: usize) {
        // In Xen, too, who sleeps is boosted no longer.
        if self.setup.ends != Ends::Served {
            self.end_boost(vcpu);
        }
    }

    fn ran(&mut self, vcpu: usize, cpu: usize, now: u64, ns: u64) {
        self.used_ns += ns;
        let boosted = self.own(vcpu).boosted.is_some();
        let over = self.book.ran(self.id(vcpu), now, ns);
        if over {
            self.watch_loan(vcpu, now);
        }
        if !boosted {
            let seat = &mut self.seats[vcpu];
            seat.slice_ns = seat.slice_ns.saturating_sub(ns);
            self.running[cpu] = self.class(vcpu);
        }
    }

    fn yields(&mut self, vcpu: usize, cpu: usize, _now: u64) -> bool {
        if self.running[cpu] == BOOST {
            return self.own(vcpu).boosted.is_none();
        }
        if self.seats[vcpu].slice_ns > 0 {
            return false;
        }
        self.queue_last(vcpu);
        true
    }

    fn until(&self, vcpu: usize, _cpu: usize, from: u64) -> u64 {
        let account = self.own(vcpu);
        let Some(kind) = account.boosted else { return from + self.seats[vcpu].slice_ns.max(1) };
        let mut left = account.boost_max_ns.saturating_sub(account.boost_used_ns);
        if kind == Boosted::Loan {
            left = left.min(account.loan.line_ns.saturating_sub(account.loan.debt_ns()));
        }
        from + left.max(1)
    }

    fn served(&mut self, vcpu: usize, response_ns: u64, last: bool) {
        if self.setup.ends != Ends::Served {
            return;
        }
        let id = self.id(vcpu);
        if self.own(vcpu).boosted.is_some() {
            self.seats[vcpu].responses.push(response_ns);
        } else {
            self.book.served(id, response_ns);
        }
        // A boost is for all events that wait; a boost that was over before does not keep the
        // others' answers either.
        if last || self.own(vcpu).boosted.is_none() {
            for response in std::mem::take(&mut self.seats[vcpu].responses) {
                self.book.served(id, response);
            }
        }
    }

    fn next_periodic(&self) -> u64 {
        self.next_accounting.min(self.next_tick)
    }

    fn periodic(&mut self, now: u64) -> bool {
        if let Ends::Tick(every) = self.setup.ends
            && now >= self.next_tick
        {
            self.next_tick += every;
            for vcpu in 0..self.seats.len() {
                if self.seats[vcpu].queued.is_none() {
                    self.end_boost(vcpu);
                }
            }
        }
        let is_due = now >= self.next_accounting;
        if is_due {
            self.next_accounting += self.setup.params.period_ns;
            self.account_all(now);
        }
        // The live scheduler asks after 2, 4, 8, 12, 20 and 28 ms. The paper's denies for good.
        is_due && self.setup.params.redemption == Redemption::Always
    }

    fn loans(&self, vcpu: usize) -> Loans {
        let (seat, totals) = (&self.seats[vcpu], &self.own(vcpu).totals);
        Loans {
            events: totals.events - seat.before.events,
            boosts: totals.boosts - seat.before.boosts,
            wake_boosts: totals.wake_boosts - seat.before.wake_boosts,
            denied: totals.denied - seat.before.denied,
            ..seat.loans
        }
    }

    fn measure(&mut self) {
        for vcpu in 0..self.seats.len() {
            let before = self.own(vcpu).totals;
            let seat = &mut self.seats[vcpu];
            (seat.before, seat.loans) = (before, Loans::default());
        }
    }
}
