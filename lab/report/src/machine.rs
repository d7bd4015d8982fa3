//! The machine that figures were measured on: what it is, what images lay on, what else it did, and
//! which commit the program is of.

mod load;
pub mod others;
mod storage;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

use vlane_error::program::{Error, ErrorKind, Result};

pub use load::{Busy, Load};
pub use storage::{Storage, images_in};

/// Description of the machine for a reader. It names neither a host nor a user.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// The virtual machine monitor that it runs under, if it tells: `kvm`, `xen`, ...; empty on
    /// bare metal.
    #[serde(default)]
    pub hypervisor: String,
    /// The commit that vlane was built from, followed by `+` if files had been changed since; empty
    /// if the build did not get it.
    #[serde(default)]
    pub commit: String,
    /// Storage below the measured images; empty if there were none.
    #[serde(default)]
    pub storage: Vec<Storage>,
    /// Other load of the machine.
    #[serde(default)]
    pub load: Option<Load>,
    /// Programs that took part, with their versions, vlane first.
    pub versions: Vec<(String, String)>,
}

impl Machine {
    /// This machine, vlane's version, and the versions of those of `programs` that are installed
    /// (they are asked with `--version`).
    ///
    /// Unknown facts are left empty: a report without them is still a report. No fact needs root.
    pub fn describe(programs: &[&str]) -> Self {
        let mut versions = vec![("vlane".to_string(), env!("CARGO_PKG_VERSION").to_string())];
        for program in programs {
            if let Some(version) = version_of(program) {
                versions.push(((*program).to_string(), version));
            }
        }
        let commit = COMMIT.get().cloned().unwrap_or_default();
        Self { versions, commit, storage: storage::seen(), ..Self::at(Path::new("/")) }
    }

    /// Facts from the files below `root` (a machine's own are below `/`).
    fn at(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let cpuinfo = read("proc/cpuinfo");
        Self {
            cpu: cpu_name(&cpuinfo, &read("proc/device-tree/model")),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_mib: memory_mib(&read("proc/meminfo")),
            kernel: read("proc/sys/kernel/osrelease").trim().to_string(),
            hypervisor: hypervisor(root, &cpuinfo),
            ..Self::default()
        }
    }
}

static COMMIT: OnceLock<String> = OnceLock::new();

/// Says which commit the program was built from; the first time counts.
pub fn built_from(commit: Option<&str>) {
    if let Some(commit) = commit {
        let _ = COMMIT.set(commit.trim().to_owned());
    }
}

/// The CPUs that this process may use.
///
/// # Errors
/// [`ErrorKind::Io`] if the kernel does not tell.
pub fn usable_cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None)
        .map_err(|e| Error::caused_by(ErrorKind::Io, "cannot ask for the usable CPUs", e))?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// The value of a `key : value` line.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim())
        .filter(|value| !value.is_empty())
}

/// The processor's name, from cpuinfo (x86 has one; arm64 has numbers) and the device tree's model.
fn cpu_name(cpuinfo: &str, model: &str) -> String {
    if let Some(name) = field(cpuinfo, "model name").or_else(|| field(cpuinfo, "Model")) {
        return name.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    let number = |key| {
        let text = field(cpuinfo, key)?;
        u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    };
    if let (Some(implementer), Some(part)) = (number("CPU implementer"), number("CPU part")) {
        return arm_name(implementer, part);
    }
    let model = model.trim_matches(['\0', ' ', '\n']);
    if model.is_empty() { std::env::consts::ARCH.to_string() } else { model.to_string() }
}

/// The name of an arm64 core: the implementer and part numbers of MIDR_EL1, as `lscpu` has them.
fn arm_name(implementer: u32, part: u32) -> String {
    let name = match (implementer, part) {
        (0x41, 0xd03) => "ARM Cortex-A53",
        (0x41, 0xd07) => "ARM Cortex-A57",
        (0x41, 0xd08) => "ARM Cortex-A72",
        (0x41, 0xd0b) => "ARM Cortex-A76",
        (0x41, 0xd0c) => "ARM Neoverse-N1",
        (0x41, 0xd40) => "ARM Neoverse-V1",
        (0x41, 0xd49) => "ARM Neoverse-N2",
        (0x41, 0xd4f) => "ARM Neoverse-V2",
        (0x48, 0xd01) => "HiSilicon TaiShan v110",
        (0x61, _) => "Apple silicon",
        (0xc0, 0xac3) => "Ampere-1",
        (0xc0, 0xac4) => "Ampere-1a",
        _ => return format!("arm64 implementer {implementer:#04x} part {part:#05x}"),
    };
    name.to_string()
}

fn memory_mib(meminfo: &str) -> u64 {
    let kib = field(meminfo, "MemTotal")
        .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

/// The virtual machine monitor below, from public files of the kernel: Xen's directory, the
/// firmware's strings, the paravirtual clocks, the device tree. The processor's flag says only that
/// there is one.
fn hypervisor(root: &Path, cpuinfo: &str) -> String {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    if cpuinfo.contains("User Mode Linux") {
        return "uml".into();
    }
    let told = read("sys/hypervisor/type");
    if !told.trim().is_empty() {
        return told.trim().to_string();
    }
    let under = field(cpuinfo, "flags")
        .is_some_and(|flags| flags.split_whitespace().any(|f| f == "hypervisor"));
    let firmware = ["sys_vendor", "product_name", "bios_vendor"]
        .map(|name| read(&format!("sys/class/dmi/id/{name}")))
        .join(" ");
    let tree = read("proc/device-tree/hypervisor/compatible");
    let clocks = read("sys/devices/system/clocksource/clocksource0/available_clocksource");
    let known = [
        ("VMware", "vmware"),
        ("innotek", "virtualbox"),
        ("VirtualBox", "virtualbox"),
        ("Microsoft Corporation Virtual Machine", "hyper-v"),
        ("Parallels", "parallels"),
        ("BHYVE", "bhyve"),
        ("Xen", "xen"),
        ("kvm-clock", "kvm"),
        ("hyperv_clocksource", "hyper-v"),
        ("linux,kvm", "kvm"),
        ("KVM", "kvm"),
        ("Google Compute Engine", "kvm"),
        ("Amazon EC2", "kvm"),
        ("OpenStack", "kvm"),
        ("QEMU", "qemu"),
    ];
    let all = format!("{firmware} {tree} {clocks}");
    // Firmware strings name real machines of the same makers too: on x86 the flag decides.
    let x86 = field(cpuinfo, "flags").is_some();
    if x86 && !under {
        return String::new();
    }
    match known.iter().find(|(mark, _)| all.contains(mark)) {
        Some((_, name)) => (*name).to_string(),
        None if under => "unknown".into(),
        None => String::new(),
    }
}

/// The version that an installed program tells; `None` if it is not there or tells none.
pub fn version_of(program: &str) -> Option<String> {
    // Some are where only root's PATH leads.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/local/sbin:/usr/sbin:/sbin";
    let output = Command::new(program)
        .env("PATH", path)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    find_version(&String::from_utf8_lossy(&text))
}

/// The first word that is a version in a text: `7.2.22` of
/// `QEMU emulator version 7.2.22 (Debian ...)`, `3.33` of `fio-3.33`.
fn find_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| !line.trim().is_empty())?;
    let words = line.split(|c: char| c.is_whitespace() || matches!(c, '-' | '(' | ')' | ','));
    let version = words.map(|word| word.strip_prefix('v').unwrap_or(word)).find(|word| {
        word.starts_with(|c: char| c.is_ascii_digit())
            && word.contains('.')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || ".+~".contains(c))
    })?;
    Some(version.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn a_virtual_x86_machine() {
        let dir = files(&[
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: AMD  EPYC   9R14\nflags\t\t: fpu vme hypervisor\n",
            ),
            ("proc/meminfo", "MemTotal:       24689452 kB\nMemFree: 1 kB\n"),
            ("proc/sys/kernel/osrelease", "6.18.1-cloud\n"),
            (
                "sys/devices/system/clocksource/clocksource0/available_clocksource",
                "tsc kvm-clock \n",
            ),
        ]);
        let machine = Machine::at(dir.path());
        assert_eq!(machine.cpu, "AMD EPYC 9R14");
        assert_eq!((machine.memory_mib, machine.kernel.as_str()), (24110, "6.18.1-cloud"));
        assert_eq!(machine.hypervisor, "kvm");
        assert!(machine.cpus >= 1);
    }

    /// The maker's name may be that of a hypervisor.
    #[test]
    fn bare_metal_names_no_hypervisor() {
        let cpuinfo = "model name\t: Intel(R) Xeon(R)\nflags\t\t: fpu vme\n";
        let dir =
            files(&[("sys/class/dmi/id/sys_vendor", "Xen Makers Inc."), ("proc/cpuinfo", cpuinfo)]);
        assert_eq!(Machine::at(dir.path()).hypervisor, "");
        let told = files(&[("sys/hypervisor/type", "xen\n"), ("proc/cpuinfo", cpuinfo)]);
        assert_eq!(Machine::at(told.path()).hypervisor, "xen");
    }

    #[test]
    fn arm64_machine_is_named_by_numbers() {
        let cpuinfo = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        let dir = files(&[
            ("proc/cpuinfo", cpuinfo),
            ("proc/device-tree/hypervisor/compatible", "linux,kvm\0"),
        ]);
        let machine = Machine::at(dir.path());
        assert_eq!((machine.cpu.as_str(), machine.hypervisor.as_str()), ("ARM Neoverse-N1", "kvm"));
        assert_eq!(arm_name(0x99, 0x12), "arm64 implementer 0x99 part 0x012");
    }

    #[test]
    fn machine_without_files_is_described_partly() {
        let machine = Machine::at(Path::new("/does/not/exist"));
        assert_eq!((machine.cpu.as_str(), machine.memory_mib), (std::env::consts::ARCH, 0));
    }

    #[test]
    fn versions_are_found_in_output() {
        for (text, version) in [
            ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright", Some("7.2.22")),
            ("fio-3.33\n", Some("3.33")),
            ("qemu-storage-daemon version 10.0.3", Some("10.0.3")),
            ("bpftrace v0.17.0", Some("0.17.0")),
            ("no version at all", None),
            ("", None),
        ] {
            assert_eq!(find_version(text).as_deref(), version, "{text}");
        }
        assert_eq!(version_of("a-program-that-nobody-has"), None);
        let this = Machine::describe(&["a-program-that-nobody-has"]);
        assert_eq!(this.versions, [("vlane".to_string(), env!("CARGO_PKG_VERSION").to_string())]);
    }
}
