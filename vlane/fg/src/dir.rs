//! The directory of a daemon: its bell, its record, its lock. Only its owner can write there, and
//! no link is followed.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{self, AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// root's.
pub const OF_ROOT: &str = "/run/vlane-fg";

/// The directory of the user who runs this program.
pub fn default_path() -> Result<PathBuf> {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return Ok(OF_ROOT.into());
    }
    let runtime = match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(format!("/run/user/{}", uid.as_raw())),
    };
    if !runtime.is_dir() {
        bail!(
            "{} is not there, and holds this program's state: set XDG_RUNTIME_DIR or --state-dir",
            runtime.display()
        );
    }
    Ok(runtime.join("vlane-fg"))
}

/// A directory that is open.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    /// Others may read there: root's, whose bell all users ring.
    public: bool,
}

impl Dir {
    /// Opens it for its owner, makes it if it is not there, and takes away what others may do
    /// there.
    pub fn make(path: &Path) -> Result<Self> {
        let what = || format!("the state directory {}", path.display());
        let public = rustix::process::geteuid().is_root();
        if let (true, Some(parent)) = (public, path.parent()) {
            // In an initramfs there is no /run yet.
            std::fs::create_dir_all(parent).with_context(what)?;
        }
        match fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error).with_context(what),
        }
        let dir = Self::open(path)?;
        let stat = fs::fstat(&dir.fd).with_context(what)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            bail!(
                "{} belongs to user {}: remove it, or take another one with --state-dir",
                what(),
                stat.st_uid
            );
        }
        // For any umask.
        fs::fchmod(&dir.fd, Mode::from_raw_mode(if public { 0o755 } else { 0o700 }))
            .with_context(what)?;
        Ok(Self { public, ..dir })
    }

    /// Opens it as it is.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = fs::open(path, flags, Mode::empty())
            .with_context(|| format!("the state directory {}", path.display()))?;
        Ok(Self { fd, path: path.to_owned(), public: false })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file of it that is made if it is not there, readable by those who may enter.
    pub fn file(&self, name: &str) -> Result<File> {
        let what = || format!("{}/{name}", self.path.display());
        let flags =
            OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::RDONLY;
        let fd =
            fs::openat(&self.fd, name, flags, Mode::from_raw_mode(0o400)).with_context(what)?;
        self.check(&fd, name)?;
        fs::fchmod(&fd, Mode::from_raw_mode(if self.public { 0o444 } else { 0o400 }))
            .with_context(what)?;
        Ok(fd.into())
    }

    fn check(&self, fd: impl AsFd, name: &str) -> Result<()> {
        let what = || format!("{}/{name}", self.path.display());
        let (stat, dir) =
            (fs::fstat(fd).with_context(what)?, fs::fstat(&self.fd).with_context(what)?);
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || stat.st_uid != dir.st_uid
        {
            bail!("{} is no file of the directory's owner: remove it", what());
        }
        Ok(())
    }

    /// Takes the lock that one program at a time holds; none if another one does. It ends with the
    /// file, or the process.
    pub fn lock(&self) -> Result<Option<File>> {
        let file = self.file("lock")?;
        match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => {
                Err(error).with_context(|| format!("locking {}/lock", self.path.display()))
            }
        }
    }

    /// Writes a file as a whole: a reader finds the old one or the new one, even after a kill.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let what = || format!("writing {}/{name}", self.path.display());
        let new = format!("{name}.new");
        match fs::unlinkat(&self.fd, &new, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error).with_context(what),
        }
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::WRONLY;
        let fd =
            fs::openat(&self.fd, &new, flags, Mode::from_raw_mode(0o600)).with_context(what)?;
        fs::fchmod(&fd, Mode::from_raw_mode(if self.public { 0o644 } else { 0o600 }))
            .with_context(what)?;
        File::from(fd).write_all(content).with_context(what)?;
        fs::renameat(&self.fd, &new, &self.fd, name).with_context(what)
    }

    /// Reads a file of so many bytes at most; none if it is not there. The directory may be another
    /// user's, and this program root's.
    pub fn read(&self, name: &str, most: u64) -> Result<Option<String>> {
        let what = || format!("reading {}/{name}", self.path.display());
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::RDONLY;
        let fd = match fs::openat(&self.fd, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            fd => fd.with_context(what)?,
        };
        self.check(&fd, name)?;
        let mut content = String::new();
        // Not its size: it may grow while it is read.
        File::from(fd).take(most + 1).read_to_string(&mut content).with_context(what)?;
        if content.len() as u64 > most {
            bail!(
                "{}: it has more than {most} bytes: not a file of this program; remove it",
                what()
            );
        }
        Ok(Some(content))
    }

    /// Removes a file that may be there.
    pub fn remove(&self, name: &str) {
        let _ = fs::unlinkat(&self.fd, name, AtFlags::empty());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn links_are_not_followed() {
        let temporary = tempfile::tempdir().unwrap();
        let (target, link) = (temporary.path().join("target"), temporary.path().join("link"));
        std::fs::create_dir(&target).unwrap();
        symlink(&target, &link).unwrap();
        assert!(Dir::make(&link).is_err());
        let dir = Dir::make(&target).unwrap();
        for name in ["bell", "lock", "record"] {
            symlink("/etc/passwd", target.join(name)).unwrap();
        }
        assert!(
            dir.file("bell").is_err() && dir.lock().is_err() && dir.read("record", 10).is_err()
        );
        dir.write("record", b"new").unwrap();
        assert_eq!(dir.read("record", 3).unwrap().unwrap(), "new");
    }

    #[test]
    fn endless_file_is_not_read() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = Dir::make(&temporary.path().join("state")).unwrap();
        dir.write("daemon", b"four").unwrap();
        assert!(dir.read("daemon", 3).unwrap_err().to_string().contains("more than 3 bytes"));
        // A hole that no memory holds, and every file system.
        let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("daemon")).unwrap();
        file.set_len(1 << 40).unwrap();
        assert!(dir.read("daemon", 1 << 16).is_err());
        assert_eq!(dir.read("none", 3).unwrap(), None);
    }

    #[test]
    fn others_cannot_write_there() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("state");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        let dir = Dir::make(&path).unwrap();
        dir.file("bell").unwrap();
        for path in [path.clone(), path.join("bell")] {
            assert_eq!(
                std::fs::metadata(&path).unwrap().permissions().mode() & 0o022,
                0,
                "{path:?}"
            );
        }
    }

    #[test]
    fn lock_has_one_holder() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = Dir::make(&temporary.path().join("state")).unwrap();
        let held = dir.lock().unwrap();
        assert!(held.is_some() && dir.lock().unwrap().is_none());
        drop(held);
        // A process that another test starts holds it, too, until it runs its own program.
        let until = Instant::now() + Duration::from_secs(60);
        while dir.lock().unwrap().is_none() {
            assert!(Instant::now() < until, "it is held");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
