//! The unix socket that front ends connect to.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use crate::door::Door;
use crate::session::{Handle, Session};
use crate::volume::Volume;
use crate::waiting;
use vlane_socket::{ListenError, Place, SocketFile};

/// Serves a volume on a socket, to one front end after another.
#[derive(Debug)]
pub struct Listener {
    file: SocketFile,
    door: Arc<Door>,
    stopper: Stopper,
}

/// Ends a [`Listener`] from another thread.
#[derive(Debug, Clone)]
pub struct Stopper {
    stop: Arc<OwnedFd>,
    current: Arc<Mutex<Option<Current>>>,
}

/// The session that is served now.
#[derive(Debug, Clone)]
struct Current {
    stream: Arc<UnixStream>,
    session: Handle,
}

impl Stopper {
    /// Ends the present session, drained, and then the listener.
    pub fn stop(&self) {
        // First: a session that begins from now on sees it before anything else.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        let current = self.current().clone();
        if let Some(Current { stream, session }) = current {
            // Storage that hangs makes this wait, with nothing in its hands that others need.
            session.end();
            // It may be in the middle of a message that never comes to its end, or of an answer that nobody reads.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    /// Makes the socket; one that a dead server left behind is replaced.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(path: &Path) -> Result<Listener, ListenError> {
        let (socket, file) = SocketFile::listen_stream(&Place::new(path, "--socket", "server"))?;
        let io_error = |source| ListenError::Io { path: path.to_owned(), source };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = rustix::event::eventfd(0, flags).map_err(|e| io_error(e.into()))?;
        let stopper = Stopper { stop: Arc::new(stop), current: Arc::default() };
        let door = Arc::new(Door::new(socket).map_err(io_error)?);
        Ok(Listener { file, door, stopper })
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves one front end after another until it is stopped.
    ///
    /// # Errors
    /// What the system says when connections cannot be accepted any more.
    pub fn serve(&self, volume: &Arc<Volume>) -> io::Result<()> {
        let path = self.file.path().display().to_string();
        waiting::watch(path, Arc::clone(&self.door), Arc::downgrade(volume));
        loop {
            let mut fds = [
                PollFd::new(self.door.socket(), PollFlags::IN),
                PollFd::new(&*self.stopper.stop, PollFlags::IN),
            ];
            let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            match rustix::event::poll(&mut fds, self.door.has_next().then_some(&at_once)) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if !fds[1].revents().is_empty() {
                self.refuse();
                return Ok(());
            }
            let stream = match self.door.accept() {
                Ok(stream) => stream,
                // The one who knocked is gone again, or descriptors are short for the moment.
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        tracing::warn!("{}: cannot accept a connection: {error}", self.file.path().display());
                        std::thread::sleep(std::time::Duration::from_millis(50));
                    }
                    continue;
                }
            };
            // What fails for one front end, for want of descriptors for example, may go well for the next.
            if let Err(error) = self.run_session(volume, stream) {
                tracing::warn!("{}: cannot begin a session: {error}", self.file.path().display());
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        }
    }

    fn run_session(&self, volume: &Arc<Volume>, stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let session = Session::new(Arc::clone(volume))?;
        let current = Current { stream: Arc::new(stream.try_clone()?), session: session.handle() };
        *self.stopper.current() = Some(current);
        session.run_at(stream, &self.stopper.stop, Some(&self.door));
        *self.stopper.current() = None;
        Ok(())
    }

    /// Nobody is accepted any more: those who wait see a hang-up, those who come are refused. Otherwise they would
    /// wait for an answer until the process ends, which flushes first.
    fn refuse(&self) {
        let _ = rustix::net::shutdown(self.door.socket(), rustix::net::Shutdown::Both);
        while self.door.accept().is_ok() {}
    }

    /// Removes the socket, if it is still the one that was made here.
    pub fn close(&self) {
        self.file.remove();
    }

    /// Ends at once what is left, without waiting for the storage: the socket goes, and the present front end and those who
    /// wait see a hang-up. For a process that ends with it: lanes that run are not drained, and what they still answer nobody may see.
    pub fn abandon(&self) {
        self.file.remove();
        self.refuse();
        if let Some(Current { stream, .. }) = self.stopper.current().as_ref() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The volume's size changed: tells the present session's front end.
    pub fn size_changed(&self) {
        let session = self.stopper.current().as_ref().map(|current| current.session.clone());
        if let Some(session) = session {
            session.size_changed();
        }
    }
}
