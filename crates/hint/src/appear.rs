//! Tells when one of several sockets may have appeared, without looking for it again and again: an idle session is not to wake.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::inotify;

/// A watch on the directories in which the sockets would be, or in which these directories would be.
#[derive(Debug)]
pub(crate) struct Appear {
    fd: OwnedFd,
    sockets: Vec<PathBuf>,
}

impl Appear {
    /// `None`: the kernel gives no watch (inotify(7): a limit of the user's).
    pub(crate) fn of(sockets: &[PathBuf]) -> Option<Self> {
        let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok()?;
        let this = Self { fd, sockets: sockets.to_vec() };
        this.watch().then_some(this)
    }

    /// Readable when [`Appear::happened`] has something to say.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether something has appeared since this was last asked. Who looks for the sockets then misses none.
    pub(crate) fn happened(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&self.fd, &mut buffer);
        let mut happened = false;
        while events.next().is_ok() {
            happened = true;
        }
        // A directory that is there now may be what is to be watched from now on. Before anybody looks.
        if happened {
            self.watch();
        }
        happened
    }

    /// Watches the nearest directory that is there, for each. Watching one twice changes nothing.
    fn watch(&self) -> bool {
        let flags =
            inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::ONLYDIR;
        let watched = |socket: &PathBuf| {
            let mut directories = socket.ancestors().skip(1);
            directories.any(|directory| inotify::add_watch(&self.fd, directory, flags).is_ok())
        };
        self.sockets.iter().filter(|socket| watched(socket)).count() > 0
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_appears_is_told_also_when_its_directory_was_not_there() {
        let home = tempfile::tempdir().unwrap();
        let sockets = [home.path().join("a/b/sched.sock"), home.path().join("other.sock")];
        let appear = Appear::of(&sockets).unwrap();
        assert!(!appear.happened());
        std::fs::create_dir(home.path().join("a")).unwrap();
        assert!(appear.happened());
        assert!(!appear.happened());
        std::fs::create_dir(home.path().join("a/b")).unwrap();
        assert!(appear.happened());
        std::fs::write(&sockets[0], []).unwrap();
        assert!(appear.happened());
        std::fs::write(&sockets[1], []).unwrap();
        assert!(appear.happened());
        assert!(!appear.happened());
    }
}
