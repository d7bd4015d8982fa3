//! What may be believed of a list of changed threads, and setting right what schedulers have left.
//!
//! A list says how threads are to be scheduled, and who reads it may do that to any thread. So it is read only if nobody but the reader's
//! own user or root can have written it: the file and its directory belong to one of them, nobody else may write to them, and it was opened through
//! that very directory, not through a link. And what stands in it is done only if a scheduler could have written it: ordinary
//! policies, for a thread that has the start time that was noted.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, flock};

use super::describe;
use super::table::{Reader, Restored, is_table, is_unborn};
use crate::{Error, ErrorKind, Result};

/// A list is no longer than this: 64 bytes per thread.
const LONGEST: i64 = 16 << 20;

/// What came of repairing a directory.
#[derive(Debug, Default)]
pub struct Repaired {
    /// What became of the threads.
    pub restored: Restored,
    /// Lists that nobody held.
    pub lists: usize,
    /// Lists of schedulers that run, or of their guards: left alone.
    pub held: usize,
    /// What could not be read, or not be believed; in words. None of these files was removed.
    pub problems: Vec<String>,
}

/// Why something is not believed, in words for people.
fn distrust(what: &str, stat: &Stat) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != own {
        return Some(format!(
            "{what} belongs to user {}, who is neither root nor the one who runs this (user {own})",
            stat.st_uid
        ));
    }
    (stat.st_mode & 0o022 != 0)
        .then(|| format!("others may write to {what} (mode {:o}; `chmod go-w`)", stat.st_mode & 0o7777))
}

fn not_believed(path: &Path, why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{}: {why}: nothing in it is done", path.display()),
    )
}

/// A directory of lists.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens one that may be believed.
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
        // A pipe does not wait for somebody at its other end.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.fd, name, flags, Mode::empty()).map_err(|error| match error {
            rustix::io::Errno::LOOP => not_believed(&path, "it is a symbolic link"),
            error => error.into(),
        })?;
        let stat = rustix::fs::fstat(&file)?;
        let why = if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            Some("it is no ordinary file".to_owned())
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

    /// Puts a file aside, so that nothing is done about it again.
    fn put_aside(&self, name: &OsStr) -> io::Result<PathBuf> {
        let aside = |n: u32| {
            let mut aside = name.to_owned();
            aside.push(if n == 0 { ".damaged".to_owned() } else { format!(".damaged-{n}") });
            aside
        };
        let is_free = |name: &OsStr| {
            let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
            matches!(stat, Err(rustix::io::Errno::NOENT))
        };
        let free = (0..1000).map(aside).find(|name| is_free(name)).ok_or(io::ErrorKind::AlreadyExists)?;
        rustix::fs::renameat(&self.fd, name, &self.fd, &free)?;
        Ok(self.path.join(free))
    }

    fn remove(&self, name: &OsStr) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
    }
}

/// Restores what daemons have left that were killed together with their guards: every list in the directory that
/// nobody holds. Says what was found; a damaged list is put aside, with what could be read of it done.
///
/// # Errors
///
/// The directory is not there ([`ErrorKind::Gone`]), cannot be read, or is not to be believed.
pub fn repair(dir: &Path) -> Result<Repaired> {
    let failed = |error: io::Error| {
        let shown = dir.display();
        match error.kind() {
            io::ErrorKind::NotFound => Error::new(
                ErrorKind::Gone,
                format!(
                    "{shown}: is not there, so no scheduler has kept its list of changed threads in it; name its directory with --state-dir"
                ),
            ),
            io::ErrorKind::NotADirectory => Error::new(
                ErrorKind::Invalid,
                format!("{shown}: is no directory; name the scheduler's with --state-dir"),
            ),
            io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => {
                Error::new(ErrorKind::Permission, error.to_string())
            }
            io::ErrorKind::PermissionDenied => Error::caused_by(
                ErrorKind::Permission,
                format!("{shown}: no permission to read it; run this as its owner, or as root"),
                error,
            ),
            _ => Error::caused_by(ErrorKind::Io, format!("{shown}: cannot be read"), error),
        }
    };
    let directory = Directory::open(dir).map_err(failed)?;
    let mut done = Repaired::default();
    let entries = rustix::fs::Dir::read_from(&directory.fd).map_err(|error| failed(error.into()))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(error.into()))?;
        let name: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(entry.file_name().to_bytes());
        if is_unborn(name) {
            // One that was killed before its list had its name had changed nothing yet.
            directory.remove(name);
        } else if is_table(name) {
            repair_list(&directory, name, &mut done);
        }
    }
    Ok(done)
}

fn repair_list(directory: &Directory, name: &OsStr, done: &mut Repaired) {
    let path = directory.path.join(name);
    let reader = match directory.list(name) {
        Ok(file) => Reader::of(file, &path),
        // Its scheduler has ended meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            let text = match error.raw_os_error() {
                None => error.to_string(),
                Some(_) => format!("{}: cannot be opened: {error}", path.display()),
            };
            return done.problems.push(text);
        }
    };
    // Only one that nobody else holds: neither a daemon nor its guard.
    if flock(reader.as_fd(), FlockOperation::NonBlockingLockExclusive).is_err() {
        done.held += 1;
        return;
    }
    done.lists += 1;
    let restored = match reader.restore() {
        Ok(restored) => restored,
        Err(error) => {
            return done.problems.push(format!("{}: cannot be read: {}", path.display(), describe(&error)));
        }
    };
    done.restored.add(restored);
    if restored.damaged > 0 {
        let aside = directory.put_aside(name).unwrap_or(path.clone());
        done.problems.push(format!(
            "{}: damaged: {} of its entries make no sense, {} were read; the threads of the others may still have a changed priority \
             (`chrt -p TID`, `ps -eLo tid,cls,rtprio,ni,comm`); kept as {}",
            path.display(),
            restored.damaged,
            restored.seen,
            aside.display()
        ));
    } else if restored.failed == 0 {
        directory.remove(name);
    }
}

/// Opens a list by its path, if it and its directory may be believed.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Directory::open(directory)?.list(name)
}

#[cfg(test)]
#[path = "repair_tests.rs"]
mod tests;
