//! Shared parts of the tests of `vlane serve`: an image, its server as a process of its own, and
//! runs that have to fail.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses its own part of this; tests may unwrap"
)]

use std::ffi::OsString;
use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use vlane_driver::{OnProgress, Session, SessionOptions};
use vlane_guest::{Backend, Ready, Spec};

/// How long anything may take here, on a machine that does much else.
pub const LIMIT: Duration = Duration::from_secs(60);

pub fn vlane() -> &'static str {
    env!("CARGO_BIN_EXE_vlane-lab")
}

/// A directory with an image and a socket's path.
pub struct Place {
    directory: TempDir,
    pub image: PathBuf,
    pub socket: PathBuf,
}

impl Place {
    /// On the disk, with an image of so many bytes.
    pub fn new(bytes: u64) -> Place {
        Place::in_directory(TempDir::with_prefix("vlane-serve-").unwrap(), bytes)
    }

    /// In memory, if there is such a file system.
    pub fn in_memory(bytes: u64) -> Option<Place> {
        let memory = Path::new("/dev/shm").is_dir();
        memory.then(|| {
            Place::in_directory(TempDir::with_prefix_in("vlane-serve-", "/dev/shm").unwrap(), bytes)
        })
    }

    fn in_directory(directory: TempDir, bytes: u64) -> Place {
        // Other users may look in, too.
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let (image, socket) =
            (directory.path().join("disk.raw"), directory.path().join("disk.sock"));
        std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        Place { directory, image, socket }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn names(&self) -> Vec<OsString> {
        let mut names: Vec<_> = std::fs::read_dir(self.directory.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        names.sort();
        names
    }

    /// `vlane serve` on the image and socket, with more options.
    pub fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(vlane());
        command.arg("serve").arg(&self.image).arg("--socket").arg(&self.socket).args(options);
        command
    }

    /// Serves the image; ready when this returns.
    pub fn serve(&self, options: &[&str]) -> Backend {
        self.try_serve(options).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_serve(&self, options: &[&str]) -> vlane_guest::Result<Backend> {
        start(&self.command(options), &self.socket)
    }

    pub fn connect(&self, options: &SessionOptions) -> Session {
        Session::connect(&self.socket, options).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Starts a command that serves on `socket`.
pub fn start(command: &Command, socket: &Path) -> vlane_guest::Result<Backend> {
    let spec = Spec::new(command.get_program(), command.get_args().map(OsString::from));
    Backend::start_within(LIMIT, &spec, socket, Ready::Line("listening on"), None)
}

/// Stops a server with SIGTERM: it must succeed and take its socket with it. Returns how long that
/// took.
pub fn stop(backend: Backend) -> Duration {
    let socket = backend.socket().to_path_buf();
    let stopped = backend.stop(LIMIT).unwrap_or_else(|error| panic!("{error}"));
    assert!(stopped.status.success(), "{}: {}", stopped.status, stopped.log);
    assert!(!socket.exists(), "the socket was left behind");
    stopped.took
}

/// Runs a command that must end by itself soon; returns its exit code and what it said on standard
/// error.
pub fn ends(command: &mut Command) -> (Option<i32>, String) {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut words = String::new();
    child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    (status.code(), words)
}

/// Runs a command that must fail with exit code 1, and with one line that has all of `parts`:
/// object, fault, remedy.
pub fn fails(command: &mut Command, parts: &[&str]) {
    fails_with(1, command, parts);
}

/// As [`fails`], with another exit code.
pub fn fails_with(status: i32, command: &mut Command, parts: &[&str]) {
    let (code, words) = ends(command);
    assert_eq!(code, Some(status), "{command:?}: {words}");
    let lines: Vec<&str> = words.lines().filter(|line| line.starts_with("vlane-lab: ")).collect();
    assert_eq!(lines.len(), 1, "{command:?}: {words}");
    for part in parts {
        assert!(lines[0].contains(part), "{command:?}: no {part:?} in {:?}", lines[0]);
    }
    assert!(!words.contains("panicked"), "{words}");
}

pub fn going_on() -> &'static mut OnProgress<'static> {
    Box::leak(Box::new(|_| ControlFlow::Continue(())))
}

/// Decides the moments of kills; `VLANE_CRASH_SEED` repeats it.
pub fn seed() -> u64 {
    let given = std::env::var("VLANE_CRASH_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        u64::from(now.subsec_nanos()) ^ now.as_secs()
    });
    // Shown when the test fails.
    println!("VLANE_CRASH_SEED={seed}");
    seed
}

/// One step of splitmix64.
pub fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
