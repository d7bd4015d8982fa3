//! Bad input. Each mistake is answered within seconds by one line that names object, fault and
//! remedy. The exit code is 1, or 2 for a mistake in the command line, and no file is left behind.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod served;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use served::{LIMIT, Place, ends, fails, start, stop, vlane};
use vlane_guest::find_program;
use vlane_testing::skip;

const MIB: u64 = 1 << 20;

/// A run that fails and leaves the directory as it was.
fn fails_here(place: &Place, command: &mut Command, parts: &[&str]) {
    let before = place.names();
    fails(command, parts);
    assert_eq!(place.names(), before, "something was left behind");
}

/// The same for a mistake in the command line.
fn misused_here(place: &Place, command: &mut Command, parts: &[&str]) {
    let before = place.names();
    served::fails_with(2, command, parts);
    assert_eq!(place.names(), before, "something was left behind");
}

fn serve(image: &Path, socket: &Path) -> Command {
    let mut command = Command::new(vlane());
    command.arg("serve").arg(image).arg("--socket").arg(socket);
    command
}

#[test]
fn unusable_image_is_named_with_remedy() {
    let place = Place::new(MIB);
    let file = |name: &str, bytes| {
        std::fs::File::create(place.path(name)).unwrap().set_len(bytes).unwrap();
        place.path(name)
    };
    std::fs::create_dir(place.path("folder")).unwrap();
    let _listener = UnixListener::bind(place.path("listens")).unwrap();
    std::os::unix::fs::symlink(place.path("gone.raw"), place.path("link")).unwrap();
    let cases: [(PathBuf, &[&str]); 11] = [
        ("/dev/no-such-device".into(), &["no such device", "`lsblk` lists"]),
        ("/dev/disk/by-id/no-such-device".into(), &["no such device", "`lsblk` lists"]),
        ("/dev/shm/vlane-no-such-image.raw".into(), &["no such image", "truncate -s 10G"]),
        (place.path("link"), &["is a symbolic link to", "gone.raw", "does not exist"]),
        (place.path("nowhere.raw"), &["no such image", "truncate -s 10G"]),
        (place.path("no/such/place.raw"), &["no such image"]),
        (file("empty.raw", 0), &["is empty", "truncate -s"]),
        (
            file("odd.raw", 513),
            &[
                "513 bytes",
                "not a multiple of the sector size",
                "is it a disk image?",
                "truncate -s 1024 /",
            ],
        ),
        (place.path("folder"), &["is a directory", "give an image file or a block device"]),
        ("/dev/null".into(), &["neither a regular file nor a block device", "give an image file"]),
        (
            place.path("listens"),
            &["neither a regular file nor a block device", "give an image file"],
        ),
    ];
    for (image, parts) in cases {
        let name = image.display().to_string();
        fails_here(&place, &mut serve(&image, &place.socket), &[parts, &[&name]].concat());
    }
}

#[test]
fn senseless_cache_budget_is_refused() {
    let place = Place::new(MIB);
    let cases: [(&[&str], &[&str]); 3] = [
        (&[], &["--cache-budget", "`--cache auto`", "writeback, writethrough or pdc"]),
        (&["--cache", "none"], &["--cache-budget", "`--cache none`", "or pdc"]),
        (&["--cache", "writeback", "--read-only"], &["--read-only", "leave one of them out"]),
    ];
    for (words, parts) in cases {
        let mut command = serve(&place.image, &place.socket);
        misused_here(&place, command.args(["--cache-budget", "64M"]).args(words), parts);
    }
}

#[test]
fn immutable_image_is_refused() {
    let place = Place::new(MIB);
    let name = place.image.display().to_string();
    for (letter, word) in [('i', "immutable"), ('a', "append-only")] {
        let chattr = |sign: char| {
            let done =
                Command::new("chattr").arg(format!("{sign}{letter}")).arg(&place.image).output();
            done.is_ok_and(|output| output.status.success())
        };
        if !chattr('+') {
            return skip("chattr does not set attributes here (root, a file system that has them)");
        }
        let (code, words) = ends(&mut place.command(&[]));
        stop(place.serve(&["--read-only"]));
        assert!(chattr('-'));
        assert_eq!(code, Some(1), "{words}");
        let remedy = format!("chattr -{letter} {name}");
        assert!(
            [word, "lsattr", "--read-only", &remedy].iter().all(|part| words.contains(part)),
            "{words}"
        );
    }
    stop(place.serve(&[]));
}

#[test]
fn empty_device_differs_from_empty_file() {
    // A loop device without a file behind it.
    let find = Command::new("losetup").arg("--find").output();
    let device = match find {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => return skip("there is no loop device"),
    };
    let place = Place::new(MIB);
    // Another test may attach something meanwhile, and then it is served, or refused for another
    // reason.
    let served = serve(Path::new(&device), &place.socket);
    let mut command = Command::new("timeout");
    command.arg("40").arg(served.get_program()).args(served.get_args());
    let (code, words) = ends(&mut command);
    let is_attached = Command::new("losetup").arg(&device).output().unwrap().status.success();
    if code == Some(1) && !is_attached && !words.contains("in use") {
        assert!(
            words.contains("the device is empty")
                && words.contains("lsblk")
                && !words.contains("truncate"),
            "{words}"
        );
    }
}

#[test]
fn duplicate_paths_are_refused() {
    let place = Place::new(MIB);
    let image = place.image.to_str().unwrap();
    let socket = place.socket.to_str().unwrap();
    misused_here(
        &place,
        &mut place.command(&["--control", socket]),
        &[socket, "--socket", "--control", "its own"],
    );
    misused_here(
        &place,
        &mut place.command(&["--control", image]),
        &[image, "the image", "--control", "its own"],
    );
    misused_here(
        &place,
        &mut serve(&place.image, &place.image),
        &[image, "the image", "--socket", "its own"],
    );
    misused_here(
        &place,
        &mut place.command(&["--danger-record-storage", image]),
        &[image, "the image", "--danger-record-storage", "its own"],
    );
    assert_eq!(std::fs::metadata(&place.image).unwrap().len(), MIB);
}

#[test]
fn direct_io_on_memory_warns_of_no_effect() {
    let Some(place) = Place::in_memory(MIB) else { return skip("no /dev/shm") };
    let server = place.serve(&["--cache", "none"]);
    let said = "lies in memory (tmpfs), which has no direct I/O; --cache none has no effect";
    assert!(server.wait_log(said, LIMIT), "{}", server.log());
    stop(server);
    let server = place.serve(&["--cache", "auto"]);
    assert!(!server.log().contains("no direct I/O"), "{}", server.log());
    stop(server);
}

#[test]
fn fully_allocated_image_warns_once_about_trim() {
    let place = Place::new(MIB);
    let told = "fully allocated, and the guest's trim frees parts of it; use --discard keep";
    let server = place.serve(&[]);
    assert!(!server.log().contains(told), "a sparse one");
    stop(server);
    std::fs::write(&place.image, vec![1; usize::try_from(MIB).unwrap()]).unwrap();
    std::fs::File::open(&place.image).unwrap().sync_all().unwrap();
    let server = place.serve(&[]);
    assert!(server.wait_log(told, LIMIT), "{}", server.log());
    assert_eq!(server.log().matches(told).count(), 1);
    stop(server);
    for options in [&["--discard", "keep"][..], &["--discard", "off"], &["--read-only"]] {
        let server = place.serve(options);
        assert!(!server.log().contains(told), "{options:?}");
        stop(server);
    }
}

#[test]
fn image_in_use_is_refused_naming_its_user() {
    let place = Place::new(MIB);
    let first = place.serve(&[]);
    let second = place.path("second.sock");
    let pid = format!("pid {}", first.id());
    let image = place.image.display().to_string();
    fails_here(
        &place,
        &mut serve(&place.image, &second),
        &[&image, "locked", &pid, "stop it", "--read-only"],
    );
    fails_here(
        &place,
        serve(&place.image, &second).arg("--read-only"),
        &[&image, "locked", &pid, "stop it"],
    );
    stop(first);

    // Readers share it, and keep writers out.
    let reader = place.serve(&["--read-only"]);
    let other = start(serve(&place.image, &second).arg("--read-only"), &second).unwrap();
    let third = place.path("third.sock");
    fails_here(&place, &mut serve(&place.image, &third), &[&image, "locked", "--read-only"]);
    stop(other);
    stop(reader);
    stop(place.serve(&[]));
}

#[test]
fn qemu_tools_and_vlane_respect_mutual_locks() {
    let (Some(io), Some(daemon)) = (find_program("qemu-io"), find_program("qemu-storage-daemon"))
    else {
        return skip(
            "qemu-io and qemu-storage-daemon are not installed (Debian: qemu-utils, \
             qemu-system-common)",
        );
    };
    let place = Place::new(MIB);
    let qemu_io = |options: &[&str], what: &str| {
        let mut command = Command::new(&io);
        command.args(options).args(["-f", "raw", "-c", what]).arg(&place.image);
        let (code, words) = ends(&mut command);
        (code == Some(0), words)
    };
    let server = place.serve(&[]);
    let (done, words) = qemu_io(&[], "write 0 512");
    assert!(!done && words.contains("lock"), "QEMU writes to an image that vlane serves: {words}");
    stop(server);
    let server = place.serve(&["--read-only"]);
    let (done, words) = qemu_io(&[], "write 0 512");
    assert!(!done && words.contains("lock"), "QEMU writes to an image that vlane reads: {words}");
    let (done, words) = qemu_io(&["-r"], "read 0 512");
    assert!(done, "two readers cannot share: {words}");
    stop(server);

    let export = |writable: &str, read_only: &str, socket: &Path| {
        let export =
            format!("type=vhost-user-blk,id=e,node-name=n,addr.type=unix,writable={writable}");
        let mut child = Command::new(&daemon)
            .arg("--blockdev")
            .arg(format!(
                "driver=file,node-name=n,read-only={read_only},filename={}",
                place.image.display()
            ))
            .arg("--export")
            .arg(format!("{export},addr.path={}", socket.display()))
            .spawn()
            .unwrap();
        let begin = std::time::Instant::now();
        while !socket.exists() {
            assert!(child.try_wait().unwrap().is_none() && begin.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(10));
        }
        child
    };
    let theirs = place.path("theirs.sock");
    let mut child = export("on", "off", &theirs);
    let pid = format!("pid {}", child.id());
    fails(&mut place.command(&[]), &["locked", &pid, "qemu-storage-da"]);
    fails(&mut place.command(&["--read-only"]), &["locked", &pid]);
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(&theirs).unwrap();

    let mut child = export("off", "on", &theirs);
    stop(place.serve(&["--read-only"]));
    child.kill().unwrap();
    child.wait().unwrap();
    stop(place.serve(&[]));
}

/// `vlane` as an ordinary user who may not do much. Tests may run as root, who may do anything.
fn as_nobody(place: &Place, rest: &[&std::ffi::OsStr]) -> Option<Command> {
    if !rustix::process::geteuid().is_root() {
        let mut command = Command::new(vlane());
        command.args(rest);
        return Some(command);
    }
    let Some(setpriv) = find_program("setpriv") else {
        skip(
            "tests run as root, and setpriv (Debian: util-linux) is not there to become somebody \
             else",
        );
        return None;
    };
    // The build's directory may be closed to others.
    let program = place.path("vlane");
    if !program.exists() {
        vlane_testing::copy_program(vlane().as_ref(), &program);
    }
    let mut command = Command::new(setpriv);
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(program)
        .args(rest);
    Some(command)
}

#[test]
fn missing_permission_names_remedies() {
    let place = Place::new(MIB);
    let image = place.image.display().to_string();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::set_permissions(elsewhere.path(), Permissions::from_mode(0o777)).unwrap();
    let socket = elsewhere.path().join("s");
    let words = |socket: &Path, more: &[&str]| {
        let mut words =
            vec!["serve".into(), place.image.clone().into_os_string(), "--socket".into()];
        words.push(socket.to_owned().into_os_string());
        words.extend(more.iter().map(std::ffi::OsString::from));
        words
    };
    let command = |socket: &Path, more: &[&str]| {
        let words = words(socket, more);
        as_nobody(&place, &words.iter().map(std::ffi::OsString::as_os_str).collect::<Vec<_>>())
    };
    let mode =
        |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let Some(mut first) = command(&socket, &[]) else { return };
    mode(&place.image, 0o000);
    fails(
        &mut first,
        &[&image, "no permission to read and write", "change its mode", "--read-only"],
    );
    fails(
        &mut command(&socket, &["--read-only"]).unwrap(),
        &[&image, "no permission to read it", "its owner"],
    );
    mode(&place.image, 0o444);
    fails(
        &mut command(&socket, &[]).unwrap(),
        &[&image, "no permission to read and write", "--read-only"],
    );
    stop(start(&command(&socket, &["--read-only"]).unwrap(), &socket).unwrap());

    mode(&place.image, 0o666);
    mode(elsewhere.path(), 0o555);
    let name = socket.display().to_string();
    fails(
        &mut command(&socket, &[]).unwrap(),
        &[&name, "no permission", "directory that you may write to"],
    );
    mode(elsewhere.path(), 0o700);
    fails(&mut command(&socket, &[]).unwrap(), &[&name]);
}

#[test]
fn unusable_socket_path_is_named_with_remedy() {
    let place = Place::new(MIB);
    std::fs::write(place.path("a file"), "mine").unwrap();
    let cases: [(PathBuf, &[&str]); 4] = [
        (place.path(&"x".repeat(120)), &["bytes", "107", "choose a shorter one"]),
        (place.path("a file"), &["exists and is not a socket", "--socket"]),
        (place.path("no/such/directory/s"), &["directory does not exist", "make it first"]),
        (place.image.join("s"), &["s: "]),
    ];
    for (socket, parts) in cases {
        let name = socket.display().to_string();
        fails_here(&place, &mut serve(&place.image, &socket), &[parts, &[&name]].concat());
    }
    let left = std::fs::read(place.path("a file")).unwrap();
    assert_eq!(left, b"mine", "the file that was in the way is still there");
}

#[test]
fn live_servers_socket_is_refused_without_disturbance() {
    let place = Place::new(MIB);
    let other = Place::new(MIB);
    let server = place.serve(&[]);
    let name = place.socket.display().to_string();
    let session = place.connect(&vlane_driver::SessionOptions::default());
    // Once with the server waiting, once with a session on.
    fails_here(
        &other,
        &mut serve(&other.image, &place.socket),
        &[&name, "another server is listening", "--socket"],
    );
    let load =
        vlane_driver::Workload { limit: vlane_driver::Limit::Count(100), ..Default::default() };
    assert_eq!(vlane_driver::run(session, &load, served::going_on()).unwrap().ios, 100);
    stop(server);
}

#[test]
fn dead_servers_socket_is_replaced() {
    let place = Place::new(MIB);
    for _ in 0..3 {
        place.serve(&[]).kill();
        assert!(place.socket.exists(), "a killed server cannot tidy up");
    }
    stop(place.serve(&[]));
    // A second start on the path that was used and left in order.
    stop(place.serve(&[]));
}

#[test]
fn topology_mistakes_are_named() {
    let place = Place::new(MIB);
    let cases: [(&[&str], &[&str]); 4] = [
        (&["--queues", "2", "--threads", "3"], &["--threads 3 for --queues 2"]),
        (
            &["--queues", "2", "--threads", "2", "--cpus", "0,0"],
            &["CPU 0", "twice", "each CPU once"],
        ),
        (
            &["--queues", "2", "--threads", "2", "--cpus", "0"],
            &["--cpus names 1, and --threads is 2", "one CPU for each"],
        ),
        (&["--queues", "1", "--cpus", "9999"], &["CPU 9999 is not online", "online CPUs are"]),
    ];
    for (options, parts) in cases {
        misused_here(&place, &mut place.command(options), parts);
    }
    if let Some(taskset) = find_program("taskset")
        && vlane_lane::online_cpus().len() > 1
    {
        let mut command = Command::new(taskset);
        let served = place.command(&["--queues", "1", "--cpus", "1"]);
        command.args(["-c", "0"]).arg(served.get_program()).args(served.get_args());
        misused_here(&place, &mut command, &["CPU 1 is outside", "affinity", "taskset"]);
    }
    // Mistakes that the command line's parser refuses: usage, and code 2.
    let wrong: [&[&str]; 19] = [
        &["--limit-iops", "0"],
        &["--limit-bandwidth", "100"],
        &["--limit-burst", "5ms"],
        &["--limit-express", "exempt", "--limit-iops", "5"],
        &["--queues", "257"],
        &["--delay-flush", "2m"],
        &["--danger-flush-journal-only", "--cache", "writeback"],
        &["--queues", "0"],
        &["--queues", "4294967295"],
        &["--threads", "0"],
        &["--serial", "a serial number that is too long"],
        &["--cpus", "x"],
        &["--cpus", "5-2"],
        &["--queues", "many"],
        &["--poll-max", "9999999"],
        &["--null", "1G"],
        &["--cache", "sometimes"],
        &["--parallel", "5"],
        &["--device-queues", "round-robin"],
    ];
    for options in wrong {
        let (code, words) = ends(&mut place.command(options));
        assert_eq!(code, Some(2), "{options:?}: {words}");
        assert!(words.contains(options[0]), "{words}");
    }
}

#[test]
fn null_device_with_impossible_size_is_refused() {
    let place = Place::new(MIB);
    let null = |size: &str| {
        let mut command = Command::new(vlane());
        command.args(["serve", "--null", size, "--socket"]).arg(&place.socket);
        command
    };
    for (size, parts) in
        [("0", ["size 0", "16G"]), ("513", ["513 bytes", "multiple of the sector size"])]
    {
        let (code, words) = ends(&mut null(size));
        assert_eq!(code, Some(2), "{words}");
        assert!(
            words.contains("--null") && parts.iter().all(|part| words.contains(part)),
            "{words}"
        );
    }
    misused_here(&place, null("1G").arg("--read-only"), &["--read-only", "--null"]);
}

/// Limits of a process, set by prlimit before it starts; soft and hard.
fn limited(place: &Place, limit: &str, options: &[&str]) -> Option<Command> {
    let Some(prlimit) = find_program("prlimit") else {
        skip("prlimit (Debian: util-linux) is not installed");
        return None;
    };
    let mut command = Command::new(prlimit);
    let served = place.command(options);
    command.arg(limit).arg(served.get_program()).args(served.get_args());
    Some(command)
}

#[test]
fn too_few_descriptors_names_the_limit() {
    let place = Place::new(MIB);
    let Some(mut command) =
        limited(&place, "--nofile=200:200", &["--queues", "64", "--threads", "1"])
    else {
        return;
    };
    fails_here(&place, &mut command, &["64 queues", "only open 200", "ulimit -n", "--queues"]);
    // So few that not even the image or a thread's ring can be had: still one line that says so.
    for few in 4..16 {
        let mut command =
            limited(&place, &format!("--nofile={few}:{few}"), &["--queues", "1"]).unwrap();
        fails_here(&place, &mut command, &["ulimit -n"]);
    }
}

#[test]
fn default_offers_as_many_queues_as_descriptors_allow() {
    let place = Place::new(MIB);
    let Some(command) = limited(&place, "--nofile=200:200", &["--threads", "1"]) else { return };
    let server = start(&command, &place.socket).unwrap();
    assert!(!server.log().contains("64 queues"), "{}", server.log());
    stop(server);
}

/// The soft limit is raised as far as needed, and what the check counts is what a front end really
/// needs.
#[test]
fn requested_descriptors_suffice_for_every_queue() {
    let place = Place::new(MIB);
    let queues = 100;
    let options = ["--queues", "100", "--threads", "2"];
    let Some(mut command) = limited(&place, "--nofile=64:200", &options) else { return };
    let (_, words) = ends(&mut command);
    let needed: u64 =
        words.split("need up to ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let server =
        start(&limited(&place, &format!("--nofile=64:{needed}"), &options).unwrap(), &place.socket)
            .unwrap();
    let options = vlane_driver::SessionOptions { queues, depth: 2, ..Default::default() };
    let session = place.connect(&options);
    let load =
        vlane_driver::Workload { limit: vlane_driver::Limit::Count(10), ..Default::default() };
    let report = vlane_driver::run(session, &load, served::going_on()).unwrap();
    assert_eq!((report.ios, report.errors.total()), (10 * u64::from(queues), 0));
    stop(server);
}

#[test]
fn memory_limit_suffices_or_is_reported() {
    let place = Place::new(MIB);
    // Kernels since 5.12 charge io_uring to the memory cgroup; where they do not, the limit must be
    // named.
    let Some(mut command) = limited(&place, "--memlock=0:0", &["--queues", "2"]) else { return };
    match start(&command, &place.socket) {
        Ok(server) => drop(stop(server)),
        Err(_) => fails_here(&place, &mut command, &["locked memory", "ulimit -l"]),
    }
}

/// Lets `command` run without io_uring: as in a sandbox, its set-up fails with `errno`.
fn without_io_uring(mut command: Command, errno: i32) -> Command {
    let forbid = move || {
        let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let number = libc::SYS_io_uring_setup as u32;
        let refuse = libc::SECCOMP_RET_ERRNO | errno as u32;
        let mut program = [
            // The system call's number is the first word of the filter's data.
            op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
            op(libc::BPF_RET | libc::BPF_K, 0, 0, refuse),
            op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: both calls read their arguments only, and `filter` points to the four
        // instructions above.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
                    == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec only two prctl calls are made: no allocation, no lock.
    unsafe { command.pre_exec(forbid) };
    command
}

#[test]
fn missing_io_uring_names_reason_and_remedy() {
    let place = Place::new(MIB);
    for (errno, parts) in [
        (libc::EPERM, ["io_uring", "sandbox", "allow the system calls io_uring_setup"]),
        (libc::EACCES, ["io_uring", "sandbox", "allow the system calls io_uring_setup"]),
        (libc::ENOSYS, ["io_uring is not there", "CONFIG_IO_URING", "Linux 6.1"]),
        (libc::EINVAL, ["io_uring is too old", "deferred task work", "Linux 6.1 or later"]),
        (libc::ENOMEM, ["no memory for an io_uring", "ulimit -l", "--threads"]),
        (libc::EMFILE, ["no file descriptor left", "ulimit -n", "--threads"]),
    ] {
        fails_here(&place, &mut without_io_uring(place.command(&[]), errno), &parts);
    }
}
