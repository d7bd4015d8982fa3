//! Storage threads: a back end's lanes are real-time, as long as budgets pay for them.
//!
//! A completion has to pass its lane before the guest hears of it. On a host without a free CPU the
//! lane waits for its turn, as the guest does. A lane works for microseconds and then sleeps. So it
//! needs no boost that begins and ends. It keeps the priority of boosts, and pays for all of its
//! CPU time. One that uses up a budget is ordinary again until the budget has some.

use vlane_error::describe;

use super::payers::Payer;
use super::{Member, RealTime, monotonic_ns, priority};
use crate::sys::{self, Attr, Class};
use crate::thread::is_gone;
use crate::vehicle::VcpuThreads;
use crate::{Error, ErrorKind, Result};

/// A storage thread.
#[derive(Debug)]
struct Lane {
    member: Member,
    /// CPU time of it that was charged already, ns.
    charged_ns: u64,
}

/// The storage threads of one back end.
#[derive(Debug)]
pub(super) struct Storage {
    name: String,
    payer: Payer,
    lanes: Vec<Lane>,
    /// When they were last charged.
    charged_at: u64,
    is_raised: bool,
    /// A refusal of the system's was reported.
    complained: bool,
}

impl RealTime {
    /// The back end has these storage threads, and no others; without any it is let go. The machine
    /// `vm` pays.
    pub(super) fn set_storage(&mut self, back_end: &VcpuThreads, vm: u32, now: u64) -> Result<()> {
        let mut lanes = match self.storage.remove(&back_end.pid) {
            Some(mut storage) => {
                self.charge_storage(&mut storage, now);
                storage.lanes
            }
            None => Vec::new(),
        };
        let leave = |lane: &mut Lane| !back_end.tids.contains(&lane.member.thread.tid());
        let mut result = Ok(());
        for lane in lanes.extract_if(.., leave).collect::<Vec<_>>() {
            result = result.and(self.give_back(lane.member));
        }
        for &tid in &back_end.tids {
            if lanes.iter().any(|lane| lane.member.thread.tid() == tid) {
                continue;
            }
            if !self.ensure_guard(now) {
                let text = format!("{}: there is no guard: no thread is taken", back_end.name);
                result = result.and(Err(Error::new(ErrorKind::Io, text)));
                break;
            }
            match self.take_lane(back_end, tid) {
                Ok(lane) => lanes.push(lane),
                Err(error) if error.kind() == ErrorKind::Gone => {}
                // An administrator has set it.
                Err(error) if error.kind() == ErrorKind::LeftAlone => tracing::debug!("{error}"),
                Err(error) => result = result.and(Err(error)),
            }
        }
        let Some(first) = lanes.first() else { return result };
        // The owner of the machine, whoever runs its back end.
        let owner = self.vcpus.iter().flatten().find(|managed| managed.payer.machine == vm);
        let user = owner.map_or(first.member.thread.user(), |managed| managed.payer.user);
        let payer = Payer { user, machine: vm };
        let mut storage = Storage {
            name: back_end.name.clone(),
            payer,
            lanes,
            charged_at: now,
            is_raised: self.may_raise(payer, now),
            complained: false,
        };
        self.set_all(&mut storage);
        self.storage.insert(back_end.pid, storage);
        result
    }

    /// Takes a thread that is scheduled like any other, and is no vCPU's.
    fn take_lane(&mut self, back_end: &VcpuThreads, tid: u32) -> Result<Lane> {
        let alone = |why: &str| {
            let text = format!("{}: thread {tid} {why}: left alone", back_end.name);
            Error::new(ErrorKind::LeftAlone, text)
        };
        let mut members = self.vcpus.iter().flatten().flat_map(|managed| &managed.members);
        if members.any(|member| member.thread.tid() == tid && !member.thread.has_ended()) {
            return Err(alone("is a vCPU's"));
        }
        let member = self.take(back_end, tid)?;
        // Threads that it makes while it is real-time would lose a nice value.
        if member.was.class != Class::Other || member.was.nice != 0 {
            self.give_back(member)?;
            return Err(alone("has a nice value or a special policy"));
        }
        let charged_ns = member.thread.clock().map_or(0, |clock| clock.ran_ns);
        Ok(Lane { member, charged_ns })
    }

    /// True if a thread is a storage thread.
    pub(super) fn has_lane(&self, tid: u32) -> bool {
        let mut lanes = self.storage.values().flat_map(|storage| &storage.lanes);
        lanes.any(|lane| lane.member.thread.tid() == tid && !lane.member.thread.has_ended())
    }

    /// Charges what the threads have used since this was last done, if they were real-time. Those
    /// that have ended are let go. The last use of such a thread is unknown, so all of the time
    /// counts.
    fn charge_storage(&mut self, storage: &mut Storage, now: u64) {
        let passed = now.saturating_sub(std::mem::replace(&mut storage.charged_at, now));
        let mut used = 0;
        for lane in &mut storage.lanes {
            used += match lane.member.thread.clock() {
                Ok(clock) => clock
                    .ran_ns
                    .saturating_sub(std::mem::replace(&mut lane.charged_ns, clock.ran_ns)),
                Err(_) => passed,
            };
        }
        if storage.is_raised {
            self.pays(storage.payer, used);
            self.counts.storage_ns += used;
        }
        let ended = storage.lanes.extract_if(.., |lane| lane.member.thread.has_ended());
        for lane in ended {
            if let Err(error) = self.give_back(lane.member) {
                tracing::warn!("{}", describe(&error));
            }
        }
    }

    /// True if guard and budgets allow real-time threads.
    fn may_raise(&mut self, payer: Payer, now: u64) -> bool {
        self.guard.is_some() && self.budget.has_some(now) && self.payers.lack(payer, now).is_none()
    }

    fn set_all(&mut self, storage: &mut Storage) {
        for Lane { member, .. } in &storage.lanes {
            let attr = match storage.is_raised {
                true => Attr::round_robin(priority::BOOST),
                false => member.was,
            };
            self.counts.changes += 1;
            let tid = member.thread.tid();
            let Err(error) = sys::set(tid, &attr) else { continue };
            if !is_gone(&error) && !std::mem::replace(&mut storage.complained, true) {
                let text =
                    format!("{}: thread {tid} cannot be made real-time, or restored", storage.name);
                let error = Error::caused_by(ErrorKind::Permission, text, error);
                tracing::warn!("{}", describe(&error));
            }
        }
    }

    /// Charges all storage threads, and makes those ordinary whose budget is used up.
    pub(super) fn account_storage(&mut self, now: u64) {
        if self.storage.is_empty() {
            return;
        }
        // The guard restores all threads when this one stands still.
        let interventions = self.table.interventions();
        let are_restored =
            std::mem::replace(&mut self.interventions, interventions) != interventions;
        let mut all = std::mem::take(&mut self.storage);
        for storage in all.values_mut() {
            let began = monotonic_ns();
            self.charge_storage(storage, now);
            let may = self.may_raise(storage.payer, now);
            if may != storage.is_raised || may && are_restored {
                storage.is_raised = may;
                self.counts.storage_lowered += u64::from(!may);
                self.set_all(storage);
            }
            let took = monotonic_ns().saturating_sub(began);
            self.payers.used(storage.payer, took);
            self.counts.handled_ns += took;
        }
        self.storage = all;
    }

    /// Makes all storage threads ordinary; the accounting raises them again.
    pub(super) fn lower_storage(&mut self, now: u64) {
        let mut all = std::mem::take(&mut self.storage);
        for storage in all.values_mut().filter(|storage| storage.is_raised) {
            self.charge_storage(storage, now);
            storage.is_raised = false;
            self.set_all(storage);
        }
        self.storage = all;
    }

    /// Lets all storage threads go.
    pub(super) fn drop_storage(&mut self) {
        for storage in std::mem::take(&mut self.storage).into_values() {
            for lane in storage.lanes {
                if let Err(error) = self.give_back(lane.member) {
                    tracing::error!("{}", describe(&error));
                }
            }
        }
    }
}
