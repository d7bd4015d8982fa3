//! Checks if this kernel, this user and this program can watch eventfds. The check changes no
//! state.

use std::path::Path;

use vlane_sched::host;
use vlane_sched::{Error, ErrorKind, Result};

/// From this version on the kernel's own signals all go through one function.
const SINCE: (u32, u32) = (6, 8);
/// Capabilities for loading tracing programs, and for reading the open files of another user's
/// process; the numbers are those of `include/uapi/linux/capability.h`.
const CAPABILITIES: [(&str, u32); 3] =
    [("CAP_BPF", 39), ("CAP_PERFMON", 38), ("CAP_SYS_PTRACE", 19)];

pub(crate) const NOT_BUILT: &str = "watching I/O: this vlane was built without it; build it with \
                                    `cargo build --features bpf` (needs make, pkg-config, \
                                    libelf-dev and zlib1g-dev)";

/// Checks if I/O can be watched here, as far as can be seen without trying.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] or [`ErrorKind::Permission`]: what is missing, and what to do.
pub fn probe() -> Result<()> {
    if cfg!(not(feature = "bpf")) {
        return Err(Error::new(ErrorKind::Unsupported, NOT_BUILT));
    }
    probe_in(Path::new("/"))
}

fn probe_in(root: &Path) -> Result<()> {
    let no = |kind, text: String| {
        Err(Error::new(kind, format!("watching I/O: {text}; no setting was changed")))
    };
    let (release, version) = host::kernel(root);
    if version < SINCE {
        return no(
            ErrorKind::Unsupported,
            format!("it takes Linux {}.{} or later, and this is {release}", SINCE.0, SINCE.1),
        );
    }
    if !root.join("sys/kernel/btf/vmlinux").exists() {
        return no(
            ErrorKind::Unsupported,
            "this kernel does not describe its types (no /sys/kernel/btf/vmlinux); it takes one \
             built with CONFIG_DEBUG_INFO_BTF=y"
                .into(),
        );
    }
    let missing = host::missing_capabilities(root, &CAPABILITIES);
    if !missing.is_empty() {
        return no(
            ErrorKind::Permission,
            format!(
                "it needs {}; run vlane as root, or give it the capabilities (systemd: \
                 AmbientCapabilities=)",
                missing.join(", ")
            ),
        );
    }
    if !host::in_first_pid_namespace(root) {
        return no(
            ErrorKind::Unsupported,
            "this process is in a separate PID namespace (a container), with other process IDs \
             than the kernel's; run vlane in the host's pid namespace (docker: --pid=host)"
                .into(),
        );
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn told(files: &[(&str, &str)]) -> (ErrorKind, String) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        match probe_in(dir.path()) {
            Ok(()) => (ErrorKind::Io, String::new()),
            Err(error) => (error.kind(), error.to_string()),
        }
    }

    #[test]
    fn missing_requirement_is_named() {
        const RELEASE: (&str, &str) = ("proc/sys/kernel/osrelease", "6.18.15-amd64\n");
        const TYPES: (&str, &str) = ("sys/kernel/btf/vmlinux", "");
        let (kind, text) = told(&[("proc/sys/kernel/osrelease", "6.1.0-40-amd64\n")]);
        assert!(
            kind == ErrorKind::Unsupported && text.contains("6.8") && text.contains("6.1.0-40"),
            "{text}"
        );
        let (kind, text) = told(&[RELEASE]);
        assert!(kind == ErrorKind::Unsupported && text.contains("CONFIG_DEBUG_INFO_BTF"), "{text}");
        let (kind, text) =
            told(&[RELEASE, TYPES, ("proc/self/status", "CapEff:\t0000008000000000\n")]);
        assert_eq!(kind, ErrorKind::Permission);
        assert!(text.contains("needs CAP_PERFMON, CAP_SYS_PTRACE;"), "{text}");
        let (_, text) =
            told(&[RELEASE, TYPES, ("proc/self/status", "CapEff:\t000001ffffffffff\n")]);
        assert_eq!(text, "");
    }
}
