//! The unix socket that front ends connect to.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::acceptor::Acceptor;
use crate::handover::{Arrived, HandedServer, HandoverError, Relief, Successor};
use crate::session::{Handle, Restored, Session};
use crate::volume::Volume;
use crate::waiting;
use vlane_error::locked;
use vlane_socket::{Access, ListenError, Place, Shortage, SocketFile};

/// Serves a volume on a socket, to one front end after another.
#[derive(Debug)]
pub struct Listener {
    file: SocketFile,
    acceptor: Arc<Acceptor>,
    stopper: Stopper,
    successor: OnceLock<Arc<dyn Successor>>,
    /// A session that another process has begun.
    restored: Mutex<Option<Restored>>,
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
    fn new() -> io::Result<Stopper> {
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stopper { stop: Arc::new(stop), current: Arc::default() })
    }

    /// Ends the present session, drained, and then the listener.
    pub fn stop(&self) {
        // First: a session that begins from now on sees it before any message.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        let current = locked(&self.current).clone();
        if let Some(Current { stream, session }) = current {
            // Storage that hangs delays this, while it holds no resource that others need.
            session.end();
            // It may be in the middle of an unfinished message, or of an answer that is not read.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Listener {
    /// Makes the socket; a dead server's is replaced.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(path: &Path) -> Result<Listener, ListenError> {
        Listener::bind_for(path, Access::Umask)
    }

    /// The same, with `access` for other users.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind_for(path: &Path, access: Access) -> Result<Listener, ListenError> {
        let (socket, file) =
            SocketFile::listen_stream(&Place::new(path, "--socket", "server").access(access))?;
        let io_error = |source| ListenError::Io { path: path.to_owned(), source };
        let stopper = Stopper::new().map_err(io_error)?;
        let acceptor = Arc::new(Acceptor::new(socket).map_err(io_error)?);
        Ok(Listener {
            file,
            acceptor,
            stopper,
            successor: OnceLock::new(),
            restored: Mutex::default(),
        })
    }

    /// The socket at `path` where another process listened until now. The session that it served
    /// continues: its rings run when this returns.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub fn take_over(
        path: &Path,
        handed: HandedServer,
        from: &mut Arrived,
        volume: &Arc<Volume>,
    ) -> Result<Listener, HandoverError> {
        let HandedServer { socket, next, sessions, session, .. } = handed;
        let restored = session.and_then(|session| match Session::restore(volume, session, from) {
            Ok(restored) => Some(restored),
            // Its front end sees a hang-up, and may connect again. Others are served in any case.
            Err(error) => {
                tracing::error!(
                    "{}: the session ends, because it could not be taken over: {error}; a front \
                     end that connects again is served",
                    path.display()
                );
                None
            }
        });
        let (socket, file) = socket.take(from, path)?;
        let stopper = Stopper::new().map_err(HandoverError::system("the socket"))?;
        let acceptor = Acceptor::new(socket).map_err(HandoverError::system("the socket"))?;
        if let Some(next) = from.take_some(next)? {
            acceptor.admit_first(next.into());
        }
        volume.continue_sessions(sessions);
        let restored = Mutex::new(restored);
        Ok(Listener {
            file,
            acceptor: Arc::new(acceptor),
            stopper,
            successor: OnceLock::new(),
            restored,
        })
    }

    /// Names the successor that takes over on request; only the first one counts.
    pub fn name_successor(&self, successor: Arc<dyn Successor>) {
        let _ = self.successor.set(successor);
    }

    fn relief<'a>(&'a self, volume: &'a Volume) -> Option<Relief<'a>> {
        let successor = &**self.successor.get()?;
        Some(Relief { successor, file: &self.file, acceptor: &self.acceptor, volume })
    }

    /// Returns the handle that ends it.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves one front end after another until it is stopped.
    ///
    /// # Errors
    /// The system's error when connections cannot be accepted any more.
    pub fn serve(&self, volume: &Arc<Volume>) -> io::Result<()> {
        let path = self.file.path().display().to_string();
        waiting::watch(path, Arc::clone(&self.acceptor), Arc::downgrade(volume));
        let relief = self.relief(volume);
        if let Some(restored) = locked(&self.restored).take()
            && let Err(error) = self.run_restored(restored, relief.as_ref())
        {
            tracing::warn!("{}: cannot continue a session: {error}", self.file.path().display());
        }
        let path = self.file.path().display();
        let mut shortage = Shortage::new(format!("{path}: no connection is accepted"));
        // The time until which no front end is accepted, because the system gives no descriptor:
        // the socket stays readable meanwhile.
        let mut closed: Option<Instant> = None;
        loop {
            closed = closed.filter(|until| *until > Instant::now());
            let wanted = relief.as_ref().map_or(self.stopper.stop.as_fd(), Relief::wanted);
            let mut fds = [
                PollFd::new(
                    self.acceptor.socket(),
                    closed.map_or(PollFlags::IN, |_| PollFlags::empty()),
                ),
                PollFd::new(&*self.stopper.stop, PollFlags::IN),
                PollFd::from_borrowed_fd(wanted, PollFlags::IN),
            ];
            match rustix::event::poll(&mut fds, self.patience(closed).as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if !fds[1].revents().is_empty() {
                self.refuse();
                return Ok(());
            }
            if let Some(relief) = &relief
                && !fds[2].revents().is_empty()
            {
                relief.hand_over(None, &mut |_| Ok(None));
                continue;
            }
            if closed.is_some() {
                continue;
            }
            // A failure for one front end, for want of descriptors for example, may not affect the
            // next.
            let served = self
                .acceptor
                .accept()
                .and_then(|stream| self.run_session(volume, stream, relief.as_ref()));
            match served {
                Ok(()) => shortage.passed(Instant::now()),
                // The waiting front end is gone again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => closed = Some(shortage.refused(&error, Instant::now())),
            }
        }
    }

    /// The longest time to wait: for the end of a shortage, and zero if a front end is there
    /// already.
    fn patience(&self, closed: Option<Instant>) -> Option<Timespec> {
        match closed {
            Some(until) => Timespec::try_from(until.saturating_duration_since(Instant::now())).ok(),
            None => self.acceptor.has_next().then_some(Timespec { tv_sec: 0, tv_nsec: 0 }),
        }
    }

    fn run_session(
        &self,
        volume: &Arc<Volume>,
        stream: UnixStream,
        relief: Option<&Relief<'_>>,
    ) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let session = Session::new(Arc::clone(volume))?;
        let current = Current { stream: Arc::new(stream.try_clone()?), session: session.handle() };
        *locked(&self.stopper.current) = Some(current);
        session.run_at(stream, &self.stopper.stop, Some(&self.acceptor), relief);
        *locked(&self.stopper.current) = None;
        Ok(())
    }

    fn run_restored(&self, restored: Restored, relief: Option<&Relief<'_>>) -> io::Result<()> {
        let stream = Arc::new(restored.stream.try_clone()?);
        *locked(&self.stopper.current) =
            Some(Current { stream, session: restored.session.handle() });
        restored.run(&self.stopper.stop, &self.acceptor, relief);
        *locked(&self.stopper.current) = None;
        Ok(())
    }

    /// Accepts no more front ends: those that wait see a hang-up, those that come are refused.
    /// Otherwise they would wait for an answer until the process ends, which flushes first.
    fn refuse(&self) {
        let _ = rustix::net::shutdown(self.acceptor.socket(), rustix::net::Shutdown::Both);
        while self.acceptor.accept().is_ok() {}
    }

    /// Removes the socket, if it still is this listener's own.
    pub fn close(&self) {
        self.file.remove();
    }

    /// Ends at once, without waiting for the storage: the socket goes, and the present front end
    /// and the waiting ones see a hang-up. For a process that ends with it: running lanes are not
    /// drained, and their late answers may not be seen.
    pub fn abandon(&self) {
        self.file.remove();
        self.refuse();
        if let Some(Current { stream, .. }) = locked(&self.stopper.current).as_ref() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The volume's size changed: tells the present session's front end.
    pub fn size_changed(&self) {
        let session = locked(&self.stopper.current).as_ref().map(|current| current.session.clone());
        if let Some(session) = session {
            session.size_changed();
        }
    }
}
