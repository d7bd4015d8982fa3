//! A session that goes from one process to the next.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{Error, Result};
use vlane_error::describe;
use vlane_error::locked;
use vlane_memory::{DirtyLog, GuestMemory, Region, RegionSpec};

use super::relay::Messages;
use super::tracking::Tracking;
use super::{End, Session, Standing, State, messages, refuse};
use crate::acceptor::{Acceptor, Silence};
use crate::config_space::ConfigSpace;
use crate::features;
use crate::handover::{
    Arrived, Descriptors, HandedPart, HandedRegion, HandedSession, HandedTracking, HandedVring,
    HandoverError, Relief,
};
use crate::volume::Volume;
use crate::vring::{Addresses, Vring};

/// The time that requests in progress have to be answered before the handover is given up.
const PATIENCE: Duration = Duration::from_secs(1);

/// The file and range of SET_LOG_BASE.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    offset: u64,
    size: u64,
}

/// A session that continues here.
pub(crate) struct Restored {
    pub(crate) session: Session,
    pub(crate) stream: UnixStream,
    messages: Messages,
    standing: Standing,
}

impl std::fmt::Debug for Restored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restored").field("session", &self.session).finish_non_exhaustive()
    }
}

impl State {
    pub(super) fn use_log(&mut self, file: File, offset: u64, size: u64) -> Result<()> {
        let log = DirtyLog::map(&file, offset, size).map_err(refuse)?;
        self.log = Some(Arc::new(log));
        self.log_file = Some(LogFile { file, offset, size });
        self.running().into_iter().try_for_each(|index| self.update_log(index))
    }

    /// Stops all lanes in time. Otherwise returns the reason, and then those lanes that could not
    /// continue.
    fn stop_in_time(&mut self) -> std::result::Result<(), String> {
        let counters = &self.volume.counters;
        let running = self.running();
        if self.is_barred {
            return Err("its front end's disk is another image, and does not run".to_owned());
        }
        let lanes: Vec<_> = running
            .iter()
            .map(|index| (*index, Arc::clone(&counters[usize::from(*index)])))
            .collect();
        let stopped =
            self.volume.pool.try_stop(&lanes, PATIENCE).map_err(|error| error.to_string())?;
        for (index, end) in &stopped {
            let index = usize::from(*index);
            self.vrings[index].running = false;
            self.vrings[index].base = end.base;
            self.totals[index].add(&end.counters);
        }
        match running.len() - stopped.len() {
            0 => Ok(()),
            left => Err(format!(
                "the storage does not answer requests of {left} queues within {PATIENCE:?}; look \
                 at the storage, and ask again when it answers"
            )),
        }
    }

    fn give(
        &self,
        number: u64,
        refused: u32,
        has_spoken: bool,
        stream: &UnixStream,
        to: &mut Descriptors,
    ) -> std::io::Result<HandedSession> {
        let mut memory = Vec::new();
        for region in self.memory.regions() {
            let RegionSpec { guest, size, user, offset } = region.spec();
            let file = region.file().ok_or(std::io::ErrorKind::NotFound)?;
            memory.push(HandedRegion { file: to.put(file)?, guest, size, user, offset });
        }
        let mut vrings = Vec::new();
        for vring in &self.vrings {
            vrings.push(HandedVring {
                size: vring.size,
                addresses: vring
                    .addresses
                    .map(|Addresses { desc, driver, device }| (desc, driver, device)),
                log_addr: vring.log_addr,
                base: vring.base,
                started: vring.started,
                enabled: vring.enabled,
                kick: to.put_some(vring.kick.as_ref())?,
                call: to.put_some(vring.call.as_ref())?,
                err: to.put_some(vring.err.as_ref())?,
            });
        }
        let mut part = |file: &File, offset, size| {
            Ok::<_, std::io::Error>(HandedPart { file: to.put(file)?, offset, size })
        };
        let log =
            self.log_file.as_ref().map(|log| part(&log.file, log.offset, log.size)).transpose()?;
        let tracking = |tracking: &Tracking| {
            let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } =
                tracking.shape;
            let part = part(&tracking.file, mmap_offset, mmap_size)?;
            Ok::<_, std::io::Error>(HandedTracking { part, queues: num_queues, queue_size })
        };
        let tracking = self.tracking.as_ref().map(tracking).transpose()?;
        Ok(HandedSession {
            number,
            refused,
            stream: to.put(stream)?,
            has_spoken,
            talked: self.talked,
            features: self.features,
            protocol: self.protocol,
            is_negotiated: self.is_negotiated,
            was_asked_for_queues: self.was_asked_for_queues,
            config: self.config.bytes().to_vec(),
            memory,
            log,
            tracking,
            backend_channel: to.put_some(self.backend_channel.as_ref())?,
            vrings,
        })
    }

    /// The front end's process, for people.
    pub(super) fn front_end(&self) -> String {
        crate::session_report::process(self.volume.session().and_then(|session| session.pid))
    }

    /// Refuses a guest with these features if it cannot be served.
    fn check_features(&self, features: u64) -> std::result::Result<(), String> {
        let geometry = self.volume.geometry();
        match features::in_the_way(features, &geometry) {
            0 => Ok(()),
            in_the_way => Err(features::refusal(in_the_way, &geometry, &self.front_end())),
        }
    }

    /// Does the steps of [`State::restore`] that can fail in the next process, without their
    /// effects: there is no way back from there. Names the failed step.
    fn rehearse(&self) -> std::result::Result<(), String> {
        self.check_features(self.features)?;
        let refused = |error: Error| format!("the session could not continue: {error}");
        let mut regions = Vec::new();
        for region in self.memory.regions() {
            let file = region.file().ok_or("a part of the guest's memory has no file")?;
            regions.push(
                Region::map(region.spec(), file)
                    .map_err(|error| refused(refuse(describe(&error))))?,
            );
        }
        GuestMemory::new(regions).map_err(|error| refused(refuse(error)))?;
        if let Some(LogFile { file, offset, size }) = &self.log_file {
            DirtyLog::map(file, *offset, *size)
                .map_err(|error| refused(refuse(describe(&error))))?;
        }
        self.tracking.as_ref().map_or(Ok(()), Tracking::rehearse).map_err(refused)
    }

    /// Becomes what another process was, and starts its rings.
    fn restore(
        &mut self,
        handed: HandedSession,
        from: &mut Arrived,
    ) -> std::result::Result<(), HandoverError> {
        let session = |error: Error| HandoverError::Session(error.to_string());
        let nonsense = HandoverError::Nonsense;
        self.check_features(handed.features).map_err(HandoverError::Session)?;
        if handed.vrings.len() != self.vrings.len() {
            return Err(nonsense("another number of queues"));
        }
        let mut regions = Vec::new();
        for HandedRegion { file, guest, size, user, offset } in handed.memory {
            let file = from.take(file)?.into();
            regions.push(
                messages::map(RegionSpec { guest, size, user, offset }, file).map_err(session)?,
            );
        }
        self.memory = Arc::new(GuestMemory::new(regions).map_err(|error| session(refuse(error)))?);
        for (vring, handed) in self.vrings.iter_mut().zip(handed.vrings) {
            *vring = Vring {
                size: handed.size,
                addresses: handed.addresses.map(|(desc, driver, device)| Addresses {
                    desc,
                    driver,
                    device,
                }),
                log_addr: handed.log_addr,
                base: handed.base,
                started: handed.started,
                kick: from.take_some(handed.kick)?,
                call: from.take_some(handed.call)?,
                err: from.take_some(handed.err)?.map(File::from),
                enabled: handed.enabled,
                running: false,
                has_run: true,
            };
        }
        if let Some(HandedPart { file, offset, size }) = handed.log {
            self.use_log(from.take(file)?.into(), offset, size).map_err(session)?;
        }
        if let Some(HandedTracking { part, queues, queue_size }) = handed.tracking {
            let shape = VhostUserInflight::new(part.size, part.offset, queues, queue_size);
            self.tracking =
                Some(Tracking::open(shape, from.take(part.file)?.into()).map_err(session)?);
        }
        self.backend_channel = from.take_some(handed.backend_channel)?;
        self.config = ConfigSpace::from_bytes(&handed.config)
            .ok_or(nonsense("a configuration space of another size"))?;
        self.talked = handed.talked;
        self.features = handed.features;
        self.protocol = handed.protocol;
        self.is_negotiated = handed.is_negotiated;
        self.was_asked_for_queues = handed.was_asked_for_queues;
        self.had_memory = !self.memory.is_empty();
        // A ring that does not run now may have run there: its base is not answered before a sync.
        self.has_run = true;
        // The front end does not say it again.
        self.switched = Some(self.config.write_back() || self.cannot_flush());
        let sectors = self.volume.geometry().sectors;
        let is_another = sectors != self.config.sectors();
        self.config.set_sectors(sectors);
        self.try_start_all().map_err(session)?;
        self.tell_facts();
        if is_another && self.running().is_empty() {
            self.tell_size();
        }
        Ok(())
    }
}

impl Session {
    /// Hands the session over, if there is no obstacle. Returns with all state as it was.
    ///
    /// # Errors
    /// An error if the session cannot even continue.
    pub(super) fn hand_over(
        &self,
        relief: &Relief<'_>,
        stream: &UnixStream,
        number: u64,
        refused: u32,
        silence: Option<&Silence<'_>>,
    ) -> Result<()> {
        let mut state = locked(&self.state);
        let has_spoken = silence.is_none();
        relief.hand_over(silence.and_then(Silence::waiting), &mut |descriptors| {
            state.rehearse()?;
            state.stop_in_time()?;
            let handed = state.give(number, refused, has_spoken, stream, descriptors);
            handed
                .map(Some)
                .map_err(|error| format!("the session's descriptors cannot be copied: {error}"))
        });
        state.try_start_all()?;
        Ok(())
    }

    /// Restores a session that another process has begun, on a volume like that process's; its
    /// rings run when this returns.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub(crate) fn restore(
        volume: &Arc<Volume>,
        handed: HandedSession,
        from: &mut Arrived,
    ) -> std::result::Result<Restored, HandoverError> {
        let session =
            Session::new(Arc::clone(volume)).map_err(HandoverError::system("the session"))?;
        let stream: UnixStream = from.take(handed.stream)?.into();
        let (number, refused) = (handed.number, handed.refused);
        // First: what is repeated there changes the state, and what it is then is said below.
        let messages = match handed.has_spoken {
            true => Messages::continued(handed.talked, &session.state),
            false => stream.try_clone().map(|copy| Messages::new(copy, &session.state)),
        };
        let messages = messages.map_err(HandoverError::system("the session's messages"))?;
        let standing = Standing { number, peer: session.meet(number, &stream), refused };
        locked(&session.state).restore(handed, from).inspect_err(|_| {
            // The front end sees the hang-up, even if another process holds its connection. Then
            // the volume has no front end.
            let _ = stream.shutdown(std::net::Shutdown::Both);
            *locked(&volume.session) = None;
        })?;
        Ok(Restored { session, stream, messages, standing })
    }
}

impl Restored {
    /// Serves the front end from where the other process was, as [`Session::run_at`].
    pub(crate) fn run(
        self,
        stop: &OwnedFd,
        acceptor: &Acceptor,
        relief: Option<&Relief<'_>>,
    ) -> End {
        let Restored { session, stream, messages, standing } = self;
        let (number, peer) = (standing.number, standing.peer);
        let end = session.serve(standing, messages, &stream, stop, Some(acceptor), relief);
        session.end(number, peer, stream, end)
    }
}
