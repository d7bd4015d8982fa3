//! A session that outlives its back end: memory and rings stay with their contents, and the next
//! back end continues with them.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{Frontend, VhostUserFrontend};

use super::{Session, Signals};
use crate::error::{Error, ErrorKind};
use crate::ring::Layout;

/// Between two looks for another back end.
const PAUSE: Duration = Duration::from_millis(5);

/// Has the back end mark what is in flight in memory that stays with us: its own, or what one
/// before it made.
pub(super) fn share_marks(
    frontend: &mut Frontend,
    inflight: &mut Option<(VhostUserInflight, File)>,
    queues: &[(Layout, Signals)],
) -> vhost::Result<()> {
    if inflight.is_none() {
        let count = u16::try_from(queues.len()).unwrap_or(u16::MAX);
        let size = queues.iter().map(|(layout, _)| layout.size).max().unwrap_or(0);
        let (shape, file) = frontend.get_inflight_fd(&VhostUserInflight::new(0, 0, count, size))?;
        // The crate receives it without: a program that is started meanwhile would keep it.
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::CLOEXEC)
            .map_err(|errno| vhost::vhost_user::Error::ReqHandlerError(errno.into()))?;
        *inflight = Some((shape, file));
    }
    match inflight {
        Some((shape, file)) => Ok(frontend.set_inflight_fd(shape, file.as_raw_fd())?),
        None => Ok(()),
    }
}

impl Session {
    /// The back end has hung up: waits for one at the same socket, for as long as
    /// [`SessionOptions::reconnect`](super::SessionOptions::reconnect) says. Gives it the queues as
    /// they are. Requests that are out stay out.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`] if none came, or if the session is not to wait; [`ErrorKind::Invalid`]
    /// if the new one is another device.
    pub(crate) fn reconnect(&mut self) -> Result<(), Error> {
        let Some(limit) = self.wanted.reconnect else {
            return ErrorKind::Gone
                .fail(format!("{}: the back end hung up", self.socket.display()));
        };
        let begin = Instant::now();
        loop {
            // A back end that dies in the middle of this counts as gone, too.
            let why = match self.try_again() {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Invalid => return Err(error),
                Err(error) => error,
            };
            if begin.elapsed() > limit {
                let context =
                    format!("{}: no back end came back within {limit:?}", self.socket.display());
                return Err(Error::caused_by(ErrorKind::Gone, context, why));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn try_again(&mut self) -> Result<(), Error> {
        let mut next = Session::connect(&self.socket, &self.wanted)?;
        if next.negotiated.bits != self.negotiated.bits
            || next.config.capacity != self.config.capacity
        {
            return ErrorKind::Invalid.fail(format!(
                "{}: the back end that came back has another device",
                self.socket.display()
            ));
        }
        next.inflight = self.inflight.take();
        let begun = match &self.arena {
            Some(arena) => next.begin(arena, &self.started),
            None => Ok(()),
        };
        self.inflight = next.inflight.take();
        begun?;
        (self.frontend, self.stream, self.pid) = (next.frontend, next.stream, next.pid);
        self.reconnects += 1;
        Ok(())
    }

    /// Back ends so far, but for the first.
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }
}
