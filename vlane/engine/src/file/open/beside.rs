//! Other writers of an image's bytes: found before they are written to.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{EngineError, ErrorKind, lock};
use crate::file::attached::{self, Attached, Place, User};

/// Refuses to write to an image beside another writer of the same bytes: through a loop device on
/// it, through a layer below it, or through another device on that.
pub(super) fn check(
    path: &Path,
    file: &File,
    is_device: bool,
    patience: &mut lock::Patience<'_>,
) -> Result<(), EngineError> {
    let in_use = |text: String| Err(EngineError::at(path, ErrorKind::Locked, text));
    for (backing, opened) in attached::files_below(file) {
        let name = backing.display();
        match opened {
            Ok(below) if lock::stays_locked(&below, patience) => {
                let user = lock::user_in_words(&below);
                return in_use(format!(
                    "lies on {name}, which {user}; stop that one, or serve this with --read-only"
                ));
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(
                "{}: lies on {name}, which cannot be examined ({error}); make sure that no second \
                 process writes there",
                path.display()
            ),
        }
    }
    for other in others(file) {
        match &other.user {
            User::Is(user) if other.is_sure => return in_use(refusal(&other, user, is_device)),
            user => warn(path, &other, user, is_device),
        }
    }
    Ok(())
}

/// The devices on the same bytes, once none of them is in use, or some are for more than a moment.
fn others(file: &File) -> Vec<Attached> {
    let begin = Instant::now();
    loop {
        let devices = attached::devices(file);
        let is_used = devices.iter().any(|device| matches!(device.user, User::Is(_)));
        if !is_used || begin.elapsed() >= lock::MOMENT {
            return devices;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How an image lies to another device.
fn lies(other: &Attached, is_device: bool) -> String {
    let device = &other.device;
    match other.place {
        Place::On if !is_device => format!("is attached to /dev/{device}"),
        Place::On | Place::Above => format!("lies below /dev/{device}"),
        Place::Below => format!("lies on /dev/{device}"),
        Place::Beside if other.is_sure => format!("has the same bytes as /dev/{device}"),
        Place::Beside => format!("may have the same bytes as /dev/{device}"),
    }
}

fn refusal(other: &Attached, user: &str, is_device: bool) -> String {
    let (lies, device) = (lies(other, is_device), &other.device);
    let advice = match other.place {
        Place::On => format!("unmount that and `losetup -d /dev/{device}`"),
        _ => "stop or unmount that one".to_owned(),
    };
    format!(
        "{lies}, which is {user}; two writers would ruin it: {advice}, or serve this with \
         --read-only"
    )
}

/// Warns of a device that is no reason to refuse.
fn warn(path: &Path, other: &Attached, user: &User, is_device: bool) {
    let (name, lies, device) = (path.display(), lies(other, is_device), &other.device);
    match user {
        User::Is(user) => {
            tracing::warn!(
                "{name}: {lies}, which is {user}; if they overlap, two writers ruin both: stop \
                 that one"
            );
        }
        User::Unknown(error) if !other.is_kept => {
            tracing::warn!("{name}: {lies}, and its use by others is unknown ({error})");
        }
        User::Nobody if other.is_loop && other.place != Place::Below => tracing::warn!(
            "{name}: {lies}; a mount of that while this is served ruins both: `losetup -d \
             /dev/{device}`"
        ),
        User::Unknown(_) | User::Nobody => {}
    }
}
