//! Threads that work for each column: the roles that are measured, and their meaning.

use super::columns::Column;
use super::results::{PARTS, Part, PartWork};
use vlane_cost::{Counted, Role, Sampler, ThreadFilter, Used};

/// Threads that the kernel makes inside a process that asked for work.
const WORKERS: [&str; 3] = ["iou-wrk-", "iou-sqp-", "vhost-"];

/// Processes of a comparison.
#[derive(Debug, Clone, Copy)]
pub struct Pids {
    /// QEMU.
    pub qemu: u32,
    /// `vlane serve`.
    pub vlane: Option<u32>,
    /// qemu-storage-daemon.
    pub storage_daemon: Option<u32>,
}

/// A role, and for which columns it works as what.
struct Assignment {
    role: Role,
    part: Part,
    columns: &'static [Column],
}

/// Every role; a thread counts for the first that fits.
fn assignments(pids: Pids) -> Vec<Assignment> {
    use Column::{Ide, Nvme, StorageDaemon, Virtio, VirtioMapped, Vlane};
    let mut all = Vec::new();
    let mut add = |name: &str, pid: u32, threads: ThreadFilter, part, columns| {
        let pid = i32::try_from(pid).unwrap_or(-1);
        all.push(Assignment { role: Role::new(name, pid, threads), part, columns });
    };
    let own: &[Column] = &[Virtio, VirtioMapped, Ide, Nvme];
    add(
        "guest vCPU",
        pids.qemu,
        ThreadFilter::named(&["CPU "]),
        Part::Guest,
        &[Vlane, Virtio, VirtioMapped, StorageDaemon, Ide, Nvme],
    );
    add("QEMU's kernel workers", pids.qemu, ThreadFilter::named(&WORKERS), Part::Kernel, own);
    add(
        "QEMU's I/O thread",
        pids.qemu,
        ThreadFilter::named(&["IO virtio-"]),
        Part::Backend,
        &[Virtio],
    );
    add(
        "QEMU's I/O threads",
        pids.qemu,
        ThreadFilter::named(&["IO mapped-"]),
        Part::Backend,
        &[VirtioMapped],
    );
    add("QEMU's main loop", pids.qemu, ThreadFilter::All, Part::Backend, own);
    let mut peer = |pid: Option<u32>, workers: &str, rest: &str, columns| {
        if let Some(pid) = pid {
            add(workers, pid, ThreadFilter::named(&WORKERS), Part::Kernel, columns);
            add(rest, pid, ThreadFilter::All, Part::Backend, columns);
        }
    };
    peer(pids.vlane, "vlane's kernel workers", "vlane", &[Vlane]);
    peer(
        pids.storage_daemon,
        "qemu-storage-daemon's kernel workers",
        "qemu-storage-daemon",
        &[StorageDaemon],
    );
    all
}

/// A sampler of everything that works for the guest.
pub fn sampler(pids: Pids) -> Sampler {
    Sampler::new(assignments(pids).into_iter().map(|a| a.role).collect())
}

/// Work of a column's parts in `used`, of [`sampler`]'s, per request of `ios`.
pub fn share(used: &Used, pids: Pids, column: Column, ios: f64) -> Vec<(Part, PartWork)> {
    let all = assignments(pids);
    let mine = |part| {
        all.iter()
            .filter(move |a| a.part == part && a.columns.contains(&column))
            .filter_map(|a| used.role(&a.role.name))
    };
    let of = |part| {
        let mut work = PartWork { calls: Some(0.0), ..PartWork::default() };
        for role in mine(part) {
            work.cpu_us += role.cpu.as_secs_f64() * 1e6 / ios;
            work.switches += role.switches() as f64 / ios;
            work.calls = match (&role.calls, work.calls) {
                (Counted::Is(calls), Some(sum)) => Some(sum + calls.total as f64 / ios),
                _ => None,
            };
        }
        (part, work)
    };
    PARTS.iter().map(|part| of(*part)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::columns::ALL;
    use super::*;

    #[test]
    fn roles_cover_columns_without_overlap() {
        let pids = Pids { qemu: 1, vlane: Some(2), storage_daemon: Some(3) };
        let all = assignments(pids);
        for column in ALL {
            for part in PARTS {
                let found = all.iter().any(|a| a.part == part && a.columns.contains(&column));
                assert_eq!(found, column != Column::Host, "{column:?} {part:?}");
            }
        }
        for (i, one) in all.iter().enumerate() {
            assert!(
                all[..i].iter().all(|other| other.role.name != one.role.name),
                "{}",
                one.role.name
            );
        }
        let without = assignments(Pids { qemu: 1, vlane: None, storage_daemon: None });
        assert!(without.iter().all(|a| a.role.pid == 1));
    }
}
