//! Disks that QEMU serves itself, from an image: its own virtio-blk, and the emulated ones.
//!
//! They stand beside the disks of other back ends ([`crate::Disk`]) in the same machine, for
//! comparisons. Each has a PCI slot that the caller chooses, so a guest finds it for any order of
//! its kernel's disk names. `readlink -f /sys/block/*` names the slot ([`Drive::guest_address`]).

use std::path::PathBuf;

use crate::qemu_program::{QemuProgram, escape_commas};

/// The device that the guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// virtio-blk.
    Virtio {
        /// Virtqueues.
        queues: u16,
        /// I/O threads; the queues are dealt out to them in turn (`iothread-vq-mapping`) if there
        /// is more than one.
        iothreads: u16,
    },
    /// An IDE disk on a PIIX3 controller with bus-master DMA: what QEMU's `pc` machine gives a
    /// guest by default. QEMU's main loop serves it.
    Ide,
    /// An NVMe drive. QEMU's main loop serves it.
    Nvme,
}

impl Controller {
    /// The modules that a guest needs for it; those that its kernel has built in do no harm.
    pub fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Virtio { .. } => &["virtio_pci", "virtio_blk"],
            Self::Ide => &["ata_piix", "sd_mod"],
            Self::Nvme => &["nvme"],
        }
    }

    /// Why `program` cannot do this, if it cannot.
    pub fn unsupported_by(self, program: &QemuProgram) -> Option<String> {
        let (major, minor) = program.version;
        match self {
            Self::Virtio { iothreads: 2.., .. } if program.version < MAPPING_SINCE => {
                Some(format!("needs QEMU 9.0 (iothread-vq-mapping); this is {major}.{minor}"))
            }
            _ => None,
        }
    }
}

/// `iothread-vq-mapping` came with QEMU 9.0.
const MAPPING_SINCE: (u32, u32) = (9, 0);

/// A disk that QEMU serves itself.
#[derive(Debug, Clone)]
pub struct Drive {
    /// Its name in QEMU's command line: letters and digits.
    pub id: String,
    /// The image: a raw file.
    pub image: PathBuf,
    /// Around the host's page cache (O_DIRECT), or through it.
    pub direct: bool,
    /// The device that the guest sees.
    pub controller: Controller,
    /// The PCI slot.
    pub slot: u8,
}

impl Drive {
    /// How a guest's sysfs names the slot.
    pub fn guest_address(slot: u8) -> String {
        format!("0000:00:{slot:02x}.0")
    }

    /// Adds the drive's arguments, as option and value.
    pub(crate) fn args(&self, mut pair: impl FnMut(&str, String)) {
        let (id, slot) = (&self.id, self.slot);
        let direct = if self.direct { "on" } else { "off" };
        pair(
            "-blockdev",
            format!(
                "driver=file,node-name={id},filename={},aio=io_uring,cache.direct={direct},\
                 discard=ignore",
                escape_commas(&self.image)
            ),
        );
        match self.controller {
            Controller::Virtio { queues, iothreads } => {
                for n in 0..iothreads {
                    pair("-object", format!("iothread,id={id}-t{n}"));
                }
                let device =
                    format!("virtio-blk-pci,drive={id},addr={slot:#x},num-queues={queues}");
                match iothreads {
                    0 => pair("-device", device),
                    1 => pair("-device", format!("{device},iothread={id}-t0")),
                    // A list can only be written as JSON.
                    _ => {
                        let threads: Vec<_> = (0..iothreads)
                            .map(|n| format!(r#"{{"iothread":"{id}-t{n}"}}"#))
                            .collect();
                        pair(
                            "-device",
                            format!(
                                r#"{{"driver":"virtio-blk-pci","drive":"{id}","addr":"{slot:#x}","num-queues":{queues},"iothread-vq-mapping":[{}]}}"#,
                                threads.join(",")
                            ),
                        );
                    }
                }
            }
            Controller::Ide => {
                pair("-device", format!("piix3-ide,id={id}-bus,addr={slot:#x}"));
                pair("-device", format!("ide-hd,bus={id}-bus.0,drive={id}"));
            }
            Controller::Nvme => {
                pair("-device", format!("nvme,drive={id},serial={id},addr={slot:#x}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(controller: Controller) -> Vec<String> {
        let drive = Drive {
            id: "d".into(),
            image: "/a,b.img".into(),
            direct: true,
            controller,
            slot: 0x11,
        };
        let mut args = Vec::new();
        drive.args(|option, value| args.push(format!("{option} {value}")));
        args
    }

    #[test]
    fn controllers_have_slots_and_direct_io() {
        let all = [
            (Controller::Virtio { queues: 2, iothreads: 1 }, 3),
            (Controller::Virtio { queues: 2, iothreads: 2 }, 4),
            (Controller::Ide, 3),
            (Controller::Nvme, 2),
        ];
        for (controller, count) in all {
            let args = args(controller);
            assert_eq!(args.len(), count, "{args:?}");
            assert!(
                args[0].contains("filename=/a,,b.img") && args[0].contains("cache.direct=on"),
                "{args:?}"
            );
            let at =
                args.iter().filter(|a| a.contains("addr=0x11") || a.contains(r#""addr":"0x11""#));
            assert_eq!(at.count(), 1, "{args:?}");
        }
        assert_eq!(Drive::guest_address(0x11), "0000:00:11.0");
    }

    #[test]
    fn only_capable_qemu_assigns_queues() {
        let mapped = Controller::Virtio { queues: 4, iothreads: 2 };
        let device = args(mapped).pop().unwrap_or_default();
        assert!(
            device.ends_with(r#""iothread-vq-mapping":[{"iothread":"d-t0"},{"iothread":"d-t1"}]}"#)
        );
        let program = |version| QemuProgram { path: "/q".into(), version };
        let why = mapped.unsupported_by(&program((7, 2))).unwrap_or_default();
        assert!(why.contains("needs QEMU 9.0") && why.contains("this is 7.2"), "{why}");
        assert_eq!(mapped.unsupported_by(&program((9, 0))), None);
        assert_eq!(Controller::Nvme.unsupported_by(&program((7, 2))), None);
    }
}
