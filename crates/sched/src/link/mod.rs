//! Where back ends register: the scheduler's end of what [`vlane_hint`] describes.
//!
//! It has two halves. The [`Door`] accepts back ends and checks what they say of themselves, which takes reads of `/proc`: it belongs to
//! an ordinary thread. The [`Ears`] hold the boards of those that were let in, and hear what their lanes tell: they belong to
//! the event loop, which is real-time, and nothing in them waits. A [`Link`] is both, for one thread.
//!
//! Back ends are less privileged than the scheduler, and may be hostile. One may register only processes of its own user; it gets
//! an eventfd of its own, so that it cannot take away the wake-ups of others; what it writes to its board is only numbers; how often it is
//! heard is bounded; it costs its own session at most.

mod ears;

pub use ears::{Ear, Ears};

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use vlane_hint::message::{Hello, Message};
use vlane_hint::{Board, Classes, HintError, Mark, ProcessId, Watch};
use vlane_socket::{Access, Kind, ListenError, Place, SocketFile, printable};

use crate::discover;
use crate::{Error, ErrorKind, Result};

/// Sessions at a time; and how many of them one user may have who is not root.
const MAX_SESSIONS: usize = 4096;
const MAX_PER_USER: usize = 512;
/// How long who has connected may take to say who it is.
const HELLO: Duration = Duration::from_secs(5);
/// What is told apart in one look; more is told at the next.
const EVENTS: usize = 256;
const LISTENER: u64 = 0;

/// A back end's session, as long as the scheduler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// A session that tells of completions from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// Which.
    pub session: SessionId,
    /// The virtual machine's process.
    pub process: ProcessId,
    /// The back end's.
    pub backend: u32,
    /// The user of both.
    pub user: u32,
    /// For each lane, its vCPU, from 0. The back end says so: there may be no such vCPU.
    pub vcpus: Vec<u32>,
    /// What people call the volume, as it may be printed.
    pub name: String,
    /// Whether any of the volume's requests may be express. The back end says so; one from before there were classes says no.
    pub has_express: bool,
}

/// Who came and went.
#[derive(Debug)]
pub enum Notice {
    /// A session has registered; its board is off until [`Link::arm`].
    Joined(Registered),
    /// A session has ended, or its back end died, or broke the rules. Nothing more comes from it.
    Left {
        /// Which.
        session: SessionId,
        /// Why, for people.
        why: String,
    },
    /// Somebody was turned away.
    Refused {
        /// Why, for people.
        why: String,
    },
}

#[derive(Debug)]
struct Session {
    socket: OwnedFd,
    /// The back end's process and user.
    pid: u32,
    uid: u32,
    /// Until it has said who it is.
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Silent { until: Instant },
    Registered,
}

/// The scheduler's socket, and all sessions. Has one descriptor to wait for, and nothing in it waits.
#[derive(Debug)]
pub struct Door {
    socket: OwnedFd,
    epoll: OwnedFd,
    sessions: BTreeMap<u64, Session>,
    /// Of those that were let in since they were last taken.
    ears: Vec<(SessionId, Ear)>,
    next: u64,
}

/// Both halves. The loop around it: when [`Link::fd`] is readable, or [`Link::deadline`] has come, call [`Link::poll`] for who came and went,
/// then [`Link::collect`] for what lanes have told.
#[derive(Debug)]
pub struct Link {
    door: Door,
    ears: Ears,
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
    /// Listens on `path`, with file mode `mode`: who may write to it may register. A socket that a dead scheduler left is replaced.
    ///
    /// # Errors
    /// Another scheduler listens there, something else is there, or the system refuses.
    pub fn bind(path: &Path, mode: u32) -> Result<Link> {
        Self::bind_for(path, Access::Exactly { mode, group: None })
    }

    /// The same for those whom `access` names.
    ///
    /// # Errors
    /// As [`Link::bind`].
    pub fn bind_for(path: &Path, access: Access) -> Result<Link> {
        let place = Place::new(path, "--listen", "scheduler").kind(Kind::Packets);
        let (socket, file) =
            SocketFile::listen(&place.access(access).making_directory()).map_err(not_listening)?;
        let refused = || io(format!("{}: cannot listen", path.display()));
        let new_epoll = || epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused());
        let door = Door { epoll: new_epoll()?, socket, sessions: BTreeMap::new(), ears: Vec::new(), next: 1 };
        watch(&door.epoll, &door.socket, LISTENER).map_err(refused())?;
        let (ears, epoll) = (Ears::new()?, new_epoll()?);
        watch(&epoll, &door.epoll, 0).map_err(refused())?;
        watch(&epoll, &ears, 1).map_err(refused())?;
        Ok(Link { door, ears, epoll, file })
    }

    /// The two halves, for two threads, and the socket's file, which is removed when it is dropped.
    pub fn split(self) -> (Door, Ears, SocketFile) {
        (self.door, self.ears, self.file)
    }

    /// Readable when [`Link::poll`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// When [`Link::poll`] has something to do, if the descriptor does not say so before.
    pub fn deadline(&self) -> Option<Instant> {
        let heard = self
            .ears
            .deadline()
            .map(|at| Instant::now() + Duration::from_nanos(at.saturating_sub(vlane_hint::now())));
        self.door.deadline().into_iter().chain(heard).min()
    }

    /// Who came and went. Does not wait.
    ///
    /// # Errors
    /// The system refuses.
    pub fn poll(&mut self) -> Result<Vec<Notice>> {
        let notices = self.door.poll()?;
        for (session, ear) in self.door.ears() {
            self.ears.add(session, ear)?;
        }
        for notice in &notices {
            if let Notice::Left { session, .. } = notice {
                self.ears.remove(*session);
            }
        }
        self.ears.look(vlane_hint::now())?;
        Ok(notices)
    }

    /// As [`Ears::arm`].
    pub fn arm(&mut self, session: SessionId, classes: Classes) {
        self.ears.arm(session, classes);
    }

    /// As [`Ears::collect`].
    pub fn collect(&mut self, now: u64) -> impl Iterator<Item = (SessionId, u16, Mark)> + '_ {
        self.ears.collect(now)
    }

    /// As [`Door::dismiss`].
    pub fn dismiss(&mut self, session: SessionId) {
        self.door.dismiss(session);
        self.ears.remove(session);
    }
}

impl Door {
    /// Readable when [`Door::poll`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Those of the sessions that have joined since this was last called.
    pub fn ears(&mut self) -> Vec<(SessionId, Ear)> {
        std::mem::take(&mut self.ears)
    }

    /// When [`Door::poll`] has something to do, if the descriptor does not say so before.
    pub fn deadline(&self) -> Option<Instant> {
        let silent = self.sessions.values().filter_map(|session| match session.stage {
            Stage::Silent { until } => Some(until),
            Stage::Registered => None,
        });
        silent.min()
    }

    /// Who came and went. Does not wait.
    ///
    /// # Errors
    /// The system refuses.
    pub fn poll(&mut self) -> Result<Vec<Notice>> {
        let mut notices = Vec::new();
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
        let late = |session: &Session| matches!(session.stage, Stage::Silent { until } if until <= now);
        let before = self.sessions.len();
        self.sessions.retain(|_, session| !late(session));
        for _ in self.sessions.len()..before {
            notices.push(Notice::Refused { why: "a back end connected and said nothing".to_owned() });
        }
        Ok(notices)
    }

    fn accept(&mut self, notices: &mut Vec<Notice>) {
        let mut refuse = |socket: Option<OwnedFd>, why: String| {
            if let Some(socket) = socket {
                let _ = Message::Refused(why.clone()).send(&socket, None);
            }
            notices.push(Notice::Refused { why });
        };
        // A few at a time: the others have their turn.
        for _ in 0..16 {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(errno) => return refuse(None, format!("a connection cannot be accepted: {errno}")),
            };
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else { continue };
            let (pid, uid) = (peer.pid.as_raw_nonzero().get().unsigned_abs(), peer.uid.as_raw());
            let same = self.sessions.values().filter(|session| session.uid == uid).count();
            if self.sessions.len() >= MAX_SESSIONS || (same >= MAX_PER_USER && uid != 0) {
                refuse(Some(socket), format!("too many sessions (user {uid} has {same})"));
                continue;
            }
            let id = self.next;
            if watch(&self.epoll, &socket, id).is_err() {
                refuse(Some(socket), "out of memory".to_owned());
                continue;
            }
            self.next += 1;
            let stage = Stage::Silent { until: Instant::now() + HELLO };
            self.sessions.insert(id, Session { socket, pid, uid, stage });
        }
    }

    /// A back end says something, or hangs up.
    fn hear(&mut self, id: u64, notices: &mut Vec<Notice>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let heard = Message::receive(&session.socket);
        if let Stage::Registered = session.stage {
            let why = match heard {
                Ok(None) => return,
                Ok(Some(_)) => "it said what nobody asked".to_owned(),
                Err(HintError::HungUp) => "its back end hung up".to_owned(),
                Err(error) => chain(&error),
            };
            // Closing its descriptor takes it out of the epoll, too.
            self.sessions.remove(&id);
            return notices.push(Notice::Left { session: SessionId(id), why });
        }
        let registered = match heard {
            Ok(None) => return,
            Ok(Some((Message::Hello(hello), Some(board)))) => {
                register(session, &hello, &board).map(|ear| (hello, ear))
            }
            Ok(Some(_)) => Err("it does not say who it is".to_owned()),
            Err(HintError::HungUp) => {
                self.sessions.remove(&id);
                return;
            }
            Err(error) => Err(chain(&error)),
        };
        match registered {
            Ok((Hello { process, vcpus, name }, ear)) => {
                session.stage = Stage::Registered;
                let (session, backend, user) = (SessionId(id), session.pid, ear.user());
                let (name, has_express) = (printable(&name).to_string(), ear.has_express());
                self.ears.push((session, ear));
                let registered = Registered { session, process, backend, user, vcpus, name, has_express };
                notices.push(Notice::Joined(registered));
            }
            Err(why) => {
                let _ = Message::Refused(why.clone()).send(&session.socket, None);
                self.sessions.remove(&id);
                notices.push(Notice::Refused { why });
            }
        }
    }

    /// Ends a session from this side, for example because its machine is gone. Its back end will try again.
    pub fn dismiss(&mut self, session: SessionId) {
        self.sessions.remove(&session.0);
        self.ears.retain(|(new, _)| *new != session);
    }
}

fn watch(epoll: &OwnedFd, fd: &impl AsFd, token: u64) -> rustix::io::Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
}

/// Checks what a back end says of itself, and welcomes it.
fn register(session: &Session, hello: &Hello, board: &OwnedFd) -> std::result::Result<Ear, String> {
    let pid = hello.process.pid;
    let owner = discover::user_of(hello.process).map_err(|error| error.to_string())?;
    if session.uid != 0 && owner != Some(session.uid) {
        return Err(format!("process {pid} does not belong to the back end's user {}", session.uid));
    }
    let lanes = u16::try_from(hello.vcpus.len()).unwrap_or(u16::MAX);
    let board = Board::open(board.as_fd(), lanes).map_err(|error| chain(&error))?;
    let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| format!("no eventfd: {errno}"))?;
    Message::Welcome.send(&session.socket, Some(wake.as_fd())).map_err(|error| chain(&error))?;
    Ok(Ear::new(session.uid, wake, Watch::new(board)))
}

fn chain(error: &HintError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
