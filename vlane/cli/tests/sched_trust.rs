//! The rights of parties that use `vlane sched`: other users, other schedulers, files written by
//! others, and process names chosen by others.
#![allow(clippy::unwrap_used, reason = "tests")]

mod scheduler;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use scheduler::{OTHER, PATIENCE, Process, may_schedule_as_root, wait};
use vlane_sched::live::socket::Client;
use vlane_sched::sys::{self, Attr, Class};
use vlane_sched::thread::Thread;

fn vlane() -> Command {
    Command::new(env!("CARGO_BIN_EXE_vlane"))
}

/// `vlane sched run` with its files in `dir`, without what a test adds.
fn scheduler(dir: &Path) -> Command {
    let mut command = vlane();
    command.args(["sched", "run", "--vehicle", "realtime", "--socket"]).arg(dir.join("state.sock"));
    command.arg("--state-dir").arg(dir.join("state"));
    command
}

fn is_listening(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_ok()
}

/// How many vCPUs the scheduler with its files in `dir` has.
fn vcpus(dir: &Path) -> usize {
    let state =
        Client::connect(&dir.join("state.sock"), false).and_then(|mut client| client.next_state());
    state.ok().flatten().map_or(0, |(_, state)| state.vcpus.len())
}

/// A command's output on both channels, and its exit status.
fn ends(command: &mut Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// Command words that run the rest as another user who has this one capability.
fn as_other(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    let (user, bounds) = (OTHER.to_string(), "-all,+sys_nice");
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--bounding-set", bounds]);
    command.args(["--inh-caps", bounds, "--ambient-caps", bounds]).arg(program);
    command
}

/// The program in a place where all users may run it.
fn for_all(dir: &Path) -> PathBuf {
    fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
    let program = dir.join("vlane");
    let linked = fs::hard_link(env!("CARGO_BIN_EXE_vlane"), &program);
    if linked.is_err() {
        vlane_testing::copy_program(env!("CARGO_BIN_EXE_vlane").as_ref(), &program);
    }
    program
}

/// A list of changed threads as a scheduler leaves it that is killed with its guard.
fn list(dir: &Path, thread: u32, was: Attr) -> PathBuf {
    let start = Thread::open(thread).unwrap().start();
    let numbers = [
        u64::from_le_bytes(*b"vlsched1"),
        thread.into(),
        start,
        was.class.number().into(),
        i64::from(was.nice).cast_unsigned(),
        u64::from(was.priority) << 1,
        was.slice_ns,
        0,
    ];
    let mut bytes = vec![0; 64];
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    let path = dir.join("sched-1-0.threads");
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path
}

const FIFO: Attr =
    Attr { class: Class::Else(1), nice: 0, priority: 99, reset_on_fork: false, slice_ns: 0 };

fn repair(dir: &Path) -> (Option<i32>, String) {
    ends(vlane().args(["sched", "repair", "--state-dir"]).arg(dir))
}

#[test]
fn forged_file_gives_no_real_time() {
    if !may_schedule_as_root() {
        return;
    }
    let victim = Process::sleep();
    let was = victim.is();
    let dir = tempfile::tempdir().unwrap();
    let path = list(dir.path(), victim.pid(), FIFO);
    let (code, said) = repair(dir.path());
    assert_eq!(victim.is(), was, "{said}");
    assert!(code == Some(1) && said.contains("make no sense"), "{said}");
    // Nor to the guard, which anybody may call.
    let path = if path.exists() { path } else { list(dir.path(), victim.pid(), FIFO) };
    let (code, said) = ends(vlane().args(["sched", "guard"]).arg(&path));
    assert_eq!(victim.is(), was, "{said}");
    assert_eq!(code, Some(1), "{said}");
    // Content that could be right, but was written by another user: by owner, by mode, through a
    // link, in a foreign directory.
    let wanted = Attr { nice: 11, slice_ns: 0, ..was };
    let other = tempfile::tempdir().unwrap();
    let path = list(other.path(), victim.pid(), wanted);
    chown(&path, Some(OTHER), None).unwrap();
    let link = tempfile::tempdir().unwrap();
    symlink(&path, link.path().join("sched-1-0.threads")).unwrap();
    let writable = tempfile::tempdir().unwrap();
    list(writable.path(), victim.pid(), wanted);
    fs::set_permissions(writable.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    let others = tempfile::tempdir().unwrap();
    list(others.path(), victim.pid(), wanted);
    chown(others.path(), Some(OTHER), None).unwrap();
    for dir in [&other, &link, &writable, &others] {
        let (code, said) = repair(dir.path());
        assert_eq!(victim.is(), was, "{said}");
        assert!(code == Some(1) && said.contains(dir.path().to_str().unwrap()), "{said}");
        assert!(dir.path().join("sched-1-0.threads").symlink_metadata().is_ok(), "removed: {said}");
    }
    // One that may be believed is.
    chown(&path, Some(0), None).unwrap();
    let (code, said) = repair(other.path());
    assert_eq!((code, victim.is().nice, path.exists()), (Some(0), 11, false), "{said}");
}

#[test]
fn repair_keeps_and_names_unreadable_files() {
    if !may_schedule_as_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (code, said) = repair(&dir.path().join("none"));
    assert!(
        code == Some(1) && said.contains("is not there") && said.contains("--state-dir"),
        "{said}"
    );
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let (code, said) = repair(&file);
    assert!(code == Some(1) && said.contains("is not a directory"), "{said}");
    // Damaged: what can be read is done, and the rest is kept.
    let victim = Process::sleep();
    let was = victim.is();
    let path = list(dir.path(), victim.pid(), Attr { nice: 3, slice_ns: 0, ..was });
    fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"scribble", 128).unwrap();
    let bytes = fs::read(&path).unwrap();
    let (code, said) = repair(dir.path());
    assert!(code == Some(1) && said.contains("damaged"), "{said}");
    assert_eq!(victim.is().nice, 3, "{said}");
    assert_eq!(fs::read(dir.path().join("sched-1-0.threads.damaged")).unwrap(), bytes);
    // An empty directory is in order.
    assert_eq!(repair(tempfile::tempdir().unwrap().path()).0, Some(0));
    // A directory that may not be read: by a user who is not root.
    let program = for_all(dir.path());
    let closed = tempfile::tempdir().unwrap();
    fs::set_permissions(closed.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let (code, said) =
        ends(as_other(&program).args(["sched", "repair", "--state-dir"]).arg(closed.path()));
    assert!(code == Some(1) && said.contains("no permission"), "{said}");
}

#[test]
fn state_socket_option_deletes_no_file() {
    if !may_schedule_as_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("image.raw");
    fs::write(&file, "years of work").unwrap();
    let victim = Process::sleep();
    let mut command = vlane();
    command.args([
        "sched",
        "run",
        "--vehicle",
        "realtime",
        "--tid",
        &victim.pid().to_string(),
        "--socket",
    ]);
    let mut run =
        Process::heard(command.arg(&file).arg("--state-dir").arg(dir.path().join("state")));
    wait("it ends, or listens", || run.0.try_wait().unwrap().is_some() || is_listening(&file));
    assert_eq!(fs::read(&file).unwrap(), b"years of work");
    let (status, said) = run.wait();
    assert!(
        !status.success() && said.contains("not a socket") && said.contains("--socket"),
        "{said}"
    );
}

#[test]
fn schedulers_never_share_a_thread() {
    if !may_schedule_as_root() {
        return;
    }
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let victim = Process::sleep();
    let tid = victim.pid().to_string();
    let one = Process::heard(scheduler(first.path()).args(["--tid", &tid]));
    wait("the first one runs", || is_listening(&first.path().join("state.sock")));
    wait("the first one has it", || vcpus(first.path()) == 1);
    let mut two = Process::heard(scheduler(second.path()).args(["--tid", &tid]));
    wait("the second one ends, or has it", || {
        two.0.try_wait().unwrap().is_some() || vcpus(second.path()) == 1
    });
    assert!(two.0.try_wait().unwrap().is_some(), "both have thread {tid}");
    let (ended, said) = two.wait();
    assert!(
        !ended.success() && said.contains(&format!("another scheduler (process {})", one.pid())),
        "{said}"
    );
    // The first has it still; when it has ended, the second may.
    assert!(vcpus(first.path()) == 1);
    assert!(one.end().0.success());
    let two = Process::heard(scheduler(second.path()).args(["--tid", &tid]));
    wait("the second one has it", || vcpus(second.path()) == 1);
    assert!(two.end().0.success());
}

#[test]
fn foreign_lock_does_not_block_scheduling() {
    if !may_schedule_as_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let victim = Process::sleep();
    let stat = format!("/proc/{0}/task/{0}/stat", victim.pid());
    let user = OTHER.to_string();
    let mut squat = Command::new("setpriv");
    squat.args(["--reuid", &user, "--clear-groups", "flock", &stat, "sleep", "100"]);
    let squatter = Process::heard(&mut squat);
    let file = fs::File::open(&stat).unwrap();
    wait("it is locked", || {
        let locked = flock(&file, FlockOperation::NonBlockingLockShared).is_err();
        flock(&file, FlockOperation::Unlock).unwrap();
        locked
    });
    let run = Process::heard(scheduler(dir.path()).args(["--tid", &victim.pid().to_string()]));
    wait("it has the thread", || vcpus(dir.path()) == 1);
    let (ended, said) = run.end();
    assert!(ended.success() && said.contains("passed over"), "{said}");
    // A process that it started holds the lock as well.
    let children =
        fs::read_to_string(format!("/proc/{0}/task/{0}/children", squatter.pid())).unwrap();
    for child in children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().unwrap())) {
        let _ = kill_process(child, Signal::KILL);
    }
}

/// True if a user with these groups may connect to a packet socket.
fn may_connect(path: &Path, user: u32, groups: Vec<u32>) -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    use rustix::thread::{Gid, Uid};
    let address = SocketAddrUnix::new(path).unwrap();
    // Only this thread is another user, and only as long as it lives.
    let connect = move || {
        let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
        rustix::thread::set_thread_groups(&groups).unwrap();
        rustix::thread::set_thread_res_gid(
            Gid::from_raw(OTHER),
            Gid::from_raw(OTHER),
            Gid::from_raw(OTHER),
        )
        .unwrap();
        let user = Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        rustix::net::connect(&socket, &address).is_ok()
    };
    std::thread::spawn(connect).join().unwrap()
}

#[test]
fn only_permitted_groups_register() {
    if !may_schedule_as_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let listen = dir.path().join("sched.sock");
    let run = |more: &[&str]| {
        let run = Process::heard(scheduler(dir.path()).arg("--listen").arg(&listen).args(more));
        // By then the file has its mode and its group, too.
        wait("it listens", || {
            is_listening(&dir.path().join("state.sock")) && vlane_testing::listens(&listen)
        });
        run
    };
    let stands = run(&[]);
    let mode = fs::metadata(&listen).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o660, "{mode:o}");
    assert!(may_connect(&listen, 0, vec![]));
    assert!(!may_connect(&listen, OTHER, vec![]));
    let (ended, said) = stands.end();
    assert!(ended.success(), "{ended}: {said}");
    assert!(!listen.exists());
    let stands = run(&["--listen-group", "4242"]);
    assert!(may_connect(&listen, OTHER, vec![4242]));
    assert!(!may_connect(&listen, OTHER, vec![4243]));
    let (ended, said) = stands.end();
    assert!(ended.success(), "{ended}: {said}");
    let (code, said) = ends(scheduler(dir.path()).args(["--listen-group", "no-such-group-here"]));
    assert!(code == Some(2) && said.contains("no group is called"), "{said}");
}

#[test]
fn early_end_of_scheduler_is_clean() {
    if !may_schedule_as_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("state.sock");
    for run in 0..20 {
        let mut starting = Process::heard(
            scheduler(dir.path()).arg("--listen").arg(dir.path().join("sched.sock")),
        );
        // Without a pause, so that it is early.
        let until = Instant::now() + PATIENCE;
        while !socket.exists() && starting.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "it never listens");
        }
        let (ended, said) = starting.end();
        assert!(ended.success(), "run {run}: {ended}: {said}");
        assert!(!socket.exists(), "run {run}");
    }
}

#[test]
fn registration_runs_on_ordinary_thread() {
    if !may_schedule_as_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run =
        Process::heard(scheduler(dir.path()).arg("--listen").arg(dir.path().join("sched.sock")));
    let named = |name: &str| {
        let tasks = fs::read_dir(format!("/proc/{}/task", run.pid())).unwrap().flatten();
        let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
        let is = |tid: &u32| {
            let comm = fs::read_to_string(format!("/proc/{}/task/{tid}/comm", run.pid()));
            comm.is_ok_and(|comm| comm.trim() == name)
        };
        tids.filter(is).collect::<Vec<u32>>()
    };
    wait("it has a thread for who registers", || named("sched-joins").len() == 1);
    assert_eq!(sys::get(named("sched-joins")[0]).unwrap().class, Class::Other);
    assert_eq!(run.is().class, Class::RoundRobin, "the event loop");
}

#[test]
fn process_names_are_escaped_for_terminals() {
    if !may_schedule_as_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("\x1b[2J\rx\nvlane: \u{202e}");
    vlane_testing::copy_program("/bin/sleep".as_ref(), &program);
    let machine = Process::heard(Command::new(&program).arg("100"));
    let comm = || fs::read(format!("/proc/{}/comm", machine.pid())).unwrap();
    wait("it has its name", || comm().starts_with(b"\x1b["));
    let log = dir.path().join("log");
    let mut command = scheduler(dir.path());
    command
        .arg("--listen")
        .arg(dir.path().join("sched.sock"))
        .args(["--pid", &machine.pid().to_string()]);
    let mut run = Process(
        command.stderr(fs::File::create(&log).unwrap()).stdout(Stdio::null()).spawn().unwrap(),
    );
    let said = || String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    wait("it says that it finds no vCPUs", || said().contains("no known vCPU threads"));
    let _ = run.0.kill();
    let said = said();
    assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "{said:?}");
    assert!(said.contains("\\u{1b}[2J\\rx\\nvlane"), "{said}");
}

#[test]
fn capability_permits_scheduling_foreign_threads() {
    if !may_schedule_as_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = for_all(dir.path());
    let own = dir.path().join("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(OTHER), Some(OTHER)).unwrap();
    let victim = Process::sleep();
    let was = victim.is();
    let mut command = as_other(&program);
    command.args(["sched", "run", "--vehicle", "realtime", "--policy", "always-boost", "--tid"]);
    command.arg(victim.pid().to_string()).arg("--socket").arg(own.join("state.sock"));
    let mut run = Process::heard(command.arg("--state-dir").arg(own.join("state")));
    let socket = own.join("state.sock");
    wait("it listens, or ends", || is_listening(&socket) || run.0.try_wait().unwrap().is_some());
    let mut stream = std::os::unix::net::UnixStream::connect(&socket)
        .unwrap_or_else(|_| panic!("{}", run.wait().1));
    wait("the thread is boosted", || {
        std::io::Write::write_all(&mut stream, format!("event {}\n", victim.pid()).as_bytes())
            .unwrap();
        victim.is().class == Class::RoundRobin
    });
    let (ended, said) = run.end();
    assert!(ended.success(), "{said}");
    assert_eq!(victim.is(), was);
}

#[test]
fn status_shows_scheduler_and_threads() {
    if !may_schedule_as_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("state.sock");
    let status =
        |more: &[&str]| ends(vlane().args(["sched", "status", "--socket"]).arg(&socket).args(more));
    let json = |more: &[&str]| {
        let (code, text) = status(more);
        (code, serde_json::from_str::<serde_json::Value>(&text).unwrap())
    };
    let (code, said) = status(&[]);
    assert!(code == Some(3) && said.contains("no scheduler runs"), "{said}");
    let (code, answer) = json(&["--json", "-"]);
    assert_eq!((code, &answer["running"]), (Some(3), &serde_json::json!(false)));
    let (one, two) = (Process::sleep(), Process::sleep());
    let tids = [one.pid().to_string(), two.pid().to_string()];
    let run = Process::heard(scheduler(dir.path()).args(["--tid", &tids[0], "--tid", &tids[1]]));
    wait("it says that it runs", || status(&[]).0 == Some(0));
    let (_, said) = status(&[]);
    for part in [
        &format!("running (process {})", run.pid()),
        "realtime",
        "2 machines",
        &tids[0],
        "real-time budget",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (code, answer) = json(&["--json", "-"]);
    assert_eq!((code, &answer["running"]), (Some(0), &serde_json::json!(true)));
    assert_eq!(answer["state"]["vehicle"], "realtime");
    assert_eq!(answer["machines"].as_array().unwrap().len(), 2);
    assert_eq!(answer["state"]["budgets"][0]["of"], "all");
    assert!(run.end().0.success());
    assert_eq!(status(&[]).0, Some(3));
    // Neither is it known when that cannot be asked.
    let program = for_all(dir.path());
    let _listens = std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
    fs::set_permissions(dir.path().join("s"), PermissionsExt::from_mode(0o600)).unwrap();
    let mut command = as_other(&program);
    let (code, said) =
        ends(command.args(["sched", "status", "--socket"]).arg(dir.path().join("s")));
    assert!(code == Some(4) && said.contains("Permission denied"), "{code:?}: {said}");
}
