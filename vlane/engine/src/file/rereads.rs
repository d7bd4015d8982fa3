//! Storage that reads a buffer twice: once for a checksum, a parity or one copy, and once for the
//! data itself.
//!
//! A guest may change a page while it is written, and ordinary guests do. With direct I/O the
//! storage reads the guest's own memory, so its two readings differ: btrfs then has a block that it
//! refuses to read, an array has copies that differ. The page cache takes a copy first.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::IFlags;

use super::stack::{Extent, Roots, Stack, Thing};

pub(super) const BTRFS_MAGIC: i64 = 0x9123_683e;
const BCACHEFS_MAGIC: i64 = 0xca45_1a4e;
const ZFS_MAGIC: i64 = 0x2fc1_2fc1;
/// Files on devices on files that are followed.
const DEEPEST: u32 = 4;

/// Facts about a file system and a file on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct OnFileSystem {
    magic: i64,
    /// `chattr +C`: on btrfs such a file has no checksums.
    is_nocow: bool,
    /// The file system is mounted with `nodatasum` or `nodatacow`.
    is_nodatasum: bool,
}

/// Facts about a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OnDevice {
    name: String,
    /// `raid1`, of an array of MD.
    level: Option<String>,
    /// It asks the page cache not to change pages that it writes.
    wants_stable_writes: bool,
}

/// The reason why a file system reads written data twice.
fn of_file_system(known: OnFileSystem) -> Option<&'static str> {
    match known.magic {
        BTRFS_MAGIC if known.is_nocow || known.is_nodatasum => None,
        BTRFS_MAGIC => {
            Some("btrfs has checksums of it (`chattr +C` on an empty file leaves them out)")
        }
        ZFS_MAGIC => Some("ZFS has checksums of it"),
        BCACHEFS_MAGIC => Some("bcachefs has checksums of it"),
        _ => None,
    }
}

/// The same of a device.
fn of_device(known: &OnDevice) -> Option<String> {
    let OnDevice { name, level, wants_stable_writes } = known;
    let is = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    match level.as_deref() {
        Some("raid1" | "raid10") => {
            return Some(format!("/dev/{name} writes each copy from the same memory"));
        }
        Some(level @ ("raid4" | "raid5" | "raid6")) => {
            return Some(format!(
                "/dev/{name} is {level}, with parity computed from the same memory"
            ));
        }
        _ => {}
    }
    if is("drbd") {
        return Some(format!("/dev/{name} writes here and sends to its peer from the same memory"));
    }
    if is("zd") {
        return Some(format!("/dev/{name} is a volume of ZFS, which has checksums of it"));
    }
    wants_stable_writes.then(|| {
        format!("/dev/{name} wants its data unchanged while it writes them (queue/stable_writes)")
    })
}

/// The reason why data written to a file or device is read more than once, as far as the system
/// shows it.
pub(super) fn reason(file: &File) -> Option<String> {
    reason_at(file, 0)
}

fn reason_at(file: &File, depth: u32) -> Option<String> {
    let metadata = file.metadata().ok()?;
    let is_device = metadata.file_type().is_block_device();
    if !is_device && let Some(why) = of_file_system(on_file_system(file)) {
        return Some(why.to_owned());
    }
    // File systems without a device of their own have major number 0, which no device has.
    let device = if is_device { metadata.rdev() } else { metadata.dev() };
    let roots = Roots::system();
    let stack = Stack::read(roots);
    stack
        .layers(Thing::Device(device))
        .iter()
        .find_map(|layer| on_layer(roots, &stack, layer, depth))
}

fn on_layer(roots: Roots<'_>, stack: &Stack, layer: &Extent, depth: u32) -> Option<String> {
    let Thing::Device(number) = layer.of else { return None };
    let device = stack.devices.get(&number)?;
    let directory = directory(roots, number);
    let why = of_device(&on_device(&directory, &device.name));
    // A loop device writes from the guest's memory only if it does direct I/O itself.
    let is_direct =
        || std::fs::read_to_string(directory.join("loop/dio")).is_ok_and(|dio| dio.trim() == "1");
    let backing = || {
        let path = device.backing.as_ref().filter(|_| depth < DEEPEST && is_direct())?;
        reason_at(&File::open(path).ok()?, depth + 1)
    };
    why.or_else(backing)
}

fn directory(roots: Roots<'_>, number: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    roots.sys.join(format!("dev/block/{major}:{minor}"))
}

fn on_device(directory: &Path, name: &str) -> OnDevice {
    let text = |file: &str| {
        std::fs::read_to_string(directory.join(file)).ok().map(|text| text.trim().to_owned())
    };
    OnDevice {
        name: name.to_owned(),
        level: text("md/level"),
        wants_stable_writes: text("queue/stable_writes").as_deref() == Some("1"),
    }
}

fn on_file_system(file: &File) -> OnFileSystem {
    let magic = rustix::fs::fstatfs(file).map_or(0, |fs| fs.f_type);
    if magic != BTRFS_MAGIC {
        return OnFileSystem { magic, ..OnFileSystem::default() };
    }
    let flags = rustix::fs::ioctl_getflags(file).unwrap_or(IFlags::empty());
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = text(&format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
    OnFileSystem {
        magic,
        is_nocow: flags.contains(IFlags::NOCOW),
        is_nodatasum: is_nodatasum(&info, &text("/proc/self/mountinfo")),
    }
}

/// Says whether the mount that a descriptor's `fdinfo` names is without checksums.
fn is_nodatasum(fdinfo: &str, mountinfo: &str) -> bool {
    let id = fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim);
    // proc_pid_mountinfo(5): the ID is the first word, the options of the file system are the last.
    let mount = mountinfo.lines().find(|line| id.is_some() && line.split_whitespace().next() == id);
    let options = mount.and_then(|line| line.split_whitespace().last()).unwrap_or_default();
    options.split(',').any(|option| matches!(option, "nodatasum" | "nodatacow"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_with_checksums_read_twice() {
        let on = |magic| OnFileSystem { magic, ..OnFileSystem::default() };
        for magic in [BTRFS_MAGIC, ZFS_MAGIC, BCACHEFS_MAGIC] {
            assert!(of_file_system(on(magic)).is_some_and(|why| why.contains("checksums")));
        }
        const EXT4: i64 = 0xef53;
        const XFS: i64 = 0x5846_5342;
        for magic in [EXT4, XFS, 0] {
            assert_eq!(of_file_system(on(magic)), None);
        }
        assert_eq!(of_file_system(OnFileSystem { is_nocow: true, ..on(BTRFS_MAGIC) }), None);
        assert_eq!(of_file_system(OnFileSystem { is_nodatasum: true, ..on(BTRFS_MAGIC) }), None);
        // The flag means something else there.
        assert!(of_file_system(OnFileSystem { is_nocow: true, ..on(BCACHEFS_MAGIC) }).is_some());
    }

    #[test]
    fn arrays_and_mirrors_read_twice() {
        let device = |name: &str, level: Option<&str>, wants_stable_writes| OnDevice {
            name: name.to_owned(),
            level: level.map(str::to_owned),
            wants_stable_writes,
        };
        for level in ["raid1", "raid10", "raid4", "raid5", "raid6"] {
            assert!(
                of_device(&device("md0", Some(level), false))
                    .is_some_and(|why| why.contains("md0")),
                "{level}"
            );
        }
        for level in ["raid0", "linear"] {
            assert_eq!(of_device(&device("md0", Some(level), false)), None);
        }
        for name in ["drbd1000", "zd16"] {
            assert!(of_device(&device(name, None, false)).is_some());
        }
        for name in ["sda", "nvme0n1", "dm-3", "loop0", "zram0", "drbd", "zd"] {
            assert_eq!(of_device(&device(name, None, false)), None, "{name}");
            assert!(
                of_device(&device(name, None, true))
                    .is_some_and(|why| why.contains("stable_writes")),
                "{name}"
            );
        }
    }

    #[test]
    fn options_come_from_the_file_s_mount() {
        let mounts = "29 1 0:26 / / rw - btrfs /dev/sda1 rw,space_cache=v2\n\
                      30 29 0:27 / /images rw - btrfs /dev/sdb1 rw,nodatasum,space_cache=v2\n\
                      31 29 0:28 / /more rw shared:1 - btrfs /dev/sdc1 rw,nodatacow\n";
        let fdinfo = |id: &str| format!("pos:\t0\nflags:\t02\nmnt_id:\t{id}\nino:\t7\n");
        assert!(!is_nodatasum(&fdinfo("29"), mounts));
        assert!(is_nodatasum(&fdinfo("30"), mounts));
        assert!(is_nodatasum(&fdinfo("31"), mounts));
        assert!(!is_nodatasum(&fdinfo("3"), mounts) && !is_nodatasum("", mounts));
    }
}
