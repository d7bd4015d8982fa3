//! Boosts: given, prolonged, ended, and charged.

use vlane_error::describe;
use vlane_policy::loan::{Decision, Denial, Doing, VcpuId};

use super::payers::Lack;
use super::{RealTime, monotonic_ns};
use crate::{Error, ErrorKind, Result};

/// The most prolongations of a boost that has had no CPU yet (others were boosted before it).
const PROLONGED: u32 = 20;

/// A boost that is on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Boost {
    pub(super) deadline: u64,
    ns: u64,
    /// When it began, or was last charged.
    pub(super) since: u64,
    /// CPU time of the vCPU when it began, if others were boosted then: the boost may have to wait
    /// for them.
    ran_before: Option<u64>,
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
        // Its death rings the alarm, and the accounting looks at it.
        if self.guard.is_none() && !self.ensure_guard(now) {
            self.counts.denied_guard += 1;
            return Ok(Decision::Denied(Denial::Redeeming));
        }
        let unsettled_ns = self.managed(id)?.unsettled_ns;
        let foreseen = self.book.foresees(id, unsettled_ns);
        let is_alone = self.boosted.is_empty();
        if (foreseen.is_none() || foreseen == Some(true) && !is_alone)
            && self.managed(id)?.boost.is_none()
            && !self.charge(id, now)
        {
            let name = self.managed(id)?.name.clone();
            return Err(Error::new(ErrorKind::Gone, format!("{name}: all its threads have ended")));
        }
        // Where it makes no difference, the state is not read.
        let doing = if foreseen.is_some() { Doing::Waiting } else { self.doing(id) };
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
        let is_alone = self.boosted.is_empty();
        let managed = self.managed(id)?;
        let ran_before = (!is_alone).then_some(managed.charged_ns);
        managed.boost =
            Some(Boost { deadline: now + ns, ns, since: now, ran_before, prolonged: 0 });
        self.boosted.push(id);
        self.apply(id)
    }

    /// Ends a boost, if there is one.
    pub(super) fn end_boost(&mut self, id: VcpuId, now: u64) -> Result<()> {
        let ended = self.stop_boost(id, now);
        self.book.end(id);
        ended
    }

    /// Ends a boost for the system, if there is one. Until CPU time is read again, all of its time
    /// counts as used. The change of policy brings the clock of a running thread up to date, so no
    /// time of the boost is read later than that.
    fn stop_boost(&mut self, id: VcpuId, now: u64) -> Result<()> {
        let Ok(managed) = self.managed(id) else { return Ok(()) };
        let Some(boost) = managed.boost.take() else { return Ok(()) };
        self.boosted.retain(|&other| other != id);
        let applied = self.apply(id);
        // An event may have waited for its turn: the boost has lasted until now.
        let lasted = monotonic_ns().max(now).saturating_sub(boost.since);
        let managed = self.managed(id)?;
        managed.unsettled_ns += lasted;
        let payer = managed.payer;
        self.pays(payer, lasted);
        applied
    }

    /// A boost whose time is over.
    pub(super) fn time_is_up(&mut self, id: VcpuId, now: u64) -> Result<()> {
        let Some(boost) = self.managed(id).ok().and_then(|managed| managed.boost) else {
            return Ok(());
        };
        let stopped = self.stop_boost(id, now);
        let unsettled_ns = self.managed(id)?.unsettled_ns;
        let account = self.book.account(id);
        let may_be_spent = account.is_some_and(|account| account.loan.left_ns() <= unsettled_ns);
        if boost.ran_before.is_some() || may_be_spent {
            self.charge(id, now);
        }
        if stopped.is_ok() && self.has_waited(id, &boost) {
            self.counts.prolonged += 1;
            let managed = self.managed(id)?;
            let (deadline, prolonged) = (now + boost.ns, boost.prolonged + 1);
            managed.boost = Some(Boost { deadline, since: now, prolonged, ..boost });
            self.boosted.push(id);
            return self.apply(id);
        }
        self.counts.timed_out += 1;
        self.book.time_is_up(id);
        stopped
    }

    /// Returns true if others were boosted before the vCPU on its CPU: the time of its boost has
    /// not begun.
    fn has_waited(&self, id: VcpuId, boost: &Boost) -> bool {
        let Some((managed, before)) = self.known(id).zip(boost.ran_before) else { return false };
        managed.charged_ns.saturating_sub(before) < boost.ns / 2
            && self.book.account(id).is_some_and(|account| account.boosted.is_some())
            && boost.prolonged < PROLONGED
            && !self.boosted.is_empty()
            && self.doing(id) == Doing::Waiting
    }
}
