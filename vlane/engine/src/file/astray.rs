//! An image that is not at its path any more: deleted, moved, or replaced by another file. It is
//! served on, and the guest's data cannot be found at the path.

use std::fs::{File, Metadata};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::format::shell_word;

/// Where an image is instead of at its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Astray {
    /// Another file is at the path.
    pub is_replaced: bool,
    /// Its place; none if it was deleted and ends with this process.
    pub now_at: Option<PathBuf>,
    /// Its file system was unmounted.
    pub is_unmounted: bool,
    path: PathBuf,
    descriptor: RawFd,
}

impl Astray {
    /// Says whether the guest's data are lost when this process ends.
    pub fn is_lost_at_the_end(&self) -> bool {
        self.now_at.is_none()
    }

    /// The event, and the way back while this process runs.
    pub fn in_words(&self) -> String {
        let done = match (self.is_unmounted, self.is_replaced) {
            (true, _) => "unmounted with its file system",
            (false, true) => "replaced by another file",
            (false, false) => "removed",
        };
        match &self.now_at {
            Some(_) if self.is_unmounted => "the image's file system was unmounted (`umount \
                                             --lazy`); the guest still writes to it; mount it \
                                             again before the next start"
                .to_owned(),
            Some(now_at) => format!(
                "the image was moved to {}, and {done} at its path; the guest still writes to it; \
                 move it back before the next start",
                now_at.display()
            ),
            None => format!(
                "the image was {done} while it is served, and all of the guest's data are lost \
                 when this process ends. Pause the guest and copy them first: `cp --sparse=always \
                 /proc/{}/fd/{} {}`",
                std::process::id(),
                self.descriptor,
                shell_word(&self.copy())
            ),
        }
    }

    /// The words for the end of this process.
    pub fn at_the_end(&self) -> String {
        match &self.now_at {
            Some(_) if self.is_unmounted => "the image's file system was unmounted while it was \
                                             served: the guest's data are there; mount it again"
                .to_owned(),
            Some(now_at) => {
                format!(
                    "the image is not at its path: the guest's data are in {}; move it back",
                    now_at.display()
                )
            }
            None => {
                let done = if self.is_unmounted { "unmounted" } else { "deleted or replaced" };
                format!(
                    "the image was {done} while it was served, and the guest's data are lost with \
                     this process"
                )
            }
        }
    }

    /// A name for the copy, wherever the command is typed.
    fn copy(&self) -> PathBuf {
        let path = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        let is_there = path.parent().is_some_and(Path::is_dir) && !self.is_unmounted;
        let mut name = match path.file_name().filter(|_| !is_there) {
            // Its directory is gone as well.
            Some(name) => Path::new("/var/tmp").join(name),
            None => path,
        }
        .into_os_string();
        name.push(".saved");
        name.into()
    }
}

/// Returns true if both are the same file, or the same device by any node.
pub(super) fn is_same(a: &Metadata, b: &Metadata) -> bool {
    match (a.file_type().is_block_device(), b.file_type().is_block_device()) {
        // Nodes of a device come and go.
        (true, true) => a.rdev() == b.rdev(),
        (false, false) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// Where an open image is, if not at its path. A device's data is in the device, under any name of
/// its node.
pub(super) fn of(path: &Path, file: &File) -> Option<Astray> {
    let served = file.metadata().ok().filter(|served| served.file_type().is_file())?;
    let found = std::fs::metadata(path);
    match &found {
        Ok(found) if is_same(found, &served) => return None,
        // A path that cannot be looked at (a directory's mode, a network) is no evidence.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return None,
        _ => {}
    }
    let descriptor = file.as_raw_fd();
    // Of a file with several names the kernel knows the one by which it was opened, which may be
    // the one that is gone.
    let named = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok();
    let is_there =
        |name: &PathBuf| std::fs::metadata(name).is_ok_and(|found| is_same(&found, &served));
    let is_unmounted = is_unmounted(descriptor);
    let now_at = match served.nlink() {
        0 => None,
        // The file has no other name or user.
        _ if is_unmounted && is_in_memory(file) && !is_mounted(served.dev()) => None,
        _ => Some(named.filter(is_there).unwrap_or_else(|| PathBuf::from("another of its names"))),
    };
    Some(Astray {
        is_replaced: found.is_ok(),
        now_at,
        is_unmounted,
        path: path.to_owned(),
        descriptor,
    })
}

/// The fields of each mount: ID, parent, major:minor, and more (proc_pid_mountinfo(5)).
fn has_mount(field: usize, wanted: &str) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // None: they cannot be read.
    mounts.is_empty()
        || mounts.lines().any(|line| line.split_whitespace().nth(field) == Some(wanted))
}

/// Says whether the mount by which a file was opened is gone.
fn is_unmounted(descriptor: RawFd) -> bool {
    let info =
        std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).unwrap_or_default();
    let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    mount.is_some_and(|mount| !has_mount(0, mount.trim()))
}

/// Says whether a file system is mounted anywhere here.
fn is_mounted(device: u64) -> bool {
    has_mount(2, &format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
}

fn is_in_memory(file: &File) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|fs| matches!(fs.f_type, TMPFS_MAGIC | RAMFS_MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_or_removed_image_is_astray() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let path = at("disk.raw");
        let new = || File::create(&path).expect("a file");
        let file = new();
        assert_eq!(of(&path, &file), None);
        std::fs::rename(&path, at("moved")).expect("renamed");
        let moved = of(&path, &file).expect("moved");
        assert_eq!((moved.now_at.clone(), moved.is_replaced), (Some(at("moved")), false));
        assert!(
            !moved.is_lost_at_the_end()
                && moved.in_words().contains(&at("moved").display().to_string())
        );
        let other = new();
        assert!(
            of(&path, &file)
                .is_some_and(|astray| astray.is_replaced && !astray.is_lost_at_the_end())
        );
        std::fs::rename(at("moved"), &path).expect("renamed");
        assert_eq!(of(&path, &file), None, "back again");
        let lost = of(&path, &other).expect("replaced");
        assert!(lost.is_replaced && lost.is_lost_at_the_end());
        let words = lost.in_words();
        let copy = format!(
            "/proc/{}/fd/{} {}.saved`",
            std::process::id(),
            other.as_raw_fd(),
            path.display()
        );
        assert!(words.contains(&copy), "{words}");
        std::fs::remove_file(&path).expect("removed");
        assert!(
            of(&path, &file)
                .is_some_and(|astray| !astray.is_replaced && astray.is_lost_at_the_end())
        );
        // The advice works: the descriptor still leads to the file.
        std::fs::copy(format!("/proc/self/fd/{}", file.as_raw_fd()), &path).expect("a copy");
    }

    #[test]
    fn link_to_an_image_is_valid() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, link) = (dir.path().join("disk.raw"), dir.path().join("link"));
        let file = File::create(&path).expect("a file");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert_eq!(of(&link, &file), None);
        std::fs::remove_file(&link).expect("removed");
        let astray = of(&link, &file).expect("the link is gone");
        assert_eq!(astray.now_at, Some(path));
    }
}
