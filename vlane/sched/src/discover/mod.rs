//! Finds the host threads that are the vCPUs of a virtual machine.
//!
//! Hypervisors name the threads of their vCPUs (`names`). User-Mode Linux has no such threads: its
//! kernel's process and the tasks that run guest processes are its one vCPU (`uml`). QEMU names its
//! threads only with an option for that; without names they can be asked for through QMP (`qmp`).

mod libvirt;
mod names;
mod plugged;
mod proc;
mod qmp;
mod uml;

pub use crate::vehicle::MAX_THREADS;
pub use libvirt::{pid_of_domain, pid_of_domain_in};
pub use proc::user_of;
pub use qmp::vcpus_by_qmp;

use std::path::Path;
use std::time::Duration;

use vlane_hint::ProcessId;
use vlane_socket::printable;

use self::plugged::{Asked, Named};
use crate::vehicle::VcpuThreads;
use crate::{Error, ErrorKind, Result};

/// The most vCPUs of a process that are scheduled, the first by their numbers: a process makes as
/// many threads, and names them, as it likes.
pub const MAX_VCPUS: usize = 512;

/// A machine whose vCPUs are known. Cheap to look at again: threads of User-Mode Linux come and go.
#[derive(Debug, Clone)]
pub struct Machine {
    process: ProcessId,
    kind: MachineKind,
    vcpus: Vec<VcpuThreads>,
    /// True if not all threads of its vCPU are scheduled.
    left_out: bool,
}

#[derive(Debug, Clone)]
enum MachineKind {
    /// Threads that carry names.
    Named(Named),
    /// Threads that QEMU has named.
    Asked(Asked),
    UserMode,
}

/// The vCPU threads of the machine that has process `pid`.
///
/// # Errors
/// As [`Machine::find`].
pub fn vcpus_of(pid: u32) -> Result<Vec<VcpuThreads>> {
    let process = proc::process(pid)?;
    Ok(Machine::find(process)?.vcpus)
}

impl Machine {
    /// Looks for the vCPUs of the machine that is this process.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`]: the process has ended, or its number belongs to another one now.
    /// [`ErrorKind::Invalid`]: its vCPU threads cannot be recognized; the text says what to do.
    pub fn find(process: ProcessId) -> Result<Machine> {
        let pid = process.pid;
        let threads = proc::threads(process)?;
        let mut vcpus = names::vcpus(pid, &threads);
        let kind = if vcpus.is_empty() {
            MachineKind::UserMode
        } else {
            MachineKind::Named(Named::new(&threads))
        };
        let mut left_out = false;
        if vcpus.is_empty() {
            let name = printable(&proc::name(pid)).to_string();
            if !uml::is_one(pid)? {
                return Err(nothing_found(pid, &name));
            }
            let tasks = uml::tasks(process, &[])?;
            left_out = tasks.left_out;
            vcpus.push(VcpuThreads {
                pid,
                index: 0,
                tids: tasks.tids,
                name: format!("{name} ({pid})"),
            });
        }
        proc::check(process)?;
        Ok(Machine { process, kind, vcpus, left_out })
    }

    /// The QEMU that listens at this QMP socket (`-qmp unix:PATH,server=on,wait=off`), by its own
    /// word: its threads need no names.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]: no process answers there. [`ErrorKind::Protocol`]: the answer makes no
    /// sense, or does not name threads of the process that listens. [`ErrorKind::Gone`]: that
    /// process has ended.
    pub fn by_qmp(path: &Path) -> Result<Machine> {
        let (process, vcpus) = qmp::machine_at(path)?;
        Ok(Machine { process, kind: MachineKind::Asked(Asked::new(path)), vcpus, left_out: false })
    }

    /// Its process.
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Its vCPUs, by index.
    pub fn vcpus(&self) -> &[VcpuThreads] {
        &self.vcpus
    }

    /// Returns true if there are more threads than are scheduled: vCPUs of a process
    /// ([`MAX_VCPUS`]), or threads of a vCPU ([`MAX_THREADS`]).
    pub fn has_more(&self) -> bool {
        self.left_out || self.vcpus.len() == MAX_VCPUS
    }

    /// The vCPU with this number. QEMU without multi-threaded emulation has one thread for all.
    pub fn vcpu(&self, index: u32) -> Option<&VcpuThreads> {
        match &self.vcpus[..] {
            [all] if all.index == names::ALL => Some(all),
            vcpus => vcpus.iter().find(|vcpu| vcpu.index == index),
        }
    }

    /// The time between two looks: tasks of User-Mode Linux come and go with the guest's processes,
    /// other vCPUs only when they are plugged.
    pub fn look_every(&self) -> Duration {
        match self.kind {
            MachineKind::UserMode => Duration::from_millis(20),
            MachineKind::Named(_) | MachineKind::Asked(_) => plugged::CHANGED,
        }
    }

    /// Looks again whether the machine lives, and which threads are its vCPUs; whether they have
    /// changed: vCPUs are plugged in and out. A few files in `/proc`; call it some times a second.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`]: the process has ended, or none of its vCPU threads is left.
    pub fn refresh(&mut self) -> Result<bool> {
        proc::check(self.process)?;
        let vcpus = match &mut self.kind {
            MachineKind::UserMode => {
                let known = self.vcpus.first().map_or(&[][..], |vcpu| &vcpu.tids);
                let tasks = uml::tasks(self.process, known)?;
                self.left_out = tasks.left_out;
                let now =
                    |vcpu: &VcpuThreads| VcpuThreads { tids: tasks.tids.clone(), ..vcpu.clone() };
                Some(self.vcpus.iter().map(now).collect())
            }
            MachineKind::Named(named) => named.look(self.process, &self.vcpus)?,
            MachineKind::Asked(asked) => asked.look(self.process, &self.vcpus)?,
        };
        let Some(vcpus) = vcpus.filter(|vcpus: &Vec<_>| *vcpus != self.vcpus) else {
            return Ok(false);
        };
        if vcpus.is_empty() {
            let what = format!("process {}: its last vCPU thread has ended", self.process.pid);
            return Err(Error::new(ErrorKind::Gone, what));
        }
        self.vcpus = vcpus;
        Ok(true)
    }
}

/// The advice depends on the kind of process.
fn nothing_found(pid: u32, name: &str) -> Error {
    let what = match name.starts_with("qemu") {
        true => format!(
            "{name} ({pid}) does not name its vCPU threads: start it with -name \
             NAME,debug-threads=on (libvirt does), or give its QMP socket with --qmp, or the \
             threads with --tid"
        ),
        false => format!(
            "{name} ({pid}) has no known vCPU threads (QEMU's \"CPU n/KVM\", crosvm's, Cloud \
             Hypervisor's, Firecracker's, libkrun's, or User-Mode Linux); name them with --tid"
        ),
    };
    Error::new(ErrorKind::Invalid, what)
}
