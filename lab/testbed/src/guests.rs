//! Real guests on sockets of back ends: User-Mode Linux and QEMU, with one vCPU, and how one waits
//! for what they say.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use vlane_guest::{
    Accel, Boot, Choice, Disk, Guest, Host, Initramfs, Kernel, Qemu, QemuProgram, Uml, UmlProgram,
};

use crate::error::{Error, ErrorKind, Result};
use crate::interrupt::Interrupt;

/// How often an interrupt is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// Which guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Machines {
    /// User-Mode Linux
    // Nearly native: one vCPU that is several host tasks.
    Uml,
    /// QEMU, emulated where KVM does not work
    // A vCPU is a thread.
    Qemu,
}

/// Where guests come from.
#[derive(Debug)]
pub enum Maker {
    /// User-Mode Linux of this host.
    Uml(Host, UmlProgram),
    /// QEMU with a kernel, and with the accelerator that works.
    Qemu(Host, QemuProgram, Kernel, Choice),
}

impl Maker {
    /// Looks for everything that guests need.
    pub fn find(host: &Host, machines: Machines) -> Result<Self> {
        Ok(match machines {
            Machines::Uml => Self::Uml(host.clone(), UmlProgram::find(host)?),
            Machines::Qemu => {
                let program = QemuProgram::find(host)?;
                let kernel = Kernel::find(host)?;
                let accel = Choice::probe(host, &program, &kernel)?;
                Self::Qemu(host.clone(), program, kernel, accel)
            }
        })
    }

    /// The program and its version, as a report names it.
    pub fn describe(&self) -> String {
        match self {
            Self::Uml(_, program) => format!("User-Mode Linux {}", program.version),
            Self::Qemu(_, program, _, choice) => {
                format!("QEMU {}.{} ({:?})", program.version.0, program.version.1, choice.accel)
            }
        }
    }

    /// True if the guests' CPUs are emulated.
    pub fn is_emulated(&self) -> bool {
        matches!(self, Self::Qemu(.., choice) if choice.accel == Accel::Tcg)
    }

    /// Starts a guest with a disk at each socket: `/dev/vda` and on.
    pub fn start(
        &self,
        sockets: Vec<PathBuf>,
        guest: &Initramfs,
        limit: Duration,
    ) -> Result<Guest> {
        let memory_mib = if matches!(self, Self::Uml(..)) { 256 } else { 512 };
        let disks = sockets.into_iter().map(Disk::at).collect();
        self.start_sized(disks, guest, limit, 1, memory_mib)
    }

    /// The same with so many vCPUs, which User-Mode Linux has one of, and so much memory.
    pub fn start_sized(
        &self,
        disks: Vec<Disk>,
        guest: &Initramfs,
        limit: Duration,
        vcpus: u16,
        memory_mib: u32,
    ) -> Result<Guest> {
        Ok(match self {
            Self::Uml(host, program) => {
                let sockets = disks.into_iter().map(|disk| disk.socket);
                let mut machine = Uml::new(program.clone(), sockets);
                machine.memory_mib = memory_mib;
                machine.start_with(host, guest, limit, None)?
            }
            Self::Qemu(host, program, kernel, choice) => {
                // A machine is made with one disk; those that only compute need none.
                let none = Disk::at("");
                let mut machine = Qemu::new(program.clone(), choice.accel, Boot::Disk, none);
                machine.disks = disks;
                machine.vcpus = vcpus;
                machine.memory_mib = memory_mib;
                machine.extra = ["-name", "guest,debug-threads=on"].map(String::from).to_vec();
                machine.start_with(host, kernel, guest, limit, None)?
            }
        })
    }
}

/// Sleeps until then, looking for an interrupt meanwhile.
///
/// # Errors
/// [`ErrorKind::Interrupted`].
pub fn pause(until: Instant, interrupt: &Interrupt) -> Result<()> {
    loop {
        interrupt.check()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK));
    }
}

/// Waits for a result of a guest's, looking for an interrupt meanwhile.
///
/// # Errors
/// [`ErrorKind::Process`] with the console's end if the guest ends or does not say it within
/// `limit`; [`ErrorKind::Interrupted`].
pub fn wait(
    guest: &mut Guest,
    key: &str,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<String> {
    let deadline = Instant::now() + limit;
    loop {
        interrupt.check()?;
        if guest.wait_results(&[key], LOOK).is_ok()
            && let Some(value) = guest.results().get(key)
        {
            return Ok(value.clone());
        }
        if guest.poll(Duration::ZERO)?.is_some() {
            return Err(trouble(guest, "the guest has ended"));
        }
        if Instant::now() > deadline {
            return Err(trouble(guest, &format!("the guest did not report `{key}`")));
        }
    }
}

/// The error, with the end of the guest's console.
pub fn trouble(guest: &Guest, what: &str) -> Error {
    let console = guest.console();
    let lines: Vec<&str> = console.lines().collect();
    let last = lines[lines.len().saturating_sub(12)..].join("\n");
    Error::new(ErrorKind::Process, format!("{what}; its console said:\n{last}"))
}
