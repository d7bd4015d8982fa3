//! The compared columns.

use clap::ValueEnum;
use vlane_guest::{Controller, Modules, QemuProgram};
use vlane_testbed::{about, word};

/// vCPUs of the guest, and queues of each of its virtio disks.
pub const VCPUS: u16 = 2;
/// PCI slots below this belong to the machine.
const FIRST_SLOT: u8 = 0x10;

/// A way from fio to the storage, in the order of the tables. The descriptions are for users, and
/// the value's name is letters only: for job files, the guest's console and QEMU's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Column {
    /// fio on the host, on a file of the same file system as the images. No guest.
    Host,
    /// fio in the guest; its virtio disk is served by vlane over vhost-user, a lane per vCPU.
    Vlane,
    /// fio in the guest; QEMU serves its virtio-blk disk from one I/O thread.
    Virtio,
    /// fio in the guest; QEMU serves its virtio-blk disk from an I/O thread per queue
    /// (iothread-vq-mapping).
    #[value(name = "mapped")]
    VirtioMapped,
    /// fio in the guest; its virtio disk is served by qemu-storage-daemon over vhost-user, from
    /// one I/O thread.
    #[value(name = "qsd")]
    StorageDaemon,
    /// fio in the guest; QEMU emulates an IDE disk (PIIX3 controller, bus-master DMA) in its main
    /// loop.
    Ide,
    /// fio in the guest; QEMU emulates an NVMe drive in its main loop.
    Nvme,
}

impl Column {
    /// As a heading.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Vlane => "vlane",
            Self::Virtio => "QEMU virtio-blk",
            Self::VirtioMapped => "QEMU vq-mapping",
            Self::StorageDaemon => "storage-daemon",
            Self::Ide => "emulated IDE",
            Self::Nvme => "emulated NVMe",
        }
    }

    /// The value's name.
    pub fn id(self) -> String {
        word(self)
    }

    /// Its description, in a sentence.
    pub fn about(self) -> String {
        format!("{}.", about(self))
    }

    /// The PCI slot of its disk.
    pub fn slot(self) -> u8 {
        FIRST_SLOT + self as u8
    }

    /// QEMU's device for the guest, if QEMU serves the disk itself.
    pub fn controller(self) -> Option<Controller> {
        match self {
            Self::Virtio => Some(Controller::Virtio { queues: VCPUS, iothreads: 1 }),
            Self::VirtioMapped => Some(Controller::Virtio { queues: VCPUS, iothreads: VCPUS }),
            Self::Ide => Some(Controller::Ide),
            Self::Nvme => Some(Controller::Nvme),
            Self::Host | Self::Vlane | Self::StorageDaemon => None,
        }
    }

    /// Why it cannot be measured with this QEMU and this guest kernel, if so.
    pub fn missing(self, program: &QemuProgram, kernel: &Modules) -> Option<String> {
        let controller = self.controller()?;
        controller.unsupported_by(program).or_else(|| {
            let lacking = controller.modules().iter().find(|module| !kernel.has(module))?;
            Some(format!("the guest's kernel has no {lacking}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_unique_slots_and_names() {
        let all = Column::value_variants();
        for (i, column) in all.iter().enumerate() {
            for other in &all[..i] {
                assert!(other.slot() != column.slot() && other.id() != column.id());
                assert!(other.name() != column.name());
            }
            assert!(column.slot() < 0x1f, "the last slot is the machine's own");
            assert!(column.about().starts_with("fio ") && column.about().ends_with('.'));
            assert!(column.id().chars().all(|c| c.is_ascii_lowercase()));
        }
    }
}
