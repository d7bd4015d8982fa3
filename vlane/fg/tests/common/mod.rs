//! A separate daemon for each test, and a real shell in a pseudo-terminal that it watches.
//!
//! Tests wait for a condition and not for a time, and fail after three minutes without it.

#![allow(dead_code, clippy::unwrap_used, reason = "tests; not every one uses all of it")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::pty::OpenptFlags;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_vlane-fg");

/// The time limit on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Waits for a result.
#[track_caller]
pub fn until<T>(what: &str, found: impl FnMut() -> Option<T>) -> T {
    until_every(Duration::from_millis(4), what, found)
}

#[track_caller]
fn until_every<T>(pause: Duration, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "waited for {PATIENCE:?}: {what}");
        std::thread::sleep(pause);
    }
}

/// Waits for its end. A child that does not end is killed, and fails its test unless that fails
/// already.
fn wait_or_kill(child: &mut Child) {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(4));
    }
    let _ = child.kill();
    let _ = child.wait();
    assert!(std::thread::panicking(), "process {} did not end for {PATIENCE:?}", child.id());
}

/// The needs of these tests: to set a nice value below zero, and to begin with 0.
pub fn may_raise() -> bool {
    if rustix::process::getpriority_process(None).ok() != Some(0) {
        vlane_testing::skip("they expect values as they are from a nice value of 0");
        return false;
    }
    let probe = Command::new("nice").args(["-n", "-1", "true"]).stderr(Stdio::piped()).output();
    let may = probe.is_ok_and(|output| output.status.success() && output.stderr.is_empty());
    if !may {
        vlane_testing::skip("nice values below zero take CAP_SYS_NICE");
    }
    may
}

/// A daemon that works until it is dropped.
pub struct Daemon {
    child: Child,
    pub dir: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl Daemon {
    /// A daemon that looks at this shell's terminal: two daemons for one terminal would take each
    /// other's values for the user's choice.
    pub fn new(shell: &Shell, options: &[&str]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("state");
        let mut daemon = Self::at(shell, &dir, options);
        daemon._temporary = Some(temporary);
        daemon
    }

    pub fn at(shell: &Shell, dir: &Path, options: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command
            .args(["daemon", "--state-dir"])
            .arg(dir)
            .args(options)
            .args(["--terminal", &shell.name])
            .stderr(Stdio::piped());
        // SAFETY: the call is safe between fork and exec: it is one system call.
        unsafe {
            // A test that is killed leaves no daemon behind.
            command.pre_exec(|| {
                let signal = Some(rustix::process::Signal::TERM);
                Ok(rustix::process::set_parent_process_death_signal(signal)?)
            });
        }
        let mut child = command.spawn().unwrap();
        let (said, mut from) = (Arc::new(Mutex::new(String::new())), child.stderr.take().unwrap());
        let to = Arc::clone(&said);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]);
                let mut said = to.lock().unwrap();
                if is_ready(&said) {
                    // It writes no more messages unless there is a fault.
                    let _ = std::io::stderr().write_all(text.as_bytes());
                }
                said.push_str(&text);
            }
        });
        // From here on it ends with the test.
        let mut daemon = Self { child, dir: dir.to_owned(), _temporary: None };
        until("the daemon is ready", || {
            let ended = daemon.child.try_wait().unwrap();
            let said = said.lock().unwrap().clone();
            assert!(ended.is_none(), "it ended: {said}");
            is_ready(&said).then_some(())
        });
        daemon
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// kill -9
    pub fn kill(mut self) -> Option<tempfile::TempDir> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self._temporary.take()
    }

    /// Ends it as `kill` does, and waits.
    pub fn end(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        wait_or_kill(&mut self.child);
    }

    pub fn status(&self) -> String {
        let output =
            Command::new(PROGRAM).args(["status", "--state-dir"]).arg(&self.dir).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until its status says this. Each question is a process: not as often as elsewhere.
    #[track_caller]
    pub fn until_status_has(&self, wanted: &str) {
        until_every(Duration::from_millis(100), &format!("status says {wanted}"), || {
            self.status().contains(wanted).then_some(())
        });
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

fn is_ready(said: &str) -> bool {
    said.contains("ready;") && said.ends_with('\n')
}

/// A shell in a separate terminal.
pub struct Shell {
    child: Child,
    terminal: File,
    pub name: String,
    said: Arc<Mutex<String>>,
    commands: usize,
}

impl Shell {
    pub fn bash() -> Self {
        Self::start("bash", &["--norc", "--noprofile", "-i"])
    }

    pub fn start(program: &str, arguments: &[&str]) -> Self {
        let main =
            rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
                .unwrap();
        rustix::pty::grantpt(&main).unwrap();
        rustix::pty::unlockpt(&main).unwrap();
        let name = rustix::pty::ptsname(&main, Vec::new()).unwrap();
        let open = || -> OwnedFd {
            // Another test may start a process at this moment: it must not keep this terminal open.
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap()
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("PS1", "")
            .env("HISTFILE", "")
            .env("TERM", "dumb")
            .env_remove("PROMPT_COMMAND");
        command.stdin(open()).stdout(open()).stderr(open());
        // SAFETY: the calls are safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // A test that was started in the background ignores them, and a shell and its jobs
                // would, too.
                for number in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                    libc::signal(number, libc::SIG_DFL);
                }
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        let terminal: File = main.into();
        let (said, mut from) = (Arc::new(Mutex::new(String::new())), terminal.try_clone().unwrap());
        let to = Arc::clone(&said);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut bytes) {
                to.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        let name = name.into_string().unwrap();
        let mut shell = Self { child, terminal, name, said, commands: 0 };
        shell.answer("echo");
        shell
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Types a line.
    pub fn line(&mut self, line: &str) {
        self.keys(&format!("{line}\n"));
    }

    /// Presses keys: \x03 is Ctrl-C, \x1a is Ctrl-Z.
    pub fn keys(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// Presses Ctrl-Z until the shell has its terminal back: `fg` continues a job after it has made
    /// it the foreground, and a Ctrl-Z in between is lost.
    #[track_caller]
    pub fn stop(&mut self) {
        let mut pressed = None;
        until("the shell has its terminal back", || {
            if pressed.is_none_or(|at: Instant| at.elapsed() > Duration::from_millis(500)) {
                self.keys("\x1a");
                pressed = Some(Instant::now());
            }
            (foreground(self.pid()) == Some(self.pid())).then_some(())
        });
    }

    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Types a line that prints text, and returns that text.
    #[track_caller]
    pub fn answer(&mut self, line: &str) -> String {
        self.commands += 1;
        // The terminal echoes typed text: the marks are in the answer only.
        let (open, close) = (format!("<{}<", self.commands), format!(">{}>", self.commands));
        self.line(&format!("printf '<%s<' {n}; {line}; printf '>%s>' {n}", n = self.commands));
        until(&format!("an answer to {line}: {}", self.said()), || {
            let said = self.said();
            let (_, rest) = said.split_once(&open)?;
            Some(rest.split_once(&close)?.0.trim().to_owned())
        })
    }

    /// Starts a job that prints its process's number, and gives that. It ends with the shell, or
    /// when a test kills it.
    #[track_caller]
    pub fn job(&mut self, line: &str) -> i32 {
        self.commands += 1;
        let (open, close) = (format!("<{}<", self.commands), format!(">{}>", self.commands));
        let n = self.commands;
        self.line(
            &line.replace(
                "JOB",
                &format!("sh -c 'printf \"<%s<%s>%s>\" {n} $$ {n}; exec sleep 1000'"),
            ),
        );
        until(&format!("the job {line}: {}", self.said()), || {
            let said = self.said();
            said.split_once(&open)?.1.split_once(&close)?.0.parse().ok()
        })
    }

    /// Waits for its end.
    pub fn wait(&mut self) {
        wait_or_kill(&mut self.child);
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Its jobs are in its session.
        for pid in members(self.pid()) {
            let _ = rustix::process::Pid::from_raw(pid)
                .map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
        }
        wait_or_kill(&mut self.child);
    }
}

fn stat(path: &str) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(path).ok()?;
    Some(stat.rsplit_once(") ")?.1.split_ascii_whitespace().map(str::to_owned).collect())
}

/// The foreground process group of a process's terminal.
pub fn foreground(pid: i32) -> Option<i32> {
    stat(&format!("/proc/{pid}/stat"))?[5].parse().ok()
}

/// The processes of a session.
pub fn members(session: i32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        stat(&format!("/proc/{pid}/stat")).is_some_and(|stat| stat[3] == session.to_string())
    })
    .collect()
}

/// Nice value and I/O priority of a thread.
pub fn values_of(pid: i32, tid: i32) -> Option<String> {
    let stat = stat(&format!("/proc/{pid}/task/{tid}/stat"))?;
    Some(format!("{} {}", stat[16], io_priority(tid)?))
}

pub fn values(pid: i32) -> Option<String> {
    values_of(pid, pid)
}

fn io_priority(tid: i32) -> Option<String> {
    // SAFETY: the call takes two numbers.
    let raw = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, tid) };
    let class = ["none", "rt/", "be/", "idle"].get(usize::try_from(raw >> 13).ok()?)?;
    Some(if class.ends_with('/') { format!("{class}{}", raw & 7) } else { (*class).to_owned() })
}

pub fn set_io_priority(tid: i32, raw: i32) {
    // SAFETY: the call takes three numbers.
    assert_eq!(unsafe { libc::syscall(libc::SYS_ioprio_set, 1, tid, raw) }, 0);
}

pub fn renice(tid: i32, nice: i32) {
    rustix::process::setpriority_process(rustix::process::Pid::from_raw(tid), nice).unwrap();
}

/// Waits until a process has these values.
#[track_caller]
pub fn until_it_has(pid: i32, wanted: &str) {
    let mut last = None;
    let begin = Instant::now();
    while last.as_deref() != Some(wanted) {
        assert!(begin.elapsed() < PATIENCE, "{pid} has {last:?}, not {wanted}, for {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(4));
        last = values(pid);
    }
}
