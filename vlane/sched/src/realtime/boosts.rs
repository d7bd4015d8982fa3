//! Boosts: given, prolonged, ended, and charged.

use vlane_policy::loan::{Decision, Denial, Doing, VcpuId};

use super::payers::Lack;
use super::{RealTime, describe};
use crate::{Error, ErrorKind, Result};

/// The most prolongations of a boost that has had no CPU yet (others were boosted before it).
const PROLONGED: u32 = 20;

/// A boost that is on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Boost {
    pub(super) deadline: u64,
    ns: u64,
    ran_before: u64,
    prolonged: u32,
}

impl RealTime {
    /// Boosts a vCPU that has had an event, if budgets and policy say so.
    pub(super) fn decide(&mut self, id: VcpuId, now: u64) -> Result<Decision> {
        if !self.budget.has_some(now) {
            self.counts.denied_budget += 1;
            return Ok(Decision::Denied(Denial::Overdrawn));
        }
        let payer = self.managed(id)?.payer;
        if let Some(lack) = self.payers.lack(payer, now) {
            self.counts.denied_budget += 1;
            match lack {
                Lack::User => self.counts.denied_user += 1,
                Lack::Machine => self.counts.denied_machine += 1,
            }
            return Ok(Decision::Denied(Denial::Overdrawn));
        }
        if !self.ensure_guard(now) {
            self.counts.denied_guard += 1;
            return Ok(Decision::Denied(Denial::Redeeming));
        }
        if self.managed(id)?.boost.is_none() && !self.charge(id, now) {
            let name = self.managed(id)?.name.clone();
            return Err(Error::new(ErrorKind::Gone, format!("{name}: all its threads have ended")));
        }
        let doing = self.doing(id);
        let decision = self.book.event(id, now, doing).ok_or_else(|| {
            Error::new(ErrorKind::Gone, format!("no vCPU has the number {}", id.0))
        })?;
        if let Decision::Boost { ns } = decision
            && let Err(error) = self.start_boost(id, now, ns)
        {
            self.end_boost(id, now).ok();
            let managed = self.managed(id)?;
            if !std::mem::replace(&mut managed.complained, true) {
                tracing::warn!("not boosted: {}", describe(&error));
            }
        }
        Ok(decision)
    }

    fn start_boost(&mut self, id: VcpuId, now: u64, ns: u64) -> Result<()> {
        let managed = self.managed(id)?;
        let ran_before = managed.charged_ns;
        managed.boost = Some(Boost { deadline: now + ns, ns, ran_before, prolonged: 0 });
        self.boosted.push(id);
        self.apply(id)
    }

    /// Ends a boost, if there is one, and charges it.
    pub(super) fn end_boost(&mut self, id: VcpuId, now: u64) -> Result<()> {
        let Ok(managed) = self.managed(id) else { return Ok(()) };
        let Some(boost) = managed.boost.take() else { return Ok(()) };
        self.boosted.retain(|&other| other != id);
        // Changing the policy brings the thread's clock up to date: change first, charge then, as
        // boosted time.
        let applied = self.apply(id);
        if let Ok(managed) = self.managed(id) {
            managed.boost = Some(boost);
        }
        self.charge(id, now);
        if let Ok(managed) = self.managed(id) {
            managed.boost = None;
        }
        self.book.end(id);
        applied
    }

    /// A boost whose time is over.
    pub(super) fn time_is_up(&mut self, id: VcpuId, now: u64) -> Result<()> {
        let Some(boost) = self.managed(id).ok().and_then(|managed| managed.boost) else {
            return Ok(());
        };
        if let Ok(managed) = self.managed(id) {
            managed.boost = None;
        }
        let applied = self.apply(id);
        if let Ok(managed) = self.managed(id) {
            managed.boost = Some(boost);
        }
        self.charge(id, now);
        let ran = self
            .managed(id)
            .map_or(0, |managed| managed.charged_ns.saturating_sub(boost.ran_before));
        let still = self.book.account(id).is_some_and(|account| account.boosted.is_some());
        // Others were boosted before it on its CPU: its time has not begun.
        if applied.is_ok()
            && still
            && ran < boost.ns / 2
            && boost.prolonged < PROLONGED
            && self.boosted.len() > 1
            && self.doing(id) == Doing::Waiting
        {
            self.counts.prolonged += 1;
            let managed = self.managed(id)?;
            let prolonged = boost.prolonged + 1;
            managed.boost = Some(Boost { deadline: now + boost.ns, prolonged, ..boost });
            return self.apply(id);
        }
        self.counts.timed_out += 1;
        if let Ok(managed) = self.managed(id) {
            managed.boost = None;
        }
        self.boosted.retain(|&other| other != id);
        self.book.time_is_up(id);
        applied
    }
}
