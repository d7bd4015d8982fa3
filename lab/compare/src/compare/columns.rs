//! The compared columns.

use serde::{Deserialize, Serialize};
use vlane_guest::{Controller, Modules, QemuProgram};

/// A way from fio to the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// No guest: fio on the host.
    Host,
    /// The guest on vlane, over vhost-user.
    Vlane,
    /// The guest on QEMU's own virtio-blk with one I/O thread.
    Virtio,
    /// The same with an I/O thread per queue.
    VirtioMapped,
    /// The guest on qemu-storage-daemon, over vhost-user.
    StorageDaemon,
    /// The guest on an emulated IDE disk.
    Ide,
    /// The guest on an emulated NVMe drive.
    Nvme,
}

/// All columns, in the order of the tables.
pub const ALL: [Column; 7] = [
    Column::Host,
    Column::Vlane,
    Column::Virtio,
    Column::VirtioMapped,
    Column::StorageDaemon,
    Column::Ide,
    Column::Nvme,
];

/// PCI slots below this belong to the machine.
const FIRST_SLOT: u8 = 0x10;

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

    /// In job files, on the guest's console, as QEMU's names and on the command line: letters only.
    pub fn id(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Vlane => "vlane",
            Self::Virtio => "virtio",
            Self::VirtioMapped => "mapped",
            Self::StorageDaemon => "qsd",
            Self::Ide => "ide",
            Self::Nvme => "nvme",
        }
    }

    /// Its description, in a sentence.
    pub fn about(self) -> &'static str {
        match self {
            Self::Host => {
                "fio on the host, on a file of the same file system as the images. No guest."
            }
            Self::Vlane => {
                "fio in the guest; its virtio disk is served by vlane over vhost-user, a lane per \
                 vCPU."
            }
            Self::Virtio => {
                "fio in the guest; QEMU serves its virtio-blk disk from one I/O thread."
            }
            Self::VirtioMapped => {
                "fio in the guest; QEMU serves its virtio-blk disk from an I/O thread per queue \
                 (iothread-vq-mapping)."
            }
            Self::StorageDaemon => {
                "fio in the guest; its virtio disk is served by qemu-storage-daemon over \
                 vhost-user, from one I/O thread."
            }
            Self::Ide => {
                "fio in the guest; QEMU emulates an IDE disk (PIIX3 controller, bus-master DMA) in \
                 its main loop."
            }
            Self::Nvme => "fio in the guest; QEMU emulates an NVMe drive in its main loop.",
        }
    }

    /// The PCI slot of its disk.
    pub fn slot(self) -> u8 {
        let place = ALL.iter().position(|column| *column == self).unwrap_or(0);
        FIRST_SLOT + u8::try_from(place).unwrap_or(0)
    }

    /// QEMU's device for the guest, if QEMU serves the disk itself.
    pub fn controller(self, vcpus: u16) -> Option<Controller> {
        match self {
            Self::Virtio => Some(Controller::Virtio { queues: vcpus, iothreads: 1 }),
            Self::VirtioMapped => {
                Some(Controller::Virtio { queues: vcpus, iothreads: vcpus.max(2) })
            }
            Self::Ide => Some(Controller::Ide),
            Self::Nvme => Some(Controller::Nvme),
            Self::Host | Self::Vlane | Self::StorageDaemon => None,
        }
    }

    /// Why it cannot be measured with this QEMU and this guest kernel, if so.
    pub fn missing(self, vcpus: u16, program: &QemuProgram, kernel: &Modules) -> Option<String> {
        let controller = self.controller(vcpus)?;
        if let Some(why) = controller.unsupported_by(program) {
            return Some(why);
        }
        let lacking = controller.modules().iter().find(|module| !kernel.has(module))?;
        Some(format!("the guest's kernel has no {lacking}"))
    }
}

/// A column that could not be measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Which.
    pub column: Column,
    /// Why, and what to do about it.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_unique_slots_and_names() {
        for (i, column) in ALL.iter().enumerate() {
            for other in &ALL[..i] {
                assert!(other.slot() != column.slot() && other.id() != column.id());
                assert!(other.name() != column.name());
            }
            assert!(column.slot() < 0x1f, "the last slot is the machine's own");
            assert!(column.id().chars().all(|c| c.is_ascii_lowercase()));
        }
    }
}
