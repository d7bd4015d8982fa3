//! Back ends and the machines that they bring, on a separate thread.
//!
//! Arrivals and departures have to be looked up in `/proc`, which may take long and may wait for
//! locks of the processes concerned. The event loop is real-time, so it does none of that. This
//! ordinary thread does it, and sends orders to `BackEndEvents`, the loop's end, which hears the
//! lanes itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vlane_error::describe;
use vlane_hint::ProcessId;
use vlane_policy::loan::Claim;

use super::announced::Announced;
use super::back_end_events::{BackEndEvents, Order, Orders};
use super::foreground::Foreground;
use super::source::Mark;
use super::state::Completions;
use super::storage_threads::StorageThreads;
use crate::discover::{self, Machine};
use crate::link::{Link, Notice, Registered, Registrar, SessionId};
use crate::realtime::monotonic_ns;
use crate::thread::{Thread, is_gone, process_of};
use crate::{Error, ErrorKind, Result, VcpuThreads, hold};

/// A machine whose vCPUs were not recognized is looked for again after so long: it may not have
/// made them yet.
const AGAIN_NS: u64 = 1_000_000_000;
/// And sooner while it is new. No reason is reported before that.
const SOON_NS: u64 = 100_000_000;
const NEW_NS: u64 = 2_000_000_000;
/// The pause when the system has no memory to wait with.
const SHORT: Duration = Duration::from_millis(100);

/// The limit of scheduled vCPU threads for a user other than root: the event loop looks at each of
/// them a hundred times a second.
const MAX_THREADS_PER_USER: usize = 1024;

/// Returns the owner's claim on a machine that a back end brings.
pub type Claims = Box<dyn Fn(ProcessId) -> Claim + Send>;

/// A machine that some sessions serve.
#[derive(Debug)]
struct Tracked {
    /// `None` until its vCPUs are found.
    machine: Option<Machine>,
    /// The announced vCPUs.
    announced: Announced,
    sessions: Vec<Registered>,
    look_at: u64,
    /// The reason why its vCPUs are not known was reported.
    told: bool,
    /// Since when they are looked for.
    since: u64,
    /// The excess of threads over the limit was reported.
    told_more: bool,
}

/// A vCPU that was announced to the loop.
#[derive(Debug)]
struct Joined {
    user: u32,
    /// The most threads that it may have.
    room: usize,
    threads: Vec<Arc<Thread>>,
}

/// Silences other sources' marks for back ends that announce their I/O themselves.
pub trait Silence: Send {
    /// Signals of the process `backend` to the machine that is process `machine` are ignored, or
    /// not any more.
    fn silence(&self, backend: u32, machine: u32, silent: bool);
}

/// The scheduler's end of all back ends.
pub struct Backends {
    registrar: Registrar,
    orders: Orders,
    /// The loop's end, until it is started.
    events: Option<BackEndEvents>,
    completions: Completions,
    /// Sessions with classes, while they decide which completions boost.
    foregrounds: HashMap<SessionId, Foreground>,
    claims: Claims,
    machines: BTreeMap<ProcessId, Tracked>,
    /// The storage threads of back ends.
    storage: StorageThreads,
    /// The token of each lane's marks.
    lanes: HashMap<(SessionId, u16), u64>,
    /// As the loop has it.
    sent_lanes: HashMap<(SessionId, u16), u64>,
    /// vCPUs that were announced to the loop, by token.
    joined: HashMap<u64, Joined>,
    /// vCPUs that their users have no room for, by token: whose, and as what each is to join once
    /// there is.
    refused: BTreeMap<u64, (u32, Mark)>,
    /// Users already informed that they have reached the limit.
    told_users: BTreeSet<u32>,
    next_token: u64,
    silence: Option<Box<dyn Silence>>,
}

impl std::fmt::Debug for Backends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backends")
            .field("registrar", &self.registrar)
            .field("machines", &self.machines)
            .finish()
    }
}

impl Backends {
    /// Back ends that register on `link`. Their `completions` boost.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(link: Link, completions: Completions, claims: Claims) -> Result<Self> {
        let (registrar, boards, file) = link.split();
        let (orders, events) = BackEndEvents::new(boards, file)?;
        Ok(Self {
            registrar,
            orders,
            events: Some(events),
            completions,
            foregrounds: HashMap::new(),
            claims,
            machines: BTreeMap::new(),
            storage: StorageThreads::of(BTreeSet::new()),
            lanes: HashMap::new(),
            sent_lanes: HashMap::new(),
            joined: HashMap::new(),
            refused: BTreeMap::new(),
            told_users: BTreeSet::new(),
            next_token: 1,
            silence: None,
        })
    }

    /// Starts the thread; what the event loop listens to from then on. It ends when that is
    /// dropped.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(mut self) -> Result<BackEndEvents> {
        let fail = |error| Error::caused_by(ErrorKind::Io, "no thread for registrations", error);
        let events =
            self.events.take().ok_or_else(|| Error::new(ErrorKind::Gone, "it runs already"))?;
        let stop = events.stop();
        std::thread::Builder::new()
            .name("sched-joins".into())
            .spawn(move || self.run(&stop))
            .map_err(fail)?;
        Ok(events)
    }

    fn run(mut self, stop: &OwnedFd) {
        let mut marks = Vec::new();
        loop {
            let turned = self.turn(&mut marks).and_then(|()| self.tell(&mut marks));
            let ended = turned.and_then(|()| self.wait(stop));
            match ended {
                Ok(false) => {}
                Ok(true) => return,
                Err(error) => return self.orders.fail(error),
            }
        }
    }

    /// Waits for an arrival, a departure, or the time to look at a machine; returns true if this
    /// thread is to end.
    fn wait(&self, stop: &OwnedFd) -> Result<bool> {
        let look = self.machines.values().map(|tracked| tracked.look_at).min();
        let look = look.map(|at| Duration::from_nanos(at.saturating_sub(monotonic_ns())));
        let registrar =
            self.registrar.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = look.into_iter().chain(registrar).min();
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        let registrar = self.registrar.fd();
        let mut fds =
            [PollFd::from_borrowed_fd(registrar, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!fds[1].revents().is_empty()),
            Err(error) => {
                let error = std::io::Error::from(error);
                if vlane_socket::is_short(&error) {
                    std::thread::sleep(SHORT);
                    return Ok(false);
                }
                Err(Error::caused_by(ErrorKind::Io, "cannot wait for back ends", error))
            }
        }
    }

    /// Returns how many more threads a user may have scheduled, in addition to those of the vCPU
    /// with this token.
    fn room(&self, user: u32, token: u64) -> usize {
        if user == 0 {
            return discover::MAX_THREADS;
        }
        let others = self.joined.iter().filter(|(of, joined)| **of != token && joined.user == user);
        MAX_THREADS_PER_USER.saturating_sub(others.map(|(_, joined)| joined.room).sum())
    }

    /// Leaves a vCPU as many of its threads as its user has room for.
    fn fit(&mut self, user: u32, token: u64, vcpu: &mut VcpuThreads) -> usize {
        let wanted = vcpu.tids.len().min(discover::MAX_THREADS);
        let room = self.room(user, token).min(wanted);
        if room < wanted && self.told_users.insert(user) {
            tracing::warn!(
                "user {user} has {MAX_THREADS_PER_USER} threads of vCPUs scheduled; its others \
                 have to wait until one of these has left"
            );
        }
        vcpu.tids.truncate(room);
        room
    }

    /// Tells of vCPUs that had to wait, as far as there is room for them now.
    fn offer(&mut self) {
        let mut has: HashMap<u32, usize> = HashMap::new();
        for joined in self.joined.values() {
            *has.entry(joined.user).or_default() += joined.room;
        }
        let mut fits = |user: u32| {
            let has = has.entry(user).or_default();
            *has += 1;
            *has <= MAX_THREADS_PER_USER
        };
        let offered = self.refused.iter().filter(|(_, (user, _))| fits(*user));
        let offered: Vec<u64> = offered.map(|(&token, _)| token).collect();
        for token in offered {
            if let Some((_, mark)) = self.refused.remove(&token) {
                self.pass_on(mark);
            }
        }
    }

    /// Sends the loop a mark, with what it needs to follow it.
    fn pass_on(&mut self, mut mark: Mark) {
        let mut threads = Vec::new();
        match &mut mark {
            Mark::Joined { token, vcpu, .. } | Mark::Changed { token, vcpu } => {
                if let Some((_, Mark::Joined { vcpu: waits, .. })) = self.refused.get_mut(token) {
                    waits.clone_from(vcpu);
                    return;
                }
                if let Some(user) = self.joined.get(token).map(|joined| joined.user) {
                    let room = self.fit(user, *token, vcpu);
                    if let Some(joined) = self.joined.get_mut(token) {
                        joined.room = room;
                        // A failure here is tried once more by the daemon, which says why. The
                        // threads that were taken stay taken.
                        if let Ok(opened) = opened(vcpu, &joined.threads) {
                            joined.threads.clone_from(&opened);
                            threads = opened;
                        }
                    }
                } else if let Some(user) = user_of(vcpu.pid) {
                    let (all, token) = (vcpu.tids.clone(), *token);
                    let room = self.fit(user, token, vcpu);
                    if room == 0 {
                        vcpu.tids = all;
                        self.refused.insert(token, (user, mark));
                        return;
                    }
                    threads = opened(vcpu, &[]).unwrap_or_default();
                    self.joined.insert(token, Joined { user, room, threads: threads.clone() });
                }
            }
            Mark::Left { token } => {
                self.joined.remove(token);
                // The loop has never heard of it.
                if self.refused.remove(token).is_some() {
                    return;
                }
            }
            Mark::Storage { token, back_end, .. } => {
                threads = self.storage.open(*token, back_end);
            }
            Mark::Event { .. } | Mark::Served { .. } => {}
        }
        self.orders.send(Order::Mark(mark, threads));
    }

    /// Sends the loop what was found out.
    fn tell(&mut self, marks: &mut Vec<Mark>) -> Result<()> {
        if self.lanes != self.sent_lanes {
            self.sent_lanes.clone_from(&self.lanes);
            self.orders.send(Order::Lanes(self.lanes.clone()));
        }
        let left = marks.iter().any(|mark| matches!(mark, Mark::Left { .. }));
        for mark in marks.drain(..) {
            self.pass_on(mark);
        }
        if left && !self.refused.is_empty() {
            self.offer();
        }
        self.orders.ring();
        Ok(())
    }

    /// Keeps the watcher of eventfds from reporting these back ends' events too.
    pub fn silence(&mut self, silence: Box<dyn Silence>) {
        self.silence = Some(silence);
    }

    /// Puts the storage threads of these users' back ends before vCPUs.
    pub fn raise_storage_threads_of(&mut self, users: BTreeSet<u32>) {
        self.storage = StorageThreads::of(users);
    }

    /// Schedules the vCPUs of a machine that no back end has brought (yet).
    pub fn expect(&mut self, process: ProcessId) {
        self.registrar.name(process);
        self.track(process);
    }

    /// Expects a machine whose vCPUs are known already.
    pub fn expect_machine(&mut self, machine: Machine) {
        let process = machine.process();
        self.registrar.name(process);
        self.track(process).machine = Some(machine);
    }

    fn track(&mut self, process: ProcessId) -> &mut Tracked {
        self.machines.entry(process).or_insert_with(|| Tracked {
            machine: None,
            announced: Announced::default(),
            sessions: Vec::new(),
            look_at: 0,
            told: false,
            since: monotonic_ns(),
            told_more: false,
        })
    }

    fn notice(&mut self, notice: Notice, marks: &mut Vec<Mark>) {
        match notice {
            Notice::Joined(registered) => {
                tracing::info!("{}: its back end reports its I/O", registered.name);
                if self.completions == Completions::Express && !registered.has_express {
                    tracing::warn!(
                        "{}: none of its requests is ever express, so its completions never \
                         boost; start its `vlane serve` with --classes order, shortest or on, or \
                         the scheduler with --completions auto",
                        registered.name
                    );
                }
                let process = registered.process;
                if let Some(silence) = &self.silence {
                    silence.silence(registered.backend, process.pid, true);
                }
                let tracked = self.track(process);
                tracked.sessions.push(registered);
                tracked.look_at = 0;
                self.look(process, marks);
            }
            Notice::Left { session, why } => {
                self.let_go(session);
                let mut back_end = None;
                for tracked in self.machines.values_mut() {
                    if let Some(at) =
                        tracked.sessions.iter().position(|known| known.session == session)
                    {
                        // The machine may live on, with another back end: it is let go when its
                        // process ends.
                        let left = tracked.sessions.remove(at);
                        tracing::info!("{}: {why}", left.name);
                        back_end = Some(left.backend);
                        let others =
                            tracked.sessions.iter().any(|other| other.backend == left.backend);
                        if let Some(silence) = self.silence.as_ref().filter(|_| !others) {
                            silence.silence(left.backend, left.process.pid, false);
                        }
                    }
                }
                marks.extend(back_end.and_then(|back_end| self.forget_storage(back_end)));
            }
            Notice::Refused { why } => tracing::warn!("a back end was refused: {why}"),
        }
    }

    /// Looks at the storage threads of a machine's back ends.
    fn look_at_storage(&mut self, process: ProcessId, marks: &mut Vec<Mark>) {
        let Some(tracked) = self.machines.get(&process) else { return };
        let back_ends: BTreeSet<u32> =
            tracked.sessions.iter().map(|registered| registered.backend).collect();
        for back_end in back_ends {
            // Of several machines, the first pays.
            let payer = self.machines_of(back_end).next().unwrap_or(process);
            let vm = (self.claims)(payer).vm;
            let next = &mut self.next_token;
            let token = || {
                *next += 1;
                *next - 1
            };
            marks.extend(self.storage.look(back_end, vm, monotonic_ns(), token));
        }
    }

    /// The machines that a back end serves.
    fn machines_of(&self, back_end: u32) -> impl Iterator<Item = ProcessId> + '_ {
        let serves = move |tracked: &Tracked| {
            tracked.sessions.iter().any(|registered| registered.backend == back_end)
        };
        let served = self.machines.iter().filter(move |(_, tracked)| serves(tracked));
        served.map(|(&process, _)| process)
    }

    /// The mark that lets a back end's storage threads go, if it serves nobody any more.
    fn forget_storage(&mut self, back_end: u32) -> Option<Mark> {
        let is_serving = self.machines_of(back_end).next().is_some();
        if is_serving { None } else { self.storage.forget(back_end) }
    }

    fn let_go(&mut self, session: SessionId) {
        self.foregrounds.remove(&session);
        self.lanes.retain(|(of, _), _| *of != session);
        self.orders.send(Order::Gone(session));
    }

    /// Looks at a machine: finds its vCPUs, or whether they have changed, or ended.
    fn look(&mut self, process: ProcessId, marks: &mut Vec<Mark>) {
        let now = monotonic_ns();
        let Some(tracked) = self.machines.get_mut(&process) else { return };
        for registered in &tracked.sessions {
            if let Some(foreground) = self.foregrounds.get_mut(&registered.session) {
                foreground.look(now);
            }
        }
        let looked = match &mut tracked.machine {
            Some(machine) => machine.refresh(),
            None => Machine::find(process).map(|machine| {
                tracked.machine = Some(machine);
                true
            }),
        };
        if let Some(machine) = tracked.machine.as_ref().filter(|machine| machine.has_more())
            && !std::mem::replace(&mut tracked.told_more, true)
        {
            tracing::warn!(
                "process {}: only {} of its vCPUs, and of each {} threads, are scheduled; the \
                 others have no boosts",
                process.pid,
                machine.vcpus().len(),
                discover::MAX_THREADS
            );
        }
        match looked {
            Ok(_) => {
                let every = tracked.machine.as_ref().map(Machine::look_every).unwrap_or_default();
                tracked.look_at = now + u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
                self.name_vcpus(process, marks);
                self.look_at_storage(process, marks);
            }
            Err(error) if error.kind() == ErrorKind::Gone => {
                tracing::info!("{}", describe(&error));
                let Some(tracked) = self.machines.remove(&process) else { return };
                marks.extend(tracked.announced.tokens().map(|token| Mark::Left { token }));
                for registered in tracked.sessions {
                    if let Some(silence) = &self.silence {
                        silence.silence(registered.backend, process.pid, false);
                    }
                    self.registrar.dismiss(registered.session);
                    self.let_go(registered.session);
                    marks.extend(self.forget_storage(registered.backend));
                }
            }
            Err(error) => {
                // QEMU names its threads when it makes them, a moment after its front end has
                // connected.
                let is_new = now < tracked.since + NEW_NS;
                tracked.look_at = now + if is_new { SOON_NS } else { AGAIN_NS };
                if !tracked.told && !is_new {
                    tracked.told = true;
                    tracing::warn!("{}", describe(&error));
                }
            }
        }
    }

    /// Tells which vCPUs have come and gone, and gives lanes their tokens.
    fn name_vcpus(&mut self, process: ProcessId, marks: &mut Vec<Mark>) {
        let Some(Tracked { machine: Some(machine), announced, sessions, .. }) =
            self.machines.get_mut(&process)
        else {
            return;
        };
        let next = &mut self.next_token;
        let token = || {
            *next += 1;
            *next - 1
        };
        announced.compare(machine.vcpus(), token, || (self.claims)(process), marks);
        for registered in sessions {
            for (lane, &index) in (0_u16..).zip(&registered.vcpus) {
                let lane = (registered.session, lane);
                match machine.vcpu(index).and_then(|vcpu| announced.token(vcpu.index)) {
                    Some(token) => self.lanes.insert(lane, token),
                    // Not plugged in, or no longer.
                    None => self.lanes.remove(&lane),
                };
            }
        }
    }

    /// Handles arrivals and departures, and looks at one machine.
    fn turn(&mut self, marks: &mut Vec<Mark>) -> Result<()> {
        let notices = self.registrar.poll()?;
        for (session, board) in self.registrar.boards() {
            board.arm(self.completions.classes());
            if self.completions == Completions::Auto && board.has_express() {
                self.foregrounds.insert(session, Foreground::new(Arc::clone(board.board())));
            }
            self.orders.send(Order::SessionBoard(session, Box::new(board)));
        }
        for notice in notices {
            self.notice(notice, marks);
        }
        // One machine at a time: arrivals and departures must not wait for a look at all of them.
        let now = monotonic_ns();
        let due = self.machines.iter().filter(|(_, tracked)| tracked.look_at <= now);
        if let Some(process) =
            due.min_by_key(|(_, tracked)| tracked.look_at).map(|(&process, _)| process)
        {
            self.look(process, marks);
        }
        Ok(())
    }
}

/// The user that a vCPU counts for; none if its process has ended: the daemon finds that out. A
/// vCPU with an unknown user is bounded all the same.
fn user_of(pid: u32) -> Option<u32> {
    match process_of(pid) {
        Ok((_, user)) => Some(user),
        Err(error) if is_gone(&error) => None,
        Err(_) => Some(u32::MAX),
    }
}

/// A vCPU's threads, opened and taken for this scheduler; those that are `known` already as they
/// are.
fn opened(vcpu: &VcpuThreads, known: &[Arc<Thread>]) -> Result<Vec<Arc<Thread>>> {
    let mut opened = Vec::with_capacity(vcpu.tids.len());
    for &tid in &vcpu.tids {
        if let Some(thread) = known.iter().find(|thread| thread.tid() == tid && !thread.has_ended())
        {
            opened.push(Arc::clone(thread));
            continue;
        }
        match Thread::open(tid) {
            Ok(thread) => {
                hold::take(&thread, &vcpu.name)?;
                opened.push(Arc::new(thread));
            }
            Err(error) if error.kind() == ErrorKind::Gone => {}
            Err(error) => return Err(error),
        }
    }
    Ok(opened)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use vlane_hint::{Change, Classes, Client, Guest};

    use super::super::source::Source;
    use super::*;

    /// Returns the classes that a back end is to report, before and after an express completion.
    fn armed(completions: Completions, has_express: bool) -> [Classes; 2] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let link = Link::bind(&path, 0o600).unwrap();
        let claims = Box::new(|process: ProcessId| Claim::of(process.pid));
        let mut backends = Backends::new(link, completions, claims).unwrap();
        let process = ProcessId::of(std::process::id()).unwrap();
        let guest = Guest { process, vcpus: vec![0], name: "it".into(), has_express };
        let mut client = Client::new(vec![path], guest, true, Instant::now());
        let limit = Instant::now() + Duration::from_secs(10);
        let board = loop {
            if let Some(Change::Joined(board, _)) = client.turn(Instant::now()) {
                break board;
            }
            backends.turn(&mut Vec::new()).unwrap();
            assert!(Instant::now() < limit, "it never registers");
        };
        let before = board.armed();
        board.note_express();
        backends.look(process, &mut Vec::new());
        [before, board.armed()]
    }

    #[test]
    fn classes_choose_the_completions_that_boost() {
        let (all, express) = (Classes::ALL, Classes::EXPRESS);
        assert_eq!(armed(Completions::default(), true), [all, express]);
        assert_eq!(armed(Completions::Auto, false), [all, all]);
        assert_eq!(armed(Completions::All, true), [all, all]);
        assert_eq!(armed(Completions::Express, true), [express, express]);
        assert_eq!(armed(Completions::Express, false), [express, express]);
    }

    #[test]
    fn machine_over_user_limit_waits_for_room() {
        let dir = tempfile::tempdir().unwrap();
        let link = Link::bind(&dir.path().join("s"), 0o600).unwrap();
        let mut backends =
            Backends::new(link, Completions::All, Box::new(|process| Claim::of(process.pid)))
                .unwrap();
        let mut events = backends.events.take().unwrap();
        let mut command = Command::new("sleep");
        if rustix::process::geteuid().is_root() {
            command.uid(65534);
        }
        let mut machine = command.arg("60").spawn().unwrap();
        let pid = machine.id();
        let (_, user) = process_of(pid).unwrap();
        for token in 1000.. {
            if backends.joined.len() == MAX_THREADS_PER_USER {
                break;
            }
            backends.joined.insert(token, Joined { user, room: 1, threads: Vec::new() });
        }
        let vcpu = |name: &str, tids| VcpuThreads { pid, index: 0, tids, name: name.into() };
        let joined = |token, name: &str| Mark::Joined {
            token,
            vcpu: vcpu(name, vec![pid]),
            claim: Claim::of(pid),
        };
        let mut tell = |mut marks: Vec<Mark>| {
            backends.tell(&mut marks).unwrap();
            events.collect(&mut marks).unwrap();
            marks
        };
        assert_eq!(tell(vec![joined(1, "it"), joined(2, "other")]), []);
        assert_eq!(tell(vec![Mark::Changed { token: 1, vcpu: vcpu("later", vec![pid]) }]), []);
        // It was never announced.
        assert_eq!(tell(vec![Mark::Left { token: 2 }]), []);
        let left = Mark::Left { token: 1000 };
        assert_eq!(tell(vec![left.clone()]), [left, joined(1, "later")]);
        assert_eq!(events.opened(1).len(), 1);

        machine.kill().unwrap();
        machine.wait().unwrap();
    }
}
