//! The back end's end of the connection to the scheduler: it waits for a scheduler to be there,
//! introduces a session, and switches the board off when the scheduler goes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use vlane_error::describe;
use vlane_socket::printable;

use crate::appear::Appear;
use crate::board::{Board, Classes};
use crate::error::HintError;
use crate::message::{Hello, Message};
use crate::process::ProcessId;

/// How soon a scheduler that should be there is looked for again, and how often: its socket may be
/// there before it listens.
const RETRY: Duration = Duration::from_secs(1);
const TRIES: u32 = 5;
/// How soon one that has refused, or has not answered, is asked again: at first, and at most. It
/// takes twice as long each time, until a socket appears.
const RETRY_REFUSED: Duration = Duration::from_secs(10);
const RETRY_REFUSED_MOST: Duration = Duration::from_secs(600);
/// How often one is looked for where the kernel does not report when a socket appears.
const RETRY_UNTOLD: Duration = Duration::from_secs(5);
/// How long a scheduler may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Where a scheduler is looked for by default: the user's own one, then the system's. Earlier
/// schedulers listen in `vlane`.
pub fn default_sockets() -> Vec<PathBuf> {
    let own = match rustix::process::geteuid().is_root() {
        true => None,
        false => std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty()),
    };
    own.map(PathBuf::from)
        .into_iter()
        .chain([PathBuf::from("/run")])
        .flat_map(|directory| {
            ["vlane-sched", "vlane"].map(|name| directory.join(name).join("sched.sock"))
        })
        .collect()
}

/// The guest that a session serves.
#[derive(Debug, Clone)]
pub struct Guest {
    /// Its process.
    pub process: ProcessId,
    /// For each lane, the vCPU that waits for its completions.
    pub vcpus: Vec<u32>,
    /// The volume's name.
    pub name: String,
    /// True if any of its requests may be express.
    pub has_express: bool,
}

/// A change that lanes must know.
#[derive(Debug)]
pub enum Change {
    /// A scheduler is there: mark this board, and write this eventfd.
    Joined(Arc<Board>, Arc<OwnedFd>),
    /// It is gone; its board is off already.
    Left,
}

#[derive(Debug)]
enum State {
    /// `None`: it is not looked for until its socket appears.
    Away {
        next: Option<Instant>,
    },
    Asked {
        socket: OwnedFd,
        board: Arc<Board>,
        until: Instant,
        path: PathBuf,
    },
    Joined {
        socket: OwnedFd,
        board: Arc<Board>,
    },
}

/// A session's connection to the scheduler. Its calls never wait.
#[derive(Debug)]
pub struct Client {
    sockets: Vec<PathBuf>,
    guest: Guest,
    /// True if the user asked for it: then its absence is reported.
    expected: bool,
    /// How often it is looked for once more before its socket appears again.
    tries: u32,
    /// How soon it is asked again when it refuses the next time.
    patience: Duration,
    /// `None`: the kernel does not report it.
    appear: Option<Appear>,
    state: State,
    /// The last report, so that each is made once.
    told: Option<String>,
}

impl Client {
    /// A client that looks for a scheduler at `sockets`, one after the other, now and when one of
    /// them appears. `expected`: there is one, or will be; its absence is reported.
    pub fn new(sockets: Vec<PathBuf>, guest: Guest, expected: bool, now: Instant) -> Client {
        let (appear, state) = (Appear::of(&sockets), State::Away { next: Some(now) });
        // One that is about to listen has its socket already.
        let tries = if sockets.iter().any(|path| path.exists()) { TRIES } else { 0 };
        Client {
            sockets,
            guest,
            expected,
            tries,
            patience: RETRY_REFUSED,
            appear,
            state,
            told: None,
        }
    }

    /// Readable when [`Client::turn`] has something to do.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Away { .. } => self.appear.as_ref().map(Appear::fd),
            State::Asked { socket, .. } | State::Joined { socket, .. } => Some(socket.as_fd()),
        }
    }

    /// When [`Client::turn`] has something to do, if its descriptor does not say so before.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Away { next } => *next,
            State::Asked { until, .. } => Some(*until),
            State::Joined { .. } => None,
        }
    }

    /// Does the work that is due.
    pub fn turn(&mut self, now: Instant) -> Option<Change> {
        let away = matches!(self.state, State::Away { .. });
        let appeared = away && self.appear.as_mut().is_some_and(Appear::happened);
        if appeared {
            (self.tries, self.patience) = (TRIES, RETRY_REFUSED);
        }
        let step = match &self.state {
            State::Away { next } if !appeared && next.is_none_or(|next| now < next) => return None,
            State::Away { .. } => match self.ask(now) {
                Ok(asked) => {
                    self.state = asked;
                    return None;
                }
                Err(unreached) => Err(unreached),
            },
            State::Asked { socket, board, until, path } => match answer(socket) {
                Ok(Some(wake)) => Ok((Arc::clone(board), wake, path.clone())),
                Ok(None) if now < *until => return None,
                Ok(None) => Err("the scheduler does not answer".to_owned().into()),
                Err(Unwelcome::Refused(why)) => {
                    let why =
                        format!("the vCPU scheduler at {} refuses this VM: {why}", path.display());
                    Err(Unreached { refuses: true, ..why.into() })
                }
                Err(Unwelcome::Nonsense(why)) => Err(format!("{}: {why}", path.display()).into()),
            },
            State::Joined { socket, .. } => match Message::receive(socket) {
                Ok(None) => return None,
                Ok(Some(_)) => {
                    Err("the scheduler said something that was not asked".to_owned().into())
                }
                Err(error) => Err(error.to_string().into()),
            },
        };
        let before = std::mem::replace(&mut self.state, State::Away { next: None });
        match step {
            Ok((board, wake, path)) => {
                if let State::Asked { socket, .. } = before {
                    self.state = State::Joined { socket, board: Arc::clone(&board) };
                }
                (self.told, self.appear, self.patience) = (None, None, RETRY_REFUSED);
                tracing::info!(
                    "{}: notifies the vCPU scheduler at {}",
                    self.guest.name,
                    path.display()
                );
                Some(Change::Joined(board, Arc::new(wake)))
            }
            Err(unreached) => self.goes_without(before, unreached, now),
        }
    }

    /// No scheduler gets hints for now, or no more: sets the time to look for one again.
    fn goes_without(
        &mut self,
        before: State,
        unreached: Unreached,
        now: Instant,
    ) -> Option<Change> {
        let Unreached { why, is_short, refuses } = unreached;
        let joined = matches!(before, State::Joined { .. });
        switch_off(&before);
        if joined {
            self.tries = TRIES;
        }
        let wait = match before {
            State::Asked { .. } => {
                let patience = self.patience;
                self.patience = (2 * patience).min(RETRY_REFUSED_MOST);
                Some(patience)
            }
            _ if self.tries > 0 => Some(RETRY),
            // One may be there: that could not be found out.
            _ if is_short => Some(RETRY_UNTOLD),
            _ => self.appear.as_ref().is_none_or(Appear::is_blind).then_some(RETRY_UNTOLD),
        };
        self.tries = self.tries.saturating_sub(1);
        self.state = State::Away { next: wait.map(|wait| now + wait) };
        if self.appear.is_none() {
            self.appear = Appear::of(&self.sockets);
        }
        let name = &self.guest.name;
        if joined {
            tracing::info!("{name}: the vCPU scheduler is gone: {why}");
        } else if (self.expected || refuses) && self.told.as_ref() != Some(&why) {
            match refuses {
                true => tracing::warn!(
                    "{name}: {why}; the VM is served without it, and it is asked again now and \
                     then (`vlane serve --sched=off`: never)"
                ),
                false => tracing::warn!(
                    "{name}: no vCPU scheduler: {why}; it is joined when it is there"
                ),
            }
            self.told = Some(why);
        }
        joined.then_some(Change::Left)
    }

    /// Connects to the first scheduler that is there, and introduces the session.
    fn ask(&self, now: Instant) -> Result<State, Unreached> {
        let mut last = Unreached::from("no socket was named".to_owned());
        for path in &self.sockets {
            match introduce(path, &self.guest) {
                Ok((socket, board)) => {
                    return Ok(State::Asked {
                        socket,
                        board,
                        until: now + ANSWER,
                        path: path.clone(),
                    });
                }
                Err(error) => {
                    last.why = format!("{}: {}", path.display(), describe(&error));
                    last.is_short |= is_short(&error);
                }
            }
        }
        Err(last)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        switch_off(&self.state);
    }
}

fn switch_off(state: &State) {
    if let State::Joined { board, .. } | State::Asked { board, .. } = state {
        board.arm(Classes::NONE);
    }
}

/// Why no scheduler was reached.
struct Unreached {
    why: String,
    /// Descriptors or memory were short: that is no sign of the scheduler's state.
    is_short: bool,
    /// It is there, and refuses.
    refuses: bool,
}

impl From<String> for Unreached {
    fn from(why: String) -> Unreached {
        Unreached { why, is_short: false, refuses: false }
    }
}

fn is_short(error: &HintError) -> bool {
    let causes =
        std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.filter_map(|error| error.downcast_ref::<std::io::Error>()).any(vlane_socket::is_short)
}

fn introduce(path: &Path, guest: &Guest) -> Result<(OwnedFd, Arc<Board>), HintError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    // A process that may write to the eventfd's other end can make lanes wait: only root, or one
    // that could do so anyway.
    let listener = rustix::net::sockopt::socket_peercred(&socket)?;
    let user = listener.uid;
    if !user.is_root()
        && user != rustix::process::geteuid()
        && !has_place_from_root(path, user.as_raw())
    {
        return Err(HintError::Protocol(
            "the scheduler is neither root's nor this user's, and its socket is in no directory \
             that root has given it",
        ));
    }
    let lanes = u16::try_from(guest.vcpus.len()).unwrap_or(u16::MAX);
    let (board, fd) = Board::create(lanes, guest.has_express)?;
    let hello =
        Hello { process: guest.process, vcpus: guest.vcpus.clone(), name: guest.name.clone() };
    Message::Hello(hello).send(&socket, Some(fd.as_fd()))?;
    Ok((socket, board))
}

/// Returns true if root has given a user the directory that a socket is in, as systemd does
/// (`User=`, `RuntimeDirectory=`). Only that user may write to it, and its parent is root's alone.
fn has_place_from_root(socket: &Path, user: u32) -> bool {
    let Some(directory) = socket.parent().and_then(|directory| directory.canonicalize().ok())
    else {
        return false;
    };
    let belongs = |path: &Path, user: u32| {
        std::fs::symlink_metadata(path).is_ok_and(|metadata| {
            metadata.uid() == user && metadata.is_dir() && metadata.mode() & 0o022 == 0
        })
    };
    belongs(&directory, user) && directory.parent().is_some_and(|above| belongs(above, 0))
}

/// An answer that is no welcome.
enum Unwelcome {
    /// The scheduler's own words.
    Refused(String),
    Nonsense(String),
}

/// The scheduler's answer, if it is there: its eventfd, or why not.
fn answer(socket: &OwnedFd) -> Result<Option<OwnedFd>, Unwelcome> {
    let nonsense = |what: &str| Err(Unwelcome::Nonsense(what.to_owned()));
    match Message::receive(socket).map_err(|error| Unwelcome::Nonsense(describe(&error)))? {
        None => Ok(None),
        Some((Message::Welcome, Some(wake))) => match is_eventfd(&wake) {
            true => Ok(Some(wake)),
            false => nonsense("the scheduler sent no eventfd"),
        },
        Some((Message::Refused(why), _)) => Err(Unwelcome::Refused(printable(&why).to_string())),
        Some(_) => nonsense("the scheduler sent an invalid message"),
    }
}

/// Another kind of file might make a lane wait.
fn is_eventfd(fd: &OwnedFd) -> bool {
    use std::os::fd::AsRawFd;
    let is_nonblocking =
        rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK));
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    // Without /proc it cannot be checked, and lanes do without a scheduler.
    is_nonblocking
        && link.is_ok_and(|link| link.to_string_lossy().starts_with("anon_inode:[eventfd"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn user_needs_a_directory_from_root() {
        if !rustix::process::geteuid().is_root() {
            return vlane_testing::skip("only root can give directories to users");
        }
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("vlane");
        std::fs::create_dir(&own).unwrap();
        let socket = own.join("sched.sock");
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap()
        };
        mode(root.path(), 0o755);
        mode(&own, 0o755);
        assert!(!has_place_from_root(&socket, 1234), "it is root's");
        chown(&own, Some(1234), None).unwrap();
        assert!(has_place_from_root(&socket, 1234));
        assert!(!has_place_from_root(&socket, 4321));
        mode(&own, 0o775);
        assert!(!has_place_from_root(&socket, 1234), "others may put a socket there");
        mode(&own, 0o755);
        // As in /tmp, where every user may make directories.
        mode(root.path(), 0o1777);
        assert!(!has_place_from_root(&socket, 1234));
        mode(root.path(), 0o755);
        chown(root.path(), Some(1234), None).unwrap();
        assert!(!has_place_from_root(&socket, 1234), "made by itself");
        assert!(!has_place_from_root(&root.path().join("none/s"), 1234));
    }
}
