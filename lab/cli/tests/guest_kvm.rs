//! A guest under KVM on a disk of vlane's. Its data reach the image, it survives kills of the
//! server, and its requests need no more of KVM's exits and eventfds than expected.
//!
//! Where KVM works, the guests run on this machine. Everywhere else, or where this machine's kernel
//! cannot be traced, `kvm_tests_pass_in_emulated_machine` runs this program in a machine whose CPU
//! is emulated by QEMU, virtualisation included.

#![allow(clippy::unwrap_used)]

mod common;
mod kvm;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{LoopDevice, Volume, one_at_a_time, sha256_of, stop};
use kvm::counts::{Counting, Counts, REQUESTS};
use kvm::{Bed, finished, wait_for, wait_result};
use vlane_guest::{Accel, Boot, Disk, Guest, Initramfs, Kernel, Qemu, ext4};
use vlane_testbed::Control;

const MIB: u64 = 1 << 20;
/// Requests at once when the back end is killed.
const DEPTH: u32 = 4;
/// Kills of a back end.
const KILLS: u32 = 2;
/// Sectors of a logical volume.
const VOLUME_SECTORS: u64 = 48 * MIB / 512;
/// How long a guest is without its disk.
const PAUSE: Duration = Duration::from_millis(300);
/// How long the emulated machine may run: a minute, unless the host does much else.
const MACHINE: Duration = Duration::from_secs(1200);
/// Requests that a guest does before a kill, and after it.
const WORK: u64 = 100;

/// Not a test: the load that runs in a guest.
#[test]
fn load_for_the_emulated_machine() {
    let Ok(depth) = std::env::var("VLANE_TEST_LOAD") else { return };
    kvm::load::run(depth.parse().unwrap());
}

/// With device-mapper, as in the emulated machine, its disk is one of two logical volumes of a
/// group. Another front end has the other one meanwhile.
#[test]
fn kvm_guest_data_reaches_the_image() {
    let _turn = one_at_a_time();
    let Some(bed) = Bed::find() else { return };
    let (mut first, mut second) = (Volume::new(128 * MIB), Volume::new(0));
    let file = first.image.clone();
    let group = Group::new(&file).map_err(|why| assert!(!kvm::is_inside(), "{why}")).ok();
    if let Some(group) = &group {
        (first.image, second.image) = (group.volumes[0].clone(), group.volumes[1].clone());
    }
    let backend = first.serve(&["--queues", "2"]);
    let other = group.as_ref().map(|_| second.serve(&["--queues", "1"]));
    let guest = bed.start(&first.socket, "write", false);
    if let Some(other) = other {
        let mut bench = Command::new(common::vlane());
        bench.args(["bench", "--verify", "--size", "1M", "--time", "300ms", "--yes-overwrite"]);
        let bench = bench.arg(&second.socket).output().unwrap();
        assert!(bench.status.success(), "{bench:?}");
        stop(other);
    }
    let report = finished(guest);
    stop(backend);
    assert_eq!(report.result("pattern").unwrap(), "same");
    check(&first, "/2", report.result("file").unwrap());
    // Both volumes lie on these.
    for image in group.iter().flat_map(|group| [&file, &group.disk.0]) {
        let mut serve = Command::new("timeout");
        serve.args(["60", common::vlane(), "serve"]).arg(image).arg("--socket").arg(&first.socket);
        let refused = serve.output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{}: {refused:?}", image.display());
    }
}

/// The file system is sound, and a file has the guest's checksum.
fn check(volume: &Volume, path: &str, sum: &str) {
    let host = common::host();
    ext4::check(&host, &volume.image).unwrap();
    assert_eq!(sha256_of(&ext4::read_file(&host, &volume.image, path).unwrap()), sum, "{path}");
}

#[test]
fn kvm_guest_survives_killed_server() {
    goes_on(false);
}

#[test]
fn packed_kvm_guest_survives_killed_server() {
    goes_on(true);
}

fn goes_on(packed: bool) {
    let _turn = one_at_a_time();
    let Some(bed) = Bed::find() else { return };
    let volume = Volume::new(64 * MIB);
    // A device that takes its time: there are always requests in flight.
    let serve = || volume.serve(&["--queues", "2", "--latency", "1ms", "--parallel", "8"]);
    let mut backend = serve();
    let mut guest = bed.start(&volume.socket, "load", packed);
    wait_result(&guest, "ready");
    guest.send(&format!("{DEPTH}\n")).unwrap();
    works(&guest);
    for _ in 0..KILLS {
        backend.kill();
        std::thread::sleep(PAUSE);
        backend = serve();
        works(&guest);
    }
    guest.send("stop\n").unwrap();
    let report = finished(guest);
    let log = backend.log();
    stop(backend);
    assert!(!log.contains("is stopped"), "a queue stands still: {log}");
    assert!(report.result("verified").unwrap().parse::<u32>().unwrap() > 0);
    check(&volume, "/before", report.result("before").unwrap());
    check(&volume, "/load", report.result("load").unwrap());
}

/// Waits until the guest's load has done some more.
fn works(guest: &Guest) {
    let done =
        |guest: &Guest| guest.results().get("done").map_or(0, |done| done.parse::<u64>().unwrap());
    let before = done(guest);
    wait_for(guest, "more requests are done", |guest| (done(guest) >= before + WORK).then_some(()));
}

/// One request at a time, with a lane that sleeps between them. Each request is one kick, which
/// leaves the guest through KVM's ioeventfd, and one signal, which returns through its irqfd.
#[test]
fn kvm_delivers_every_kick_and_signal() {
    let _turn = one_at_a_time();
    let Some(bed) = Bed::find() else { return };
    let counting = match Counting::begin() {
        Ok(counting) => counting,
        // The emulated machine's kernel can be traced: there it is counted.
        Err(why) => {
            assert!(!kvm::is_inside(), "{why}");
            return;
        }
    };
    let volume = Volume::new(64 * MIB);
    let control = volume.beside("control");
    let backend =
        volume.serve(&["--queues", "2", "--poll", "off", "--control", control.to_str().unwrap()]);
    let mut guest = bed.start(&volume.socket, "count", false);
    wait_result(&guest, "ready");
    let take = |guest: &Guest| {
        // The lane publishes what it counted after it has answered, a busy machine later.
        let told = || Control::new(&control).counters().unwrap().sum;
        let mut before = told();
        let sum = loop {
            std::thread::sleep(Duration::from_millis(200));
            let now = told();
            if now == before {
                break now;
            }
            before = now;
        };
        counting.take(guest.id(), backend.id()).beside(sum)
    };
    let mut before = take(&guest);
    let mut step = |key: &str, title: &str| {
        guest.send("go\n").unwrap();
        wait_result(&guest, key);
        let now = take(&guest);
        let counts = now.since(&before);
        before = now;
        println!("{}", counts.table(title));
        counts
    };
    let reads = step("read", "reads of 4K, one at a time");
    let writes = step("written", "writes of 4K, one at a time");
    let idle = step("idle", "two seconds of nothing");
    guest.send("go\n").unwrap();
    finished(guest);
    stop(backend);
    each_request_is_a_kick_and_a_signal(&reads);
    each_request_is_a_kick_and_a_signal(&writes);
    assert!(reads.vlane["reads"] >= REQUESTS && writes.vlane["writes"] >= REQUESTS);
    assert_eq!((idle.kicks, idle.interrupts), (0, 0), "an idle guest kicks, or is signalled");
}

fn each_request_is_a_kick_and_a_signal(counts: &Counts) {
    let (requests, kicks, signals) =
        (counts.requests(), counts.vlane["kicks"], counts.vlane["signals"]);
    assert!(kicks.abs_diff(counts.kicks) <= 2, "vlane has seen {kicks} kicks: {counts:?}");
    assert!(
        signals.abs_diff(counts.interrupts) <= 2,
        "vlane has signalled {signals} times: {counts:?}"
    );
    // Fewer kicks: a guest that is answered may ask again before the lane has gone to sleep, which
    // then sees it without one.
    assert!((requests / 10..=requests + 2).contains(&kicks), "{requests} requests: {counts:?}");
    assert!((requests / 10..=requests + 2).contains(&signals), "{requests} requests: {counts:?}");
    // Each kick is an exit; what else there is of MMIO is not of the data path.
    assert!((counts.kicks..=counts.kicks + requests / 2).contains(&counts.mmio()), "{counts:?}");
    // Other causes of exits beside a kick: the timer, interrupts of the host, a sleep, the console.
    assert!(counts.exits.values().sum::<u64>() < 20 * requests, "{counts:?}");
}

/// Two volumes on one physical volume, mapped as LVM does it.
struct Group {
    disk: LoopDevice,
    volumes: Vec<PathBuf>,
}

impl Group {
    fn new(file: &Path) -> Result<Group, String> {
        dmsetup(&["version"])?;
        let disk = LoopDevice::over(file, &[]).ok_or("no loop device")?;
        let mut group = Group { disk, volumes: Vec::new() };
        for (name, start) in [("vlane-first", 2048), ("vlane-second", 2048 + VOLUME_SECTORS)] {
            let table = format!("0 {VOLUME_SECTORS} linear {} {start}", group.disk.0.display());
            dmsetup(&["create", name, "--uuid", &format!("LVM-{name}"), "--table", &table])?;
            group.volumes.push(Path::new("/dev/mapper").join(name));
        }
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for volume in &self.volumes {
            let name = volume.file_name().unwrap().to_str().unwrap();
            let _ = dmsetup(&["remove", "--retry", name]);
        }
    }
}

fn dmsetup(words: &[&str]) -> Result<(), String> {
    // Nodes are made by itself.
    let output = Command::new("dmsetup").args(words).env("DM_DISABLE_UDEV", "1").output();
    let output = output.map_err(|error| format!("dmsetup: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| format!("dmsetup {words:?}: {said}"))
}

/// Runs all of this in a machine with KVM that is emulated, unless it was run on this one.
#[test]
fn kvm_tests_pass_in_emulated_machine() {
    if kvm::is_inside() {
        return;
    }
    let _turn = one_at_a_time();
    let Some((bed, works_here)) = kvm::works_here() else { return };
    if works_here && Counting::begin().is_ok() {
        return;
    }
    let found = Kernel::for_nested_kvm(&bed.host);
    let Some(kernel) = common::or_skip("a kernel with KVM for an emulated CPU", found) else {
        return;
    };
    // One of them, to look at.
    let only = std::env::var("VLANE_KVM_ONLY").unwrap_or_default();
    let script = format!(
        r#"
mount -t tracefs tracefs /sys/kernel/tracing
mount -t tmpfs tmpfs /tmp
export CI=true TMPDIR=/tmp VLANE_PROGRAM=$(command -v vlane) VLANE_KVM_VCPUS={}
guest_kvm --nocapture --test-threads=1 {only} 2>&1
"#,
        kvm::vcpus()
    );
    let vlane = common::stripped(&bed.host, Path::new(common::vlane()));
    let this = common::stripped(&bed.host, &std::env::current_exe().unwrap());
    let outer = Initramfs::new(script)
        .modules(["dm_mod", "loop"])
        .programs(["e2fsck", "debugfs", "setpriv", "dmsetup", "losetup", "timeout"])
        .program_at("vlane", vlane.path())
        .program_at("guest_kvm", this.path());
    let outer = kvm::furnish(outer, &bed.host, &bed.program, &kernel);
    // A computing guest can make emulation lose an interrupt of the CPU. With a tick that always
    // comes, the interrupt is missed for 4 ms only.
    let append = "highres=off nohz=off".to_string();
    let boot = Boot::Kernel { kernel: kernel.image.clone(), initramfs: None, append };
    let mut machine = Qemu::new(bed.program.clone(), Accel::Tcg, boot, Disk::at("/nowhere"));
    machine.disks.clear();
    machine.vcpus = 1;
    machine.memory_mib = 2048;
    let show: fn(&str) = |line| eprintln!("emulated: {line}");
    let report =
        machine.start_with(&bed.host, &kernel, &outer, MACHINE, Some(show)).unwrap().wait();
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    report.script_ok().unwrap_or_else(|error| panic!("{error}\n{}", report.console));
    assert!(!report.console.contains(vlane_testing::MARK), "{}", report.console);
}
