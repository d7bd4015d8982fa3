//! The machine that guests run on: its programs, and how missing ones are had.
//!
//! A missing package is installed only with the caller's permission. Otherwise it is an error that
//! names the package.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cache::Cache;
use crate::error::{Error, ErrorKind, Result, io};
use crate::process::{find_program, run, run_ok, tail};

/// Which Debian package has a program (Ubuntu's packages have the same names).
const PACKAGES: [(&str, &str); 25] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    // Debian 12 has it in the first, later ones in the second.
    ("qemu-storage-daemon", "qemu-system-common"),
    ("qemu-storage-daemon", "qemu-utils"),
    ("linux.uml", "user-mode-linux"),
    ("busybox", "busybox-static"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
    ("perl", "perl-base"),
    ("fio", "fio"),
    ("sqlite3", "sqlite3"),
    ("db_bench", "rocksdb-tools"),
    ("mariadbd", "mariadb-server-core"),
    ("fstrim", "util-linux"),
    ("blkdiscard", "util-linux"),
    ("blockdev", "util-linux"),
    ("taskset", "util-linux"),
    ("ldd", "libc-bin"),
    ("dpkg-deb", "dpkg"),
    ("gcc", "build-essential"),
    ("make", "build-essential"),
    ("pkg-config", "pkg-config"),
    ("strip", "binutils"),
];

/// May this crate install packages and download kernels?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Install {
    /// No: what is missing is reported, with the package to install.
    Never,
    /// Yes, where it is possible: programs by `apt-get install` (as root), kernels by
    /// `apt-get download` into the cache (as anybody).
    Allowed,
}

/// Reports the present step on standard error; a closed one is ignored.
fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The machine that guests run on. Everything that boots a guest starts from here.
#[derive(Debug, Clone)]
pub struct Host {
    cache: Cache,
    install: Install,
    progress: fn(&str),
}

impl Host {
    /// This machine, with the cache that the environment names ([`Cache::open`]).
    pub fn new(install: Install) -> Result<Self> {
        Ok(Self { cache: Cache::open()?, install, progress: tell })
    }

    /// Where long work says what it does; standard error if not set.
    pub fn with_progress(mut self, progress: fn(&str)) -> Self {
        self.progress = progress;
        self
    }

    /// The files kept between runs.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// True if installing was allowed.
    pub fn install(&self) -> Install {
        self.install
    }

    /// Says what is being done, when it takes long.
    pub(crate) fn say(&self, text: &str) {
        (self.progress)(text);
    }

    /// The path of a program, which is installed if it is missing, that was allowed, and this is
    /// possible.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        if let Some(path) = find_program(name) {
            return Ok(path);
        }
        let mut packages: Vec<&str> = PACKAGES
            .iter()
            .filter(|(program, _)| *program == name)
            .map(|(_, package)| *package)
            .collect();
        if packages.is_empty() {
            packages.push(name);
        }
        for package in &packages {
            self.install_package(package, name)?;
            if let Some(path) = find_program(name) {
                return Ok(path);
            }
        }
        let packages = packages.join(" and ");
        Err(Error::new(
            ErrorKind::Install,
            format!("{name}: {packages} was installed but does not bring it; put {name} into PATH"),
        ))
    }

    /// Installs a package for `what`.
    fn install_package(&self, package: &str, what: &str) -> Result<()> {
        let missing = |why: &str| {
            Error::new(
                ErrorKind::Missing,
                format!(
                    "{what} is not on this machine and was not installed, because {why}; on \
                     Debian or Ubuntu: apt-get install {package}"
                ),
            )
        };
        if self.install == Install::Never {
            return Err(missing("installing was not allowed (--install)"));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(missing("that needs root"));
        }
        let apt = find_program("apt-get").ok_or_else(|| missing("there is no apt-get here"))?;
        // Two test programs may want the same package: dpkg's own lock fails instead of waiting.
        let _lock = self.cache.lock("apt")?;
        if find_program(what).is_some() {
            return Ok(());
        }
        self.say(&format!("installing {package} with apt-get, for {what} ..."));
        let install = || {
            let mut command = Command::new(&apt);
            command.env("DEBIAN_FRONTEND", "noninteractive").args([
                "-o",
                "DPkg::Lock::Timeout=120",
                "install",
                "-y",
                "--no-install-recommends",
                package,
            ]);
            run(&mut command, Duration::from_secs(600))
        };
        if install()?.status.success() {
            return Ok(());
        }
        // The package lists are missing (fresh containers) or name versions that are gone.
        self.update_package_lists(&apt)?;
        let output = install()?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Install,
            format!(
                "apt-get install {package} failed ({}):\n{}",
                output.status,
                tail(&output.text, 12)
            ),
        ))
    }

    fn update_package_lists(&self, apt: &Path) -> Result<()> {
        self.say("reading the package lists with apt-get update ...");
        run_ok(Command::new(apt).arg("update"), Duration::from_secs(300)).map(drop)
    }

    /// Downloads packages and unpacks them into `into`, without installing them.
    pub(crate) fn unpack_packages(
        &self,
        apt: &AptSource,
        packages: &[String],
        into: &Path,
    ) -> Result<()> {
        let dpkg = self.program("dpkg-deb")?;
        let debs = tempfile::tempdir_in(into)
            .map_err(io(|| format!("{}: not writable", into.display())))?;
        self.say(&format!(
            "downloading {} (unpacked into the cache, not installed) ...",
            packages.join(", ")
        ));
        run_ok(
            apt.command("apt-get").arg("download").args(packages).current_dir(debs.path()),
            Duration::from_secs(900),
        )?;
        let mut debs = entries(debs.path())?;
        debs.retain(|path| path.extension().is_some_and(|e| e == "deb"));
        for deb in debs {
            run_ok(Command::new(&dpkg).arg("-x").arg(&deb).arg(into), Duration::from_secs(300))?;
        }
        Ok(())
    }

    /// Downloads the upstream source of a source package as a tar archive, which apt verifies, and
    /// unpacks it into `into`.
    pub(crate) fn unpack_source(&self, apt: &AptSource, package: &str, into: &Path) -> Result<()> {
        self.say(&format!("downloading the source of {package} ..."));
        // Its signature and Debian's own changes are not wanted, and mirrors may lack them. Only
        // the archive counts, which must have the package list's checksum.
        let output = run(
            apt.command("apt-get")
                .args(["source", "--download-only", "--tar-only", package])
                .current_dir(into),
            Duration::from_secs(600),
        )?;
        let archive = entries(into)?.into_iter().find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with(package) && name.contains(".orig.tar.") && !name.ends_with(".asc")
        });
        let archive = archive.ok_or_else(|| {
            Error::new(
                ErrorKind::Install,
                format!("the source of {package} was not downloaded:\n{}", tail(&output.text, 12)),
            )
        })?;
        run_ok(
            Command::new("tar").arg("-xf").arg(&archive).current_dir(into),
            Duration::from_secs(120),
        )?;
        std::fs::remove_file(&archive).map_err(io(|| archive.display().to_string()))
    }

    /// An error unless `what` may be downloaded here.
    pub(crate) fn may_download(&self, what: &str, instead: &str) -> Result<()> {
        let why = if self.install == Install::Never {
            "downloading was not allowed (--install)"
        } else if find_program("apt-get").is_none() {
            "there is no apt-get here"
        } else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::Missing,
            format!(
                "{what} is not on this machine and was not downloaded, because {why}; {instead}"
            ),
        ))
    }

    /// Refreshes the machine's package lists, where that is possible; otherwise they stay as they
    /// are.
    pub(crate) fn refresh_system_lists(&self) {
        if rustix::process::geteuid().is_root()
            && let (Some(apt), Ok(_lock)) = (find_program("apt-get"), self.cache.lock("apt"))
        {
            let _ = self.update_package_lists(&apt);
        }
    }
}

/// Where apt gets packages from: the machine's own sources, or another suite with state of its own,
/// so that the machine's package lists stay untouched.
///
/// The default is the machine's own sources.
#[derive(Debug, Clone, Default)]
pub(crate) struct AptSource {
    options: Vec<String>,
}

impl AptSource {
    /// A suite of Debian's; `state` is a directory for its lists. Its source packages too, if they
    /// are wanted.
    pub(crate) fn debian(host: &Host, state: &Path, suite: &str, sources: bool) -> Result<Self> {
        const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
        if !Path::new(KEYRING).exists() {
            return Err(Error::new(
                ErrorKind::Missing,
                format!(
                    "{KEYRING}: not there, so packages of Debian's suite {suite} cannot be \
                     verified; apt-get install debian-archive-keyring"
                ),
            ));
        }
        for dir in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(state.join(dir))
                .map_err(io(|| format!("{}: cannot be made", state.display())))?;
        }
        let list = state.join("sources.list");
        let kinds: &[&str] = if sources { &["deb", "deb-src"] } else { &["deb"] };
        let line = |kind| {
            format!("{kind} [signed-by={KEYRING}] http://deb.debian.org/debian {suite} main\n")
        };
        std::fs::write(&list, kinds.iter().map(line).collect::<String>())
            .map_err(io(|| format!("{}: cannot be written", list.display())))?;
        let set = |key: &str, value: &str| ["-o".to_string(), format!("{key}={value}")];
        let path = |p: &str| state.join(p).display().to_string();
        let source = Self {
            options: [
                set("Dir::Etc::sourcelist", &list.display().to_string()),
                set("Dir::Etc::sourceparts", "-"),
                set("Dir::State::lists", &path("lists")),
                set("Dir::Cache", &path("cache")),
                set("Acquire::Languages", "none"),
            ]
            .concat(),
        };
        host.say(&format!(
            "reading the package lists of Debian's suite {suite} (kept apart from this machine's) \
             ..."
        ));
        run_ok(source.command("apt-get").arg("update"), Duration::from_secs(300))?;
        Ok(source)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // Without this apt complains that its unprivileged user cannot see our directory.
        command.args(["-o", "APT::Sandbox::User=root"]).args(&self.options);
        command
    }

    /// The packages that `package` depends on and whose names `wanted` accepts; empty if there is
    /// no such package.
    pub(crate) fn dependencies(
        &self,
        package: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>> {
        let output =
            run(self.command("apt-cache").args(["depends", package]), Duration::from_secs(60))?;
        let mut found: Vec<String> = Vec::new();
        for line in output.text.lines() {
            let Some(name) = line.trim().strip_prefix("Depends:").map(str::trim) else { continue };
            if wanted(name) && !found.iter().any(|f| f == name) {
                found.push(name.to_string());
            }
        }
        Ok(found)
    }
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).map_err(io(|| directory.display().to_string()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}
