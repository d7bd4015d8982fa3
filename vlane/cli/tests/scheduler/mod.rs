//! Parts that the tests of `vlane sched` share: the right to schedule, another user, and processes
//! that end with the test.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses its own part of this; tests may unwrap"
)]

pub mod live;

pub use live::PATIENCE;

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use vlane_sched::sys::{self, Attr};

/// Another user: `nobody`.
pub const OTHER: u32 = 65534;

/// Says whether a scheduler can run here.
pub fn may_schedule() -> bool {
    vlane_sched::realtime::check().map_err(vlane_testing::skip).is_ok()
}

/// The same, for tests that are other users, too.
pub fn may_schedule_as_root() -> bool {
    if !rustix::process::geteuid().is_root() {
        vlane_testing::skip("only root can be other users");
        return false;
    }
    may_schedule()
}

pub fn wait(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process, ended when this is dropped.
pub struct Process(pub Child);

impl Process {
    /// Starts it without input and output; its errors go where the command says.
    pub fn start(command: &mut Command) -> Process {
        Process(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// The same. Its errors can be read.
    pub fn heard(command: &mut Command) -> Process {
        Process::start(command.stderr(Stdio::piped()))
    }

    pub fn sleep() -> Process {
        Process::start(Command::new("sleep").arg("100"))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The way in which it is scheduled.
    pub fn is(&self) -> Attr {
        sys::get(self.pid()).unwrap()
    }

    pub fn send(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid().cast_signed()).unwrap(), signal).unwrap();
    }

    /// Ends it in order, and returns its errors.
    pub fn end(mut self) -> (ExitStatus, String) {
        let pid = Pid::from_raw(self.pid().cast_signed()).unwrap();
        let _ = kill_process(pid, Signal::TERM);
        self.wait()
    }

    pub fn wait(&mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap(), said)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
