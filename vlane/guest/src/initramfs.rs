//! A guest's root: busybox, the modules for its disk, programs of the host with their libraries,
//! and a script.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::{NamedTempFile, TempPath};

use crate::cpio::Archive;
use crate::error::{Error, ErrorKind, Result, io};
use crate::host::Host;
use crate::modules::Modules;
use crate::process::run;

/// Prepares the guest, runs the script, says how it ended and powers off.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin HOME=/root TERM=dumb LC_ALL=C
while read -r module; do
    insmod "/lib/modules/$module.ko" || echo "RESULT module_failed=$module"
done < /lib/modules/order
sh /guest.sh
echo "RESULT script=$?"
sync
poweroff -f
"#;

/// Loaded when the kernel has them and ext4 is a module: ext4 asks for a CRC32C by name, not by
/// symbol.
const CHECKSUMS: [&str; 2] = ["crc32c_generic", "crc32c_intel"];

/// Contents of a guest. The same one serves QEMU and User-Mode Linux.
///
/// busybox's `sh` runs the script as root, with `/dev/vda` as the served volume, `/mnt` as an empty
/// directory, and every requested program in PATH. The script reports by lines `RESULT key=value`.
/// The guest prints `RESULT script=N` with the script's exit status, and powers off.
#[derive(Debug, Clone)]
pub struct Initramfs {
    script: String,
    programs: BTreeSet<String>,
    programs_at: Vec<(String, PathBuf)>,
    modules: Vec<String>,
    files: Vec<(String, u32, Vec<u8>)>,
}

impl Initramfs {
    /// A guest that runs `script`.
    pub fn new(script: impl Into<String>) -> Self {
        Self {
            script: script.into(),
            programs: BTreeSet::new(),
            programs_at: Vec::new(),
            modules: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Programs of the host that the guest shall have, by name: `fio`, `mkfs.ext4`, ...
    pub fn programs<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.programs.extend(names.into_iter().map(str::to_string));
        self
    }

    /// A program that the caller knows, with its libraries, under a name of the caller's.
    pub fn program_at(mut self, name: &str, path: impl Into<PathBuf>) -> Self {
        self.programs_at.push((name.to_string(), path.into()));
        self
    }

    /// More kernel modules than the disk and ext4 need.
    pub fn modules<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.modules.extend(names.into_iter().map(str::to_string));
        self
    }

    /// A file of the caller's.
    pub fn file(mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((path.to_string(), mode, content.into()));
        self
    }

    /// Writes the image into a temporary file. `disk` are the modules that the front end's disk
    /// needs.
    pub fn build(&self, host: &Host, kernel: &Modules, disk: &[&str]) -> Result<TempPath> {
        let file = NamedTempFile::with_prefix("vlane-initramfs-").map_err(io(|| {
            format!("{}: no room for the guest's initramfs", std::env::temp_dir().display())
        }))?;
        let mut archive = Archive::new(BufWriter::with_capacity(1 << 20, file));
        self.write(host, kernel, disk, &mut archive)?;
        finish(archive).map_err(unwritten)
    }

    fn write(
        &self,
        host: &Host,
        kernel: &Modules,
        disk: &[&str],
        archive: &mut Archive<BufWriter<NamedTempFile>>,
    ) -> Result<()> {
        for directory in ["proc", "sys", "dev", "tmp", "mnt", "root", "run", "etc"] {
            archive.directory(directory).map_err(unwritten)?;
        }
        archive.character_device("dev/console", 5, 1).map_err(unwritten)?;
        archive.symlink("etc/mtab", "/proc/self/mounts").map_err(unwritten)?;
        archive.file("init", 0o755, INIT.as_bytes()).map_err(unwritten)?;
        archive.file("guest.sh", 0o755, self.script.as_bytes()).map_err(unwritten)?;

        let mut wanted = disk.to_vec();
        wanted.push("ext4");
        wanted.extend(self.modules.iter().map(String::as_str));
        wanted.extend(CHECKSUMS.iter().filter(|m| kernel.has(m)));
        let mut order = String::new();
        for (name, content) in kernel.closure(&wanted)? {
            archive.file(&format!("lib/modules/{name}.ko"), 0o644, &content).map_err(unwritten)?;
            order.push_str(&format!("{name}\n"));
        }
        archive.file("lib/modules/order", 0o644, order.as_bytes()).map_err(unwritten)?;

        let mut libraries = BTreeSet::new();
        let busybox = host.program("busybox")?;
        let mut programs = vec![("bin/busybox".to_string(), busybox)];
        for name in &self.programs {
            programs.push((format!("usr/bin/{name}"), host.program(name)?));
        }
        let known = self.programs_at.iter();
        programs.extend(known.map(|(name, path)| (format!("usr/bin/{name}"), path.clone())));
        for (inside, outside) in &programs {
            libraries.extend(shared_libraries(host, outside)?);
            archive.file(inside, 0o755, &read(outside)?).map_err(unwritten)?;
        }
        for library in &libraries {
            archive.file(&library.to_string_lossy(), 0o755, &read(library)?).map_err(unwritten)?;
        }
        for (path, mode, content) in &self.files {
            archive.file(path, *mode, content).map_err(unwritten)?;
        }
        Ok(())
    }
}

/// The smallest guest there is: says that it lives and powers off. For probes.
pub(crate) fn sign_of_life(host: &Host) -> Result<TempPath> {
    const SCRIPT: &str =
        "#!/bin/busybox sh\n/bin/busybox echo RESULT alive=1\n/bin/busybox poweroff -f\n";
    let context = || io(|| format!("{}: not writable", std::env::temp_dir().display()));
    let file = NamedTempFile::with_prefix("vlane-probe-").map_err(context())?;
    let mut archive = Archive::new(BufWriter::new(file));
    let busybox = host.program("busybox")?;
    for library in shared_libraries(host, &busybox)? {
        archive.file(&library.to_string_lossy(), 0o755, &read(&library)?).map_err(context())?;
    }
    archive.file("bin/busybox", 0o755, &read(&busybox)?).map_err(context())?;
    archive.character_device("dev/console", 5, 1).map_err(context())?;
    archive.file("init", 0o755, SCRIPT.as_bytes()).map_err(context())?;
    finish(archive).map_err(context())
}

fn unwritten(error: std::io::Error) -> Error {
    let place = std::env::temp_dir();
    io(|| format!("{}: the guest's initramfs cannot be written", place.display()))(error)
}

fn finish(archive: Archive<BufWriter<NamedTempFile>>) -> std::io::Result<TempPath> {
    let file = archive.finish()?.into_inner().map_err(|e| e.into_error())?;
    Ok(file.into_temp_path())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(io(|| format!("{}: cannot be read for the guest", path.display())))
}

/// Libraries that the dynamic loader loads for `program`; none for a static one.
fn shared_libraries(host: &Host, program: &Path) -> Result<Vec<PathBuf>> {
    if !has_interpreter(program) {
        return Ok(Vec::new());
    }
    let output = run(Command::new(host.program("ldd")?).arg(program), Duration::from_secs(30))?;
    let missing: Vec<&str> = output.text.lines().filter(|l| l.contains("not found")).collect();
    if !output.status.success() || !missing.is_empty() {
        return Err(Error::new(
            ErrorKind::Tool,
            format!("{}: its libraries cannot be found: {}", program.display(), output.text.trim()),
        ));
    }
    Ok(libraries_in(&output.text))
}

/// The files that `ldd` names: `libz.so.1 => /lib/libz.so.1 (0x...)` and
/// `/lib64/ld-linux-x86-64.so.2 (0x...)`.
pub fn libraries_in(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| {
            let line = line.rsplit_once(" (0x")?.0;
            let path = line.split_once("=> ").map_or(line, |(_, path)| path).trim();
            path.starts_with('/').then(|| PathBuf::from(path))
        })
        .collect()
}

/// True if an ELF file names a dynamic loader (a PT_INTERP segment). ldd answers with an error for
/// others.
fn has_interpreter(program: &Path) -> bool {
    use std::io::Read;
    let mut start = vec![0; 4096];
    let Ok(length) = File::open(program).and_then(|mut f| f.read(&mut start)) else { return false };
    // The loader's path stands in the first page, behind the program headers.
    start[..length].windows(10).any(|w| w == b"/ld-linux-" || w == b"/ld-musl-x")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ldd_names_libraries_and_loader() {
        let text = "\tlinux-vdso.so.1 (0x00007f0bdfd8f000)\n\
                    \tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f0bdfd52000)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f0bdfd91000)\n";
        let expected = ["/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries_in(text), expected.map(PathBuf::from));
        assert!(libraries_in("\tstatically linked\n").is_empty());
    }
}
