//! Tells when one of several sockets may have appeared, without looking for it again and again: an idle session is not to wake.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::inotify;
use rustix::io::Errno;

/// A watch on the directories in which the sockets would be, or in which these directories would be.
#[derive(Debug)]
pub(crate) struct Appear {
    fd: OwnedFd,
    sockets: Vec<PathBuf>,
    /// Not all that is to be watched is.
    is_blind: bool,
}

/// A user has few of these (`fs.inotify.max_user_instances`, 128 by default), and other programs want some as well.
const MOST: usize = 32;
static OPEN: AtomicUsize = AtomicUsize::new(0);

impl Drop for Appear {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Appear {
    /// `None`: the kernel gives no watch (inotify(7): a limit of the user's, or a directory that may not be read).
    pub(crate) fn of(sockets: &[PathBuf]) -> Option<Self> {
        let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok()?;
        let others = OPEN.fetch_add(1, Ordering::Relaxed);
        let mut this = Self { fd, sockets: sockets.to_vec(), is_blind: false };
        this.watch();
        (!this.is_blind && others < MOST).then_some(this)
    }

    /// Something may appear without being told.
    pub(crate) fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// Readable when [`Appear::happened`] has something to say.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether something has appeared since this was last asked. Who looks for the sockets then misses none.
    pub(crate) fn happened(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&self.fd, &mut buffer);
        let mut happened = false;
        while let Ok(event) = events.next() {
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            // Without a name: a directory is gone, or events were lost.
            happened |=
                name.is_none_or(|name| self.sockets.iter().any(|path| path.iter().any(|part| part == name)));
        }
        // A directory that is there now may be what is to be watched from now on. Before anybody looks.
        if happened {
            self.watch();
        }
        happened
    }

    /// Watches the nearest directory that is there, for each. Watching one twice changes nothing.
    fn watch(&mut self) {
        // ATTRIB: a socket that may be connected to from now on.
        let flags = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::ATTRIB
            | inotify::WatchFlags::ONLYDIR;
        let watched = |socket: &PathBuf| {
            for directory in socket.ancestors().skip(1) {
                // A path of one part is in the present directory.
                let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
                match inotify::add_watch(&self.fd, directory, flags) {
                    Ok(_) => return true,
                    Err(Errno::NOENT | Errno::NOTDIR) => {}
                    // A directory above it tells nothing of what happens in it.
                    Err(_) => return false,
                }
            }
            false
        };
        self.is_blind = !self.sockets.iter().all(watched);
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
        let mut appear = Appear::of(&sockets).unwrap();
        assert!(!appear.happened());
        std::fs::write(home.path().join("of no concern"), []).unwrap();
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
