//! [`Policy::Adaptive`](super::Policy::Adaptive): the line and the redemption share find themselves from a goal.
//!
//! The paper fixes both (1000 credits, 20 %) and leaves open how they would adapt. Here every account is watched over
//! windows: when more than one response in a hundred is later than the goal, the account may owe more and redeems
//! faster; when it has used more than its share by more than the tolerance, both are halved; when all is well,
//! both fall slowly as long as a quarter of them would do.

use serde::{Deserialize, Serialize};

use super::account::Account;
use super::params::{Params, ParamsError};
use super::units::{MS, PERMILLE, mul_div};

/// The time over which an account is watched before its terms change.
pub const WINDOW_NS: u64 = 990 * MS;
/// A window with fewer responses says nothing about its 99th percentile.
pub const LEAST_RESPONSES: u64 = 20;
/// The least share of an allotment that redeems, parts per thousand.
pub const REDEMPTION_MIN_PERMILLE: u64 = 50;

/// What [`Policy::Adaptive`](super::Policy::Adaptive) is to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Goal {
    /// 99 of 100 events are served within so many nanoseconds.
    pub response_ns: u64,
    /// Nobody uses more than its weighted share of the CPU by so much, parts per thousand of the share.
    pub tolerance_permille: u64,
}

impl Default for Goal {
    fn default() -> Self {
        Self { response_ns: 2 * MS, tolerance_permille: 20 }
    }
}

impl Goal {
    /// This goal, or what cannot be about it.
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
            return Err(ParamsError(format!("tolerance_permille = {told}: must be between 1 and 1000")));
        }
        Ok(self)
    }
}

/// What is seen of an account in a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Watch {
    since: Option<u64>,
    used_ns: u64,
    allotted_ns: u64,
    responses: u64,
    late: u64,
    /// The largest debt seen at an accounting.
    peak_debt_ns: u64,
    /// What had been lent when the window began.
    lent_before_ns: u64,
}

impl Watch {
    pub(crate) const fn ran(&mut self, ns: u64) {
        self.used_ns += ns;
    }

    pub(crate) const fn allotted(&mut self, ns: u64) {
        self.allotted_ns += ns;
    }

    /// An accounting begins: the debt is as large as it will be until the next.
    pub(crate) fn owes(&mut self, debt_ns: u64) {
        self.peak_debt_ns = self.peak_debt_ns.max(debt_ns);
    }

    pub(crate) const fn served(&mut self, response_ns: u64, goal_ns: u64) {
        self.responses += 1;
        self.late += (response_ns > goal_ns) as u64;
    }

    /// Ends the window when its time is over, and changes the account's terms.
    pub(crate) fn adapt(&mut self, now: u64, account: &mut Account, goal: &Goal, params: &Params) {
        let since = *self.since.get_or_insert(now);
        if now.saturating_sub(since) < WINDOW_NS {
            return;
        }
        // What was allotted and not used does not make up for another window: a share is a share of each.
        let tolerated = self.allotted_ns + mul_div(self.allotted_ns, goal.tolerance_permille, PERMILLE);
        let (mut redemption, mut line) = (account.redemption_permille, account.base_line_ns);
        // A turn more in one window and less in the next is no unfairness: a turn may be as long as a period.
        let turn = params.period_ns;
        let is_ahead = account.credit_ns < -i64::try_from(turn).unwrap_or(i64::MAX);
        if self.used_ns > tolerated + turn && is_ahead {
            redemption /= 2;
            line /= 2;
        } else if self.responses >= LEAST_RESPONSES && self.late * 100 > self.responses {
            redemption += redemption / 4 + 10;
            line += line / 4;
        } else if self.late * 500 <= self.responses {
            // Only what is not needed: a step too far is paid for with many late responses before it is taken back.
            let lent = account.totals.lent_ns - self.lent_before_ns;
            if lent < mul_div(self.allotted_ns, redemption, PERMILLE) / 4 {
                redemption -= redemption / 50;
            }
            if self.peak_debt_ns < line / 4 {
                line -= line / 50;
            }
        }
        account.redemption_permille = redemption.clamp(REDEMPTION_MIN_PERMILLE, PERMILLE);
        account.base_line_ns = line.clamp(params.line_min_ns, params.line_max_ns);
        *self = Self { since: Some(now), lent_before_ns: account.totals.lent_ns, ..Self::default() };
    }
}
