//! User-Mode Linux: one vCPU, several host tasks.
//!
//! The guest's kernel is a process. Each process of the guest runs in a separate host process, a
//! child that the kernel's process traces. The child runs until it makes a system call, faults or
//! gets a signal; its tracer handles that. One of them runs at a time. From 6.16 on the kernel may
//! use seccomp instead of tracing; then the children run another program, in a memfd. Other
//! children, which share the kernel's memory, wait for host I/O and are no part of the vCPU.

use std::fs;

use vlane_hint::ProcessId;

use super::proc;
use crate::Result;
use crate::thread::is_gone;

/// The most children that are looked at, fifty times a second.
const MAX_CHILDREN: usize = 256;

/// Returns true if a process is a User-Mode Linux kernel.
///
/// # Errors
/// [`ErrorKind::Io`](crate::ErrorKind::Io): that cannot be found out now.
pub(super) fn is_one(pid: u32) -> Result<bool> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_kernel = ["linux", "vmlinux", "linux.uml"]
        .contains(&name.trim_end_matches(" (deleted)"))
        || name.ends_with("uml");
    // A program of that name is one only if it was started as one.
    let words = match vlane_socket::command_line(pid) {
        Err(error) if vlane_socket::is_short(&error) => return Err(proc::unread(pid, error)),
        words => words.unwrap_or_default(),
    };
    let mut words = words.split(|byte| *byte == 0).skip(1);
    let options: [&[u8]; 8] = [
        b"mem=",
        b"umid=",
        b"uml_dir=",
        b"ubd",
        b"root=",
        b"initrd=",
        b"virtio_uml.",
        b"rootfstype=",
    ];
    Ok(is_kernel && words.any(|word| options.iter().any(|option| word.starts_with(option))))
}

/// The kernel's process first, then the tasks that run guest processes, by number: the first so
/// many of them. A child that is `known` as such stays one: no other files are read for it.
///
/// # Errors
/// [`ErrorKind::Gone`](crate::ErrorKind::Gone): the kernel's process has ended.
/// [`ErrorKind::Io`](crate::ErrorKind::Io): its children cannot be looked at now.
pub(super) fn tasks(process: ProcessId, known: &[u32]) -> Result<Tasks> {
    let pid = process.pid;
    let children = children(pid)?;
    let (mut tids, mut left_out) = (vec![pid], children.len() > MAX_CHILDREN);
    for child in children.into_iter().take(MAX_CHILDREN) {
        if tids.len() == super::MAX_THREADS {
            left_out = true;
            break;
        }
        if known.contains(&child) || runs_guest(child, pid)? {
            tids.push(child);
        }
    }
    tids[1..].sort_unstable();
    proc::check(process)?;
    Ok(Tasks { tids, left_out })
}

/// The tasks of a kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tasks {
    pub(super) tids: Vec<u32>,
    /// True if there are more.
    pub(super) left_out: bool,
}

fn children(pid: u32) -> Result<Vec<u32>> {
    match fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        Ok(list) => {
            return Ok(list
                .split_ascii_whitespace()
                .filter_map(|child| child.parse().ok())
                .collect());
        }
        // A kernel without CONFIG_PROC_CHILDREN, or the process is gone.
        Err(error) if is_gone(&error) => {}
        Err(error) => return Err(proc::unread(pid, error)),
    }
    let processes = fs::read_dir("/proc").map_err(|error| proc::unread(pid, error))?.flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = pid.to_string();
    let mut children = Vec::new();
    for child in numbers {
        if proc::status(child, "PPid")?.as_ref() == Some(&parent) {
            children.push(child);
        }
    }
    Ok(children)
}

fn runs_guest(child: u32, kernel: u32) -> Result<bool> {
    let tracer = proc::status(child, "TracerPid")?.and_then(|tracer| tracer.parse().ok());
    if tracer == Some(kernel) {
        return Ok(true);
    }
    let program = fs::read_link(format!("/proc/{child}/exe")).unwrap_or_default();
    Ok(program.to_string_lossy().starts_with("/memfd:uml"))
}
