//! Back ends as child processes: started on a CPU or anywhere, reached, observed by their process
//! id, and ended in every case.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use vlane_driver::{Session, SessionOptions};
use vlane_guest::{Backend, Ready, Spec, find_program};

use crate::{Error, ErrorKind, Fail, Result};

/// How long a back end that is ready may refuse connections.
const CONNECT: Duration = Duration::from_secs(10);

/// Requests that vlane's null device works on at the same time where it has a latency.
/// (qemu-storage-daemon's works on all.)
pub const AT_ONCE: u16 = 32;

/// Storage that a back end serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage<'a> {
    /// A device without a medium, of so many bytes: no data are touched.
    Null {
        /// Its capacity in bytes.
        bytes: u64,
        /// Time of each request, in parallel with others (vlane: with as many as [`AT_ONCE`]).
        /// `None`: it succeeds at once.
        latency: Duration,
    },
    /// A file or a block device.
    File {
        /// Where it is.
        path: &'a Path,
        /// With O_DIRECT, around the host's page cache.
        direct: bool,
    },
}

/// How qemu-storage-daemon reads and writes a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aio {
    /// By io_uring.
    IoUring,
    /// By threads that call pread and pwrite.
    Threads,
}

impl Aio {
    /// As its option `aio` has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Threads => "threads",
        }
    }
}

impl Storage<'_> {
    /// A device without a medium that answers at once.
    pub fn null(bytes: u64) -> Self {
        Self::Null { bytes, latency: Duration::ZERO }
    }
}

/// A program that stays on some CPUs, if CPUs are given: `taskset`, which replaces itself by the
/// program. (The standard library's hook between fork and exec is unsafe.)
///
/// # Errors
/// [`ErrorKind::Missing`] if there is no taskset.
pub fn on_cpus(spec: Spec, cpus: &[usize]) -> Result<Spec> {
    if cpus.is_empty() {
        return Ok(spec);
    }
    let taskset = find_program("taskset").ok_or_else(|| {
        let text =
            "taskset is not on this machine; on Debian or Ubuntu: apt-get install util-linux";
        Error::new(ErrorKind::Missing, text)
    })?;
    let list: Vec<_> = cpus.iter().map(ToString::to_string).collect();
    let mut args: Vec<OsString> = vec!["-c".into(), list.join(",").into(), spec.program.into()];
    args.extend(spec.args);
    Ok(Spec { program: taskset, args, ..spec })
}

/// A back end that runs. Dropping it ends it and removes its socket; if this process is killed, the
/// kernel ends it.
#[derive(Debug)]
pub struct Server {
    backend: Backend,
    name: String,
    command: String,
}

impl Server {
    /// `vlane serve`: `program` is vlane's own file, `dir` a directory for the socket, `arguments`
    /// come after those that say what is served (`--queues 2`, ...).
    ///
    /// # Errors
    /// Those of [`Server::start`].
    pub fn vlane<A: AsRef<OsStr>>(
        program: &Path,
        dir: &Path,
        storage: Storage<'_>,
        cpus: &[usize],
        arguments: &[A],
    ) -> Result<Self> {
        let mut words = Vec::new();
        match storage {
            Storage::Null { bytes, latency } => {
                words.extend(["--null".into(), bytes.to_string().into()]);
                if !latency.is_zero() {
                    words.extend(["--latency".into(), format!("{}us", latency.as_micros()).into()]);
                    words.extend(["--parallel".into(), AT_ONCE.to_string().into()]);
                }
            }
            Storage::File { path, direct } => {
                let cache = if direct { "none" } else { "writeback" };
                words.extend([path.into(), "--cache".into(), cache.into()]);
            }
        }
        words.extend(arguments.iter().map(|a| a.as_ref().to_os_string()));
        Self::serve(program, dir, cpus, words)
    }

    /// `vlane serve` with these words; the socket is a new one in `dir`.
    ///
    /// # Errors
    /// Those of [`Server::start`].
    pub fn serve(
        program: &Path,
        dir: &Path,
        cpus: &[usize],
        words: impl IntoIterator<Item = OsString>,
    ) -> Result<Self> {
        let socket = fresh_socket(dir, "vlane");
        let begin = ["serve".into(), "--socket".into(), socket.clone().into_os_string()];
        let spec = Spec::new(program, begin.into_iter().chain(words));
        Self::start("vlane", spec, cpus, &socket, Ready::Line("listening on"))
    }

    /// qemu-storage-daemon with an I/O thread of its own, and a null device that touches no data
    /// either.
    ///
    /// # Errors
    /// Those of [`Server::start`].
    pub fn qemu_storage_daemon(
        aio: Aio,
        program: &Path,
        dir: &Path,
        storage: Storage<'_>,
        cpus: &[usize],
        queues: u16,
    ) -> Result<Self> {
        let socket = fresh_socket(dir, "qsd");
        // A comma inside a value is doubled.
        let quoted = |path: &Path| path.display().to_string().replace(',', ",,");
        let device = match storage {
            Storage::Null { bytes, latency } => {
                let latency = match latency.as_nanos() {
                    0 => String::new(),
                    ns => format!(",latency-ns={ns}"),
                };
                format!("driver=null-co,node-name=n,size={bytes},read-zeroes=off{latency}")
            }
            Storage::File { path, direct } => {
                let driver = if is_block_device(path) { "host_device" } else { "file" };
                let direct = if direct { "on" } else { "off" };
                let path = quoted(path);
                let aio = aio.word();
                format!(
                    "driver={driver},node-name=n,filename={path},aio={aio},cache.direct={direct}"
                )
            }
        };
        let at = quoted(&socket);
        let export = format!(
            "type=vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={at},writable=on,\
             num-queues={queues},iothread=t"
        );
        let words = ["--object", "iothread,id=t", "--blockdev", &device, "--export", &export];
        Self::start("qemu-storage-daemon", Spec::new(program, words), cpus, &socket, Ready::Socket)
    }

    /// Any back end: what to start, where it will listen, and how one sees that it does.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] or [`ErrorKind::Timeout`] with its last words if it does not get
    /// there. [`ErrorKind::Missing`] if a program is missing, [`ErrorKind::Invalid`] if the
    /// socket's path is too long.
    pub fn start(
        name: &str,
        spec: Spec,
        cpus: &[usize],
        socket: &Path,
        ready: Ready,
    ) -> Result<Self> {
        // sun_path of sockaddr_un, with its zero.
        if socket.as_os_str().len() > 107 {
            let context =
                format!("{}: too long for a socket (107 bytes are the most)", socket.display());
            return ErrorKind::Invalid.fail(context);
        }
        let command = spec.shell_line();
        let backend = Backend::start(&on_cpus(spec, cpus)?, socket, ready, None)?;
        Ok(Self { backend, name: name.into(), command })
    }

    /// Connects as the guest's side; a back end that does not accept yet is given time.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] if it has ended meanwhile, else those of [`Session::connect`].
    pub fn connect(&mut self, options: &SessionOptions) -> Result<Session> {
        let start = Instant::now();
        loop {
            let error = match Session::connect(self.backend.socket(), options) {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            if let Some(status) = self.backend.ended()? {
                let context =
                    format!("{} has ended ({status}); it said: {}", self.name, self.last_words());
                return ErrorKind::Process.fail(context);
            }
            if error.kind() != vlane_driver::ErrorKind::Connect || start.elapsed() > CONNECT {
                return Err(error.into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its name for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The command that started it, quoted for a shell (without the one that keeps it on its CPUs).
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.backend.id()
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        self.backend.socket()
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        self.backend.log()
    }

    /// Asks it to end and waits; dropping it does that too, but without a result.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if it is not gone after `limit`.
    pub fn stop(self, limit: Duration) -> Result<vlane_guest::Stopped> {
        Ok(self.backend.stop(limit)?)
    }

    fn last_words(&self) -> String {
        let log = self.backend.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("; ")
    }
}

/// A socket's path in `dir` that no other back end of this process has.
fn fresh_socket(dir: &Path, name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    dir.join(format!("{name}-{}.sock", NEXT.fetch_add(1, Ordering::Relaxed)))
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A back end's last words are awaited for a second. A busy machine may need longer.
    const TRIES: u32 = 5;

    #[test]
    fn early_end_of_back_end_quotes_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut errors = (0..TRIES).map(|_| {
            let spec = Spec::new("/bin/sh", ["-c", "echo the image is locked >&2; exit 1"]);
            let socket = dir.path().join("s");
            let ready = Ready::Line("listening");
            let error = Server::start("sh", spec, &[], &socket, ready).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Process);
            error.to_string()
        });
        assert!(errors.any(|error| error.contains("the image is locked")));
    }

    #[test]
    fn late_end_of_back_end_quotes_it() {
        // It ends when a file is there: not before its start has been seen.
        let script = "echo listening on nothing; until [ -e \"$0\" ]; do sleep 0.02; done; echo \
                      bad luck; exit 3";
        let mut errors = (0..TRIES).map(|_| {
            let dir = tempfile::tempdir().unwrap();
            let end = dir.path().join("end");
            let words: [OsString; 3] = ["-c".into(), script.into(), end.clone().into()];
            let (spec, socket) = (Spec::new("/bin/sh", words), dir.path().join("s"));
            let ready = Ready::Line("listening");
            let mut server = Server::start("sh", spec, &[], &socket, ready).unwrap();
            std::fs::write(&end, "").unwrap();
            let error = server.connect(&SessionOptions::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Process);
            error.to_string()
        });
        assert!(errors.any(|error| error.contains("bad luck")));
    }

    #[test]
    fn back_end_stays_on_cpu_until_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let cpu = (0..rustix::thread::CpuSet::MAX_CPU)
            .find(|cpu| rustix::thread::sched_getaffinity(None).unwrap().is_set(*cpu))
            .unwrap();
        let spec = Spec::new("/bin/sh", ["-c", "echo listening on x; sleep 60"]);
        let server =
            Server::start("sh", spec, &[cpu], &dir.path().join("s"), Ready::Line("listening"))
                .unwrap();
        let pid = server.pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(list.trim(), cpu.to_string());
        assert!(!server.command().contains("taskset"), "{}", server.command());
        drop(server);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn too_deep_directory_is_refused() {
        let spec = Spec::new("/bin/sh", ["-c", "exit 0"]);
        let socket = PathBuf::from(format!("/tmp/{}", "x".repeat(120)));
        let error = Server::start("sh", spec, &[], &socket, Ready::Socket).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
