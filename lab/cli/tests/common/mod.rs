//! Shared parts of the guest tests: a served volume, and machines that are found or installed.
//! A test without its machine says so.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses its own part of this; tests may unwrap"
)]

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::{NamedTempFile, TempDir};
use vlane_guest::{
    Accel, Backend, Boot, Choice, Disk, ErrorKind, Guest, Host, Initramfs, Install, Kernel, Qemu,
    QemuProgram, Ready, Report, Spec, Stopped, Uml, UmlProgram,
};

/// A guest that needs longer than this hangs. Emulated guests take 5 to 20 s, and ten times as long
/// on a busy host.
pub const LIMIT: Duration = Duration::from_secs(240);
/// How long a back end may take to drain and flush, on a slow disk.
pub const STOP: Duration = Duration::from_secs(60);

/// The program under test. A test program that runs in a guest finds it there.
pub fn vlane() -> &'static str {
    static PROGRAM: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let named = PROGRAM.get_or_init(|| std::env::var("VLANE_PROGRAM").ok());
    named.as_deref().unwrap_or(env!("CARGO_BIN_EXE_vlane-lab"))
}

/// This machine; what is missing is installed where that is possible.
pub fn host() -> Host {
    Host::new(Install::Allowed).unwrap()
}

/// Output of guests and back ends goes, line by line, to the place where the test harness keeps a
/// test's own output. A failing test shows all of it in order. `VLANE_LOG=debug` makes the back
/// ends log more.
fn show(line: &str) {
    eprintln!("{line}");
}

/// Guests run one at a time: the machines that tests run on are small.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static GUESTS: Mutex<()> = Mutex::new(());
    GUESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `None`, said loudly, when a machine is neither there nor can be had; any other error fails the
/// test.
pub fn or_skip<T>(what: &str, found: vlane_guest::Result<T>) -> Option<T> {
    let error = match found {
        Ok(found) => return Some(found),
        Err(e) if matches!(e.kind(), ErrorKind::Missing | ErrorKind::Install) => e,
        Err(e) => panic!("{what}: {e}"),
    };
    vlane_testing::skip(format!("{what}: {error}"));
    None
}

/// QEMU with a kernel and an accelerator.
pub struct QemuBed {
    pub host: Host,
    pub program: QemuProgram,
    pub kernel: Kernel,
    pub accel: Choice,
}

impl QemuBed {
    pub fn find() -> Option<Self> {
        let host = host();
        let find = || {
            let program = QemuProgram::find(&host)?;
            let kernel = Kernel::find(&host)?;
            let accel = Choice::probe(&host, &program, &kernel)?;
            Ok((program, kernel, accel))
        };
        let (program, kernel, accel) = or_skip("QEMU", find())?;
        Some(Self { host, program, kernel, accel })
    }

    /// A machine with 2 vCPUs and a queue for each.
    pub fn machine(&self, socket: &Path) -> Qemu {
        Qemu::new(self.program.clone(), self.accel.accel, Boot::Disk, Disk::at(socket))
    }

    pub fn start(&self, machine: Qemu, script: &str, programs: &[&str]) -> Guest {
        self.start_for(machine, script, programs, LIMIT)
    }

    /// The same, for a guest that may take so long.
    pub fn start_for(
        &self,
        machine: Qemu,
        script: &str,
        programs: &[&str],
        limit: Duration,
    ) -> Guest {
        let guest = Initramfs::new(script).programs(programs.iter().copied());
        machine.start_with(&self.host, &self.kernel, &guest, limit, Some(show)).unwrap()
    }

    /// Runs `script` in a machine to its end; the script must succeed.
    pub fn run(&self, machine: Qemu, script: &str, programs: &[&str]) -> Report {
        finished(self.begin(machine, script, programs))
    }

    /// Starts a guest, and waits until it runs `script`.
    ///
    /// A guest with two emulated CPUs hung once before its first program, on a loaded host. Its
    /// console was empty, so the place is not known; emulated CPUs are known to crash a kernel that
    /// changes its own code (experiments/loan-sched-ext/notes.md). Such a guest gets a second try,
    /// and the output says so.
    pub fn begin(&self, machine: Qemu, script: &str, programs: &[&str]) -> Guest {
        let script = format!("echo RESULT began=1\n{script}");
        let initramfs = Initramfs::new(script).programs(programs.iter().copied());
        let start = || {
            machine
                .clone()
                .start_with(&self.host, &self.kernel, &initramfs, LIMIT, Some(show))
                .unwrap()
        };
        let guest = start();
        match guest.wait_result("began", LIMIT / 2) {
            Err(error) if error.kind() == ErrorKind::Timeout && self.accel.accel != Accel::Kvm => {
                eprintln!("{error}\nThe guest has not begun, and gets a second try.");
                drop(guest);
                start()
            }
            _ => guest,
        }
    }
}

/// User-Mode Linux.
pub struct UmlBed {
    pub host: Host,
    pub program: UmlProgram,
}

impl UmlBed {
    pub fn find() -> Option<Self> {
        let host = host();
        let program = or_skip("User-Mode Linux", UmlProgram::find(&host))?;
        Some(Self { host, program })
    }

    pub fn start(&self, socket: &Path, script: &str, programs: &[&str]) -> Guest {
        let machine = Uml::new(self.program.clone(), [socket.to_path_buf()]);
        let guest = Initramfs::new(script).programs(programs.iter().copied());
        machine.start_with(&self.host, &guest, LIMIT, Some(show)).unwrap()
    }

    /// Runs `script` in a machine to its end; the script must succeed.
    pub fn run(&self, socket: &Path, script: &str, programs: &[&str]) -> Report {
        finished(self.start(socket, script, programs))
    }
}

/// Waits for a guest whose script has to end well.
pub fn finished(guest: Guest) -> Report {
    let report = guest.wait().unwrap_or_else(|e| panic!("{e}"));
    report.script_ok().unwrap_or_else(|e| panic!("{e}"));
    report
}

/// An image file in a directory of its own, and the socket on which it is served.
pub struct Volume {
    directory: TempDir,
    pub image: PathBuf,
    pub socket: PathBuf,
}

impl Volume {
    /// An empty sparse volume.
    pub fn new(bytes: u64) -> Self {
        let directory = TempDir::with_prefix("vlane-test-").unwrap();
        let (image, socket) =
            (directory.path().join("disk.raw"), directory.path().join("disk.sock"));
        std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        Self { directory, image, socket }
    }

    /// Serves it with `vlane serve` and more options.
    pub fn serve(&self, options: &[&str]) -> Backend {
        let mut words =
            vec!["serve".into(), self.image.clone(), "--socket".into(), self.socket.clone()];
        words.extend(options.iter().map(PathBuf::from));
        let spec = Spec::new(vlane(), words);
        Backend::start_within(LIMIT, &spec, &self.socket, Ready::Line("listening on"), Some(show))
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// A path in the volume's directory.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Bytes that the image takes on the host's disk.
    pub fn allocated(&self) -> u64 {
        std::fs::metadata(&self.image).unwrap().blocks() * 512
    }
}

/// Script that makes, fsyncs and removes small files, as a mail server does, on an ext4 with a
/// journal of so many MiB. Prints `mailed` when that is done, and unmounts on request.
pub fn mail(files: u32, journal: u64) -> String {
    format!(
        r#"
set -e
mkfs.ext4 -q -F -b 4096 -J size={journal} /dev/vda
mount /dev/vda /mnt
fio --name=mail --directory=/mnt --filesize=4k --nrfiles={files} --openfiles=1 --file_service_type=sequential \
    --create_on_open=1 --fsync_on_close=1 --unlink=1 --rw=write --bs=4k --ioengine=psync > /tmp/fio 2>&1 \
    || {{ cat /tmp/fio; exit 1; }}
echo "RESULT mailed=1"
read -r go
umount /mnt
e2fsck -fn /dev/vda > /tmp/fsck 2>&1 || {{ cat /tmp/fsck; exit 1; }}
"#
    )
}

/// Programs that [`mail`] calls.
pub const MAIL_PROGRAMS: &[&str] = &["fio", "mkfs.ext4", "e2fsck"];

/// A volume's report of its journals, once it is current and at most so many bytes are cached. A
/// busy machine lets the thread that drops their pages wait. After a minute any report counts.
fn journal_info(control: &Path, most: u64) -> serde_json::Value {
    let control = vlane_testbed::control::Control::new(control);
    let begin = Instant::now();
    loop {
        let info: serde_json::Value = control.get("/v1/journal").unwrap_or_else(|e| panic!("{e}"));
        let is_little = info["cached_bytes"].as_u64().is_none_or(|cached| cached <= most);
        if info["is_current"] == true && is_little || begin.elapsed() > LIMIT / 4 {
            return info;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The volume of a guest that has sent mail after its journal wrapped. The journal is known, and
/// little of it is in the page cache.
pub fn check_journal_bypass(volume: &Volume, control: &Path, journal: u64) {
    let few = (journal / 2).min(8) << 20;
    let info = journal_info(control, few);
    assert_eq!((&info["is_watched"], &info["is_current"]), (&true.into(), &true.into()), "{info}");
    let journals: Vec<_> = info["journals"].as_array().unwrap().iter().collect();
    let found = journals
        .iter()
        .find(|found| found["filesystem"] == "ext4")
        .unwrap_or_else(|| panic!("{info}"));
    let sum = |ways: &serde_json::Value| {
        ways.as_object().unwrap().values().filter_map(|v| v.as_u64()).sum::<u64>()
    };
    let (written, dropped) = (sum(&info["journal_written_bytes"]), sum(&info["dropped_bytes"]));
    assert!(written > (journal * 5 / 4) << 20, "the journal did not come round: {info}");
    // Blocks written more than once between two drops are dropped once.
    assert!(dropped > written / 4, "{info}");
    match info["cached_bytes"].as_u64() {
        None => vlane_testing::skip(
            "this kernel does not report the page cache's content (cachestat needs Linux 6.5)",
        ),
        Some(cached) => assert!(cached <= few, "{info}"),
    }
    // The same from outside.
    let image = std::fs::File::open(&volume.image).unwrap();
    let mut pages = 0;
    for range in found["ranges"].as_array().unwrap() {
        let range = [range[0].as_u64().unwrap(), range[1].as_u64().unwrap()];
        pages += cached_pages(&image, range).unwrap_or(0);
    }
    assert!(pages * 4096 <= few, "{pages} pages of the journal are in the page cache: {info}");
}

/// Checks that direct parts of a mailing guest's journal are never in the page cache, not even for
/// a moment. False if no part can be direct here.
pub fn check_journal_direct(volume: &Volume, control: &Path) -> bool {
    let info = journal_info(control, u64::MAX);
    let direct = &info["direct"];
    if let Some(why) = direct["refusal"].as_str() {
        vlane_testing::skip(format!("no direct regions: {why}"));
        return false;
    }
    assert!(direct["written_bytes"].as_u64() > Some(8 << 20), "{info}");
    let (ranges, image) =
        (direct["ranges"].as_array().unwrap(), std::fs::File::open(&volume.image).unwrap());
    assert!(!ranges.is_empty(), "{info}");
    for range in ranges {
        let range = [range[0].as_u64().unwrap(), range[1].as_u64().unwrap()];
        assert_eq!(cached_pages(&image, range), Some(0), "{range:?}: {info}");
    }
    true
}

/// Pages of a file's range (start, length) that are in the page cache. `None` if the kernel cannot
/// say (before 6.5).
fn cached_pages(file: &std::fs::File, [start, len]: [u64; 2]) -> Option<u64> {
    vlane_engine::pages::cached(file, &(start..start + len))
}

/// Stops a back end; it must end with success and take its socket with it.
pub fn stop(backend: Backend) -> Stopped {
    let socket = backend.socket().to_path_buf();
    let stopped = backend.stop(STOP).unwrap_or_else(|e| panic!("{e}"));
    assert!(stopped.status.success(), "{}: {}", stopped.status, stopped.log);
    assert!(!socket.exists(), "the back end left its socket behind");
    stopped
}

/// Sends a process a signal.
pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// Asks a back end to be replaced, and waits until it was or has refused. Returns the line that
/// says so. On a busy machine the next program, or the thread that serves, may be late: then it is
/// asked again.
pub fn upgrade(backend: &Backend) -> String {
    let begin = Instant::now();
    loop {
        let answer = ask_for_upgrade(backend);
        let late = ["does not answer within", "is not over after", "ask again when it answers"];
        let is_late = late.iter().any(|words| answer.contains(words));
        if !is_late || begin.elapsed() > LIMIT {
            return answer;
        }
    }
}

fn ask_for_upgrade(backend: &Backend) -> String {
    let answers = || -> Vec<String> {
        let log = backend.log();
        let is_one =
            |line: &&str| line.contains("upgraded in place") || line.contains("not upgraded");
        log.lines().filter(is_one).map(str::to_owned).collect()
    };
    let before = answers().len();
    signal(backend.id(), Signal::USR2);
    let begin = Instant::now();
    loop {
        if let Some(answer) = answers().get(before) {
            return answer.clone();
        }
        assert!(begin.elapsed() < LIMIT, "no answer: {}", backend.log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a back end's start, or its start after an upgrade, has ended: its last thread and
/// its last kind of descriptor are there.
pub fn wait_started(backend: &Backend) {
    let tasks = format!("/proc/{}/task", backend.id());
    let is_door = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm"))
            .is_ok_and(|name| name.trim() == "acceptor")
    };
    let has_started = || {
        std::fs::read_dir(&tasks).unwrap().flatten().any(is_door)
            && vlane_testing::descriptors(backend.id())
                .iter()
                .any(|one| one.file.contains("inotify"))
    };
    let begin = Instant::now();
    while !has_started() {
        assert!(begin.elapsed() < LIMIT, "{}", backend.log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The SHA-256 of a file, as sha256sum prints it.
pub fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().to_string()
}

/// The SHA-256 of bytes.
pub fn sha256_of(bytes: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    sha256(file.path())
}

/// Number of requests that queue `queue` carried in the last session whose end `vlane serve`
/// logged: `session 1 ended: front end hung up; 2 of 64 offered queues had requests; queue 0: 123
/// requests; queue 1: 4 requests`. Queues without requests are not mentioned.
pub fn requests(log: &str, queue: usize) -> u64 {
    let told = |line: &&str| line.contains(": session ") && line.contains(" ended: ");
    let line = log.lines().rfind(told).unwrap_or_else(|| panic!("no session ended:\n{log}"));
    let Some((_, rest)) = line.split_once(&format!("queue {queue}: ")) else { return 0 };
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number of requests in: {line}"))
}

/// Puts the smallest operating system there is on an image: it prints the second sector and resets
/// the machine.
pub fn make_bootable(image: &Path) {
    let image = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    image.write_all_at(&boot_sector(), 0).unwrap();
    image.write_all_at(b"RESULT second_sector=read\r\n\0", 512).unwrap();
}

/// Reads the disk's second sector through the BIOS, prints it on the serial line, and resets the
/// machine.
fn boot_sector() -> [u8; 512] {
    const CODE: [u8; 56] = [
        0xfa, //             cli
        0x31, 0xc0, //       xor ax, ax
        0x8e, 0xd8, //       mov ds, ax
        0x8e, 0xc0, //       mov es, ax
        0x8e, 0xd0, //       mov ss, ax
        0xbc, 0x00, 0x7c, // mov sp, 0x7c00
        0xfb, //             sti
        0xbb, 0x00, 0x7e, // mov bx, 0x7e00       where the sector goes
        0xb8, 0x01, 0x02, // mov ax, 0x0201       read one sector
        0xb9, 0x02, 0x00, // mov cx, 2            cylinder 0, sector 2
        0xb6, 0x00, //       mov dh, 0            head 0; dl is the boot drive
        0xcd, 0x13, //       int 0x13
        0x72, 0x17, //       jc reset
        0xbe, 0x00, 0x7e, // mov si, 0x7e00
        0xfc, //             cld
        // next:
        0xba, 0xfd, 0x03, // mov dx, 0x3fd        COM1's line status
        0xec, //             in al, dx
        0xa8, 0x20, //       test al, 0x20        room for a byte?
        0x74, 0xfb, //       jz back to in
        0xac, //             lodsb
        0x84, 0xc0, //       test al, al
        0x74, 0x06, //       jz reset
        0xba, 0xf8, 0x03, // mov dx, 0x3f8
        0xee, //             out dx, al
        0xeb, 0xed, //       jmp next
        // reset:
        0xb0, 0xfe, //       mov al, 0xfe
        0xe6, 0x64, //       out 0x64, al         the keyboard controller's reset line
        0xf4, //             hlt
    ];
    let mut sector = [0; 512];
    sector[..CODE.len()].copy_from_slice(&CODE);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// A program without what only debuggers want: a CPU that is emulated, twice perhaps, has less to
/// unpack.
pub fn stripped(host: &Host, program: &Path) -> NamedTempFile {
    let file = NamedTempFile::with_prefix("vlane-test-program-").unwrap();
    let mut strip = Command::new(host.program("strip").unwrap());
    let output =
        strip.args(["--strip-debug", "-o"]).arg(file.path()).arg(program).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    file
}

/// `vlane sched run` as a process of its own, with its sockets in a directory of its own.
pub struct Scheduler {
    backend: Backend,
    socket: PathBuf,
    _directory: TempDir,
}

impl Scheduler {
    /// Starts it; `None`, said loudly, where this test may not schedule.
    pub fn start(options: &[&str]) -> Option<Self> {
        if let Err(error) = vlane_sched::realtime::check() {
            vlane_testing::skip(error);
            return None;
        }
        let directory = TempDir::with_prefix("vlane-sched-").unwrap();
        let at = |name: &str| directory.path().join(name);
        let mut words: Vec<PathBuf> =
            ["sched", "run", "--json", "-"].iter().map(PathBuf::from).collect();
        for (option, file) in
            [("--listen", "sched.sock"), ("--socket", "state.sock"), ("--state-dir", "run")]
        {
            words.extend([option.into(), at(file)]);
        }
        words.extend(options.iter().map(PathBuf::from));
        let spec = Spec::new(vlane(), words);
        let socket = at("state.sock");
        // The kernel verifies BPF programs before a socket exists. That takes an emulated CPU
        // seconds, and several times as long if others use the CPU.
        let backend = Backend::start_within(LIMIT, &spec, &socket, Ready::Socket, Some(show))
            .unwrap_or_else(|e| panic!("{e}"));
        // The socket's file is there a moment before that.
        let until = std::time::Instant::now() + LIMIT;
        while !vlane_testing::listens(&socket) {
            assert!(std::time::Instant::now() < until, "it does not listen: {}", backend.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Self { backend, socket, _directory: directory })
    }

    /// Its present state, read from its socket. Starting `vlane sched top` for it would, in an
    /// emulated machine, cost the CPU time under test.
    pub fn state(&self) -> vlane_sched::live::state::DaemonState {
        let client = vlane_sched::live::socket::Client::connect(&self.socket, false);
        let told = client.and_then(|mut client| client.next_state());
        let told = told.unwrap_or_else(|error| panic!("{error}\n{}", self.said()));
        told.unwrap_or_else(|| panic!("the scheduler has ended\n{}", self.said())).1
    }

    /// The first state of which something holds.
    pub fn wait(
        &self,
        what: &str,
        holds: impl Fn(&vlane_sched::live::state::DaemonState) -> bool,
    ) -> vlane_sched::live::state::DaemonState {
        let until = std::time::Instant::now() + LIMIT;
        loop {
            let state = self.state();
            if holds(&state) {
                return state;
            }
            assert!(std::time::Instant::now() < until, "never: {what}: {state:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.backend.id()
    }

    /// Its log so far.
    pub fn said(&self) -> String {
        self.backend.log()
    }

    /// Ends it; the last state.
    pub fn stop(self) -> vlane_sched::live::state::DaemonState {
        let stopped = self.backend.stop(STOP).unwrap();
        assert!(stopped.status.success(), "{}: {}", stopped.status, stopped.log);
        let last = stopped.log.lines().rfind(|line| line.starts_with('{'));
        serde_json::from_str(last.unwrap_or_else(|| panic!("{}", stopped.log))).unwrap()
    }
}

/// A loop device over a file, gone when this is dropped. It has a page cache of its own before the
/// file.
pub struct LoopDevice(pub PathBuf);

impl LoopDevice {
    /// None where there can be no loop device; that is said. `options` are those of losetup(8).
    pub fn over(file: &Path, options: &[&str]) -> Option<LoopDevice> {
        let made =
            Command::new("losetup").args(["--find", "--show"]).args(options).arg(file).output();
        match made {
            Ok(made) if made.status.success() => {
                Some(LoopDevice(String::from_utf8(made.stdout).unwrap().trim().into()))
            }
            other => {
                vlane_testing::skip(format!("no loop device can be made here: {other:?}"));
                None
            }
        }
    }

    /// Its directory in /sys.
    pub fn in_sys(&self) -> PathBuf {
        Path::new("/sys/block").join(self.0.file_name().unwrap())
    }

    /// Number of requests to the device to keep the data written to it.
    pub fn flushes(&self) -> u64 {
        let stat = std::fs::read_to_string(self.in_sys().join("stat")).unwrap();
        // Documentation/block/stat.rst: the sixteenth number, from Linux 5.5 on.
        stat.split_whitespace().nth(15).unwrap().parse().unwrap()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
