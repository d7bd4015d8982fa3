//! fio with its libblkio engine: another program's driver for vhost-user-blk, for comparisons with
//! our own.
//!
//! Debian's fio is built without that engine. Where the installed one lacks it, fio's source and
//! libblkio's packages of Debian's unstable suite are unpacked into the cache. fio is built there
//! once, in one or two minutes. (libblkio's package needs only glibc 2.34, so it runs with older
//! systems' libraries.)

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result, io};
use crate::host::{AptSource, Host};
use crate::process::{Output, Spec, find_program, run, run_ok};

/// The unpacked and built fio in the cache.
const ENTRY: &str = "fio-libblkio";

/// A fio that can drive vhost-user-blk.
#[derive(Debug, Clone)]
pub struct BlkioFio {
    path: PathBuf,
    /// Where libblkio is, if it is not the system's.
    libraries: Option<PathBuf>,
}

impl BlkioFio {
    /// The installed one if it has the engine, else one from the cache, else one built from
    /// Debian's source if that was allowed.
    pub fn find(host: &Host) -> Result<Self> {
        if let Some(path) = find_program("fio") {
            let installed = Self { path, libraries: None };
            if installed.has_engine() {
                return Ok(installed);
            }
        }
        let cached = host.cache().path(ENTRY);
        if cached.exists() {
            return Self::built(&cached);
        }
        host.may_download(
            "a fio with the libblkio engine (Debian's has none)",
            "or build fio 3.34 or newer with libblkio-dev installed, and put it into PATH",
        )?;
        let entry = host.cache().entry(ENTRY, |directory| build(host, directory))?;
        Self::built(&entry)
    }

    fn built(entry: &Path) -> Result<Self> {
        let built = Self { path: entry.join("fio"), libraries: Some(entry.join("lib")) };
        match built.has_engine() {
            true => Ok(built),
            false => Err(Error::new(
                ErrorKind::Install,
                format!(
                    "{}: does not work; remove {} and try again",
                    built.path.display(),
                    entry.display()
                ),
            )),
        }
    }

    fn says(&self, option: &str) -> Result<Output> {
        let mut command = Command::new(&self.path);
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        run(command.arg(option), Duration::from_secs(20))
    }

    fn has_engine(&self) -> bool {
        self.says("--enghelp")
            .is_ok_and(|output| output.text.lines().any(|line| line.trim() == "libblkio"))
    }

    /// Its version, as in `3.41`.
    pub fn version(&self) -> Option<String> {
        Some(self.says("--version").ok()?.text.trim().strip_prefix("fio-")?.to_string())
    }

    /// This fio with arguments, ready to be started.
    pub fn spec<A: Into<OsString>>(&self, args: impl IntoIterator<Item = A>) -> Spec {
        let mut spec = Spec::new(&self.path, args);
        if let Some(libraries) = &self.libraries {
            spec.envs.push(("LD_LIBRARY_PATH".into(), libraries.into()));
        }
        spec
    }
}

/// Gets the packages and the source, builds fio, and keeps the program and the library.
fn build(host: &Host, directory: &Path) -> Result<()> {
    for tool in ["gcc", "make", "pkg-config"] {
        host.program(tool)?;
    }
    let work = tempfile::tempdir_in(directory).map_err(io(|| "no directory to build fio in"))?;
    let state = tempfile::tempdir().map_err(io(|| "no temporary directory"))?;
    let apt = AptSource::debian(host, state.path(), "sid", true)?;
    let packages = work.path().join("packages");
    std::fs::create_dir(&packages).map_err(io(|| "no directory for libblkio"))?;
    host.unpack_packages(&apt, &["libblkio1".into(), "libblkio-dev".into()], &packages)?;
    host.unpack_source(&apt, "fio", work.path())?;
    let entries = std::fs::read_dir(work.path()).map_err(io(|| "fio's source cannot be read"))?;
    let source = entries.flatten().map(|e| e.path()).find(|path| path.join("configure").is_file());
    let source = source.ok_or_else(|| {
        Error::new(ErrorKind::Format, "the archive with fio's source has no `configure`")
    })?;

    let libraries = packages.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    // The compiler's and pkg-config's own variables: fio's build needs no change.
    let tool = |program: &Path| {
        let mut command = Command::new(program);
        command
            .current_dir(&source)
            .env("PKG_CONFIG_PATH", libraries.join("pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", &packages)
            .env("C_INCLUDE_PATH", packages.join("usr/include"))
            .env("LIBRARY_PATH", &libraries);
        command
    };
    host.say("building fio with the libblkio engine (a minute or two) ...");
    run_ok(&mut tool(&source.join("configure")), Duration::from_secs(300))?;
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    run_ok(tool(Path::new("make")).arg(format!("-j{jobs}")).arg("fio"), Duration::from_secs(1800))?;

    let kept = directory.join("lib");
    std::fs::create_dir(&kept).map_err(io(|| "the cache cannot be written"))?;
    let keep = |from: &Path, to: PathBuf| {
        std::fs::copy(from, &to)
            .map(drop)
            .map_err(io(|| format!("{}: cannot be kept", from.display())))
    };
    keep(&source.join("fio"), directory.join("fio"))?;
    // A copy follows the link, so the library gets the name that programs ask for.
    keep(&libraries.join("libblkio.so.1"), kept.join("libblkio.so.1"))
}
