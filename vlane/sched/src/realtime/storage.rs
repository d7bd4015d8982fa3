//! Storage threads: a back end's lanes are real-time, as long as budgets pay for them.
//!
//! A completion has to pass its lane before the guest hears of it. On a host without a free CPU the
//! lane waits for its turn, as the guest does. A lane works for microseconds and then sleeps, so it
//! needs no boost that begins and ends: it keeps the priority of boosts, and pays for all of its
//! CPU time. One that uses up a budget is ordinary again until the budget has some.

use vlane_error::describe;

use super::payers::Payer;
use super::{Member, RealTime, monotonic_ns, priority, ran_ns};
use crate::sys::{self, Attr};
use crate::thread::is_gone;
use crate::vehicle::VcpuThreads;
use crate::{Error, ErrorKind, Result};

/// The storage threads of one back end.
#[derive(Debug)]
pub(super) struct Storage {
    name: String,
    payer: Payer,
    members: Vec<Member>,
    /// CPU time of its threads that was charged already, ns.
    charged_ns: u64,
    is_raised: bool,
    /// A refusal of the system's was reported.
    complained: bool,
}

impl RealTime {
    /// The back end has these storage threads, and no others; without any it is let go. The machine
    /// `vm` pays.
    pub(super) fn set_storage(&mut self, back_end: &VcpuThreads, vm: u32, now: u64) -> Result<()> {
        let mut members = match self.storage.remove(&back_end.pid) {
            Some(mut storage) => {
                self.charge_storage(&mut storage);
                storage.members
            }
            None => Vec::new(),
        };
        let leave = |member: &mut Member| {
            !back_end.tids.contains(&member.thread.tid()) || member.thread.has_ended()
        };
        let mut result = Ok(());
        for member in members.extract_if(.., leave).collect::<Vec<_>>() {
            result = result.and(self.give_back(member));
        }
        for &tid in &back_end.tids {
            if members.iter().any(|member| member.thread.tid() == tid) {
                continue;
            }
            if !self.ensure_guard(now) {
                let text = format!("{}: there is no guard: no thread is taken", back_end.name);
                result = result.and(Err(Error::new(ErrorKind::Io, text)));
                break;
            }
            match self.take(back_end, tid) {
                Ok(member) => members.push(member),
                Err(error) if error.kind() == ErrorKind::Gone => {}
                // Its administrator has made it real-time already.
                Err(error) if error.kind() == ErrorKind::LeftAlone => tracing::debug!("{error}"),
                Err(error) => result = result.and(Err(error)),
            }
        }
        let Some(first) = members.first() else { return result };
        let payer = Payer { user: first.thread.user(), machine: vm };
        let mut storage = Storage {
            name: back_end.name.clone(),
            payer,
            charged_ns: ran_ns(&members),
            members,
            is_raised: self.may_raise(payer, now),
            complained: false,
        };
        self.set_all(&mut storage);
        self.storage.insert(back_end.pid, storage);
        result
    }

    /// True if a thread is scheduled already, for a vCPU or a back end.
    pub(super) fn has_thread(&self, tid: u32) -> bool {
        let of_vcpus = self.vcpus.iter().flatten().flat_map(|managed| &managed.members);
        let of_storage = self.storage.values().flat_map(|storage| &storage.members);
        of_vcpus.chain(of_storage).any(|member| member.thread.tid() == tid)
    }

    /// Charges what the threads have used since this was last done, if they were real-time.
    fn charge_storage(&mut self, storage: &mut Storage) {
        let ran = ran_ns(&storage.members);
        // Of threads that have ended the sum is smaller: then it begins anew.
        let used = ran.saturating_sub(storage.charged_ns);
        storage.charged_ns = ran;
        if storage.is_raised {
            self.pays(storage.payer, used);
            self.counts.storage_ns += used;
        }
    }

    /// True if guard and budgets allow real-time threads.
    fn may_raise(&mut self, payer: Payer, now: u64) -> bool {
        self.guard.is_some() && self.budget.has_some(now) && self.payers.lack(payer, now).is_none()
    }

    fn set_all(&mut self, storage: &mut Storage) {
        for member in storage.members.iter().filter(|member| !member.thread.has_ended()) {
            let attr = match storage.is_raised {
                true => Attr::round_robin(priority::BOOST),
                false => member.was,
            };
            self.counts.changes += 1;
            let tid = member.thread.tid();
            let Err(error) = sys::set(tid, &attr) else { continue };
            if !is_gone(&error) && !std::mem::replace(&mut storage.complained, true) {
                let text = format!("{}: thread {tid} cannot be scheduled so", storage.name);
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
            self.charge_storage(storage);
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
    pub(super) fn lower_storage(&mut self) {
        let mut all = std::mem::take(&mut self.storage);
        for storage in all.values_mut().filter(|storage| storage.is_raised) {
            self.charge_storage(storage);
            storage.is_raised = false;
            self.set_all(storage);
        }
        self.storage = all;
    }

    /// Lets all storage threads go.
    pub(super) fn drop_storage(&mut self) {
        for storage in std::mem::take(&mut self.storage).into_values() {
            for member in storage.members {
                if let Err(error) = self.give_back(member) {
                    tracing::error!("{}", describe(&error));
                }
            }
        }
    }
}
