//! A vhost-user session with a back end, from the front end's side.
//!
//! [`Session::connect`] negotiates and reads the device's configuration, [`Session::start`] gives
//! the back end the memory and starts its queues, [`Session::stop`] takes them back. Dropping a
//! session hangs up.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::ring::{Arena, BlkOptions, BlkQueue, Format, Layout};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight,
    VhostUserProtocolFeatures as Protocol,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vlane_error::counted;

use crate::device::{
    BlkConfig, CONFIG_BYTES, CONFIG_BYTES_SHORT, Negotiated, WRITEBACK_AT, feature,
};
use crate::error::{Error, ErrorKind};
use crate::message;
use crate::watchdog::within;

mod reconnect;

/// The guest physical address of the memory: above 4 GiB, as a large guest's is.
const MEMORY_BASE: u64 = 1 << 32;

/// The need for a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Want {
    /// Not negotiated.
    No,
    /// Negotiated if offered.
    #[default]
    IfOffered,
    /// An error if not offered.
    Must,
}

/// A session's options.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Queues to use.
    pub queues: u16,
    /// Requests that can be out at once on each queue.
    pub depth: u16,
    /// Bytes of data buffer per request (a multiple of 512).
    pub data: u32,
    /// Segments the data is cut into.
    pub segments: u16,
    /// Entries of each queue; `None` takes what the depth needs, at least 128.
    pub queue_size: Option<u16>,
    /// Packed rings ([`Want::No`] by default elsewhere; what a guest asks for by default).
    pub packed: Want,
    /// Event index.
    pub event_idx: Want,
    /// Indirect descriptors.
    pub indirect: Want,
    /// Switches the volatile write cache on or off, as a guest does through `cache_type`; `None`
    /// leaves it.
    pub write_cache: Option<bool>,
    /// Memory in which the back end marks its requests in flight, for the next back end.
    pub inflight: Want,
    /// The time to wait for another back end at the same socket when this one is gone; requests
    /// that are out stay out. `None`: no wait.
    pub reconnect: Option<Duration>,
    /// The time in which the back end has to answer: the negotiation, the start, the stop, each.
    pub timeout: Duration,
}

impl Default for SessionOptions {
    /// One queue, one request of 4 KiB, split ring; event index and indirect descriptors if
    /// offered, as a Linux guest does.
    fn default() -> Self {
        Self {
            queues: 1,
            depth: 1,
            data: 4096,
            segments: 1,
            queue_size: None,
            packed: Want::No,
            event_idx: Want::IfOffered,
            indirect: Want::IfOffered,
            write_cache: None,
            inflight: Want::No,
            reconnect: None,
            timeout: Duration::from_secs(10),
        }
    }
}

/// A queue of a started session: requests, and the two signals. It belongs to one thread at a time.
#[derive(Debug)]
pub struct GuestQueue {
    /// The requests.
    pub blk: BlkQueue,
    signals: Signals,
    calls: Calls,
}

/// A queue's eventfds. The session keeps them, too.
#[derive(Debug, Clone)]
struct Signals {
    kick: Arc<OwnedFd>,
    call: Arc<OwnedFd>,
}

impl GuestQueue {
    /// Makes a queue in `arena`.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if there are no descriptors left, [`ErrorKind::Queue`] if the arena is
    /// too small or the options do not fit together.
    fn new(arena: &Arena, options: BlkOptions) -> Result<Self, Error> {
        let event = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(system("make an eventfd"))
        };
        let signals = Signals { kick: Arc::new(event()?), call: Arc::new(event()?) };
        let calls = Calls::watch([&signals])?;
        Ok(Self { blk: BlkQueue::new(arena, options)?, signals, calls })
    }

    /// Tells the back end that there are requests.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the eventfd cannot be written.
    #[inline]
    pub fn kick(&self) -> Result<(), Error> {
        signal(&self.signals.kick).map_err(system("kick the back end"))
    }

    /// Waits for an interrupt from the back end, or from [`Waker::wake`]; may return without one.
    ///
    /// One system call: the eventfd is watched by its edges and never read.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if it cannot be waited for.
    #[inline]
    pub fn wait(&self) -> Result<(), Error> {
        self.calls.wait(None)
    }

    /// As [`GuestQueue::wait`], but no longer than `most`. The thread's timer slack may add to
    /// that.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if it cannot be waited for.
    #[inline]
    pub fn wait_for(&self, most: Duration) -> Result<(), Error> {
        self.calls.wait(Some(most))
    }
}

/// The interrupts of several queues, for one thread that drives them all.
#[derive(Debug)]
pub(crate) struct Calls(OwnedFd);

impl Calls {
    /// The wait set of some queues. The queues' own [`GuestQueue::wait`] stays usable.
    pub(crate) fn of(queues: &[GuestQueue]) -> Result<Self, Error> {
        Self::watch(queues.iter().map(|queue| &queue.signals))
    }

    fn watch<'a>(queues: impl IntoIterator<Item = &'a Signals>) -> Result<Self, Error> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("make an epoll instance"))?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        for Signals { call, .. } in queues {
            epoll::add(&epoll, call, epoll::EventData::new_u64(0), flags)
                .map_err(system("watch an eventfd"))?;
        }
        Ok(Self(epoll))
    }

    /// Waits for an interrupt of any of the queues, or from [`Waker::wake`], no longer than `most`;
    /// may return without one.
    #[inline]
    pub(crate) fn wait(&self, most: Option<Duration>) -> Result<(), Error> {
        let none =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        match epoll::wait(&self.0, &mut [none; 16], most.map(timespec).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(system("wait for an interrupt")(e)),
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Adds one to an eventfd; a full one counts as signalled.
#[inline]
fn signal(eventfd: &OwnedFd) -> rustix::io::Result<()> {
    match rustix::io::write(eventfd, &1_u64.to_ne_bytes()) {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(e) => Err(e),
    }
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |e| Error::caused_by(ErrorKind::System, format!("cannot {what}"), io::Error::from(e))
}

/// Wakes the threads that wait for interrupts: at the end of a run, or when the back end is gone.
#[derive(Debug)]
pub struct Waker(Vec<Signals>);

impl Waker {
    /// Makes every queue's [`GuestQueue::wait`] return once.
    pub fn wake(&self) {
        for Signals { call, .. } in &self.0 {
            // An eventfd can be written, or else no thread waits for it either.
            let _ = signal(call);
        }
    }
}

/// A connection to a vhost-user-blk back end.
pub struct Session {
    socket: PathBuf,
    frontend: Frontend,
    /// The same connection: for its hang-up, the peer's identity, and the message that the vhost
    /// crate cannot say.
    stream: UnixStream,
    pid: Option<i32>,
    config: BlkConfig,
    negotiated: Negotiated,
    options: BlkOptions,
    /// As it was asked for, for another connection like this.
    wanted: SessionOptions,
    arena: Option<Arena>,
    /// The queues that run.
    started: Vec<(Layout, Signals)>,
    /// The back end agreed to mark what it has in flight; and where, once it was asked.
    marks_inflight: bool,
    inflight: Option<(VhostUserInflight, std::fs::File)>,
    reconnects: u64,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Session");
        shown.field("socket", &self.socket).field("negotiated", &self.negotiated);
        shown.finish_non_exhaustive()
    }
}

impl Session {
    /// Connects to the back end that listens at `socket`, agrees on features and reads the device's
    /// configuration.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] if no back end can be reached, and [`ErrorKind::Unsupported`] if it
    /// lacks a required feature. [`ErrorKind::Invalid`] if the options do not fit.
    /// [`ErrorKind::Protocol`], [`ErrorKind::Gone`] and [`ErrorKind::Timeout`] if it does not
    /// answer as it should.
    pub fn connect(socket: &Path, options: &SessionOptions) -> Result<Self, Error> {
        let stream = open(socket)?;
        let twin = duplicate(&stream)?;
        within(options.timeout, socket, &twin, || Self::negotiate(stream, socket, options))
    }

    fn negotiate(
        stream: UnixStream,
        socket: &Path,
        options: &SessionOptions,
    ) -> Result<Self, Error> {
        let pid = rustix::net::sockopt::socket_peercred(&stream)
            .ok()
            .map(|cred| cred.pid.as_raw_nonzero().get());
        let mut frontend = Frontend::from_stream(duplicate(&stream)?, 256);
        let at = |step: &'static str| move |e| Error::protocol(socket, step, e);
        let offered = offered_features(&frontend, socket)?;
        let acked = protocol_features(&mut frontend, socket, options)?;
        let marks_inflight = acked.contains(Protocol::INFLIGHT_SHMFD);
        let most = match acked.contains(Protocol::MQ) {
            true => frontend.get_queue_num().map_err(at("GET_QUEUE_NUM"))?,
            false => 1,
        };
        let config = read_config(&mut frontend, offered).map_err(at("GET_CONFIG"))?;
        check_queues(options.queues, most, &config, socket)?;

        let bits = wanted(options, offered, socket)?;
        let blk = BlkOptions {
            format: if bits & feature::RING_PACKED != 0 { Format::Packed } else { Format::Split },
            size: options.queue_size,
            depth: options.depth,
            data: options.data,
            segments: segments(options, &config, socket)?,
            indirect: bits & feature::INDIRECT_DESC != 0,
            event_idx: bits & feature::EVENT_IDX != 0,
        };
        let queue_size = blk.queue_size()?;
        frontend.set_features(bits).map_err(at("SET_FEATURES"))?;

        let mut session = Self {
            socket: socket.to_owned(),
            frontend,
            stream,
            pid,
            negotiated: Negotiated {
                bits,
                packed: blk.format == Format::Packed,
                event_idx: blk.event_idx,
                indirect: blk.indirect,
                flush: bits & feature::FLUSH != 0,
                queues: options.queues,
                queue_size,
                write_cache: config.write_cache,
            },
            config,
            options: blk,
            wanted: options.clone(),
            arena: None,
            started: Vec::new(),
            marks_inflight,
            inflight: None,
            reconnects: 0,
        };
        if let Some(on) = options.write_cache {
            session.set_write_cache(on)?;
        }
        Ok(session)
    }

    /// Switches the device's volatile write cache.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if it cannot be switched and is not as wanted;
    /// [`ErrorKind::Protocol`] if the back end refuses.
    fn set_write_cache(&mut self, on: bool) -> Result<(), Error> {
        if self.negotiated.bits & feature::CONFIG_WCE == 0 {
            if self.negotiated.write_cache == on {
                return Ok(());
            }
            let context = format!("{}: the write cache cannot be switched", self.socket.display());
            return ErrorKind::Unsupported.fail(context);
        }
        // No flag means "a field that the guest may write" in the protocol; the crate's WRITABLE is
        // not that, and QEMU hangs up at it.
        self.frontend
            .set_config(WRITEBACK_AT, VhostUserConfigFlags::empty(), &[u8::from(on)])
            .map_err(|e| Error::protocol(&self.socket, "SET_CONFIG (write cache)", e))?;
        self.negotiated.write_cache = on;
        Ok(())
    }

    /// The socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process that listens at the socket, if the system tells (it does not across process
    /// namespaces).
    pub fn pid(&self) -> Option<i32> {
        self.pid.filter(|pid| *pid > 0)
    }

    /// The device's description of itself.
    pub fn config(&self) -> &BlkConfig {
        &self.config
    }

    /// The result of the negotiation.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Requests that can be out at once on each queue.
    pub fn depth(&self) -> u16 {
        self.options.depth.max(1)
    }

    /// Bytes of data buffer per request.
    pub fn data(&self) -> u32 {
        self.options.data.max(512)
    }

    /// Shares the memory, makes the queues and starts them.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if there is no memory, the kinds of [`Session::connect`] if the back
    /// end does not play along, [`ErrorKind::Invalid`] if the session was started before.
    pub fn start(&mut self) -> Result<(Vec<GuestQueue>, Waker), Error> {
        if self.arena.is_some() {
            return ErrorKind::Invalid.fail("the session has been started already");
        }
        let count = self.negotiated.queues;
        let arena = Arena::new(MEMORY_BASE, self.options.arena_bytes()? * usize::from(count))?;
        let queues = (0..count)
            .map(|_| GuestQueue::new(&arena, self.options))
            .collect::<Result<Vec<_>, _>>()?;
        let signals = queues.iter().map(|queue| queue.signals.clone());
        let waker = Waker(signals.collect());
        let started: Vec<_> =
            queues.iter().map(|queue| (queue.blk.layout(), queue.signals.clone())).collect();
        self.begin(&arena, &started)?;
        self.started = started;
        self.arena = Some(arena);
        Ok((queues, waker))
    }

    /// Gives the back end the memory and the queues.
    fn begin(&mut self, arena: &Arena, queues: &[(Layout, Signals)]) -> Result<(), Error> {
        let socket = self.socket.clone();
        let at = |step: &'static str| {
            let socket = socket.clone();
            move |e| Error::protocol(&socket, step, e)
        };
        let sent = |step: &'static str| {
            let context = format!("{}: cannot send {step} to the back end", socket.display());
            move |e: io::Error| Error::caused_by(ErrorKind::Gone, context, e)
        };
        let fd =
            arena.fd().ok_or_else(|| Error::new(ErrorKind::System, "the memory has no file"))?;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: arena.base(),
            memory_size: arena.size(),
            userspace_addr: arena.user_addr(),
            mmap_offset: 0,
            mmap_handle: fd.as_raw_fd(),
        };
        let (stream, frontend, inflight) = (&self.stream, &mut self.frontend, &mut self.inflight);
        let marks_inflight = self.marks_inflight;
        within(self.wanted.timeout, &self.socket, stream, || {
            frontend.set_mem_table(&[region]).map_err(at("SET_MEM_TABLE"))?;
            if marks_inflight {
                reconnect::share_marks(frontend, inflight, queues)
                    .map_err(at("the in-flight tracking"))?;
            }
            for (index, (layout, signals)) in (0_u16..).zip(queues) {
                let i = usize::from(index);
                frontend.set_vring_num(i, layout.size).map_err(at("SET_VRING_NUM"))?;
                match layout.format {
                    // The knowledge of a front end that cannot ask the back end before: the used
                    // index, and where the ring once began.
                    Format::Split => {
                        let used = arena.half_word(layout.device + 2).unwrap_or(0);
                        frontend.set_vring_base(i, used).map_err(at("SET_VRING_BASE"))?;
                    }
                    Format::Packed => {
                        message::packed_base(stream, index).map_err(sent("SET_VRING_BASE"))?;
                    }
                }
                let rings = VringConfigData {
                    queue_max_size: layout.size,
                    queue_size: layout.size,
                    flags: 0,
                    desc_table_addr: arena.to_user(layout.desc),
                    used_ring_addr: arena.to_user(layout.device),
                    avail_ring_addr: arena.to_user(layout.driver),
                    log_addr: None,
                };
                frontend.set_vring_addr(i, &rings).map_err(at("SET_VRING_ADDR"))?;
                message::call(stream, index, signals.call.as_fd())
                    .map_err(sent("SET_VRING_CALL"))?;
                message::kick(stream, index, signals.kick.as_fd())
                    .map_err(sent("SET_VRING_KICK"))?;
            }
            for i in 0..queues.len() {
                frontend.set_vring_enable(i, true).map_err(at("SET_VRING_ENABLE"))?;
            }
            Ok(())
        })
    }

    /// Stops the queues. Requests that are out are finished by the back end before it answers.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`], [`ErrorKind::Timeout`], [`ErrorKind::Protocol`] if it does not answer
    /// as it should.
    pub fn stop(&mut self) -> Result<(), Error> {
        let queues = std::mem::take(&mut self.started).len();
        within(self.wanted.timeout, &self.socket, &self.stream, || {
            (0..queues).try_for_each(|i| match self.frontend.get_vring_base(i) {
                Ok(_) => Ok(()),
                Err(e) => Err(Error::protocol(&self.socket, "GET_VRING_BASE", e)),
            })
        })
    }

    /// Waits until the back end hangs up, but no longer than `timeout`; returns true if it has.
    pub fn wait_hangup(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::RDHUP)];
        let signs = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        poll(&mut fds, Some(&timespec(timeout))).is_ok_and(|n| n > 0)
            && fds[0].revents().intersects(signs)
    }
}

fn duplicate(stream: &UnixStream) -> Result<UnixStream, Error> {
    let failed = |e| Error::caused_by(ErrorKind::System, "cannot duplicate the socket", e);
    stream.try_clone().map_err(failed)
}

/// Connects, with an error that says what is wrong with the path.
fn open(socket: &Path) -> Result<UnixStream, Error> {
    if std::fs::metadata(socket).is_ok_and(|meta| !meta.file_type().is_socket()) {
        let why = "is not a socket; give the path that the back end listens on";
        return ErrorKind::Connect.fail(format!("{}: {why}", socket.display()));
    }
    UnixStream::connect(socket).map_err(|e| {
        let why = match e.kind() {
            io::ErrorKind::NotFound => "there is no such socket; start the back end first",
            io::ErrorKind::ConnectionRefused => {
                "no process listens on this socket; the back end that made it has ended"
            }
            io::ErrorKind::PermissionDenied => "no permission to connect to this socket",
            io::ErrorKind::InvalidInput => "not a possible socket path (107 bytes are the most)",
            _ => "cannot connect",
        };
        Error::caused_by(ErrorKind::Connect, format!("{}: {why}", socket.display()), e)
    })
}

/// Reads the configuration space, of which old back ends have less.
fn read_config(frontend: &mut Frontend, features: u64) -> vhost::Result<BlkConfig> {
    let mut ask = |bytes: usize| {
        #[expect(clippy::cast_possible_truncation, reason = "60 at most")]
        let size = bytes as u32;
        frontend.get_config(0, size, VhostUserConfigFlags::empty(), &vec![0; bytes])
    };
    let (_, bytes) = ask(CONFIG_BYTES).or_else(|_| ask(CONFIG_BYTES_SHORT))?;
    Ok(BlkConfig::parse(&bytes, features))
}

/// The number of data segments: what was asked for, or more if the device limits a segment's size.
fn segments(options: &SessionOptions, config: &BlkConfig, socket: &Path) -> Result<u16, Error> {
    let forced = config.size_max.map_or(1, |max| options.data.div_ceil(max.max(512) / 512 * 512));
    let wanted = u32::from(options.segments.max(1)).max(forced);
    let most = config.seg_max.unwrap_or(u32::MAX).min(32000);
    u16::try_from(wanted).ok().filter(|n| u32::from(*n) <= most).ok_or_else(|| {
        let context = format!(
            "{}: {wanted} segments per request are needed, the device takes {most}",
            socket.display()
        );
        Error::new(ErrorKind::Invalid, context)
    })
}

/// Refuses more queues than there are.
fn check_queues(wanted: u16, most: u64, config: &BlkConfig, socket: &Path) -> Result<(), Error> {
    if u64::from(wanted) <= most && wanted > 0 {
        return Ok(());
    }
    let most = most.min(config.num_queues.into());
    ErrorKind::Invalid.fail(format!(
        "{}: {} asked for, the back end has {most}",
        socket.display(),
        counted(wanted, "queue")
    ))
}

/// Takes the back end over; returns the features that it offers, the needed ones among them.
fn offered_features(frontend: &Frontend, socket: &Path) -> Result<u64, Error> {
    let at = |step: &'static str| move |e| Error::protocol(socket, step, e);
    frontend.set_owner().map_err(at("SET_OWNER"))?;
    let offered = frontend.get_features().map_err(at("GET_FEATURES"))?;
    for (bit, what) in [
        (feature::VERSION_1, "virtio 1.0"),
        (feature::PROTOCOL_FEATURES, "vhost-user protocol features"),
    ] {
        if offered & bit == 0 {
            return Err(lacks(socket, what));
        }
    }
    Ok(offered)
}

/// Agrees on protocol features.
fn protocol_features(
    frontend: &mut Frontend,
    socket: &Path,
    options: &SessionOptions,
) -> Result<Protocol, Error> {
    let at = |step: &'static str| move |e| Error::protocol(socket, step, e);
    let offered = frontend.get_protocol_features().map_err(at("GET_PROTOCOL_FEATURES"))?;
    if !offered.contains(Protocol::CONFIG) {
        let what = "its configuration (protocol feature CONFIG), so its size cannot be known";
        return Err(lacks(socket, what));
    }
    let mut acked = offered & (Protocol::MQ | Protocol::CONFIG | Protocol::REPLY_ACK);
    if options.inflight != Want::No {
        acked |= offered & Protocol::INFLIGHT_SHMFD;
    }
    if options.inflight == Want::Must && !acked.contains(Protocol::INFLIGHT_SHMFD) {
        return Err(lacks(socket, "in-flight tracking (protocol feature INFLIGHT_SHMFD)"));
    }
    frontend.set_protocol_features(acked).map_err(at("SET_PROTOCOL_FEATURES"))?;
    if acked.contains(Protocol::REPLY_ACK) {
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    }
    Ok(acked)
}

/// The error for a missing requirement of a back end.
fn lacks(socket: &Path, what: &str) -> Error {
    let context = format!("{}: the back end does not offer {what}", socket.display());
    Error::new(ErrorKind::Unsupported, context)
}

/// The features to negotiate, of those that are offered.
fn wanted(options: &SessionOptions, offered: u64, socket: &Path) -> Result<u64, Error> {
    let choose = |want, bit, what: &str| match (want, offered & bit != 0) {
        (Want::No, _) | (Want::IfOffered, false) => Ok(0),
        (Want::IfOffered | Want::Must, true) => Ok(bit),
        (Want::Must, false) => Err(lacks(socket, what)),
    };
    Ok(feature::VERSION_1
        | feature::PROTOCOL_FEATURES
        | choose(options.packed, feature::RING_PACKED, "packed rings (VIRTIO_F_RING_PACKED)")?
        | choose(options.event_idx, feature::EVENT_IDX, "the event index (VIRTIO_F_EVENT_IDX)")?
        | choose(
            options.indirect,
            feature::INDIRECT_DESC,
            "indirect descriptors (VIRTIO_F_INDIRECT_DESC)",
        )?
        | offered
            & (feature::SIZE_MAX
                | feature::SEG_MAX
                | feature::RO
                | feature::BLK_SIZE
                | feature::FLUSH
                | feature::TOPOLOGY
                | feature::CONFIG_WCE
                | feature::MQ
                | feature::DISCARD
                | feature::WRITE_ZEROES))
}
