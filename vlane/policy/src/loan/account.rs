//! One vCPU's account: its credits, its loan, and its decisions at an event.

use serde::{Deserialize, Serialize};

use super::params::{Params, Payment, Policy, Redemption};
use super::units::{PERMILLE, PPM, mul_div};

/// A vCPU's state at the moment when its I/O completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doing {
    /// Sleeps: the event wakes it.
    Blocked,
    /// Waits for its turn on a CPU.
    Waiting,
    /// Runs: it takes the event by itself.
    Running,
}

/// The decision that follows from an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// Put it before the others, for `ns` of CPU time at most.
    Boost {
        /// CPU time after which the boost ends, served or not.
        ns: u64,
    },
    /// It is boosted already: no change.
    Already,
    /// It runs already: no change.
    Running,
    /// It has to wait for its turn.
    Denied(Denial),
}

/// Why an event does not boost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Denial {
    /// The Credit scheduler does not boost a vCPU that waits for its turn.
    Waiting,
    /// The Credit scheduler does not boost a vCPU that has used its share.
    Over,
    /// The loan is spent and not redeemed yet.
    Redeeming,
    /// Boosts make this vCPU's responses longer.
    Unhelpful,
    /// It has run ahead of its share by more than the overdraft.
    Overdrawn,
}

/// A vCPU's priority in the competition for a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Priority {
    /// Serves an event: before all others.
    Boost,
    /// Has credits left.
    Under,
    /// Has used more than its share.
    Over,
}

/// The payer of the present boost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Boosted {
    /// The vCPU's own credits: it was blocked and had some (Xen's boost).
    Wake,
    /// Its loan.
    Loan,
    /// No account is charged ([`Policy::AlwaysBoost`]).
    Free,
}

/// Totals of an account since it was opened; nanoseconds of CPU time and numbers of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// CPU time given out to it.
    pub allotted_ns: u64,
    /// Used, boosted or not.
    pub used_ns: u64,
    /// Used while boosted.
    pub boosted_ns: u64,
    /// Used while boosted and charged to no credits: charged to the loan ([`Payment::Loan`]), or
    /// not at all.
    pub uncharged_ns: u64,
    /// Credits that expired at the upper limit.
    pub expired_ns: u64,
    /// Credits forgiven at the lower limit.
    pub forgiven_ns: u64,
    /// Charged to loans.
    pub lent_ns: u64,
    /// Boosted time that no loan was charged, because it owed as much as it may.
    pub clamped_ns: u64,
    /// Redeemed of loans.
    pub redeemed_ns: u64,
    /// Events seen.
    pub events: u64,
    /// Boosts granted from the vCPU's own credits.
    pub wake_boosts: u64,
    /// Boosts granted from a loan, or without a charge.
    pub boosts: u64,
    /// Boosts denied.
    pub denied: u64,
    /// Loans spent to the end.
    pub spent: u64,
}

/// A loan: its amount, the spent part, the redeemed part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loan {
    /// How much may be owed at once.
    pub line_ns: u64,
    /// Charged since the loan was opened.
    pub spent_ns: u64,
    /// The part of that which was owed already when it was opened.
    pub carried_ns: u64,
    /// Redeemed since then.
    pub redeemed_ns: u64,
    /// Boosts since then (the paper's n).
    pub boosts: u64,
    /// When its first boost was; `None` before.
    pub since: Option<u64>,
    /// Spent, and no boost until all of it is redeemed (the paper), or half.
    pub redeeming: bool,
    /// The rate at which the last loan was spent, parts per million of a CPU (the paper's cm); 0:
    /// not known yet.
    pub cm_ppm: u64,
    /// CPU time per boost in the last loan (the paper's cb).
    pub cb_ns: u64,
    /// The line of the next loan.
    pub next_line_ns: u64,
}

impl Loan {
    fn new(line_ns: u64) -> Self {
        Self { line_ns, next_line_ns: line_ns, ..Self::default() }
    }

    /// Returns the debt.
    pub const fn debt_ns(&self) -> u64 {
        self.spent_ns.saturating_sub(self.redeemed_ns)
    }

    /// Returns the part that may still be spent.
    pub const fn left_ns(&self) -> u64 {
        if self.redeeming { 0 } else { self.line_ns.saturating_sub(self.debt_ns()) }
    }

    /// Returns the debt at which a spent loan opens again. In the paper none is left. Otherwise it
    /// is half of the smaller of this line and the next one.
    ///
    /// A vCPU that spends as fast as it redeems is barred until then. A whole line takes 100 ms and
    /// more, and the p99 grows with it. Half a line brings as many boosts, in shorter pieces.
    fn reopens_at_ns(&self, params: &Params) -> u64 {
        match params.redemption {
            Redemption::WhenSpent => 0,
            Redemption::Always => self.line_ns.min(self.next_line_ns) / 2,
        }
    }

    /// Takes cb and cm of the time since the first boost, and the next line from cm:
    /// next = base * cm_ref / cm, between the limits (equation 4 with units that match).
    fn rate(&mut self, now: u64, base_line_ns: u64, params: &Params) {
        let Some(since) = self.since else { return };
        let spent = self.spent_ns.saturating_sub(self.carried_ns);
        self.cb_ns = spent / self.boosts.max(1);
        self.cm_ppm = mul_div(spent, PPM, now.saturating_sub(since).max(1));
        let next = mul_div(base_line_ns, params.cm_ref_ppm, self.cm_ppm.max(1));
        self.next_line_ns = next.clamp(params.line_min_ns, params.line_max_ns);
    }

    /// Opens the next loan, which starts with the rest of the last one's debt.
    const fn renew(&mut self) {
        self.line_ns = self.next_line_ns;
        self.spent_ns = self.debt_ns();
        self.carried_ns = self.spent_ns;
        self.redeemed_ns = 0;
        self.boosts = 0;
        self.since = None;
        self.redeeming = false;
    }
}

/// One vCPU's account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// CPU time it may use before it is OVER.
    pub credit_ns: i64,
    /// Its loan.
    pub loan: Loan,
    /// The line from which cm makes the next loan's; [`Policy::Adaptive`] moves it.
    pub base_line_ns: u64,
    /// How much of an allotment redeems the loan, parts per thousand; [`Policy::Adaptive`] moves
    /// it.
    pub redemption_permille: u64,
    /// CPU time after which a boost ends, served or not; [`Policy::Adaptive`] moves it.
    pub boost_max_ns: u64,
    /// No loans are granted, because boosts do not help; [`Policy::Adaptive`] decides.
    pub without_loans: bool,
    /// The boost that is on.
    pub boosted: Option<Boosted>,
    /// The payer of the last boost, on or not.
    last_boosted: Option<Boosted>,
    /// CPU time that the last boost has used.
    pub boost_used_ns: u64,
    /// Its totals.
    pub totals: Totals,
}

impl Account {
    /// An account without credits; the next accounting gives some.
    pub fn new(params: &Params) -> Self {
        Self {
            credit_ns: 0,
            loan: Loan::new(params.line_ns),
            base_line_ns: params.line_ns,
            redemption_permille: params.redemption_permille,
            boost_max_ns: params.boost_max_ns,
            without_loans: false,
            boosted: None,
            last_boosted: None,
            boost_used_ns: 0,
            totals: Totals::default(),
        }
    }

    /// Returns the vCPU's priority.
    pub const fn priority(&self) -> Priority {
        if self.boosted.is_some() {
            Priority::Boost
        } else if self.credit_ns > 0 {
            Priority::Under
        } else {
            Priority::Over
        }
    }

    /// Returns true if the next event is granted a boost, and false if it changes nothing. `None`
    /// means that the vCPU's state decides, or the charges to come. Boosts that are over will be
    /// charged with at most `unsettled_ns`.
    ///
    /// A caller that does not read the state says [`Doing::Waiting`]. A sleeper with credits then
    /// has a loan that it does not need. It redeems all of it, because it is below its share.
    pub fn foresees(&self, unsettled_ns: u64, params: &Params) -> Option<bool> {
        if self.boosted.is_some() {
            return Some(false);
        }
        if !params.policy.lends() {
            return None;
        }
        let (left_ns, credit_ns) = (self.loan.left_ns(), self.credit_ns);
        let is_off = self.without_loans;
        if !is_off
            && left_ns > unsettled_ns
            && !is_overdrawn(credit_ns - signed(unsettled_ns), params)
        {
            return Some(true);
        }
        // More charges change neither.
        let is_denied = is_off || left_ns == 0 || is_overdrawn(credit_ns, params);
        (is_denied && credit_ns <= 0).then_some(false)
    }

    /// An I/O of the vCPU has completed at `now`, while it was `doing` something.
    pub fn event(&mut self, now: u64, doing: Doing, params: &Params) -> Decision {
        self.totals.events += 1;
        if doing == Doing::Running {
            return Decision::Running;
        }
        if self.boosted.is_some() {
            return Decision::Already;
        }
        // A sleeper with credits is boosted as in the Credit scheduler, under any policy: no other
        // vCPU pays for it.
        if doing == Doing::Blocked && self.credit_ns > 0 {
            self.totals.wake_boosts += 1;
            return self.boost(Boosted::Wake);
        }
        let denied = match params.policy {
            Policy::AlwaysBoost => None,
            Policy::Credit if doing == Doing::Blocked => Some(Denial::Over),
            Policy::Credit => Some(Denial::Waiting),
            Policy::Loan | Policy::Adaptive if self.without_loans => Some(Denial::Unhelpful),
            Policy::Loan | Policy::Adaptive if self.loan.left_ns() == 0 => Some(Denial::Redeeming),
            Policy::Loan | Policy::Adaptive if is_overdrawn(self.credit_ns, params) => {
                Some(Denial::Overdrawn)
            }
            Policy::Loan | Policy::Adaptive => None,
        };
        if let Some(denial) = denied {
            self.totals.denied += 1;
            return Decision::Denied(denial);
        }
        self.totals.boosts += 1;
        if params.policy == Policy::AlwaysBoost {
            return self.boost(Boosted::Free);
        }
        self.loan.boosts += 1;
        self.loan.since.get_or_insert(now);
        self.boost(Boosted::Loan)
    }

    const fn boost(&mut self, kind: Boosted) -> Decision {
        self.boosted = Some(kind);
        self.last_boosted = Some(kind);
        self.boost_used_ns = 0;
        Decision::Boost { ns: self.boost_max_ns }
    }

    /// CPU time that the boost that is on may still use before it ends by itself: by its length, or
    /// by its loan.
    pub fn boost_left_ns(&self) -> u64 {
        let left = self.boost_max_ns.saturating_sub(self.boost_used_ns);
        match self.boosted {
            None => 0,
            Some(Boosted::Wake | Boosted::Free) => left,
            Some(Boosted::Loan) => left.min(self.loan.left_ns()),
        }
    }

    /// True if the vCPU's credits pay for the present boost, at once.
    pub fn boost_is_charged(&self, params: &Params) -> bool {
        self.boosted.is_some_and(|kind| is_charged(kind, params))
    }

    /// The vCPU has used `ns` of CPU time since this was last called; it is `now`. Ends a boost
    /// that has had its time or whose loan is spent: look at [`Account::boosted`] afterwards.
    pub fn ran(&mut self, now: u64, ns: u64, params: &Params) {
        let boosted = self.boosted;
        self.used(now, ns, boosted, params);
        self.lasted(ns, boosted);
    }

    /// The same where the boost itself was ended late: it is charged as the boost that it was, also
    /// after that had its time.
    pub fn ran_boosted(&mut self, now: u64, ns: u64, params: &Params) {
        self.used(now, ns, self.last_boosted, params);
        self.lasted(ns, self.last_boosted);
    }

    /// The vCPU has used `ns` of CPU time in its turn. A boost may be on by now.
    pub fn ran_plain(&mut self, ns: u64, params: &Params) {
        self.totals.used_ns += ns;
        self.charge(ns, params);
    }

    /// The same as [`Account::ran_boosted`] for earlier boosts than the present one.
    pub fn ran_before(&mut self, now: u64, ns: u64, params: &Params) {
        self.used(now, ns, self.last_boosted, params);
    }

    fn used(&mut self, now: u64, ns: u64, boosted: Option<Boosted>, params: &Params) {
        self.totals.used_ns += ns;
        let Some(kind) = boosted else {
            self.charge(ns, params);
            return;
        };
        self.totals.boosted_ns += ns;
        if is_charged(kind, params) {
            self.charge(ns, params);
        } else {
            self.totals.uncharged_ns += ns;
        }
        if kind == Boosted::Loan {
            let charge = ns.min(
                (self.loan.line_ns + params.credit_min_ns).saturating_sub(self.loan.debt_ns()),
            );
            self.totals.clamped_ns += ns - charge;
            self.totals.lent_ns += charge;
            self.loan.spent_ns += charge;
            if !self.loan.redeeming && self.loan.debt_ns() >= self.loan.line_ns {
                self.spent(now, params);
            }
        }
    }

    /// The present boost, if there is one, has used CPU time.
    const fn lasted(&mut self, ns: u64, boost: Option<Boosted>) {
        if boost.is_some() {
            self.boost_used_ns += ns;
            if self.boost_used_ns >= self.boost_max_ns {
                self.boosted = None;
            }
        }
    }

    fn spent(&mut self, now: u64, params: &Params) {
        self.totals.spent += 1;
        self.loan.rate(now, self.base_line_ns, params);
        self.loan.redeeming = true;
        self.boosted = None;
    }

    fn charge(&mut self, ns: u64, params: &Params) {
        self.credit_ns = self.credit_ns.saturating_sub_unsigned(ns);
        let floor = -signed(params.credit_min_ns);
        if self.credit_ns < floor {
            self.totals.forgiven_ns += self.credit_ns.abs_diff(floor);
            self.credit_ns = floor;
        }
    }

    /// The event is served: the boost ends.
    pub const fn served(&mut self) {
        self.boosted = None;
    }

    /// CPU time up to the limit at which credits expire.
    pub(super) fn to_ceiling_ns(&self, params: &Params) -> u64 {
        let ceiling = i128::from(signed(params.credit_max_ns));
        u64::try_from(ceiling - i128::from(self.credit_ns)).unwrap_or(0)
    }

    /// Returns how much of the loan an allotment of `due_ns` redeems: a share of it, before the
    /// ceiling cuts it. So an idle vCPU redeems, and no vCPU of the same weight redeems faster.
    pub(super) fn redeems_ns(&self, due_ns: u64, params: &Params) -> u64 {
        if !self.loan.redeeming && params.redemption == Redemption::WhenSpent {
            return 0;
        }
        let share = due_ns * self.redemption_permille / PERMILLE;
        share.min(self.loan.debt_ns())
    }

    /// The accounting gives `allotment_ns` of CPU time at `now`; `due_ns` is the allotment without
    /// the ceiling.
    pub fn allot(&mut self, now: u64, due_ns: u64, allotment_ns: u64, params: &Params) {
        self.totals.allotted_ns += allotment_ns;
        let mut redeems = self.redeems_ns(due_ns, params);
        let mut keeps = allotment_ns;
        if params.payment == Payment::Loan {
            redeems = redeems.min(allotment_ns);
            keeps -= redeems;
        }
        self.loan.redeemed_ns += redeems;
        self.totals.redeemed_ns += redeems;
        self.credit_ns = self.credit_ns.saturating_add_unsigned(keeps);
        let ceiling = signed(params.credit_max_ns);
        if self.credit_ns > ceiling {
            self.totals.expired_ns += self.credit_ns.abs_diff(ceiling);
            self.credit_ns = ceiling;
        }
        if self.loan.redeeming {
            if self.loan.debt_ns() <= self.loan.reopens_at_ns(params) {
                self.loan.renew();
            }
        } else if params.review_ns > 0
            && self.loan.since.is_some_and(|since| now.saturating_sub(since) >= params.review_ns)
        {
            self.loan.rate(now, self.base_line_ns, params);
            self.loan.renew();
        }
        if params.redemption == Redemption::Always {
            // Redemption comes once in a period: a line that is smaller than what it brings would
            // deny events that are paid for.
            let share = due_ns * self.redemption_permille / PERMILLE;
            self.loan.line_ns = self.loan.line_ns.max(share.min(params.line_max_ns));
        }
    }
}

/// So far ahead of its share that more boosts would not be paid back soon.
fn is_overdrawn(credit_ns: i64, params: &Params) -> bool {
    params.payment == Payment::Share && credit_ns <= -signed(params.overdraft_ns)
}

fn is_charged(kind: Boosted, params: &Params) -> bool {
    match kind {
        Boosted::Free => false,
        Boosted::Wake => true,
        Boosted::Loan => params.payment == Payment::Share,
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
