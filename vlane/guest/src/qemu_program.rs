//! The QEMU of this machine: where it is, and how its command line is read.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::kernel::release;
use crate::process::run_ok;

/// An installed QEMU.
#[derive(Debug, Clone)]
pub struct QemuProgram {
    /// Where it is.
    pub path: PathBuf,
    /// Major and minor version: options change their names.
    pub version: (u32, u32),
}

impl QemuProgram {
    /// The `qemu-system-x86_64` of this machine, installed if that was allowed.
    pub fn find(host: &Host) -> Result<Self> {
        Self::at(&host.program("qemu-system-x86_64")?)
    }

    /// A `qemu-system-x86_64` that the caller knows.
    pub fn at(path: &Path) -> Result<Self> {
        let text = run_ok(Command::new(path).arg("--version"), Duration::from_secs(30))?;
        let version = parse_version(&text).ok_or_else(|| {
            Error::new(
                ErrorKind::Format,
                format!("{}: no version in its answer: {text}", path.display()),
            )
        })?;
        Ok(Self { path: path.to_path_buf(), version })
    }

    /// The firmware that a `q35` machine with only virtio disks loads. Another machine needs it to
    /// run this QEMU, beside its libraries. QEMU looks for it at the same paths there.
    pub fn firmware(&self) -> Result<Vec<PathBuf>> {
        let said = run_ok(Command::new(&self.path).args(["-L", "help"]), Duration::from_secs(30))?;
        let directories: Vec<&Path> = said.lines().map(|line| Path::new(line.trim())).collect();
        let find = |name: &&str| {
            directories.iter().map(|dir| dir.join(name)).find(|path| path.is_file()).ok_or_else(
                || {
                    let places = said.trim().replace('\n', ", ");
                    Error::new(
                        ErrorKind::Missing,
                        format!(
                            "{}: no {name} in {places}; on Debian: apt-get install seabios",
                            self.path.display()
                        ),
                    )
                },
            )
        };
        FIRMWARE.iter().map(find).collect()
    }
}

/// The BIOS, what starts a `vmlinux` and a `vmlinuz`, and what spares a guest under KVM some exits.
const FIRMWARE: [&str; 4] = ["bios-256k.bin", "pvh.bin", "linuxboot_dma.bin", "kvmvapic.bin"];

fn parse_version(text: &str) -> Option<(u32, u32)> {
    release(text.split("version ").nth(1)?)
}

/// QEMU reads `,,` in an option's value as a comma.
pub(crate) fn escape_commas(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_qemu() {
        assert_eq!(
            parse_version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright"),
            Some((7, 2))
        );
        assert_eq!(parse_version("QEMU emulator version 10.0.2"), Some((10, 0)));
        assert_eq!(parse_version("something else"), None);
    }
}
