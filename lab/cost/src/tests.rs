#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use proptest::prelude::*;

use super::proc::ThreadLook;
use super::*;

const PID: i32 = 100;
const TICK: u64 = 10_000_000;

/// The roles of a `vlane serve`: its lanes, the kernel's workers for them, and the rest.
fn vlane() -> Vec<Role> {
    vec![
        Role::new("lane", PID, ThreadFilter::named(&["lane-"])),
        Role::new("kernel worker", PID, ThreadFilter::named(&["iou-wrk-"])),
        Role::new("vlane control", PID, ThreadFilter::All),
    ]
}

fn rest(name: &str) -> Vec<Role> {
    vec![Role::new(name, PID, ThreadFilter::All)]
}

/// A process whose true figures are known.
#[derive(Debug, Default)]
struct Simulated {
    look: ProcessLook,
    made: i32,
}

#[derive(Debug, Clone)]
enum Happens {
    /// A thread with one of the names is started, perhaps with a number that was used before.
    Starts(usize, bool),
    /// The nth living thread runs for so many ns, with switches.
    Runs(usize, u64),
    /// The nth living thread ends.
    Ends(usize),
}

const NAMES: [&str; 4] = ["lane-0", "lane-1", "iou-wrk-100", "vlane"];

impl Simulated {
    fn does(&mut self, happens: &Happens) {
        let keys: Vec<_> = {
            let mut keys: Vec<_> = self.look.threads.keys().copied().collect();
            keys.sort_unstable();
            keys
        };
        match happens {
            Happens::Starts(name, again) => {
                self.made += 1;
                let tid = if *again { 1 } else { 1 + self.made };
                if keys.iter().any(|(other, _)| *other == tid) {
                    return;
                }
                let started = u64::try_from(self.made).unwrap();
                let thread =
                    ThreadLook { comm: NAMES[*name % NAMES.len()].into(), cpu_ns: 0, switches: 0 };
                self.look.threads.insert((tid, started), thread);
            }
            Happens::Runs(which, ns) if !keys.is_empty() => {
                let thread = self.look.threads.get_mut(&keys[which % keys.len()]).unwrap();
                thread.cpu_ns += ns;
                thread.switches += 1;
                self.look.cpu_ns += ns;
                self.look.ticks += ns / TICK;
            }
            Happens::Ends(which) if !keys.is_empty() => {
                self.look.threads.remove(&keys[which % keys.len()]);
            }
            _ => {}
        }
    }

    fn snapshot(&self, roles: &[Role]) -> Snapshot {
        Snapshot {
            at: Instant::now(),
            roles: roles.to_vec(),
            pids: vec![vec![PID]; roles.len()],
            processes: HashMap::from([(PID, self.look.clone())]),
            calls: None,
        }
    }
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        (0..4_usize, any::<bool>()).prop_map(|(name, again)| Happens::Starts(name, again)),
        (any::<usize>(), 0..200_000_000_u64).prop_map(|(which, ns)| Happens::Runs(which, ns)),
        any::<usize>().prop_map(Happens::Ends),
    ]
}

proptest! {
    /// However threads come, run, end, and numbers are used again: the sum of the roles is what the
    /// process used, no more and no less.
    #[test]
    fn cpu_time_of_short_threads_counts_once(
        first in proptest::collection::vec(happens(), 0..30),
        then in proptest::collection::vec(happens(), 0..60),
    ) {
        let all_roles = [vlane(), rest("back end"), Role::program("p", PID)];
        for roles in all_roles {
            let mut process = Simulated::default();
            first.iter().for_each(|h| process.does(h));
            let before = process.snapshot(&roles);
            then.iter().for_each(|h| process.does(h));
            let after = process.snapshot(&roles);
            let used = after.since(&before);
            let truth = process.look.cpu_ns - before.processes[&PID].cpu_ns;
            prop_assert_eq!(used.cpu(), Duration::from_nanos(truth));
            let known = roles.iter().map(|role| used.role(&role.name).unwrap().threads).sum::<usize>();
            prop_assert_eq!(known, process.look.threads.len());
        }
    }
}

#[test]
fn thread_counts_for_its_first_role() {
    let mut process = Simulated::default();
    (0..4).for_each(|name| process.does(&Happens::Starts(name, false)));
    let roles = vlane();
    let before = process.snapshot(&roles);
    // By rising number: lane-0, lane-1, the worker, control.
    for (which, ns) in [(0, 30 * TICK), (1, 20 * TICK), (2, 7 * TICK), (3, TICK)] {
        process.does(&Happens::Runs(which, ns));
    }
    let used = process.snapshot(&roles).since(&before);
    let ticks = |name: &str| u64::try_from(used.role(name).unwrap().cpu.as_nanos()).unwrap() / TICK;
    assert_eq!((ticks("lane"), ticks("kernel worker"), ticks("vlane control")), (50, 7, 1));
    assert_eq!(used.role("lane").unwrap().switches, 2);
    assert_eq!(used.roles.len(), 3);
}

#[test]
fn reused_process_number_starts_at_zero() {
    let roles = Role::program("p", PID);
    let mut old = Simulated::default();
    old.does(&Happens::Starts(0, false));
    old.does(&Happens::Runs(0, 500 * TICK));
    let before = old.snapshot(&roles);
    let mut new = Simulated::default();
    new.look.started = 7;
    new.does(&Happens::Starts(0, false));
    new.does(&Happens::Runs(0, 3 * TICK));
    assert_eq!(new.snapshot(&roles).since(&before).cpu(), Duration::from_nanos(3 * TICK));
}

#[test]
fn vanished_process_is_called_lost() {
    let roles = rest("back end");
    let process = Simulated::default();
    let before = process.snapshot(&roles);
    let mut after = process.snapshot(&roles);
    after.processes.clear();
    let used = after.since(&before);
    assert!(used.roles.iter().all(|role| role.lost && role.cpu.is_zero()));
}

#[test]
fn ended_children_count_for_their_tree() {
    // The loop runs in a child of the child, which is waited for before the second look.
    let script = "read go; sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; sleep 60";
    let mut shell = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
    let pid = i32::try_from(shell.id()).unwrap();
    let mut sampler = Sampler::new(Role::program("shell", pid));
    let before = sampler.take();
    // It begins after the first look, however late that is.
    shell.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut used = before.since(&before);
    for _ in 0..600 {
        std::thread::sleep(Duration::from_millis(50));
        used = sampler.take().since(&before);
        // The loop's shell is gone, and `sleep` has taken its place.
        if used.cpu() >= Duration::from_millis(50) && used.roles[0].threads == 2 {
            break;
        }
    }
    shell.kill().unwrap();
    shell.wait().unwrap();
    assert!(used.cpu() >= Duration::from_millis(50), "{used:?}");
}

#[test]
fn ended_thread_still_counts() {
    let pid = i32::try_from(std::process::id()).unwrap();
    let mut sampler = Sampler::new(vec![Role::new("this", pid, ThreadFilter::All)]);
    let before = sampler.take();
    // CPU time, not time: the machine may be busy.
    let spin = || {
        let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        while used().tv_sec == 0 && used().tv_nsec < 100_000_000 {
            std::hint::spin_loop();
        }
    };
    std::thread::spawn(spin).join().unwrap();
    let used = sampler.take().since(&before);
    assert!(used.cpu() >= Duration::from_millis(80), "{used:?}");
}

#[test]
fn system_calls_count_for_their_role() {
    if let Err(reason) = calls::available() {
        return vlane_testing::skip(reason);
    }
    let (go, wait) = channel::<()>();
    let (ready, is_ready) = channel();
    let caller = std::thread::Builder::new().name("caller".into()).spawn(move || {
        let null = std::fs::File::create("/dev/null").unwrap();
        ready.send(()).unwrap();
        wait.recv().unwrap();
        for _ in 0..1000 {
            rustix::io::write(&null, b"x").unwrap();
        }
        ready.send(()).unwrap();
        let _ = wait.recv();
    });
    is_ready.recv().unwrap();
    let pid = i32::try_from(std::process::id()).unwrap();
    let roles = vec![
        Role::new("caller", pid, ThreadFilter::named(&["caller"])),
        Role::new("nobody", pid, ThreadFilter::named(&["no such thread"])),
    ];
    let mut sampler = Sampler::new(roles).count_calls();
    let before = sampler.take();
    go.send(()).unwrap();
    is_ready.recv().unwrap();
    let used = sampler.take().since(&before);
    drop(go);
    caller.unwrap().join().unwrap();
    let calls = used.role("caller").unwrap().calls.as_ref().unwrap();
    // And a few that wait for the other thread.
    assert!((1000..1020).contains(calls), "{calls:?}");
    assert_eq!(used.role("nobody").unwrap().calls, Ok(0));
}
