//! What `/proc` says of processes and threads.

use std::fs;

use vlane_hint::ProcessId;

use crate::{Error, ErrorKind, Result};

/// So many threads of a process are looked at.
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

/// The process that has this number now.
pub(super) fn process(pid: u32) -> Result<ProcessId> {
    ProcessId::of(pid).map_err(|_| gone(pid))
}

/// It is still the one that was meant.
pub(super) fn check(process: ProcessId) -> Result<()> {
    if process.is_alive() { Ok(()) } else { Err(gone(process.pid)) }
}

/// Whether the thread is still there.
pub(super) fn has_thread(process: ProcessId, tid: u32) -> bool {
    fs::exists(format!("/proc/{}/task/{tid}", process.pid)).unwrap_or(false)
}

/// How many threads a process has: the kernel counts them as links of their directory, with `.` and `..`.
pub(super) fn thread_count(process: ProcessId) -> Result<u64> {
    let pid = process.pid;
    let directory = fs::metadata(format!("/proc/{pid}/task")).map_err(|_| gone(pid))?;
    Ok(std::os::unix::fs::MetadataExt::nlink(&directory))
}

/// All threads of a process, by number.
pub(super) fn threads(process: ProcessId) -> Result<Vec<Thread>> {
    let pid = process.pid;
    let entries = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| gone(pid))?;
    let mut threads: Vec<_> = entries
        .flatten()
        .take(MAX_THREADS)
        .filter_map(|entry| {
            let tid = entry.file_name().to_str()?.parse().ok()?;
            // One that has ended since.
            let name = fs::read(entry.path().join("comm")).ok()?;
            Some(Thread { tid, name: String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned() })
        })
        .collect();
    threads.sort_by_key(|thread| thread.tid);
    check(process)?;
    Ok(threads)
}

/// A process's name, for people.
pub(super) fn name(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// A line of `/proc/PID/status`.
pub(super) fn status(pid: u32, key: &str) -> Option<String> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// The user that a process belongs to; none, if its real, effective and saved user are not the same one.
///
/// # Errors
/// [`ErrorKind::Gone`].
pub fn user_of(process: ProcessId) -> Result<Option<u32>> {
    let ids = status(process.pid, "Uid").ok_or_else(|| gone(process.pid))?;
    check(process)?;
    let mut ids = ids.split_ascii_whitespace().map(|id| id.parse::<u32>().ok());
    let first = ids.next().flatten();
    Ok(if ids.take(2).all(|id| id == first) { first } else { None })
}
