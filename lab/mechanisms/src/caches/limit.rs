//! The host, made small and put back: a memory cgroup for the back ends, the limit of dirty pages,
//! write-back throttling.
//!
//! All of it is undone when the values are dropped, so also after an error and an interrupt
//! (SIGKILL leaves it as it is).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vlane_testbed::error::{Context, Error, ErrorKind, Result};

/// How often, and how long apart, an emptied cgroup is removed before that is given up.
const REMOVALS: (u32, Duration) = (50, Duration::from_millis(20));
/// Where the kernel's settings of virtual memory are.
const VM: &str = "/proc/sys/vm";

/// Where memory cgroups are made.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    dir: PathBuf,
    /// Version 2, the unified one.
    unified: bool,
}

impl Hierarchy {
    /// By /proc/self/mountinfo and /proc/self/cgroup. `controls` says whether a unified hierarchy
    /// at a place has the memory controller.
    fn find(mounts: &str, own: &str, controls: impl Fn(&Path) -> bool) -> Option<Self> {
        let parsed = mounts.lines().filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let (root, point) = (before.split(' ').nth(3)?, before.split(' ').nth(4)?);
            let mut after = after.split(' ');
            let kind = after.next()?;
            Some((root, Path::new(point), kind, after.nth(1).unwrap_or("")))
        });
        for (root, point, kind, options) in parsed {
            match kind {
                "cgroup" if options.split(',').any(|option| option == "memory") => {
                    // Below our own group, whose limits hold on.
                    let own = own.lines().find_map(|line| {
                        let mut parts = line.splitn(3, ':').skip(1);
                        let controllers = parts.next()?;
                        controllers.split(',').any(|c| c == "memory").then(|| parts.next())?
                    });
                    let below = own
                        .and_then(|own| own.strip_prefix(root.trim_end_matches('/')))
                        .unwrap_or("");
                    let dir = point.join(below.trim_start_matches('/'));
                    return Some(Self { dir, unified: false });
                }
                // A group with processes of its own cannot have groups with controllers below it;
                // the root can.
                "cgroup2" if controls(point) => {
                    return Some(Self { dir: point.into(), unified: true });
                }
                _ => {}
            }
        }
        None
    }

    fn here() -> Result<Self> {
        let read = |path: &str| {
            fs::read_to_string(path).context(ErrorKind::Io, || format!("{path}: cannot be read"))
        };
        let controls = |point: &Path| {
            let text = fs::read_to_string(point.join("cgroup.controllers")).unwrap_or_default();
            text.split_whitespace().any(|controller| controller == "memory")
        };
        let found =
            Self::find(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?, controls);
        found.ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                "no memory cgroup is mounted here, so the page cache cannot be limited; with \
                 --no-limit it is measured without a limit",
            )
        })
    }
}

/// A cgroup whose processes share so much memory, page cache included. Removed when it is dropped;
/// its processes must have ended by then.
#[derive(Debug)]
pub struct MemoryLimit {
    dir: PathBuf,
    unified: bool,
}

/// Content of a cgroup's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes of files in the page cache.
    pub file: u64,
    /// Bytes of shared memory: a guest's, if the back end touched it first.
    pub shared: u64,
}

impl MemoryLimit {
    /// A group of `bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] without root or a memory cgroup.
    pub fn new(bytes: u64) -> Result<Self> {
        let Hierarchy { dir, unified } = Hierarchy::here()?;
        let dir_of = |dir: &Path| dir.join(format!("vlane-caches-{}", std::process::id()));
        let refused = |path: &Path| {
            format!(
                "{}: cannot be made or set, so the page cache cannot be limited; run it as root, \
                 or with --no-limit to measure without a limit",
                path.display()
            )
        };
        if unified {
            let control = dir.join("cgroup.subtree_control");
            fs::write(&control, "+memory").context(ErrorKind::Invalid, || refused(&control))?;
        }
        let dir = dir_of(&dir);
        fs::create_dir(&dir).context(ErrorKind::Invalid, || refused(&dir))?;
        let limit = Self { dir, unified };
        let file = limit.dir.join(if unified { "memory.max" } else { "memory.limit_in_bytes" });
        fs::write(&file, bytes.to_string()).context(ErrorKind::Invalid, || refused(&file))?;
        if unified {
            // Surplus pages are to be dropped, not swapped. Not every kernel has swap.
            let _ = fs::write(limit.dir.join("memory.swap.max"), "0");
        }
        Ok(limit)
    }

    /// Puts a process into it. Its earlier memory stays charged to the earlier cgroup.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the kernel refuses it.
    pub fn add(&self, pid: u32) -> Result<()> {
        let file = self.dir.join("cgroup.procs");
        fs::write(&file, pid.to_string()).context(ErrorKind::Io, || {
            format!("{}: process {pid} cannot be put there", file.display())
        })
    }

    /// Its present content.
    pub fn held(&self) -> Held {
        let text = fs::read_to_string(self.dir.join("memory.stat")).unwrap_or_default();
        held(&text, self.unified)
    }
}

/// By a group's memory.stat.
fn held(text: &str, unified: bool) -> Held {
    let value = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.and_then(|number| number.trim().parse().ok()).unwrap_or(0_u64)
    };
    let all = value(if unified { "file" } else { "cache" });
    let shared = value("shmem");
    Held { file: all.saturating_sub(shared), shared }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // A process that has ended leaves its group a moment later.
        for _ in 0..REMOVALS.0 {
            match fs::remove_dir(&self.dir) {
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) =>
                {
                    std::thread::sleep(REMOVALS.1);
                }
                Ok(()) => return,
                Err(error) => {
                    return tracing::warn!("{}: cannot be removed: {error}", self.dir.display());
                }
            }
        }
        tracing::warn!("{}: still has processes, and stays", self.dir.display());
    }
}

/// A setting of the kernel's, changed until this is dropped.
#[derive(Debug)]
struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    fn set(path: PathBuf, value: &str) -> io::Result<Self> {
        let before = fs::read_to_string(&path)?.trim().to_string();
        fs::write(&path, value)?;
        Ok(Self { path, before })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, &self.before) {
            tracing::warn!(
                "{}: cannot be set back to {}: {error}",
                self.path.display(),
                self.before
            );
        }
    }
}

/// The limit of dirty pages of the whole host: what a cgroup of version 1 does not limit by itself.
#[derive(Debug)]
pub struct DirtyLimit {
    _setting: Setting,
}

impl DirtyLimit {
    /// `bytes` until it is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] without root.
    pub fn new(bytes: u64) -> Result<Self> {
        Self::at(Path::new(VM), bytes).context(ErrorKind::Invalid, || {
            "vm.dirty_bytes cannot be set; run it as root, or with --no-limit to measure without a \
             limit"
        })
    }

    fn at(vm: &Path, bytes: u64) -> io::Result<Self> {
        // Of bytes and ratio one is in force and the other one reads as 0: setting one clears the
        // other.
        let (by_bytes, by_ratio) = (vm.join("dirty_bytes"), vm.join("dirty_ratio"));
        let before = fs::read_to_string(&by_bytes)?.trim().to_string();
        let setting = match before.as_str() {
            "0" => {
                let ratio = fs::read_to_string(&by_ratio)?.trim().to_string();
                fs::write(&by_bytes, bytes.to_string())?;
                Setting { path: by_ratio, before: ratio }
            }
            _ => Setting::set(by_bytes, &bytes.to_string())?,
        };
        Ok(Self { _setting: setting })
    }
}

/// The block device below a file system.
#[derive(Debug, Clone)]
pub struct Device {
    dir: PathBuf,
}

impl Device {
    /// That of a file, if it has one.
    pub fn of(file: &Path) -> Option<Self> {
        let device = fs::metadata(file).ok()?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let dir = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        dir.exists().then_some(Self { dir })
    }

    /// Bytes that were written to it so far, by anybody.
    pub fn written(&self) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join("stat")).ok()?;
        // Documentation/block/stat.rst: the seventh is sectors written, of 512 bytes.
        text.split_whitespace().nth(6)?.parse::<u64>().ok()?.checked_mul(512)
    }

    fn queue(&self) -> PathBuf {
        // A partition has its disk's.
        let own = self.dir.join("queue");
        if own.exists() { own } else { self.dir.join("../queue") }
    }
}

/// Write-back throttling, switched off until this is dropped.
#[derive(Debug)]
pub struct Unthrottled {
    _setting: Setting,
}

impl Unthrottled {
    /// On a device.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the device has none, or without root.
    pub fn on(device: &Device) -> Result<Self> {
        let file = device.queue().join("wbt_lat_usec");
        let setting = Setting::set(file.clone(), "0").context(ErrorKind::Invalid, || {
            format!(
                "{}: write-back throttling cannot be switched off there (root? a device that has \
                 it?); leave out --throttling off",
                file.display()
            )
        })?;
        Ok(Self { _setting: setting })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Below our own in the old one, below the root in the new one.
    #[test]
    fn group_is_made_in_either_hierarchy() {
        let old = "30 22 0:25 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n\
                   31 22 0:26 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";
        let own = "5:devices:/\n4:memory:/jobs/one\n0::/\n";
        let found = Hierarchy::find(old, own, |_| false).unwrap();
        assert_eq!(
            found,
            Hierarchy { dir: "/sys/fs/cgroup/memory/jobs/one".into(), unified: false }
        );
        // A container sees a part of the hierarchy, at the mount point.
        let part = "31 22 0:26 /jobs /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(
            Hierarchy::find(part, own, |_| false).unwrap().dir,
            Path::new("/sys/fs/cgroup/memory/one")
        );
        let new =
            "29 22 0:24 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = Hierarchy::find(new, "0::/user.slice/x\n", |point| {
            point == Path::new("/sys/fs/cgroup")
        })
        .unwrap();
        assert_eq!(found, Hierarchy { dir: "/sys/fs/cgroup".into(), unified: true });
        assert_eq!(Hierarchy::find(new, "0::/\n", |_| false), None);
        assert_eq!(Hierarchy::find("", "", |_| true), None);
    }

    #[test]
    fn shared_memory_is_separate_from_files() {
        let old = "cache 5000\nrss 1\nshmem 1000\ntotal_cache 7000\n";
        assert_eq!(held(old, false), Held { file: 4000, shared: 1000 });
        let new = "anon 1\nfile 5000\nfile_dirty 7\nshmem 500\n";
        assert_eq!(held(new, true), Held { file: 4500, shared: 500 });
        assert_eq!(held("", true), Held::default());
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
        let limit = DirtyLimit::at(dir.path(), 1 << 20).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("dirty_bytes"), "1048576");
        drop(limit);
        assert_eq!(read("dirty_ratio"), "20", "the ratio is written, which clears the bytes");

        let dir = vm("4096000", "0");
        drop(DirtyLimit::at(dir.path(), 1 << 20).unwrap());
        assert_eq!(fs::read_to_string(dir.path().join("dirty_bytes")).unwrap(), "4096000");
    }

    #[test]
    fn setting_is_restored_after_panic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("setting");
        fs::write(&path, "75000\n").unwrap();
        let of = path.clone();
        let panicked = std::thread::spawn(move || {
            let _setting = Setting::set(of.clone(), "0").unwrap();
            assert_eq!(fs::read_to_string(&of).unwrap(), "0");
            panic!("a measurement fails");
        });
        assert!(panicked.join().is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "75000");
    }

    #[test]
    fn group_counts_reads_and_vanishes_on_drop() {
        let limit = match MemoryLimit::new(64 << 20) {
            Ok(limit) => limit,
            // Many containers forbid making one.
            Err(error) => return assert!(error.to_string().contains("--no-limit"), "{error}"),
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
