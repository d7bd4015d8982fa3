//! Exits of a guest's vCPUs to the host, by reason, as KVM counts them.
//!
//! KVM has a directory per virtual machine in debugfs (`/sys/kernel/debug/kvm/PID-FD/`, PID the
//! monitor's process) with a file per figure of all its vCPUs. The files are `exits`, and its
//! reasons (`io_exits`, `mmio_exits`, `halt_exits`, `irq_exits`, ...; the names differ between x86
//! and arm64). Reading them needs root. Events that KVM does not count there, as the write to an
//! MSR that ends an interrupt, are in `exits` and in no reason: `perf kvm stat` splits it further.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Counted, Tally};

/// Where debugfs shows KVM.
pub const KVM_DEBUGFS: &str = "/sys/kernel/debug/kvm";

/// KVM's counts up to now for the virtual machines of process `pid`, by the kernel's names: exits
/// and others.
pub fn take(pid: i32) -> Counted<Tally> {
    read(Path::new(KVM_DEBUGFS), pid)
}

/// As [`take`], from another directory than [`KVM_DEBUGFS`].
fn read(root: &Path, pid: i32) -> Counted<Tally> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries.flatten(),
        Err(error) => return Err(reason(root, &error)),
    };
    let prefix = format!("{pid}-");
    let machines = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    let machines: Vec<PathBuf> =
        machines.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    if machines.is_empty() {
        return Err(format!(
            "not counted: KVM knows no virtual machine of process {pid} (guest CPU emulated, \
                 or ended)"
        ));
    }
    let mut all = Tally::default();
    machines.iter().for_each(|machine| add_figures(machine, &mut all));
    Ok(all)
}

/// Exits by reason, the most frequent first.
pub fn reasons(stats: &Tally) -> Vec<(&str, u64)> {
    let is_reason =
        |name: &str| name != "exits" && (name.ends_with("_exits") || name.contains("_exit_"));
    let all = stats.0.iter().map(|(name, count)| (name.as_str(), *count));
    let mut reasons: Vec<(&str, u64)> = all.filter(|(name, _)| is_reason(name)).collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    reasons
}

fn reason(root: &Path, error: &io::Error) -> String {
    let root = root.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("not counted: {root}: KVM's figures are for root")
        }
        io::ErrorKind::NotFound => {
            format!(
                "not counted: {root} is not there: no KVM, or debugfs is not mounted (as root: \
                 mount -t debugfs none /sys/kernel/debug)"
            )
        }
        _ => format!("not counted: {root}: {error}"),
    }
}

/// Adds all files of a directory that hold one number.
fn add_figures(dir: &Path, to: &mut Tally) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let text = if is_file { fs::read_to_string(entry.path()).ok() } else { None };
        if let Some(value) = text.and_then(|text| text.trim().parse().ok()) {
            to.add(entry.file_name().to_string_lossy(), value);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// As the kernel lays it out; negative and empty files are there, too.
    fn recorded(exits: u64, io: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let machine = dir.path().join("4711-12");
        for vcpu in ["vcpu0", "vcpu1"] {
            fs::create_dir_all(machine.join(vcpu)).unwrap();
            fs::write(machine.join(vcpu).join("tsc-offset"), "-18446744\n").unwrap();
            fs::write(machine.join(vcpu).join("guest_mode"), "0\n").unwrap();
            fs::write(machine.join(vcpu).join("halt_wait_ns"), "21\n").unwrap();
        }
        for (name, value) in
            [("exits", exits), ("io_exits", io), ("halt_exits", 5), ("irq_injections", 3)]
        {
            fs::write(machine.join(name), format!("{value}\n")).unwrap();
        }
        fs::write(machine.join("mmu_rmaps_stat"), "Rmap_Count:\t0\t1\n").unwrap();
        fs::create_dir(dir.path().join("47110-3")).unwrap();
        fs::write(dir.path().join("47110-3/exits"), "999999\n").unwrap();
        fs::write(dir.path().join("exits"), "123456\n").unwrap();
        dir
    }

    #[test]
    fn figures_of_one_process_are_subtracted() {
        let before = read(recorded(100, 10).path(), 4711);
        let after = read(recorded(350, 210).path(), 4711);
        let (before, after) = (before.unwrap(), after.unwrap());
        assert_eq!(before.of("halt_wait_ns"), 0, "a vCPU's own figures are no exits");
        let used = after.since(&before);
        assert_eq!((used.of("exits"), reasons(&used)), (250, vec![("io_exits", 200)]));
        // Going back in time is not negative.
        assert_eq!(before.since(&after).of("exits"), 0);
    }

    #[test]
    fn missing_kvm_or_machine_has_reason() {
        let dir = recorded(1, 1);
        assert!(read(dir.path(), 471).unwrap_err().contains("no virtual machine of process 471"));
        let nowhere = dir.path().join("nowhere");
        assert!(read(&nowhere, 1).unwrap_err().contains("debugfs"));
    }
}
