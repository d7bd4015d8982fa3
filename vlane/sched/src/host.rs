//! Properties of this host's kernel, and the rights of this process. `root` is `/`, except in
//! tests.

use std::fs;
use std::path::Path;

/// The inode of the first pid namespace (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The kernel's release as it calls itself, and its version.
pub fn kernel(root: &Path) -> (String, (u32, u32)) {
    let release = fs::read_to_string(root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
    let release = release.trim().to_string();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (release, version)
}

/// Returns those of these capabilities that this process lacks; none if the kernel does not tell.
pub fn missing_capabilities(root: &Path, wanted: &[(&'static str, u32)]) -> Vec<&'static str> {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(bits) = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()) else {
        return Vec::new();
    };
    wanted.iter().filter(|(_, bit)| bits & (1 << bit) == 0).map(|(name, _)| *name).collect()
}

/// Returns true if process ids here equal the kernel's, or if the kernel does not say.
pub fn in_first_pid_namespace(root: &Path) -> bool {
    fs::read_link(root.join("proc/self/ns/pid"))
        .map_or(true, |name| name.as_os_str() == FIRST_PID_NAMESPACE)
}
