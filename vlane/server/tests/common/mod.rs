//! Shared parts of the session tests: a volume on a listener in this process, and a front end that
//! can send any message ([`Wire`]). A split ring is written into guest memory by file writes
//! ([`Ring`]), legal or not.
//!
//! Every wait has a limit: a hang is a failure.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "each test uses its part; tests may"
)]

mod descriptors;
pub mod inflight;

use std::cell::Cell;
use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

#[allow(unused_imports, reason = "each test uses its part")]
pub use descriptors::{has_few_descriptors, number, open_descriptors};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tempfile::TempDir;
use vlane_driver::ring::{Arena, Layout};
use vlane_engine::Engine;
use vlane_engine::null::{NullConfig, NullEngine};
use vlane_lane::{PollMode, Topology};
use vlane_policy::express::{Express, Mode};
use vlane_server::{
    Arrived, Descriptors, HandedServer, Listener, Schedulers, Stopper, Successor, Volume,
    VolumeConfig,
};

/// A longer wait counts as a hang. A thread may be without a CPU for seconds.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Feature bits.
pub const VERSION_1: u64 = 1 << 32;
pub const PROTOCOL: u64 = 1 << 30;
pub const EVENT_IDX: u64 = 1 << 29;
pub const INDIRECT: u64 = 1 << 28;
pub const LOG_ALL: u64 = 1 << 26;
pub const FLUSH: u64 = 1 << 9;
pub const CONFIG_WCE: u64 = 1 << 11;
/// The features of the tests' guest.
pub const USUAL: u64 = VERSION_1 | PROTOCOL | FLUSH | CONFIG_WCE;

/// Request types.
pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH_REQUEST: u32 = 4;
pub const GET_ID: u32 = 8;

/// vhost-user messages.
pub mod code {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// A null device of 1 GiB; with a latency, it works on many requests at a time.
pub fn null(latency: Option<Duration>) -> Arc<NullEngine> {
    Arc::new(NullEngine::new(NullConfig { size: 1 << 30, latency, parallelism: 64 }).unwrap())
}

/// A volume on a socket, served by a thread of this process.
pub struct Server {
    directory: Arc<TempDir>,
    pub volume: Arc<Volume>,
    pub listener: Arc<Listener>,
    stopper: Stopper,
    ended: Receiver<std::io::Result<()>>,
    stopped: Cell<bool>,
}

impl Server {
    pub fn new(engine: Arc<dyn Engine>, queues: u16, threads: u16) -> Server {
        Server::polling(engine, queues, threads, Duration::ZERO)
    }

    pub fn polling(
        engine: Arc<dyn Engine>,
        queues: u16,
        threads: u16,
        poll_max: Duration,
    ) -> Server {
        Server::telling(engine, queues, threads, poll_max, Schedulers::None)
    }

    /// A server that reports to a vCPU scheduler.
    pub fn telling(
        engine: Arc<dyn Engine>,
        queues: u16,
        threads: u16,
        poll_max: Duration,
        schedulers: Schedulers,
    ) -> Server {
        let topology = Topology { queues, threads, cpus: Vec::new(), adapts: false };
        Server::with(engine, topology, poll_max, schedulers, Mode::Off)
    }

    /// A server that reports to a vCPU scheduler and has classes.
    pub fn classifying(engine: Arc<dyn Engine>, mode: Mode, schedulers: Schedulers) -> Server {
        let topology = Topology { queues: 1, threads: 1, cpus: Vec::new(), adapts: false };
        Server::with(engine, topology, Duration::ZERO, schedulers, mode)
    }

    /// A server whose lanes are on as many of its threads as pay.
    pub fn adapting(engine: Arc<dyn Engine>, queues: u16, threads: u16) -> Server {
        let topology = Topology { queues, threads, cpus: Vec::new(), adapts: true };
        Server::with(engine, topology, Duration::from_micros(50), Schedulers::None, Mode::Off)
    }

    fn with(
        engine: Arc<dyn Engine>,
        topology: Topology,
        poll_max: Duration,
        schedulers: Schedulers,
        mode: Mode,
    ) -> Server {
        let directory = Arc::new(TempDir::with_prefix("vlane-server-").unwrap());
        let volume = Server::volume(engine, topology, poll_max, schedulers, mode);
        let listener = Listener::bind(&directory.path().join("s")).unwrap();
        Server::serving(directory, volume, listener)
    }

    /// A server from which another one can take over.
    pub fn relievable(engine: Arc<dyn Engine>) -> (Server, Relief) {
        let directory = Arc::new(TempDir::with_prefix("vlane-server-").unwrap());
        let listener = Listener::bind(&directory.path().join("s")).unwrap();
        let (sender, given) = channel();
        let wanted = Arc::new(event());
        listener.name_successor(Arc::new(Heir { wanted: Arc::clone(&wanted), sender }));
        let topology = Topology { queues: 1, threads: 1, cpus: Vec::new(), adapts: false };
        let volume = Server::volume(engine, topology, Duration::ZERO, Schedulers::None, Mode::Off);
        (Server::serving(directory, volume, listener), Relief { wanted, given })
    }

    /// Returns the server that takes over from this one, on separate storage.
    pub fn hand_over(self, relief: &Relief, engine: Arc<dyn Engine>) -> Server {
        self.hand_over_after(relief, engine, || ())
    }

    /// The same; calls `event` at the point of no return.
    pub fn hand_over_after(
        self,
        relief: &Relief,
        engine: Arc<dyn Engine>,
        event: impl FnOnce(),
    ) -> Server {
        let begin = Instant::now();
        let (written, descriptors) = loop {
            match relief.ask() {
                Ok(given) => break given,
                // A lane without a CPU for a second looks like storage that hangs.
                Err(why) => {
                    let is_late = why.contains("does not answer requests");
                    assert!(is_late && begin.elapsed() < LIMIT, "{why}");
                }
            }
        };
        event();
        // Its threads are idle from now on.
        self.stopped.set(true);
        let handed: HandedServer = serde_json::from_str(&written).unwrap();
        let topology =
            Topology { queues: handed.queues(), threads: 1, cpus: Vec::new(), adapts: false };
        let volume = Server::volume(engine, topology, Duration::ZERO, Schedulers::None, Mode::Off);
        let listener =
            Listener::take_over(&self.path(), handed, &mut Arrived::new(descriptors), &volume)
                .unwrap();
        Server::serving(Arc::clone(&self.directory), volume, listener)
    }

    /// A server that lets a guest continue that had another image.
    pub fn insisting(engine: Arc<dyn Engine>) -> Server {
        let directory = Arc::new(TempDir::with_prefix("vlane-server-").unwrap());
        let listener = Listener::bind(&directory.path().join("s")).unwrap();
        let topology = Topology { queues: 1, threads: 1, cpus: Vec::new(), adapts: false };
        let volume = Server::volume(engine, topology, Duration::ZERO, Schedulers::None, Mode::Off);
        let volume = Arc::into_inner(volume).unwrap().for_any_guest(true);
        Server::serving(directory, Arc::new(volume), listener)
    }

    fn volume(
        engine: Arc<dyn Engine>,
        topology: Topology,
        poll_max: Duration,
        schedulers: Schedulers,
        mode: Mode,
    ) -> Arc<Volume> {
        let config = VolumeConfig {
            name: "test".into(),
            serial: "serial-42".into(),
            topology,
            poll: PollMode::Balanced,
            poll_max,
            express: Express { mode, ..Express::default() },
        };
        Arc::new(Volume::new(engine, config).unwrap().with_schedulers(schedulers))
    }

    fn serving(directory: Arc<TempDir>, volume: Arc<Volume>, listener: Listener) -> Server {
        let listener = Arc::new(listener);
        let (sender, ended) = channel();
        let (serving, served) = (Arc::clone(&listener), Arc::clone(&volume));
        std::thread::spawn(move || {
            let ended = serving.serve(&served);
            // The next server of the same image finds it free.
            drop((serving, served));
            sender.send(ended)
        });
        let stopper = listener.stopper();
        Server { directory, volume, listener, stopper, ended, stopped: Cell::new(false) }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    pub fn connect(&self) -> Wire {
        Wire::new(UnixStream::connect(self.path()).unwrap())
    }

    /// A front end that has negotiated, on separate memory.
    pub fn guest(&self, features: u64) -> (Wire, Memory) {
        let wire = self.connect();
        wire.negotiate(features);
        let memory = Memory::new(0x10_0000, 0x20_0000);
        assert!(wire.add_memory(&memory));
        (wire, memory)
    }

    /// Ends it, as a signal does; says how long that took.
    pub fn stop(&self) -> Duration {
        self.stop_within(LIMIT).expect("the server did not end")
    }

    /// The same, or `None` if it has not ended after `limit`.
    pub fn stop_within(&self, limit: Duration) -> Option<Duration> {
        let begin = Instant::now();
        self.stopped.set(true);
        match self.end_within(limit) {
            Ok(ended) => ended.unwrap(),
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => panic!("the server panicked"),
        }
        Some(begin.elapsed())
    }

    /// From a separate thread: stopping the server waits for its lanes.
    fn end_within(&self, limit: Duration) -> Result<std::io::Result<()>, RecvTimeoutError> {
        let stopper = self.stopper.clone();
        let stopping = std::thread::spawn(move || stopper.stop());
        let ended = self.ended.recv_timeout(limit);
        if ended.is_ok() {
            // It holds the volume, too.
            stopping.join().unwrap();
        }
        ended
    }

    /// Waits until lanes have begun so many reads, of all sessions so far. A request that is only
    /// in a ring may stay there when the ring stops.
    pub fn begins_reads(&self, count: u64) {
        let begin = Instant::now();
        while self.volume.counters().reads < count {
            assert!(begin.elapsed() < LIMIT, "{} reads", self.volume.counters().reads);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next front end is served: it negotiates, reads and is answered. Proves that the server
    /// is not stuck.
    pub fn serves_the_next(&self) {
        let (wire, memory) = self.guest(USUAL);
        let mut ring = Ring::new(&memory, 0);
        assert!(wire.start(0, &ring));
        ring.submit(0, GET_ID, 0, 20);
        ring.wait(1);
        assert_eq!((ring.status(0), &ring.data(0, 9)[..]), (0, &b"serial-42"[..]));
    }
}

/// The means to take over from a server.
pub struct Relief {
    wanted: Arc<OwnedFd>,
    given: Receiver<Given>,
}

/// The state that is handed over, or why that cannot be.
type Given = Result<(String, Vec<OwnedFd>), String>;

impl Relief {
    fn ask(&self) -> Given {
        rustix::io::write(&self.wanted, &1u64.to_ne_bytes()).unwrap();
        self.given.recv_timeout(LIMIT).unwrap()
    }

    /// Asks a server that cannot be relieved; says why not.
    pub fn refused(&self) -> String {
        self.ask().unwrap_err()
    }
}

/// Stands for the process that takes over.
#[derive(Debug)]
struct Heir {
    wanted: Arc<OwnedFd>,
    sender: Sender<Given>,
}

impl Successor for Heir {
    fn wanted(&self) -> BorrowedFd<'_> {
        self.wanted.as_fd()
    }

    fn take_over(&self, give: &mut dyn FnMut(&mut Descriptors) -> Result<HandedServer, String>) {
        let mut descriptors = Descriptors::default();
        rustix::io::read(&self.wanted, &mut [0; 8]).unwrap();
        let handed = match give(&mut descriptors) {
            Ok(handed) => handed,
            Err(why) => return self.sender.send(Err(why)).unwrap(),
        };
        let written = serde_json::to_string(&handed).unwrap();
        self.sender.send(Ok((written, descriptors.into_inner()))).unwrap();
        // As a process that is not there any more.
        loop {
            std::thread::park();
        }
    }
}

/// Every test ends by showing that the server still can.
impl Drop for Server {
    fn drop(&mut self) {
        if self.stopped.get() {
            return;
        }
        let ended = self.end_within(LIMIT);
        if std::thread::panicking() {
            return;
        }
        assert!(!matches!(ended, Err(RecvTimeoutError::Timeout)), "the server did not end");
        ended.expect("the server panicked").unwrap();
    }
}

/// One end of a vhost-user connection that sends the given bytes.
pub struct Wire {
    pub stream: UnixStream,
}

impl Wire {
    pub fn new(stream: UnixStream) -> Wire {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Wire { stream }
    }

    /// Sends bytes as they are.
    pub fn raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let sent =
            sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        assert_eq!(sent, bytes.len());
        Ok(())
    }

    pub fn message(code: u32, flags: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(12 + body.len());
        for word in [code, 1 | flags, body.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(body);
        bytes
    }

    /// Sends a message without asking for an answer.
    pub fn tell(&self, code: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
        self.raw(&Wire::message(code, 0, body), fds).unwrap();
    }

    /// Sends a message and asks whether it was accepted. A connection that ends is a no.
    pub fn try_set(&self, code: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Option<bool> {
        self.raw(&Wire::message(code, 8, body), fds).ok()?;
        self.reply(code).map(|body| word(&body, 0) == 0)
    }

    pub fn set(&self, code: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        self.try_set(code, body, fds).unwrap_or(false)
    }

    /// Sends a message that has a specific answer.
    pub fn ask(&self, code: u32, body: &[u8]) -> Option<Vec<u8>> {
        self.raw(&Wire::message(code, 0, body), &[]).ok()?;
        self.reply(code)
    }

    pub fn ask_word(&self, code: u32) -> u64 {
        word(&self.ask(code, &[]).unwrap(), 0)
    }

    /// The next answer; `None` when the other side hung up.
    pub fn reply(&self, code: u32) -> Option<Vec<u8>> {
        let mut header = [0; 12];
        let mut stream = &self.stream;
        match stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("no answer to message {code}")
            }
            Err(_) => return None,
        }
        assert_eq!(half(&header, 0), code, "answer to another message");
        assert_eq!(half(&header, 4) & 7, 5, "a reply of version 1");
        let mut body = vec![0; half(&header, 8) as usize];
        stream.read_exact(&mut body).unwrap();
        Some(body)
    }

    /// Returns true if the other side has hung up; waits for it.
    pub fn is_hung_up(&self, within: Duration) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        rustix::event::poll(&mut fds, Some(&timespec(within))).unwrap() > 0
    }

    pub fn is_alive(&self) -> bool {
        self.ask(code::GET_FEATURES, &[]).is_some()
    }

    pub fn negotiate(&self, features: u64) {
        self.tell(code::SET_OWNER, &[], &[]);
        self.ask_word(code::GET_FEATURES);
        let protocol = self.ask_word(code::GET_PROTOCOL_FEATURES);
        self.tell(code::SET_PROTOCOL_FEATURES, &protocol.to_le_bytes(), &[]);
        assert!(self.set(code::SET_FEATURES, &features.to_le_bytes(), &[]));
    }

    pub fn set_features(&self, features: u64) -> bool {
        self.set(code::SET_FEATURES, &features.to_le_bytes(), &[])
    }

    pub fn add_memory(&self, memory: &Memory) -> bool {
        self.set(
            code::ADD_MEM_REG,
            &words(&[0, memory.guest, memory.size, memory.user, 0]),
            &[memory.file.as_fd()],
        )
    }

    pub fn set_memory(&self, regions: &[&Memory]) -> bool {
        let mut body = words(&[regions.len() as u64]);
        regions.iter().for_each(|m| body.extend(words(&[m.guest, m.size, m.user, 0])));
        let fds: Vec<_> = regions.iter().map(|m| m.file.as_fd()).collect();
        self.set(code::SET_MEM_TABLE, &body, &fds)
    }

    pub fn vring(&self, code: u32, index: u32, num: u32) -> bool {
        self.set(code, &halves(&[index, num]), &[])
    }

    pub fn fd(&self, code: u32, index: u32, fd: impl AsFd) -> bool {
        self.set(code, &words(&[index.into()]), &[fd.as_fd()])
    }

    pub fn addresses(&self, index: u32, ring: &Ring<'_>, log: Option<u64>) -> bool {
        let user = ring.memory.user + ring.at;
        let mut body = halves(&[index, u32::from(log.is_some())]);
        body.extend(words(&[user, user + USED, user + AVAIL, log.unwrap_or(0)]));
        self.set(code::SET_VRING_ADDR, &body, &[])
    }

    pub fn get_base(&self, index: u32) -> Option<u32> {
        self.ask(code::GET_VRING_BASE, &halves(&[index, 0])).map(|body| half(&body, 4))
    }

    /// Sends all that a ring needs, in QEMU's order.
    pub fn start(&self, index: u32, ring: &Ring<'_>) -> bool {
        self.start_at(index, ring, 0)
    }

    pub fn start_at(&self, index: u32, ring: &Ring<'_>, base: u32) -> bool {
        self.vring(code::SET_VRING_NUM, index, SIZE.into())
            && self.vring(code::SET_VRING_BASE, index, base)
            && self.addresses(index, ring, None)
            && self.fd(code::SET_VRING_ERR, index, &ring.err)
            && self.fd(code::SET_VRING_KICK, index, &ring.kick)
            && self.fd(code::SET_VRING_CALL, index, &ring.call)
            && self.vring(code::SET_VRING_ENABLE, index, 1)
    }

    /// Sends all that a ring of the driver's needs.
    pub fn start_driven(
        &self,
        index: u32,
        arena: &Arena,
        layout: Layout,
        base: u32,
        door: &Door,
    ) -> bool {
        let mut addresses = halves(&[index, 0]);
        let parts = [layout.desc, layout.device, layout.driver].map(|part| arena.to_user(part));
        addresses.extend(words(&parts));
        addresses.extend(words(&[0]));
        self.vring(code::SET_VRING_NUM, index, layout.size.into())
            && self.vring(code::SET_VRING_BASE, index, base)
            && self.set(code::SET_VRING_ADDR, &addresses, &[])
            && self.fd(code::SET_VRING_ERR, index, &door.err)
            && self.fd(code::SET_VRING_KICK, index, &door.kick)
            && self.fd(code::SET_VRING_CALL, index, &door.call)
            && self.vring(code::SET_VRING_ENABLE, index, 1)
    }

    pub fn add_arena(&self, arena: &Arena) -> bool {
        let region = words(&[0, arena.base(), arena.size(), arena.user_addr(), 0]);
        self.set(code::ADD_MEM_REG, &region, &[arena.fd().unwrap()])
    }

    pub fn config(&self, offset: u32, size: u32) -> Vec<u8> {
        let mut body = halves(&[offset, size, 0]);
        body.resize(12 + size as usize, 0);
        self.ask(code::GET_CONFIG, &body).unwrap().split_off(12)
    }

    pub fn set_config(&self, offset: u32, bytes: &[u8]) -> bool {
        let mut body = halves(&[offset, bytes.len() as u32, 1]);
        body.extend(bytes);
        self.set(code::SET_CONFIG, &body, &[])
    }
}

pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn halves(halves: &[u32]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_le_bytes()).collect()
}

pub fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// The descriptors of one queue.
pub struct Door {
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub err: OwnedFd,
}

impl Door {
    pub fn new() -> Door {
        Door { kick: event(), call: event(), err: event() }
    }

    pub fn kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }
}

/// Waits for an eventfd; empties it.
pub fn signalled(fd: &OwnedFd, within: Duration) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let ready = rustix::event::poll(&mut fds, Some(&timespec(within))).unwrap() > 0;
    ready && rustix::io::read(fd, &mut [0u8; 8]).is_ok()
}

/// Guest memory: one memfd, never mapped on this side, so that it can be truncated without harm
/// here.
pub struct Memory {
    pub file: File,
    pub guest: u64,
    pub user: u64,
    pub size: u64,
}

impl Memory {
    pub fn new(guest: u64, size: u64) -> Memory {
        let file =
            File::from(rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(size).unwrap();
        // Far from the guest's address, so that the two cannot be confused.
        Memory { file, guest, user: 0x7f00_0000_0000 + guest, size }
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }
}

/// Entries of a [`Ring`], requests that it has room for, and where its parts lie.
pub const SIZE: u16 = 64;
pub const SLOTS: u16 = 16;
pub const AVAIL: u64 = 0x800;
pub const USED: u64 = 0x1000;
pub const HEADERS: u64 = 0x2000;
pub const STATUS: u64 = 0x3000;
pub const DATA: u64 = 0x4000;
/// Bytes that a ring takes.
pub const RING: u64 = 0x1_4000;

/// A split ring of 64 entries with 16 request slots of 4 KiB, at offset `at` of a memory.
pub struct Ring<'a> {
    pub memory: &'a Memory,
    pub at: u64,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub err: OwnedFd,
    pub next: u16,
    pub seen: u16,
}

impl<'a> Ring<'a> {
    pub fn new(memory: &'a Memory, at: u64) -> Ring<'a> {
        Ring { memory, at, kick: event(), call: event(), err: event(), next: 0, seen: 0 }
    }

    pub fn descriptor(&self, index: u16, guest: u64, len: u32, flags: u16, next: u16) {
        let mut entry = words(&[guest]);
        entry.extend(len.to_le_bytes());
        entry.extend(flags.to_le_bytes());
        entry.extend(next.to_le_bytes());
        self.memory.put(self.at + u64::from(index) * 16, &entry);
    }

    fn guest(&self, offset: u64) -> u64 {
        self.memory.guest + self.at + offset
    }

    pub fn data_at(slot: u16) -> u64 {
        DATA + u64::from(slot) * 0x1000
    }

    /// Writes a request's header and its chain: header, data (unless there are none), status.
    pub fn build(&self, slot: u16, kind: u32, sector: u64, len: u32) {
        self.build_with(slot, kind, 0, sector, len);
    }

    /// The same with an I/O priority.
    pub fn build_with(&self, slot: u16, kind: u32, ioprio: u32, sector: u64, len: u32) {
        let slot64 = u64::from(slot);
        let mut header = halves(&[kind, ioprio]);
        header.extend(words(&[sector]));
        self.memory.put(self.at + HEADERS + slot64 * 16, &header);
        self.memory.put(self.at + STATUS + slot64, &[0xff]);
        let first = slot * 3;
        let to_status = if len == 0 { first + 2 } else { first + 1 };
        self.descriptor(first, self.guest(HEADERS + slot64 * 16), 16, 1, to_status);
        let writable = if kind == IN || kind == GET_ID { 2 } else { 0 };
        self.descriptor(first + 1, self.guest(Ring::data_at(slot)), len, writable | 1, first + 2);
        self.descriptor(first + 2, self.guest(STATUS + slot64), 1, 2, 0);
    }

    /// Makes a chain available; the driver's index follows with [`Ring::publish`].
    pub fn offer(&mut self, head: u16) {
        let at = self.at + AVAIL + 4 + u64::from(self.next % SIZE) * 2;
        self.memory.put(at, &head.to_le_bytes());
        self.next = self.next.wrapping_add(1);
    }

    pub fn publish(&self) {
        self.memory.put(self.at + AVAIL + 2, &self.next.to_le_bytes());
    }

    pub fn kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Builds, offers, publishes and kicks.
    pub fn submit(&mut self, slot: u16, kind: u32, sector: u64, len: u32) {
        self.build(slot, kind, sector, len);
        self.offer(slot * 3);
        self.publish();
        self.kick();
    }

    /// Slots that have come back since the last look.
    pub fn used(&mut self) -> Vec<u16> {
        let index = u16::from_le_bytes(self.memory.get(self.at + USED + 2, 2).try_into().unwrap());
        let mut slots = Vec::new();
        while self.seen != index {
            let entry = self.memory.get(self.at + USED + 4 + u64::from(self.seen % SIZE) * 8, 4);
            slots.push((half(&entry, 0) / 3) as u16);
            self.seen = self.seen.wrapping_add(1);
        }
        slots
    }

    /// Waits until so many requests have come back, by interrupt only.
    pub fn wait(&mut self, count: usize) -> Vec<u16> {
        let mut slots = self.used();
        let begin = Instant::now();
        while slots.len() < count {
            let left = LIMIT.saturating_sub(begin.elapsed());
            assert!(signalled(&self.call, left), "{} of {count} requests came back", slots.len());
            slots.extend(self.used());
        }
        assert_eq!(slots.len(), count);
        slots
    }

    /// Returns true if an answer comes, with or without an interrupt.
    pub fn is_answered(&mut self) -> bool {
        let begin = Instant::now();
        while self.used().is_empty() {
            if begin.elapsed() > LIMIT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Returns true if no answer comes for a while.
    pub fn is_quiet(&mut self) -> bool {
        std::thread::sleep(Duration::from_millis(100));
        self.used().is_empty()
    }

    pub fn status(&self, slot: u16) -> u8 {
        self.memory.get(self.at + STATUS + u64::from(slot), 1)[0]
    }

    pub fn data(&self, slot: u16, len: usize) -> Vec<u8> {
        self.memory.get(self.at + Ring::data_at(slot), len)
    }

    pub fn set_data(&self, slot: u16, bytes: &[u8]) {
        self.memory.put(self.at + Ring::data_at(slot), bytes);
    }
}

/// A directory in memory, if there is one with room for so many bytes.
pub fn in_memory(bytes: u64) -> Option<TempDir> {
    let directory = tempfile::tempdir_in("/dev/shm").ok()?;
    let room = rustix::fs::statvfs(directory.path()).ok()?;
    (room.f_bavail * room.f_frsize >= bytes).then_some(directory)
}

/// An image of zeroes in a new file. Outside /dev/shm, where it would be mapped.
pub fn image(directory: &Path, bytes: u64) -> PathBuf {
    let path = directory.join("disk.raw");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}
