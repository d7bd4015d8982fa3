//! Where back ends register: the scheduler's end of what [`vlane_hint`] describes.
//!
//! A [`Link`] has one descriptor to wait for, and nothing in it waits. The daemon's loop: when [`Link::fd`] is readable, or
//! [`Link::deadline`] has come, call [`Link::poll`] for who came and went, then [`Link::collect`] for what lanes have told.
//!
//! Back ends are less privileged than the scheduler, and may be hostile. One may register only processes of its own user; it gets
//! an eventfd of its own, so that it cannot take away the wake-ups of others; what it writes to its board is only numbers;
//! it costs its own session at most.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{IoSliceMut, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use vlane_hint::message::{Hello, Message};
use vlane_hint::{Board, Classes, HintError, Mark, ProcessId, Watch};

use crate::discover;
use crate::{Error, ErrorKind, Result};

/// Sessions at a time; and how many of them one user may have who is not root.
const MAX_SESSIONS: usize = 4096;
const MAX_PER_USER: usize = 512;
/// How long who has connected may take to say who it is.
const HELLO: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
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
    /// For each lane, its vCPU, from 0. The back end says so: there may be no such vCPU.
    pub vcpus: Vec<u32>,
    /// What people call the volume.
    pub name: String,
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
    Registered { wake: OwnedFd, watch: Watch },
}

/// The scheduler's socket, and all sessions.
#[derive(Debug)]
pub struct Link {
    path: PathBuf,
    /// The socket file's device and inode.
    made: Option<(u64, u64)>,
    socket: OwnedFd,
    epoll: OwnedFd,
    sessions: BTreeMap<u64, Session>,
    /// Those with something to collect.
    ready: BTreeSet<u64>,
    next: u64,
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

impl Link {
    /// Listens on `path`, with file mode `mode`: who may write to it may register. A socket that a dead scheduler left is replaced.
    ///
    /// # Errors
    /// Another scheduler listens there, something else is there, or the system refuses.
    pub fn bind(path: &Path, mode: u32) -> Result<Link> {
        let shown = path.display();
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)
                .map_err(io(format!("{}: cannot make the directory of the socket", directory.display())))?;
        }
        let address = SocketAddrUnix::new(path).map_err(io(format!("{shown}: cannot be a socket's path")))?;
        remove_stale(path, &address)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let refused = || io(format!("{shown}: cannot listen"));
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(refused())?;
        rustix::net::bind(&socket, &address).map_err(refused())?;
        // Nobody can connect before it listens.
        let metadata = fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .and_then(|()| fs::metadata(path))
            .map_err(io(format!("{shown}: cannot set who may connect")))?;
        rustix::net::listen(&socket, BACKLOG).map_err(refused())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused())?;
        watch(&epoll, &socket, LISTENER).map_err(refused())?;
        Ok(Link {
            path: path.to_owned(),
            made: Some((metadata.dev(), metadata.ino())),
            socket,
            epoll,
            sessions: BTreeMap::new(),
            ready: BTreeSet::new(),
            next: 1,
        })
    }

    /// Readable when [`Link::poll`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// When [`Link::poll`] has something to do, if the descriptor does not say so before.
    pub fn deadline(&self) -> Option<Instant> {
        let silent = self.sessions.values().filter_map(|session| match session.stage {
            Stage::Silent { until } => Some(until),
            Stage::Registered { .. } => None,
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
            let token = event.data.u64();
            match (token / 2, token % 2) {
                (LISTENER, _) => self.accept(&mut notices),
                (id, 0) => self.hear(id, &mut notices),
                (id, _) => self.woken(id),
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
            if watch(&self.epoll, &socket, 2 * id).is_err() {
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
        if let Stage::Registered { .. } = session.stage {
            let why = match heard {
                Ok(None) => return,
                Ok(Some(_)) => "it said what nobody asked".to_owned(),
                Err(HintError::HungUp) => "its back end hung up".to_owned(),
                Err(error) => chain(&error),
            };
            // Closing its descriptors takes them out of the epoll, too.
            self.sessions.remove(&id);
            self.ready.remove(&id);
            return notices.push(Notice::Left { session: SessionId(id), why });
        }
        let registered = match heard {
            Ok(None) => return,
            Ok(Some((Message::Hello(hello), Some(board)))) => {
                register(&self.epoll, id, session, &hello, &board).map(|stage| (hello, stage))
            }
            Ok(Some(_)) => Err("it does not say who it is".to_owned()),
            Err(HintError::HungUp) => {
                self.sessions.remove(&id);
                return;
            }
            Err(error) => Err(chain(&error)),
        };
        match registered {
            Ok((Hello { process, vcpus, name }, stage)) => {
                session.stage = stage;
                let (session, backend) = (SessionId(id), session.pid);
                notices.push(Notice::Joined(Registered { session, process, backend, vcpus, name }));
            }
            Err(why) => {
                let _ = Message::Refused(why.clone()).send(&session.socket, None);
                self.sessions.remove(&id);
                notices.push(Notice::Refused { why });
            }
        }
    }

    fn woken(&mut self, id: u64) {
        let Some(Session { stage: Stage::Registered { wake, .. }, .. }) = self.sessions.get(&id) else {
            return;
        };
        // Never waits, whatever the back end, which has the same file open, did to its mode or its count.
        let (mut count, current) = ([0; 8], u64::MAX);
        let _ =
            rustix::io::preadv2(wake, &mut [IoSliceMut::new(&mut count)], current, ReadWriteFlags::NOWAIT);
        self.ready.insert(id);
    }

    /// Lets a session's lanes mark completions of these classes from now on; [`Classes::NONE`]: no longer.
    pub fn arm(&mut self, session: SessionId, classes: Classes) {
        if let Some(Session { stage: Stage::Registered { watch, .. }, .. }) = self.sessions.get(&session.0) {
            watch.arm(classes);
            // It asks for wake-ups by looking.
            self.ready.insert(session.0);
        }
    }

    /// What lanes told since the last call, of those sessions that woke the scheduler: session, lane, mark. `now` is
    /// `CLOCK_MONOTONIC`, ns. Take all of it: what is left is not told again.
    pub fn collect(&mut self, now: u64) -> impl Iterator<Item = (SessionId, u16, Mark)> + '_ {
        let ready = std::mem::take(&mut self.ready);
        let sessions = self.sessions.iter_mut().filter(move |(id, _)| ready.contains(id));
        sessions.flat_map(move |(id, session)| {
            let watch = match &mut session.stage {
                Stage::Registered { watch, .. } => Some(watch),
                Stage::Silent { .. } => None,
            };
            let id = SessionId(*id);
            watch
                .into_iter()
                .flat_map(move |watch| watch.collect(now).map(move |(lane, mark)| (id, lane, mark)))
        })
    }

    /// Ends a session from this side, for example because its machine is gone. Its back end will try again.
    pub fn dismiss(&mut self, session: SessionId) {
        self.sessions.remove(&session.0);
        self.ready.remove(&session.0);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for session in self.sessions.values() {
            if let Stage::Registered { watch, .. } = &session.stage {
                watch.arm(Classes::NONE);
            }
        }
        let is_ours = fs::metadata(&self.path).is_ok_and(|file| Some((file.dev(), file.ino())) == self.made);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            let _ = writeln!(std::io::stderr(), "vlane: {}: cannot be removed: {error}", self.path.display());
        }
    }
}

fn watch(epoll: &OwnedFd, fd: &OwnedFd, token: u64) -> rustix::io::Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
}

/// Checks what a back end says of itself, and welcomes it.
fn register(
    epoll: &OwnedFd,
    id: u64,
    session: &Session,
    hello: &Hello,
    board: &OwnedFd,
) -> std::result::Result<Stage, String> {
    let pid = hello.process.pid;
    let owner = discover::user_of(hello.process).map_err(|error| error.to_string())?;
    if session.uid != 0 && owner != Some(session.uid) {
        return Err(format!("process {pid} does not belong to the back end's user {}", session.uid));
    }
    let lanes = u16::try_from(hello.vcpus.len()).unwrap_or(u16::MAX);
    let board = Board::open(board.as_fd(), lanes).map_err(|error| chain(&error))?;
    let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .and_then(|wake| watch(epoll, &wake, 2 * id + 1).map(|()| wake))
        .map_err(|errno| format!("no eventfd: {errno}"))?;
    Message::Welcome.send(&session.socket, Some(wake.as_fd())).map_err(|error| chain(&error))?;
    Ok(Stage::Registered { wake, watch: Watch::new(board) })
}

fn chain(error: &HintError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Makes room for the socket, if what is there is a socket that nobody listens on.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    let shown = path.display();
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        let what = format!("{shown}: there is a file that is no socket; remove it, or choose another path");
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(io(format!("{shown}: cannot look whether somebody listens there")))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {
            fs::remove_file(path).map_err(io(format!("{shown}: cannot remove what a dead scheduler left")))
        }
        _ => {
            let what = format!("{shown}: another scheduler listens there; stop it, or choose another path");
            Err(Error::new(ErrorKind::Invalid, what))
        }
    }
}
