//! A socket whose file was removed: its front end is still served, but no other can ever connect.
//! No other sign would show it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::inotify::WatchFlags;
use vlane_error::locked;
use vlane_socket::Changes;

/// A socket's file: its path, its device and inode.
type SocketFile = (PathBuf, (u64, u64));

/// Watches over sockets' files, and says once of each that it is gone.
#[derive(Debug)]
pub struct Vanishing {
    /// The sockets that are still there.
    left: Arc<Mutex<Vec<SocketFile>>>,
    /// `None` without inotify.
    _changes: Option<Changes>,
}

impl Vanishing {
    /// Begins to watch over sockets. Without inotify no socket is watched.
    pub fn watch<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Vanishing {
        let left = Arc::<Mutex<Vec<SocketFile>>>::default();
        let looked_at = Arc::clone(&left);
        let tell = move |_: Option<&std::ffi::OsStr>| {
            locked(&looked_at).retain(|(path, was)| {
                let is_there = identity(path) == Some(*was);
                if !is_there {
                    tell(path);
                }
                is_there
            });
        };
        let changes = Changes::tell(tell).ok();
        for path in paths {
            let (Some(identity), Some(changes)) = (identity(path), &changes) else { continue };
            // The file itself and not its directory, in which there may be a lot of others. ATTRIB:
            // the number of its names changed.
            let events = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
            if changes.watch(path, events).is_ok() {
                locked(&left).push((path.to_owned(), identity));
            }
        }
        Vanishing { left, _changes: changes }
    }

    /// From now on, this process itself removes them.
    pub fn end(&self) {
        locked(&self.left).clear();
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn tell(path: &Path) {
    tracing::warn!(
        "{}: the socket's file was removed or replaced: new front ends cannot connect; the \
         present one is still served. Restart vlane to make the socket again",
        path.display()
    );
}
