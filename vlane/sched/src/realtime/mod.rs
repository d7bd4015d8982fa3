//! The vehicle for any kernel: a boost is a bounded real-time (`SCHED_RR`) slice.
//!
//! A real-time thread runs before all others at once. EEVDF does not charge it for that, so it
//! would have its share and the boosts on top. A vCPU that owes more than [`Settings::owes_ns`] is
//! therefore *held back* (scheduled after all others) until it has paid. Every change is first
//! written down in the [`table`], from which the [`guard`] restores it when this process is gone.

mod boosts;
pub mod budget;
pub mod groups;
pub mod guard;
mod held;
mod payers;
pub mod repair;
mod storage;
pub mod table;
mod take;
mod trusted;

pub use self::payers::Shares;
/// The system's time in which all times here are counted, ns.
pub use vlane_hint::now as monotonic_ns;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::thread::CapabilitySet;
use vlane_error::describe;
use vlane_policy::loan::{Account, Book, Claim, Decision, Doing, Goal, Params, Policy, VcpuId};

use self::boosts::Boost;
use self::budget::Budget;
use self::guard::{Guard, GuardCommand};
use self::held::{Groups, VcpuGroups};
use self::payers::{Payer, Payers};
use self::storage::Storage;
use self::table::Table;
use self::take::refused;
use crate::adopt;
use crate::live::state::BudgetState;
use crate::sys::{self, Attr, Class};
use crate::thread::{Thread, is_gone};
use crate::vehicle::{Counter, VcpuThreads, Vehicle};
use crate::{Error, ErrorKind, Result};

/// Real-time priorities.
pub mod priority {
    /// A boosted vCPU, and a storage thread, which knows itself raised by it
    /// (`lane/src/contention.rs`).
    pub const BOOST: u32 = 1;
    /// The daemon's event loop: it ends boosts.
    pub const DAEMON: u32 = 2;
    /// The guard.
    pub const GUARD: u32 = 3;
}

/// Boosts pause for so long after a guard could not be started.
const GUARD_AGAIN_NS: u64 = 1_000_000_000;

/// Threads that were there within this time keep their numbers. The kernel gives out all other
/// numbers before one comes again. With its default of 32,768 numbers, that takes 800,000 new
/// threads a second. The accounting looks at each thread more often.
const RECENT_NS: u64 = 40_000_000;

/// CPU time that this thread has used, ns.
pub(crate) fn own_cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The way in which an indebted vCPU is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldBack {
    /// `SCHED_IDLE`: has the weight 3 against 1024.
    Idle,
    /// Nice 19: has the weight 15 against 1024.
    Nice,
    /// Never: boosts are then on top of the share.
    Never,
}

/// The vehicle's settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The policy's parameters.
    pub params: Params,
    /// The goal of `adaptive`.
    pub goal: Goal,
    /// Percent of the kernel's real-time budget that all boosts may use together.
    pub rt_percent: u8,
    /// Percent of that for the machines of one user, root's and the scheduler's own excepted; and
    /// for one machine.
    pub rt_shares: Shares,
    /// The way in which an indebted vCPU is held back.
    pub hold_back: HoldBack,
    /// A vCPU is held back when it owes more CPU time than this, ns.
    pub owes_ns: u64,
    /// And let go when it owes no more than this.
    pub paid_ns: u64,
}

impl Settings {
    /// The settings that this program stands for.
    pub fn new(params: Params, goal: Goal) -> Self {
        // Under the authors' third scheduler boosts are free: there is no debt to pay back.
        let hold_back =
            if params.policy == Policy::AlwaysBoost { HoldBack::Never } else { HoldBack::Nice };
        Self {
            params,
            goal,
            rt_percent: 50,
            rt_shares: Shares::default(),
            hold_back,
            owes_ns: 8_000_000,
            paid_ns: 2_000_000,
        }
    }
}

/// A thread of a vCPU.
#[derive(Debug)]
struct Member {
    thread: Arc<Thread>,
    was: Attr,
    slot: usize,
}

#[derive(Debug)]
struct Managed {
    name: String,
    /// The payer of its boosts.
    payer: Payer,
    members: Vec<Member>,
    /// CPU time of its threads that was charged already.
    charged_ns: u64,
    /// CPU time of threads that are gone, so that the sum never falls.
    ended_ns: u64,
    /// Time of ended boosts of which the used part is not charged yet: at most all of it.
    unsettled_ns: u64,
    boost: Option<Boost>,
    /// When its threads were last seen to be there.
    seen: u64,
    /// When it was held back; none: it is not.
    held_since: Option<u64>,
    groups: VcpuGroups,
    complained: bool,
    /// Some of its threads are not what they are to be: the system has refused. Tried again with
    /// the accounting.
    uneven: bool,
}

/// CPU time of threads, as far as it can be read.
fn ran_ns(members: &[Member]) -> u64 {
    members.iter().filter_map(|member| member.thread.clock().ok()).map(|clock| clock.ran_ns).sum()
}

/// Numbers for people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Boosts that were not given because a real-time budget was used up: that of all, or one of
    /// the next two.
    pub denied_budget: u64,
    /// A user's.
    pub denied_user: u64,
    /// A machine's.
    pub denied_machine: u64,
    /// Boosts that were not given because there was no guard.
    pub denied_guard: u64,
    /// Boosts that ended by their time, not by being served.
    pub timed_out: u64,
    /// Boosts prolonged because others ran before them.
    pub prolonged: u64,
    /// Times that a vCPU was held back.
    pub held_back: u64,
    /// Guards that had to be started again.
    pub guards: u64,
    /// Real-time CPU time of boosts, ns.
    pub boosted_ns: u64,
    /// Time of this thread for vCPUs' events, boosts and accounting, which was charged to their
    /// owners, ns.
    pub handled_ns: u64,
    /// Times that a thread was scheduled in another way.
    pub changes: u64,
    /// Real-time CPU time of storage threads, ns.
    pub storage_ns: u64,
    /// Times that a back end's storage threads became ordinary, because a budget was used up.
    pub storage_lowered: u64,
}

/// The vehicle.
#[derive(Debug)]
pub struct RealTime {
    settings: Settings,
    book: Book,
    vcpus: Vec<Option<Managed>>,
    boosted: Vec<VcpuId>,
    table: Table,
    guard: Option<Guard>,
    /// Readable when the guard is gone.
    alarm: OwnedFd,
    guard_command: GuardCommand,
    guard_again: u64,
    /// A missing guard was reported.
    guard_complained: bool,
    budget: Budget,
    payers: Payers,
    /// Threads that the caller has opened already, for the next vCPU.
    brought: Vec<Arc<Thread>>,
    accounted: Option<u64>,
    /// CPU time that vCPUs have used since the last accounting.
    pool_ns: u64,
    default_slice_ns: u64,
    /// Threads without a vCPU that could not be restored: retried with the accounting.
    strays: Vec<Member>,
    /// The storage threads of back ends, by process.
    storage: BTreeMap<u32, Storage>,
    /// The guard's interventions that were followed.
    interventions: u64,
    groups: Groups,
    counts: Counts,
}

/// Returns an error with the reason if this vehicle cannot run here, before anything is changed.
///
/// # Errors
///
/// [`ErrorKind::Permission`]: no CAP_SYS_NICE. [`ErrorKind::Unsupported`]: no real-time budget.
pub fn check() -> Result<()> {
    let sets = rustix::thread::capabilities(None).map_err(|error| {
        Error::caused_by(
            ErrorKind::Io,
            "cannot ask for this process's capabilities",
            io::Error::from(error),
        )
    })?;
    if !sets.effective.contains(CapabilitySet::SYS_NICE) {
        let text = "changing the scheduling of other programs' threads needs the capability \
                    CAP_SYS_NICE: run with sudo, or as a service of systemd with \
                    AmbientCapabilities=CAP_SYS_NICE (contrib/systemd has one); no setting was \
                    changed";
        return Err(Error::new(ErrorKind::Permission, text));
    }
    Budget::of_kernel(100, 1).map(drop)
}

impl RealTime {
    /// The vehicle, with its guard.
    ///
    /// # Errors
    ///
    /// [`check`]'s, and what keeps table or guard from being made.
    pub fn new(
        settings: Settings,
        state_dir: &std::path::Path,
        guard_command: GuardCommand,
    ) -> Result<Self> {
        check()?;
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let budget = Budget::of_kernel(settings.rt_percent, cpus)?;
        let payers = Payers::new(budget.rate_ppm(), settings.rt_shares);
        let table = Table::create(state_dir)?;
        let alarm = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| {
            let error = io::Error::from(error);
            Error::caused_by(ErrorKind::Io, "cannot watch the guard", error)
        })?;
        let guard = Some(Guard::start(&guard_command, table.path(), &alarm)?);
        let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let default_slice_ns = sys::get(me).map_or(0, |attr| attr.slice_ns);
        let book = Book::new(settings.params.clone(), settings.goal);
        let _ = table.beat(monotonic_ns());
        Ok(Self {
            settings,
            book,
            vcpus: Vec::new(),
            boosted: Vec::new(),
            table,
            guard,
            alarm,
            guard_command,
            guard_again: 0,
            guard_complained: false,
            budget,
            payers,
            brought: Vec::new(),
            accounted: None,
            pool_ns: 0,
            default_slice_ns,
            strays: Vec::new(),
            storage: BTreeMap::new(),
            interventions: 0,
            groups: Groups::default(),
            counts: Counts::default(),
        })
    }

    /// Its counts so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The accounts.
    pub const fn book(&self) -> &Book {
        &self.book
    }

    fn managed(&mut self, id: VcpuId) -> Result<&mut Managed> {
        let found = self.vcpus.get_mut(id.into_index()).and_then(Option::as_mut);
        found.ok_or_else(|| Error::new(ErrorKind::Gone, format!("no vCPU has the number {}", id.0)))
    }

    /// The vCPU, if there is one of this number.
    fn known(&self, id: VcpuId) -> Option<&Managed> {
        self.vcpus.get(id.into_index()).and_then(Option::as_ref)
    }

    /// The numbers of all places for vCPUs.
    fn places(&self) -> impl Iterator<Item = VcpuId> + use<> {
        (0..self.vcpus.len()).map(|place| VcpuId(u32::try_from(place).unwrap_or(u32::MAX)))
    }

    /// Charges what the vCPU has used since this was last done. Threads that are gone are let go;
    /// whether any is left.
    fn charge(&mut self, id: VcpuId, now: u64) -> bool {
        let Some(managed) = self.vcpus.get_mut(id.into_index()).and_then(Option::as_mut) else {
            return false;
        };
        let mut sum = managed.ended_ns;
        let mut gone = false;
        for member in &managed.members {
            match member.thread.clock() {
                Ok(clock) => sum += clock.ran_ns,
                Err(error) => gone |= is_gone(&error),
            }
        }
        if gone {
            // Their former use is unknown by now: the sum starts anew, and no time is charged
            // twice.
            let slots: Vec<usize> = managed
                .members
                .extract_if(.., |member| member.thread.has_ended())
                .map(|member| member.slot)
                .collect();
            let left = ran_ns(&managed.members);
            managed.ended_ns = managed.charged_ns.saturating_sub(left);
            sum = managed.ended_ns + left;
            for slot in slots {
                let _ = self.table.strike(slot);
            }
        }
        let Some(managed) = self.vcpus.get_mut(id.into_index()).and_then(Option::as_mut) else {
            return false;
        };
        let ns = sum.saturating_sub(managed.charged_ns);
        managed.charged_ns = managed.charged_ns.max(sum);
        managed.seen = now;
        let alive = !managed.members.is_empty();
        self.settle(id, now, ns);
        alive
    }

    /// Charges `ns` of CPU time: first as boosted, for as long as there were boosts since the last
    /// time.
    fn settle(&mut self, id: VcpuId, now: u64, ns: u64) {
        let Ok(managed) = self.managed(id) else { return };
        let payer = managed.payer;
        let before = managed.unsettled_ns;
        let present = managed.boost.as_mut().map(|boost| {
            let lasted = now.saturating_sub(boost.since);
            boost.since = now;
            lasted
        });
        let in_ended = ns.min(before);
        let in_present = present.map_or(0, |lasted| lasted.min(ns - in_ended));
        let boosted = in_ended + in_present;
        // The clock of a thread that runs is as old as the last tick: the rest is charged later.
        managed.unsettled_ns = present.map_or(0, |lasted| before + lasted - boosted);
        let due = boosted + managed.unsettled_ns;
        self.pays(payer, due.saturating_sub(before));
        let unused = before.saturating_sub(due);
        self.budget.unused(unused);
        self.payers.unused(payer, unused);
        self.pool_ns += ns;
        self.counts.boosted_ns += boosted;
        if ns > boosted {
            self.book.ran_plain(id, ns - boosted);
        }
        if in_ended > 0 {
            self.book.ran_before(id, now, in_ended);
        }
        if in_present > 0 {
            // Also the use after the boost had its time: this process came late, or the kernel's
            // timer did.
            self.book.ran_boosted(id, now, in_present);
        }
    }

    /// Charges the budgets for real-time CPU time.
    fn pays(&mut self, payer: Payer, ns: u64) {
        self.budget.used(ns);
        self.payers.used(payer, ns);
    }

    /// Returns a vCPU's state. A running thread is taken for a waiting one: the difference cannot
    /// be seen without interrupting it (26 us). A boost then costs it its own credits, and keeps it
    /// on its CPU until it has served.
    fn doing(&self, id: VcpuId) -> Doing {
        let Some(managed) = self.known(id) else { return Doing::Blocked };
        let runnable =
            managed.members.iter().any(|member| member.thread.is_runnable().unwrap_or(false));
        if runnable { Doing::Waiting } else { Doing::Blocked }
    }

    /// A thread's attributes when it is not boosted.
    const fn base(&self, was: Attr, held_back: bool) -> Attr {
        match self.settings.hold_back {
            HoldBack::Idle if held_back => Attr { class: Class::Idle, nice: 0, priority: 0, ..was },
            HoldBack::Nice if held_back => Attr { nice: 19, ..was },
            _ => was,
        }
    }

    /// Sets all threads of a vCPU to its present attributes: also those after one that the system
    /// refuses to change.
    fn apply(&mut self, id: VcpuId) -> Result<()> {
        let Some(managed) = self.known(id) else { return Ok(()) };
        let boosted = managed.boost.is_some();
        let (mut refusal, mut changes) = (None, 0);
        let is_recent = monotonic_ns().saturating_sub(managed.seen) < RECENT_NS;
        for member in &managed.members {
            let attr = match boosted {
                true => Attr::round_robin(priority::BOOST),
                false => self.base(member.was, managed.held_since.is_some()),
            };
            // The number of a thread that has ended may be another's, but not that soon.
            if !is_recent && member.thread.has_ended() {
                continue;
            }
            changes += 1;
            match sys::set(member.thread.tid(), &attr) {
                Err(error) if !is_gone(&error) => {
                    refusal.get_or_insert_with(|| refused(&managed.name, &member.thread, error));
                }
                _ => {}
            }
        }
        self.counts.changes += changes;
        self.managed(id)?.uneven = refusal.is_some();
        refusal.map_or(Ok(()), Err)
    }

    /// The system's refusal for one vCPU is reported once, and the others are still changed.
    fn complain(&mut self, id: VcpuId, what: &str, result: Result<()>) {
        let Err(error) = result else { return };
        let Ok(managed) = self.managed(id) else { return };
        if !std::mem::replace(&mut managed.complained, true) {
            tracing::warn!("{what}: {}", describe(&error));
        }
    }

    /// Tries again what the system has refused.
    fn even_out(&mut self) {
        for id in self.places() {
            if self.managed(id).is_ok_and(|managed| managed.uneven) {
                let applied = self.apply(id);
                self.complain(id, "not restored yet", applied);
            }
        }
        for member in std::mem::take(&mut self.strays) {
            // Reported when it was first refused.
            let _ = self.give_back(member);
        }
    }

    /// Does work for a vCPU, and charges the time to the vCPU's owner. A machine with many threads,
    /// or many events, then has fewer boosts, and the others keep theirs. That of all is charged by
    /// [`Vehicle::spend`].
    fn for_vcpu<T>(&mut self, id: VcpuId, work: impl FnOnce(&mut Self) -> T) -> T {
        let payer = self.managed(id).map(|managed| managed.payer);
        // Nothing but the guard comes before this thread, and the clock takes no system call.
        let began = monotonic_ns();
        let done = work(self);
        let took = monotonic_ns().saturating_sub(began);
        if let Ok(payer) = payer {
            self.payers.used(payer, took);
            self.counts.handled_ns += took;
        }
        done
    }

    /// Every thread as it was; accounts stay.
    fn restore_all(&mut self) -> Result<()> {
        let mut result = Ok(());
        self.lower_storage(monotonic_ns());
        self.boosted.clear();
        for id in self.places() {
            let Ok(managed) = self.managed(id) else { continue };
            if managed.boost.take().is_none() && managed.held_since.is_none() {
                continue;
            }
            managed.held_since = None;
            self.book.end(id);
            if let Err(error) = self.apply(id) {
                result = Err(error);
            }
        }
        self.hold_groups(monotonic_ns());
        result
    }

    /// Without a guard no thread is changed: starts another guard, or restores all threads and
    /// tries again later.
    fn ensure_guard(&mut self, now: u64) -> bool {
        if self.guard.as_ref().is_some_and(Guard::is_alive) {
            return true;
        }
        if self.guard.take().is_some() {
            tracing::warn!(
                "the guard is gone (killed?): everything is restored, and another one started"
            );
            if let Err(error) = self.restore_all() {
                tracing::error!("{error}");
            }
        } else if now < self.guard_again {
            return false;
        }
        match Guard::start(&self.guard_command, self.table.path(), &self.alarm) {
            Ok(guard) => {
                if std::mem::take(&mut self.guard_complained) {
                    tracing::info!("there is a guard again: vCPUs are boosted");
                }
                self.guard = Some(guard);
                self.counts.guards += 1;
                true
            }
            Err(error) => {
                // Once: it is tried again until it goes well.
                if !std::mem::replace(&mut self.guard_complained, true) {
                    tracing::error!("no vCPU is boosted until it can: {}", describe(&error));
                }
                self.guard_again = now + GUARD_AGAIN_NS;
                false
            }
        }
    }

    fn account_all(&mut self, now: u64) {
        self.even_out();
        for id in self.places() {
            if self.known(id).is_some() {
                self.for_vcpu(id, |this| this.charge(id, now));
            }
        }
        let pool = std::mem::take(&mut self.pool_ns);
        self.book.account_all(now, pool);
        self.account_storage(now);
        self.payers.tidy(now);
        if self.settings.hold_back == HoldBack::Never || self.guard.is_none() {
            return;
        }
        let owes = i64::try_from(self.settings.owes_ns).unwrap_or(i64::MAX);
        let paid = i64::try_from(self.settings.paid_ns).unwrap_or(i64::MAX);
        for id in self.places() {
            let Some(credit) = self.book.account(id).map(|account| account.credit_ns) else {
                continue;
            };
            let Ok(managed) = self.managed(id) else { continue };
            let hold = if managed.held_since.is_some() { credit < -paid } else { credit < -owes };
            if hold != managed.held_since.is_some() {
                managed.held_since = hold.then_some(now);
                self.counts.held_back += u64::from(hold);
                let applied = self.apply(id);
                self.complain(id, "not held back, or not let go", applied);
            }
        }
        self.hold_groups(now);
    }
}

impl Vehicle for RealTime {
    fn name(&self) -> &'static str {
        "realtime"
    }

    fn bring(&mut self, threads: &[Arc<Thread>]) {
        self.brought.clear();
        self.brought.extend_from_slice(threads);
    }

    fn budgets(&self) -> Vec<BudgetState> {
        let all = BudgetState::of("all".into(), &self.budget);
        std::iter::once(all).chain(self.payers.states()).collect()
    }

    fn add(&mut self, vcpu: &VcpuThreads, claim: Claim) -> Result<VcpuId> {
        if !self.ensure_guard(monotonic_ns()) {
            return Err(Error::new(ErrorKind::Io, "there is no guard: no thread is taken"));
        }
        let members = adopt::all(vcpu, |tid| self.take(vcpu, tid)).map_err(|(taken, error)| {
            for member in taken {
                let _ = self.give_back(member);
            }
            error
        })?;
        let charged_ns = ran_ns(&members);
        let user = members.first().map_or(0, |member| member.thread.user());
        let id = self.book.open(claim);
        if self.vcpus.len() <= id.into_index() {
            self.vcpus.resize_with(id.into_index() + 1, || None);
        }
        self.vcpus[id.into_index()] = Some(Managed {
            name: vcpu.name.clone(),
            payer: Payer { user, machine: claim.vm },
            members,
            charged_ns,
            ended_ns: 0,
            unsettled_ns: 0,
            boost: None,
            seen: monotonic_ns(),
            held_since: None,
            groups: VcpuGroups::default(),
            complained: false,
            uneven: false,
        });
        Ok(id)
    }

    fn change(&mut self, id: VcpuId, vcpu: &VcpuThreads) -> Result<()> {
        let now = monotonic_ns();
        // The rest is done even if one step is refused.
        let mut result = self.end_boost(id, now);
        self.charge(id, now);
        let managed = self.managed(id)?;
        let known: Vec<u32> = managed.members.iter().map(|member| member.thread.tid()).collect();
        let threads = adopt::first_of(vcpu);
        // A thread that was made by a held-back one has its attributes: it was meant to be like the
        // others.
        let first = managed.members.first().map(|member| member.was);
        let leaves: Vec<Member> = managed
            .members
            .extract_if(.., |member| !threads.contains(&member.thread.tid()))
            .collect();
        for member in leaves {
            result = result.and(self.give_back(member));
        }
        for &tid in threads.iter().filter(|tid| !known.contains(tid)) {
            let joined = self.take(vcpu, tid).and_then(|member| {
                let member = self.like_the_first(member, first)?;
                self.managed(id)?.members.push(member);
                Ok(())
            });
            match joined {
                Err(error) if error.kind() == ErrorKind::Gone => {}
                Err(error) if error.kind() == ErrorKind::LeftAlone => tracing::warn!("{error}"),
                joined => result = result.and(joined),
            }
        }
        let managed = self.managed(id)?;
        managed.seen = now;
        managed.charged_ns = ran_ns(&managed.members);
        managed.ended_ns = 0;
        result.and(self.apply(id))
    }

    fn remove(&mut self, id: VcpuId) -> Result<()> {
        let now = monotonic_ns();
        let ended = self.end_boost(id, now);
        let Some(managed) = self.vcpus.get_mut(id.into_index()).and_then(Option::take) else {
            return Ok(());
        };
        self.book.close(id);
        let mut result = ended;
        for member in managed.members {
            result = result.and(self.give_back(member));
        }
        result
    }

    fn storage(&mut self, back_end: &VcpuThreads, vm: u32) -> Result<()> {
        self.set_storage(back_end, vm, monotonic_ns())
    }

    fn event(&mut self, id: VcpuId, now: u64) -> Result<Decision> {
        self.for_vcpu(id, |this| this.decide(id, now))
    }

    fn served(&mut self, id: VcpuId, now: u64, response_ns: u64) -> Result<()> {
        let ended = self.for_vcpu(id, |this| this.end_boost(id, now));
        self.book.served(id, response_ns);
        ended
    }

    fn tick(&mut self, now: u64) -> Result<u64> {
        let due: Vec<VcpuId> = self
            .boosted
            .iter()
            .copied()
            .filter(|id| {
                let boost = self.known(*id).and_then(|managed| managed.boost);
                boost.is_none_or(|boost| boost.deadline <= now)
            })
            .collect();
        for id in due {
            let ended = self.for_vcpu(id, |this| this.time_is_up(id, now));
            self.complain(id, "a boost's end", ended);
        }
        let period = self.settings.params.period_ns;
        let accounted = *self.accounted.get_or_insert(now);
        if now >= accounted + period {
            self.accounted = Some(now);
            let _ = self.table.beat(now);
            self.ensure_guard(now);
            self.account_all(now);
        }
        let next = self.accounted.unwrap_or(now) + period;
        let deadlines = self.boosted.iter().filter_map(|&id| Some(self.known(id)?.boost?.deadline));
        Ok(deadlines.fold(next, u64::min))
    }

    fn account(&self, id: VcpuId) -> Option<Account> {
        self.book.account(id).cloned()
    }

    fn denied_until(&self, id: VcpuId) -> Option<u64> {
        let managed = self.known(id).filter(|managed| managed.boost.is_none())?;
        let is_denied = self.book.foresees(id, managed.unsettled_ns) == Some(false);
        is_denied.then_some(self.accounted? + self.settings.params.period_ns)
    }

    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        Some(self.alarm.as_fd())
    }

    fn alarmed(&mut self, now: u64) {
        self.ensure_guard(now);
    }

    fn is_held_back(&self, id: VcpuId) -> bool {
        self.known(id).is_some_and(|managed| managed.held_since.is_some())
    }

    fn is_gone(&self, id: VcpuId) -> bool {
        let has_ended =
            |member: &Member| member.thread.is_runnable().is_err_and(|error| is_gone(&error));
        self.known(id).is_none_or(|managed| managed.members.iter().all(has_ended))
    }

    fn spend(&mut self, ns: u64) {
        self.budget.used(ns);
    }

    fn counters(&self) -> Vec<Counter> {
        let counts = self.counts;
        vec![
            Counter { name: "denied_rt_budget", value: counts.denied_budget },
            Counter { name: "denied_user_budget", value: counts.denied_user },
            Counter { name: "denied_machine_budget", value: counts.denied_machine },
            Counter { name: "denied_no_guard", value: counts.denied_guard },
            Counter { name: "boosts_timed_out", value: counts.timed_out },
            Counter { name: "boosts_prolonged", value: counts.prolonged },
            Counter { name: "held_back", value: counts.held_back },
            Counter { name: "guards_restarted", value: counts.guards },
            Counter { name: "guard_interventions", value: self.table.interventions() },
            Counter { name: "boosted_ns", value: counts.boosted_ns },
            Counter { name: "handled_ns", value: counts.handled_ns },
            Counter { name: "thread_changes", value: counts.changes },
            Counter { name: "storage_ns", value: counts.storage_ns },
            Counter { name: "storage_lowered", value: counts.storage_lowered },
        ]
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        for id in self.places() {
            if let Err(error) = self.remove(id) {
                tracing::error!("{}", describe(&error));
            }
        }
        self.drop_storage();
        // Threads and groups that cannot be restored stay in the table, for the guard.
        self.even_out();
        self.hold_groups(monotonic_ns());
    }
}
