//! Storage below images: the file system and the device below it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// A file system that images were measured on. It names no path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    /// Its type: `ext4`, `xfs`, `tmpfs`.
    pub file_system: String,
    /// The block device below it, as the kernel calls it: `nvme0n1`, `dm-0`; empty if there is
    /// none.
    pub device: String,
    /// The device's model, if it tells.
    pub model: String,
    /// True if the device calls itself a rotating disk. Virtual ones often do, on any medium.
    pub is_rotational: bool,
    /// The device's I/O scheduler: `none`, `mq-deadline`; empty if it has none.
    pub scheduler: String,
}

/// All that this process has seen.
static SEEN: Mutex<Vec<Storage>> = Mutex::new(Vec::new());

/// Says that images to be measured on are in this directory: reports of this process name what it
/// is on.
pub fn images_in(dir: &Path) {
    let Some(storage) = Storage::of(dir, Path::new("/")) else { return };
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !seen.contains(&storage) {
        seen.push(storage);
    }
}

/// Directories given to [`images_in`].
pub(super) fn seen() -> Vec<Storage> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Storage {
    /// Storage below a directory, from the files below `root` (a machine's own are below `/`); none
    /// if there is no such directory.
    fn of(dir: &Path, root: &Path) -> Option<Self> {
        let device = fs::metadata(dir).ok()?.dev();
        let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
        let file_system = file_system(&mounts, &number).unwrap_or_default();
        Some(Self { file_system, ..Self::below(&number, root) })
    }

    /// The device with this number, and the disk that it is a partition of.
    fn below(number: &str, root: &Path) -> Self {
        let Ok(path) = fs::canonicalize(root.join("sys/dev/block").join(number)) else {
            return Self::default();
        };
        let device = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let disk =
            if path.join("partition").exists() { path.parent().unwrap_or(&path) } else { &path };
        let read =
            |name: &str| fs::read_to_string(disk.join(name)).unwrap_or_default().trim().to_owned();
        Self {
            device,
            model: read("device/model"),
            is_rotational: read("queue/rotational") == "1",
            scheduler: chosen(&read("queue/scheduler")),
            ..Self::default()
        }
    }

    /// `ext4 on nvme0n1 (SAMSUNG MZVL2512, scheduler none)`.
    pub fn words(&self) -> String {
        if self.device.is_empty() {
            return self.file_system.clone();
        }
        let scheduler = format!("scheduler {}", self.scheduler);
        let known = [
            (self.model.as_str(), !self.model.is_empty()),
            ("rotational", self.is_rotational),
            (&scheduler, !self.scheduler.is_empty()),
        ];
        let known: Vec<&str> = known.into_iter().filter(|(_, is)| *is).map(|(it, _)| it).collect();
        let known = match known.join(", ") {
            none if none.is_empty() => none,
            known => format!(" ({known})"),
        };
        format!("{} on {}{known}", self.file_system, self.device)
    }
}

/// The type of the file system with this device number, from the text of `/proc/self/mountinfo`.
fn file_system(mounts: &str, number: &str) -> Option<String> {
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(number))?;
    let (_, after) = line.split_once(" - ")?;
    after.split(' ').next().map(str::to_owned)
}

/// The scheduler in brackets of `[none] mq-deadline`; the only one if there are no brackets.
fn chosen(schedulers: &str) -> String {
    match schedulers.split_once('[').and_then(|(_, after)| after.split_once(']')) {
        Some((chosen, _)) => chosen.to_owned(),
        None => schedulers.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn partition_has_disks_model_and_scheduler() {
        let root = tempfile::tempdir().unwrap();
        let disk = root.path().join("sys/devices/nvme/nvme0n1");
        let part = disk.join("nvme0n1p2");
        fs::create_dir_all(&part).unwrap();
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("device")).unwrap();
        fs::create_dir_all(root.path().join("sys/dev/block")).unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        for (file, text) in [
            ("queue/rotational", "0\n"),
            ("queue/scheduler", "none [mq-deadline] kyber\n"),
            ("device/model", "SAMSUNG MZVL2512   \n"),
            ("nvme0n1p2/partition", "2\n"),
        ] {
            fs::write(disk.join(file), text).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let device = fs::metadata(dir.path()).unwrap().dev();
        let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        std::os::unix::fs::symlink(&part, root.path().join("sys/dev/block").join(&number)).unwrap();
        let mounts = format!(
            "22 1 0:1 / /proc rw - proc proc rw\n23 1 {number} / / rw shared:1 - ext4 /dev/secret \
             rw\n"
        );
        fs::write(root.path().join("proc/self/mountinfo"), mounts).unwrap();
        let storage = Storage::of(dir.path(), root.path()).unwrap();
        assert_eq!(storage.words(), "ext4 on nvme0n1p2 (SAMSUNG MZVL2512, scheduler mq-deadline)");
        assert!(!storage.is_rotational);
    }

    #[test]
    fn storage_without_device_names_file_system() {
        let root = tempfile::tempdir().unwrap();
        let storage = Storage::of(root.path(), root.path()).unwrap();
        assert_eq!(storage, Storage::default(), "nothing is known, and nothing fails");
        assert_eq!(Storage { file_system: "tmpfs".into(), ..Storage::default() }.words(), "tmpfs");
        assert_eq!(Storage::of(Path::new("/does/not/exist"), root.path()), None);
        assert_eq!((chosen("none"), chosen("[none]")), ("none".into(), "none".into()));
    }

    #[test]
    fn directory_is_named_once() {
        let dir = tempfile::tempdir().unwrap();
        images_in(dir.path());
        images_in(dir.path());
        let this = Storage::of(dir.path(), Path::new("/")).unwrap();
        assert_eq!(seen().iter().filter(|storage| **storage == this).count(), 1);
        assert!(!this.file_system.is_empty(), "this machine's kernel tells: {this:?}");
    }
}
