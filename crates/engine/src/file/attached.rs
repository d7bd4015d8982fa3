//! Images that are the backing file of a loop device. The kernel takes no lock for it, so it is looked for.
//!
//! A file system that is mounted from the loop device has its own picture of the image in memory: a guest that writes to the image
//! underneath ruins both.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A loop device on the image.
#[derive(Debug)]
pub(super) struct Attached {
    /// Its name, `loop7`.
    pub(super) device: String,
    /// What uses it, in words; none: it is only attached.
    pub(super) user: Option<String>,
}

/// The loop devices that have `image` as their backing file, as far as the system tells: those of another mount namespace whose paths
/// mean nothing here are not found.
pub(super) fn devices(image: &File) -> Vec<Attached> {
    let Ok(wanted) = image.metadata() else { return Vec::new() };
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file"));
        let Ok(backing) = backing else { continue };
        let is_it = std::fs::metadata(backing.trim_end_matches('\n'))
            .is_ok_and(|other| (other.dev(), other.ino()) == (wanted.dev(), wanted.ino()));
        if is_it {
            let device = entry.file_name().to_string_lossy().into_owned();
            found.push(Attached { user: user_of(&device, &entry.path()), device });
        }
    }
    found
}

/// The image below the block device `device`, if it is a loop device.
pub(super) fn backing_file(device: &File) -> Option<PathBuf> {
    let number = device.metadata().ok()?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let text =
        |dir: &str| std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{dir}backing_file"));
    // A partition's is its disk's.
    let text = text("loop/").or_else(|_| text("../loop/")).ok()?;
    Some(PathBuf::from(text.trim_end_matches('\n')))
}

/// Who uses a loop device or one of its partitions.
fn user_of(device: &str, sys: &Path) -> Option<String> {
    if let Some(place) = mounted_at(sys) {
        return Some(format!("mounted at {place}"));
    }
    // What else has it for itself, in whatever namespace: a mount, an array, a mapping, swap space, another back end.
    let node = Path::new("/dev").join(device);
    match OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK).open(node) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Some("in use".to_owned()),
        _ => None,
    }
}

/// Where the device with that directory in /sys, or a partition of it, is mounted.
fn mounted_at(sys: &Path) -> Option<String> {
    let number =
        |dir: &Path| std::fs::read_to_string(dir.join("dev")).ok().map(|text| text.trim().to_owned());
    let mut numbers: Vec<String> = number(sys).into_iter().collect();
    // A partition's directory lies in its disk's.
    for entry in std::fs::read_dir(sys).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            numbers.extend(number(&entry.path()));
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().find_map(|line| {
        // proc_pid_mountinfo(5): ID, parent, major:minor, root, mount point, ...
        let words: Vec<&str> = line.split_whitespace().collect();
        let (device, place) = (words.get(2)?, words.get(4)?);
        numbers.iter().any(|number| number == device).then(|| (*place).to_owned())
    })
}
