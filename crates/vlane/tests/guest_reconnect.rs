//! The back end goes away and comes back under a running guest: QEMU connects again, and the guest's work goes on.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{QemuBed, Volume, one_at_a_time, sha256_of, stop};
use vlane_boot::{Backend, Qemu, ext4};

const MIB: u64 = 1 << 20;
/// How long the guest is without its disk, and works between two losses.
const PAUSE: Duration = Duration::from_millis(1500);
const TIMES: u32 = 2;

/// fio is held to a rate at which it writes for ten seconds, and then verifies.
fn work(depth: u32) -> String {
    format!(
        r#"
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
dd if=/dev/urandom of=/mnt/before bs=64k count=64 conv=fsync 2>/dev/null
echo "RESULT before=$(sha256sum /mnt/before | cut -d' ' -f1)"
echo "RESULT working=1"
fio --name=work --directory=/mnt --size=40m --bsrange=4k-64k --rw=randwrite --rate=,4m --direct=1 \
    --ioengine=libaio --iodepth={depth} --fsync=32 --verify=crc32c --verify_fatal=1 > /tmp/fio 2>&1 \
    || {{ cat /tmp/fio; exit 1; }}
echo "RESULT worked=1"
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
e2fsck -fn /dev/vda > /tmp/fsck 2>&1 || {{ cat /tmp/fsck; exit 1; }}
mount -o ro /dev/vda /mnt
echo "RESULT file=$(sha256sum /mnt/work.0.0 | cut -d' ' -f1)"
umount /mnt
"#
    )
}

/// Takes the back end away `TIMES` times, by `take`, and checks that nothing was lost.
fn goes_on(depth: u32, change: impl Fn(&mut Qemu), take: impl Fn(Backend)) {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(128 * MIB);
    let options = ["--queues", "2"];
    let mut backend = volume.serve(&options);
    let mut machine = bed.machine(&volume.socket);
    machine.disks[0].reconnect = true;
    change(&mut machine);
    let guest = bed.start(machine, &work(depth), &["fio", "mkfs.ext4", "e2fsck"]);
    guest.wait_result("working", common::LIMIT).unwrap();
    for _ in 0..TIMES {
        std::thread::sleep(PAUSE);
        take(backend);
        std::thread::sleep(PAUSE);
        assert!(!guest.results().contains_key("worked"), "the guest was done before the back end went away");
        backend = volume.serve(&options);
    }
    let report = common::finished(guest);
    stop(backend);
    ext4::check(&bed.host, &volume.image).unwrap();
    for (key, path) in [("before", "/before"), ("file", "/work.0.0")] {
        let content = ext4::read_file(&bed.host, &volume.image, path).unwrap();
        assert_eq!(sha256_of(&content), report.result(key).unwrap(), "{path}");
    }
}

#[test]
fn a_back_end_that_is_stopped_and_started_loses_nothing() {
    goes_on(16, |_| (), |backend| drop(stop(backend)));
}

/// A packed ring has no index in memory that says how far the back end came, and QEMU gives the new one the position
/// at which the guest once started. The one that stopped left the true one in the ring.
#[test]
fn a_back_end_that_is_stopped_and_started_loses_nothing_with_packed_rings() {
    goes_on(16, |machine| machine.disks[0].packed = true, |backend| drop(stop(backend)));
}

/// Packed rings do not show which requests were in flight when the back end was killed. The next one must say so, and
/// do none of them; unless there were none.
#[test]
fn a_back_end_after_one_that_was_killed_says_that_packed_rings_are_lost() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(128 * MIB);
    let options = ["--queues", "2"];
    let backend = volume.serve(&options);
    let mut machine = bed.machine(&volume.socket);
    machine.disks[0].reconnect = true;
    machine.disks[0].packed = true;
    // At full speed, so that there is hardly a moment without requests in flight.
    let busy = work(16).replace("--rate=,4m", "--runtime=60 --time_based");
    let mut guest = bed.start(machine, &busy, &["fio", "mkfs.ext4", "e2fsck"]);
    guest.wait_result("working", common::LIMIT).unwrap();
    std::thread::sleep(PAUSE);
    backend.kill();
    let backend = volume.serve(&options);
    std::thread::sleep(2 * PAUSE);
    guest.kill();
    let stopped = stop(backend);
    for queue in 0..2 {
        let lost = stopped.log.contains(&format!("queue {queue} is stopped: the front end says"));
        let found = stopped.log.contains(&format!("queue {queue} goes on where the last back end stopped"));
        // Neither is said of a ring that happens to be where it once started, with nothing in flight; it just goes on.
        let done =
            stopped.log.split(&format!("queue {queue}: ")).last().and_then(|rest| rest.split(' ').next());
        let went_on = !lost && done.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > 0);
        assert!(if lost { !found } else { found || went_on }, "queue {queue}: {}", stopped.log);
    }
}

/// One request at a time: what was in flight when the back end was killed is found again by the used index alone.
/// Several, finished out of order, could only be told apart by in-flight tracking.
#[test]
fn a_back_end_that_is_killed_and_started_loses_nothing() {
    goes_on(1, |_| (), Backend::kill);
}

/// QEMU notices nothing of it: no connection ends, none is made, and no request of the guest fails.
fn upgrades(change: impl Fn(&mut Qemu)) {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(128 * MIB);
    let backend = volume.serve(&["--queues", "2"]);
    let mut machine = bed.machine(&volume.socket);
    change(&mut machine);
    let guest = bed.start(machine, &work(16), &["fio", "mkfs.ext4", "e2fsck"]);
    guest.wait_result("working", common::LIMIT).unwrap();
    let pid = rustix::process::Pid::from_raw(backend.id().try_into().unwrap()).unwrap();
    let upgraded = || backend.log().matches("upgraded in place").count();
    for time in 1..=5 {
        std::thread::sleep(PAUSE / 3);
        assert!(!guest.results().contains_key("worked"), "the guest was done before the upgrade");
        rustix::process::kill_process(pid, rustix::process::Signal::USR2).unwrap();
        let begin = std::time::Instant::now();
        while upgraded() < time {
            assert!(begin.elapsed() < common::LIMIT, "{}", backend.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let report = common::finished(guest);
    let stopped = stop(backend);
    assert_eq!(stopped.log.matches(": front end pid").count(), 1, "{}", stopped.log);
    println!("{}", stopped.log);
    ext4::check(&bed.host, &volume.image).unwrap();
    for (key, path) in [("before", "/before"), ("file", "/work.0.0")] {
        let content = ext4::read_file(&bed.host, &volume.image, path).unwrap();
        assert_eq!(sha256_of(&content), report.result(key).unwrap(), "{path}");
    }
}

#[test]
fn a_guest_notices_nothing_of_upgrades() {
    upgrades(|_| ());
}

#[test]
fn a_guest_with_packed_rings_notices_nothing_of_upgrades() {
    upgrades(|machine| machine.disks[0].packed = true);
}
