//! Registration of back ends: the scheduler's end of the protocol in [`vlane_hint`].
//!
//! The scheduler's end has two halves. The [`Registrar`] accepts back ends and checks their claims,
//! which takes reads of `/proc`: it belongs to an ordinary thread. The [`SessionBoards`] hold the
//! boards of admitted back ends, and read their lanes' events. The boards belong to the event loop,
//! which is real-time, and never wait. A [`Link`] is both, for one thread.
//!
//! Back ends are less privileged than the scheduler, and may be hostile. One may register only
//! processes of its own user. It gets a separate eventfd, so that it cannot take away the wake-ups
//! of others. Its board holds only numbers, and a limit bounds how often it is heard. At worst it
//! loses its own session.

mod boards;

pub use boards::{SessionBoard, SessionBoards};

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use vlane_error::describe;
use vlane_hint::message::{Hello, Message};
use vlane_hint::{Board, BoardReader, Classes, HintError, Mark, ProcessId};
use vlane_socket::{
    Access, ListenError, Place, Shortage, SocketFile, SocketKind, is_scarce, no_descriptor,
    printable,
};

use crate::discover;
use crate::{Error, ErrorKind, Result};

/// Sessions at a time; and the limit for one user other than root.
const MAX_SESSIONS: usize = 4096;
const MAX_PER_USER: usize = 512;
/// Sessions that are reserved for root and the scheduler's own user: others cannot shut them out,
/// however many they are.
const RESERVED: usize = 512;
/// The number of users remembered whose machines were refused, so that each is informed once.
const MAX_TOLD: usize = 1024;
/// The time that a new connection has to identify itself.
const HELLO: Duration = Duration::from_secs(5);
/// Events distinguished in one look; the others are found at the next.
const EVENTS: usize = 256;
const LISTENER: u64 = 0;

/// The users whose machines are adopted when a back end registers them. A machine that was named is
/// adopted in any case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Adoption {
    /// Every user's, as far as the socket's mode lets back ends register.
    #[default]
    All,
    /// Machines of these users.
    Users(BTreeSet<u32>),
}

impl Adoption {
    /// Returns true if a machine is adopted whose process has this user; `None`: its user IDs
    /// differ.
    fn includes(&self, owner: Option<u32>) -> bool {
        match self {
            Adoption::All => true,
            Adoption::Users(users) => owner.is_some_and(|owner| users.contains(&owner)),
        }
    }
}

/// Returns true if there is room for one more session of a user, in addition to `all` sessions of
/// which `same` are that user's. `own`: the scheduler's user.
fn has_room(all: usize, same: usize, user: u32, own: u32) -> bool {
    if user == 0 || user == own {
        return all < MAX_SESSIONS;
    }
    all + RESERVED < MAX_SESSIONS && same < MAX_PER_USER
}

/// A back end's session, as long as the scheduler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// A session that tells of completions from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The session.
    pub session: SessionId,
    /// The virtual machine's process.
    pub process: ProcessId,
    /// The back end's.
    pub backend: u32,
    /// The user of both.
    pub user: u32,
    /// For each lane, its vCPU, from 0. The back end says so: there may be no such vCPU.
    pub vcpus: Vec<u32>,
    /// The volume's name for people, as it may be printed.
    pub name: String,
    /// True if any of the volume's requests may be express. The back end says so; one from before
    /// there were classes says no.
    pub has_express: bool,
}

/// Arrivals and departures of back ends.
#[derive(Debug)]
pub enum Notice {
    /// A session has registered; its board is off until [`Link::arm`].
    Joined(Registered),
    /// A session has ended, or its back end died, or broke the rules. No more events come from it.
    Left {
        /// The session.
        session: SessionId,
        /// The reason, for people.
        why: String,
    },
    /// A back end was turned away.
    Refused {
        /// The reason, for people.
        why: String,
    },
}

#[derive(Debug)]
struct Session {
    socket: OwnedFd,
    /// The back end's process and user.
    pid: u32,
    uid: u32,
    /// The stage of its introduction.
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Silent { until: Instant },
    Registered,
}

/// The scheduler's socket, and all sessions. Has one descriptor to wait for, and never waits
/// itself.
#[derive(Debug)]
pub struct Registrar {
    socket: OwnedFd,
    epoll: OwnedFd,
    sessions: BTreeMap<u64, Session>,
    /// The boards of the sessions admitted since they were last taken.
    boards: Vec<(SessionId, SessionBoard)>,
    next: u64,
    shortage: Shortage,
    adoption: Adoption,
    /// Machines that were named: adopted whatever user they belong to.
    named: BTreeSet<ProcessId>,
    /// Users already informed that their machines are not adopted.
    told: BTreeSet<Option<u32>>,
    /// The time until which no back end is accepted, because the system gives no descriptor.
    closed_until: Option<Instant>,
}

/// Both halves. The loop around it waits until [`Link::fd`] is readable, or [`Link::deadline`] has
/// come. Then it calls [`Link::poll`] for arrivals and departures, and [`Link::collect`] for the
/// lanes' events.
#[derive(Debug)]
pub struct Link {
    registrar: Registrar,
    boards: SessionBoards,
    epoll: OwnedFd,
    file: SocketFile,
}

fn io<E: Into<std::io::Error>>(context: String) -> impl FnOnce(E) -> Error {
    |error| {
        let error = error.into();
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Permission,
            _ => ErrorKind::Io,
        };
        Error::caused_by(kind, context, error)
    }
}

fn not_listening(error: ListenError) -> Error {
    let kind = match &error {
        ListenError::Permission { .. } | ListenError::Group { .. } => ErrorKind::Permission,
        ListenError::Io { .. } | ListenError::NoDirectory { .. } => ErrorKind::Io,
        _ => ErrorKind::Invalid,
    };
    let context = error.to_string();
    match error {
        ListenError::Group { source, .. } | ListenError::Io { source, .. } => {
            Error::caused_by(kind, context, source)
        }
        _ => Error::new(kind, context),
    }
}

impl Link {
    /// Listens on `path`, with file mode `mode`: any process that may write to it may register. A
    /// socket that a dead scheduler left is replaced.
    ///
    /// # Errors
    /// Another scheduler listens there, another file is there, or the system refuses.
    pub fn bind(path: &Path, mode: u32) -> Result<Link> {
        Self::bind_for(path, Access::Exactly { mode, group: None })
    }

    /// The same for users with `access`.
    ///
    /// # Errors
    /// As [`Link::bind`].
    pub fn bind_for(path: &Path, access: Access) -> Result<Link> {
        let place = Place::new(path, "--listen", "scheduler").kind(SocketKind::Packets);
        let (socket, file) =
            SocketFile::listen(&place.access(access).making_directory()).map_err(not_listening)?;
        let refused = || io(format!("{}: cannot listen", path.display()));
        let new_epoll = || epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused());
        let registrar = Registrar {
            epoll: new_epoll()?,
            socket,
            sessions: BTreeMap::new(),
            boards: Vec::new(),
            next: 1,
            shortage: Shortage::new(format!("{}: no back end is accepted", path.display())),
            adoption: Adoption::All,
            named: BTreeSet::new(),
            told: BTreeSet::new(),
            closed_until: None,
        };
        watch(&registrar.epoll, &registrar.socket, LISTENER).map_err(refused())?;
        let (boards, epoll) = (SessionBoards::new()?, new_epoll()?);
        watch(&epoll, &registrar.epoll, 0).map_err(refused())?;
        watch(&epoll, &boards, 1).map_err(refused())?;
        Ok(Link { registrar, boards, epoll, file })
    }

    /// Adopts only these users' machines, instead of all.
    pub fn adopting(mut self, adoption: Adoption) -> Link {
        self.registrar.adoption = adoption;
        self
    }

    /// The two halves, for two threads, and the socket's file, which is removed when it is dropped.
    pub fn split(self) -> (Registrar, SessionBoards, SocketFile) {
        (self.registrar, self.boards, self.file)
    }

    /// Readable when [`Link::poll`] has work.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The next time for [`Link::poll`], unless the descriptor is readable before.
    pub fn deadline(&self) -> Option<Instant> {
        let heard = self
            .boards
            .deadline()
            .map(|at| Instant::now() + Duration::from_nanos(at.saturating_sub(vlane_hint::now())));
        self.registrar.deadline().into_iter().chain(heard).min()
    }

    /// Returns arrivals and departures. Does not wait.
    ///
    /// # Errors
    /// The system refuses.
    pub fn poll(&mut self) -> Result<Vec<Notice>> {
        let notices = self.registrar.poll()?;
        for (session, board) in self.registrar.boards() {
            self.boards.add(session, board);
        }
        for notice in &notices {
            if let Notice::Left { session, .. } = notice {
                self.boards.remove(*session);
            }
        }
        self.boards.look(vlane_hint::now())?;
        Ok(notices)
    }

    /// As [`SessionBoards::arm`].
    pub fn arm(&mut self, session: SessionId, classes: Classes) {
        self.boards.arm(session, classes);
    }

    /// As [`SessionBoards::collect`].
    pub fn collect(&mut self, now: u64) -> impl Iterator<Item = (SessionId, u16, Mark)> + '_ {
        self.boards.collect(now)
    }

    /// As [`Registrar::dismiss`].
    pub fn dismiss(&mut self, session: SessionId) {
        self.registrar.dismiss(session);
        self.boards.remove(session);
    }
}

impl Registrar {
    /// Adopts a machine whatever user it belongs to.
    pub fn name(&mut self, machine: ProcessId) {
        self.named.insert(machine);
    }

    /// Readable when [`Registrar::poll`] has work.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns the boards of the sessions that have joined since the last call.
    pub fn boards(&mut self) -> Vec<(SessionId, SessionBoard)> {
        std::mem::take(&mut self.boards)
    }

    /// The next time for [`Registrar::poll`], unless the descriptor is readable before.
    pub fn deadline(&self) -> Option<Instant> {
        let silent = self.sessions.values().filter_map(|session| match session.stage {
            Stage::Silent { until } => Some(until),
            Stage::Registered => None,
        });
        silent.chain(self.closed_until).min()
    }

    /// Returns arrivals and departures. Does not wait.
    ///
    /// # Errors
    /// The system refuses.
    pub fn poll(&mut self) -> Result<Vec<Notice>> {
        let mut notices = Vec::new();
        self.open_again(Instant::now());
        let mut events = Vec::with_capacity(EVENTS);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(io("cannot wait for back ends".to_owned())(errno)),
        }
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(&mut notices),
                id => self.hear(id, &mut notices),
            }
        }
        let now = Instant::now();
        let late =
            |session: &Session| matches!(session.stage, Stage::Silent { until } if until <= now);
        let before = self.sessions.len();
        self.sessions.retain(|_, session| !late(session));
        for _ in self.sessions.len()..before {
            notices.push(Notice::Refused {
                why: "a back end connected and sent no message".to_owned(),
            });
        }
        Ok(notices)
    }

    /// Accepts no back end for a while: the socket stays readable, and would keep this thread busy.
    fn close_for_now(&mut self, error: &std::io::Error) {
        let _ = epoll::delete(&self.epoll, &self.socket);
        self.closed_until = Some(self.shortage.refused(error, Instant::now()));
    }

    fn open_again(&mut self, now: Instant) {
        if self.closed_until.is_some_and(|until| until <= now) {
            match watch(&self.epoll, &self.socket, LISTENER) {
                Ok(()) => self.closed_until = None,
                Err(error) => self.closed_until = Some(self.shortage.refused(&error.into(), now)),
            }
        }
    }

    fn accept(&mut self, notices: &mut Vec<Notice>) {
        let mut refuse = |socket: OwnedFd, why: String| {
            let _ = Message::Refused(why.clone()).send(&socket, None);
            notices.push(Notice::Refused { why });
        };
        // A few at a time: the others have their turn.
        for _ in 0..16 {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(errno) => return self.close_for_now(&errno.into()),
            };
            if is_scarce(&socket) {
                // The last descriptors are for clients that ask for the state, and for looking at
                // machines.
                let why =
                    "the scheduler has no file descriptor left for one more session".to_owned();
                let _ = Message::Refused(why).send(&socket, None);
                return self.close_for_now(&no_descriptor());
            }
            self.shortage.passed(Instant::now());
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else { continue };
            let (pid, uid) = (peer.pid.as_raw_nonzero().get().unsigned_abs(), peer.uid.as_raw());
            let same = self.sessions.values().filter(|session| session.uid == uid).count();
            if !has_room(self.sessions.len(), same, uid, rustix::process::geteuid().as_raw()) {
                refuse(socket, format!("too many sessions (user {uid} has {same})"));
                continue;
            }
            let id = self.next;
            if watch(&self.epoll, &socket, id).is_err() {
                refuse(socket, "out of memory".to_owned());
                continue;
            }
            self.next += 1;
            let stage = Stage::Silent { until: Instant::now() + HELLO };
            self.sessions.insert(id, Session { socket, pid, uid, stage });
        }
    }

    /// Handles a back end's message, or its hang-up.
    fn hear(&mut self, id: u64, notices: &mut Vec<Notice>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let heard = Message::receive(&session.socket);
        if let Stage::Registered = session.stage {
            let why = match heard {
                Ok(None) => return,
                Ok(Some(_)) => "it sent an unexpected message".to_owned(),
                Err(HintError::HungUp) => "its back end hung up".to_owned(),
                Err(error) => describe(&error),
            };
            // Closing its descriptor takes it out of the epoll, too.
            self.sessions.remove(&id);
            return notices.push(Notice::Left { session: SessionId(id), why });
        }
        let registered = match heard {
            Ok(None) => return,
            Ok(Some((Message::Hello(hello), Some(board)))) => {
                let is_named = self.named.contains(&hello.process);
                let adopts = |owner| is_named || self.adoption.includes(owner);
                register(session, &hello, &board, adopts).map(|board| (hello, board))
            }
            Ok(Some(_)) => Err(Refusal::Other("it does not identify itself".to_owned())),
            Err(HintError::HungUp) => {
                self.sessions.remove(&id);
                return;
            }
            Err(error) => Err(Refusal::Other(describe(&error))),
        };
        match registered {
            Ok((Hello { process, vcpus, name }, board)) => {
                session.stage = Stage::Registered;
                let (session, backend, user) = (SessionId(id), session.pid, board.user());
                let (name, has_express) = (printable(&name).to_string(), board.has_express());
                self.boards.push((session, board));
                let registered =
                    Registered { session, process, backend, user, vcpus, name, has_express };
                notices.push(Notice::Joined(registered));
            }
            Err(refusal) => {
                let why = refusal.to_string();
                let _ = Message::Refused(why.clone()).send(&session.socket, None);
                self.sessions.remove(&id);
                // It retries all the time: each user is reported once.
                let is_known = match refusal {
                    Refusal::NotAdopted { owner, .. } => {
                        self.told.len() >= MAX_TOLD || !self.told.insert(owner)
                    }
                    Refusal::Other(_) => false,
                };
                if !is_known {
                    notices.push(Notice::Refused { why });
                }
            }
        }
    }

    /// Ends a session from this side, for example because its machine is gone. Its back end will
    /// try again.
    pub fn dismiss(&mut self, session: SessionId) {
        self.sessions.remove(&session.0);
        self.boards.retain(|(new, _)| *new != session);
    }
}

fn watch(epoll: &OwnedFd, fd: &impl AsFd, token: u64) -> rustix::io::Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
}

/// The reason to refuse a back end.
enum Refusal {
    /// This user's machines were not offered.
    NotAdopted {
        pid: u32,
        owner: Option<u32>,
    },
    Other(String),
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal::Other(why)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::NotAdopted { pid, owner: Some(owner) } => write!(
                f,
                "process {pid} belongs to user {owner}, whose machines this scheduler does not \
                 adopt: start it with --adopt {owner} or --adopt all, or name the machine with \
                 --pid"
            ),
            Refusal::NotAdopted { pid, owner: None } => write!(
                f,
                "process {pid} has several user IDs, and this scheduler adopts the machines of \
                 some users only: start it with --adopt all, or name the machine with --pid"
            ),
            Refusal::Other(why) => f.write_str(why),
        }
    }
}

/// Checks what a back end says of itself, and welcomes it. `adopts` is true if machines of a user
/// are adopted.
fn register(
    session: &Session,
    hello: &Hello,
    board: &OwnedFd,
    adopts: impl Fn(Option<u32>) -> bool,
) -> std::result::Result<SessionBoard, Refusal> {
    let pid = hello.process.pid;
    let owner = discover::user_of(hello.process).map_err(|error| error.to_string())?;
    if session.uid != 0 && owner != Some(session.uid) {
        return Err(format!(
            "process {pid} does not belong to the back end's user {}",
            session.uid
        )
        .into());
    }
    if !adopts(owner) {
        return Err(Refusal::NotAdopted { pid, owner });
    }
    let lanes = u16::try_from(hello.vcpus.len()).unwrap_or(u16::MAX);
    let board = Board::open(board.as_fd(), lanes).map_err(|error| describe(&error))?;
    let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| format!("no eventfd: {errno}"))?;
    Message::Welcome.send(&session.socket, Some(wake.as_fd())).map_err(|error| describe(&error))?;
    Ok(SessionBoard::new(session.uid, wake, BoardReader::new(board)))
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// Others register, in any order: root and the scheduler's own user find room for as many
        /// as are reserved.
        #[test]
        fn other_users_leave_root_its_places(users in proptest::collection::vec(1_u32..40, 20)) {
            let own = 7;
            let mut has = BTreeMap::<u32, usize>::new();
            let mut all = 0;
            for user in users.iter().cycle().take(3 * MAX_SESSIONS) {
                let same = has.entry(*user).or_default();
                if *user != own && has_room(all, *same, *user, own) {
                    (*same, all) = (*same + 1, all + 1);
                }
            }
            proptest::prop_assert!(has.values().all(|has| *has <= MAX_PER_USER));
            for n in 0..RESERVED / 2 {
                proptest::prop_assert!(has_room(all + 2 * n, n, 0, own), "root, {}", n);
                proptest::prop_assert!(has_room(all + 2 * n + 1, n, own, own), "its own, {}", n);
            }
        }
    }

    #[test]
    fn only_listed_users_are_adopted() {
        let some = Adoption::Users(BTreeSet::from([5]));
        let includes = [Some(5), Some(0), None].map(|owner| some.includes(owner));
        assert_eq!(includes, [true, false, false]);
        assert!(Adoption::All.includes(None));
    }
}
