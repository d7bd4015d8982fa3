//! Reports that one of several sockets may have appeared, without repeated looks: an idle session
//! is not to wake.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::EventfdFlags;
use rustix::fs::inotify;
use rustix::io::Errno;
use vlane_socket::Changes;

/// A watch on the directories in which the sockets would be, or in which these directories would
/// be.
#[derive(Debug)]
pub(crate) struct Appear {
    changes: Changes,
    /// Readable when something has appeared.
    wake: Arc<OwnedFd>,
    sockets: Arc<[PathBuf]>,
    /// Not all that is to be watched is.
    is_blind: bool,
}

impl Appear {
    /// `None`: the kernel gives no watch (inotify(7): a limit of the user's, or a directory that
    /// may not be read).
    pub(crate) fn of(sockets: &[PathBuf]) -> Option<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags).ok()?);
        let sockets: Arc<[PathBuf]> = sockets.into();
        let (told, wanted) = (Arc::clone(&wake), Arc::clone(&sockets));
        let tell = move |name: Option<&OsStr>| {
            // Without a name: a directory is gone, or events were lost.
            if name
                .is_none_or(|name| wanted.iter().any(|path| path.iter().any(|part| part == name)))
            {
                let _ = rustix::io::write(&told, &1u64.to_ne_bytes());
            }
        };
        let mut this = Self { changes: Changes::tell(tell).ok()?, wake, sockets, is_blind: false };
        this.watch();
        (!this.is_blind).then_some(this)
    }

    /// True if a socket may appear without an event.
    pub(crate) fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// Readable when [`Appear::happened`] has something to say.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// True if something has appeared since this was last asked. A look for the sockets after it
    /// misses none.
    pub(crate) fn happened(&mut self) -> bool {
        let happened = rustix::io::read(&self.wake, &mut [0; 8]).is_ok();
        // A directory that is there now may be what is to be watched from now on. Before anybody
        // looks.
        if happened {
            self.watch();
        }
        happened
    }

    /// Watches the nearest directory that is there, for each. Watching one twice has no effect.
    fn watch(&mut self) {
        // ATTRIB: a socket that may be connected to from now on.
        let flags = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::ATTRIB
            | inotify::WatchFlags::ONLYDIR;
        let watched = |socket: &PathBuf| {
            for directory in socket.ancestors().skip(1) {
                // A path of one part is in the present directory.
                let directory =
                    if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
                match self.changes.watch(directory, flags) {
                    Ok(()) => return true,
                    Err(error) if is_absent(&error) => {}
                    // A directory above it does not report events inside it.
                    Err(_) => return false,
                }
            }
            false
        };
        self.is_blind = !self.sockets.iter().all(watched);
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NOTDIR))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn waits_until_it_happens(appear: &mut Appear) {
        let mut fds =
            [rustix::event::PollFd::from_borrowed_fd(appear.fd(), rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "nothing was told");
        assert!(appear.happened());
    }

    #[test]
    fn socket_in_new_directory_is_found() {
        let home = tempfile::tempdir().unwrap();
        let sockets = [home.path().join("a/b/sched.sock"), home.path().join("other.sock")];
        let mut appear = Appear::of(&sockets).unwrap();
        assert!(!appear.happened());
        std::fs::write(home.path().join("of no concern"), []).unwrap();
        std::fs::create_dir(home.path().join("a")).unwrap();
        waits_until_it_happens(&mut appear);
        assert!(!appear.happened(), "what is of no concern would be told here, too");
        std::fs::create_dir(home.path().join("a/b")).unwrap();
        waits_until_it_happens(&mut appear);
        std::fs::write(&sockets[0], []).unwrap();
        waits_until_it_happens(&mut appear);
        std::fs::write(&sockets[1], []).unwrap();
        waits_until_it_happens(&mut appear);
        assert!(!appear.happened());
    }
}
