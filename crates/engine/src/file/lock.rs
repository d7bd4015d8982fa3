//! Image locks, as QEMU takes them (block/file-posix.c).
//!
//! A user of an image holds shared locks on single bytes beyond 100 for what it does, and beyond 200 for what it
//! does not tolerate others to do; a conflict is found by testing the other's bytes. The locks are "open file
//! description" locks: they belong to the open file and end with it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{EngineError, ErrorKind};

const DOES: i64 = 100;
const FORBIDS: i64 = 200;
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// For how long an image is waited for that is locked although nobody has it open.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// For how long it is in any case: whoever starts a program has, for a moment, a second process with all its files.
pub(super) const MOMENT: Duration = Duration::from_millis(100);

/// Takes the locks on `file`. A process that was killed keeps its locks until the kernel has ended its last request
/// in flight, which is later than its end; so an image that nobody has open is waited for.
pub(super) fn acquire(path: &Path, file: &File, read_only: bool) -> Result<(), EngineError> {
    let begin = Instant::now();
    loop {
        match try_acquire(path, file, read_only)? {
            Attempt::Locked => {}
            Attempt::Done => return Ok(()),
        }
        let holder = holder(file);
        let enough = if holder.is_some() { MOMENT } else { PATIENCE };
        if begin.elapsed() > enough {
            return Err(locked(path, holder, read_only));
        }
        // Not to be in the way of one who does the same at the same moment.
        lock_byte(file, libc::F_OFD_SETLK, libc::F_UNLCK, 0).map_err(|error| {
            EngineError::new(ErrorKind::Io, Some(path), "cannot unlock it").with_source(error)
        })?;
        std::thread::sleep(Duration::from_millis(10 + u64::from(std::process::id() % 16)));
    }
}

enum Attempt {
    Done,
    Locked,
}

fn try_acquire(path: &Path, file: &File, read_only: bool) -> Result<Attempt, EngineError> {
    let does: &[i64] = if read_only { &[CONSISTENT_READ] } else { &[CONSISTENT_READ, WRITE] };
    let forbids = [WRITE, RESIZE];
    let ours = does.iter().map(|p| DOES + p).chain(forbids.iter().map(|p| FORBIDS + p));
    let theirs = does.iter().map(|p| FORBIDS + p).chain(forbids.iter().map(|p| DOES + p));
    // First announce, then look: of two that come at the same moment at least one sees the other.
    for byte in ours {
        match lock_byte(file, libc::F_OFD_SETLK, libc::F_RDLCK, byte) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                return Ok(Attempt::Locked);
            }
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::EINVAL)) =>
            {
                tracing::warn!(
                    "{}: this file system has no locks; nothing stops a second user",
                    path.display()
                );
                return Ok(Attempt::Done);
            }
            Err(error) => {
                let error = EngineError::new(ErrorKind::Io, Some(path), "cannot lock it").with_source(error);
                return Err(error);
            }
        }
    }
    // Our own locks are not in the way of our own test.
    for byte in theirs {
        let found = lock_byte(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte).map_err(|error| {
            EngineError::new(ErrorKind::Io, Some(path), "cannot look at its locks").with_source(error)
        })?;
        if i32::from(found.l_type) != libc::F_UNLCK {
            return Ok(Attempt::Locked);
        }
    }
    Ok(Attempt::Done)
}

/// One byte's lock; all of them, to unlock.
fn lock_byte(file: &File, command: i32, kind: i32, byte: i64) -> io::Result<libc::flock> {
    // SAFETY: `flock` is plain data for which all zeroes is valid (and OFD locks demand a zero pid).
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap_or_default();
    lock.l_whence = i16::try_from(libc::SEEK_SET).unwrap_or_default();
    lock.l_start = byte;
    lock.l_len = if kind == libc::F_UNLCK { 0 } else { 1 };
    // SAFETY: an open descriptor and a valid `flock`, which the commands used here read and write.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock)
}

/// Whether somebody has a lock on any byte of the file, of QEMU's kind or another. A lock that cannot be asked for counts as none.
pub(super) fn is_locked(file: &File) -> bool {
    // SAFETY: `flock` is plain data for which all zeroes is valid (and OFD locks demand a zero pid).
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(libc::F_WRLCK).unwrap_or_default();
    lock.l_whence = i16::try_from(libc::SEEK_SET).unwrap_or_default();
    // SAFETY: an open descriptor and a valid `flock`, which the command reads and writes.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    asked == 0 && i32::from(lock.l_type) != libc::F_UNLCK
}

/// Who has locked the file, after its name.
pub(super) fn user_in_words(file: &File) -> String {
    match holder(file) {
        Some(Holder::Process(pid, name)) => format!("is locked by another process (pid {pid}, {name})"),
        Some(Holder::Ourselves) => "is locked by this process".to_owned(),
        None => "is locked by another process".to_owned(),
    }
}

fn locked(path: &Path, holder: Option<Holder>, read_only: bool) -> EngineError {
    let holder = match holder {
        Some(Holder::Process(pid, name)) => {
            format!("another process (pid {pid}, {})", vlane_socket::printable(&name))
        }
        Some(Holder::Ourselves) => "this process already".to_owned(),
        None => "another process".to_owned(),
    };
    let advice = match read_only {
        true => "stop it first",
        false => "stop it, or serve read-only with --read-only if it only reads",
    };
    EngineError::new(ErrorKind::Locked, Some(path), format!("image is locked by {holder}; {advice}"))
}

enum Holder {
    Process(u32, String),
    Ourselves,
}

/// Whether another process, or we with another volume, have the image open.
pub(super) fn is_open_elsewhere(file: &File) -> bool {
    holder(file).is_some()
}

/// Who else has the file open, as far as we may see: the system does not tell who holds such a lock.
fn holder(file: &File) -> Option<Holder> {
    let wanted = file.metadata().ok()?;
    let same = |m: std::fs::Metadata| (m.dev(), m.ino()) == (wanted.dev(), wanted.ino());
    let mut ourselves = false;
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(descriptors) = std::fs::read_dir(process.path().join("fd")) else { continue };
        let descriptors = descriptors.flatten().filter(|fd| std::fs::metadata(fd.path()).is_ok_and(same));
        if pid == std::process::id() {
            let opened = descriptors.filter_map(|fd| fd.file_name().to_str()?.parse().ok());
            ourselves = opened.into_iter().any(|fd: i32| has_locks(file, fd));
        } else if descriptors.count() > 0 {
            let name = std::fs::read(process.path().join("comm")).unwrap_or_default();
            return Some(Holder::Process(
                pid,
                String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned(),
            ));
        }
    }
    ourselves.then_some(Holder::Ourselves)
}

/// Whether one of our own descriptors of the image has locks: it is not the one that wants them, and the locks are
/// still there as it sees them.
fn has_locks(file: &File, fd: i32) -> bool {
    fd != file.as_raw_fd()
        && std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))
            .is_ok_and(|info| info.lines().any(|line| line.starts_with("lock:")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holders_name_is_shown_and_not_done() {
        let holder = Holder::Process(7, "\x1b[2J\rqemu".to_owned());
        let said = locked(Path::new("disk.raw"), Some(holder), false).to_string();
        assert!(said.contains("pid 7, \\u{1b}[2J\\rqemu"), "{said}");
    }
}
