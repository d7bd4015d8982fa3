//! Checks if this kernel has sched_ext, if it is free, and if this user may load it. The check
//! changes no state.

use std::fs;
use std::path::Path;

use crate::host;
use crate::{Error, ErrorKind, Result};

/// The first kernel with sched_ext.
const SINCE: (u32, u32) = (6, 12);
/// Capabilities for loading, with the numbers in `include/uapi/linux/capability.h`. The struct_ops
/// programs of a scheduler need the first three; giving another user's thread to it needs the last.
const CAPABILITIES: [(&str, u32); 4] =
    [("CAP_BPF", 39), ("CAP_PERFMON", 38), ("CAP_NET_ADMIN", 12), ("CAP_SYS_NICE", 23)];

/// The contents of `/sys/kernel/sched_ext/state`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// This kernel has no sched_ext.
    Missing,
    /// No scheduler is loaded.
    Disabled,
    /// A scheduler is loaded, or about to come or to go.
    Busy {
        /// `enabled`, `enabling` or `disabling`.
        state: String,
        /// The scheduler's name, if the kernel tells it.
        ops: String,
    },
}

impl Presence {
    /// In words, for people.
    pub const fn words(&self) -> &'static str {
        match self {
            Self::Missing => {
                "this kernel has no sched_ext (/sys/kernel/sched_ext is not there; Linux 6.12 with \
                 CONFIG_SCHED_CLASS_EXT has it)"
            }
            Self::Disabled => "this kernel has sched_ext, and it is unused",
            Self::Busy { .. } => {
                "another sched_ext scheduler is loaded (/sys/kernel/sched_ext/state); it is left \
                 alone"
            }
        }
    }
}

/// The state of sched_ext on this machine.
pub fn state() -> Presence {
    state_in(Path::new("/"))
}

fn state_in(root: &Path) -> Presence {
    let at = root.join("sys/kernel/sched_ext");
    let Ok(state) = fs::read_to_string(at.join("state")) else { return Presence::Missing };
    match state.trim() {
        "disabled" => Presence::Disabled,
        state => {
            let ops =
                fs::read_to_string(at.join("root/ops")).unwrap_or_default().trim().to_string();
            Presence::Busy { state: state.to_string(), ops }
        }
    }
}

/// Checks if the vehicle can be loaded now.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] or [`ErrorKind::Permission`]: what is missing, how to check it, and
/// what to do.
pub fn probe() -> Result<()> {
    probe_in(Path::new("/"))
}

fn probe_in(root: &Path) -> Result<()> {
    let unsupported =
        |text: String| Err(Error::new(ErrorKind::Unsupported, format!("sched_ext: {text}")));
    match state_in(root) {
        Presence::Missing => return unsupported(no_kernel(root)),
        Presence::Disabled => {}
        Presence::Busy { state, ops } => {
            let name = if ops.is_empty() {
                "another scheduler".into()
            } else {
                format!("the scheduler {ops:?}")
            };
            return unsupported(format!(
                "{name} is loaded already ({state}), and a kernel has one at a time; end the \
                 program that loaded it (/sys/kernel/sched_ext/root/ops has its name), or take \
                 the other vehicle: --vehicle realtime"
            ));
        }
    }
    if !root.join("sys/kernel/btf/vmlinux").exists() {
        return unsupported(
            "this kernel does not describe its types (no /sys/kernel/btf/vmlinux), so no \
             scheduler can be loaded; it takes a kernel built with CONFIG_DEBUG_INFO_BTF=y"
                .into(),
        );
    }
    let missing = host::missing_capabilities(root, &CAPABILITIES);
    if !missing.is_empty() {
        return Err(Error::new(
            ErrorKind::Permission,
            format!(
                "sched_ext: loading a scheduler and giving threads to it needs {}; run vlane as \
                 root, or give it the capabilities (systemd: AmbientCapabilities=)",
                missing.join(", ")
            ),
        ));
    }
    if !host::in_first_pid_namespace(root) {
        return unsupported(
            "this process is in a separate PID namespace (a container), with other thread IDs \
             than the kernel's; run vlane in the host's pid namespace (docker: --pid=host)"
                .into(),
        );
    }
    Ok(())
}

fn no_kernel(root: &Path) -> String {
    let (release, version) = host::kernel(root);
    let why = if version < SINCE {
        "it came with Linux 6.12".to_string()
    } else {
        "it was built without CONFIG_SCHED_CLASS_EXT=y (check: zgrep SCHED_CLASS_EXT \
         /proc/config.gz, or grep SCHED_CLASS_EXT /boot/config-$(uname -r))"
            .to_string()
    };
    format!(
        "this kernel, {release}, does not have it (no /sys/kernel/sched_ext): {why}; take a \
         kernel that has it, or the vehicle that any kernel carries: --vehicle realtime"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ALL: &str = "Name:\tx\nCapEff:\t000001ffffffffff\n";

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn told(files: &[(&str, &str)]) -> (ErrorKind, String) {
        let error = probe_in(machine(files).path()).unwrap_err();
        (error.kind(), error.to_string())
    }

    #[test]
    fn kernel_state_is_parsed() {
        let state = |text| ("sys/kernel/sched_ext/state", text);
        assert_eq!(state_in(machine(&[]).path()), Presence::Missing);
        assert_eq!(state_in(machine(&[state("disabled\n")]).path()), Presence::Disabled);
        let busy = Presence::Busy { state: "enabled".into(), ops: String::new() };
        assert_eq!(state_in(machine(&[state("enabled\n")]).path()), busy);
    }

    #[test]
    fn missing_support_differs_from_old_kernel() {
        let (kind, text) = told(&[("proc/sys/kernel/osrelease", "6.1.0-40-amd64\n")]);
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(
            text.contains("6.1.0-40-amd64") && text.contains("6.12") && text.contains("realtime"),
            "{text}"
        );
        let (_, text) = told(&[("proc/sys/kernel/osrelease", "6.18.44-x\n")]);
        assert!(text.contains("CONFIG_SCHED_CLASS_EXT") && !text.contains("came with"), "{text}");
    }

    #[test]
    fn another_scheduler_is_named() {
        let (_, text) = told(&[
            ("sys/kernel/sched_ext/state", "enabled\n"),
            ("sys/kernel/sched_ext/root/ops", "lavd_1.0\n"),
        ]);
        assert!(text.contains("\"lavd_1.0\"") && text.contains("enabled"), "{text}");
    }

    #[test]
    fn missing_types_and_privileges_are_named() {
        let (_, text) =
            told(&[("sys/kernel/sched_ext/state", "disabled\n"), ("proc/self/status", ALL)]);
        assert!(text.contains("CONFIG_DEBUG_INFO_BTF"), "{text}");
        let (kind, text) = told(&[
            ("sys/kernel/sched_ext/state", "disabled\n"),
            ("sys/kernel/btf/vmlinux", ""),
            ("proc/self/status", "CapEff:\t0000008000000000\n"),
        ]);
        assert_eq!(kind, ErrorKind::Permission);
        assert!(
            text.contains("CAP_PERFMON, CAP_NET_ADMIN, CAP_SYS_NICE") && !text.contains("CAP_BPF"),
            "{text}"
        );
    }

    #[test]
    fn complete_host_is_accepted() {
        let machine = machine(&[
            ("sys/kernel/sched_ext/state", "disabled\n"),
            ("sys/kernel/btf/vmlinux", ""),
            ("proc/self/status", ALL),
        ]);
        probe_in(machine.path()).unwrap();
    }
}
