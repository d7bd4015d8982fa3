//! A cache of expensive files: kernels, an unpacked User-Mode Linux, verdicts of probes.
//!
//! An entry appears whole or not at all. It is made under a temporary name and renamed, with a lock
//! file held. So two processes that want the same kernel at once download it once.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::error::{Error, ErrorKind, Result, io};

/// The directory of kept things: `$VLANE_CACHE`, else `$XDG_CACHE_HOME/vlane`, else
/// `~/.cache/vlane`.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache that the environment names, created when it does not exist.
    pub fn open() -> Result<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let root = set("VLANE_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("vlane")))
            .or_else(|| set("HOME").map(|d| d.join(".cache/vlane")))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Io,
                    "no place for the cache: neither VLANE_CACHE nor XDG_CACHE_HOME nor HOME is \
                     set; set VLANE_CACHE to a directory",
                )
            })?;
        Self::at(root)
    }

    /// A cache in a directory of the caller's choice, created when it does not exist.
    pub fn at(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        fs::create_dir_all(&root).map_err(io(|| {
            format!(
                "{}: the cache directory cannot be made; set VLANE_CACHE to another directory",
                root.display()
            )
        }))?;
        let root = root
            .canonicalize()
            .map_err(io(|| format!("{}: not a usable cache directory", root.display())))?;
        Ok(Self { root })
    }

    /// Where an entry is or would be.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The entry `name` (a directory); `make` fills a temporary directory when there is none yet.
    ///
    /// When another process is making the same entry, this one waits for it.
    pub fn entry(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let done = self.path(name);
        if done.exists() {
            return Ok(done);
        }
        let _lock = self.lock(name)?;
        if done.exists() {
            return Ok(done);
        }
        let unfinished =
            tempfile::Builder::new().prefix(&format!(".{name}.")).tempdir_in(&self.root).map_err(
                io(|| format!("{}: no directory can be made in the cache", self.root.display())),
            )?;
        make(unfinished.path())?;
        let unfinished = unfinished.keep();
        fs::rename(&unfinished, &done)
            .map_err(io(|| format!("{}: cannot be put in its place", done.display())))?;
        Ok(done)
    }

    /// Holds the lock `name` until the returned file is dropped; waits for its present holder.
    pub(crate) fn lock(&self, name: &str) -> Result<File> {
        let path = self.root.join(format!("{name}.lock"));
        let context = || format!("{}: the lock file cannot be taken", path.display());
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(io(context))?;
        loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::caused_by(ErrorKind::Io, context(), e)),
            }
        }
    }

    /// A short text kept under `name`.
    pub(crate) fn read_note(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    /// Keeps a short text under `name`, replacing what was there.
    pub(crate) fn write_note(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path(name);
        let context = || format!("{}: cannot be written", path.display());
        let file = tempfile::NamedTempFile::new_in(&self.root).map_err(io(context))?;
        fs::write(file.path(), text).map_err(io(context))?;
        file.persist(&path).map_err(|e| e.error).map_err(io(context))?;
        Ok(())
    }
}

/// A name for the time since this host was started. Verdicts about the machine are kept per boot,
/// because a reboot, a new hypervisor or a moved VM can change them.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn shared_entry_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let made = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    let path = cache
                        .entry("thing", |tmp| {
                            made.fetch_add(1, Ordering::SeqCst);
                            std::thread::sleep(std::time::Duration::from_millis(20));
                            fs::write(tmp.join("f"), "whole").unwrap();
                            Ok(())
                        })
                        .unwrap();
                    assert_eq!(fs::read_to_string(path.join("f")).unwrap(), "whole");
                });
            }
        });
        assert_eq!(made.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn failed_entry_can_be_retried() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let failed = cache.entry("thing", |tmp| {
            fs::write(tmp.join("half"), "").unwrap();
            Err(Error::new(ErrorKind::Install, "no network"))
        });
        assert!(failed.is_err());
        assert!(!cache.path("thing").exists());
        let path = cache.entry("thing", |_| Ok(())).unwrap();
        assert!(!path.join("half").exists());
    }
}
