//! Lock waits: the time that the threads of a process spend in futex(2), which locks, condition variables and joins all end in.
//!
//! Counted in the kernel by bpftrace, from the entry to the end of each call. A wait that has not ended when the watch does is not counted
//! (a thread that waits for work all the time shows nothing). Needs root, because BPF does.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use vlane_boot::Spec;

use super::Counted;

/// How long bpftrace may take to compile its program and to attach it, and how long to end.
const READY: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(10);
/// The number of the first pid namespace (PROC_PID_INIT_INO of the kernel): outside of it BPF sees other numbers than we do.
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// What one thread did in futex calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FutexUse {
    /// The thread's name, if it lived long enough to be asked.
    pub name: String,
    /// Calls that wait.
    pub waits: u64,
    /// Time in them.
    pub waited: Duration,
    /// Calls that wake others, and the rest.
    pub wakes: u64,
}

/// All threads', by their number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FutexUses {
    /// By thread.
    pub threads: BTreeMap<i32, FutexUse>,
}

impl FutexUses {
    /// Calls that waited, of all threads.
    pub fn waits(&self) -> u64 {
        self.threads.values().map(|thread| thread.waits).sum()
    }

    /// Calls that woke others, of all threads.
    pub fn wakes(&self) -> u64 {
        self.threads.values().map(|thread| thread.wakes).sum()
    }

    /// Time of all threads in calls that waited.
    pub fn waited(&self) -> Duration {
        self.threads.values().map(|thread| thread.waited).sum()
    }
}

/// A watch on the futex calls of a process. Dropping it ends it.
#[derive(Debug)]
pub struct FutexWatch {
    pid: i32,
    child: Child,
    lines: Receiver<String>,
}

/// It says all the time that it is ready: bpftrace 0.17 may sleep through its end if nothing wakes it.
///
/// The commands 0 (WAIT), 9 (WAIT_BITSET), 6 and 13 (LOCK_PI), 11 (WAIT_REQUEUE_PI) wait; 127 masks the flags (futex(2)).
fn program(pid: i32) -> String {
    format!(
        "tracepoint:syscalls:sys_enter_futex /pid == {pid}/ {{
            $op = args->op & 127;
            if ($op == 0 || $op == 9 || $op == 6 || $op == 13 || $op == 11) {{ @start[tid] = nsecs; }}
            else {{ @wakes[tid] = count(); }}
        }}
        tracepoint:syscalls:sys_exit_futex /@start[tid]/ {{
            @ns[tid] = sum(nsecs - @start[tid]);
            @waits[tid] = count();
            delete(@start[tid]);
        }}
        interval:ms:100 {{ printf(\"ready\\n\"); }}
        END {{ clear(@start); }}"
    )
}

impl FutexWatch {
    /// Begins to watch a process; when this returns, calls are counted. Otherwise: why they cannot be.
    pub fn start(pid: i32) -> Counted<Self> {
        Self::begin(pid).map_or_else(|reason| Counted::Not(format!("not counted: {reason}")), Counted::Is)
    }

    fn begin(pid: i32) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("time in futex calls is measured with BPF, which needs root".into());
        }
        let Some(bpftrace) = vlane_boot::find_program("bpftrace") else {
            return Err("bpftrace is not installed (Debian: apt-get install bpftrace)".into());
        };
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        if namespace.to_string_lossy() != FIRST_NAMESPACE {
            return Err("in a container BPF sees other process numbers; run it on the host".into());
        }
        let mut spec = Spec::new(bpftrace, ["-f", "json", "-e", &program(pid)]);
        // Every thread of a large process has a place.
        spec.envs.push(("BPFTRACE_MAP_KEYS_MAX".into(), "65536".into()));
        let mut child = spec.spawn_apart("KILL").map_err(|error| error.to_string())?;
        let (sender, lines) = channel();
        let pipes: [Option<Box<dyn std::io::Read + Send>>; 2] = [
            child.stdout.take().map(|pipe| Box::new(pipe) as Box<_>),
            child.stderr.take().map(|pipe| Box::new(pipe) as Box<_>),
        ];
        for pipe in pipes.into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut watch = Self { pid, child, lines };
        let said = watch.wait_ready()?;
        match said {
            None => Ok(watch),
            Some(said) => Err(format!("bpftrace cannot be used here: {said}")),
        }
    }

    /// Waits until the probes are in place; what bpftrace said if it ended instead.
    fn wait_ready(&mut self) -> Result<Option<String>, String> {
        let deadline = Instant::now() + READY;
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains("ready") => return Ok(None),
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Disconnected) => return Ok(Some(said.join("; "))),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("bpftrace was not ready after {} s", READY.as_secs()));
                }
            }
        }
    }

    /// Ends the watch: what was counted.
    pub fn stop(mut self) -> Counted<FutexUses> {
        let names = names(self.pid);
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), pid) {
            // It prints what it counted when it is interrupted.
            let _ = kill_process(pid, Signal::INT);
        }
        let deadline = Instant::now() + END;
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    return Counted::Not(format!(
                        "not counted: bpftrace did not end within {} s",
                        END.as_secs()
                    ));
                }
            }
        }
        let mut uses = parse(&lines);
        for (tid, thread) in &mut uses.threads {
            thread.name = names.get(tid).cloned().unwrap_or_default();
        }
        Counted::Is(uses)
    }
}

impl Drop for FutexWatch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The names of the threads that live.
fn names(pid: i32) -> BTreeMap<i32, String> {
    let look = super::proc::ProcessLook::take(pid).unwrap_or_default();
    look.threads.into_iter().map(|((tid, _), thread)| (tid, thread.comm)).collect()
}

/// Reads what bpftrace printed at its end: one JSON object per map, `{"type": "map", "data": {"@ns": {"4711": 12}}}`.
fn parse(lines: &[String]) -> FutexUses {
    let mut uses = FutexUses::default();
    for line in lines {
        let Ok(value) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let Some(maps) = value.get("data").and_then(|data| data.as_object()) else { continue };
        for (map, entries) in maps {
            for (tid, value) in entries.as_object().into_iter().flatten() {
                let (Ok(tid), Some(value)) = (tid.parse::<i32>(), value.as_u64()) else { continue };
                let thread = uses.threads.entry(tid).or_default();
                match map.as_str() {
                    "@ns" => thread.waited = Duration::from_nanos(value),
                    "@waits" => thread.waits = value,
                    "@wakes" => thread.wakes = value,
                    _ => {}
                }
            }
        }
    }
    uses
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_bpftrace_prints_is_read() {
        let lines = [
            r#"{"type": "attached_probes", "data": {"probes": 4}}"#,
            r#"{"type": "map", "data": {"@ns": {"11": 5000, "12": 70}}}"#,
            "not JSON",
            r#"{"type": "map", "data": {"@waits": {"11": 2, "12": 1}}}"#,
            r#"{"type": "map", "data": {"@wakes": {"13": 9}}}"#,
        ];
        let uses = parse(&lines.map(str::to_owned));
        assert_eq!((uses.waits(), uses.wakes(), uses.waited()), (3, 9, Duration::from_nanos(5070)));
        assert_eq!(uses.threads.len(), 3);
        assert_eq!(uses.threads[&11].waits, 2);
    }

    #[test]
    fn a_thread_that_waits_for_a_lock_is_found_waiting() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let watch = match FutexWatch::start(pid) {
            Counted::Is(watch) => watch,
            Counted::Not(reason) => return println!("SKIPPED: futex time: {reason}"),
        };
        let lock = std::sync::Arc::new(std::sync::Mutex::new(0));
        let held = lock.lock().unwrap();
        let (ready, is_ready) = channel();
        let (end, may_end) = channel::<()>();
        let other = std::sync::Arc::clone(&lock);
        let waiter = std::thread::Builder::new().name("waiter".into()).spawn(move || {
            ready.send(()).unwrap();
            *other.lock().unwrap() += 1;
            ready.send(()).unwrap();
            let _ = may_end.recv();
        });
        is_ready.recv().unwrap();
        std::thread::sleep(Duration::from_millis(150));
        drop(held);
        is_ready.recv().unwrap();
        let counted = watch.stop();
        drop(end);
        waiter.unwrap().join().unwrap();
        let uses = counted.get().unwrap();
        let waiter = uses.threads.values().find(|thread| thread.name == "waiter").unwrap();
        // It may have come late to its 150 ms on a busy machine.
        assert!(waiter.waits >= 1 && waiter.waited >= Duration::from_millis(50), "{uses:?}");
    }

    #[test]
    fn a_process_without_locks_shows_none() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let watch = FutexWatch::start(i32::try_from(child.id()).unwrap());
        let counted = match watch {
            Counted::Is(watch) => watch.stop(),
            Counted::Not(reason) => Counted::Not(reason),
        };
        child.kill().unwrap();
        child.wait().unwrap();
        match counted {
            Counted::Is(uses) => assert_eq!(uses, FutexUses::default()),
            Counted::Not(reason) => println!("SKIPPED: futex time: {reason}"),
        }
    }
}
