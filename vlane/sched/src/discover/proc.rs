//! Facts on processes and threads from `/proc`.

use std::fs;
use std::io;

use vlane_hint::{HintError, ProcessId};

use crate::thread::is_gone;
use crate::{Error, ErrorKind, Result};

/// The most threads of a process that are looked at.
const MAX_THREADS: usize = 32_768;

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) tid: u32,
    pub(super) name: String,
}

pub(super) fn gone(pid: u32) -> Error {
    Error::new(ErrorKind::Gone, format!("process {pid} is gone"))
}

/// The error of a process that cannot be read: it is gone, or that cannot be found out now. Only
/// the first lets a machine go.
pub(super) fn unread(pid: u32, error: io::Error) -> Error {
    match is_gone(&error) {
        true => gone(pid),
        false => {
            Error::caused_by(ErrorKind::Io, format!("cannot look at process {pid} in /proc"), error)
        }
    }
}

fn hint(pid: u32, error: HintError) -> Error {
    match error {
        HintError::Io(error) => unread(pid, error),
        _ => gone(pid),
    }
}

/// The process that has this number now.
pub(super) fn process(pid: u32) -> Result<ProcessId> {
    ProcessId::of(pid).map_err(|error| hint(pid, error))
}

/// Checks that the number still belongs to the same process.
pub(super) fn check(process: ProcessId) -> Result<()> {
    process.check().map_err(|error| hint(process.pid, error))
}

/// Returns true if the thread is still there, as far as that can be found out.
pub(super) fn has_thread(process: ProcessId, tid: u32) -> bool {
    fs::exists(format!("/proc/{}/task/{tid}", process.pid)).unwrap_or(true)
}

/// Number of a process's threads: the kernel counts them as links of their directory, with `.` and
/// `..`.
pub(super) fn thread_count(process: ProcessId) -> Result<u64> {
    let pid = process.pid;
    let directory =
        fs::metadata(format!("/proc/{pid}/task")).map_err(|error| unread(pid, error))?;
    Ok(std::os::unix::fs::MetadataExt::nlink(&directory))
}

/// All threads of a process, by number.
pub(super) fn threads(process: ProcessId) -> Result<Vec<Thread>> {
    let pid = process.pid;
    let entries = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| unread(pid, error))?;
    let mut threads = Vec::new();
    for entry in entries.flatten().take(MAX_THREADS) {
        let Some(tid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let name = match fs::read(entry.path().join("comm")) {
            Ok(name) => String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned(),
            // A thread that has ended since.
            Err(error) if is_gone(&error) => continue,
            // A thread that is left out here would be taken for one that has ended.
            Err(error) => return Err(unread(pid, error)),
        };
        threads.push(Thread { tid, name });
    }
    threads.sort_by_key(|thread| thread.tid);
    check(process)?;
    Ok(threads)
}

/// A process's name, for people.
pub(super) fn name(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// A line of `/proc/PID/status`; none if the process is gone.
///
/// # Errors
/// [`ErrorKind::Io`]: it cannot be read now.
pub(super) fn status(pid: u32, key: &str) -> Result<Option<String>> {
    let status = match fs::read(format!("/proc/{pid}/status")) {
        Ok(status) => status,
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(unread(pid, error)),
    };
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    Ok(line.map(|line| line.trim().to_owned()))
}

/// The user that a process belongs to; none, if its real, effective and saved user are not the same
/// one.
///
/// # Errors
/// [`ErrorKind::Gone`]; [`ErrorKind::Io`]: it cannot be read now.
pub fn user_of(process: ProcessId) -> Result<Option<u32>> {
    let ids = status(process.pid, "Uid")?.ok_or_else(|| gone(process.pid))?;
    check(process)?;
    let mut ids = ids.split_ascii_whitespace().map(|id| id.parse::<u32>().ok());
    let first = ids.next().flatten();
    Ok(if ids.take(2).all(|id| id == first) { first } else { None })
}
