//! A session of one connected front end, and the meaning of the vhost-user messages in it.
//!
//! The order of messages is the front end's choice, and front ends differ. A ring runs as soon as
//! it has a size, addresses, a kick, is enabled, and its features are known, in any order. Memory
//! may be added while rings run; a call descriptor may come late. Every message is checked; a
//! message that makes no sense is refused, and too many of them end the session. Running rings are
//! drained before any of their parts goes away.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut};
use vlane_error::locked;
use vlane_lane::{
    EventReceiver, EventSender, LaneConfig, LaneError, LaneEvent, Snapshot, event_channel,
};
use vlane_memory::{DirtyLog, GuestMemory};
use vlane_ring::{Broken, Queue, probes};

mod messages;
mod notes;
mod relay;
mod restore;
mod tracking;
mod unused;

use crate::acceptor::{Acceptor, PATIENCE, Silence};
use crate::arriving;
use crate::config_change;
use crate::config_space::ConfigSpace;
use crate::features;
use crate::handover::{Relief, Talked};
use crate::padded_table;
use crate::report::Report;
use crate::sched::SchedulerSession;
use crate::session_report::{self, SessionReport, Sight};
use crate::signal_fd::{Signals, Use};
use crate::skip_drain;
use crate::unused::Unused;
use crate::volume::{SessionFacts, Volume};
use crate::vring::Vring;
use relay::Messages;
pub(crate) use restore::Restored;
use tracking::Tracking;

/// Refused messages after which a session ends.
const MAX_REFUSED: u32 = 64;

/// The end of a session.
#[derive(Debug)]
pub enum End {
    /// The front end closed the connection.
    HungUp,
    /// It was asked to end.
    Stopped,
    /// It sent no message while another front end waited.
    Silent,
    /// The front end broke the protocol, or the connection broke.
    Failed(Error),
}

/// A session's progress.
struct Standing {
    number: u64,
    /// The front end's process.
    peer: Option<i32>,
    /// Messages that were refused.
    refused: u32,
}

/// A session with one front end: what its messages mean here.
#[derive(Debug)]
pub struct Session {
    volume: Arc<Volume>,
    events: EventReceiver,
    state: Arc<Mutex<State>>,
}

impl Session {
    /// Makes a session on `volume` without a front end yet.
    ///
    /// # Errors
    /// An error if the system gives no eventfd.
    pub fn new(volume: Arc<Volume>) -> io::Result<Session> {
        let (sender, events) = event_channel()?;
        let state = Arc::new(Mutex::new(State::new(Arc::clone(&volume), sender)));
        Ok(Session { volume, events, state })
    }

    /// Serves the front end on `stream` until it hangs up, fails, or `stop` becomes readable; then
    /// drains its rings.
    pub fn run(&self, stream: UnixStream, stop: &OwnedFd) -> End {
        self.run_at(stream, stop, None, None)
    }

    /// As [`Session::run`]. A silent front end gives way to one that waits at `acceptor`, and
    /// `relief` takes over on request.
    pub(crate) fn run_at(
        &self,
        stream: UnixStream,
        stop: &OwnedFd,
        acceptor: Option<&Acceptor>,
        relief: Option<&Relief<'_>>,
    ) -> End {
        let number = self.volume.next_session();
        let peer = self.meet(number, &stream);
        tracing::info!(
            "{}: session {number}: front end {} connected",
            self.volume.config.name,
            session_report::process(peer)
        );
        let probed = u32::try_from(number).unwrap_or(u32::MAX);
        probes::session_connect(probed, peer.and_then(|pid| pid.try_into().ok()).unwrap_or(0));
        let end = match stream.try_clone() {
            Ok(copy) => {
                let messages = Messages::new(copy, &self.state);
                self.serve(
                    Standing { number, peer, refused: 0 },
                    messages,
                    &stream,
                    stop,
                    acceptor,
                    relief,
                )
            }
            Err(error) => End::Failed(Error::SocketError(error)),
        };
        self.end(number, peer, stream, end)
    }

    /// Whom the control socket tells of; the front end's process.
    fn meet(&self, number: u64, stream: &UnixStream) -> Option<i32> {
        let peer = rustix::net::sockopt::socket_peercred(stream)
            .ok()
            .map(|c| c.pid.as_raw_nonzero().get());
        *locked(&self.volume.session) =
            Some(SessionFacts { number, pid: peer, ..SessionFacts::default() });
        peer
    }

    /// After [`Session::serve`].
    fn end(&self, number: u64, peer: Option<i32>, stream: UnixStream, end: End) -> End {
        let name = &self.volume.config.name;
        probes::session_disconnect(u32::try_from(number).unwrap_or(u32::MAX));
        *locked(&self.volume.session) = None;
        let counters = {
            let mut state = locked(&self.state);
            // Losses were reported.
            let _ = state.stop_all();
            state.report()
        };
        // Not before: see `Handle::end`.
        drop(stream);
        let how = match &end {
            End::HungUp => "front end hung up".to_owned(),
            End::Stopped => "stopped".to_owned(),
            End::Silent => {
                format!("front end sent no message for {PATIENCE:?} while another one waited")
            }
            End::Failed(error) => format!("front end failed: {error}"),
        };
        match &end {
            End::Failed(_) | End::Silent => {
                tracing::warn!("{name}: session {number} ended: {how}{counters}");
            }
            _ => tracing::info!("{name}: session {number} ended: {how}{counters}"),
        }
        self.tell_unused(number, peer);
        end
    }

    /// `watched` is another descriptor of `stream`, which outlives this.
    fn serve(
        &self,
        standing: Standing,
        mut messages: Messages,
        watched: &UnixStream,
        stop: &OwnedFd,
        acceptor: Option<&Acceptor>,
        relief: Option<&Relief<'_>>,
    ) -> End {
        let Standing { number, peer, mut refused } = standing;
        let mut link = SchedulerSession::new(&self.volume, peer);
        // A continued session has sent messages before.
        let mut silence = acceptor.filter(|_| !messages.is_continued()).map(Silence::new);
        if let Err(error) = watched.set_read_timeout(silence.is_some().then_some(PATIENCE)) {
            return End::Failed(Error::SocketError(error));
        }
        let mut report = SessionReport::new(number, &self.volume);
        let mut is_message = false;
        loop {
            if report.turn(&self.volume, || locked(&self.state).sight(), is_message) {
                self.tell_unused(number, peer);
            }
            let limit = report.timeout();
            let waited = self.wait(watched, stop, relief, link.as_ref(), silence.as_ref(), limit);
            let ready = match waited {
                Ok(ready) => ready,
                Err(error) => return End::Failed(Error::SocketError(error)),
            };
            is_message = ready[0];
            if ready[2] {
                return End::Stopped;
            }
            // Between two messages.
            if let Some(relief) = relief.filter(|_| ready[5])
                && let Err(error) =
                    self.hand_over(relief, watched, number, refused, silence.as_ref())
            {
                return End::Failed(error);
            }
            if let Some(link) = &mut link {
                link.turn();
            }
            if ready[1]
                && let Err(error) = self.handle_events()
            {
                return End::Failed(error);
            }
            if !silence.as_mut().map_or(ready[0], |silence| silence.has_spoken(watched)) {
                if silence.as_mut().is_some_and(|silence| silence.is_over(ready[4])) {
                    return End::Silent;
                }
                continue;
            }
            let handled = self.handle_message(&mut messages, watched);
            if silence.take().is_some() {
                // It has spoken, and may take its time from now on.
                let _ = watched.set_read_timeout(None);
            }
            if let Some(end) = self.end_after(handled, &mut refused) {
                return end;
            }
        }
    }

    /// Waits for a message, event, stop, scheduler, front end or relief; returns the ready ones.
    fn wait(
        &self,
        watched: &UnixStream,
        stop: &OwnedFd,
        relief: Option<&Relief<'_>>,
        link: Option<&SchedulerSession>,
        silence: Option<&Silence<'_>>,
        limit: Option<Duration>,
    ) -> io::Result<[bool; 6]> {
        // Without a scheduler, its place is taken by what is waited for anyway.
        let scheduler = link.and_then(SchedulerSession::fd).unwrap_or(stop.as_fd());
        let mut fds = [
            PollFd::new(watched, silence.map_or(PollFlags::IN, Silence::wants)),
            PollFd::from_borrowed_fd(self.events.wake_fd(), PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
            PollFd::from_borrowed_fd(scheduler, PollFlags::IN),
            silence.map_or(PollFd::new(stop, PollFlags::IN), Silence::poll_fd),
            PollFd::from_borrowed_fd(relief.map_or(stop.as_fd(), Relief::wanted), PollFlags::IN),
        ];
        let timeouts =
            [link.and_then(SchedulerSession::timeout), limit, silence.and_then(Silence::timeout)];
        let timeout = timeouts.into_iter().flatten().min().and_then(|limit| limit.try_into().ok());
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(fds.map(|fd| !fd.revents().is_empty()))
    }

    fn handle_message(&self, messages: &mut Messages, watched: &UnixStream) -> Result<()> {
        let _handling = arriving::handling();
        if let Some(channel) = config_change::peek(watched) {
            locked(&self.state).backend_channel = Some(channel);
        }
        if let Some(table) = padded_table::take(watched) {
            self.use_table(watched, table)
        } else if let Some(queue) = skip_drain::take(watched) {
            self.suspend(watched, queue)
        } else {
            messages.handle(watched)
        }
    }

    /// Returns the end of the session, if a message ends it. `refused` counts the refused messages.
    fn end_after(&self, handled: Result<()>, refused: &mut u32) -> Option<End> {
        match handled {
            //= vhost-user Front-end message types
            //# If VHOST_USER_PROTOCOL_F_REPLY_ACK is negotiated, the back-end must respond with
            //# zero for success, non-zero otherwise.
            //= vhost-user Front-end message types
            //# If a file descriptor is passed, the back-end MUST close it without using it
            //# otherwise.
            Ok(()) => None,
            Err(Error::Disconnected) => Some(End::HungUp),
            Err(Error::SocketBroken(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                Some(End::HungUp)
            }
            // Refused, and said so to a front end that asked for an answer.
            Err(error @ (Error::ReqHandlerError(_) | Error::InvalidOperation(_))) => {
                if !was_reported(&error) {
                    tracing::warn!("{}: refused a message: {error}", self.volume.config.name);
                }
                *refused += 1;
                (*refused > MAX_REFUSED).then_some(End::Failed(error))
            }
            // Malformed, or lost: no answer was sent, and one may be waited for.
            Err(error) => Some(End::Failed(error)),
        }
    }

    /// Does the handler's work for a memory table that it would refuse.
    fn use_table(&self, stream: &UnixStream, mut table: padded_table::Table) -> Result<()> {
        let files = std::mem::take(&mut table.files);
        let done = match files.len() == table.regions.len() {
            true => locked(&self.state).set_mem_table(&table.regions, files, None).map(drop),
            false => Err(refuse("a memory table needs one file for each region")),
        };
        //= vhost-user VHOST_USER_PROTOCOL_F_REPLY_ACK
        //# This indicates that the back-end MUST respond with a Payload VhostUserMsg indicating
        //# success or failure.
        padded_table::answer(stream, &table, done.is_ok()).map_err(Error::SocketError)?;
        done
    }

    /// GET_VRING_BASE_SKIP_DRAIN.
    fn suspend(&self, stream: &UnixStream, queue: u32) -> Result<()> {
        let base = locked(&self.state).take_base(queue, true)?;
        skip_drain::answer(stream, queue, base.num).map_err(Error::SocketError)
    }

    /// # Errors
    /// An error if a lane is lost, and the session with it.
    fn handle_events(&self) -> Result<()> {
        while let Some(event) = self.events.next() {
            let name = &self.volume.config.name;
            match event {
                LaneEvent::Unreachable { index, hole } => {
                    let shared = locked(&self.state).memory.to_string();
                    tracing::warn!(
                        "{name}: queue {index}: a request has a buffer at {hole:#x}, which is not \
                         in the memory that the front end shares ({shared}); this and similar \
                         requests are answered with an error, and only the first is logged. {}",
                        session_report::PLUG
                    );
                }
                LaneEvent::Broken { index, reason } => {
                    let (whose, what_to_do) = match reason {
                        Broken::PlaceLost { .. } => ("", String::new()),
                        Broken::BadAddress { .. } => {
                            let shared = locked(&self.state).memory.to_string();
                            let text = format!(
                                ", nor is the place for its status; shared are {shared}. {}",
                                session_report::PLUG
                            );
                            ("its driver broke the rules, or memory is not shared: ", text)
                        }
                        _ => ("its driver broke the rules: ", String::new()),
                    };
                    tracing::warn!("{name}: queue {index} is stopped: {whose}{reason}{what_to_do}");
                    locked(&self.state).signal_error(index);
                }
                LaneEvent::Lost { index } => {
                    let mut state = locked(&self.state);
                    // There is no ring left to stop.
                    if let Some(vring) = state.vrings.get_mut(usize::from(index)) {
                        vring.running = false;
                    }
                    return Err(state.lane_failed(index, LaneError::Gone));
                }
            }
        }
        Ok(())
    }

    /// A handle for other threads.
    pub(crate) fn handle(&self) -> Handle {
        Handle { volume: Arc::clone(&self.volume), state: Arc::clone(&self.state) }
    }
}

/// A session's handle for other threads.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    volume: Arc<Volume>,
    state: Arc<Mutex<State>>,
}

impl Handle {
    /// Drains the rings for good: what the front end says after this starts none.
    ///
    /// This must come before the front end sees a hang-up. A front end that cannot ask for a ring's
    /// base any more takes the used index for it, at that moment (QEMU's
    /// `virtio_queue_restore_last_avail_idx`). Requests that are answered later would be repeated
    /// by the next back end and answered twice. A Linux guest gives up a queue that does that.
    pub(crate) fn end(&self) {
        let mut state = locked(&self.state);
        state.ended = true;
        let _ = state.stop_all();
    }

    /// Informs the lanes of the volume's new size, and the front end if it supports that.
    pub(crate) fn size_changed(&self) {
        let mut state = locked(&self.state);
        let sectors = self.volume.geometry().sectors;
        state.config.set_sectors(sectors);
        for index in state.running() {
            let _ = self.volume.pool.set_sectors(index, sectors, &state.calls());
        }
        state.tell_size();
    }
}

/// The session's state, changed by messages.
#[derive(Debug)]
struct State {
    volume: Arc<Volume>,
    events: EventSender,
    signals: Signals,
    features: u64,
    /// Protocol features that were agreed on.
    protocol: u64,
    /// SET_FEATURES came: no ring starts before, as its layout is not known.
    is_negotiated: bool,
    memory: Arc<GuestMemory>,
    log: Option<Arc<DirtyLog>>,
    /// The file that [`State::log`] was mapped from.
    log_file: Option<restore::LogFile>,
    /// The facts of the messages that the parsing crate keeps to itself.
    talked: Talked,
    vrings: Vec<Vring>,
    config: ConfigSpace,
    backend_channel: Option<OwnedFd>,
    /// The front end's memory of requests in flight, if it has one.
    tracking: Option<Tracking>,
    /// By queue, what its lanes counted in this session.
    totals: Vec<Snapshot>,
    /// No ring starts any more.
    ended: bool,
    /// No ring starts: the guest has another image.
    is_barred: bool,
    /// A ring has run since all data were written to the storage.
    has_run: bool,
    /// True if the write cache was switched on; none if it was not mentioned.
    switched: Option<bool>,
    /// The size that the front end has read last, in this session.
    seen_sectors: Option<u64>,
    /// The last message asked for the number of queues.
    was_asked_for_queues: bool,
    /// True if there was guest memory.
    had_memory: bool,
}

/// A refusal that was reported already, in more words than these.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Reported(&'static str);

fn refuse_reported(what: &'static str) -> Error {
    Error::ReqHandlerError(io::Error::new(io::ErrorKind::InvalidInput, Reported(what)))
}

fn was_reported(error: &Error) -> bool {
    let is_reported =
        |error: &io::Error| error.get_ref().is_some_and(|inner| inner.is::<Reported>());
    matches!(error, Error::ReqHandlerError(error) if is_reported(error))
}

fn refuse(what: impl std::fmt::Display) -> Error {
    Error::ReqHandlerError(io::Error::new(io::ErrorKind::InvalidInput, what.to_string()))
}

/// Refuses a message whose only answer is its success. Without one the front end would wait for
/// ever, so the session ends instead.
fn refuse_for_good(refused: Error) -> Error {
    tracing::warn!("a message that must be answered cannot be: {refused}");
    Error::BackendInternalError
}

impl State {
    fn new(volume: Arc<Volume>, events: EventSender) -> State {
        let queues = volume.queues();
        let config = ConfigSpace::new(&volume.geometry(), queues);
        State {
            events,
            signals: Signals::default(),
            features: 0,
            protocol: 0,
            is_negotiated: false,
            memory: Arc::default(),
            log: None,
            log_file: None,
            talked: Talked::default(),
            vrings: (0..queues).map(|_| Vring::default()).collect(),
            config,
            backend_channel: None,
            tracking: None,
            totals: vec![Snapshot::default(); usize::from(queues)],
            ended: false,
            is_barred: false,
            has_run: false,
            switched: None,
            seen_sectors: None,
            was_asked_for_queues: false,
            had_memory: false,
            volume,
        }
    }

    fn vring(&mut self, index: impl Into<u32>) -> Result<(u16, &mut Vring)> {
        let (index, count) = (index.into(), self.vrings.len());
        let vring = usize::try_from(index).ok().and_then(|index| self.vrings.get_mut(index));
        let vring = vring.ok_or_else(|| {
            refuse(format_args!(
                "queue {index} does not exist; this volume offers {count}, change it with --queues"
            ))
        })?;
        Ok((u16::try_from(index).unwrap_or(0), vring))
    }

    fn running(&self) -> Vec<u16> {
        (0..self.volume.queues()).filter(|index| self.vrings[usize::from(*index)].running).collect()
    }

    /// The call descriptors of all lanes, which the pool may have to empty.
    fn calls(&self) -> Vec<BorrowedFd<'_>> {
        self.vrings.iter().filter_map(|vring| vring.call.as_ref()).map(AsFd::as_fd).collect()
    }

    fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Returns true if writes must be durable when they are answered (5.2.5.2: the driver has to
    /// know of a cache to have one).
    fn write_through(&self) -> bool {
        //= virtio 5.2.6.2
        //# If the device is backed by persistent storage, the device MUST ensure that stable writes
        //# are committed to it, before reporting completion of the write (cases 1 and 2) or the
        //# flush (case 3).
        !self.has(features::BLK_FLUSH)
            || (self.has(features::BLK_CONFIG_WCE) && !self.config.write_back())
    }

    fn active_log(&self) -> Option<Arc<DirtyLog>> {
        if self.has(features::LOG_ALL) { self.log.clone() } else { None }
    }

    /// Checks a descriptor for kicks, calls or errors.
    fn signal_fd(&mut self, purpose: Use, index: u8, fd: Option<File>) -> Result<Option<File>> {
        let checked = |fd| {
            let fd = arriving::closing(fd)?;
            self.signals.check(purpose, index, &fd).map(|()| fd)
        };
        fd.map(checked).transpose().map_err(Error::ReqHandlerError)
    }

    /// Tells the front end that a ring is broken, if it wants to know. Does not wait, even if the
    /// front end changes the descriptor.
    fn signal_error(&mut self, index: u16) {
        let Some(err) = self.vrings.get(usize::from(index)).and_then(|vring| vring.err.as_ref())
        else {
            return;
        };
        if let Err(error) = self.signals.signal(err) {
            let name = &self.volume.config.name;
            tracing::warn!(
                "{name}: cannot tell the front end that queue {index} is stopped: {error}"
            );
        }
    }

    /// The error for a lane's refusal. A lost lane ends the session: its progress is unknown, so no
    /// answer about it would be true.
    fn lane_failed(&self, index: u16, error: LaneError) -> Error {
        match error {
            LaneError::Gone => {
                tracing::error!(
                    "{}: the thread of queue {index} has ended by a fault; this session ends, and \
                     the queues of that thread are not served until vlane is restarted",
                    self.volume.config.name
                );
                Error::BackendInternalError
            }
            error => refuse(format_args!("queue {index}: {error}")),
        }
    }

    /// Starts a lane for the ring, if all is there that it needs.
    fn try_start(&mut self, index: u16) -> Result<()> {
        let layout = self.layout();
        let event_idx = self.has(features::RING_EVENT_IDX);
        let (memory, log) = (Arc::clone(&self.memory), self.active_log());
        let vring = &self.vrings[usize::from(index)];
        // Without the protocol features there is no message to enable a ring, and all are.
        //= vhost-user Ring states
        //# In addition, upon receiving a VHOST_USER_SET_FEATURES message from the front-end without
        //# VHOST_USER_F_PROTOCOL_FEATURES set, the back-end must enable all rings immediately.
        let is_enabled = vring.enabled || !self.has(features::PROTOCOL_FEATURES);
        //= vhost-user Ring states
        //# While a ring is stopped, the back-end must not process the ring at all, regardless of
        //# whether it is enabled or disabled.
        if self.ended
            || self.is_barred
            || !self.is_negotiated
            || vring.running
            || !vring.started
            || !is_enabled
        {
            return Ok(());
        }
        let Some(config) = vring.queue_config(layout, event_idx) else { return Ok(()) };
        let log_addr = config.log_addr;
        // Some front ends map the ring's memory only after they have started it, in one region
        // after the other.
        let parts = [config.desc, config.driver, config.device];
        if parts.iter().any(|part| memory.guest_of_user(*part).is_none()) {
            tracing::debug!(
                "{}: queue {index} waits for the memory of its ring",
                self.volume.config.name
            );
            return Ok(());
        }
        let mut queue = Queue::new(config, memory)
            .map_err(|error| refuse(format_args!("queue {index}: {error}")))?;
        let again = self.track(index, &mut queue);
        self.settle_write_cache(index, &queue, again)?;
        let vring = &self.vrings[usize::from(index)];
        if queue.went_on() {
            tracing::info!(
                "{}: queue {index} continues where the last back end stopped ({:#x}), not where \
                 the front end expects ({:#x})",
                self.volume.config.name,
                queue.base(),
                queue.config().base
            );
        }
        if log.is_some() {
            queue.set_log(log, log_addr);
        }
        let duplicate = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
        let config = LaneConfig {
            queue,
            engine: Arc::clone(&self.volume.engine),
            kick: duplicate(&vring.kick).map_err(Error::ReqHandlerError)?,
            call: duplicate(&vring.call).map_err(Error::ReqHandlerError)?,
            serial: self.volume.serial(),
            write_through: self.write_through(),
            counters: Arc::clone(&self.volume.counters[usize::from(index)]),
            events: self.events.clone(),
            watch: self.volume.watch(),
            express: self.volume.config.express,
            classes: self.volume.classes.clone(),
        };
        let started = self.volume.pool.start(index, config, &self.calls());
        started.map_err(|error| self.lane_failed(index, error))?;
        let is_first = self.running().is_empty();
        self.vrings[usize::from(index)].running = true;
        self.has_run = true;
        if is_first {
            self.tell_size_at_start();
        }
        self.tell_facts();
        Ok(())
    }

    /// Drains and stops the ring's lane; afterwards its base says where to continue.
    ///
    /// # Errors
    /// An error if the lane is lost: the base is that of a start long ago.
    fn stop(&mut self, index: u16) -> Result<()> {
        self.stop_or_suspend(index, false)
    }

    fn stop_or_suspend(&mut self, index: u16, suspends: bool) -> Result<()> {
        if !std::mem::take(&mut self.vrings[usize::from(index)].running) {
            return Ok(());
        }
        let mut result = Ok(());
        //= vhost-user Migration
        //# No further update must be done before rings are restarted.
        let (pool, calls) = (&self.volume.pool, self.calls());
        let stopped = if suspends { pool.suspend(index, &calls) } else { pool.stop(index, &calls) };
        match stopped {
            Ok(Some(stopped)) => {
                self.vrings[usize::from(index)].base = stopped.base;
                self.totals[usize::from(index)].add(&stopped.counters);
            }
            Ok(None) => {}
            Err(error) => result = Err(self.lane_failed(index, error)),
        }
        self.tell_facts();
        result
    }

    /// Returns the visible state, for reports on the session.
    fn sight(&self) -> Sight {
        let running = self.vrings.iter().filter(|vring| vring.running);
        let table = |vring: &Vring| {
            let desc =
                vring.addresses.and_then(|addresses| self.memory.guest_of_user(addresses.desc));
            (desc, 16 * u64::from(vring.size))
        };
        let lacks_memory = self.unused() == Some(Unused::NoMemory);
        Sight {
            running: running.map(table).collect(),
            memory: Arc::clone(&self.memory),
            lacks_memory,
        }
    }

    /// Publishes the facts for the control socket.
    fn tell_facts(&self) {
        if let Some(facts) = &mut *locked(&self.volume.session) {
            (facts.features, facts.lanes) = (self.features, self.running());
        }
    }

    /// Stops all lanes, also when one is lost.
    fn stop_all(&mut self) -> Result<()> {
        self.volume.pool.hold(self.running());
        let mut result = Ok(());
        for index in 0..self.volume.queues() {
            result = result.and(self.stop(index));
        }
        result
    }

    /// Starts every ring that has what it needs.
    fn try_start_all(&mut self) -> Result<()> {
        let mut result = Ok(());
        for index in 0..self.volume.queues() {
            result = result.and(self.try_start(index));
        }
        result
    }

    /// Back to the state of a fresh connection; memory stays.
    fn reset(&mut self) -> Result<()> {
        self.stop_all()?;
        self.features = 0;
        self.is_negotiated = false;
        (self.log, self.log_file) = (None, None);
        // A device that was reset has no request in flight, even if its front end keeps some.
        if let Some(tracking) = self.tracking.take() {
            tracking.forget();
        }
        self.vrings.iter_mut().for_each(|vring| *vring = Vring::default());
        self.config = ConfigSpace::new(&self.volume.geometry(), self.volume.queues());
        // The front end may not ask what it is now.
        self.begin_write_cache();
        Ok(())
    }

    /// Gives new memory to running lanes, and to rings that waited for it.
    fn use_memory(&mut self, memory: GuestMemory, drain: bool) -> Result<()> {
        self.memory = Arc::new(memory);
        self.had_memory |= !self.memory.is_empty();
        let mut result = Ok(());
        // Every ring leaves the old memory, even if another one cannot continue in the new one.
        for index in self.running() {
            let changed =
                self.volume.pool.set_memory(index, Arc::clone(&self.memory), drain, &self.calls());
            result = result.and(changed.map_err(|error| self.lane_failed(index, error)));
        }
        result.and(self.try_start_all())
    }

    /// For each queue that was used, what it did; for the line that ends a session.
    fn report(&self) -> Report {
        Report(self.totals.clone())
    }

    fn update_log(&mut self, index: u16) -> Result<()> {
        let log_addr = self.vrings[usize::from(index)].log_addr;
        let set = self.volume.pool.set_log(index, self.active_log(), log_addr, &self.calls());
        set.map_err(|error| self.lane_failed(index, error))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = self.stop_all();
    }
}
