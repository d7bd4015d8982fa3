//! QEMU guests: several vCPUs and queues, packed rings, read-only volumes, firmware, reboots.

#![allow(clippy::unwrap_used)]

mod common;

use common::{QemuBed, Volume, one_at_a_time, sha256, sha256_of, stop};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use vlane_guest::{Backend, Guest, Report, ext4};
use vlane_testing::descriptors;

const MIB: u64 = 1 << 20;
/// The bit of VIRTIO_F_RING_PACKED.
const RING_PACKED: usize = 34;

/// One verified fio job on each vCPU, straight to the device, and what the kernel knows about its
/// queues.
const A_JOB_ON_EACH_VCPU: &str = r#"
set -e
features=$(cat /sys/block/vda/device/features)
echo "RESULT features=$features"
echo "RESULT queues=$(ls /sys/block/vda/mq | wc -l)"
for cpu in 0 1; do
    fio --name=cpu$cpu --filename=/dev/vda --offset=$((cpu * 32))m --size=8m --bsrange=4k-64k --rw=randwrite \
        --direct=1 --ioengine=libaio --iodepth=16 --cpus_allowed=$cpu --fsync=64 \
        --verify=crc32c --verify_fatal=1 > /tmp/fio$cpu 2>&1 &
    eval pid$cpu=$!
done
wait $pid0 || { cat /tmp/fio0; exit 1; }
wait $pid1 || { cat /tmp/fio1; exit 1; }
for queue in 0 1; do
    echo "RESULT interrupts$queue=$(grep "virtio0-req.$queue\$" /proc/interrupts | awk '{ print $2 + $3 }')"
done
"#;

fn number(report: &Report, key: &str) -> u64 {
    let text = report.result(key).unwrap();
    text.parse().unwrap_or_else(|_| panic!("{key}={text}"))
}

fn feature(report: &Report, bit: usize) -> char {
    report.result("features").unwrap().chars().nth(bit).unwrap()
}

#[test]
fn two_vcpus_write_verified_data_on_two_queues() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(128 * MIB);
    let backend = volume.serve(&["--queues", "2"]);
    let report = bed.run(bed.machine(&volume.socket), A_JOB_ON_EACH_VCPU, &["fio"]);
    let stopped = stop(backend);
    assert_eq!(number(&report, "queues"), 2);
    assert_eq!(feature(&report, RING_PACKED), '0', "split rings unless asked for");
    for queue in 0..2 {
        let interrupts = number(&report, &format!("interrupts{queue}"));
        assert!(interrupts > 25, "queue {queue} interrupted its vCPU {interrupts} times");
        // Each job writes 8 MiB in blocks of at most 64 KiB and reads them back.
        let requests = common::requests(&stopped.log, queue);
        assert!(requests >= 256, "queue {queue} carried {requests} requests:\n{}", stopped.log);
    }
}

#[test]
fn multi_queue_guest_journal_stays_uncached() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(1024 * MIB);
    let control = volume.beside("control");
    let options = ["--queues", "2", "--cache", "pdc", "--control", control.to_str().unwrap()];
    let backend = volume.serve(&options);
    let mut guest =
        bed.start(bed.machine(&volume.socket), &common::mail(600, 8), common::MAIL_PROGRAMS);
    guest.wait_result("mailed", common::LIMIT).unwrap();
    common::check_journal_bypass(&volume, &control, 8);
    guest.send("go\n").unwrap();
    common::finished(guest);
    stop(backend);
    ext4::check(&bed.host, &volume.image).unwrap();
}

#[test]
fn guest_with_one_queue_uses_one() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(128 * MIB);
    let backend = volume.serve(&["--queues", "2"]);
    let mut machine = bed.machine(&volume.socket);
    machine.disks[0].queues = Some(1);
    let report = bed.run(machine, A_JOB_ON_EACH_VCPU, &["fio"]);
    let stopped = stop(backend);
    assert_eq!(number(&report, "queues"), 1);
    assert!(number(&report, "interrupts0") > 25);
    assert!(report.results["interrupts1"].is_empty(), "{report:?}");
    assert!(common::requests(&stopped.log, 0) >= 512, "{}", stopped.log);
    assert_eq!(common::requests(&stopped.log, 1), 0, "{}", stopped.log);
}

#[test]
fn packed_rings_carry_verified_data() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(128 * MIB);
    let backend = volume.serve(&["--queues", "2"]);
    let mut machine = bed.machine(&volume.socket);
    machine.disks[0].packed = true;
    let report = bed.run(machine, A_JOB_ON_EACH_VCPU, &["fio"]);
    stop(backend);
    assert_eq!(feature(&report, RING_PACKED), '1', "the guest did not get packed rings");
    for queue in 0..2 {
        assert!(number(&report, &format!("interrupts{queue}")) > 25, "{report:?}");
    }
}

#[test]
fn packed_guest_makes_clean_file_system() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(256 * MIB);
    let backend = volume.serve(&["--queues", "2"]);
    let mut machine = bed.machine(&volume.socket);
    machine.disks[0].packed = true;
    let script = r#"
set -e
echo "RESULT features=$(cat /sys/block/vda/device/features)"
mkfs.ext4 -q -F /dev/vda
mount -o discard /dev/vda /mnt
dd if=/dev/urandom of=/mnt/file bs=100k count=200 2>/dev/null
cp /mnt/file /mnt/gone
sync
rm /mnt/gone
fstrim /mnt
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
mount /dev/vda /mnt
echo "RESULT file=$(sha256sum /mnt/file | cut -d' ' -f1)"
umount /mnt
"#;
    let report = bed.run(machine, script, &["mkfs.ext4", "fstrim"]);
    stop(backend);
    assert_eq!(feature(&report, RING_PACKED), '1', "the guest did not get packed rings");
    ext4::check(&bed.host, &volume.image).unwrap();
    let file = ext4::read_file(&bed.host, &volume.image, "/file").unwrap();
    assert_eq!(file.len(), 200 * 100 * 1024);
    assert_eq!(sha256_of(&file), report.result("file").unwrap());
}

#[test]
fn read_only_volume_is_never_written() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(64 * MIB);
    let tree = volume.beside("tree");
    std::fs::create_dir(&tree).unwrap();
    let content: Vec<u8> = (0..3_000_000u32).flat_map(|n| n.to_le_bytes()).collect();
    std::fs::write(tree.join("file"), &content).unwrap();
    make_ext4(&bed, &volume.image, &tree);
    let before = sha256(&volume.image);
    let script = r#"
echo "RESULT ro=$(cat /sys/block/vda/ro)"
dd if=/dev/zero of=/dev/vda bs=4k count=1 seek=10 conv=fsync 2>/dev/null; echo "RESULT write=$?"
mount /dev/vda /mnt 2>/dev/null; echo "RESULT mount_rw=$(grep -c ' /mnt ext4 rw' /proc/mounts)"
umount /mnt 2>/dev/null
mount -o ro,noload /dev/vda /mnt; echo "RESULT mount_ro=$?"
echo "RESULT file=$(sha256sum /mnt/file | cut -d' ' -f1)"
umount /mnt
"#;
    let look = |options: &[&str]| {
        let backend = volume.serve(options);
        let report = bed.run(bed.machine(&volume.socket), script, &[]);
        stop(backend);
        assert_eq!(report.result("file").unwrap(), sha256_of(&content));
        assert_eq!(report.result("mount_ro").unwrap(), "0");
        report
    };
    let report = look(&["--queues", "2", "--read-only"]);
    assert_eq!(report.result("ro").unwrap(), "1");
    assert_ne!(report.result("write").unwrap(), "0", "a write to a read-only volume must fail");
    assert_eq!(report.result("mount_rw").unwrap(), "0");
    assert_eq!(sha256(&volume.image), before, "the image changed");

    // The same guest on the same volume can write when it may.
    let report = look(&["--queues", "2"]);
    assert_eq!(report.result("ro").unwrap(), "0");
    assert_eq!(report.result("write").unwrap(), "0");
    assert_ne!(sha256(&volume.image), before);
}

#[test]
fn rebooted_guest_finds_its_data() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(128 * MIB);
    let backend = volume.serve(&["--queues", "2"]);
    let mut machine = bed.machine(&volume.socket);
    machine.may_reboot = true;
    let script = r#"
set -e
if mount /dev/vda /mnt 2>/dev/null; then
    echo "RESULT boot=2"
    sha256sum -c /mnt/SUMS > /dev/null
    echo "RESULT second=$(sha256sum /mnt/file | cut -d' ' -f1)"
    umount /mnt
else
    echo "RESULT boot=1"
    mkfs.ext4 -q -F /dev/vda
    mount /dev/vda /mnt
    dd if=/dev/urandom of=/mnt/file bs=64k count=128 2>/dev/null
    sha256sum /mnt/file > /mnt/SUMS
    echo "RESULT first=$(sha256sum /mnt/file | cut -d' ' -f1)"
    umount /mnt
    reboot -f
fi
"#;
    let guest = bed.start(machine, script, &["mkfs.ext4"]);
    let qemu = guest.id();
    let report = common::finished(guest);
    assert!(!Path::new(&format!("/proc/{qemu}")).exists());
    stop(backend);
    assert_eq!(report.result("boot").unwrap(), "2");
    assert_eq!(report.result("first").unwrap(), report.result("second").unwrap());
    ext4::check(&bed.host, &volume.image).unwrap();
}

/// Descriptors of a back end, and parts of a guest's memory among them and among its mappings.
fn holds(backend: &Backend) -> (usize, usize) {
    // QEMU's name for it.
    let is_memory = |text: &str| text.contains("memory-backend-memfd");
    let open = descriptors(backend.id());
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", backend.id())).unwrap();
    let of_memory = open.iter().filter(|one| is_memory(&one.file)).count()
        + maps.lines().filter(|line| is_memory(line)).count();
    (open.len(), of_memory)
}

/// Each guest survives an upgrade, and leaves no state in the back end.
#[test]
fn guests_in_turn_share_one_socket() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(64 * MIB);
    const THREADS: usize = 2;
    let backend = volume.serve(&["--queues", "2", "--threads", "2"]);
    common::wait_started(&backend);
    let before = holds(&backend);
    let upgrades = |guest: &mut Guest| {
        guest.wait_result("begun", common::LIMIT).unwrap();
        let with_guest = holds(&backend);
        assert!(with_guest.1 > 0, "its memory has another name");
        assert!(common::upgrade(&backend).contains("upgraded in place"), "{}", backend.log());
        // The upgrade's own descriptors may be closed a little later.
        let begin = Instant::now();
        while holds(&backend).0 > with_guest.0 || holds(&backend).1 != with_guest.1 {
            let held = descriptors(backend.id());
            let late = begin.elapsed() > common::LIMIT;
            assert!(!late, "{with_guest:?} before the upgrade; these are left: {held:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // A thread that has had a lane keeps its ring.
    let is_gone = |rings: usize| {
        let (begin, most) = (Instant::now(), before.0 + rings);
        while holds(&backend).0 > most || holds(&backend).1 > 0 {
            let held = descriptors(backend.id());
            assert!(
                begin.elapsed() < common::LIMIT,
                "{before:?} were there; these are left: {held:#?}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // A guest reads once before it is looked at: its queues are in use then.
    const BEGIN: &str =
        "dd if=/dev/vda of=/dev/null bs=4k count=1 iflag=direct\necho RESULT begun=1\n";
    let write = r#"
read -r go
dd if=/dev/urandom of=/dev/vda bs=64k count=64 conv=fsync 2>/dev/null
"#;
    let read = r#"
read -r go
echo "RESULT start=$(dd if=/dev/vda bs=64k count=64 2>/dev/null | sha256sum | cut -d' ' -f1)"
"#;
    let begin = |script: &str| bed.start(bed.machine(&volume.socket), script, &[]);
    let mut guest = begin(&format!("{BEGIN}{write}"));
    upgrades(&mut guest);
    guest.send("go\n").unwrap();
    common::finished(guest);
    is_gone(THREADS);
    // This one is killed in the middle of its work: the session ends without a word.
    let work = "while :; do dd if=/dev/vda of=/dev/null bs=64k iflag=direct 2>/dev/null; done";
    let mut guest = begin(&format!("{BEGIN}{work}"));
    upgrades(&mut guest);
    std::thread::sleep(Duration::from_millis(200));
    guest.kill();
    is_gone(THREADS);
    let mut guest = begin(&format!("{BEGIN}{read}"));
    upgrades(&mut guest);
    guest.send("go\n").unwrap();
    let report = common::finished(guest);
    is_gone(THREADS);
    assert!(common::upgrade(&backend).contains("upgraded in place"), "{}", backend.log());
    is_gone(0);
    stop(backend);
    let image = std::fs::read(&volume.image).unwrap();
    assert_eq!(report.result("start").unwrap(), sha256_of(&image[..64 * 65536]));
}

#[test]
fn firmware_boots_from_the_volume() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(8 * MIB);
    common::make_bootable(&volume.image);
    let backend = volume.serve(&["--queues", "2"]);
    // SeaBIOS's own virtio-blk driver: one queue, polled, without interrupts.
    let report = bed.machine(&volume.socket).start(common::LIMIT, None).unwrap().wait().unwrap();
    stop(backend);
    assert_eq!(report.result("second_sector").unwrap(), "read", "{}", report.console);
}

/// Makes a file system with the files of `tree` in it, without mounting anything.
fn make_ext4(bed: &QemuBed, image: &Path, tree: &Path) {
    let mkfs = bed.host.program("mkfs.ext4").unwrap();
    let made = Command::new(mkfs).args(["-q", "-F", "-d"]).arg(tree).arg(image).output().unwrap();
    assert!(made.status.success(), "{made:?}");
}
