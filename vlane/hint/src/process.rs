//! Which process is meant, also after its number was given to another.

use rustix::io::Errno;

use crate::error::HintError;

/// A process: its number and when it started. A number is used again when its process is gone, a
/// start time is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it started, clock ticks since the system did (`/proc/PID/stat`, field 22).
    pub start: u64,
}

impl ProcessId {
    /// The process that has this number now.
    ///
    /// # Errors
    /// [`HintError::Gone`] when there is none. [`HintError::Io`] when that cannot be found out now,
    /// for want of a descriptor for example.
    pub fn of(pid: u32) -> Result<ProcessId, HintError> {
        let stat =
            std::fs::read(format!("/proc/{pid}/stat")).map_err(|error| unread(pid, error))?;
        // The name in it may be cut within a character, or be no text at all.
        let start = start_time(&String::from_utf8_lossy(&stat)).ok_or(HintError::Gone { pid })?;
        Ok(ProcessId { pid, start })
    }

    /// Finds out that it still lives. One that has ended and is not waited for yet does not.
    ///
    /// # Errors
    /// [`HintError::Gone`]: it does not. [`HintError::Io`]: that cannot be found out now.
    pub fn check(&self) -> Result<(), HintError> {
        match ProcessId::of(self.pid)? {
            now if now == *self => Ok(()),
            _ => Err(HintError::Gone { pid: self.pid }),
        }
    }

    /// Says whether it still lives, as far as that can be found out.
    pub fn is_alive(&self) -> bool {
        !matches!(self.check(), Err(HintError::Gone { .. }))
    }
}

/// Only these two say that a process is not there. Others, as "too many open files", are no sign of
/// it.
fn unread(pid: u32, error: std::io::Error) -> HintError {
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::SRCH) => HintError::Gone { pid },
        _ => HintError::Io(error),
    }
}

/// The start time in a line of `/proc/PID/stat`; none for a process that has ended.
fn start_time(stat: &str) -> Option<u64> {
    // The name, in parentheses, may have any character in it.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // The state is field 3.
    fields.nth(22 - 3 - 1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn process_name_may_look_like_fields() {
        let line = "7 (a) S 1 (b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(start_time(line), Some(4242));
        assert_eq!(
            start_time("7 (a) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20"),
            None
        );
        assert_eq!(start_time(""), None);
        assert_eq!(start_time("7 (a) S 1"), None);
    }

    #[test]
    fn process_with_binary_name_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        // The kernel cuts it after 15 bytes, within the second character.
        let program = directory.path().join("machine 12345 ä");
        // Not a copy: a program that another test starts has a file that was just written open for
        // writing for a moment, which then cannot be executed.
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child =
            std::process::Command::new(&program).arg0("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::of(child.id());
        let comm = || std::fs::read(format!("/proc/{}/comm", child.id())).unwrap();
        // It is known to have begun a moment before it has its name.
        let (begin, mut name) = (std::time::Instant::now(), comm());
        while std::str::from_utf8(&name).is_ok() && begin.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            name = comm();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(std::str::from_utf8(&name).is_err(), "{name:?}");
        id.unwrap();
    }

    #[test]
    fn ended_process_is_gone() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert!(!ProcessId { start: me.start + 1, ..me }.is_alive());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        assert!(id.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!id.is_alive());
        assert!(matches!(ProcessId::of(id.pid), Err(HintError::Gone { .. })));
    }
}
