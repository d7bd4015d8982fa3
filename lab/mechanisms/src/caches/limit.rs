//! The host, made small and slow, and put back: a cgroup for the back ends, and the limit of dirty
//! pages.
//!
//! All of it is undone when the values are dropped, so also after an error and an interrupt
//! (SIGKILL leaves it as it is).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use procfs::ProcessCGroups;
use procfs::process::{MountInfo, MountInfos, Process};
use vlane_testbed::{Context, Error, ErrorKind, Result};

/// Groups of this process so far: each has a name of its own.
static GROUPS: AtomicU32 = AtomicU32::new(0);
/// How often, and how long apart, an emptied cgroup is removed before that is given up.
const REMOVALS: (u32, Duration) = (50, Duration::from_millis(20));

/// A controller's names in versions 1 and 2 of cgroups.
type Controller = (&'static str, &'static str);
const MEMORY: Controller = ("memory", "memory");
const IO: Controller = ("blkio", "io");

/// Where cgroups of a controller are made, and whether that is version 2, the unified one.
fn hierarchy(
    (old, new): Controller,
    mounts: MountInfos,
    own: &ProcessCGroups,
) -> Option<(PathBuf, bool)> {
    let has_it = |point: &Path| {
        let text = fs::read_to_string(point.join("cgroup.controllers")).unwrap_or_default();
        text.split_whitespace().any(|controller| controller == new)
    };
    let find = |mount: MountInfo| match mount.fs_type.as_str() {
        "cgroup" if mount.super_options.contains_key(old) => {
            // Below our own group, whose limits hold on.
            let is_it = |controller: &String| controller == old;
            let own = own.0.iter().find(|group| group.controllers.iter().any(is_it));
            let root = mount.root.trim_end_matches('/');
            let below = own.and_then(|own| own.pathname.strip_prefix(root)).unwrap_or("");
            Some((mount.mount_point.join(below.trim_start_matches('/')), false))
        }
        // A group with processes of its own cannot have groups with controllers below it; the root
        // can.
        "cgroup2" if has_it(&mount.mount_point) => Some((mount.mount_point, true)),
        _ => None,
    };
    mounts.0.into_iter().find_map(find)
}

/// A new group of a controller, with this name, and whether it is of version 2; none where there is
/// no controller.
///
/// # Errors
/// [`ErrorKind::Invalid`], with these words after the path, if the group cannot be made.
fn group(controller: Controller, name: &str, refused: &str) -> Result<Option<(PathBuf, bool)>> {
    let own = Process::myself().and_then(|own| Ok((own.mountinfo()?, own.cgroups()?)));
    let (mounts, own) = own.context(ErrorKind::Io, || "cgroups cannot be looked at")?;
    let Some((dir, unified)) = hierarchy(controller, mounts, &own) else { return Ok(None) };
    let refused = |path: &Path| format!("{}: {refused}", path.display());
    if unified {
        let control = dir.join("cgroup.subtree_control");
        fs::write(&control, format!("+{}", controller.1))
            .context(ErrorKind::Invalid, || refused(&control))?;
    }
    let dir = dir.join(name);
    match fs::create_dir(&dir) {
        // Version 2 has one group for all controllers.
        Err(error) if unified && error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.context(ErrorKind::Invalid, || refused(&dir))?,
    }
    Ok(Some((dir, unified)))
}

/// The disk below a file, which has the partition that the file is on: its numbers.
fn disk_of(file: &Path) -> io::Result<String> {
    let device = fs::metadata(file)?.dev();
    let numbers = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let of = fs::canonicalize(Path::new("/sys/dev/block").join(&numbers))?;
    match of.parent() {
        Some(disk) if of.join("partition").exists() => {
            Ok(fs::read_to_string(disk.join("dev"))?.trim().to_owned())
        }
        _ => Ok(numbers),
    }
}

/// A cgroup whose processes share so much memory, page cache included. Removed when it is dropped;
/// its processes must have ended by then.
#[derive(Debug)]
pub struct MemoryLimit {
    name: String,
    dir: PathBuf,
    /// The group for the cap of reads, if it is another one.
    reads: Option<PathBuf>,
}

impl MemoryLimit {
    /// A group of `bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] without root or a memory cgroup.
    pub fn new(bytes: u64) -> Result<Self> {
        const REFUSED: &str = "cannot be made or set, so the page cache cannot be limited; run it \
                               as root";
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let name = format!("vlane-caches-{}-{number}", std::process::id());
        let (dir, unified) = group(MEMORY, &name, REFUSED)?.ok_or_else(|| {
            let text = "no memory cgroup is mounted here, so the page cache cannot be limited";
            Error::new(ErrorKind::Invalid, text)
        })?;
        let refused = |path: &Path| format!("{}: {REFUSED}", path.display());
        let limit = Self { name, dir, reads: None };
        let file = limit.dir.join(if unified { "memory.max" } else { "memory.limit_in_bytes" });
        fs::write(&file, bytes.to_string()).context(ErrorKind::Invalid, || refused(&file))?;
        if unified {
            // Surplus pages are to be dropped, not swapped. Not every kernel has swap.
            let _ = fs::write(limit.dir.join("memory.swap.max"), "0");
        }
        Ok(limit)
    }

    /// Caps reads from the disk below a file, in reads per second. Writes have no cap: version 1 of
    /// cgroups does not know whose page of the cache is written back.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] without root, a controller of I/O or a disk.
    pub fn cap_reads(&mut self, file: &Path, per_second: u32) -> Result<()> {
        const REFUSED: &str = "cannot be made or set, so reads cannot be capped; run it as root";
        let (dir, unified) = group(IO, &self.name, REFUSED)?.ok_or_else(|| {
            let text = "no I/O cgroup is mounted here, so reads cannot be capped";
            Error::new(ErrorKind::Invalid, text)
        })?;
        if dir != self.dir {
            self.reads = Some(dir.clone());
        }
        let disk = disk_of(file)
            .context(ErrorKind::Invalid, || format!("{}: {REFUSED}", file.display()))?;
        let (name, cap) = match unified {
            true => ("io.max", format!("{disk} riops={per_second}")),
            false => ("blkio.throttle.read_iops_device", format!("{disk} {per_second}")),
        };
        let control = dir.join(name);
        fs::write(&control, cap)
            .context(ErrorKind::Invalid, || format!("{}: {REFUSED}", control.display()))
    }

    /// Puts a process into it. Its earlier memory stays charged to the earlier cgroup.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the kernel refuses it.
    pub fn add(&self, pid: u32) -> Result<()> {
        std::iter::once(&self.dir).chain(&self.reads).try_for_each(|dir| {
            let file = dir.join("cgroup.procs");
            fs::write(&file, pid.to_string()).context(ErrorKind::Io, || {
                format!("{}: process {pid} cannot be put there", file.display())
            })
        })
    }

    /// Bytes of shared memory in it: a guest's, if the back end touched it first.
    pub fn shared(&self) -> u64 {
        shared(&fs::read_to_string(self.dir.join("memory.stat")).unwrap_or_default())
    }
}

/// By a group's memory.stat.
fn shared(text: &str) -> u64 {
    let found = text.lines().find_map(|line| line.strip_prefix("shmem "));
    found.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        for dir in std::iter::once(&self.dir).chain(&self.reads) {
            // A process that has ended leaves its group a moment later.
            let removed = (0..REMOVALS.0).any(|_| {
                let removed = fs::remove_dir(dir);
                removed.inspect_err(|_| std::thread::sleep(REMOVALS.1)).is_ok()
            });
            if !removed {
                tracing::warn!("{}: cannot be removed, and stays", dir.display());
            }
        }
    }
}

/// The limit of dirty pages of the whole host, changed until this is dropped. A cgroup of
/// version 1 has no such limit of its own.
#[derive(Debug)]
pub struct DirtyLimit {
    path: PathBuf,
    before: String,
}

impl DirtyLimit {
    /// `bytes` until it is dropped; `vm` has the kernel's settings of virtual memory.
    ///
    /// # Errors
    /// If they cannot be set: without root.
    pub fn new(vm: &Path, bytes: u64) -> io::Result<Self> {
        // Of bytes and ratio one is in force and the other one reads as 0: setting one clears the
        // other.
        let (by_bytes, by_ratio) = (vm.join("dirty_bytes"), vm.join("dirty_ratio"));
        let is_by_ratio = fs::read_to_string(&by_bytes)?.trim() == "0";
        let path = if is_by_ratio { by_ratio } else { by_bytes.clone() };
        let before = fs::read_to_string(&path)?.trim().to_string();
        fs::write(by_bytes, bytes.to_string())?;
        Ok(Self { path, before })
    }
}

impl Drop for DirtyLimit {
    fn drop(&mut self) {
        let (path, before) = (self.path.display(), &self.before);
        if let Err(error) = fs::write(&self.path, before) {
            tracing::warn!("{path}: cannot be set back to {before}: {error}");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use procfs::FromRead;

    use super::*;

    /// Below our own in the old one, below the root in the new one.
    #[test]
    fn group_is_made_in_either_hierarchy() {
        let old = "30 22 0:25 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n\
                   31 22 0:26 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";
        let own = "5:devices:/\n4:memory:/jobs/one\n0::/\n";
        let of = |mounts: &str, own: &str| {
            let mounts = MountInfos::from_read(mounts.as_bytes()).unwrap();
            let own = ProcessCGroups::from_read(own.as_bytes()).unwrap();
            hierarchy(MEMORY, mounts, &own)
        };
        assert_eq!(of(old, own), Some(("/sys/fs/cgroup/memory/jobs/one".into(), false)));
        // A container sees a part of the hierarchy, at the mount point.
        let part = "31 22 0:26 /jobs /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(of(part, own), Some(("/sys/fs/cgroup/memory/one".into(), false)));
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        let new = format!("29 22 0:24 / {at} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
        assert_eq!(of(&new, "0::/\n"), None);
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        assert_eq!(of(&new, "0::/user.slice/x\n"), Some((dir.path().into(), true)));
        assert_eq!(of("", ""), None);
    }

    #[test]
    fn shared_memory_is_counted() {
        assert_eq!(shared("cache 5000\nrss 1\nshmem 1000\ntotal_shmem 7000\n"), 1000);
        assert_eq!(shared("anon 1\nfile 5000\nfile_dirty 7\nshmem 500\n"), 500);
        assert_eq!(shared(""), 0);
    }

    /// As the kernel does it: writing one of the two sets the other one to 0.
    fn vm(bytes: &str, ratio: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("dirty_bytes"), format!("{bytes}\n")).unwrap();
        fs::write(dir.path().join("dirty_ratio"), format!("{ratio}\n")).unwrap();
        dir
    }

    #[test]
    fn dirty_limit_is_restored_as_given() {
        let dir = vm("0", "20");
        let limit = DirtyLimit::new(dir.path(), 1 << 20).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("dirty_bytes"), "1048576");
        drop(limit);
        assert_eq!(read("dirty_ratio"), "20", "the ratio is written, which clears the bytes");

        let dir = vm("4096000", "0");
        drop(DirtyLimit::new(dir.path(), 1 << 20).unwrap());
        assert_eq!(fs::read_to_string(dir.path().join("dirty_bytes")).unwrap(), "4096000");
    }

    #[test]
    fn setting_is_restored_after_panic() {
        let dir = vm("75000", "0");
        let path = dir.path().to_path_buf();
        let panicked = std::thread::spawn(move || {
            let _limit = DirtyLimit::new(&path, 4096).unwrap();
            assert_eq!(fs::read_to_string(path.join("dirty_bytes")).unwrap(), "4096");
            panic!("a measurement fails");
        });
        assert!(panicked.join().is_err());
        assert_eq!(fs::read_to_string(dir.path().join("dirty_bytes")).unwrap(), "75000");
    }

    /// In both versions the names of the group's files begin with the controller's.
    #[test]
    fn capped_group_has_its_disk_numbers() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut limit = match MemoryLimit::new(64 << 20) {
            Ok(limit) => limit,
            Err(error) => {
                return assert!(error.to_string().contains("cannot be limited"), "{error}");
            }
        };
        if let Err(error) = limit.cap_reads(dir.path(), 1234) {
            // On a file system without a disk, and where a container forbids it.
            return assert!(error.to_string().contains("cannot be capped"), "{error}");
        }
        let group = limit.reads.clone().unwrap_or_else(|| limit.dir.clone());
        let capped = ["io.max", "blkio.throttle.read_iops_device"]
            .map(|name| fs::read_to_string(group.join(name)).unwrap_or_default())
            .concat();
        let disk = disk_of(dir.path()).unwrap();
        assert!(capped.contains(&disk) && capped.contains("1234"), "{capped}");
        drop(limit);
        assert!(!group.exists());
    }

    #[test]
    fn group_counts_reads_and_vanishes_on_drop() {
        let limit = match MemoryLimit::new(64 << 20) {
            Ok(limit) => limit,
            // Many containers forbid making one.
            Err(error) => {
                return assert!(error.to_string().contains("cannot be limited"), "{error}");
            }
        };
        let dir = limit.dir.clone();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        limit.add(child.id()).unwrap();
        let processes = fs::read_to_string(dir.join("cgroup.procs")).unwrap();
        assert_eq!(processes.trim(), child.id().to_string());
        child.kill().unwrap();
        child.wait().unwrap();
        drop(limit);
        assert!(!dir.exists());
    }
}
