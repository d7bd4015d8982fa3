//! The realtime vehicle in this process, and threads for it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vlane_error::describe;
use vlane_policy::loan::{Goal, Params, Policy};
use vlane_sched::VcpuThreads;
use vlane_sched::realtime::guard::GuardCommand;
use vlane_sched::realtime::{RealTime, Settings};
use vlane_sched::sys::{self, Class};

/// Until something that must come is taken for missing: the machine may have a lot else to do.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A thread that computes until it is dropped.
pub struct Hog {
    pub tid: u32,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Hog {
    pub fn new() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = std::sync::mpsc::channel();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Self { tid: told.recv().unwrap(), stop, thread: Some(thread) }
    }

    pub fn class(&self) -> Class {
        sys::get(self.tid).unwrap().class
    }

    pub fn threads(&self, name: &str) -> VcpuThreads {
        VcpuThreads { pid: std::process::id(), index: 0, tids: vec![self.tid], name: name.into() }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// A vehicle whose guard is this program.
pub fn vehicle(
    program: &str,
    policy: Policy,
    dir: &Path,
    change: impl Fn(&mut Settings),
) -> RealTime {
    let mut settings = Settings::new(Params::sound(policy), Goal::default());
    change(&mut settings);
    let guard =
        GuardCommand { program: program.into(), args: vec!["sched".into(), "guard".into()] };
    // A guard has five seconds to be ready. A busy machine may not give it any CPU in that time.
    let until = Instant::now() + PATIENCE;
    loop {
        match RealTime::new(settings.clone(), dir, guard.clone()) {
            Ok(vehicle) => return vehicle,
            Err(error) => {
                let why = describe(&error);
                assert!(why.contains("it was not ready") && Instant::now() < until, "{why}");
            }
        }
    }
}
