//! The daemon's socket: people and programs ask for its state, and report events that no other
//! source knows.
//!
//! A line per request, a line of JSON per answer: `state`, `watch` (once a second from then on),
//! `event TID`, `served TID NANOSECONDS`. Threads of normal priority answer; the event loop only
//! puts a new state in place.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::source::{Mark, Poster};
use super::state::{DaemonState, Snapshot};
use crate::{Error, ErrorKind, Result};
use vlane_socket::{Access, ListenError, Place, Shortage, SocketFile, unanswered};

/// Connections at once.
const CONNECTIONS: usize = 32;
/// A request is no longer than this.
const LONGEST: u64 = 256;
/// A client that does not read for so long is let go.
const PATIENCE: Duration = Duration::from_secs(5);

/// The place of the newest state.
#[derive(Debug, Default)]
pub struct Hub {
    latest: Mutex<(u64, Arc<Snapshot>)>,
    changed: Condvar,
}

impl Hub {
    /// Puts a new state in place, unless a reader holds the old one just now: the loop never waits.
    pub(crate) fn publish(&self, state: Snapshot) -> bool {
        let Ok(mut latest) = self.latest.try_lock() else { return false };
        *latest = (latest.0 + 1, Arc::new(state));
        drop(latest);
        self.changed.notify_all();
        true
    }

    /// The newest one, once there is one after number `after`; `None` after some seconds without.
    fn next(&self, after: u64) -> Option<(u64, DaemonState)> {
        let latest = self.latest.lock().ok()?;
        let (latest, timeout) =
            self.changed.wait_timeout_while(latest, PATIENCE, |latest| latest.0 <= after).ok()?;
        let (number, snapshot) = latest.clone();
        (!timeout.timed_out()).then(|| (number, snapshot.finished()))
    }

    /// The newest one.
    pub fn latest(&self) -> DaemonState {
        self.latest
            .lock()
            .map_or_else(|_| Arc::default(), |latest| Arc::clone(&latest.1))
            .finished()
    }
}

/// The socket's file; removed when this is dropped.
#[derive(Debug)]
pub struct Socket {
    _file: SocketFile,
    listener: UnixListener,
}

impl Socket {
    /// Listens at a path. A file that a daemon left behind is replaced; one at which a daemon
    /// listens is not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`]: another daemon is there. [`ErrorKind::Io`]: the path cannot be used.
    pub fn bind(path: &Path) -> Result<Self> {
        let fail = |error: io::Error| {
            let text =
                format!("cannot listen at {}; name another place with --socket", path.display());
            Error::caused_by(ErrorKind::Io, text, error)
        };
        // A process that may report events may boost: the owner only.
        let place =
            Place::new(path, "--socket", "scheduler").access(Access::OWNER).making_directory();
        let (listener, file) = SocketFile::listen_stream(&place).map_err(|error| match error {
            ListenError::InUse { .. } => {
                let text = format!(
                    "a scheduler is running already: it listens at {}; look at it with `vlane \
                     sched status`, or name another place with --socket",
                    path.display()
                );
                Error::new(ErrorKind::Invalid, text)
            }
            ListenError::Io { source, .. } => fail(source),
            ListenError::Permission { .. } => Error::new(ErrorKind::Permission, error.to_string()),
            _ => Error::new(ErrorKind::Invalid, error.to_string()),
        })?;
        // A thread waits in `accept`.
        listener.set_nonblocking(false).map_err(fail)?;
        Ok(Self { _file: file, listener })
    }

    /// Answers, on separate threads, until the process ends.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn serve(&self, hub: Arc<Hub>, poster: Poster) -> Result<()> {
        let fail =
            |error: io::Error| Error::caused_by(ErrorKind::Io, "cannot serve the socket", error);
        let listener = self.listener.try_clone().map_err(fail)?;
        let accept = move || {
            let open = Arc::new(AtomicUsize::new(0));
            let mut shortage =
                Shortage::new("questions for the scheduler's state are not answered");
            let mut pause = |error: &io::Error| {
                let now = Instant::now();
                std::thread::sleep(shortage.refused(error, now).saturating_duration_since(now));
            };
            for stream in listener.incoming() {
                let stream = match stream {
                    Ok(stream) => stream,
                    Err(error) => {
                        if error.kind() != io::ErrorKind::ConnectionAborted {
                            pause(&error);
                        }
                        continue;
                    }
                };
                if open.load(Ordering::Relaxed) >= CONNECTIONS {
                    continue;
                }
                open.fetch_add(1, Ordering::Relaxed);
                let began = Arc::clone(&open);
                let (hub, poster, open) = (Arc::clone(&hub), poster.clone(), Arc::clone(&open));
                let converse = move || {
                    // A client that has hung up needs no answer.
                    let _ = converse(&stream, &hub, &poster);
                    open.fetch_sub(1, Ordering::Relaxed);
                };
                if let Err(error) =
                    std::thread::Builder::new().name("sched-client".into()).spawn(converse)
                {
                    began.fetch_sub(1, Ordering::Relaxed);
                    pause(&error);
                }
            }
        };
        std::thread::Builder::new().name("sched-socket".into()).spawn(accept).map_err(fail)?;
        Ok(())
    }
}

fn send(mut to: &UnixStream, state: &DaemonState) -> io::Result<()> {
    let mut line = serde_json::to_vec(state)?;
    line.push(b'\n');
    to.write_all(&line)
}

fn converse(stream: &UnixStream, hub: &Hub, poster: &Poster) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.by_ref().take(LONGEST).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        match (words.first().copied(), number(1), number(2)) {
            (Some("state"), None, None) => {
                let (_, state) = hub.next(0).ok_or(io::ErrorKind::TimedOut)?;
                send(stream, &state)?;
            }
            (Some("watch"), None, None) => {
                let mut seen = 0;
                loop {
                    let (number, state) = hub.next(seen).ok_or(io::ErrorKind::TimedOut)?;
                    seen = number;
                    send(stream, &state)?;
                }
            }
            (Some("event"), Some(token), None) => {
                poster.post(Mark::Event { token });
            }
            (Some("served"), Some(token), Some(response_ns)) => {
                poster.post(Mark::Served { token, response_ns });
            }
            _ => {
                let mut to = stream;
                to.write_all(
                    b"{\"error\":\"understood are: state, watch, event TID, served TID NANOSECONDS\"}\n",
                )?;
            }
        }
    }
}

/// Reads a daemon's states, one after the other: once, or every second.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the daemon at a path.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Gone`]: there is none. [`ErrorKind::Io`]: it cannot be reached.
    pub fn connect(path: &Path, watch: bool) -> Result<Self> {
        let fail = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                let text = format!(
                    "no scheduler listens at {}: start one with `vlane sched run`, or name its \
                     socket with --socket",
                    path.display()
                );
                Error::new(ErrorKind::Gone, text)
            }
            // Its owner only may ask, because asking may boost.
            io::ErrorKind::PermissionDenied => {
                let owner = std::fs::metadata(path).map_or_else(
                    |_| "another user".to_owned(),
                    |file| format!("user {}", std::os::unix::fs::MetadataExt::uid(&file)),
                );
                let text = format!(
                    "{}: this socket is {owner}'s, and only {owner} and root may ask there; ask \
                     as one of them (sudo)",
                    path.display()
                );
                Error::caused_by(ErrorKind::Permission, text, error)
            }
            _ => {
                Error::caused_by(ErrorKind::Io, format!("cannot talk to {}", path.display()), error)
            }
        };
        let mut stream = UnixStream::connect(path).map_err(fail)?;
        stream.set_read_timeout(Some(2 * PATIENCE)).map_err(fail)?;
        stream.write_all(if watch { b"watch\n" } else { b"state\n" }).map_err(fail)?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    /// The next state, as it came and understood; `None` when the daemon has ended.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Protocol`]: the line cannot be understood.
    pub fn next_state(&mut self) -> Result<Option<(String, DaemonState)>> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => {
                let stream = self.reader.get_ref();
                return Err(match unanswered(stream, &error, "the scheduler", 2 * PATIENCE) {
                    Some(silent) => Error::new(ErrorKind::Io, silent),
                    None => Error::caused_by(ErrorKind::Io, "the scheduler does not answer", error),
                });
            }
        }
        let state: DaemonState = serde_json::from_str(&line).map_err(|error| {
            Error::caused_by(ErrorKind::Protocol, "the scheduler's answer is not understood", error)
        })?;
        if state.schema != super::state::SCHEMA {
            let text = format!(
                "the scheduler speaks {:?}, this program {:?}",
                state.schema,
                super::state::SCHEMA
            );
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        Ok(Some((line, state)))
    }
}
