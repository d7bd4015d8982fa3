//! System calls, counted by the kernel's tracepoint `raw_syscalls:sys_enter`.
//!
//! Counting, unlike tracing, writes no record. Tracepoints show other users' programs, too. So only
//! root, or CAP_PERFMON with a readable tracefs, may count them.

use std::{fs, io};

use perf_event::events::Tracepoint;

use super::counters::{self, Counters};
use super::{Counted, Role};

/// Where the kernel describes its tracepoints.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "not counted: system calls are counted by tracepoints, \
                                            which show other users' programs: needs root"
            .to_owned(),
        io::ErrorKind::NotFound => "not counted: no tracepoint raw_syscalls:sys_enter in tracefs; \
                                    as root: mount -t tracefs none /sys/kernel/tracing"
            .to_owned(),
        _ => format!("not counted: the tracepoint of system calls cannot be used: {error}"),
    }
}

fn tracepoint() -> io::Result<Tracepoint> {
    let read = |root: &str| fs::read_to_string(format!("{root}/events/raw_syscalls/sys_enter/id"));
    let text = read(TRACEFS[0]).or_else(|_| read(TRACEFS[1]))?;
    let id = text.trim().parse();
    id.map(Tracepoint::with_id).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Counters of system calls, or the reason for their absence.
pub fn available() -> Counted<()> {
    // The directory itself is closed to others, which looks like a file that is not there to some
    // calls and not to others.
    match tracepoint() {
        Ok(event) => counters::available(event, reason),
        Err(error) => Err(reason(&error)),
    }
}

/// Counts from now on.
pub(super) fn open(roles: &[Role]) -> Counted<Counters> {
    tracepoint().and_then(|event| Counters::open(roles, event)).map_err(|error| reason(&error))
}
