//! A socket whose file somebody removed: whoever is connected is served on, and nobody else can ever connect. Nothing else would show it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// Watches over sockets' files, in a thread that sleeps until something happens to one of them; says once of each that it is gone.
#[derive(Debug)]
pub struct Vanishing {
    is_over: Arc<AtomicBool>,
}

impl Vanishing {
    /// Begins to watch over sockets. Without inotify nothing is watched over.
    pub fn watch<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Vanishing {
        let is_over = Arc::new(AtomicBool::new(false));
        let watching = Vanishing { is_over: Arc::clone(&is_over) };
        let Ok(inotify) = inotify::init(CreateFlags::CLOEXEC) else { return watching };
        let mut left: Vec<(PathBuf, (u64, u64))> = Vec::new();
        for path in paths {
            let Some(identity) = identity(path) else { continue };
            // The file itself and not its directory, in which there may be a lot of others. ATTRIB: the number of its names changed.
            let events = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
            if inotify::add_watch(&inotify, path, events).is_ok() {
                left.push((path.to_owned(), identity));
            }
        }
        let body = move || {
            let mut events = [0; 4096];
            while !left.is_empty() && rustix::io::read(&inotify, &mut events).is_ok_and(|n| n > 0) {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                left.retain(|(path, was)| {
                    let is_there = identity(path) == Some(*was);
                    if !is_there {
                        tell(path);
                    }
                    is_there
                });
            }
        };
        // It ends with the process.
        let _ = std::thread::Builder::new().name("sockets".to_owned()).spawn(body);
        watching
    }

    /// From now on, who removes them is this process itself.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn tell(path: &Path) {
    tracing::warn!(
        "{}: the socket's file was removed or replaced: nobody can connect there any more; who is connected is served on. Start vlane \
         again to have it back",
        path.display()
    );
}
