//! The back end goes away and comes back under a running guest: QEMU reconnects, and the guest's
//! work continues.
//!
//! `VLANE_GUEST_RECONNECTS=50` takes it away that often in each test.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{LoopDevice, QemuBed, Volume, one_at_a_time, sha256_of, stop};
use vlane_guest::{Backend, Boot, Guest, Qemu, Ready, Report, Spec, Stopped, ext4};

const MIB: u64 = 1 << 20;
/// How long the guest is without its disk, and works between two losses.
const PAUSE: Duration = Duration::from_millis(1500);
const TIMES: u32 = 2;
/// How long it is at the most, here.
const OUTAGE: Duration = Duration::from_secs(90);
const OPTIONS: [&str; 2] = ["--queues", "2"];
const UPGRADED: &str = "upgraded in place";
const PROGRAMS: &[&str] = &["fio", "mkfs.ext4", "e2fsck"];

/// How often it goes away.
fn times() -> u32 {
    std::env::var("VLANE_GUEST_RECONNECTS").map_or(TIMES, |given| given.parse().unwrap())
}

/// fio writes a file at a fixed rate and verifies it, repeatedly, until it is stopped.
const WORK: &str = r#"
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
dd if=/dev/urandom of=/mnt/before bs=64k count=64 conv=fsync 2>/dev/null
echo "RESULT before=$(sha256sum /mnt/before | cut -d' ' -f1)"
while [ ! -e /tmp/stop ]; do
    fio --name=work --directory=/mnt --size=8m --bsrange=4k-64k --rw=randwrite --rate=,2m --direct=1 \
        --ioengine=libaio --iodepth=16 --fsync=32 --verify=crc32c --verify_fatal=1 > /tmp/fio 2>&1 \
        || { cat /tmp/fio; exit 1; }
done &
work=$!
echo "RESULT working=1"
read -r stop
touch /tmp/stop
wait $work
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
e2fsck -fn /dev/vda > /tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
mount -o ro /dev/vda /mnt
echo "RESULT file=$(sha256sum /mnt/work.0.0 | cut -d' ' -f1)"
umount /mnt
"#;

/// Takes the back end away, killed or stopped in turns, and checks that no data were lost.
fn goes_on(change: impl Fn(&mut Qemu)) {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(128 * MIB);
    let mut backend = volume.serve(&OPTIONS);
    let mut machine = bed.machine(&volume.socket);
    machine.disks[0].reconnect = true;
    change(&mut machine);
    let limit = common::LIMIT + 4 * PAUSE * times();
    let guest = bed.start_for(machine, WORK, PROGRAMS, limit);
    guest.wait_result("working", common::LIMIT).unwrap();
    for time in 0..times() {
        std::thread::sleep(PAUSE);
        match time % 2 {
            0 => backend.kill(),
            _ => drop(stop(backend)),
        }
        std::thread::sleep(PAUSE);
        backend = volume.serve(&OPTIONS);
    }
    finishes(&bed, &volume, backend, guest);
}

/// The guest comes to the end of its work, and what it wrote is there.
fn finishes(
    bed: &QemuBed,
    volume: &Volume,
    backend: Backend,
    mut guest: Guest,
) -> (Report, Stopped) {
    guest.send("stop\n").unwrap();
    let report = common::finished(guest);
    let stopped = stop(backend);
    ext4::check(&bed.host, &volume.image).unwrap();
    for (key, path) in [("before", "/before"), ("file", "/work.0.0")] {
        let content = ext4::read_file(&bed.host, &volume.image, path).unwrap();
        assert_eq!(sha256_of(&content), report.result(key).unwrap(), "{path}");
    }
    (report, stopped)
}

/// The back end marks what it has in flight in memory that QEMU keeps, and the next one does
/// exactly that again.
#[test]
fn restarted_back_end_loses_no_data() {
    goes_on(|_| ());
}

/// A packed ring has no index in memory that shows the back end's progress, and QEMU gives the new
/// back end the position of the guest's first start. After a kill, that memory alone shows the
/// ring's position. A stopped back end left the true position in the ring.
#[test]
fn restarted_back_end_loses_no_packed_data() {
    goes_on(|machine| machine.disks[0].packed = true);
}

/// Guests with split and with packed rings are without their disk for a minute and a half, in the
/// middle of their work. Linux does not give up a request to a virtio disk, and QEMU tries again
/// for as long as it runs. Its name is the first one, so that the others run meanwhile.
#[test]
fn guest_survives_ninety_seconds_without_back_end() {
    let beginning = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let guests = [false, true].map(|packed| {
        let volume = Volume::new(128 * MIB);
        let backend = volume.serve(&OPTIONS);
        let mut machine = bed.machine(&volume.socket);
        (machine.disks[0].reconnect, machine.disks[0].packed) = (true, packed);
        // Its end may have to wait for the guests of others.
        let guest = bed.start_for(machine, WORK, PROGRAMS, 3 * common::LIMIT + OUTAGE);
        guest.wait_result("working", common::LIMIT).unwrap();
        (volume, backend, guest)
    });
    std::thread::sleep(PAUSE);
    let guests = guests.map(|(volume, backend, guest)| {
        backend.kill();
        (volume, guest)
    });
    // Meanwhile others may run.
    drop(beginning);
    std::thread::sleep(OUTAGE);
    let _turn = one_at_a_time();
    let guests = guests.map(|(volume, guest)| {
        let backend = volume.serve(&OPTIONS);
        (volume, backend, guest)
    });
    for (volume, backend, guest) in guests {
        finishes(&bed, &volume, backend, guest);
    }
}

/// Queues of a guest with 2 CPUs: a queue for each CPU that it could have.
const MANY: u16 = 64;

/// Upgrades a guest's back end under load. QEMU sees no effect: no connection ends, none is made,
/// and no request of the guest fails.
struct Upgraded<'a> {
    backend: &'a Backend,
    /// Files that the test itself was started with.
    passed: Vec<String>,
}

impl Upgraded<'_> {
    /// Asks for an upgrade, which is answered with these words.
    fn answers(&self, words: &str) {
        std::thread::sleep(PAUSE / 3);
        let answer = common::upgrade(self.backend);
        assert!(answer.contains(words), "{words}: {answer}");
        // The guest's objects would not survive the next upgrade by themselves.
        assert_eq!(vlane_testing::inherited(self.backend.id()), self.passed);
    }

    /// Descriptors that the back end has open.
    fn opened(&self) -> usize {
        common::wait_started(self.backend);
        vlane_testing::descriptors(self.backend.id()).len()
    }

    /// Waits until the back end has no more of them open: the upgrade's own may be closed a little
    /// later.
    fn opens_at_most(&self, most: usize) {
        let begin = Instant::now();
        while self.opened() > most {
            let held = vlane_testing::descriptors(self.backend.id());
            assert!(begin.elapsed() < common::LIMIT, "{most} before; these are left: {held:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A guest works on a volume while its back end is upgraded as `upgrades` wants it.
fn is_upgraded(
    volume: &Volume,
    backend: Backend,
    change: impl FnOnce(&QemuBed, &mut Qemu),
    upgrades: impl FnOnce(Upgraded),
) -> Option<()> {
    let bed = QemuBed::find()?;
    let passed = vlane_testing::inherited(backend.id());
    let mut machine = bed.machine(&volume.socket);
    change(&bed, &mut machine);
    let queues = machine.disks[0].queues.unwrap_or(machine.vcpus);
    let script = format!("echo RESULT queues=$(ls /sys/block/vda/mq | wc -l)\n{WORK}");
    let guest = bed.start(machine, &script, PROGRAMS);
    guest.wait_result("working", common::LIMIT).unwrap();
    upgrades(Upgraded { backend: &backend, passed });
    let (report, stopped) = finishes(&bed, volume, backend, guest);
    assert_eq!(report.result("queues").unwrap(), queues.to_string());
    assert_eq!(stopped.log.matches(": front end pid").count(), 1, "{}", stopped.log);
    println!("{}", stopped.log);
    Some(())
}

/// A guest has more queues than the soft limit of descriptors has room for. Upgrades under its load
/// succeed, or are refused while the old program can still go on.
#[test]
fn upgrades_are_invisible_with_many_queues() {
    let _turn = one_at_a_time();
    let volume = Volume::new(128 * MIB);
    let (image, socket) = (volume.image.to_str().unwrap(), volume.socket.to_str().unwrap());
    let words = [
        "-c",
        "ulimit -Sn 256; exec \"$@\"",
        "sh",
        common::vlane(),
        "serve",
        image,
        "--socket",
        socket,
        // By itself their number changes, and with it that of their rings.
        "--threads",
        "2",
    ];
    let spec = Spec::new("bash", words);
    let ready = Ready::Line("listening on");
    let backend = Backend::start_within(common::LIMIT, &spec, &volume.socket, ready, None).unwrap();
    let unused = volume.beside("unused");
    let change = |bed: &QemuBed, machine: &mut Qemu| {
        machine.disks[0].queues = Some(MANY);
        // Memory that the guest leaves unused.
        let append = "memhp_default_state=offline".to_owned();
        machine.boot = Boot::Kernel { kernel: bed.kernel.image.clone(), initramfs: None, append };
        let object = format!(
            "memory-backend-file,id=unused,size=128M,share=on,mem-path={}",
            unused.display()
        );
        let cpus = format!("maxcpus={MANY}");
        let words = [
            "-smp",
            &cpus,
            "-m",
            "slots=1,maxmem=1G",
            "-object",
            &object,
            "-device",
            "pc-dimm,memdev=unused",
        ];
        machine.extra = words.map(str::to_owned).to_vec();
    };
    let set_memory = |bytes| {
        let file = std::fs::OpenOptions::new().write(true).open(&unused).unwrap();
        file.set_len(bytes).unwrap();
    };
    is_upgraded(&volume, backend, change, |upgraded| {
        upgraded.answers(UPGRADED);
        let before = upgraded.opened();
        assert!(before > 3 * usize::from(MANY), "{before} descriptors");
        set_memory(64 * MIB);
        upgraded.answers("not upgraded");
        set_memory(128 * MIB);
        upgraded.answers(UPGRADED);
        upgraded.opens_at_most(before);
        // The hard limit is lower than the need now.
        let process = upgraded.backend.id().to_string();
        let set = Command::new("prlimit").args(["--pid", &process, "--nofile=256:256"]).status();
        assert!(set.unwrap().success());
        upgraded.answers("the limit is 256; raise it");
    });
}

#[test]
fn upgrades_are_invisible_with_packed_rings() {
    let _turn = one_at_a_time();
    let volume = Volume::new(128 * MIB);
    let backend = volume.serve(&OPTIONS);
    let change = |_: &QemuBed, machine: &mut Qemu| machine.disks[0].packed = true;
    is_upgraded(&volume, backend, change, |upgraded| {
        (0..5).for_each(|_| upgraded.answers(UPGRADED))
    });
}

const TRIMS: &str = r#"
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
trim() {
    dd if=/dev/urandom of=/mnt/file bs=64k count=64 conv=fsync 2>/dev/null
    sha256sum /mnt/file > /tmp/sum
    dd if=/dev/zero of=/mnt/gone bs=64k count=64 conv=fsync 2>/dev/null
    rm /mnt/gone
    fstrim /mnt
    sha256sum -c /tmp/sum >/dev/null
    echo "RESULT $1=1"
}
trim first
read -r go
trim second
read -r go
trim third
umount /mnt
e2fsck -fn /dev/vda > /tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
"#;

/// The guest was offered discard. It trims on when an upgrade, and then a new server, finds a
/// device without it.
#[test]
fn guest_keeps_disk_without_discard() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(64 * MIB);
    let Some(device) = LoopDevice::over(&volume.image, &[]) else { return };
    let path = device.0.display().to_string();
    // A real device would keep the limit for its next user. So the server alone sees another
    // device.
    let limit = volume.beside("discard_max_bytes");
    std::fs::write(&limit, "1073741824\n").unwrap();
    let seen = device.in_sys().join("queue/discard_max_bytes").display().to_string();
    let script = "mount --bind \"$0\" \"$1\" && shift && exec \"$@\"";
    let serve = || {
        let mut words = vec!["--mount", "sh", "-c", script, limit.to_str().unwrap(), &seen];
        words.extend([
            common::vlane(),
            "serve",
            &path,
            "--socket",
            volume.socket.to_str().unwrap(),
        ]);
        words.extend(OPTIONS);
        let spec = Spec::new("unshare", words);
        Backend::start_within(
            common::LIMIT,
            &spec,
            &volume.socket,
            Ready::Line("listening on"),
            None,
        )
        .unwrap()
    };
    let backend = serve();
    let mut machine = bed.machine(&volume.socket);
    machine.disks[0].reconnect = true;
    let mut guest =
        bed.start(machine, TRIMS, &["mkfs.ext4", "e2fsck", "fstrim", "dd", "sha256sum"]);
    guest.wait_result("first", common::LIMIT).unwrap();
    std::fs::write(&limit, "0\n").unwrap();
    assert!(common::upgrade(&backend).contains(UPGRADED), "{}", backend.log());
    guest.send("go\n").unwrap();
    guest.wait_result("second", common::LIMIT).unwrap();
    backend.kill();
    let backend = serve();
    guest.send("go\n").unwrap();
    common::finished(guest);
    stop(backend);
}
