//! Image locks, as QEMU takes them (block/file-posix.c).
//!
//! A user of an image holds shared locks on single bytes. Bytes from 100 on stand for its own
//! actions, and bytes from 200 on for actions of others that it does not tolerate. A conflict is
//! found by testing the other's bytes. The locks are "open file description" locks: they belong to
//! the open file and end with it.
//!
//! That makes it safe to follow a killed server. A request in flight holds its open file. So the
//! locks of a killed process end only when the storage has ended the last of its requests, which
//! may be long after the process: none of its writes comes after one of the next owner. Hence two
//! rules: every open file through which requests go has locks ([`also`]), and they are taken before
//! anything of the image is read.

mod holders;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use self::holders::{Opener, Openers};
use super::Leftover;
use crate::{EngineError, ErrorKind};

const DOES: i64 = 100;
const FORBIDS: i64 = 200;
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// The wait for an image that is locked although no running process has it open; a caller may wait
/// longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// The wait for an image that a process has open: a starting program has, for a moment, a second
/// process with all its files.
pub(super) const MOMENT: Duration = Duration::from_millis(100);
/// The longest time between two looks. More often at first.
const LOOK: Duration = Duration::from_millis(200);

/// Called again and again while an image waits for a dead process's requests; returns true to go on
/// waiting.
pub(super) type Patience<'a> = dyn FnMut(&Leftover) -> bool + 'a;

/// Takes the locks on `file`.
pub(super) fn acquire(
    path: &Path,
    file: &File,
    read_only: bool,
    patience: &mut Patience<'_>,
) -> Result<(), EngineError> {
    let mut wait = Wait::new(patience);
    while !try_acquire(path, file, read_only)? {
        // Releases it for another process that does the same at the same moment.
        lock(file, libc::F_OFD_SETLK, libc::F_UNLCK, ALL).map_err(|error| {
            EngineError::caused_at(path, ErrorKind::Io, "cannot unlock it", error)
        })?;
        wait.a_moment(file).map_err(|reason| reason.into_error(path, read_only))?;
    }
    Ok(())
}

/// Waits for an image that is locked.
pub(super) struct Wait<'a, 'b> {
    patience: &'a mut Patience<'b>,
    begin: Instant,
    /// The process that runs and has it locked, as seen last, and since when. One that is replaced
    /// by another program in its place is not seen for a moment, and is the same.
    user: Option<(u32, Instant)>,
    pause: Duration,
}

/// Why it is not waited for any longer.
pub(super) enum Locked {
    /// By a process that runs.
    By(Opener),
    Leftover(Leftover),
}

impl<'a, 'b> Wait<'a, 'b> {
    pub(super) fn new(patience: &'a mut Patience<'b>) -> Self {
        // Two that come at the same moment do not look at the same moment again.
        let pause = Duration::from_millis(10 + u64::from(std::process::id() % 16));
        Self { patience, begin: Instant::now(), user: None, pause }
    }

    /// Waits until it is worth to look at the locks of `file` again.
    pub(super) fn a_moment(&mut self, file: &File) -> Result<(), Locked> {
        let openers = Openers::of(file);
        if let Some(opener) = openers.locking() {
            let user = self.user.filter(|(pid, _)| *pid == opener.pid);
            let (_, since) =
                *self.user.insert(user.unwrap_or_else(|| (opener.pid, Instant::now())));
            if since.elapsed() > MOMENT {
                return Err(Locked::By(opener.clone()));
            }
            std::thread::sleep(Duration::from_millis(10));
            return Ok(());
        }
        let leftover = Leftover {
            waited: self.begin.elapsed(),
            process: openers.ending().map(|opener| (opener.pid, opener.name.clone())),
        };
        if !(self.patience)(&leftover) {
            return Err(Locked::Leftover(leftover));
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(LOOK);
        Ok(())
    }
}

impl Locked {
    pub(super) fn into_error(self, path: &Path, read_only: bool) -> EngineError {
        let text = match self {
            Locked::By(opener) => {
                let advice = match read_only {
                    true => "stop it first",
                    false => "stop it, or serve read-only with --read-only if it only reads",
                };
                format!("image is locked by {}; {advice}", named(&opener))
            }
            Locked::Leftover(leftover) => format!("image {leftover}; try again"),
        };
        EngineError::at(path, ErrorKind::Locked, text)
    }
}

/// Names a lock's owner.
fn named(opener: &Opener) -> String {
    match opener.pid == std::process::id() {
        true => "this process already".to_owned(),
        false => format!(
            "another process (pid {}, {})",
            opener.pid,
            vlane_socket::printable(&opener.name)
        ),
    }
}

/// Takes the locks for another open file of the same image as well: requests that go through it
/// have their own to hold.
pub(super) fn also(path: &Path, file: &File, read_only: bool) -> Result<(), EngineError> {
    announce(file, read_only)
        .map(drop)
        .map_err(|error| EngineError::caused_at(path, ErrorKind::Io, "cannot lock it again", error))
}

fn does(read_only: bool) -> &'static [i64] {
    if read_only { &[CONSISTENT_READ] } else { &[CONSISTENT_READ, WRITE] }
}

/// Sets our own locks; false if this file system has none.
fn announce(file: &File, read_only: bool) -> io::Result<bool> {
    let ours =
        does(read_only).iter().map(|p| DOES + p).chain([WRITE, RESIZE].iter().map(|p| FORBIDS + p));
    for byte in ours {
        if let Err(error) = lock(file, libc::F_OFD_SETLK, libc::F_RDLCK, (byte, 1)) {
            let errno = error.raw_os_error();
            let has_none = matches!(errno, Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::EINVAL));
            return if has_none { Ok(false) } else { Err(error) };
        }
    }
    Ok(true)
}

/// Sets our own locks; returns false if another process has a conflicting lock.
fn try_acquire(path: &Path, file: &File, read_only: bool) -> Result<bool, EngineError> {
    // First announce, then look: of two that come at the same moment at least one sees the other.
    match announce(file, read_only) {
        Ok(true) => {}
        Ok(false) => {
            tracing::warn!(
                "{}: this file system has no locks; make sure that no second process uses the \
                 image",
                path.display()
            );
            return Ok(true);
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            return Ok(false);
        }
        Err(error) => {
            return Err(EngineError::caused_at(path, ErrorKind::Io, "cannot lock it", error));
        }
    }
    let theirs =
        does(read_only).iter().map(|p| FORBIDS + p).chain([WRITE, RESIZE].iter().map(|p| DOES + p));
    // Our own locks are not in the way of our own test.
    for byte in theirs {
        let is_locked = is_locked_at(file, (byte, 1)).map_err(|error| {
            EngineError::caused_at(path, ErrorKind::Io, "cannot look at its locks", error)
        })?;
        if is_locked {
            return Ok(false);
        }
    }
    Ok(true)
}

/// All bytes of a file of any size: fcntl(2) takes a number of 0 so.
const ALL: (i64, i64) = (0, 0);

/// Sets, removes or looks for a lock on bytes, which are given by their first and their number.
fn lock(file: &File, command: i32, kind: i32, (start, len): (i64, i64)) -> io::Result<libc::flock> {
    // SAFETY: `flock` is plain data for which all zeroes is valid (and OFD locks demand a zero
    // pid).
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap_or_default();
    lock.l_whence = i16::try_from(libc::SEEK_SET).unwrap_or_default();
    (lock.l_start, lock.l_len) = (start, len);
    // SAFETY: an open descriptor and a valid `flock`, which the commands used here read and write.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock)
}

fn is_locked_at(file: &File, bytes: (i64, i64)) -> io::Result<bool> {
    let found = lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, bytes)?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

/// Returns true if any byte of the file is locked, in QEMU's way or another. A lock that cannot be
/// asked for counts as none.
pub(super) fn is_locked(file: &File) -> bool {
    is_locked_at(file, ALL).unwrap_or(false)
}

/// Says whether the file is locked and stays so: a lock outlives its process until its last request
/// has ended.
pub(super) fn stays_locked(file: &File, patience: &mut Patience<'_>) -> bool {
    let mut wait = Wait::new(patience);
    while is_locked(file) {
        if wait.a_moment(file).is_err() {
            return true;
        }
    }
    false
}

/// Names the process that has locked the file, after the file's name.
pub(super) fn user_in_words(file: &File) -> String {
    let openers = Openers::of(file);
    match openers.locking() {
        Some(opener) if opener.pid == std::process::id() => "is locked by this process".to_owned(),
        Some(opener) => format!("is locked by {}", named(opener)),
        None => "is locked by another process".to_owned(),
    }
}

/// Returns true if another running process has the image open.
pub(super) fn is_open_elsewhere(file: &File) -> bool {
    Openers::of(file).other_running().is_some()
}

/// For tests of an image's holders: a lock, as a writer has it.
#[cfg(test)]
fn hold(file: &File) -> io::Result<()> {
    announce(file, false).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_s_name_is_shown_escaped() {
        let name = "\x1b[2J\rqemu".to_owned();
        let holder =
            Locked::By(Opener { pid: 7, name: name.clone(), has_locks: true, is_ending: false });
        let said = holder.into_error(Path::new("disk.raw"), false).to_string();
        assert!(said.contains("pid 7, \\u{1b}[2J\\rqemu"), "{said}");
        let left = Leftover { waited: Duration::ZERO, process: Some((7, name)) };
        let said = Locked::Leftover(left).into_error(Path::new("disk.raw"), false).to_string();
        assert!(said.contains("process 7 (\\u{1b}[2J\\rqemu)"), "{said}");
    }
}
