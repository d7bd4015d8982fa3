//! The vehicle: threads in and out, allotments, starvation.

use vlane_policy::loan::units::MS;
use vlane_policy::loan::{Account, Book, Claim, Decision, Doing, Priority, VcpuId};

use super::program::{MAX_VCPUS, Program};
use super::seen::Seen;
use super::{Options, failed, sys};
use crate::adopt;
use crate::sys::Class;
use crate::thread::is_same;
use crate::vehicle::Counter;
use crate::{Error, ErrorKind, Result, VcpuThreads, Vehicle};

/// A vCPU without a CPU for so long starves, while the vCPUs together get next to none: tasks above
/// sched_ext keep them from it. Well before the kernel's watchdog (10 s) throws the scheduler out.
const STARVES_NS: u64 = 500 * MS;
/// The time without a CPU after which a vCPU counts as stuck. It applies to a vCPU with more than
/// half of its most credits, which comes before all others. Its thread is in the own queue of a CPU
/// that went to a task above sched_ext in the same moment. No other CPU takes it there.
const STUCK_NS: u64 = 100 * MS;
/// The time for which starving vCPUs are ordinary threads, which compete with those that starved
/// them. It doubles each time that they starve again at once, up to the second figure.
const SHELTER_NS: [u64; 2] = [1000 * MS, 32_000 * MS];
/// Starving again so soon after coming back is the same shortage.
const SAME_SHORTAGE_NS: u64 = 2000 * MS;
/// The same warning is not repeated sooner.
const WARN_EVERY_NS: u64 = 10_000 * MS;

/// Counts since the vehicle was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Waiting vCPUs that an event put on a CPU.
    pub moved: u64,
    /// Boosts that could not be carried out at once: the thread was in no queue of the scheduler's.
    pub missed: u64,
    /// Boosts that were not served in time, and ended by the timer.
    pub overtime: u64,
    /// Threads with the policy SCHED_EXT that another process has set.
    pub foreign: u64,
    /// vCPUs that were taken out of a CPU's own queue, because that CPU did not come back to them.
    pub freed: u64,
    /// Times that starving vCPUs were given back to the ordinary scheduler for a while.
    pub sheltered: u64,
}

#[derive(Debug)]
struct Member {
    name: String,
    /// The threads that were given, not those that they have made since.
    threads: Vec<Given>,
    /// The program's counts that are already in the book: of boosts, and of the rest.
    boosted_ns: u64,
    plain_ns: u64,
    /// The credits that the program has taken off those that it knows, of the use that is in the
    /// book.
    charged_ns: u64,
    /// Used up to the last accounting.
    used_ns: u64,
}

/// A thread that was given to the scheduler.
#[derive(Debug, Clone, Copy)]
struct Given {
    tid: u32,
    /// With its number, its identity: clock ticks after boot.
    start: u64,
    /// Its policy and priority before.
    before: (i32, i32),
}

/// vCPUs in a sched_ext scheduler. Dropping it gives the threads back and unloads the scheduler; so
/// does the kernel when this process is killed.
#[derive(Debug)]
pub struct SchedExt {
    book: Book,
    program: Program,
    members: Vec<Option<Member>>,
    options: Options,
    next_accounting: u64,
    /// The time of the last accounting.
    accounted: u64,
    /// Number of the host's CPUs.
    cpus: u64,
    /// Out of the scheduler until then, because it got no CPU time.
    sheltered_until: Option<u64>,
    /// For how long the last time, and when it ended.
    last_shelter: (u64, u64),
    warned: Option<u64>,
    sheltered: u64,
    freed: u64,
}

impl SchedExt {
    /// Loads the scheduler.
    ///
    /// # Errors
    ///
    /// As [`open`](super::open).
    pub fn load(options: Options) -> Result<Self> {
        super::probe()?;
        let params = options.params.clone().checked();
        let params = params.map_err(|e| failed(ErrorKind::Invalid, "a parameter cannot be", e))?;
        let goal = options.goal.checked();
        let goal = goal.map_err(|e| failed(ErrorKind::Invalid, "the goal cannot be", e))?;
        let program = Program::load(&options)?;
        Ok(Self {
            book: Book::new(params, goal),
            program,
            members: Vec::new(),
            options,
            next_accounting: 0,
            accounted: 0,
            cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64),
            sheltered_until: None,
            last_shelter: (0, 0),
            warned: None,
            sheltered: 0,
            freed: 0,
        })
    }

    /// The counts so far.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn counters(&self) -> Result<Counters> {
        let told = self.program.told()?;
        Ok(Counters {
            moved: told.moved,
            missed: told.missed,
            overtime: told.overtime,
            foreign: told.foreign,
            freed: self.freed,
            sheltered: self.sheltered,
        })
    }

    /// Charges all vCPUs for their use until `now`: [`Vehicle::account`] is as of the last time
    /// that this or an event did.
    fn settle_each(&mut self, now: u64) -> Result<Vec<(VcpuId, Seen)>> {
        self.program.count(u32::try_from(self.members.len()).unwrap_or(MAX_VCPUS))?;
        let ids: Vec<VcpuId> = self.book.vcpus().map(|(id, _)| id).collect();
        ids.into_iter().map(|id| Ok((id, self.settle(id, now)?))).collect()
    }

    /// Charges a vCPU for the program's counts since the last time. Its boost ends in the book when
    /// it has ended in the program. It ends in the program when it has in the book (its loan's
    /// terms have changed meanwhile).
    fn settle(&mut self, id: VcpuId, now: u64) -> Result<Seen> {
        let seen = self.program.seen(id)?;
        let member = self.members.get_mut(id.into_index()).and_then(Option::as_mut);
        let member = member.ok_or_else(|| no_such(id))?;
        let boosted = seen.boosted_ns.saturating_sub(member.boosted_ns);
        member.boosted_ns += boosted;
        if boosted > 0 {
            self.book.ran_boosted(id, now, boosted);
        }
        let mut plain = (seen.used_ns - seen.boosted_ns).saturating_sub(member.plain_ns);
        if seen.boost_left_ns == 0 {
            self.book.end(id);
            member.plain_ns += plain;
            if plain > 0 {
                self.book.ran(id, now, std::mem::take(&mut plain));
            }
        } else if self.book.account(id).is_some_and(|account| account.boosted.is_none()) {
            self.program.end_boost(id)?;
        }
        // Time used between the decision and the boost waits until the boost is over: it is no part
        // of the boost.
        member.charged_ns = seen.charged_ns.saturating_sub(plain);
        Ok(seen)
    }

    fn member(&self, id: VcpuId) -> Result<&Member> {
        self.members.get(id.into_index()).and_then(Option::as_ref).ok_or_else(|| no_such(id))
    }

    /// Gives one thread to the scheduler.
    fn adopt(&self, vcpu: &VcpuThreads, tid: u32, id: VcpuId) -> Result<Given> {
        // A number may have become another thread's: it has to be the same thread, before and
        // after.
        let thread = adopt::find(vcpu, tid)?;
        let start = thread.start();
        let before = sys::policy_of(tid).map_err(|e| refused(&vcpu.name, tid, e))?;
        let class = Class::of(before.0.unsigned_abs());
        // No other scheduler is loaded: such a thread was made by one of ours, or was left by a
        // scheduler that was killed.
        let is_ext = before.0 == sys::SCHED_EXT;
        if !is_ext && !adopt::is_ordinary(class) {
            return Err(adopt::left_alone(&vcpu.name, tid, class));
        }
        self.program.assign(tid, Some(id))?;
        let given = || {
            if is_ext && !self.program.seen(id).is_ok_and(|seen| seen.tids.contains(&tid)) {
                // The program is only notified of threads that newly become its own.
                sys::set_policy(tid, (libc::SCHED_OTHER, 0))?;
            }
            sys::set_policy(tid, (sys::SCHED_EXT, 0))
        };
        let done = given().map_err(|e| refused(&vcpu.name, tid, e)).and_then(|()| {
            let is_it = is_same(tid, start);
            if is_it.as_ref().is_ok_and(|&is_it| is_it) {
                return Ok(());
            }
            let _ = sys::set_policy(tid, before);
            is_it.map_err(|e| refused(&vcpu.name, tid, e))?;
            let text =
                format!("sched_ext: {}: thread {tid} of process {} has ended", vcpu.name, vcpu.pid);
            Err(Error::new(ErrorKind::Gone, text))
        });
        if done.is_err() {
            self.program.assign(tid, None)?;
        }
        done.map(|()| Given { tid, start, before })
    }

    /// Gives a vCPU's threads back: those that were given, and those that they have made since.
    fn give_all_back(&self, id: VcpuId, threads: &[Given]) {
        let (mut tids, untracked) =
            self.program.seen(id).map(|seen| (seen.tids, seen.untracked)).unwrap_or_default();
        if untracked > 0 {
            tracing::warn!(
                "sched_ext: vCPU {}: {untracked} more threads were made than are followed; those \
                 that still run keep the policy SCHED_EXT, which is as good as ordinary without a \
                 scheduler",
                id.0
            );
        }
        tids.extend(threads.iter().map(|given| given.tid));
        tids.sort_unstable();
        tids.dedup();
        for tid in tids {
            self.give_back(tid, threads);
        }
    }

    fn give_back(&self, tid: u32, threads: &[Given]) {
        // Only threads that are still ours: the policy may have been changed, or the number may be
        // another thread's.
        let given = threads.iter().find(|given| given.tid == tid);
        let same = given.is_none_or(may_be);
        if same && sys::policy_of(tid).is_ok_and(|(policy, _)| policy == sys::SCHED_EXT) {
            let before = given.map_or((libc::SCHED_OTHER, 0), |given| given.before);
            if let Err(e) = sys::set_policy(tid, before) {
                tracing::warn!(
                    "sched_ext: thread {tid} keeps the policy SCHED_EXT, which is as good as \
                     ordinary: {e}"
                );
            }
        }
        let _ = self.program.assign(tid, None);
    }

    /// The accounting: the book plans and adapts, the program gives.
    fn account_all(&mut self, now: u64) -> Result<()> {
        let all = self.settle_each(now)?;
        let (mut pool, mut waits) = (0, None);
        // The number of waiting vCPUs, and the time since when one with credits has waited. Others
        // of ours do not come before it for long.
        let (mut waiting, mut entitled_since) = (0_u64, u64::MAX);
        let first_in_line =
            i64::try_from(self.options.params.credit_max_ns / 2).unwrap_or(i64::MAX);
        let mut stuck = Vec::new();
        for (id, seen) in all {
            let Some(member) = self.members.get_mut(id.into_index()).and_then(Option::as_mut)
            else {
                continue;
            };
            pool += seen.used_ns - std::mem::replace(&mut member.used_ns, seen.used_ns);
            if seen.waits_since > 0 {
                waits = waits.into_iter().chain([(seen.waits_since, id)]).min();
                waiting += 1;
                let credit_ns = self.book.account(id).map_or(0, |account| account.credit_ns);
                if credit_ns > 0 {
                    entitled_since = entitled_since.min(seen.waits_since);
                }
                if credit_ns > first_in_line && now.saturating_sub(seen.waits_since) > STUCK_NS {
                    stuck.push(id);
                }
            }
        }
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.accounted, now));
        if self.sheltered_until.is_none() {
            self.free(&stuck);
        }
        // A tenth of a CPU between all is next to none. So is a tenth of the CPUs that they could
        // use, when one waits that is entitled.
        let usable = if now.saturating_sub(entitled_since) < STARVES_NS {
            1
        } else {
            waiting.min(self.cpus)
        };
        self.shelter(now, waits, pool, elapsed / 10 * usable.max(1));
        self.book.account_all(now, pool);
        let base = |(place, member): (u32, &Option<Member>)| {
            let credit_ns = self.book.account(VcpuId(place)).map_or(0, |account| account.credit_ns);
            credit_ns.saturating_add_unsigned(member.as_ref().map_or(0, |member| member.charged_ns))
        };
        let bases: Vec<i64> = (0u32..).zip(&self.members).map(base).collect();
        let mut got: Vec<u64> =
            self.book.allotments().iter().copied().filter(|&ns| ns > 0).collect();
        got.sort_unstable();
        let usual = got.get(got.len() / 2).copied().unwrap_or(0);
        self.program.credit(&bases, usual)
    }

    /// When tasks above sched_ext leave no CPU time to it, all vCPUs become ordinary threads for a
    /// while, which compete with them. One alone would only be one more that keeps the others from
    /// the CPUs. A vCPU that waits because it has used more than its share is no case of this: then
    /// others of ours run.
    fn shelter(
        &mut self,
        now: u64,
        waits_since: Option<(u64, VcpuId)>,
        used_ns: u64,
        next_to_none_ns: u64,
    ) {
        if let Some(until) = self.sheltered_until {
            if now >= until {
                self.sheltered_until = None;
                self.all_to(true);
            }
            return;
        }
        let Some((since, id)) = waits_since else { return };
        let waited = now.saturating_sub(since);
        if waited < STARVES_NS || used_ns > next_to_none_ns {
            return;
        }
        let (last, ended) = self.last_shelter;
        let again = last > 0 && now.saturating_sub(ended) < SAME_SHORTAGE_NS;
        let length = if again { (2 * last).min(SHELTER_NS[1]) } else { SHELTER_NS[0] };
        self.last_shelter = (length, now + length);
        self.sheltered_until = Some(now + length);
        self.sheltered += 1;
        if self.warned.is_none_or(|warned| now.saturating_sub(warned) >= WARN_EVERY_NS) {
            self.warned = Some(now);
            let name =
                self.member(id).map_or_else(|_| id.0.to_string(), |member| member.name.clone());
            tracing::warn!(
                "sched_ext: {name} got no CPU for {} ms: ordinary or real-time tasks, which come \
                 before sched_ext, use all that the vCPUs may run on; the vCPUs compete with them \
                 as ordinary threads for {} ms now, without boosts. Give those tasks less, or \
                 take --vehicle realtime",
                waited / MS,
                length / MS
            );
        }
        self.all_to(false);
    }

    /// Puts vCPUs back into the queue of all: out of the scheduler and in again.
    fn free(&mut self, stuck: &[VcpuId]) {
        for &id in stuck {
            if let Some(member) = self.members.get(id.into_index()).and_then(Option::as_ref) {
                Self::to(std::slice::from_ref(member).iter(), false);
                Self::to(std::slice::from_ref(member).iter(), true);
                self.freed += 1;
            }
        }
    }

    /// All threads into the scheduler, or out of it as they were.
    fn all_to(&self, scheduler: bool) {
        Self::to(self.members.iter().flatten(), scheduler);
    }

    fn to<'a>(members: impl Iterator<Item = &'a Member>, scheduler: bool) {
        for member in members {
            for &Given { tid, start, before } in &member.threads {
                let policy = if scheduler { (sys::SCHED_EXT, 0) } else { before };
                let is_ours =
                    || sys::policy_of(tid).is_ok_and(|(policy, _)| policy == sys::SCHED_EXT);
                let may = || if scheduler { adopt::is_ordinary_now(tid) } else { is_ours() };
                // A thread that has gone meanwhile needs neither, nor does one that was made
                // real-time.
                if is_same(tid, start).unwrap_or(!scheduler)
                    && may()
                    && let Err(e) = sys::set_policy(tid, policy)
                {
                    tracing::debug!("sched_ext: {}: thread {tid}: {e}", member.name);
                }
            }
        }
    }
}

impl Vehicle for SchedExt {
    fn name(&self) -> &'static str {
        "sched_ext"
    }

    fn add(&mut self, vcpu: &VcpuThreads, claim: Claim) -> Result<VcpuId> {
        let id = self.book.open(claim);
        let added =
            self.program.open_account(id, true).map_err(|error| (Vec::new(), error)).and_then(
                |()| {
                    adopt::all(vcpu, |tid| {
                        let given = self.adopt(vcpu, tid, id)?;
                        let left = given.before.0 == sys::SCHED_EXT;
                        Ok(Given {
                            before: if left { (libc::SCHED_OTHER, 0) } else { given.before },
                            ..given
                        })
                    })
                },
            );
        let threads = match added {
            Ok(threads) => threads,
            Err((threads, error)) => {
                self.give_all_back(id, &threads);
                let _ = self.program.open_account(id, false);
                self.book.close(id);
                return Err(error);
            }
        };
        if self.members.len() <= id.into_index() {
            self.members.resize_with(id.into_index() + 1, || None);
        }
        self.members[id.into_index()] = Some(Member {
            name: vcpu.name.clone(),
            threads,
            boosted_ns: 0,
            plain_ns: 0,
            charged_ns: 0,
            used_ns: 0,
        });
        // A thread that joins while all are ordinary threads is one as well, until all come back.
        if self.sheltered_until.is_some() {
            self.all_to(false);
        }
        Ok(id)
    }

    fn change(&mut self, id: VcpuId, vcpu: &VcpuThreads) -> Result<()> {
        let known = self.member(id)?.threads.clone();
        let wanted = adopt::first_of(vcpu);
        let (mut threads, leave): (Vec<Given>, Vec<Given>) =
            known.iter().partition(|given| wanted.contains(&given.tid) && may_be(given));
        for given in &leave {
            self.give_back(given.tid, &known);
        }
        let mut failed = None;
        for &tid in wanted {
            if threads.iter().any(|given| given.tid == tid) {
                continue;
            }
            match self.adopt(vcpu, tid, id) {
                // Made by a thread that is ours it is ours from its first moment; it was meant to
                // be like its parent.
                Ok(given) if given.before.0 == sys::SCHED_EXT => {
                    let before = known.first().map_or((libc::SCHED_OTHER, 0), |given| given.before);
                    threads.push(Given { before, ..given });
                }
                Ok(given) => threads.push(given),
                Err(error) if error.kind() == ErrorKind::Gone => {}
                Err(error) if error.kind() == ErrorKind::LeftAlone => tracing::warn!("{error}"),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(member) = self.members.get_mut(id.into_index()).and_then(Option::as_mut) {
            member.threads = threads;
        }
        if self.sheltered_until.is_some() {
            self.all_to(false);
        }
        failed.map_or(Ok(()), Err)
    }

    fn remove(&mut self, id: VcpuId) -> Result<()> {
        let member = self
            .members
            .get_mut(id.into_index())
            .and_then(Option::take)
            .ok_or_else(|| no_such(id))?;
        self.give_all_back(id, &member.threads);
        self.book.close(id);
        self.program.open_account(id, false)
    }

    fn event(&mut self, id: VcpuId, now: u64) -> Result<Decision> {
        let seen = self.settle(id, now)?;
        let doing = match (seen.running, seen.runnable) {
            (0, 0) => Doing::Blocked,
            (0, _) => Doing::Waiting,
            _ => Doing::Running,
        };
        let decision = self.book.event(id, now, doing).ok_or_else(|| no_such(id))?;
        if let (Decision::Boost { .. }, Some(account)) = (decision, self.book.account(id)) {
            let params = self.book.params();
            let (ns, is_charged) = (account.boost_left_ns(), account.boost_is_charged(params));
            self.program.boost(id, ns, is_charged).inspect_err(|_| self.book.end(id))?;
        }
        Ok(decision)
    }

    fn served(&mut self, id: VcpuId, now: u64, response_ns: u64) -> Result<()> {
        if self.book.account(id).is_some_and(|account| account.boosted.is_some()) {
            self.program.end_boost(id)?;
        }
        self.settle(id, now)?;
        self.book.served(id, response_ns);
        Ok(())
    }

    fn tick(&mut self, now: u64) -> Result<u64> {
        if now >= self.next_accounting {
            if let Some(exit) = self.program.told()?.exit {
                return Err(exit.error());
            }
            self.account_all(now)?;
            // The next one is due a period after the last was, unless that has passed: then there
            // is none to make up for.
            let period = self.book.params().period_ns;
            self.next_accounting = if now < self.next_accounting + period {
                self.next_accounting + period
            } else {
                now + period
            };
        }
        Ok(self.next_accounting)
    }

    fn account(&self, id: VcpuId) -> Option<Account> {
        self.book.account(id).cloned()
    }

    fn is_held_back(&self, id: VcpuId) -> bool {
        self.account(id).is_some_and(|account| account.priority() == Priority::Over)
    }

    fn is_gone(&self, id: VcpuId) -> bool {
        let Ok(member) = self.member(id) else { return true };
        let ours =
            |&tid: &u32| sys::policy_of(tid).is_ok_and(|(policy, _)| policy == sys::SCHED_EXT);
        // Threads made by them count as well.
        !member.threads.iter().any(may_be)
            && self.program.seen(id).is_ok_and(|seen| !seen.tids.iter().any(ours))
    }

    fn counters(&self) -> Vec<Counter> {
        let Ok(counters) = Self::counters(self) else { return Vec::new() };
        vec![
            Counter { name: "threads_moved", value: counters.moved },
            Counter { name: "threads_not_moved", value: counters.missed },
            Counter { name: "boosts_timed_out", value: counters.overtime },
            Counter { name: "foreign_threads", value: counters.foreign },
            Counter { name: "freed", value: counters.freed },
            Counter { name: "sheltered", value: counters.sheltered },
        ]
    }
}

impl Drop for SchedExt {
    fn drop(&mut self) {
        for (place, member) in (0u32..).zip(std::mem::take(&mut self.members)) {
            if let Some(member) = member {
                self.give_all_back(VcpuId(place), &member.threads);
            }
        }
        self.program.unload();
    }
}

/// Returns true if it still is the thread that was given, as far as that can be found out: an error
/// is no end of it.
fn may_be(given: &Given) -> bool {
    is_same(given.tid, given.start).unwrap_or(true)
}

fn no_such(id: VcpuId) -> Error {
    Error::new(ErrorKind::Gone, format!("sched_ext: there is no vCPU {}", id.0))
}

fn refused(name: &str, tid: u32, cause: std::io::Error) -> Error {
    let (kind, what) = match cause.raw_os_error() {
        Some(libc::ESRCH) => (ErrorKind::Gone, "the thread is gone"),
        Some(libc::EPERM) => (ErrorKind::Permission, "no privilege to schedule it (CAP_SYS_NICE)"),
        _ => (ErrorKind::Io, "its policy cannot be changed"),
    };
    failed(kind, format!("{name}: thread {tid}: {what}"), cause)
}
