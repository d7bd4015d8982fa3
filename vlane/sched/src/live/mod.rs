//! The daemon: hears of I/O, boosts through a vehicle, and reports its state.
//!
//! One thread, real-time above all that it boosts, waits for sources, the next deadline and the
//! end. The loop allocates little, and takes no lock that another thread may hold for long.

mod announced;
mod back_end_events;
pub mod backends;
mod entitled;
mod foreground;
mod joins;
mod retries;
pub mod socket;
pub mod source;
pub mod state;
mod storage_threads;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::event::epoll;
use rustix::thread::gettid;
use rustix::time::Timespec;
use vlane_error::describe;
use vlane_policy::loan::{Claim, VcpuId};

use self::socket::Hub;
use self::source::{Mark, Source};
use self::state::{Completions, DaemonState, Responses, Snapshot, VcpuState};
use crate::realtime::{monotonic_ns, own_cpu_ns, priority};
use crate::sys::{self, Attr};
use crate::thread::{Clock, Thread};
use crate::vehicle::{VcpuThreads, Vehicle};
use crate::{Error, ErrorKind, Result};
use crate::{adopt, hold};
use joins::{Join, Joins};
use retries::Retries;

/// The interval at which the state is published and ended threads are looked for.
const SECOND_NS: u64 = 1_000_000_000;
/// The shortest time for which a source with pending marks is left alone.
const MOMENT_NS: u64 = 1_000_000;
/// Names of descriptors in the epoll set; sources count from 0.
const STOP: u64 = u64::MAX;
const ALARM: u64 = u64::MAX - 1;

/// The reason why the daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It was asked to stop.
    Stopped,
    /// All its vCPUs have ended, and no source can bring others.
    Alone,
}

#[derive(Debug)]
struct Vcpu {
    threads: VcpuThreads,
    claim: Claim,
    responses: Responses,
    /// For its waiting time; the vehicle has its own.
    clocks: Vec<Arc<Thread>>,
    last: Clock,
    last_at: u64,
    per_second: (f64, f64),
    /// CPU time of all vCPUs and its own when it joined: shares count from then.
    joined_all_ns: u64,
}

impl Vcpu {
    /// Returns true if all its threads are stopped. Checked only if the vCPU was idle in the last
    /// second: the event loop asks this of all, every second.
    fn is_stopped(&self) -> bool {
        let (ran, waited) = self.per_second;
        if ran > 0.0 || waited > 0.0 {
            return false;
        }
        let mut threads =
            self.clocks.iter().filter_map(|thread| thread.is_stopped().ok()).peekable();
        threads.peek().is_some() && threads.all(|is_stopped| is_stopped)
    }
}

/// The daemon.
pub struct Daemon {
    vehicle: Box<dyn Vehicle>,
    policy: String,
    completions: Completions,
    sources: Vec<Option<Box<dyn Source>>>,
    vcpus: BTreeMap<VcpuId, Vcpu>,
    tokens: HashMap<(usize, u64), VcpuId>,
    /// vCPUs whose threads have ended, by source and token, until the source says that they have
    /// left: they may have others yet.
    ended: HashMap<(usize, u64), Claim>,
    hub: Arc<Hub>,
    marks: Vec<Mark>,
    began: u64,
    own_cpu_ns: u64,
    second: u64,
    /// `None`: what a boost was not enough for waits for its turn.
    retries: Option<Retries>,
    joins: Joins,
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon")
            .field("vehicle", &self.vehicle.name())
            .field("vcpus", &self.vcpus.len())
            .finish()
    }
}

fn failed(what: &str) -> impl Fn(rustix::io::Errno) -> Error + '_ {
    move |error| Error::caused_by(ErrorKind::Io, what, io::Error::from(error))
}

impl Daemon {
    /// A daemon on a vehicle, without vCPUs and sources. `policy` is what it is called for people.
    pub fn new(vehicle: Box<dyn Vehicle>, policy: impl Into<String>) -> Self {
        Self {
            vehicle,
            policy: policy.into(),
            completions: Completions::default(),
            sources: Vec::new(),
            vcpus: BTreeMap::new(),
            tokens: HashMap::new(),
            ended: HashMap::new(),
            hub: Arc::default(),
            marks: Vec::new(),
            began: monotonic_ns(),
            own_cpu_ns: 0,
            second: 0,
            retries: None,
            joins: Joins::default(),
        }
    }

    /// Tells an event again while it is not served: for policies that lend. `boost_ns`: how long a
    /// boost lasts at the most.
    pub fn telling_again(mut self, boost_ns: u64) -> Self {
        self.retries = Some(Retries::new(boost_ns));
        self
    }

    /// Names, in its state, the completions that boost. The source that hears of them chooses
    /// them.
    pub const fn hearing_of(mut self, completions: Completions) -> Self {
        self.completions = completions;
        self
    }

    /// Its state, to be read while it runs.
    pub fn hub(&self) -> Arc<Hub> {
        Arc::clone(&self.hub)
    }

    /// Listens to one more source; its number, for [`Daemon::name_vcpu`].
    pub fn add_source(&mut self, mut source: Box<dyn Source>) -> usize {
        let number = self.sources.len();
        for (&id, vcpu) in &self.vcpus {
            if let Some(token) = source.meet(&vcpu.threads) {
                self.tokens.insert((number, token), id);
            }
        }
        self.sources.push(Some(source));
        number
    }

    /// Tells all sources of a vCPU.
    fn introduce(&mut self, id: VcpuId) {
        let Some(vcpu) = self.vcpus.get(&id) else { return };
        for (number, source) in self.sources.iter_mut().enumerate() {
            if let Some(token) = source.as_mut().and_then(|source| source.meet(&vcpu.threads)) {
                self.tokens.insert((number, token), id);
            }
        }
    }

    /// Schedules a vCPU.
    ///
    /// # Errors
    ///
    /// The vehicle's refusal; the vCPU stays unchanged.
    pub fn add(&mut self, threads: VcpuThreads, claim: Claim) -> Result<VcpuId> {
        let opened = open_all(&threads)?;
        for thread in &opened {
            hold::take(thread, &threads.name)?;
        }
        self.add_opened(threads, claim, opened)
    }

    /// The same with threads that are opened and held already.
    fn add_opened(
        &mut self,
        threads: VcpuThreads,
        claim: Claim,
        clocks: Vec<Arc<Thread>>,
    ) -> Result<VcpuId> {
        for vcpu in self.vcpus.values() {
            if let Some(tid) = threads.tids.iter().find(|tid| vcpu.threads.tids.contains(tid)) {
                let text = format!(
                    "{}: thread {tid} belongs to {} already",
                    threads.name, vcpu.threads.name
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
        }
        self.vehicle.bring(&clocks);
        let added = self.vehicle.add(&threads, claim);
        self.vehicle.bring(&[]);
        let id = added?;
        let last = sum(&clocks);
        let joined_all_ns = self.used_by_all();
        let vcpu = Vcpu {
            threads,
            claim,
            responses: Responses::default(),
            clocks,
            last,
            last_at: monotonic_ns(),
            per_second: (0.0, 0.0),
            joined_all_ns,
        };
        self.vcpus.insert(id, vcpu);
        self.introduce(id);
        Ok(id)
    }

    /// A source's token means this vCPU.
    pub fn name_vcpu(&mut self, source: usize, token: u64, id: VcpuId) {
        self.tokens.insert((source, token), id);
    }

    /// The vCPU that has this thread.
    pub fn find(&self, tid: u32) -> Option<VcpuId> {
        self.vcpus.iter().find(|(_, vcpu)| vcpu.threads.tids.contains(&tid)).map(|(&id, _)| id)
    }

    /// Number of vCPUs.
    pub fn vcpus(&self) -> usize {
        self.vcpus.len()
    }

    /// The vehicle.
    pub fn vehicle(&self) -> &dyn Vehicle {
        &*self.vehicle
    }

    fn used_by_all(&self) -> u64 {
        let used =
            |&id: &VcpuId| self.vehicle.account(id).map_or(0, |account| account.totals.used_ns);
        self.vcpus.keys().map(used).sum()
    }

    fn remove(&mut self, id: VcpuId) -> Result<()> {
        let claim = self.vcpus.remove(&id).map(|vcpu| vcpu.claim);
        if let Some(retries) = &mut self.retries {
            retries.served(id);
        }
        for ((number, token), _) in self.tokens.extract_if(|_, &mut other| other == id) {
            if let Some(Some(source)) = self.sources.get_mut(number) {
                source.part(token);
                if let Some(claim) = claim.filter(|_| source.may_bring_vcpus()) {
                    self.ended.insert((number, token), claim);
                }
            }
        }
        self.vehicle.remove(id)
    }

    /// Makes the calling thread real-time, as the loop has to be: it could not end the boosts of
    /// threads that it waits behind. Children of it are not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Permission`]: the system does not allow it.
    pub fn raise() -> Result<()> {
        let me = gettid().as_raw_nonzero().get().unsigned_abs();
        sys::set(me, &Attr::round_robin(priority::DAEMON)).map_err(|error| {
            let text = "the scheduler's own thread cannot be real-time: CAP_SYS_NICE is missing, \
                        or its cgroup has no real-time budget (cpu.rt_runtime_us); no setting was \
                        changed";
            Error::caused_by(ErrorKind::Permission, text, error)
        })
    }

    /// Schedules until `stop` is readable, or all vCPUs have ended.
    ///
    /// # Errors
    ///
    /// The system fails. Threads are restored when the daemon is dropped.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<Ending> {
        let failed = failed("the scheduler's event loop failed");
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(&failed)?;
        let watch = |fd: BorrowedFd<'_>, name: u64, flags: epoll::EventFlags| {
            epoll::add(&set, fd, epoll::EventData::new_u64(name), flags | epoll::EventFlags::IN)
        };
        watch(stop, STOP, epoll::EventFlags::empty()).map_err(&failed)?;
        if let Some(alarm) = self.vehicle.alarm() {
            watch(alarm, ALARM, epoll::EventFlags::empty()).map_err(&failed)?;
        }
        for (number, source) in (0..).zip(&self.sources) {
            if let Some(source) = source {
                let flags = match source.stays_readable() {
                    true => epoll::EventFlags::ET,
                    false => epoll::EventFlags::empty(),
                };
                watch(source.fd(), number, flags).map_err(&failed)?;
            }
        }
        let mut ready = [MaybeUninit::<epoll::Event>::uninit(); 16];
        let mut woken = monotonic_ns();
        loop {
            let next = self.step(woken, &set)?;
            if self.vcpus.is_empty()
                && !self.sources.iter().flatten().any(|source| source.may_bring_vcpus())
            {
                return Ok(Ending::Alone);
            }
            // One system call waits for all sources and for the time: no timer is set for an event.
            let now = monotonic_ns();
            self.vehicle.spend(now.saturating_sub(woken));
            let left = next.saturating_sub(now);
            let left = Timespec {
                tv_sec: (left / SECOND_NS).cast_signed(),
                tv_nsec: (left % SECOND_NS).cast_signed(),
            };
            let waited = epoll::wait(&set, &mut ready, Some(&left));
            woken = monotonic_ns();
            let (got, _) = match waited {
                Err(rustix::io::Errno::INTR) => continue,
                result => result.map_err(&failed)?,
            };
            if got.iter().any(|event| event.data.u64() == ALARM) {
                self.vehicle.alarmed(woken);
            }
            for event in &*got {
                match event.data.u64() {
                    STOP => return Ok(Ending::Stopped),
                    ALARM => {}
                    number => self.hear(&set, number),
                }
            }
        }
    }

    /// Does what is due; when to come again.
    fn step(&mut self, now: u64, set: &impl AsFd) -> Result<u64> {
        let due =
            |source: &Option<Box<dyn Source>>| source.as_ref().and_then(|source| source.deadline());
        for number in 0..self.sources.len() {
            if due(&self.sources[number]).is_some_and(|deadline| deadline <= now) {
                self.hear(set, number as u64);
            }
        }
        self.tell_again(now);
        if let Some(join) = self.joins.due(now) {
            self.join(join, Vec::new());
        }
        let next = self.vehicle.tick(now)?;
        let retries = self.retries.as_ref().and_then(Retries::deadline).unwrap_or(u64::MAX);
        let next = next.min(retries.max(now + MOMENT_NS / 4));
        let next = next.min(self.joins.deadline().unwrap_or(u64::MAX).max(now + MOMENT_NS));
        let sources = self.sources.iter().filter_map(due).min().unwrap_or(u64::MAX);
        // Not at once: what is due again already has its turn after what came meanwhile.
        let next = next.min(sources.max(now + MOMENT_NS));
        if now >= self.second + SECOND_NS {
            self.second = now;
            self.own_cpu_ns = own_cpu_ns();
            self.look_around(now);
        }
        Ok(next.min(self.second + SECOND_NS))
    }

    /// Repeats events that were not served although their boost is over.
    fn tell_again(&mut self, now: u64) {
        let Some(retries) = &mut self.retries else { return };
        let vcpus = &self.vcpus;
        let sleeps = |id: VcpuId| {
            let threads = vcpus.get(&id).map_or(&[][..], |vcpu| &vcpu.clocks);
            !threads.iter().any(|thread| thread.is_runnable().unwrap_or(false))
        };
        let vehicle = &self.vehicle;
        let later = |id| vehicle.denied_until(id).map(|until| until + MOMENT_NS / 4);
        for id in retries.due(now, later, sleeps) {
            if let Err(error) = self.vehicle.event(id, now) {
                // Other code finds out if it is gone.
                tracing::debug!("{}", describe(&error));
            }
        }
    }

    /// Takes what a source has to say.
    fn hear(&mut self, set: &impl AsFd, number: u64) {
        let Ok(number) = usize::try_from(number) else { return };
        let Some(Some(source)) = self.sources.get_mut(number) else { return };
        let mut marks = std::mem::take(&mut self.marks);
        if let Err(error) = source.collect(&mut marks) {
            tracing::error!("{} is no longer read: {}", source.name(), describe(&error));
            let _ = epoll::delete(set, source.fd());
            if let Some(source) = self.sources.get_mut(number) {
                *source = None;
            }
        }
        for mark in marks.drain(..) {
            if let Err(error) = self.take(number, mark) {
                match error.kind() {
                    ErrorKind::Gone => tracing::info!("{}", describe(&error)),
                    _ => tracing::warn!("{}", describe(&error)),
                }
            }
        }
        self.marks = marks;
    }

    fn take(&mut self, source: usize, mark: Mark) -> Result<()> {
        let now = monotonic_ns();
        let known = |token: u64| self.tokens.get(&(source, token)).copied();
        let opened = match (&mark, self.sources.get_mut(source)) {
            (
                Mark::Joined { token, .. }
                | Mark::Changed { token, .. }
                | Mark::Storage { token, .. },
                Some(Some(source)),
            ) => source.opened(*token),
            _ => Vec::new(),
        };
        match mark {
            Mark::Event { token } => {
                let Some(id) = known(token) else { return Ok(()) };
                let tells = self.sources.get(source).and_then(Option::as_ref);
                if let Some(retries) = &mut self.retries
                    && tells.is_some_and(|source| source.tells_of_all_served())
                {
                    retries.arrived(id, now);
                }
                match self.vehicle.event(id, now) {
                    Err(error) if error.kind() == ErrorKind::Gone => {
                        self.remove(id)?;
                        Err(error)
                    }
                    result => result.map(drop),
                }
            }
            Mark::Served { token, response_ns } => {
                let Some(id) = known(token) else { return Ok(()) };
                if let Some(retries) = &mut self.retries {
                    retries.served(id);
                }
                if let Some(vcpu) = self.vcpus.get_mut(&id) {
                    vcpu.responses.push(response_ns);
                }
                self.vehicle.served(id, now, response_ns)
            }
            Mark::Joined { token, vcpu, claim } => {
                self.join(Join { source, token, vcpu, claim: Some(claim) }, opened);
                Ok(())
            }
            Mark::Changed { token, vcpu } => {
                // A vCPU that could not join yet joins in its present form.
                let claim = self.joins.forget(source, token).and_then(|join| join.claim);
                self.join(Join { source, token, vcpu, claim }, opened);
                Ok(())
            }
            Mark::Storage { back_end, vm, .. } => {
                self.vehicle.bring(&opened);
                let done = self.vehicle.storage(&back_end, vm);
                self.vehicle.bring(&[]);
                done
            }
            Mark::Left { token } => {
                let known = known(token);
                self.joins.forget(source, token);
                self.ended.remove(&(source, token));
                let Some(id) = known else { return Ok(()) };
                if let Some(vcpu) = self.vcpus.get(&id) {
                    tracing::info!("{}: let go", vcpu.threads.name);
                }
                let removed = self.remove(id);
                self.ended.remove(&(source, token));
                removed
            }
        }
    }

    /// Carries out a source's announcement of a vCPU, now or as a retry; a refusal is retried
    /// later. `opened` are its threads, as far as the source has opened them already.
    fn join(&mut self, mut join: Join, opened: Vec<Arc<Thread>>) {
        let key = (join.source, join.token);
        let ended = self.ended.remove(&key);
        if join.claim.is_none() && !self.tokens.contains_key(&key) {
            // All its threads had ended; now it has others.
            join.claim = ended;
        }
        let done = match join.claim {
            Some(claim) => self.joined(&join, claim, opened),
            None => self.changed(&join, opened),
        };
        match done {
            Ok(()) => self.joins.done(join.source, join.token),
            Err(error) => self.joins.refused(join, &error, monotonic_ns()),
        }
    }

    fn joined(&mut self, join: &Join, claim: Claim, opened: Vec<Arc<Thread>>) -> Result<()> {
        // Named by hand before: the same vCPU, now with a source for its I/O.
        let id = match join.vcpu.tids.iter().find_map(|&tid| self.find(tid)) {
            Some(id) => id,
            None if opened.is_empty() => self.add(join.vcpu.clone(), claim)?,
            None => self.add_opened(join.vcpu.clone(), claim, opened)?,
        };
        tracing::info!("{}: scheduled", join.vcpu.name);
        self.name_vcpu(join.source, join.token, id);
        Ok(())
    }

    fn changed(&mut self, join: &Join, opened: Vec<Arc<Thread>>) -> Result<()> {
        let Some(&id) = self.tokens.get(&(join.source, join.token)) else { return Ok(()) };
        let vcpu = &join.vcpu;
        let opened = match opened.is_empty() {
            true => self.open_new(id, vcpu)?,
            false => opened,
        };
        self.vehicle.bring(&opened);
        let changed = self.vehicle.change(id, vcpu);
        self.vehicle.bring(&[]);
        // Also what was refused is the vCPU's.
        if let Some(known) = self.vcpus.get_mut(&id) {
            // Threads that stay, stay open: the open file has the thread.
            known.clocks.retain(|thread| vcpu.tids.contains(&thread.tid()) && !thread.has_ended());
            let new =
                |thread: &Arc<Thread>| !known.clocks.iter().any(|old| old.tid() == thread.tid());
            let new: Vec<_> = opened.into_iter().filter(new).collect();
            known.clocks.extend(new);
            known.last = sum(&known.clocks);
            known.threads = vcpu.clone();
        }
        self.introduce(id);
        changed
    }

    /// Opens a vCPU's threads as they are now. Those that it did not have before are taken from
    /// other schedulers first.
    fn open_new(&self, id: VcpuId, vcpu: &VcpuThreads) -> Result<Vec<Arc<Thread>>> {
        let known = self.vcpus.get(&id).map_or(&[][..], |known| &known.clocks);
        let opened = open_all(vcpu)?;
        let is_known = |thread: &Thread| {
            known.iter().any(|old| (old.tid(), old.start()) == (thread.tid(), thread.start()))
        };
        for thread in opened.iter().filter(|thread| !is_known(thread)) {
            hold::take(thread, &vcpu.name)?;
        }
        Ok(opened)
    }

    /// Lets vCPUs go whose threads have ended, and tells the state.
    fn look_around(&mut self, now: u64) {
        let gone: Vec<VcpuId> =
            self.vcpus.keys().copied().filter(|&id| self.vehicle.is_gone(id)).collect();
        for id in gone {
            if let Some(vcpu) = self.vcpus.get(&id) {
                tracing::info!("{}: all its threads have ended; let go", vcpu.threads.name);
            }
            if let Err(error) = self.remove(id) {
                tracing::warn!("{}", describe(&error));
            }
        }
        for vcpu in self.vcpus.values_mut() {
            let clock = sum(&vcpu.clocks);
            let passed = state::us(now.saturating_sub(vcpu.last_at)).max(1.0);
            let part =
                |now: u64, before: u64| state::us(now.saturating_sub(before)) / passed * 100.0;
            vcpu.per_second =
                (part(clock.ran_ns, vcpu.last.ran_ns), part(clock.waited_ns, vcpu.last.waited_ns));
            vcpu.last = clock;
            vcpu.last_at = now;
        }
        let snapshot = self.snapshot(now);
        self.hub.publish(snapshot);
    }

    /// The state as it is now.
    pub fn state(&self, now: u64) -> DaemonState {
        self.snapshot(now).finished()
    }

    /// The state without the sorted parts.
    fn snapshot(&self, now: u64) -> Snapshot {
        let mut responses = Vec::with_capacity(self.vcpus.len());
        let all = self.used_by_all();
        let claims: Vec<_> =
            self.vcpus.values().map(|vcpu| (vcpu.claim, vcpu.is_stopped())).collect();
        let entitled = entitled::percents(&claims);
        let vcpus =
            self.vcpus.iter().zip(entitled).filter_map(|((&id, vcpu), entitled_percent)| {
                let account = self.vehicle.account(id)?;
                responses.push(vcpu.responses.clone());
                let since = state::us(all.saturating_sub(vcpu.joined_all_ns)).max(1e-3);
                Some(VcpuState {
                    name: vcpu.threads.name.clone(),
                    pid: vcpu.threads.pid,
                    index: vcpu.threads.index,
                    tids: vcpu.threads.tids.clone(),
                    user: vcpu.clocks.first().map_or(0, |thread| thread.user()),
                    weight: vcpu.claim.weight,
                    cpu_percent: vcpu.per_second.0,
                    ready_percent: vcpu.per_second.1,
                    share_percent: state::us(account.totals.used_ns) / since * 100.0,
                    entitled_percent,
                    ..VcpuState::of_account(&account, self.vehicle.is_held_back(id))
                })
            });
        let counters = self.sources.iter().flatten().flat_map(|source| source.counters());
        let counters = self.vehicle.counters().into_iter().chain(counters);
        let counters = counters.map(|counter| (counter.name.into(), counter.value));
        let counters = counters
            .chain(self.retries.as_ref().map(|retries| ("told_again".into(), retries.count())));
        let vcpus = vcpus.collect();
        let state = DaemonState {
            schema: state::SCHEMA.into(),
            time: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |time| time.as_secs_f64()),
            uptime: state::us(now.saturating_sub(self.began)) / 1e6,
            pid: std::process::id(),
            vehicle: self.vehicle.name().into(),
            policy: self.policy.clone(),
            completions: self.completions.name().into(),
            daemon_cpu: state::us(self.own_cpu_ns) / 1e6,
            counters: counters.collect(),
            budgets: self.vehicle.budgets(),
            vcpus,
        };
        Snapshot { state, responses }
    }
}

/// Opens threads. One of several may have ended since they were found; the vehicle says whether all
/// have.
fn open_all(vcpu: &VcpuThreads) -> Result<Vec<Arc<Thread>>> {
    let tids = adopt::first_of(vcpu);
    let mut opened = Vec::with_capacity(tids.len());
    for &tid in tids {
        match Thread::open(tid) {
            Ok(thread) => opened.push(Arc::new(thread)),
            Err(error) if error.kind() == ErrorKind::Gone && tids.len() > 1 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(opened)
}

fn sum(threads: &[Arc<Thread>]) -> Clock {
    let clocks = threads.iter().filter_map(|thread| thread.clock().ok());
    clocks.fold(Clock::default(), |sum, clock| Clock {
        ran_ns: sum.ran_ns + clock.ran_ns,
        waited_ns: sum.waited_ns + clock.waited_ns,
    })
}
