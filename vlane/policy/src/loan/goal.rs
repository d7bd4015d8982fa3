//! [`Policy::Adaptive`](super::Policy::Adaptive): the terms of a loan find themselves from a goal.
//!
//! The paper fixes them (1000 credits, 20 %) and leaves open how they would adapt. Here every
//! account is watched, and its terms change once in a window at the most:
//!
//! - Answers. 99 within the goal allow one that is late; a few that were allowed and have not come
//!   are kept. That counts answers and not windows, so it is the same at one event per second and
//!   at thousands. A late answer is blamed only on a term that would have helped. After a denial
//!   for want of a loan, these are the line and the redemption share; after a boost that was over
//!   before the answer, it is the length of boosts. A late answer that had all that it asked for is
//!   the guest's own affair. When more late answers have come than were allowed, the blamed term
//!   becomes a quarter more. For a line and a share, unused late answers pay for steps down, of 2
//!   %, each as long as a quarter of one would do.
//! - The length of a boost lies between [`Params::boost_max_ns`] and the goal: a longer service is
//!   late anyhow. It doubles when it is blamed, and stays so.
//! - Shares. When the account has used more than its share by more than the tolerance, line and
//!   redemption are halved. They are not raised before it has kept its share again. A turn may be
//!   as long as a period. So the share is judged over a time that makes a turn less than the
//!   tolerance; at once when it is more than a turn beyond it.

use serde::{Deserialize, Serialize};

use super::account::Account;
use super::params::{Params, ParamsError};
use super::units::{MS, PERMILLE, mul_div};

/// The time over which an account is watched before its terms change.
pub const WINDOW_NS: u64 = 990 * MS;
/// The least share of an allotment that redeems, parts per thousand.
pub const REDEMPTION_MIN_PERMILLE: u64 = 50;
/// So many answers within the goal allow one that is late.
const TIMELY_PER_LATE: i64 = 99;
/// So many of them lower an unneeded term by a fiftieth. A late one raises it by a quarter: at one
/// late in a hundred neither wins.
const TIMELY_PER_STEP: i64 = 8;
/// So many late answers that were allowed and have not come are kept.
const LATE_KEPT: i64 = 4;

/// The goal of [`Policy::Adaptive`](super::Policy::Adaptive).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Goal {
    /// 99 of 100 events are served within so many nanoseconds.
    pub response_ns: u64,
    /// The most that any vCPU uses beyond its weighted share of the CPU, parts per thousand of the
    /// share.
    pub tolerance_permille: u64,
}

impl Default for Goal {
    fn default() -> Self {
        Self { response_ns: 2 * MS, tolerance_permille: 20 }
    }
}

impl Goal {
    /// Returns this goal, or the impossible value in it.
    ///
    /// # Errors
    ///
    /// [`ParamsError`] names the value and the range.
    pub fn checked(self) -> Result<Self, ParamsError> {
        if self.response_ns == 0 || self.response_ns > 10_000 * MS {
            return Err(ParamsError(format!(
                "response_ns = {}: must be between 1 and 10 s",
                self.response_ns
            )));
        }
        if !(1..=PERMILLE).contains(&self.tolerance_permille) {
            let told = self.tolerance_permille;
            return Err(ParamsError(format!(
                "tolerance_permille = {told}: must be between 1 and 1000"
            )));
        }
        Ok(self)
    }
}

/// The observations of an account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Observations {
    /// When the window began.
    since: Option<u64>,
    /// Given out in it.
    allotted_ns: u64,
    /// Answers in it.
    answers: u64,
    /// The largest debt seen at an accounting in it.
    peak_debt_ns: u64,
    /// The total lent when it began.
    lent_before_ns: u64,
    /// A boost was denied for want of a loan since the last answer, or ended with its loan.
    was_denied: bool,
    /// A boost was over before there was an answer.
    was_short: bool,
    /// Late answers for which the line or the redemption share is blamed.
    lending: Allowance,
    /// Those for which the length of a boost is.
    length: Allowance,
    share: ShareWatch,
}

/// Late answers that are allowed, counted in answers within the goal ([`TIMELY_PER_LATE`] each);
/// negative: more have come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Allowance(i64);

impl Allowance {
    fn count(&mut self, is_late: bool) {
        self.0 += if is_late { -TIMELY_PER_LATE } else { 1 };
        self.0 = self.0.min(LATE_KEPT * TIMELY_PER_LATE);
    }

    /// Returns true if more have come than were allowed. One of them is answered so; several in a
    /// window are, too: they may have had one cause.
    fn is_overdrawn(&mut self) -> bool {
        let is = self.0 < 0;
        if is {
            self.0 = (self.0 + TIMELY_PER_LATE).max(0);
        }
        is
    }
}

/// Judges if an account keeps its share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ShareWatch {
    used_ns: u64,
    allotted_ns: u64,
    /// It did not when that was last judged.
    is_exceeded: bool,
}

/// A judgement of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judged {
    NotYet,
    Kept,
    Exceeded,
}

impl ShareWatch {
    fn judge(&mut self, credit_ns: i64, tolerance_permille: u64, turn_ns: u64) -> Judged {
        let tolerance_ns = mul_div(self.allotted_ns, tolerance_permille, PERMILLE);
        let is_long = tolerance_ns >= turn_ns;
        // A turn more in one window and less in the next is no unfairness, nor is it to use what
        // was saved.
        let slack_ns = if is_long { 0 } else { turn_ns };
        let owes = credit_ns < -i64::try_from(turn_ns).unwrap_or(i64::MAX);
        let is_exceeded = owes && self.used_ns > self.allotted_ns + tolerance_ns + slack_ns;
        if !is_exceeded && !is_long {
            return Judged::NotYet;
        }
        // Allotted time that was not used does not make up for later: a share is a share of each
        // such time.
        *self = Self { is_exceeded, ..Self::default() };
        if is_exceeded { Judged::Exceeded } else { Judged::Kept }
    }
}

impl Observations {
    pub(crate) const fn ran(&mut self, ns: u64) {
        self.share.used_ns += ns;
    }

    pub(crate) const fn allotted(&mut self, ns: u64) {
        self.allotted_ns += ns;
        self.share.allotted_ns += ns;
    }

    /// An accounting begins: the debt is as large as it will be until the next.
    pub(crate) fn owes(&mut self, debt_ns: u64) {
        self.peak_debt_ns = self.peak_debt_ns.max(debt_ns);
    }

    /// A boost was denied for want of a loan, or ended because its loan was spent.
    pub(crate) const fn denied(&mut self) {
        self.was_denied = true;
    }

    /// A boost had its time, and there is no answer yet.
    pub(crate) const fn too_short(&mut self) {
        self.was_short = true;
    }

    pub(crate) fn served(&mut self, response_ns: u64, goal_ns: u64) {
        self.answers += 1;
        let (was_denied, was_short) =
            (std::mem::take(&mut self.was_denied), std::mem::take(&mut self.was_short));
        let is_late = response_ns > goal_ns;
        if was_denied || !is_late {
            self.lending.count(is_late);
        }
        if was_short || !is_late {
            self.length.count(is_late);
        }
    }

    /// Ends the window when its time is over, and changes the account's terms.
    pub(crate) fn adapt(&mut self, now: u64, account: &mut Account, goal: &Goal, params: &Params) {
        let since = *self.since.get_or_insert(now);
        if now.saturating_sub(since) < WINDOW_NS {
            return;
        }
        let (mut redemption, mut line) = (account.redemption_permille, account.base_line_ns);
        let judged = self.share.judge(account.credit_ns, goal.tolerance_permille, params.period_ns);
        if judged == Judged::Exceeded {
            redemption /= 2;
            line /= 2;
        } else if self.lending.is_overdrawn() {
            // Late answers while the share is exceeded are the price of that.
            if !self.share.is_exceeded {
                redemption += redemption / 4;
                line += line / 4;
            }
        } else if self.answers > 0 && self.lending.0 >= TIMELY_PER_STEP {
            // Only what is not needed: a step too far is paid for with many late responses before
            // it is taken back.
            let lent = account.totals.lent_ns - self.lent_before_ns;
            let redeems_more = lent < mul_div(self.allotted_ns, redemption, PERMILLE) / 4;
            let lends_more = self.peak_debt_ns < line / 4;
            redemption -= if redeems_more { redemption / 50 } else { 0 };
            line -= if lends_more { line / 50 } else { 0 };
            self.lending.0 -= if redeems_more || lends_more { TIMELY_PER_STEP } else { 0 };
        }
        if self.length.is_overdrawn() && !self.share.is_exceeded {
            account.boost_max_ns =
                (account.boost_max_ns * 2).min(goal.response_ns.max(params.boost_max_ns));
        }
        account.redemption_permille = redemption.clamp(REDEMPTION_MIN_PERMILLE, PERMILLE);
        account.base_line_ns = line.clamp(params.line_min_ns, params.line_max_ns);
        self.since = Some(now);
        self.lent_before_ns = account.totals.lent_ns;
        (self.allotted_ns, self.answers, self.peak_debt_ns) = (0, 0, 0);
    }
}

#[cfg(test)]
#[path = "goal_tests.rs"]
mod tests;
