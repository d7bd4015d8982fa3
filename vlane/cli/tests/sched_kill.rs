//! No thread keeps a priority of the scheduler's after the scheduler was killed, in whatever way.
//!
//! `VLANE_KILLS=N` sets the number of rounds.
#![allow(clippy::unwrap_used, reason = "tests")]

mod scheduler;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use scheduler::may_schedule;
use vlane_sched::live::socket::Client;
use vlane_sched::sys::{self, Attr, Class};

/// Rounds without VLANE_KILLS.
const ROUNDS: usize = 400;
/// Schedulers at once.
const WORKERS: usize = 4;
/// No step takes so long, unless it never happens.
const PATIENCE: Duration = Duration::from_secs(60);

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Threads to be scheduled: one sleeps, one works now and then, one has a nice value of its own.
struct Victims {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
    were: Vec<(u32, Attr)>,
}

impl Victims {
    fn new() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = std::sync::mpsc::channel();
        let threads = (0..3_i32)
            .map(|kind| {
                let (stop, tell) = (Arc::clone(&stop), tell.clone());
                std::thread::spawn(move || {
                    if kind == 2 {
                        let was = sys::get(tid()).unwrap();
                        sys::set(tid(), &Attr { nice: 5, slice_ns: 0, ..was }).unwrap();
                    }
                    tell.send((tid(), sys::get(tid()).unwrap())).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        let until =
                            Instant::now() + Duration::from_micros(if kind == 0 { 0 } else { 100 });
                        while Instant::now() < until {
                            std::hint::spin_loop();
                        }
                        std::thread::sleep(Duration::from_millis(2));
                    }
                })
            })
            .collect();
        let were = told.iter().take(3).collect();
        Self { stop, threads, were }
    }

    /// The first of them that is not as it was, and its difference.
    fn changed(&self) -> Option<String> {
        self.were.iter().find_map(|&(tid, was)| {
            let is = sys::get(tid).unwrap();
            (is != was).then(|| format!("thread {tid} was {was:?} and is {is:?}"))
        })
    }
}

impl Drop for Victims {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn start(dir: &Path, victims: &Victims) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vlane"));
    command.args(["sched", "run", "--policy", "always-boost", "--rt-share", "100"]);
    for (tid, _) in &victims.were {
        command.args(["--tid", &tid.to_string()]);
    }
    command.arg("--socket").arg(dir.join("socket")).arg("--state-dir").arg(dir.join("state"));
    command.env("VLANE_LOG", "error").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

fn children(pid: u32) -> Vec<u32> {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = kill_process(pid, signal);
    }
}

/// Waits for something, and says whether it came.
fn wait(mut is: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + PATIENCE;
    while !is() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// True if a scheduler ends within a moment.
fn wait_for_end(daemon: &mut Child) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while daemon.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// True if a scheduler is at work: it reports its state, and has a guard. A scheduler whose first
/// guard is killed while it starts says so, and ends.
fn is_ready(dir: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(dir.join("socket")) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    stream.write_all(b"state\n").is_ok() && stream.read_exact(&mut [0]).is_ok()
}

fn tables(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("state")).map_or(0, Iterator::count)
}

/// True if a list names a thread. A list without threads is left when a scheduler is killed before
/// it has a guard; the next removes it.
fn is_pending(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir.join("state")) else { return false };
    let lists = entries.filter_map(|entry| std::fs::read(entry.ok()?.path()).ok());
    {
        let mut lists = lists;
        lists.any(|bytes| bytes.iter().skip(64).any(|&byte| byte != 0))
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Sends events for all victims, as fast as they are taken, until `until`. If that `suffices`, the
/// loop ends at the first thread seen that is not as it was. Returns true if there was one.
fn boost(dir: &Path, victims: &Victims, until: Instant, suffices: bool) -> bool {
    let mut stream: Option<UnixStream> = None;
    let mut seen = false;
    while Instant::now() < until && !(seen && suffices) {
        let Some(to) = stream.as_mut() else {
            stream = UnixStream::connect(dir.join("socket")).ok();
            std::thread::sleep(Duration::from_micros(200));
            continue;
        };
        let lines: String = victims.were.iter().map(|(tid, _)| format!("event {tid}\n")).collect();
        if to.write_all(lines.as_bytes()).is_err() {
            return seen;
        }
        std::thread::sleep(Duration::from_micros(300));
        seen |= victims.changed().is_some();
    }
    seen
}

/// True if `repair` leaves no list behind. Live guards restore the threads of their lists in a
/// moment; `repair` leaves those lists alone.
fn is_repaired(dir: &Path) -> bool {
    wait(|| {
        let repair = Command::new(env!("CARGO_BIN_EXE_vlane"))
            .args(["sched", "repair", "--state-dir"])
            .arg(dir.join("state"))
            .stdout(Stdio::null())
            .status();
        let has_succeeded = repair.unwrap().success();
        // A daemon that was killed before it had made the directory has changed no thread, and
        // `repair` says that the directory is missing.
        tables(dir) == 0 && (has_succeeded || !dir.join("state").exists())
    })
}

/// One round; whether threads were seen changed right before the kill.
fn round(dir: &Path, victims: &Victims, number: usize, random: &mut Random) -> bool {
    let mut daemon = start(dir, victims);
    // Sometimes before it is ready, sometimes in the midst of boosts. A slow machine takes longer
    // to start than that, so in three of four rounds the time begins when it listens.
    if !(number / 8).is_multiple_of(4) {
        assert!(wait(|| dir.join("socket").exists()), "round {number}: it never listens");
    }
    // In one of four the kill comes when a thread is not as it was, however long that takes.
    let is_certain = (number / 8) % 4 == 1;
    let longest = if is_certain { PATIENCE } else { Duration::from_micros(random.below(80_000)) };
    let mut seen = boost(dir, victims, Instant::now() + longest, is_certain);
    // A scheduler ends when its guard is not ready in five seconds. A busy machine may not give the
    // guard any CPU in that time: then it is another one's turn.
    for _ in 0..5 {
        if seen || !is_certain || !wait_for_end(&mut daemon) {
            break;
        }
        daemon = start(dir, victims);
        assert!(wait(|| dir.join("socket").exists()), "round {number}: it never listens");
        seen = boost(dir, victims, Instant::now() + longest, is_certain);
    }
    assert!(seen || !is_certain, "round {number}: no thread is changed");
    let guards = children(daemon.id());
    match number % 8 {
        // The guard first, and soon after the daemon: perhaps before it has noticed, perhaps after.
        3 => {
            for &guard in &guards {
                kill(guard, Signal::KILL);
            }
            std::thread::sleep(Duration::from_micros(random.below(50_000)));
            kill(daemon.id(), Signal::KILL);
        }
        // Both at once: only the next `run` or `repair` could restore anything.
        7 => {
            kill(daemon.id(), Signal::KILL);
            for guard in guards {
                kill(guard, Signal::KILL);
            }
        }
        // The daemon; the guard gets a signal to end, which it must ignore.
        5 => {
            for guard in guards {
                kill(guard, Signal::TERM);
            }
            kill(daemon.id(), Signal::KILL);
        }
        _ => kill(daemon.id(), Signal::KILL),
    }
    daemon.wait().unwrap();
    if matches!(number % 8, 3 | 7) {
        let done = is_repaired(dir);
        assert!(done, "round {number}: a list of changed threads is left after repair");
    } else {
        assert!(wait(|| !is_pending(dir)), "round {number}: the guard has not done its work");
    }
    assert_eq!(victims.changed(), None, "round {number}");
    let _ = std::fs::remove_file(dir.join("socket"));
    seen
}

#[test]
fn early_kill_leaves_nothing_to_repair() {
    if !may_schedule() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let victims = Victims::new();
    let mut daemon = start(dir.path(), &victims);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert!(is_repaired(dir.path()));
    assert_eq!(victims.changed(), None);
}

#[test]
fn killed_scheduler_leaves_threads_unchanged() {
    if !may_schedule() {
        return;
    }
    let rounds = std::env::var("VLANE_KILLS").map_or(ROUNDS, |text| text.parse().unwrap());
    let begin = Instant::now();
    let (next, seen) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (next, seen) = (&next, &seen);
            scope.spawn(move || {
                let dir =
                    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
                let victims = Victims::new();
                let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (worker as u64 + 1) << 20);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= rounds {
                        return;
                    }
                    if round(dir.path(), &victims, number, &mut random) {
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let seen = seen.load(Ordering::Relaxed);
    println!(
        "{rounds} kills in {:.0?}; in {seen} of them threads were seen changed before",
        begin.elapsed()
    );
}

#[test]
fn stopped_scheduler_keeps_no_thread_real_time() {
    if !may_schedule() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let victims = Victims::new();
    let mut daemon = start(dir.path(), &victims);
    let pid = daemon.id();
    let mut stopped = false;
    // Until it was caught with a boost on.
    for _ in 0..1000 {
        boost(dir.path(), &victims, Instant::now() + Duration::from_millis(20), false);
        kill(pid, Signal::STOP);
        std::thread::sleep(Duration::from_millis(2));
        if victims.were.iter().any(|(tid, _)| sys::get(*tid).unwrap().class == Class::RoundRobin) {
            stopped = true;
            break;
        }
        kill(pid, Signal::CONT);
    }
    assert!(stopped, "no boost was ever on when the scheduler was stopped");
    assert!(wait(|| victims.changed().is_none()), "{:?}", victims.changed());
    kill(pid, Signal::CONT);
    kill(pid, Signal::TERM);
    assert!(daemon.wait().unwrap().success());
    assert_eq!((victims.changed(), tables(dir.path())), (None, 0));
}

#[test]
fn killed_guard_is_replaced() {
    if !may_schedule() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let victims = Victims::new();
    let mut daemon = start(dir.path(), &victims);
    let pid = daemon.id();
    assert!(wait(|| is_ready(dir.path())));
    for _ in 0..5 {
        boost(dir.path(), &victims, Instant::now() + Duration::from_millis(10), false);
        let before = children(pid);
        for &guard in &before {
            kill(guard, Signal::KILL);
        }
        let another = wait(|| children(pid).first().is_some_and(|now| !before.contains(now)));
        assert!(another, "no other guard");
    }
    kill(pid, Signal::TERM);
    assert!(daemon.wait().unwrap().success());
    assert_eq!((victims.changed(), tables(dir.path())), (None, 0));
    assert!(!dir.path().join("socket").exists());
}

/// Runs `vlane sched run` to its end; what it said.
fn run_to_end(dir: &Path, tids: &[u32], more: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vlane"));
    command.args(["sched", "run"]).args(more);
    for tid in tids {
        command.args(["--tid", &tid.to_string()]);
    }
    command.arg("--socket").arg(dir.join("socket")).arg("--state-dir").arg(dir.join("state"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn last_thread_ends_the_scheduler() {
    if !may_schedule() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut sleep = Command::new("sleep").arg("1000").spawn().unwrap();
    let tid = sleep.id();
    let socket = dir.path().join("socket");
    let reaper = std::thread::spawn(move || {
        // Not before the scheduler has it.
        wait(|| {
            let state = Client::connect(&socket, false).and_then(|mut client| client.next_state());
            state.ok().flatten().is_some_and(|(_, state)| !state.vcpus.is_empty())
        });
        sleep.kill().and_then(|()| sleep.wait())
    });
    let (success, said) = run_to_end(dir.path(), &[tid], &[]);
    assert!(success && said.contains("all its threads have ended"), "{said}");
    assert_eq!(tables(dir.path()), 0);
    reaper.join().unwrap().unwrap();
    // No process has its number now.
    let (success, said) = run_to_end(dir.path(), &[tid], &[]);
    assert!(!success && said.contains("no thread") && said.contains("ended"), "{said}");
}

#[test]
fn foreign_real_time_threads_stay_untouched() {
    if !may_schedule() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut sleep = Command::new("sleep").arg("60").spawn().unwrap();
    sys::set(sleep.id(), &Attr::round_robin(1)).unwrap();
    let (success, said) = run_to_end(dir.path(), &[sleep.id()], &[]);
    assert!(!success && said.contains("left alone"), "{said}");
    assert_eq!(sys::get(sleep.id()).unwrap().class, Class::RoundRobin);
    sleep.kill().unwrap();
    sleep.wait().unwrap();

    let victims = Victims::new();
    let mut daemon = start(dir.path(), &victims);
    assert!(wait(
        || UnixStream::connect(dir.path().join("socket")).is_ok() && tables(dir.path()) == 1
    ));
    let (success, said) = run_to_end(dir.path(), &[victims.were[0].0], &[]);
    assert!(!success && said.contains("running already"), "{said}");
    kill(daemon.id(), Signal::TERM);
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn missing_capability_changes_nothing_and_names_remedy() {
    if !may_schedule() {
        return;
    }
    let victims = Victims::new();
    let dir = tempfile::tempdir().unwrap();
    let without = Command::new("setpriv")
        .args(["--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"])
        .arg(env!("CARGO_BIN_EXE_vlane"))
        .args(["sched", "run", "--tid", &victims.were[0].0.to_string(), "--state-dir"])
        .arg(dir.path())
        .output();
    let Ok(output) = without else {
        return vlane_testing::skip("no setpriv (util-linux)");
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success()
            && said.contains("CAP_SYS_NICE")
            && said.contains("AmbientCapabilities"),
        "{said}"
    );
    assert_eq!((victims.changed(), tables(dir.path())), (None, 0));
}

/// A group of processes without a real-time budget, removed when this is dropped.
struct Group(std::path::PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        // A thread that has just ended may still be counted.
        wait(|| std::fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn group_without_real_time_budget_is_named() {
    if !may_schedule() {
        return;
    }
    let group = Path::new("/sys/fs/cgroup/cpu").join(format!("vlane-test-{}", std::process::id()));
    if std::fs::create_dir(&group).is_err() || !group.join("cpu.rt_runtime_us").exists() {
        let _ = std::fs::remove_dir(&group);
        return vlane_testing::skip("no cgroup v1 with RT_GROUP_SCHED here");
    }
    let group = Group(group);
    let dir = tempfile::tempdir().unwrap();
    let mut sleep = Command::new("sleep").arg("60").spawn().unwrap();
    let was = sys::get(sleep.id()).unwrap();
    std::fs::write(group.0.join("tasks"), sleep.id().to_string()).unwrap();
    let (success, said) = run_to_end(dir.path(), &[sleep.id()], &[]);
    let is = sys::get(sleep.id()).unwrap();
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    assert!(!success && said.contains("RT_GROUP_SCHED"), "{said}");
    assert!(said.contains(group.0.join("cpu.rt_runtime_us").to_str().unwrap()), "{said}");
    assert_eq!((is, tables(dir.path())), (was, 0));
}
