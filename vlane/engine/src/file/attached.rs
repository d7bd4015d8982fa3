//! Other writers of an image's bytes: through a loop device on it, through a device or file below
//! it, or through another device on the same bytes. The kernel takes no lock for them.
//!
//! A file system that is mounted from a loop device has its own picture of the image in memory: a
//! guest that writes to the image underneath ruins both.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::lock;
use super::stack::{Device, Roots, Shared, Stack, Thing};

/// A device that has bytes in common with an image.
#[derive(Debug)]
pub(super) struct Attached {
    /// Its name, `loop7`.
    pub(super) device: String,
    pub(super) place: Place,
    /// It surely has bytes in common; otherwise it may have.
    pub(super) is_sure: bool,
    /// It is a loop device, which anybody can mount.
    pub(super) is_loop: bool,
    /// The kernel itself gives no other process exclusive use beside the image.
    pub(super) is_kept: bool,
    pub(super) user: User,
}

/// Where a device lies, as seen from the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A loop device on the image.
    On,
    /// On something that lies on the image.
    Above,
    Below,
    /// On the same bytes of something below both.
    Beside,
}

/// The user of a device.
#[derive(Debug)]
pub(super) enum User {
    /// It is only there.
    Nobody,
    /// In words: "mounted at /mnt".
    Is(String),
    /// Why that cannot be seen.
    Unknown(io::Error),
}

/// The devices that share bytes with an image, in use or not, as far as the system reports them.
pub(super) fn devices(image: &File) -> Vec<Attached> {
    let Some(thing) = Thing::of(image) else { return Vec::new() };
    let stack = Stack::read(Roots::system());
    let (ours, mut found) = (stack.layers(thing), Vec::new());
    for (number, device) in &stack.devices {
        let other = Thing::Device(*number);
        let Some(shared) = stack.shared(thing, other).filter(|_| other != thing) else { continue };
        let below = ours.iter().filter(|extent| extent.of == other);
        let is_claimed = below.clone().any(|extent| extent.is_claimed);
        let place = match below.count() {
            0 if device.backing.is_some() && device.lower.iter().any(|lower| lower.of == thing) => {
                Place::On
            }
            0 if stack.layers(other).iter().any(|extent| extent.of == thing) => Place::Above,
            0 => Place::Beside,
            _ => Place::Below,
        };
        let user = user_of(&stack, *number, device, is_claimed);
        let (is_sure, is_loop) = (shared == Shared::Surely, device.backing.is_some());
        let is_kept = device.lower.iter().any(|lower| lower.is_claimed) && place == Place::Above;
        found.push(Attached {
            device: device.name.clone(),
            place,
            is_sure,
            is_loop,
            is_kept,
            user,
        });
    }
    found
}

/// The name of a loop device that is attached to a file.
pub(super) fn loop_on(image: &File) -> Option<String> {
    let thing = Thing::of(image)?;
    let stack = Stack::read(Roots::system());
    let mut on =
        stack.devices.values().filter(|device| device.lower.iter().any(|lower| lower.of == thing));
    on.next().map(|device| device.name.clone())
}

/// The files below a block device, each open for reading, or why it is not.
pub(super) fn files_below(device: &File) -> Vec<(PathBuf, io::Result<File>)> {
    let Some(thing) = Thing::of(device) else { return Vec::new() };
    let stack = Stack::read(Roots::system());
    let devices = stack.layers(thing).into_iter().filter_map(|extent| match extent.of {
        Thing::Device(number) => stack.devices.get(&number),
        Thing::File { .. } => None,
    });
    let loops = devices.filter_map(|device| Some((device, device.backing.clone()?)));
    loops.map(|(device, path)| (path.clone(), open_backing(device, &path))).collect()
}

/// Opens a loop device's file, if its path still leads to it.
fn open_backing(device: &Device, path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let is_it =
        Thing::of(&file).is_some_and(|thing| device.lower.iter().any(|lower| lower.of == thing));
    is_it.then_some(file).ok_or_else(|| io::Error::other("another file is at its path"))
}

/// Finds the user of a device. `is_claimed`: a device on it has it, so that a claim is no sign of
/// another user.
fn user_of(stack: &Stack, number: u64, device: &Device, is_claimed: bool) -> User {
    if let Some(place) = mounted_at(number) {
        return User::Is(format!("mounted at {place}"));
    }
    let file = match open_node(&device.name, number, 0) {
        Ok(file) => file,
        // Without a medium, or gone meanwhile.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM)
            ) =>
        {
            return User::Nobody;
        }
        Err(error) => return User::Unknown(error),
    };
    if lock::is_locked(&file) {
        return User::Is(lock::user_in_words(&file).trim_start_matches("is ").to_owned());
    }
    // Another user has exclusive use of it, in some namespace: a mount, an array, a mapping, swap
    // space, another back end.
    match is_claimed || !is_taken(&device.name, number) || by_a_partition(stack, number, device) {
        true => User::Nobody,
        false => User::Is("in use".to_owned()),
    }
}

/// A device's node, if it is that device's.
fn open_node(name: &str, number: u64, flags: i32) -> io::Result<File> {
    let node = Path::new("/dev").join(name);
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | flags).open(node)?;
    match file.metadata()?.rdev() == number {
        true => Ok(file),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Returns true if a process has exclusive use of a device.
fn is_taken(name: &str, number: u64) -> bool {
    open_node(name, number, libc::O_EXCL)
        .is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// Says whether a disk counts as taken only because one of its partitions is.
fn by_a_partition(stack: &Stack, number: u64, device: &Device) -> bool {
    // The owner of the whole disk has each of its partitions.
    let is_one = |(number, part): (u64, &Device)| {
        part.is_held
            || mounted_at(number).is_some()
            || open_node(&part.name, number, libc::O_EXCL).is_ok()
    };
    !device.is_held && stack.partitions(number).any(is_one)
}

/// Where a device is mounted.
pub(super) fn mounted_at(device: u64) -> Option<String> {
    let text = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().find_map(|line| {
        // proc_pid_mountinfo(5): ID, parent, major:minor, root, mount point, ...
        let words: Vec<&str> = line.split_whitespace().collect();
        let (found, place) = (words.get(2)?, words.get(4)?);
        // File systems of several devices have a number of their own, and a source.
        let source = words.iter().position(|word| *word == "-").and_then(|at| words.get(at + 2));
        let by_source = || {
            let node = source.filter(|source| source.starts_with("/dev/"))?;
            std::fs::metadata(node).ok().map(|metadata| metadata.rdev())
        };
        let is_it = *found == text || (found.starts_with("0:") && by_source() == Some(device));
        is_it.then(|| (*place).to_owned())
    })
}
