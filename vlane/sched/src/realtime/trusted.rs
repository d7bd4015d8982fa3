//! Checks that decide if a list of changed threads may be trusted.
//!
//! A list says how threads are to be scheduled, and its reader may do that to any thread. So it is
//! read only if no user other than the reader and root can have written it. The file and its
//! directory belong to one of them, and no other user may write to them. The file was opened
//! through that very directory, not through a link.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

/// A list is no longer than this: 64 bytes per thread.
const LONGEST: i64 = 16 << 20;

/// Returns the reason for distrust, in words for people.
fn distrust(what: &str, stat: &Stat) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != own {
        return Some(format!(
            "{what} belongs to user {}, neither to root nor to this process's user ({own})",
            stat.st_uid
        ));
    }
    (stat.st_mode & 0o022 != 0).then(|| {
        format!("others may write to {what} (mode {:o}; `chmod go-w`)", stat.st_mode & 0o7777)
    })
}

fn not_believed(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{}: {why}: ignored", path.display()))
}

/// A directory of lists.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) fd: OwnedFd,
    pub(super) path: PathBuf,
}

impl Directory {
    /// Opens a trusted list.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        match distrust("the directory", &rustix::fs::fstat(&fd)?) {
            Some(why) => Err(not_believed(path, &why)),
            None => Ok(Self { fd, path: path.to_owned() }),
        }
    }

    /// Opens a list in it that may be believed.
    pub(super) fn list(&self, name: &OsStr) -> io::Result<File> {
        let path = self.path.join(name);
        // Opening a pipe does not wait for its other end.
        let flags =
            OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&self.fd, name, flags, Mode::empty()).map_err(
                |error| match error {
                    rustix::io::Errno::LOOP => not_believed(&path, "it is a symbolic link"),
                    error => error.into(),
                },
            )?;
        let stat = rustix::fs::fstat(&file)?;
        let why = if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            Some("not an ordinary file".to_owned())
        } else if stat.st_size > LONGEST {
            Some(format!("it has {} bytes", stat.st_size))
        } else {
            distrust("the file", &stat)
        };
        match why {
            Some(why) => Err(not_believed(&path, &why)),
            None => Ok(File::from(file)),
        }
    }

    /// Puts a file aside, so that later repairs ignore it.
    pub(super) fn put_aside(&self, name: &OsStr) -> io::Result<PathBuf> {
        let aside = |n: u32| {
            let mut aside = name.to_owned();
            aside.push(if n == 0 { ".damaged".to_owned() } else { format!(".damaged-{n}") });
            aside
        };
        let is_free = |name: &OsStr| {
            let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
            matches!(stat, Err(rustix::io::Errno::NOENT))
        };
        let free =
            (0..1000).map(aside).find(|name| is_free(name)).ok_or(io::ErrorKind::AlreadyExists)?;
        rustix::fs::renameat(&self.fd, name, &self.fd, &free)?;
        Ok(self.path.join(free))
    }

    pub(super) fn remove(&self, name: &OsStr) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
    }
}

/// Opens a list by its path, if it and its directory may be believed.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let directory =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Directory::open(directory)?.list(name)
}
