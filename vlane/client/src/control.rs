//! A client of the control socket of `vlane serve`.
//!
//! It asks in HTTP/1.0, so the server answers without chunks and hangs up when it is done. The only
//! part of HTTP needed is parsing an answer's head, which `httparse` does.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use vlane_policy::throttle::ExpressBudget;
use vlane_socket::unanswered;

use crate::sniff::{self, Found, Wanted};
use vlane_error::program::{Context, Error, ErrorKind, Result};

/// How long the server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest head of an answer.
const MAX_HEAD: usize = 16 * 1024;
/// The longest answer that is not a trace.
const MAX_BODY: u64 = 16 << 20;

/// A control socket.
#[derive(Debug, Clone)]
pub struct Control {
    path: PathBuf,
}

/// Answer of `/v1/counters`. Counters only ever rise: take two, and compare them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Counters {
    /// When they were read, in ns of CLOCK_MONOTONIC.
    pub monotonic_ns: u64,
    /// Resources used by the server's process.
    pub process: Process,
    /// All lanes together, by the counters' names. Examples are `reads`, `writes`, `flushes`,
    /// `others`, `kicks` (times that the guest woke the lane) and `signals` (times that the lane
    /// signalled the guest).
    pub sum: BTreeMap<String, u64>,
    /// Each lane.
    pub lanes: Vec<BTreeMap<String, u64>>,
}

/// Resources used by a process since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// CPU time in user mode, ns.
    pub user_ns: u64,
    /// CPU time in the kernel, ns.
    pub system_ns: u64,
    /// Times that a thread gave its CPU away.
    pub voluntary_switches: u64,
    /// Times that a thread's CPU was taken from it.
    pub involuntary_switches: u64,
}

/// Answer of `/v1/volume`, as far as it is needed here.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// True if the volume is read-only.
    pub read_only: bool,
    /// Queues and threads.
    pub topology: Topology,
    /// Sessions so far.
    pub sessions: u64,
    /// True if a trace is being recorded.
    pub recording: bool,
}

/// How a volume is served.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Topology {
    /// Queues that are offered.
    pub queues: u16,
    /// Threads that serve them, at most.
    pub threads: u16,
    /// Threads that have lanes now.
    pub threads_used: u16,
    /// The CPU of each thread, if they are pinned.
    pub cpus: Vec<usize>,
}

/// Answer of `/v1/cache`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct CacheShare {
    /// Bytes that the volume may hold; none: its share is not bounded.
    pub budget_bytes: Option<u64>,
    /// Bytes that it held at the last look.
    pub cached_bytes: u64,
    /// Bytes of them that were not on the storage yet.
    pub dirty_bytes: u64,
    /// Bytes that were dropped above the budget.
    pub dropped_bytes: u64,
    /// True if no page is dropped for a while.
    pub is_paused: bool,
}

/// Answer of `/v1/limits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Requests per second; none: as many as there are.
    pub iops: Option<u64>,
    /// Bytes per second; none: as many as there are.
    pub bandwidth: Option<u64>,
    /// Burst after a pause: as much as in so many microseconds.
    pub burst_us: u64,
    /// True if express requests are limited, too.
    pub express: ExpressBudget,
    /// Times that a lane had to wait, since the limits were set.
    #[serde(skip_serializing)]
    pub waits: u64,
    /// For how long, all lanes together, in microseconds.
    #[serde(skip_serializing)]
    pub waited_us: u64,
}

/// Answer of `/v1/classes`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Classes {
    /// `off`, `order`, `shortest` or `on`.
    pub mode: String,
    /// More than one class was seen in the last seconds.
    pub is_mixed: bool,
    /// Express, promoted, normal, background; without the journal.
    pub classes: Vec<ClassCounted>,
    /// Requests with the priority of ext4's journal.
    pub journal: ClassCounted,
    /// Express requests that went to another thread's submission queue.
    pub handed_over: u64,
    /// Turns in which lanes took requests.
    pub turns: u64,
    /// Those of them after which the ring was full.
    pub full_turns: u64,
    /// Each lane, by its number.
    pub lanes: Vec<LaneWindow>,
}

/// Counts of one class.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ClassCounted {
    /// Its name.
    pub class: String,
    /// Requests that were taken.
    pub requests: u64,
    /// How long they waited in the lane.
    pub queued: ClassTimes,
    /// How long they were at the device.
    pub device: ClassTimes,
}

/// Times of requests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ClassTimes {
    /// Requests that were timed.
    pub timed: u64,
    /// Nanoseconds; none without a time.
    pub mean_ns: Option<u64>,
    /// Half of them took no longer, nanoseconds.
    pub p50_ns: Option<u64>,
    /// 99 of 100 took no longer, nanoseconds.
    pub p99_ns: Option<u64>,
}

/// How many requests a lane has at the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct LaneWindow {
    /// ... and may have; none: as many as there are.
    pub window: Option<u64>,
    /// At the end of its last turn.
    pub at_device: u64,
}

#[derive(Deserialize)]
struct Problem {
    what: String,
    why: String,
    advice: String,
}

impl Control {
    /// The socket at `path`, which `vlane serve --control` made.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The volume.
    ///
    /// # Errors
    /// As [`Control::get`].
    pub fn volume(&self) -> Result<Volume> {
        self.get("/v1/volume")
    }

    /// The counts so far.
    ///
    /// # Errors
    /// As [`Control::get`].
    pub fn counters(&self) -> Result<Counters> {
        self.get("/v1/counters")
    }

    /// The volume's share of the host's page cache.
    ///
    /// # Errors
    /// As [`Control::get`]; also of a server that does not know the question.
    pub fn cache(&self) -> Result<CacheShare> {
        self.get("/v1/cache")
    }

    /// Limits of the volume per second.
    ///
    /// # Errors
    /// As [`Control::get`].
    pub fn limits(&self) -> Result<Limits> {
        self.get("/v1/limits")
    }

    /// Answer of `/v1/classes`.
    ///
    /// # Errors
    /// As [`Control::get`].
    pub fn classes(&self) -> Result<Classes> {
        self.get("/v1/classes")
    }

    /// Limits the volume so, from now on; gives what `/v1/limits` says then.
    ///
    /// # Errors
    /// As [`Control::get`].
    pub fn set_limits(&self, limits: &Limits) -> Result<Limits> {
        let body = serde_json::to_string(limits)
            .context(ErrorKind::Format, || self.cannot("write", "/v1/limits"))?;
        self.read("/v1/limits", self.ask("PUT", "/v1/limits", &body)?)
    }

    /// The JSON at `resource`.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] if no server listens at the socket, [`ErrorKind::Process`] if the
    /// server refuses, [`ErrorKind::Format`] if its answer cannot be parsed, [`ErrorKind::Io`].
    pub fn get<T: DeserializeOwned>(&self, resource: &str) -> Result<T> {
        self.read(resource, self.ask("GET", resource, "")?)
    }

    fn read<T: DeserializeOwned>(
        &self,
        resource: &str,
        mut answer: BufReader<UnixStream>,
    ) -> Result<T> {
        let mut body = Vec::new();
        answer.by_ref().take(MAX_BODY).read_to_end(&mut body).map_err(|error| {
            self.failed(answer.get_ref(), error, self.cannot("read from", resource))
        })?;
        serde_json::from_slice(&body)
            .context(ErrorKind::Format, || self.cannot("understand", resource))
    }

    /// A trace from now on, as bytes, until the reader is dropped or the volume ends. Reading waits
    /// for the next requests as long as `patience` says, and fails with
    /// [`io::ErrorKind::WouldBlock`] then.
    ///
    /// # Errors
    /// As [`Control::get`].
    pub fn trace(&self, hashes: bool, patience: Duration) -> Result<impl Read + use<>> {
        let answer = self.ask("GET", &format!("/v1/trace?hash={}", u8::from(hashes)), "")?;
        answer
            .get_ref()
            .set_read_timeout(Some(patience))
            .context(ErrorKind::Io, || self.cannot("read from", "/v1/trace"))?;
        Ok(answer)
    }

    fn cannot(&self, what: &str, resource: &str) -> String {
        format!("{}: cannot {what} {resource} of the control socket", self.path.display())
    }

    /// The error of a read or write that failed: in words of its own if the server is silent.
    fn failed(&self, stream: &UnixStream, error: io::Error, context: String) -> Error {
        match unanswered(stream, &error, "the server", PATIENCE) {
            Some(silent) => {
                Error::new(ErrorKind::Timeout, format!("{}: {silent}", self.path.display()))
            }
            None => Error::caused_by(ErrorKind::Io, context, error),
        }
    }

    /// Asks, and reads the answer's head.
    fn ask(&self, method: &str, resource: &str, body: &str) -> Result<BufReader<UnixStream>> {
        let mut stream = self.connect()?;
        let form = match body.len() {
            0 => String::new(),
            length => format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"),
        };
        let request = format!("{method} {resource} HTTP/1.0\r\nHost: vlane\r\n{form}\r\n{body}");
        let broken = || self.cannot("ask for", resource);
        stream.set_read_timeout(Some(PATIENCE)).context(ErrorKind::Io, broken)?;
        stream.set_write_timeout(Some(PATIENCE)).context(ErrorKind::Io, broken)?;
        stream
            .write_all(request.as_bytes())
            .map_err(|error| self.failed(&stream, error, broken()))?;
        let mut answer = BufReader::with_capacity(256 * 1024, stream);
        let head = read_head(&mut answer)
            .map_err(|error| self.failed(answer.get_ref(), error, broken()))?;
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(&head).context(ErrorKind::Format, || {
            format!(
                "{}: the process that listens there does not speak HTTP, so this is not a control \
                 socket; serve the volume with --control PATH",
                self.path.display()
            )
        })?;
        match (parsed, response.code) {
            (httparse::Status::Complete(_), Some(200)) => Ok(answer),
            (_, code) => {
                let mut body = Vec::new();
                let _ = answer.take(MAX_BODY).read_to_end(&mut body);
                let text = match serde_json::from_slice(&body) {
                    Ok(Problem { what, why, advice }) => format!("{what}: {why}; {advice}"),
                    Err(_) => format!("{}: status {}", broken(), code.unwrap_or(0)),
                };
                Err(Error::new(ErrorKind::Process, text))
            }
        }
    }

    fn connect(&self) -> Result<UnixStream> {
        let mistaken = || sniff::mistaken(&self.path, Wanted::ControlSocket);
        let stream = UnixStream::connect(&self.path).map_err(|error| {
            if let Some(words) = mistaken() {
                return Error::new(ErrorKind::Format, words);
            }
            let path = self.path.display();
            match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    let context = format!(
                        "{path}: there is no control socket; serve the volume with one: vlane \
                         serve ... --control {path}"
                    );
                    Error::caused_by(ErrorKind::Missing, context, error)
                }
                io::ErrorKind::PermissionDenied => {
                    let context = format!(
                        "{path}: only the user of the server may use this control socket; run the \
                         command as that user, or as root"
                    );
                    Error::caused_by(ErrorKind::Io, context, error)
                }
                _ => Error::caused_by(ErrorKind::Io, format!("{path}: cannot connect"), error),
            }
        })?;
        // The listener at another socket would take our words for a front end's, or let us wait
        // behind one.
        if let Found::VhostUserSocket(_) = sniff::listener(&stream, &self.path)
            && let Some(words) = mistaken()
        {
            return Err(Error::new(ErrorKind::Format, words));
        }
        Ok(stream)
    }
}

/// Reads up to the empty line, and no further.
fn read_head(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let before = head.len();
        from.by_ref().take((MAX_HEAD - before) as u64).read_until(b'\n', &mut head)?;
        if head.len() == before {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the answer has no end"));
        }
    }
    Ok(head)
}
