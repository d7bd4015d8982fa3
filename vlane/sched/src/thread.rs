//! One thread of the host, as the scheduler sees it: its identity, its state and its CPU time.
//!
//! The files below `/proc` are kept open, because they belong to the thread and not to its number.
//! So a later thread with the same number can never be taken for it. Measured on a busy machine:
//! `schedstat` 0.6 us, `stat` 2.7 us.
//!
//! CPU time comes from `schedstat`. The thread's CPU clock (`clock_gettime`) is closed to other
//! processes (`pid_for_clock` in the kernel). A `perf` counter costs 26 us and an interrupt of the
//! running thread. `schedstat` is exact for a thread that waits or sleeps, and right after a change
//! of policy. For a running thread it is as old as the last tick (1 to 10 ms). It is a sum, so such
//! errors never add up.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::{Error, ErrorKind, Result};

/// The figures in `schedstat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clock {
    /// CPU time used, ns.
    pub ran_ns: u64,
    /// Time spent waiting for a CPU, ns ("CPU ready", "steal time").
    pub waited_ns: u64,
}

/// A thread.
#[derive(Debug)]
pub struct Thread {
    tid: u32,
    pid: u32,
    user: u32,
    start: u64,
    schedstat: File,
    stat: File,
}

/// A group of threads whose nice values count among each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NiceGroup {
    /// All threads without a group.
    Host,
    /// The autogroup of a session, by its name.
    Session(String),
    /// A cgroup with the controller `cpu` of version 1, by its path.
    Version1(String),
    /// A cgroup of version 2, by its path.
    Version2(String),
}

impl std::fmt::Display for NiceGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("no group"),
            Self::Session(name) => write!(f, "session {name}"),
            Self::Version1(path) | Self::Version2(path) => write!(f, "cgroup {path}"),
        }
    }
}

/// Returns true if the error means that a thread no longer exists.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

/// A thread's state and start time, out of `/proc/PID/stat`: fields 3 and 22, counted after the
/// name, which may hold any bytes.
fn parse_stat(text: &[u8]) -> Option<(u8, u64)> {
    let after = text.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = std::str::from_utf8(text.get(after..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

/// The process that a thread belongs to, and its (real) user.
pub(crate) fn process_of(tid: u32) -> io::Result<(u32, u32)> {
    // Its name is in it, too, with any bytes.
    let status = std::fs::read(format!("/proc/{tid}/status"))?;
    let status = String::from_utf8_lossy(&status);
    let first = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    first("Tgid:").zip(first("Uid:")).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns true if a thread of this number with this start time (clock ticks after boot) exists.
///
/// # Errors
/// An error if the answer cannot be found out now: there is no descriptor left, for example.
pub fn is_same(tid: u32, start: u64) -> io::Result<bool> {
    match std::fs::read(format!("/proc/{tid}/stat")) {
        Ok(text) => Ok(parse_stat(&text).is_some_and(|(_, found)| found == start)),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Thread {
    /// The thread with this number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Gone`]: there is none.
    /// [`ErrorKind::Unsupported`]: the kernel keeps no times of threads.
    pub fn open(tid: u32) -> Result<Self> {
        let fail = |error: io::Error| {
            let (kind, text) = match is_gone(&error) {
                true => (
                    ErrorKind::Gone,
                    format!("no thread {tid} on this host: it has ended, or never was"),
                ),
                false => (ErrorKind::Io, format!("cannot look at thread {tid} in /proc")),
            };
            Error::caused_by(kind, text, error)
        };
        let (pid, user) = process_of(tid).map_err(fail)?;
        let open = |name: &str| {
            let path: PathBuf = format!("/proc/{pid}/task/{tid}/{name}").into();
            File::open(path)
        };
        let stat = open("stat").map_err(fail)?;
        if vlane_socket::is_scarce(&stat) {
            // Otherwise the threads that are scheduled already could not be read any more.
            let text = format!(
                "thread {tid} is not taken: the last file descriptors are kept for other work"
            );
            return Err(Error::caused_by(ErrorKind::Io, text, vlane_socket::no_descriptor()));
        }
        let schedstat = open("schedstat").map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if is_same_file_there(tid) => Error::new(
                ErrorKind::Unsupported,
                "this kernel has no /proc/PID/schedstat; it needs CONFIG_SCHED_INFO (any \
                 distribution's kernel has it)",
            ),
            _ => fail(error),
        })?;
        let mut thread = Self { tid, pid, user, start: 0, schedstat, stat };
        thread.start = thread.read_stat().map_err(fail)?.1;
        Ok(thread)
    }

    /// Its number.
    pub const fn tid(&self) -> u32 {
        self.tid
    }

    /// The parent of its process, if it still runs.
    pub fn parent(&self) -> Option<u32> {
        let status = std::fs::read(format!("/proc/{}/status", self.pid)).ok()?;
        String::from_utf8_lossy(&status)
            .lines()
            .find_map(|line| line.strip_prefix("PPid:"))?
            .trim()
            .parse()
            .ok()
    }

    /// Its process.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// The user that its process belonged to when it was opened.
    pub const fn user(&self) -> u32 {
        self.user
    }

    /// Its entry in `/proc`, the same file for every process that opens it.
    pub(crate) fn entry(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.stat)
    }

    /// Its start time, clock ticks after boot: with its number, its identity.
    pub const fn start(&self) -> u64 {
        self.start
    }

    fn read_stat(&self) -> io::Result<(u8, u64)> {
        let mut text = [0; 1024];
        let len = self.stat.read_at(&mut text, 0)?;
        parse_stat(&text[..len]).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
    }

    /// Its CPU time and how long it has waited for it.
    ///
    /// # Errors
    ///
    /// ESRCH when it has ended ([`is_gone`]).
    pub fn clock(&self) -> io::Result<Clock> {
        let mut text = [0; 96];
        let len = self.schedstat.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(&text[..len]).unwrap_or_default();
        let mut fields = text.split_ascii_whitespace().map(str::parse);
        match (fields.next(), fields.next()) {
            (Some(Ok(ran_ns)), Some(Ok(waited_ns))) => Ok(Clock { ran_ns, waited_ns }),
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// Returns true if it has ended, by the system's word: a thread that cannot be read for another
    /// reason has not.
    pub fn has_ended(&self) -> bool {
        self.clock().is_err_and(|error| is_gone(&error))
    }

    /// Returns true if it wants a CPU (has one or waits for one), and false if it sleeps.
    ///
    /// # Errors
    ///
    /// ESRCH when it has ended ([`is_gone`]).
    pub fn is_runnable(&self) -> io::Result<bool> {
        match self.read_stat()?.0 {
            b'R' => Ok(true),
            b'Z' | b'X' => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            _ => Ok(false),
        }
    }

    /// Returns true if it is stopped (SIGSTOP, a debugger): it wants no CPU until it is continued.
    ///
    /// # Errors
    ///
    /// ESRCH when it has ended ([`is_gone`]).
    pub fn is_stopped(&self) -> io::Result<bool> {
        Ok(matches!(self.read_stat()?.0, b'T' | b't'))
    }

    /// The group within which its nice value counts.
    pub fn competes_in(&self) -> NiceGroup {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/proc/{}/{name}", self.tid)).unwrap_or_default()
        };
        let groups = read("cgroup");
        // Without a controller of version 1 it is the only hierarchy of version 2.
        let version1 = cpu_group(&groups);
        let version2 = groups.lines().find_map(|line| line.strip_prefix("0::"));
        match version1.or(version2) {
            None | Some("/") => {}
            Some(path) if version1.is_some() => return NiceGroup::Version1(path.to_owned()),
            Some(path) => return NiceGroup::Version2(path.to_owned()),
        }
        let enabled =
            std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").unwrap_or_default();
        match read("autogroup").split_whitespace().next() {
            Some(name) if enabled.trim() == "1" => NiceGroup::Session(name.to_owned()),
            _ => NiceGroup::Host,
        }
    }

    /// The group whose real-time budget counts for it, as a message for people; empty if unknown.
    pub fn describe_group(&self) -> String {
        let groups =
            std::fs::read_to_string(format!("/proc/{}/cgroup", self.tid)).unwrap_or_default();
        let path = cpu_group(&groups).filter(|path| *path != "/");
        path.map(|path| format!("/sys/fs/cgroup/cpu{path}/cpu.rt_runtime_us")).unwrap_or_default()
    }
}

/// The group under the controller `cpu` of version 1, out of `/proc/PID/cgroup`.
fn cpu_group(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == "cpu").then_some(path)
    })
}

fn is_same_file_there(tid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{tid}/stat")).exists()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn any_thread_name_is_parsed() {
        let line = b"7 (a) R (b) c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 2 3";
        assert_eq!(parse_stat(line), Some((b'S', 4242)));
        assert_eq!(parse_stat(b""), None);
        assert_eq!(parse_stat(b"7 (x) R 1 2"), None);
    }

    #[test]
    fn thread_uses_cpu_time_until_end() {
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let handle = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            let _ = stopped.recv();
        });
        let thread = Thread::open(told.recv().unwrap()).unwrap();
        assert_eq!(thread.pid(), std::process::id());
        assert!(is_same(thread.tid(), thread.start()).unwrap());
        assert!(!is_same(thread.tid(), thread.start() + 1).unwrap());
        // The kernel counts it when the thread sleeps, or at the next tick.
        let until = Instant::now() + Duration::from_secs(60);
        while thread.clock().unwrap().ran_ns == 0 {
            assert!(Instant::now() < until, "no time is counted");
            std::thread::yield_now();
        }
        stop.send(()).unwrap();
        handle.join().unwrap();
        // It is reaped a moment after join.
        while thread.clock().is_ok() {
            std::thread::yield_now();
        }
        assert!(is_gone(&thread.clock().unwrap_err()));
        assert!(is_gone(&thread.is_runnable().unwrap_err()));
        assert_eq!(Thread::open(thread.tid()).unwrap_err().kind(), ErrorKind::Gone);
    }
}
