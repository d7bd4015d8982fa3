//! User-Mode Linux: one vCPU, several host tasks.
//!
//! The guest's kernel is a process. It runs each process of the guest in a host process of its own, its child, which it traces:
//! it lets the child run until it makes a system call, faults or gets a signal, and handles that itself. One of
//! them runs at a time. (From 6.16 on the kernel may use seccomp instead of tracing; then the children run a program of their own, in a
//! memfd.) Other children, which share the kernel's memory, wait for host I/O; they are no part of the vCPU.

use std::fs;

use vlane_hint::ProcessId;

use super::proc;
use crate::Result;

/// So many children are looked at.
const MAX_CHILDREN: usize = 4096;

/// Whether a process is a User-Mode Linux kernel.
pub(super) fn is_one(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_kernel = ["linux", "vmlinux", "linux.uml"].contains(&name.trim_end_matches(" (deleted)"))
        || name.ends_with("uml");
    // A program of that name is one only if it was started as one.
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = words.split(|byte| *byte == 0).skip(1);
    let options: [&[u8]; 8] =
        [b"mem=", b"umid=", b"uml_dir=", b"ubd", b"root=", b"initrd=", b"virtio_uml.", b"rootfstype="];
    is_kernel && words.any(|word| options.iter().any(|option| word.starts_with(option)))
}

/// The kernel's process first, then the tasks that run guest processes, by number.
pub(super) fn tasks(process: ProcessId) -> Result<Vec<u32>> {
    let pid = process.pid;
    let mut tasks: Vec<u32> =
        children(pid).into_iter().take(MAX_CHILDREN).filter(|child| runs_guest(*child, pid)).collect();
    tasks.sort_unstable();
    tasks.truncate(super::MAX_VCPUS - 1);
    tasks.insert(0, pid);
    proc::check(process)?;
    Ok(tasks)
}

fn children(pid: u32) -> Vec<u32> {
    let parse = |text: &str| text.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect();
    if let Ok(list) = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        return parse(&list);
    }
    // A kernel without CONFIG_PROC_CHILDREN.
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = pid.to_string();
    numbers.filter(|child| proc::status(*child, "PPid").as_ref() == Some(&parent)).collect()
}

fn runs_guest(child: u32, kernel: u32) -> bool {
    let tracer = proc::status(child, "TracerPid").and_then(|tracer| tracer.parse().ok());
    if tracer == Some(kernel) {
        return true;
    }
    let program = fs::read_link(format!("/proc/{child}/exe")).unwrap_or_default();
    program.to_string_lossy().starts_with("/memfd:uml")
}
