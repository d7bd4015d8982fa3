//! User-Mode Linux on a vhost-user-blk socket: a real guest kernel at nearly native speed, one
//! vCPU, one queue.
//!
//! Debian's package is used where it works. It is Linux 6.1 there, which stops on CPUs whose
//! register state exceeds its limit (AMX), so it is tried first. Otherwise the package of Debian's
//! unstable suite is unpacked into the cache, with the C library that it was built for.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::cache::boot_id;
use crate::console::Echo;
use crate::error::{Error, ErrorKind, Result, io};
use crate::guest::{Guest, Keep};
use crate::host::{AptSource, Host};
use crate::initramfs::{Initramfs, sign_of_life};
use crate::kernel::release;
use crate::modules::Modules;
use crate::process::{Spec, find_program, tail};

/// The modules that a guest needs for User-Mode Linux's disk.
const DISK_MODULES: [&str; 1] = ["virtio_blk"];
/// The unpacked newer package in the cache.
const ENTRY: &str = "uml";
/// Where the packages' libraries are, in the unpacked package.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The dynamic loader that the program names, and what it becomes: a path relative to where it is
/// started.
const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
const LOADER_HERE: &[u8] = b"ld-linux-x86-64.so.2\0";
/// From this version on, guest processes are entered by seccomp instead of ptrace: twice as fast.
const SECCOMP_SINCE: (u32, u32) = (6, 16);
/// Starting takes 0.5 to 4 s.
const PROBE_LIMIT: Duration = Duration::from_secs(20);

/// A User-Mode Linux that runs on this machine.
#[derive(Debug, Clone)]
pub struct UmlProgram {
    /// The kernel's version.
    pub version: String,
    path: PathBuf,
    /// The directory with its own C library; it is started there.
    libraries: Option<PathBuf>,
    modules: Modules,
}

impl UmlProgram {
    /// One that works: from the cache, of this machine, or downloaded if that was allowed.
    pub fn find(host: &Host) -> Result<Self> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(Error::new(ErrorKind::Missing, "User-Mode Linux exists only for x86-64"));
        }
        let cached = host.cache().path(ENTRY);
        if cached.exists() {
            return Self::unpacked(&cached);
        }
        let unusable = match find_program("linux.uml") {
            Some(path) => {
                let installed = Self::new(path, None, Path::new("/usr/lib/uml/modules"));
                match installed.and_then(|uml| uml.probe(host).map(|()| uml)) {
                    Ok(uml) => return Ok(uml),
                    Err(e) => e.to_string(),
                }
            }
            None => "User-Mode Linux is not installed".to_string(),
        };
        host.may_download(
            &format!("a User-Mode Linux that works here ({unusable})"),
            "on Debian: apt-get install user-mode-linux",
        )?;
        host.say(&format!("{unusable}; getting a newer one ..."));
        let entry = host.cache().entry(ENTRY, |directory| download(host, directory))?;
        let uml = Self::unpacked(&entry)?;
        uml.probe(host)?;
        Ok(uml)
    }

    fn unpacked(entry: &Path) -> Result<Self> {
        let libraries = Some(entry.join(LIBRARIES));
        Self::new(entry.join("linux.uml"), libraries, &entry.join("usr/lib/uml/modules"))
    }

    fn new(path: PathBuf, libraries: Option<PathBuf>, modules: &Path) -> Result<Self> {
        let (modules, version) = newest(modules)?;
        Ok(Self { version, path, libraries, modules: Modules::at(modules)? })
    }

    /// Boots the tiny guest once per boot of this machine: the CPU decides whether this kernel
    /// works.
    fn probe(&self, host: &Host) -> Result<()> {
        let changed = std::fs::metadata(&self.path).and_then(|m| m.modified());
        let stamp =
            changed.ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_secs());
        let note = format!("uml-{}-{stamp:x}", boot_id());
        let bad = |why: &str| {
            Error::new(
                ErrorKind::Process,
                format!(
                    "{} ({}) does not work on this machine: {why}",
                    self.path.display(),
                    self.version
                ),
            )
        };
        match host.cache().read_note(&note).as_deref().map(str::trim) {
            Some("works") => return Ok(()),
            Some(why) => return Err(bad(why)),
            None => {}
        }
        let machine = Uml::new(self.clone(), None);
        let image = sign_of_life(host)?;
        let keep = Keep { files: vec![image], directories: Vec::new() };
        let verdict = match machine.launch(keep, PROBE_LIMIT, None).and_then(Guest::wait) {
            Ok(report) if report.results.contains_key("alive") => "works".to_string(),
            Ok(report) => reason(&report.console),
            Err(e) if e.kind() == ErrorKind::Timeout => {
                format!("a test guest did not come up within {} s", PROBE_LIMIT.as_secs())
            }
            Err(e) => return Err(e),
        };
        host.cache().write_note(&note, &verdict)?;
        if verdict == "works" { Ok(()) } else { Err(bad(&verdict)) }
    }
}

/// The line of a failed guest's console that says most.
fn reason(console: &str) -> String {
    let telling = ["ptrace set fp regs failed", "Kernel panic"];
    let line = telling.iter().find_map(|words| console.lines().find(|line| line.contains(words)));
    let line = line.map_or_else(|| tail(console, 1), str::to_string);
    format!("a test guest ended with \"{}\"", line.trim())
}

fn newest(directory: &Path) -> Result<(PathBuf, String)> {
    let context = || {
        format!(
            "{}: the modules of User-Mode Linux are not there; install user-mode-linux again",
            directory.display()
        )
    };
    let mut found: Vec<_> =
        std::fs::read_dir(directory).map_err(io(context))?.flatten().map(|e| e.path()).collect();
    found.sort();
    let path = found.pop().ok_or_else(|| Error::new(ErrorKind::Missing, context()))?;
    let version = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok((path, version))
}

/// Unpacks the newer package and its C library, and makes the program look for its loader where it
/// is started.
fn download(host: &Host, directory: &Path) -> Result<()> {
    let state = tempfile::tempdir().map_err(io(|| "no temporary directory"))?;
    let apt = AptSource::debian(host, state.path(), "sid", false)?;
    host.unpack_packages(&apt, &["user-mode-linux".into(), "libc6".into()], directory)?;
    let packaged = directory.join("usr/bin/linux.uml");
    let mut program = std::fs::read(&packaged)
        .map_err(io(|| format!("{}: not in the package", packaged.display())))?;
    let at = program.windows(LOADER.len()).position(|w| w == LOADER).ok_or_else(|| {
        Error::new(
            ErrorKind::Format,
            format!("{}: names no loader that is known", packaged.display()),
        )
    })?;
    program[at..at + LOADER.len()].fill(0);
    program[at..at + LOADER_HERE.len()].copy_from_slice(LOADER_HERE);
    let usable = directory.join("linux.uml");
    std::fs::write(&usable, program)
        .and_then(|()| {
            std::fs::set_permissions(&usable, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        })
        .map_err(io(|| format!("{}: cannot be written", usable.display())))
}

/// A User-Mode Linux machine.
#[derive(Debug, Clone)]
pub struct Uml {
    /// Which User-Mode Linux.
    pub program: UmlProgram,
    /// Guest memory in MiB. It is a file in /dev/shm, shared with the back end.
    pub memory_mib: u32,
    /// Sockets of its disks; the first is `/dev/vda`.
    pub disks: Vec<PathBuf>,
    /// Added to the kernel's command line.
    pub append: String,
}

impl Uml {
    /// A machine with 512 MiB and the disks given.
    pub fn new(program: UmlProgram, disks: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { program, memory_mib: 512, disks: disks.into_iter().collect(), append: String::new() }
    }

    /// Builds the guest's initramfs and starts the machine, with its console caught.
    pub fn start_with(
        &self,
        host: &Host,
        guest: &Initramfs,
        limit: Duration,
        echo: Option<Echo>,
    ) -> Result<Guest> {
        let image = guest.build(host, &self.program.modules, &DISK_MODULES)?;
        self.launch(Keep { files: vec![image], directories: Vec::new() }, limit, echo)
    }

    fn launch(&self, mut keep: Keep, limit: Duration, echo: Option<Echo>) -> Result<Guest> {
        let state =
            tempfile::tempdir().map_err(io(|| "no temporary directory for User-Mode Linux"))?;
        let mut spec = Spec::new(&self.program.path, self.args(&keep.files[0], state.path())?);
        // Its memory is a file in TMPDIR; on a disk it would be written out.
        if Path::new("/dev/shm").is_dir() {
            spec.envs.push(("TMPDIR".into(), "/dev/shm".into()));
        }
        if let Some(libraries) = &self.program.libraries {
            spec.envs.push(("LD_LIBRARY_PATH".into(), libraries.into()));
            spec.cwd = Some(libraries.clone());
        }
        keep.directories.push(state);
        Guest::start("User-Mode Linux", &spec, limit, echo, keep)
    }

    fn args(&self, initramfs: &Path, state: &Path) -> Result<Vec<String>> {
        let mut args = vec![
            format!("mem={}M", self.memory_mib),
            format!("initrd={}", initramfs.display()),
            format!("uml_dir={}", state.display()),
            "umid=guest".into(),
            "con=null".into(),
            "con0=fd:0,fd:1".into(),
            "quiet".into(),
            "panic=-1".into(),
        ];
        if release(&self.program.version) >= Some(SECCOMP_SINCE) {
            args.push("seccomp=on".into());
        }
        for disk in &self.disks {
            let path = disk.to_string_lossy();
            if path.contains([':', ' ', '"']) || !disk.is_absolute() {
                return Err(Error::new(
                    ErrorKind::Process,
                    format!(
                        "{path}: User-Mode Linux needs an absolute socket path without colons, \
                         spaces and quotes"
                    ),
                ));
            }
            // The 2 is virtio's number for block devices.
            args.push(format!("virtio_uml.device={path}:2"));
        }
        args.extend(self.append.split_whitespace().map(str::to_string));
        Ok(args)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn machine(version: &str, disk: &str) -> Uml {
        let dir = tempfile::tempdir().unwrap();
        let modules = Modules::at(dir.path()).unwrap();
        let program = UmlProgram {
            version: version.into(),
            path: "/usr/bin/linux.uml".into(),
            libraries: None,
            modules,
        };
        Uml::new(program, [PathBuf::from(disk)])
    }

    #[test]
    fn only_new_kernels_use_seccomp() {
        let args = |version| {
            machine(version, "/run/a.sock").args(Path::new("/i"), Path::new("/s")).unwrap()
        };
        assert!(args("7.2.7").contains(&"seccomp=on".to_string()));
        assert!(!args("6.1.176").contains(&"seccomp=on".to_string()));
        assert!(args("6.1.176").contains(&"virtio_uml.device=/run/a.sock:2".to_string()));
    }

    #[test]
    fn unusable_socket_paths_are_refused() {
        for disk in ["/run/a:b", "/run/a b", "relative.sock"] {
            assert!(
                machine("7.2.7", disk).args(Path::new("/i"), Path::new("/s")).is_err(),
                "{disk}"
            );
        }
    }

    #[test]
    fn failed_probe_quotes_the_reason() {
        let console = "SELinux: x\nuserspace - ptrace set fp regs failed, errno = 14\nKernel \
                       panic - not syncing\n";
        assert!(reason(console).contains("fp regs failed"));
    }
}
