//! Reports changes of files, through one inotify instance for the whole process.
//!
//! A user has few instances: `fs.inotify.max_user_instances` is 128 by default, and other programs
//! want some as well. So all parts of the program share one, which a thread reads. It sleeps while
//! no file changes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

/// Called for each change, in a thread of the process, with the name of the file in the watched
/// directory. There is no name when the watched file itself changed, or changes were lost.
type Tell = dyn Fn(Option<&OsStr>) + Send + Sync;

/// The watches of the process. It is made when it is first needed, and stays.
static HUB: Mutex<Option<Arc<Hub>>> = Mutex::new(None);
/// The lack of an instance was logged.
static WAS_TOLD: AtomicBool = AtomicBool::new(false);

struct Hub {
    inotify: OwnedFd,
    watchers: Mutex<Watchers>,
}

#[derive(Default)]
struct Watchers {
    next: u64,
    by_number: BTreeMap<u64, Watcher>,
}

struct Watcher {
    /// Watch descriptors. The kernel gives two watchers of one file the same, and gives none anew.
    watches: Vec<i32>,
    tell: Arc<Tell>,
}

/// A listener for changes, until this is dropped.
pub struct Changes {
    hub: Arc<Hub>,
    number: u64,
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Changes").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Changes {
    /// Calls `tell` for each change of a watched file from now on. It must not wait for long: other
    /// listeners are called after it.
    ///
    /// # Errors
    /// When the system gives no inotify instance or no thread. The first time that is said as a
    /// warning.
    pub fn tell(tell: impl Fn(Option<&OsStr>) + Send + Sync + 'static) -> io::Result<Changes> {
        let hub = Hub::of_process().inspect_err(|error| {
            if !WAS_TOLD.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "no inotify instance is left ({error}): changes of files are seen later or \
                     not at all; raise the user's limit (sysctl fs.inotify.max_user_instances)"
                );
            }
        })?;
        let mut watchers = vlane_error::locked(&hub.watchers);
        let number = watchers.next;
        watchers.next += 1;
        watchers.by_number.insert(number, Watcher { watches: Vec::new(), tell: Arc::new(tell) });
        drop(watchers);
        Ok(Changes { hub, number })
    }

    /// Watches a file or a directory. To watch the same once more has no effect.
    ///
    /// # Errors
    /// The error of inotify_add_watch(2).
    pub fn watch(&self, path: &Path, events: WatchFlags) -> io::Result<()> {
        // Locked first: an event of it is dealt with after this.
        let mut watchers = vlane_error::locked(&self.hub.watchers);
        // The events of another watcher of the same file stay.
        let watch = inotify::add_watch(&self.hub.inotify, path, events | WatchFlags::MASK_ADD)?;
        if let Some(own) = watchers.by_number.get_mut(&self.number)
            && !own.watches.contains(&watch)
        {
            own.watches.push(watch);
        }
        Ok(())
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let mut watchers = vlane_error::locked(&self.hub.watchers);
        let Some(gone) = watchers.by_number.remove(&self.number) else { return };
        for watch in gone.watches {
            if !watchers.by_number.values().any(|other| other.watches.contains(&watch)) {
                let _ = inotify::remove_watch(&self.hub.inotify, watch);
            }
        }
    }
}

impl Hub {
    fn of_process() -> io::Result<Arc<Hub>> {
        let mut hub = vlane_error::locked(&HUB);
        if let Some(hub) = &*hub {
            return Ok(Arc::clone(hub));
        }
        let inotify = inotify::init(CreateFlags::CLOEXEC)?;
        let new = Arc::new(Hub { inotify, watchers: Mutex::default() });
        let reader = Arc::clone(&new);
        std::thread::Builder::new().name("changes".to_owned()).spawn(move || reader.read())?;
        *hub = Some(Arc::clone(&new));
        Ok(new)
    }

    /// Reads events and reports them, as long as the process lives.
    fn read(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    return tracing::warn!("changes of files are no longer seen: {error}");
                }
            };
            let (watch, lost) = (event.wd(), event.events().contains(ReadFlags::QUEUE_OVERFLOW));
            let mut tells = Vec::new();
            for watcher in vlane_error::locked(&self.watchers).by_number.values_mut() {
                if lost || watcher.watches.contains(&watch) {
                    tells.push(Arc::clone(&watcher.tell));
                }
                if event.events().contains(ReadFlags::IGNORED) {
                    watcher.watches.retain(|known| *known != watch);
                }
            }
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            tells.iter().for_each(|tell| tell(name));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::ffi::OsString;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;

    fn told() -> (Changes, Receiver<Option<OsString>>) {
        let (sender, receiver) = channel();
        let tell = move |name: Option<&OsStr>| drop(sender.send(name.map(OsStr::to_owned)));
        (Changes::tell(tell).unwrap(), receiver)
    }

    fn next(from: &Receiver<Option<OsString>>) -> Option<OsString> {
        from.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    fn instances() -> usize {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let names = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        names.filter(|name| name.to_string_lossy().contains("inotify")).count()
    }

    /// Each gets its own events.
    #[test]
    fn watchers_of_one_directory_share_inotify() {
        let place = tempfile::tempdir().unwrap();
        let ((first, of_first), (second, of_second)) = (told(), told());
        first.watch(place.path(), WatchFlags::CREATE).unwrap();
        second.watch(place.path(), WatchFlags::CREATE).unwrap();
        second.watch(place.path(), WatchFlags::CREATE).unwrap();
        std::fs::write(place.path().join("one"), []).unwrap();
        assert_eq!(next(&of_first).unwrap(), "one");
        assert_eq!(next(&of_second).unwrap(), "one");
        drop(first);
        std::fs::write(place.path().join("two"), []).unwrap();
        assert_eq!(next(&of_second).unwrap(), "two", "the other's end takes no watch away");
        assert!(of_first.recv().is_err(), "nobody is told after the end");
        assert_eq!(instances(), 1);
        std::fs::remove_dir_all(place.path()).unwrap();
        // The directory itself.
        assert_eq!(next(&of_second), None);
    }
}
