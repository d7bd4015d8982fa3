//! The guard: a separate process that restores every thread when the daemon ends or hangs.
//!
//! The guard is in a separate session, ignores the signals that end sessions, and holds one end of
//! a pipe whose other end is the daemon's. However the daemon ends, the pipe is closed. The daemon
//! in turn holds a pidfd of it, and changes no thread while there is no guard. The guard runs
//! real-time above all boosted threads, or it might never run.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use vlane_error::counted;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::table::Reader;
use super::{monotonic_ns, priority};
use crate::sys::{self, Attr};
use crate::{Error, ErrorKind, Result};

/// A daemon that has not said that it lives for so long stands still.
const STALLED_NS: u64 = 1_000_000_000;
/// Interval of the guard's looks.
const LOOK: Duration = Duration::from_millis(250);
/// The time in which a new guard has to be ready.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// The command that starts a guard: `program args... TABLE`.
#[derive(Debug, Clone)]
pub struct GuardCommand {
    /// The program.
    pub program: PathBuf,
    /// The arguments before the table's path.
    pub args: Vec<String>,
}

impl GuardCommand {
    /// This very program, called as `vlane sched guard`.
    pub fn own() -> Self {
        // Not the path of the file: it may be replaced by a new version while the daemon runs.
        Self { program: "/proc/self/exe".into(), args: vec!["sched".into(), "guard".into()] }
    }
}

/// A running guard.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    pidfd: OwnedFd,
}

impl Guard {
    /// Starts one, and waits until it is ready. Its end makes the epoll set `alarm` readable.
    ///
    /// # Errors
    ///
    /// An error if the guard cannot be started, or is not ready in five seconds.
    pub fn start(command: &GuardCommand, table: &Path, alarm: &OwnedFd) -> Result<Self> {
        let fail = |error: io::Error| {
            let text = format!(
                "cannot start the guard ({} {}), without which no thread is changed",
                command.program.display(),
                command.args.join(" ")
            );
            Error::caused_by(ErrorKind::Io, text, error)
        };
        let mut child = Command::new(&command.program)
            .args(&command.args)
            .arg(table)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(fail)?;
        let ready = Self::wait_ready(&mut child).and_then(|pidfd| {
            epoll::add(alarm, &pidfd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            Ok(pidfd)
        });
        match ready {
            Ok(pidfd) => Ok(Self { child, pidfd }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(fail(error))
            }
        }
    }

    fn wait_ready(child: &mut Child) -> io::Result<OwnedFd> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pidfd = pidfd_open(pid.ok_or(io::ErrorKind::InvalidData)?, PidfdFlags::empty())?;
        let mut out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        if !readable(out.as_fd(), READY_WITHIN)? {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it was not ready in 5 s"));
        }
        let mut ready = [0];
        match out.read(&mut ready)? {
            1 => Ok(pidfd),
            _ => Err(io::Error::other("it ended at once")),
        }
    }

    /// Returns true if it is alive, as far as the system tells.
    pub fn is_alive(&self) -> bool {
        !matches!(readable(self.pidfd.as_fd(), Duration::ZERO), Ok(true))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // It sees the pipe's end, restores what is left in the table, and goes.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn readable(fd: std::os::fd::BorrowedFd<'_>, within: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            // A signal is no answer.
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The guard's life: `table` is the daemon's, standard input the pipe. Comes back when the daemon
/// is gone and all is restored.
///
/// # Errors
///
/// The table cannot be read, or threads could not be restored.
pub fn guard(table: &Path) -> Result<()> {
    let fail = |error: io::Error| {
        Error::caused_by(ErrorKind::Io, format!("the guard cannot read {}", table.display()), error)
    };
    // A separate name: killing all "vlane" by name must spare the process that cleans up.
    let _ = rustix::thread::set_name(c"sched-guard");
    let _ = rustix::process::setsid();
    let _ = rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT);
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    // Ending a whole group of processes ends the daemon first; then the guard has work to do.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ignored)).map_err(fail)?;
    }
    let reader = match Reader::open(table) {
        // The daemon has ended since, and its table was tidied up: the guard has no work.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        reader => reader.map_err(fail)?,
    };
    let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    sys::set(me, &Attr::round_robin(priority::GUARD)).map_err(|error| {
        Error::caused_by(ErrorKind::Permission, "the guard cannot be real-time", error)
    })?;
    let mut out = io::stdout();
    // A daemon that is gone already does not read it; the loop below sees that.
    let _ = out.write_all(b"!").and_then(|()| out.flush());
    let stdin = io::stdin();
    let mut told = false;
    while !readable(stdin.as_fd(), LOOK).map_err(fail)? {
        // 0: it has not begun yet.
        let beat = reader.beat().map_err(fail)?;
        let stalled = beat != 0 && monotonic_ns().saturating_sub(beat) > STALLED_NS;
        if stalled && !told {
            reader.restore().and_then(|_| reader.intervened()).map_err(fail)?;
        }
        told = stalled;
    }
    let mut restored = reader.restore().map_err(fail)?;
    // A thread that was being changed at that very moment may have been missed; a second pass is
    // cheap.
    restored.failed = reader.restore().map_err(fail)?.failed;
    if restored.damaged > 0 {
        let text = format!(
            "{}: {} of its entries make no sense: left alone, and the file is kept; `vlane sched \
             repair` says more",
            table.display(),
            restored.damaged
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    if restored.failed > 0 {
        let text = format!(
            "a changed priority remains with {}: the system does not let the guard restore them; \
             `vlane sched repair`, as the scheduler's user with CAP_SYS_NICE, does",
            counted(restored.failed, "thread")
        );
        return Err(Error::new(ErrorKind::Permission, text));
    }
    reader.remove();
    Ok(())
}
