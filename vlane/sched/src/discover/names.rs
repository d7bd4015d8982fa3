//! Names that hypervisors give the threads of their vCPUs.

use super::proc::Thread;
use crate::vehicle::VcpuThreads;

/// The index of a thread that is all vCPUs of its machine.
pub(super) const ALL: u32 = u32::MAX;

/// The vCPU that a thread of this name is. Names are cut to 15 bytes by the kernel.
pub(super) fn index(name: &str) -> Option<u32> {
    // QEMU under emulation with one thread (-accel tcg,thread=single).
    if name == "ALL CPUs/TCG" {
        return Some(ALL);
    }
    // QEMU: "CPU 0/KVM", "CPU 0/TCG"; even three digits fit without being cut.
    if let Some(rest) = name.strip_prefix("CPU ") {
        let (number, accelerator) = rest.split_once('/')?;
        return ["KVM", "TCG", "HVF", "XEN", "MSHV"]
            .contains(&accelerator)
            .then(|| digits(number))
            .flatten();
    }
    // crosvm, Firecracker, libkrun, Cloud Hypervisor.
    let prefixes = ["crosvm_vcpu", "fc_vcpu ", "fc_vcpu", "vcpu ", "vcpu"];
    prefixes.iter().find_map(|prefix| name.strip_prefix(prefix).and_then(digits))
}

/// Only digits: no sign, no blank.
fn digits(text: &str) -> Option<u32> {
    let fine =
        !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    fine.then(|| text.parse().ok()).flatten()
}

/// The vCPUs among the threads, by index. Of two with the same name, only the first: the process
/// chooses names itself.
pub(super) fn vcpus(pid: u32, threads: &[Thread]) -> Vec<VcpuThreads> {
    let mut vcpus: Vec<_> = threads
        .iter()
        .filter_map(|thread| {
            let index = index(&thread.name)?;
            let name = format!("{} ({pid})", thread.name);
            Some(VcpuThreads { pid, index, tids: vec![thread.tid], name })
        })
        .collect();
    vcpus.sort_by_key(|vcpu| (vcpu.index, vcpu.tids[0]));
    vcpus.dedup_by_key(|vcpu| vcpu.index);
    vcpus.truncate(super::MAX_VCPUS);
    // Interrupts of an emulated CPU come through QEMU's main loop. While that waits for its turn,
    // no CPU knows of the interrupt.
    let is_emulated =
        threads.iter().any(|thread| index(&thread.name).is_some() && thread.name.ends_with("/TCG"));
    if is_emulated
        && let Some(first) = vcpus.first_mut()
        && threads.iter().any(|thread| thread.tid == pid)
        && !first.tids.contains(&pid)
    {
        first.tids.push(pid);
    }
    vcpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpu_threads_are_recognized_by_name() {
        for (name, wanted) in [
            ("CPU 0/KVM", Some(0)),
            ("CPU 127/TCG", Some(127)),
            ("CPU 1000/KVM", Some(1000)),
            ("ALL CPUs/TCG", Some(ALL)),
            ("crosvm_vcpu3", Some(3)),
            ("vcpu0", Some(0)),
            ("vcpu12", Some(12)),
            ("vcpu 2", Some(2)),
            ("fc_vcpu 1", Some(1)),
            ("fc_vcpu", None),
            ("CPU /KVM", None),
            ("CPU 0/XYZ", None),
            ("CPU +1/KVM", None),
            ("vcpu", None),
            ("vcpu_manager", None),
            ("qemu-system-x86", None),
            ("vcpu99999999", None),
            ("", None),
        ] {
            assert_eq!(index(name), wanted, "{name:?}");
        }
    }

    #[test]
    fn number_of_vcpus_is_limited() {
        let all: Vec<_> = (0..20_000)
            .map(|n| Thread { tid: n + 10, name: format!("vcpu{}", 20_000 - n) })
            .collect();
        let found = vcpus(5, &all);
        assert_eq!((found.len(), found[0].index), (super::super::MAX_VCPUS, 1));
    }

    #[test]
    fn repeated_thread_name_counts_once() {
        let thread = |tid, name: &str| Thread { tid, name: name.to_owned() };
        let all = [
            thread(12, "CPU 1/KVM"),
            thread(11, "CPU 0/KVM"),
            thread(13, "CPU 0/KVM"),
            thread(10, "qemu"),
        ];
        let found: Vec<_> =
            vcpus(10, &all).into_iter().map(|vcpu| (vcpu.index, vcpu.tids)).collect();
        assert_eq!(found, [(0, vec![11]), (1, vec![12])]);
    }
}
