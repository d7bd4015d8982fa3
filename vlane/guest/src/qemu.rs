//! QEMU on a vhost-user-blk socket: its command line, and guests started with it.

use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use crate::accel::Accel;
use crate::console::Echo;
use crate::drive::Drive;
use crate::error::Result;
use crate::guest::{Guest, Keep};
use crate::host::Host;
use crate::initramfs::Initramfs;
use crate::kernel::Kernel;
use crate::process::Spec;
use crate::qemu_program::{QemuProgram, escape_commas};

/// Entries of each queue: as many as QEMU allows.
pub const QUEUE_SIZE: u16 = 1024;
/// The modules that a guest needs for QEMU's disk.
pub const DISK_MODULES: [&str; 2] = ["virtio_pci", "virtio_blk"];

/// A disk of the guest: a socket on which a back end listens.
#[derive(Debug, Clone)]
pub struct Disk {
    /// The back end's socket.
    pub socket: PathBuf,
    /// Virtqueues; as many as vCPUs if not given.
    pub queues: Option<u16>,
    /// Offer the packed virtqueue layout to the guest.
    pub packed: bool,
    /// Connect again, every second, when the back end went away.
    pub reconnect: bool,
    /// The PCI slot; the next free one if not given.
    pub slot: Option<u8>,
}

impl Disk {
    /// The volume at a socket, with a queue per vCPU and split rings.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), queues: None, packed: false, reconnect: false, slot: None }
    }
}

/// Content that the machine boots.
#[derive(Debug, Clone)]
pub enum Boot {
    /// A kernel, given to QEMU.
    Kernel {
        /// `vmlinux` or `vmlinuz`.
        kernel: PathBuf,
        /// Its initramfs.
        initramfs: Option<PathBuf>,
        /// Additions to the kernel's command line.
        append: String,
    },
    /// The first disk's boot loader, started by the firmware.
    Disk,
}

/// A QEMU machine. [`Qemu::args`] is the whole command line: what runs is what `--dry-run` prints.
#[derive(Debug, Clone)]
pub struct Qemu {
    /// Which QEMU.
    pub program: QemuProgram,
    /// How instructions are executed.
    pub accel: Accel,
    /// vCPUs.
    pub vcpus: u16,
    /// Guest memory in MiB; it is shared with the back end.
    pub memory_mib: u32,
    /// Content that it boots.
    pub boot: Boot,
    /// Its disks; the first is `/dev/vda`.
    pub disks: Vec<Disk>,
    /// Disks that QEMU serves itself.
    pub drives: Vec<Drive>,
    /// The console is for people: keys go to the guest (Ctrl-C too), and Ctrl-A leads to QEMU's
    /// monitor.
    pub interactive: bool,
    /// The guest may reboot; otherwise a reboot (and a panic) ends QEMU.
    pub may_reboot: bool,
    /// Emulated CPUs run one after the other, on one thread of QEMU's. That is slower, and right
    /// also for a kernel that changes its own code while other CPUs run it.
    pub in_turns: bool,
    /// Arguments of the caller's, at the end.
    pub extra: Vec<String>,
}

impl Qemu {
    /// A machine with two vCPUs, 512 MiB, and one disk.
    pub fn new(program: QemuProgram, accel: Accel, boot: Boot, disk: Disk) -> Self {
        Self {
            program,
            accel,
            vcpus: 2,
            memory_mib: 512,
            boot,
            disks: vec![disk],
            drives: Vec::new(),
            interactive: false,
            may_reboot: false,
            in_turns: false,
            extra: Vec::new(),
        }
    }

    /// QEMU's arguments, with the guest's console on standard input and output.
    pub fn args(&self) -> Vec<String> {
        let mut args = Args::default();
        let graphics = if matches!(self.boot, Boot::Disk) { ",graphics=off" } else { "" };
        args.flag("-nodefaults").flag("-no-user-config");
        // The back end maps the guest's memory: it has to be a file that both can see.
        args.pair("-machine", format!("q35,memory-backend=mem{graphics}"));
        args.pair(
            "-object",
            format!("memory-backend-memfd,id=mem,size={}M,share=on", self.memory_mib),
        );
        args.pair("-m", format!("{}M", self.memory_mib));
        args.pair("-smp", self.vcpus.to_string());
        match self.accel {
            Accel::Kvm => args.pair("-accel", "kvm").pair("-cpu", "host"),
            Accel::Tcg => {
                let threads = if self.in_turns { "single" } else { "multi" };
                args.pair("-accel", format!("tcg,thread={threads}")).pair("-cpu", "max")
            }
        };
        if let Boot::Kernel { kernel, initramfs, append } = &self.boot {
            args.pair("-kernel", kernel.display().to_string());
            if let Some(initramfs) = initramfs {
                args.pair("-initrd", initramfs.display().to_string());
            }
            args.pair("-append", self.kernel_command_line(append));
        }
        args.pair("-display", "none");
        if self.interactive {
            args.pair("-serial", "mon:stdio");
        } else {
            args.pair("-monitor", "none").pair("-serial", "stdio");
        }
        if !self.may_reboot {
            args.flag("-no-reboot");
        }
        for (n, disk) in self.disks.iter().enumerate() {
            args.pair("-chardev", self.chardev(n, disk));
            args.pair("-device", self.device(n, disk));
        }
        for drive in &self.drives {
            drive.args(|option, value| {
                args.pair(option, value);
            });
        }
        args.0.extend(self.extra.iter().cloned());
        args.0
    }

    fn kernel_command_line(&self, append: &str) -> String {
        let mut words = vec!["console=ttyS0", "quiet", "panic=-1"];
        if self.accel == Accel::Tcg {
            // An emulated CPU is slow enough without mitigations and timer calibration.
            words.extend(["mitigations=off", "tsc=reliable", "no_timer_check", "nokaslr"]);
        }
        words.extend(append.split_whitespace());
        words.join(" ")
    }

    fn chardev(&self, n: usize, disk: &Disk) -> String {
        // QEMU 9.2 brought milliseconds, and later versions dropped the seconds.
        let reconnect = match (disk.reconnect, self.program.version >= (9, 2)) {
            (false, _) => "",
            (true, true) => ",reconnect-ms=500",
            (true, false) => ",reconnect=1",
        };
        format!("socket,id=disk{n},path={}{reconnect}", escape_commas(&disk.socket))
    }

    fn device(&self, n: usize, disk: &Disk) -> String {
        let queues = disk.queues.unwrap_or(self.vcpus);
        let packed = if disk.packed { ",packed=on" } else { "" };
        let boot = if n == 0 && matches!(self.boot, Boot::Disk) { ",bootindex=1" } else { "" };
        let slot = disk.slot.map_or(String::new(), |slot| format!(",addr={slot:#x}"));
        // By default, a queue has 128 entries, and requests beyond that wait where no back end can
        // see their class. Firmware that has room for fewer takes fewer (SeaBIOS: 128 or 256, on a
        // modern device, which this one is).
        format!(
            "vhost-user-blk-pci,chardev=disk{n},num-queues={queues}{packed}{boot}{slot},\
             queue-size={QUEUE_SIZE}"
        )
    }

    /// The program and its arguments.
    pub fn spec(&self) -> Spec {
        Spec::new(&self.program.path, self.args())
    }

    /// Starts the machine with its console caught; see [`Guest`].
    pub fn start(&self, limit: Duration, echo: Option<Echo>) -> Result<Guest> {
        Guest::start("QEMU", &self.spec(), limit, echo, Keep::default())
    }

    /// Starts the machine with its console on our terminal.
    pub fn start_here(&self) -> Result<Child> {
        self.spec().spawn_here()
    }

    /// Builds the guest's initramfs for `kernel` and starts the machine with it.
    pub fn start_with(
        mut self,
        host: &Host,
        kernel: &Kernel,
        guest: &Initramfs,
        limit: Duration,
        echo: Option<Echo>,
    ) -> Result<Guest> {
        let mut modules = DISK_MODULES.to_vec();
        modules.extend(self.drives.iter().flat_map(|drive| drive.controller.modules()));
        let image = guest.build(host, &kernel.modules, &modules)?;
        let append = match &self.boot {
            Boot::Kernel { append, .. } => append.clone(),
            Boot::Disk => String::new(),
        };
        self.boot = Boot::Kernel {
            kernel: kernel.image.clone(),
            initramfs: Some(image.to_path_buf()),
            append,
        };
        let keep = Keep { files: vec![image], directories: Vec::new() };
        Guest::start("QEMU", &self.spec(), limit, echo, keep)
    }
}

#[derive(Debug, Default)]
struct Args(Vec<String>);

impl Args {
    fn flag(&mut self, flag: &str) -> &mut Self {
        self.0.push(flag.to_string());
        self
    }

    fn pair(&mut self, option: &str, value: impl Into<String>) -> &mut Self {
        self.0.extend([option.to_string(), value.into()]);
        self
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn machine(version: (u32, u32), boot: Boot) -> Qemu {
        let program = QemuProgram { path: "/usr/bin/qemu-system-x86_64".into(), version };
        Qemu::new(program, Accel::Tcg, boot, Disk::at("/run/a,b.sock"))
    }

    fn kernel() -> Boot {
        Boot::Kernel {
            kernel: "/k".into(),
            initramfs: Some("/i".into()),
            append: "root=/dev/vda".into(),
        }
    }

    fn value<'a>(args: &'a [String], option: &str) -> &'a str {
        &args[args.iter().position(|a| a == option).unwrap() + 1]
    }

    #[test]
    fn shared_memory_and_queue_per_vcpu() {
        let mut qemu = machine((7, 2), kernel());
        qemu.vcpus = 4;
        let args = qemu.args();
        assert_eq!(value(&args, "-object"), "memory-backend-memfd,id=mem,size=512M,share=on");
        assert_eq!(value(&args, "-machine"), "q35,memory-backend=mem");
        assert_eq!(value(&args, "-chardev"), "socket,id=disk0,path=/run/a,,b.sock");
        assert_eq!(
            value(&args, "-device"),
            "vhost-user-blk-pci,chardev=disk0,num-queues=4,queue-size=1024"
        );
        assert!(value(&args, "-append").ends_with("root=/dev/vda"));
        assert!(args.contains(&"-no-reboot".to_string()));
    }

    #[test]
    fn reconnect_option_follows_the_version() {
        for (version, word) in [
            ((7, 2), ",reconnect=1"),
            ((9, 1), ",reconnect=1"),
            ((9, 2), ",reconnect-ms=500"),
            ((10, 0), ",reconnect-ms=500"),
        ] {
            let mut qemu = machine(version, kernel());
            qemu.disks[0].reconnect = true;
            assert!(value(&qemu.args(), "-chardev").ends_with(word), "{version:?}");
        }
    }

    #[test]
    fn firmware_boots_bootable_volume() {
        let mut qemu = machine((10, 0), Boot::Disk);
        qemu.accel = Accel::Kvm;
        qemu.disks[0].packed = true;
        let args = qemu.args();
        assert!(!args.contains(&"-kernel".to_string()));
        assert_eq!(
            value(&args, "-device"),
            "vhost-user-blk-pci,chardev=disk0,num-queues=2,packed=on,bootindex=1,queue-size=1024"
        );
        assert_eq!(value(&args, "-accel"), "kvm");
    }
}
