//! The machine that figures were measured on.

use serde::{Deserialize, Serialize};

/// What a reader needs to know of the machine. Nothing in it names a host or a user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// The virtual machine monitor that it runs under, if it tells: `kvm`, `xen`, ...; empty on bare metal.
    #[serde(default)]
    pub hypervisor: String,
    /// Programs that took part, with their versions, vlane first.
    pub versions: Vec<(String, String)>,
}
