//! A Linux kernel for QEMU guests: from the cache, from /boot, or from Debian's packages (never
//! installed).

use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result, io};
use crate::host::{AptSource, Host};
use crate::modules::Modules;
use crate::vmlinux;

/// The kernel that Debian makes for cloud guests: small, virtio as modules.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// The name of the unpacked package in the cache.
const ENTRY: &str = "guest-kernel";

/// Debian's suite with kernels that have sched_ext, and which of them: the first that is there. The
/// first one is what the sched_ext vehicle is measured on; another version still tells whether it
/// works.
const SCHED_EXT_SUITE: &str = "trixie-backports";
const SCHED_EXT_PACKAGES: [&str; 2] = ["linux-image-6.18.15+deb13-cloud-amd64", PACKAGE];
const SCHED_EXT_ENTRY: &str = "guest-kernel-sched-ext";

/// From this version on, KVM on an emulated AMD CPU wrongly believes that it was delivering an
/// event. It then refuses to emulate the instruction, and stops the guest ("KVM internal error.
/// Suberror: 3").
const NESTED_KVM_BEFORE: (u32, u32) = (6, 14);
/// Debian's suite with a kernel before that one.
const NESTED_KVM_SUITE: &str = "trixie";
const NESTED_KVM_ENTRY: &str = "guest-kernel-kvm";

/// A kernel that guests can be booted with.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// File for QEMU's `-kernel`: an uncompressed `vmlinux` if it could be unpacked, the `vmlinuz`
    /// otherwise.
    pub image: PathBuf,
    /// As `uname -r` says it.
    pub version: String,
    /// Its modules.
    pub modules: Modules,
    /// Why the compressed image is used, when it is.
    pub compressed_because: Option<String>,
}

impl Kernel {
    /// A kernel with virtio: the one in the cache, else one of this host's, else Debian's,
    /// downloaded into the cache.
    pub fn find(host: &Host) -> Result<Self> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(Error::new(
                ErrorKind::Missing,
                "a guest's kernel is only looked for on x86-64; give one with --kernel",
            ));
        }
        if let Some(kernel) = Self::cached(host).or_else(|| Self::of_this_host(host)) {
            return Ok(kernel);
        }
        host.may_download(
            "a kernel for the guest",
            &format!("give one with --kernel, or on Debian: apt-get install {PACKAGE}"),
        )?;
        let entry = host.cache().entry(ENTRY, |directory| download(host, directory))?;
        Self::unpacked(&entry)
    }

    /// A kernel with sched_ext (`CONFIG_SCHED_CLASS_EXT`, 6.12 and later) and BTF: the one in the
    /// cache, else Debian's, downloaded into the cache.
    pub fn with_sched_ext(host: &Host) -> Result<Self> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(Error::new(
                ErrorKind::Missing,
                "a kernel with sched_ext is only looked for on x86-64",
            ));
        }
        let what = "a kernel with sched_ext for the guest";
        let instead = format!("{} of Debian's {SCHED_EXT_SUITE} is one", SCHED_EXT_PACKAGES[0]);
        let asked = (what, &*instead);
        Self::of_suite(host, SCHED_EXT_ENTRY, SCHED_EXT_SUITE, &SCHED_EXT_PACKAGES, asked)
    }

    /// A kernel whose KVM works on a CPU that QEMU emulates: that of [`Kernel::find`] if it
    /// qualifies, else Debian's, in the cache or downloaded into it.
    pub fn for_nested_kvm(host: &Host) -> Result<Self> {
        if let Ok(kernel) = Self::find(host)
            && kernel.has_nested_kvm()
        {
            return Ok(kernel);
        }
        let (major, minor) = NESTED_KVM_BEFORE;
        let instead = format!(
            "{PACKAGE} of Debian's {NESTED_KVM_SUITE} is one, or any with kvm-amd before Linux \
             {major}.{minor}"
        );
        let asked = ("a kernel with KVM for the guest", &*instead);
        Self::of_suite(host, NESTED_KVM_ENTRY, NESTED_KVM_SUITE, &[PACKAGE], asked)
    }

    fn has_nested_kvm(&self) -> bool {
        self.modules.has("kvm_amd") && release(&self.version).is_some_and(|r| r < NESTED_KVM_BEFORE)
    }

    /// The kernel that the cache has under this name, else the first of these packages that a suite
    /// of Debian's has. A refusal to download names the object and an alternative.
    fn of_suite(
        host: &Host,
        entry: &str,
        suite: &str,
        packages: &[&str],
        (what, instead): (&str, &str),
    ) -> Result<Self> {
        if let Ok(kernel) = Self::unpacked(&host.cache().path(entry)) {
            return Ok(kernel);
        }
        host.may_download(what, instead)?;
        let entry = host.cache().entry(entry, |directory| {
            let state =
                tempfile::tempdir().map_err(io(|| "no temporary directory for package lists"))?;
            let apt = AptSource::debian(host, state.path(), suite, false)?;
            let mut unavailable = Ok(());
            for package in packages {
                let packages = match *package {
                    PACKAGE => kernel_packages(&apt)?,
                    exact => vec![exact.to_string()],
                };
                match host.unpack_packages(&apt, &packages, directory) {
                    Ok(()) => return take_out(directory),
                    Err(e) => unavailable = Err(e),
                }
            }
            unavailable
        })?;
        Self::unpacked(&entry)
    }

    /// The downloaded kernel, if there is one in the cache.
    pub fn cached(host: &Host) -> Option<Self> {
        Self::unpacked(&host.cache().path(ENTRY)).ok()
    }

    /// A kernel whose parts the caller knows. The uncompressed image is taken out of it and kept in
    /// the cache.
    pub fn at(host: &Host, vmlinuz: &Path, modules: Modules, version: &str) -> Result<Self> {
        let changed = std::fs::metadata(vmlinuz)
            .and_then(|m| m.modified())
            .map_err(io(|| format!("{}: the kernel cannot be read", vmlinuz.display())))?;
        let stamp = changed.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let extracted = host
            .cache()
            .entry(&format!("vmlinux-{version}-{stamp:x}"), |dir| uncompress(vmlinuz, dir));
        let (image, compressed_because) = match extracted {
            Ok(dir) => (dir.join("vmlinux"), None),
            Err(e) => (vmlinuz.to_path_buf(), Some(e.to_string())),
        };
        Ok(Self { image, version: version.to_string(), modules, compressed_because })
    }

    /// A kernel in /boot that is readable, has its modules installed and knows virtio-blk; small
    /// ones first.
    fn of_this_host(host: &Host) -> Option<Self> {
        let mut found: Vec<(String, PathBuf)> = std::fs::read_dir("/boot")
            .ok()?
            .flatten()
            .filter_map(|e| {
                Some((e.file_name().to_str()?.strip_prefix("vmlinuz-")?.to_string(), e.path()))
            })
            .filter(|(_, path)| std::fs::File::open(path).is_ok())
            .collect();
        found.sort_by_key(|(version, _)| (!version.contains("cloud"), version.clone()));
        found.into_iter().find_map(|(version, vmlinuz)| {
            let modules = Modules::at(Path::new("/lib/modules").join(&version)).ok()?;
            let usable = ["virtio_pci", "virtio_blk", "ext4"].iter().all(|m| modules.has(m));
            if usable { Self::at(host, &vmlinuz, modules, &version).ok() } else { None }
        })
    }

    /// The downloaded kernel in the cache.
    fn unpacked(entry: &Path) -> Result<Self> {
        let (modules, version) = modules_directory(entry)?;
        let vmlinux = entry.join("vmlinux");
        let (image, compressed_because) = if vmlinux.exists() {
            (vmlinux, None)
        } else {
            let why = std::fs::read_to_string(entry.join("why-compressed")).unwrap_or_default();
            (compressed_image(entry, &modules, &version)?, Some(why))
        };
        Ok(Self { image, version, modules: Modules::at(modules)?, compressed_because })
    }
}

/// Major and minor number of what `uname -r` says.
pub(crate) fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Fetches Debian's package into `directory` and takes the uncompressed kernel out.
fn download(host: &Host, directory: &Path) -> Result<()> {
    let apt = AptSource::default();
    let mut packages = kernel_packages(&apt)?;
    if packages.is_empty() {
        host.refresh_system_lists();
        packages = kernel_packages(&apt)?;
    }
    if packages.is_empty() {
        return Err(Error::new(
            ErrorKind::Install,
            format!(
                "{PACKAGE}: this machine's package lists do not have it; run apt-get update, or \
                 give a kernel with --kernel"
            ),
        ));
    }
    host.unpack_packages(&apt, &packages, directory)?;
    take_out(directory)
}

/// Takes the uncompressed kernel out of an unpacked package.
fn take_out(directory: &Path) -> Result<()> {
    let (modules, version) = modules_directory(directory)?;
    let vmlinuz = compressed_image(directory, &modules, &version)?;
    if let Err(e) = uncompress(&vmlinuz, directory) {
        // The guest can still unpack it itself, it only takes longer.
        std::fs::write(directory.join("why-compressed"), e.to_string())
            .map_err(io(|| format!("{}: cannot be written", directory.display())))?;
    }
    Ok(())
}

/// The packages with the kernel and its modules: newer Debian releases split them.
fn kernel_packages(apt: &AptSource) -> Result<Vec<String>> {
    let parts = |name: &str| {
        ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"]
            .iter()
            .any(|p| name.starts_with(p))
    };
    let mut packages = apt.dependencies(PACKAGE, parts)?;
    for package in packages.clone() {
        packages.extend(apt.dependencies(&package, parts)?);
    }
    packages.sort();
    packages.dedup();
    Ok(packages)
}

/// Puts `vmlinux` into `directory`.
fn uncompress(vmlinuz: &Path, directory: &Path) -> Result<()> {
    let elf = vmlinux::extract(vmlinuz)?;
    let to = directory.join("vmlinux");
    std::fs::write(&to, elf).map_err(io(|| format!("{}: cannot be written", to.display())))
}

/// The one directory of modules in an unpacked package, and the kernel's version.
fn modules_directory(unpacked: &Path) -> Result<(PathBuf, String)> {
    for base in ["usr/lib/modules", "lib/modules"] {
        let Ok(mut versions) = std::fs::read_dir(unpacked.join(base)) else { continue };
        if let Some(Ok(version)) = versions.next() {
            return Ok((version.path(), version.file_name().to_string_lossy().into_owned()));
        }
    }
    Err(Error::new(
        ErrorKind::Format,
        format!(
            "{}: no kernel modules in the unpacked package; delete the directory and try again",
            unpacked.display()
        ),
    ))
}

fn compressed_image(unpacked: &Path, modules: &Path, version: &str) -> Result<PathBuf> {
    let places = [unpacked.join(format!("boot/vmlinuz-{version}")), modules.join("vmlinuz")];
    places.iter().find(|p| p.exists()).cloned().ok_or_else(|| {
        Error::new(
            ErrorKind::Format,
            format!(
                "{}: no vmlinuz in the unpacked package; delete the directory and try again",
                unpacked.display()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn kernel(version: &str, module: &str) -> Kernel {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(format!("{module}.ko")), "").unwrap();
        let modules = Modules::at(dir.path()).unwrap();
        Kernel { image: "/k".into(), version: version.into(), modules, compressed_because: None }
    }

    #[test]
    fn nested_kvm_needs_amd_module_and_older_kernel() {
        for version in ["6.1.0-56-cloud-amd64", "6.12.48+deb13-cloud-amd64", "5.15.0-generic"] {
            assert!(kernel(version, "kvm-amd").has_nested_kvm(), "{version}");
            assert!(!kernel(version, "kvm-intel").has_nested_kvm(), "{version}");
        }
        for version in ["6.14.0", "6.18.15+deb13-cloud-amd64", "7.0.1", "custom"] {
            assert!(!kernel(version, "kvm-amd").has_nested_kvm(), "{version}");
        }
    }
}
