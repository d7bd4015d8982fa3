//! An image that is deleted, moved or replaced while it is served: reported at once, with the way
//! back, and at every end.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::fs::inotify::WatchFlags;
use vlane_engine::file::FileEngine;
use vlane_socket::Changes;

/// How long the storage may take, at the end, to say where the image is.
const MOMENT: Duration = Duration::from_secs(1);

/// Watches a volume's image until the result is dropped. `None` without inotify: then only the end
/// reports it.
pub(super) fn watch(name: &str, image: Option<&Arc<FileEngine>>) -> Option<Changes> {
    let image = image?;
    let (name, watched) = (name.to_owned(), Arc::downgrade(image));
    let told = Mutex::new(None);
    let look = Arc::new(move || {
        let Some(image) = watched.upgrade() else { return };
        let now = image.astray();
        let mut told = vlane_error::locked(&told);
        match &now {
            Some(astray) if *told != now => tracing::warn!("{name}: {}", astray.in_words()),
            None if told.is_some() => tracing::info!("{name}: the image is at its path again"),
            _ => {}
        }
        *told = now;
    });
    // The file itself, and not its directory. ATTRIB: the number of its names changed.
    let events = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF;
    let watch = |changes: &Changes| changes.watch(&image.own_path(), events).is_ok();
    let first = Arc::clone(&look);
    let changes = Changes::tell(move |_: Option<&std::ffi::OsStr>| look()).ok().filter(watch);
    // For events since the image was opened.
    first();
    changes
}

/// Reports an image that is not at its path at the end. Storage that does not say in time where the
/// image is does not delay the end.
///
/// # Errors
/// When the guest's data are lost with this process.
pub(super) fn at_the_end(name: &str, image: Option<&Arc<FileEngine>>) -> Result<()> {
    let Some(image) = image.cloned() else { return Ok(()) };
    let (sender, answer) = channel();
    let look = move || drop(sender.send(image.astray()));
    // Without a thread it is not asked for: it could hang.
    let _ = std::thread::Builder::new().name("astray".to_owned()).spawn(look);
    let Some(astray) = answer.recv_timeout(MOMENT).ok().flatten() else { return Ok(()) };
    let words = astray.at_the_end();
    if astray.is_lost_at_the_end() {
        bail!("{name}: {words}");
    }
    tracing::warn!("{name}: {words}");
    Ok(())
}
